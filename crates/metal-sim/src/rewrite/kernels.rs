//! Turns kernel functions and their explicit instantiations into entries of a registry.

use std::ops::Range;

use super::entries::ALWAYS_INLINE;
use super::{BUILTINS, KernelSource, Purpose, Rewriter, SPACES};

/// The resource or value that a kernel parameter is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Buffer,
    Threadgroup,
    Value(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    pub(crate) role: Role,
    /// A number, or an expression for the compiler to evaluate.
    pub(crate) index: Option<String>,
    pub(crate) writable: bool,
    pub(crate) constant: bool,
    /// The function constant that decides whether the parameter exists.
    pub(crate) condition: Option<String>,
}

/// The attributes in front of a declaration.
#[derive(Default)]
struct Attributes {
    kernel: bool,
    host_name: Option<String>,
    max_threads: Option<String>,
    end: usize,
}

impl Rewriter {
    pub(super) fn kernels(&mut self) {
        let mut i = 0;
        let mut template = false;
        while i < self.tokens.len() {
            match self.tokens.at(i) {
                "template" if self.tokens.at(i + 1) == "<" => {
                    template = true;
                    i = self.tokens.close(i + 1) + 1;
                    continue;
                }
                "template" => {
                    i = self.instantiation(i);
                    continue;
                }
                ";" | "{" | "}" => template = false,
                "kernel" | "[" if self.tokens.at(i) == "kernel" || self.tokens.is_attribute(i) => {
                    let attributes = self.attributes(i);
                    if attributes.kernel {
                        i = self.kernel(i, attributes, template);
                        template = false;
                        continue;
                    }
                    i = attributes.end;
                    continue;
                }
                _ => {}
            }
            i += 1;
        }
    }

    fn attributes(&self, start: usize) -> Attributes {
        let mut found = Attributes { end: start, ..Attributes::default() };
        loop {
            let i = found.end;
            if self.tokens.at(i) == "kernel" {
                found.kernel = true;
                found.end = i + 1;
            } else if self.tokens.is_attribute(i) {
                for part in self.tokens.split(i + 1) {
                    let argument = || self.tokens.join(part.start + 2..part.end - 1);
                    match self.tokens.at(part.start) {
                        "kernel" => found.kernel = true,
                        "host_name" => found.host_name = Some(argument()),
                        "max_total_threads_per_threadgroup" => found.max_threads = Some(argument()),
                        _ => {}
                    }
                }
                found.end = self.tokens.close(i) + 1;
            } else {
                return found;
            }
        }
    }

    fn kernel(&mut self, start: usize, attributes: Attributes, template: bool) -> usize {
        let mut at = attributes.end;
        self.tokens.blank(start..at);
        if self.purpose == Purpose::Gpu {
            self.tokens.list[start].text = ALWAYS_INLINE.to_string();
        }
        while matches!(self.tokens.at(at), "static" | "inline" | "constexpr") {
            at += 1;
        }
        let mut open = at;
        while open < self.tokens.len() && !matches!(self.tokens.at(open), "(" | ";" | "{") {
            open += 1;
        }
        let name = self.tokens.before(open).to_string();
        if self.tokens.join(at..open - 1) != "void" {
            self.remark(at, format!("kernel '{name}' must return void"));
        }
        if self.tokens.at(open) != "(" {
            return open;
        }
        let parameters = self.parameters(open);
        let end = self.tokens.close(open);
        if self.tokens.at(end + 1) != "{" {
            return end + 1;
        }
        let body = end + 1..self.tokens.close(end + 1);
        let (file, line) = self.tokens.place(open - 1);
        let limit = attributes.max_threads;
        // Parameters of a template mean nothing where its instances are registered.
        let known = limit.filter(|limit| !template || limit.parse::<u32>().is_ok());
        let max_threads = known.unwrap_or_else(|| "0".to_string());
        let kernel = KernelSource { name: name.clone(), parameters, file, line, max_threads, body };
        if !template {
            let host = attributes.host_name.unwrap_or_else(|| format!("\"{name}\""));
            self.claim_host_name(open - 1, &host);
            if self.purpose == Purpose::Run {
                let entry = self.registration(&kernel, &host, &name);
                let closing = kernel.body.end;
                self.tokens.list[closing].text.push_str(&entry);
            }
            if self.purpose == Purpose::Gpu {
                self.entry(&kernel, &host, &name);
            }
        }
        self.kernels.push(kernel);
        end + 1
    }

    fn parameters(&mut self, open: usize) -> Vec<Parameter> {
        let mut found: Vec<Parameter> = Vec::new();
        for part in self.tokens.split(open) {
            if self.tokens.join(part.clone()) == "void" {
                continue;
            }
            let parameter = self.parameter(part);
            found.push(parameter);
        }
        for role in [Role::Buffer, Role::Threadgroup] {
            let mut next = 0;
            for i in 0..found.len() {
                if found[i].role == role && found[i].index.is_none() {
                    let taken = |n: u32| {
                        found.iter().any(|p| p.role == role && p.index == Some(n.to_string()))
                    };
                    while taken(next) {
                        next += 1;
                    }
                    found[i].index = Some(next.to_string());
                }
            }
        }
        found
    }

    fn parameter(&mut self, range: Range<usize>) -> Parameter {
        let mut declaration = range.end;
        let (mut role, mut index, mut condition) = (None, None, None);
        for i in range.clone() {
            if !self.tokens.is_attribute(i) {
                continue;
            }
            declaration = declaration.min(i);
            for part in self.tokens.split(i + 1) {
                let name = self.tokens.at(part.start).to_string();
                let argument =
                    (part.len() > 2).then(|| self.tokens.join(part.start + 2..part.end - 1));
                match name.as_str() {
                    "buffer" => (role, index) = (Some(Role::Buffer), argument),
                    "threadgroup" => (role, index) = (Some(Role::Threadgroup), argument),
                    "function_constant" => condition = argument,
                    "maybe_unused" | "id" => {}
                    _ => match BUILTINS.iter().position(|known| *known == name) {
                        Some(row) => role = Some(Role::Value(row)),
                        None => self.remark(i, format!("unsupported attribute [[{name}]]")),
                    },
                }
            }
            self.tokens.blank(i..self.tokens.close(i) + 1);
        }
        let words: Vec<&str> = (range.start..declaration).map(|i| self.tokens.at(i)).collect();
        let space = words.iter().find(|word| SPACES.contains(word)).copied();
        let indirect = words.iter().any(|word| matches!(*word, "*" | "&" | "["));
        let bracket = words.iter().position(|word| *word == "[").unwrap_or(words.len());
        let name = words[..bracket].last().copied().unwrap_or("").to_string();
        let writable = indirect && !words.contains(&"const") && space == Some("device");
        let constant = space == Some("constant");
        let in_threadgroup = space == Some("threadgroup");
        if role.is_none() {
            if indirect {
                let text = "has no explicit [[buffer(n)]] or [[threadgroup(n)]]";
                self.advise(range.start, format!("parameter '{name}' {text}"));
            } else {
                self.remark(range.start, format!("parameter '{name}' has no attribute"));
            }
        } else if indirect && !matches!(space, Some("device" | "constant" | "threadgroup")) {
            self.remark(range.start, format!("kernel parameter '{name}' has no address space"));
        }
        let role = role.unwrap_or(if in_threadgroup { Role::Threadgroup } else { Role::Buffer });
        Parameter { name, role, index, writable, constant, condition }
    }

    /// `template [[host_name("x")]] [[kernel]] decltype(f<T>) f<T>;` or `... void f<T>(...);`
    fn instantiation(&mut self, start: usize) -> usize {
        let attributes = self.attributes(start + 1);
        let Some(host) = attributes.host_name else {
            return start + 1;
        };
        let mut at = attributes.end;
        at = match self.tokens.at(at) {
            "decltype" => self.tokens.close(at + 1) + 1,
            _ => at + 1,
        };
        let mut end = at;
        let mut name = String::new();
        while !matches!(self.tokens.at(end), "(" | ";" | "") {
            if self.tokens.at(end) == "<" {
                name = self.tokens.before(end).to_string();
                end = self.tokens.close(end);
            }
            end += 1;
        }
        let mut last = end;
        while !matches!(self.tokens.at(last), ";" | "") {
            last += 1;
        }
        let Some(kernel) = self.kernels.iter().find(|kernel| kernel.name == name).cloned() else {
            self.remark(start, format!("instantiation of '{name}', which is not a kernel"));
            return last;
        };
        self.claim_host_name(start, &host);
        if self.purpose == Purpose::Check {
            self.tokens.blank(start + 1..attributes.end);
            return last + 1;
        }
        let function = self.tokens.join_without(at..end, &SPACES);
        self.tokens.blank(start..(last + 1).min(self.tokens.len()));
        if self.purpose == Purpose::Gpu {
            self.entry(&kernel, &host, &function);
        } else {
            self.tokens.list[start].text = self.registration(&kernel, &host, &function);
        }
        last + 1
    }

    fn claim_host_name(&mut self, at: usize, host: &str) {
        let quoted = host.split('"').skip(1).step_by(2);
        let name: String = quoted.collect();
        if self.host_names.contains(&name) {
            self.remark(at, format!("second kernel with the host name \"{name}\""));
        }
        self.host_names.push(name);
    }

    fn registration(&mut self, kernel: &KernelSource, host: &str, function: &str) -> String {
        let serial = self.serial();
        let mut table = String::new();
        for parameter in &kernel.parameters {
            let (kind, index) = match &parameter.role {
                Role::Buffer => (0, parameter.index.clone().unwrap_or_default()),
                Role::Threadgroup => (1, parameter.index.clone().unwrap_or_default()),
                Role::Value(row) => (2, row.to_string()),
            };
            let required = parameter.condition.as_deref().unwrap_or("true");
            table.push_str(&format!(
                "{{{kind}u, uint({index}), {}u, uint(bool({required})), \"{}\"}}, ",
                u32::from(parameter.writable),
                parameter.name
            ));
        }
        format!(
            " static const ::msl::Parameter msl_parameters_{serial}[] = \
             {{{table}{{2u, 0u, 0u, 0u, nullptr}}}}; \
             static ::msl::Registration<&{function}> msl_kernel_{serial}({host}, {:?}, {}u, \
             uint({}), msl_parameters_{serial});",
            kernel.file, kernel.line, kernel.max_threads
        )
    }
}
