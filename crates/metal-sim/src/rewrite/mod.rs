//! Turns preprocessed Metal source into C++ that a host compiler takes.

mod constants;
mod entries;
mod kernels;
mod leaves;
mod overloads;
mod storage;

use std::path::Path;

pub use constants::Constant;
pub(crate) use constants::prologue as constant_prologue;
pub(crate) use kernels::Parameter;
pub(crate) use mlx_primitives_build::tokens::{self, SPACES, VALUES as BUILTINS};
use tokens::Tokens;

/// The purpose of the rewritten source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To run: one flat address space.
    Run,
    /// To be type-checked: address spaces are kept.
    Check,
    /// To become a GPU's machine code, by way of clang's SPIR-V target.
    Gpu,
}

/// Something that MSL does not allow, seen while rewriting.
#[derive(Clone, Debug)]
pub(crate) struct Remark {
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) text: String,
    /// Allowed by MSL, but not wise.
    pub(crate) advice: bool,
}

/// A kernel function as the source has it.
#[derive(Clone, Debug)]
pub(crate) struct KernelSource {
    pub(crate) name: String,
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) file: String,
    pub(crate) line: u32,
    pub(crate) max_threads: String,
    pub(crate) body: std::ops::Range<usize>,
}

/// The outcome of rewriting.
#[derive(Debug)]
pub(crate) struct Rewritten {
    pub(crate) text: String,
    pub(crate) constants: Vec<Constant>,
    pub(crate) remarks: Vec<Remark>,
}

/// Rewrites `preprocessed`, the output of `clang -E` with the shim at `shim`.
pub(crate) fn rewrite(preprocessed: &str, shim: &Path, purpose: Purpose) -> Rewritten {
    let mut rewriter = Rewriter {
        tokens: Tokens::parse(preprocessed, shim),
        purpose,
        serial: 0,
        kernels: Vec::new(),
        host_names: Vec::new(),
        constants: Vec::new(),
        remarks: Vec::new(),
        entries: String::new(),
    };
    rewriter.function_constants();
    rewriter.kernels();
    rewriter.threadgroup_variables();
    rewriter.method_qualifiers();
    match purpose {
        Purpose::Run => rewriter.space_overloads(),
        Purpose::Gpu => {
            rewriter.space_overloads();
            rewriter.keep_loops();
        }
        Purpose::Check => rewriter.array_parameters(),
    }
    rewriter.leaves();
    Rewritten { text: rewriter.text(), constants: rewriter.constants, remarks: rewriter.remarks }
}

struct Rewriter {
    tokens: Tokens,
    purpose: Purpose,
    serial: u32,
    kernels: Vec<KernelSource>,
    host_names: Vec<String>,
    constants: Vec<Constant>,
    remarks: Vec<Remark>,
    /// For a GPU, the kernels' entry points.
    entries: String,
}

impl Rewriter {
    fn serial(&mut self) -> u32 {
        self.serial += 1;
        self.serial
    }

    fn advise(&mut self, at: usize, text: impl Into<String>) {
        self.remark(at, text);
        if let Some(last) = self.remarks.last_mut() {
            last.advice = true;
        }
    }

    fn remark(&mut self, at: usize, text: impl Into<String>) {
        let (file, line) = self.tokens.place(at);
        self.remarks.push(Remark { file, line, text: text.into(), advice: false });
    }
}
