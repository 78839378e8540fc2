//! Writes a GPU entry point for each kernel, in the form that clang's CUDA front end accepts.

use std::fmt::Write;

use mlx_primitives_build::front::{Kernel, Role};

use super::{Purpose, Rewriter};

pub(super) const ALWAYS_INLINE: &str = "inline __attribute__((always_inline)) ";
pub(super) const SHARED: &str = "__attribute__((shared, aligned(16)))";

const KEPT: &str = "_Pragma(\"clang loop unroll(disable)\") ";

/// The assumed size in bytes of a threadgroup argument. The host chooses the real size.
const THREADGROUP_BYTES: u32 = 4096;

impl Rewriter {
    /// Writes an entry point on a separate line. Its name ends with `__c` and a mask of the
    /// arguments in constant memory. Pointers to constant memory have the type of pointers to
    /// device memory, since the compiler could otherwise not infer address spaces.
    pub(super) fn entry(&mut self, kernel: &Kernel, name: &str, function: &str) {
        let serial = self.serial();
        let (mut parameters, mut arguments, mut locals) = (Vec::new(), Vec::new(), String::new());
        let mut mask = 0u64;
        for (i, parameter) in kernel.parameters.iter().enumerate() {
            let kind = format!("::msl::Signature_{serial}::argument<{i}>");
            match parameter.role {
                Role::Buffer => {
                    mask |= u64::from(parameter.space == Some("constant")) << parameters.len();
                    parameters.push(format!("::msl::Bound<{kind}> a{i}"));
                    arguments.push(format!("::msl::argument<{kind}>(a{i})"));
                }
                Role::Threadgroup => {
                    let element = format!("::msl::Pointee<{kind}>::type");
                    let _ = write!(
                        locals,
                        "static {SHARED} {element} a{i}[{THREADGROUP_BYTES} / sizeof({element})]; "
                    );
                    arguments.push(format!("a{i}"));
                }
                Role::Value(row) => arguments.push(format!("::msl::value<{row}, {kind}>()")),
            }
        }
        let _ = writeln!(
            self.entries,
            "namespace msl {{ typedef Signature<decltype(&::{function})> Signature_{serial}; }} \
             extern \"C\" __attribute__((global)) void {name}__c{mask:x}({}) \
             {{ {locals}::{function}({}); }}",
            parameters.join(", "),
            arguments.join(", "),
        );
    }

    /// Disables unrolling for `for` loops whose header contains `&&`. Their number of iterations is
    /// unknown, but the optimizer may find an upper bound for it and unroll the loop up to that
    /// bound.
    pub(super) fn keep_loops(&mut self) {
        for i in 0..self.tokens.len() {
            if self.tokens.at(i) == "for" && self.tokens.at(i + 1) == "(" {
                let inside = i + 2..self.tokens.close(i + 1);
                let either = |k: usize| self.tokens.at(k) == "&" && self.tokens.at(k + 1) == "&";
                if inside.clone().any(either) {
                    self.tokens.list[i].text.insert_str(0, KEPT);
                }
            }
        }
    }

    /// Returns the rewritten source. For a GPU, functions without an attribute are compiled as
    /// device code.
    pub(super) fn text(&self) -> String {
        let text = self.tokens.text();
        if self.purpose != Purpose::Gpu {
            return text;
        }
        let pragma = "#pragma clang force_cuda_host_device";
        format!("{pragma} begin\n{text}\n{pragma} end\n{}", self.entries)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Purpose, rewrite};
    use super::ALWAYS_INLINE;

    /// Returns the lines of the entry points, and the text before them.
    fn rewritten(source: &str) -> (Vec<String>, String) {
        let text = rewrite(source, Path::new("/shim"), Purpose::Gpu).text;
        let (before, entries) = text.split_once("host_device end\n").unwrap();
        (entries.lines().map(String::from).collect(), before.to_string())
    }

    #[test]
    fn a_kernel_gets_an_entry() {
        let (entries, before) = rewritten(
            "kernel void twice(const device float* x [[buffer(0)]], constant uint& n [[buffer(2)]], \
             device float* y [[buffer(1)]], threadgroup float* s [[threadgroup(0)]], \
             uint i [[thread_position_in_grid]]) { y[i] = 2 * x[i]; }",
        );
        assert_eq!(entries.len(), 1);
        let entry = &entries[0];
        // The second of three pointers is in constant memory.
        assert!(entry.contains("void twice__c2(::msl::Bound<"), "{entry}");
        assert_eq!(entry.matches("::msl::Bound<").count(), 3, "{entry}");
        assert!(entry.contains("static __attribute__((shared, aligned(16)))"), "{entry}");
        assert!(entry.contains("::msl::value<0, ::msl::Signature_1::argument<4>>()"), "{entry}");
        assert!(before.contains(ALWAYS_INLINE) && before.contains("void twice("), "{before}");
        assert!(!before.contains("[["), "{before}");
    }

    #[test]
    fn loops_of_two_ends_stay() {
        let (_, before) = rewritten(
            "kernel void sum(device float* x [[buffer(0)]], constant uint& n [[buffer(1)]]) { \
             for (uint i = 0; i < 8 && i < n; i++) { x[i] = 0; } \
             for (uint i = 0; i < 8; i++) { x[i] = i < 4 && n > 1; } }",
        );
        assert_eq!(before.matches("unroll(disable)").count(), 1, "{before}");
        assert!(before.contains("unroll(disable)\") for (uint i = 0; i < 8 && i < n"), "{before}");
    }

    #[test]
    fn every_instance_gets_an_entry() {
        let (entries, before) = rewritten(
            "template <class T> [[kernel]] void copy(device T* x [[buffer(0)]], \
             uint i [[thread_index_in_threadgroup]]) { threadgroup T held[32]; held[i] = x[i]; }\n\
             template [[host_name(\"copy_\" \"f\")]] [[kernel]] decltype(copy<float>) copy<float>;\n\
             template [[host_name(\"copy_h\")]] [[kernel]] decltype(copy<half>) copy<half>;\n",
        );
        assert_eq!(entries.len(), 2);
        assert!(entries[0].contains("void copy_f__c0("), "{}", entries[0]);
        assert!(entries[0].contains("float"), "{}", entries[0]);
        assert!(entries[1].contains("void copy_h__c0("));
        assert!(before.contains("static __attribute__((shared, aligned(16))) T held [(32)]"));
    }
}
