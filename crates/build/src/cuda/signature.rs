//! Turns the signature of a kernel into that of a `__global__` function.

use std::ops::Range;

use super::parameters::{Parameter, Role, parameters};
use super::{Fault, Request, Source};
use crate::tokens::Tokens;

/// One argument of a rewritten kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// The contents that the launch binds to this buffer index: an address, or bytes by value.
    Buffer(u32),
    /// Where the threadgroup memory of this index begins, as a count of bytes in a `uint`. The one
    /// of the lowest index begins at 0 and is not an argument.
    ThreadgroupMemory(u32),
    /// The threads of the grid, as three `uint`s, for launches that count threads.
    Grid,
}

/// A kernel function of a source.
pub(super) struct Function {
    pub(super) name: String,
    pub(super) is_template: bool,
    /// The tokens from `template` or the first attribute to the end of the body.
    all: Range<usize>,
    /// The first token of the attributes, and the one after them.
    attributes: Range<usize>,
    open: usize,
    brace: usize,
    max_threads: Option<String>,
}

/// Finds the kernel functions that have a body.
pub(super) fn find(source: &Source) -> Result<Vec<Function>, Fault> {
    let tokens = &source.tokens;
    let mut found = Vec::new();
    let mut template = None;
    let mut i = 0;
    while i < tokens.len() {
        match tokens.at(i) {
            "template" if tokens.at(i + 1) == "<" => {
                template = Some(i);
                i = tokens.close(i + 1);
            }
            ";" | "{" | "}" => template = None,
            word if word == "kernel" || tokens.is_attribute(i) => {
                let (end, is_kernel, max_threads) = attributes(tokens, i);
                if is_kernel {
                    let start = template.take().unwrap_or(i);
                    let function = function(source, start, i..end, max_threads)?;
                    i = function.as_ref().map_or(end, |one| one.all.end - 1);
                    found.extend(function);
                } else {
                    i = end - 1;
                }
            }
            _ => {}
        }
        i += 1;
    }
    Ok(found)
}

fn attributes(tokens: &Tokens, start: usize) -> (usize, bool, Option<String>) {
    let (mut at, mut is_kernel, mut max_threads) = (start, false, None);
    loop {
        if tokens.at(at) == "kernel" {
            is_kernel = true;
            at += 1;
        } else if tokens.is_attribute(at) {
            for part in tokens.split(at + 1) {
                match tokens.at(part.start) {
                    "kernel" => is_kernel = true,
                    "max_total_threads_per_threadgroup" => {
                        max_threads = Some(tokens.join(part.start + 2..part.end - 1));
                    }
                    _ => {}
                }
            }
            at = tokens.close(at) + 1;
        } else {
            return (at, is_kernel, max_threads);
        }
    }
}

fn function(
    source: &Source,
    start: usize,
    attributes: Range<usize>,
    max_threads: Option<String>,
) -> Result<Option<Function>, Fault> {
    let tokens = &source.tokens;
    let end = attributes.end;
    let open = (end..tokens.len()).find(|&k| matches!(tokens.at(k), "(" | ";" | "{"));
    let Some(open) = open.filter(|&k| tokens.at(k) == "(") else {
        return Err(source.fault(end, "a kernel without parentheses"));
    };
    let brace = tokens.close(open) + 1;
    if tokens.at(brace) != "{" {
        return Ok(None); // a declaration
    }
    Ok(Some(Function {
        name: tokens.before(open).to_owned(),
        is_template: start < attributes.start,
        all: start..tokens.close(brace) + 1,
        attributes,
        open,
        brace,
        max_threads,
    }))
}

/// Rewrites the kernel of that name and removes all others.
pub(super) fn rewrite(
    source: &mut Source,
    functions: &[Function],
    name: &str,
    request: &Request,
) -> Result<Vec<Argument>, Fault> {
    let mut arguments = Vec::new();
    for function in functions {
        if function.name != name {
            source.tokens.blank(function.all.clone());
            continue;
        }
        let parameters = parameters(source, function.open)?;
        let mut written =
            Signature { request, text: Vec::new(), prologue: String::new(), arguments };
        written.begin();
        written.buffers(&parameters);
        written.threadgroup_memory(&parameters);
        written.values(&parameters);
        let Signature { text, prologue, arguments: made, .. } = written;
        arguments = made;
        let tokens = &mut source.tokens;
        let close = tokens.close(function.open);
        tokens.blank(function.attributes.clone());
        tokens.blank(function.open + 1..close);
        let bounds =
            function.max_threads.as_ref().map(|most| format!(" __launch_bounds__({most})"));
        tokens.list[function.attributes.start].text =
            format!("__global__{}", bounds.unwrap_or_default());
        tokens.list[function.open].text = format!("({}", text.join(", "));
        tokens.list[function.brace].text = format!("{{ {prologue}");
    }
    Ok(arguments)
}

struct Signature<'a> {
    request: &'a Request<'a>,
    text: Vec<String>,
    prologue: String,
    arguments: Vec<Argument>,
}

impl Signature<'_> {
    fn begin(&mut self) {
        if self.request.counts_threads {
            self.arguments.push(Argument::Grid);
            self.text.push("const ::msl::Grid msl_grid".to_owned());
            let text = "const ::msl::PartialPlaces msl_places(msl_grid); \
                        if (msl_places.is_outside()) return; ";
            self.prologue.push_str(text);
        } else {
            self.prologue.push_str("const ::msl::Places msl_places; ");
        }
    }

    fn buffers(&mut self, parameters: &[Parameter]) {
        let buffers = parameters.iter().filter(|one| matches!(one.role, Role::Buffer));
        for one in buffers {
            let index = one.index.unwrap_or_default();
            let (name, target) = (&one.name, one.target());
            let Some(bound) = self.request.bound.iter().find(|bound| bound.index == index) else {
                self.prologue.push_str(&one.declared("nullptr"));
                continue;
            };
            self.arguments.push(Argument::Buffer(index));
            match (bound.bytes, one.is_reference) {
                (0 | u32::MAX, false) => self.text.push(format!("{target}* {name}")),
                (0, true) => {
                    self.text.push(format!("{target}* msl_at_{name}"));
                    self.prologue.push_str(&one.declared(&format!("msl_at_{name}")));
                }
                (_, true) => self.text.push(format!("const __grid_constant__ {} {name}", one.base)),
                (bytes, false) => {
                    let kind = format!("::msl::Bytes<{bytes}>");
                    self.text.push(format!("const __grid_constant__ {kind} msl_of_{name}"));
                    self.prologue.push_str(&one.declared(&format!("&msl_of_{name}")));
                }
            }
        }
    }

    fn threadgroup_memory(&mut self, parameters: &[Parameter]) {
        let mut own: Vec<&Parameter> =
            parameters.iter().filter(|one| matches!(one.role, Role::Threadgroup)).collect();
        own.sort_by_key(|one| one.index);
        if !own.is_empty() {
            let text = "extern __shared__ __align__(16) unsigned char msl_shared[]; ";
            self.prologue.push_str(text);
        }
        for (i, one) in own.into_iter().enumerate() {
            if i == 0 {
                self.prologue.push_str(&one.declared("msl_shared"));
                continue;
            }
            self.arguments.push(Argument::ThreadgroupMemory(one.index.unwrap_or_default()));
            self.text.push(format!("const unsigned msl_from_{}", one.name));
            self.prologue.push_str(&one.declared(&format!("msl_shared + msl_from_{}", one.name)));
        }
    }

    fn values(&mut self, parameters: &[Parameter]) {
        for one in parameters {
            if let Role::Value(value) = one.role {
                let (base, name) = (&one.base, &one.name);
                let text = format!("{base} {name} = ::msl::as<{base}>(msl_places.{value}()); ");
                self.prologue.push_str(&text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bound, Request, rewrite};
    use super::Argument;

    const SOURCE: &str = "\
template <typename T, uint N>
[[kernel]] void f(
    const device T* x [[buffer(0)]],
    device T* y [[buffer(2)]],
    constant Params& params [[buffer(1)]],
    constant float* table [[buffer(4)]],
    threadgroup float* scratch [[threadgroup(0)]],
    threadgroup uint* more [[threadgroup(1)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]]) {
  y[0] = x[0];
}
kernel void other(device int& x) {}
template [[host_name(\"f4\")]] [[kernel]] decltype(f<half, 4>) f<half, 4>;
";

    fn bound(index: u32, bytes: u32) -> Bound {
        Bound { index, bytes }
    }

    #[test]
    fn parameters_follow_their_bindings() {
        let all = [bound(0, 0), bound(1, 12), bound(2, 0), bound(4, 8)];
        let request = Request { source: SOURCE, kernel: "f4", bound: &all, ..Request::default() };
        let made = rewrite(&request).unwrap();
        assert_eq!(made.expression, "f<half, 4>");
        use Argument::*;
        let wanted = [Buffer(0), Buffer(2), Buffer(1), Buffer(4), ThreadgroupMemory(1)];
        assert_eq!(made.arguments, wanted);
        for part in [
            "(const T* x, T* y, const __grid_constant__ Params params, \
             const __grid_constant__ ::msl::Bytes<8> msl_of_table, const unsigned msl_from_more",
            "float* scratch = (float*)(msl_shared);",
            "uint2 group = ::msl::as<uint2>(msl_places.threadgroup_position_in_grid());",
        ] {
            assert!(made.text.contains(part), "{part}: {}", made.text);
        }
        assert!(!made.text.contains("other") && !made.text.contains("host_name"), "{}", made.text);
        assert_eq!(made.text.lines().count(), SOURCE.lines().count());
    }

    #[test]
    fn arrays_take_the_place_of_bytes() {
        let all = [bound(0, 0), bound(1, 0)];
        let request = Request {
            source: SOURCE,
            kernel: "f4",
            bound: &all,
            counts_threads: true,
            ..Request::default()
        };
        let made = rewrite(&request).unwrap();
        use Argument::*;
        assert_eq!(made.arguments, [Grid, Buffer(0), Buffer(1), ThreadgroupMemory(1)]);
        let reference = "const Params& params = *(const Params*)(msl_at_params);";
        assert!(made.text.contains(reference), "{}", made.text);
        assert!(made.text.contains("T* y = (T*)(nullptr);"), "{}", made.text);
    }

    #[test]
    fn faults_name_their_line() {
        let source = "#line 7 \"a.metal\"\nkernel void f(uint x [[color(0)]]) {}\n";
        let fault = rewrite(&Request { source, kernel: "f", ..Request::default() }).unwrap_err();
        let wanted = "a.metal:7: the attribute [[color]] is not supported on CUDA";
        assert_eq!(fault.to_string(), wanted);
        let none = rewrite(&Request { source, kernel: "g", ..Request::default() }).unwrap_err();
        assert_eq!(none.to_string(), "the source has no kernel named g");
    }
}
