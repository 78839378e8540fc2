//! Rewrites `threadgroup float x[32];` in a function. If the source will run, the executor
//! (`exec/`) provides the memory.

use mlx_primitives_build::front::threadgroup_variables;

use super::entries::SHARED;
use super::{Purpose, Rewriter};

impl Rewriter {
    pub(super) fn threadgroup_variables(&mut self) {
        for found in threadgroup_variables(&self.tokens) {
            let (range, kind) = (found.range, found.kind);
            if !self.kernels.iter().any(|kernel| kernel.body.contains(&range.start)) {
                self.remark(range.start, "threadgroup variable outside a kernel function");
            }
            let mut declarations = String::new();
            for one in found.variables {
                let (word, extent) = (self.tokens.at(one.at).to_string(), one.extent);
                if one.is_initialized {
                    let text = "has no effect";
                    self.advise(
                        one.at,
                        format!("initializer on threadgroup variable '{word}' {text}"),
                    );
                }
                let serial = self.serial();
                declarations.push_str(&match self.purpose {
                    Purpose::Run => format!(
                        "auto& {word} = ::msl::threadgroup_variable<{serial}, {kind} {extent}>(\"{word}\"); "
                    ),
                    Purpose::Gpu => format!("static {SHARED} {kind} {word} {extent}; "),
                    Purpose::Check => {
                        format!("static __attribute__((address_space(3))) {kind} {word} {extent}; ")
                    }
                });
            }
            if self.tokens.before(range.start) == "static" {
                self.tokens.blank(range.start - 1..range.start);
            }
            self.tokens.blank(range.clone()); // the semicolon stays
            self.tokens.list[range.start].text = declarations;
        }
    }
}
