//! Turns kernel functions and their explicit instantiations into entries of the registry
//! (`registry.h`), through which the host finds kernels, or into entry points for a GPU.

use mlx_primitives_build::front::{self, Kernel, Parameter, Role};

use super::entries::ALWAYS_INLINE;
use super::{Purpose, Refused, Rewriter};

/// The attributes of parameters that the rewriter accepts, besides the attributes of built-in
/// values.
const KNOWN: [&str; 5] = ["buffer", "threadgroup", "function_constant", "maybe_unused", "id"];

impl Rewriter {
    pub(super) fn kernels(&mut self) {
        let argument_buffers = self.argument_buffers();
        for kernel in front::kernels(&self.tokens) {
            match self.reason(&kernel, &argument_buffers) {
                Some(reason) => self.refuse(&kernel, reason),
                None => self.kernels.push(kernel),
            }
        }
        self.texture_functions();
        let mut depth = 0;
        self.global = (0..self.tokens.len())
            .map(|i| {
                depth += i32::from(self.tokens.at(i) == "{") - i32::from(self.tokens.at(i) == "}");
                depth == 0
            })
            .collect();
        for kernel in self.kernels.clone() {
            self.kernel(&kernel);
        }
        for i in 0..self.tokens.len() {
            if self.tokens.at(i) == "template" {
                self.instantiation(i);
            }
        }
    }

    fn kernel(&mut self, kernel: &Kernel) {
        let (attributes, open) = (kernel.attributes.clone(), kernel.open);
        let mut at = attributes.end;
        while matches!(self.tokens.at(at), "static" | "inline" | "constexpr") {
            at += 1;
        }
        if self.tokens.join(at..open - 1) != "void" {
            self.remark(at, format!("kernel '{}' must return void", kernel.name));
        }
        for parameter in &kernel.parameters {
            self.parameter(parameter);
        }
        self.tokens.blank(attributes.clone());
        if self.purpose == Purpose::Gpu {
            self.tokens.list[attributes.start].text = ALWAYS_INLINE.to_string();
        }
        if kernel.is_template {
            return;
        }
        let host = kernel.host_name.as_ref().unwrap_or(&kernel.name);
        self.claim_host_name(open - 1, host);
        match self.purpose {
            Purpose::Check => {}
            Purpose::Gpu => self.entry(kernel, host, &kernel.name),
            Purpose::Run => {
                let name = self.alone(kernel);
                let name = self.apart(kernel.body.end, &name);
                let entry = self.registration(kernel, host, &name);
                self.tokens.list[kernel.body.end].text.push_str(&entry);
            }
        }
    }

    fn refuse(&mut self, kernel: &Kernel, reason: String) {
        let name = kernel.host_name.clone().unwrap_or_else(|| kernel.name.clone());
        self.refused.push(Refused { name, function: kernel.name.clone(), reason });
        self.tokens.blank(kernel.all.clone());
    }

    fn parameter(&mut self, parameter: &Parameter) {
        let name = &parameter.name;
        for one in &parameter.attributes {
            let of_value = front::VALUES.contains(&one.name.as_str());
            if !of_value && !KNOWN.contains(&one.name.as_str()) {
                self.remark(one.at, format!("unsupported attribute [[{}]]", one.name));
            }
        }
        let start = parameter.range.start;
        match (parameter.is_explicit, parameter.is_indirect()) {
            (false, true) => {
                let text = "has no explicit [[buffer(n)]] or [[threadgroup(n)]]";
                self.advise(start, format!("parameter '{name}' {text}"));
            }
            (false, false) => self.remark(start, format!("parameter '{name}' has no attribute")),
            (true, true) if matches!(parameter.space, None | Some("thread")) => {
                self.remark(start, format!("kernel parameter '{name}' has no address space"));
            }
            (true, _) => {}
        }
    }

    fn instantiation(&mut self, start: usize) {
        let Some(instance) = front::instance(&self.tokens, start) else { return };
        let named = self.kernels.iter().find(|kernel| kernel.name == instance.function).cloned();
        let refused = self.refused.iter().find(|one| one.function == instance.function).cloned();
        if let Some(refused) = refused {
            self.tokens.blank(start..instance.end + 1);
            return self.refused.push(Refused { name: instance.host_name, ..refused });
        }
        let Some(kernel) = named else {
            let text = format!("instantiation of '{}', which is not a kernel", instance.function);
            return self.remark(start, text);
        };
        self.claim_host_name(start, &instance.host_name);
        if self.purpose == Purpose::Check {
            return self.tokens.blank(instance.attributes);
        }
        self.tokens.blank(start..instance.end + 1);
        if self.purpose == Purpose::Gpu {
            self.entry(&kernel, &instance.host_name, &instance.expression);
        } else {
            let instantiated = self.apart(start, &instance.expression);
            self.tokens.list[start].text =
                self.registration(&kernel, &instance.host_name, &instantiated);
        }
    }

    /// Returns the name of a kernel. The kernel gets a new name if another function has the same
    /// name.
    fn alone(&mut self, kernel: &Kernel) -> String {
        let at = kernel.open - 1;
        let defined = |i: usize| {
            let is_it = i != at && self.tokens.at(i) == kernel.name && self.tokens.at(i + 1) == "(";
            is_it && self.tokens.at(self.tokens.close(i + 1) + 1) == "{"
        };
        if (0..self.tokens.len()).any(defined) {
            self.tokens.list[at].text.push_str("_kernel");
        }
        self.tokens.at(at).to_owned()
    }

    /// Returns the name of the function at `i`. Outside of all braces, the name gets the prefix
    /// `::`, since a function in Metal's namespace may have the same name, such as `transpose`.
    fn apart(&self, i: usize, name: &str) -> String {
        let is_name = name.starts_with(|first: char| first.is_alphabetic() || first == '_');
        if is_name && self.global[i] { format!("::{name}") } else { name.to_owned() }
    }

    fn claim_host_name(&mut self, at: usize, name: &str) {
        if self.host_names.iter().any(|known| known == name) {
            self.remark(at, format!("second kernel with the host name \"{name}\""));
        }
        self.host_names.push(name.to_string());
    }

    fn registration(&mut self, kernel: &Kernel, host: &str, function: &str) -> String {
        let serial = self.serial();
        let mut table = String::new();
        for parameter in &kernel.parameters {
            let index = parameter.index.clone().unwrap_or_default();
            let (kind, index) = match parameter.role {
                Role::Buffer => (0, index),
                Role::Threadgroup => (1, index),
                Role::Value(row) => (2, row.to_string()),
            };
            let writable =
                parameter.is_indirect() && !parameter.is_const && parameter.space == Some("device");
            let required = parameter.argument("function_constant");
            table.push_str(&format!(
                "{{{kind}u, uint({index}), {}u, uint(bool({})), \"{}\"}}, ",
                u32::from(writable),
                required.as_deref().unwrap_or("true"),
                parameter.name
            ));
        }
        let (file, line) = self.tokens.place(kernel.open - 1);
        let limit = kernel.max_threads.as_deref();
        // If the limit is a template parameter, its value is unknown where the template's instances
        // are registered.
        let known = |limit: &&str| !kernel.is_template || limit.parse::<u32>().is_ok();
        format!(
            " static const ::msl::Parameter msl_parameters_{serial}[] = \
             {{{table}{{2u, 0u, 0u, 0u, nullptr}}}}; \
             static ::msl::Registration<&{function}> msl_kernel_{serial}({host:?}, {file:?}, \
             {line}u, uint({}), msl_parameters_{serial});",
            limit.filter(known).unwrap_or("0"),
        )
    }
}
