//! Turns preprocessed Metal source into C++ that a host compiler takes.

mod constants;
mod entries;
mod kernels;
mod leaves;
mod overloads;
mod refused;
mod storage;

use std::collections::HashSet;
use std::path::Path;

pub(crate) use constants::prologue as constant_prologue;
pub(crate) use mlx_primitives_build::front::{self, SPACES, Tokens, VALUES as BUILTINS};

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

/// A function constant that a library declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constant {
    /// The `n` of `[[function_constant(n)]]`.
    pub index: u32,
    /// Its name in the source.
    pub name: String,
    /// Whether the source asks `is_function_constant_defined`, so that it may be left out.
    pub optional: bool,
}

/// Something in a source that Metal does not allow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// The file, as it was given to the compiler.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// A description of the problem.
    pub message: String,
    /// MSL allows it, but a reader or a check has less to go by.
    pub advice: bool,
}

impl Violation {
    pub(crate) fn at(tokens: &Tokens, at: usize, message: impl Into<String>) -> Self {
        let (file, line) = tokens.place(at);
        Self { file, line, message: message.into(), advice: false }
    }
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// A kernel that cannot run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The host name.
    pub(crate) name: String,
    /// The function in the source.
    function: String,
    /// The resource that it takes, with its place.
    pub(crate) reason: String,
}

/// The outcome of rewriting.
#[derive(Debug)]
pub(crate) struct Rewritten {
    pub(crate) text: String,
    pub(crate) constants: Vec<Constant>,
    pub(crate) remarks: Vec<Violation>,
    pub(crate) refused: Vec<Refused>,
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
        refused: Vec::new(),
        types: HashSet::new(),
        global: Vec::new(),
        entries: String::new(),
    };
    if purpose == Purpose::Check {
        rewriter.unpack();
    }
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
    let text = rewriter.text();
    let Rewriter { constants, remarks, refused, .. } = rewriter;
    Rewritten { text, constants, remarks, refused }
}

struct Rewriter {
    tokens: Tokens,
    purpose: Purpose,
    serial: u32,
    kernels: Vec<front::Kernel>,
    host_names: Vec<String>,
    constants: Vec<Constant>,
    remarks: Vec<Violation>,
    refused: Vec<Refused>,
    /// The names of types that the source declares: parameters of templates, and aliases.
    types: HashSet<String>,
    /// Whether a token is outside of all braces.
    global: Vec<bool>,
    /// For a GPU, the kernels' entry points.
    entries: String,
}

impl Rewriter {
    fn serial(&mut self) -> u32 {
        self.serial += 1;
        self.serial
    }

    fn advise(&mut self, at: usize, text: impl Into<String>) {
        let found = Violation::at(&self.tokens, at, text);
        self.remarks.push(Violation { advice: true, ..found });
    }

    fn remark(&mut self, at: usize, text: impl Into<String>) {
        self.remarks.push(Violation::at(&self.tokens, at, text));
    }
}
