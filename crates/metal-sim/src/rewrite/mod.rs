//! Turns preprocessed Metal source into C++ that a host compiler accepts.

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
    /// The source will run, in one flat address space.
    Run,
    /// The source will be type-checked, with its address spaces.
    Check,
    /// The source will be compiled to a GPU's machine code, through clang's SPIR-V target.
    Gpu,
}

/// A function constant that a library declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constant {
    /// The `n` of `[[function_constant(n)]]`.
    pub index: u32,
    /// The name of the constant in the source.
    pub name: String,
    /// Whether the source calls `is_function_constant_defined`, so that the constant may have no
    /// value.
    pub optional: bool,
}

/// A part of a source that Metal does not allow.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// The path of the file, as it was passed to the compiler.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// A description of the problem.
    pub message: String,
    /// `true` if MSL allows the code, at least in its newest version. The message is then advice.
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
    /// The name of the function in the source.
    function: String,
    /// The missing resource that the kernel takes, and the file and line of the parameter.
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

/// Rewrites `preprocessed`, the output of `clang -E` with this crate's Metal headers, which are in
/// the folder `shim`.
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
    /// The names of types that the source declares: template parameters and aliases.
    types: HashSet<String>,
    /// For each token, whether it is outside all braces.
    global: Vec<bool>,
    /// The entry points of the kernels, if the target is a GPU.
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
