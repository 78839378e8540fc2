//! Turns the signature of a kernel into the signature of a `__global__` function.

use super::instances::Source;
use super::request::{Fault, Request};
use crate::front::{Kernel, Parameter, Role, VALUES};

/// One argument of a rewritten kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// An address or bytes by value, which the launch binds to this buffer index.
    Buffer(u32),
    /// The offset in bytes, as a `uint`, of the threadgroup memory with this index. The memory with
    /// the lowest index is at offset 0 and needs no argument.
    ThreadgroupMemory(u32),
    /// The number of threads of the grid along each axis, as three `uint`s. Only launches that give
    /// the grid in threads have this argument.
    Grid,
}

/// The attributes of parameters that need no rewriting.
const KNOWN: [&str; 4] = ["buffer", "threadgroup", "function_constant", "maybe_unused"];

/// Rewrites the kernel.
pub(super) fn rewrite(
    source: &mut Source,
    kernel: &Kernel,
    request: &Request,
) -> Result<Vec<Argument>, Fault> {
    let each = kernel.parameters.iter().map(|one| argument(source, one));
    let parameters = each.collect::<Result<Vec<_>, _>>()?;
    let mut written =
        Signature { request, text: Vec::new(), prologue: String::new(), arguments: Vec::new() };
    written.begin();
    written.buffers(&parameters);
    written.threadgroup_memory(&parameters);
    written.values(&parameters);
    let tokens = &mut source.tokens;
    let close = tokens.close(kernel.open);
    tokens.blank(kernel.attributes.clone());
    tokens.blank(kernel.open + 1..close);
    let bounds = kernel.max_threads.as_ref().map(|most| format!(" __launch_bounds__({most})"));
    tokens.list[kernel.attributes.start].text = format!("__global__{}", bounds.unwrap_or_default());
    tokens.list[kernel.open].text = format!("({}", written.text.join(", "));
    tokens.list[kernel.body.start].text = format!("{{ {}", written.prologue);
    Ok(written.arguments)
}

/// Checks a parameter and returns it with its index. A parameter that receives a built-in value has
/// the index 0.
fn argument<'a>(source: &Source, one: &'a Parameter) -> Result<(u32, &'a Parameter), Fault> {
    let start = one.range.start;
    for attribute in &one.attributes {
        let name = attribute.name.as_str();
        if !KNOWN.contains(&name) && !VALUES.contains(&name) {
            let text = format!("the attribute [[{name}]] is not supported on CUDA");
            return Err(source.fault(attribute.at, text));
        }
    }
    if one.base.is_empty() {
        return Err(source.fault(start, "a parameter without a type or a name"));
    }
    let is_value = matches!(one.role, Role::Value(_));
    if is_value == one.is_indirect() || one.mark == "[" {
        return Err(source.fault(start, format!("the parameter {} cannot be read", one.name)));
    }
    let text = one.index.as_deref().unwrap_or("0");
    let index = text.parse();
    let index = index.map_err(|_| source.fault(start, format!("the index {text} is no number")))?;
    Ok((index, one))
}

/// Returns the type that a parameter points or refers to.
fn target(one: &Parameter) -> String {
    format!("{}{}", if one.is_const { "const " } else { "" }, one.base)
}

/// Returns a declaration of the parameter as a pointer or a reference to an address. `address` is
/// an expression.
fn declared(one: &Parameter, address: &str) -> String {
    let (target, name) = (target(one), &one.name);
    match one.mark == "&" {
        true => format!("{target}& {name} = *({target}*)({address}); "),
        false => format!("{target}* {name} = ({target}*)({address}); "),
    }
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

    fn buffers(&mut self, parameters: &[(u32, &Parameter)]) {
        for &(index, one) in parameters.iter().filter(|(_, one)| one.role == Role::Buffer) {
            let (name, target) = (&one.name, target(one));
            let Some(bound) = self.request.bound.iter().find(|bound| bound.index == index) else {
                self.prologue.push_str(&declared(one, "nullptr"));
                continue;
            };
            self.arguments.push(Argument::Buffer(index));
            match (bound.bytes, one.mark == "&") {
                (0 | u32::MAX, false) => self.text.push(format!("{target}* {name}")),
                (0, true) => {
                    self.text.push(format!("{target}* msl_at_{name}"));
                    self.prologue.push_str(&declared(one, &format!("msl_at_{name}")));
                }
                (_, true) => self.text.push(format!("const __grid_constant__ {} {name}", one.base)),
                (bytes, false) => {
                    let kind = format!("::msl::Bytes<{bytes}>");
                    self.text.push(format!("const __grid_constant__ {kind} msl_of_{name}"));
                    self.prologue.push_str(&declared(one, &format!("&msl_of_{name}")));
                }
            }
        }
    }

    fn threadgroup_memory(&mut self, parameters: &[(u32, &Parameter)]) {
        let own = parameters.iter().filter(|(_, one)| one.role == Role::Threadgroup);
        let mut own: Vec<_> = own.collect();
        own.sort_by_key(|(index, _)| index);
        if !own.is_empty() {
            let text = "extern __shared__ __align__(16) unsigned char msl_shared[]; ";
            self.prologue.push_str(text);
        }
        for (i, (index, one)) in own.into_iter().enumerate() {
            if i == 0 {
                self.prologue.push_str(&declared(one, "msl_shared"));
                continue;
            }
            self.arguments.push(Argument::ThreadgroupMemory(*index));
            self.text.push(format!("const unsigned msl_from_{}", one.name));
            self.prologue.push_str(&declared(one, &format!("msl_shared + msl_from_{}", one.name)));
        }
    }

    fn values(&mut self, parameters: &[(u32, &Parameter)]) {
        for (_, one) in parameters {
            if let Role::Value(row) = one.role {
                let (base, name, value) = (&one.base, &one.name, VALUES[row]);
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
