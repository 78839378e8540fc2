//! Rewrites Metal sources for compilers that produce a GPU's machine code, to estimate the cost of
//! kernels. The output is not meant to run: for example, its matrix products take time but give no
//! result.

use std::path::Path;

use crate::compiler::Compiler;
use crate::constants::Constants;
use crate::error::{Error, Result};
use crate::rewrite::{self, Purpose, constant_prologue};
use crate::source::Source;

/// Rewrites a source to C++ for clang's CUDA front end and SPIR-V back end, with an entry point for
/// each kernel on a separate line. The name of an entry point consists of the kernel's name, `__c`
/// and a hexadecimal mask of the arguments in constant memory.
///
/// # Errors
///
/// Returns an error if the source or the cache cannot be read or written, the source cannot be
/// preprocessed, or it contains code that Metal does not allow.
pub fn rewrite(
    source: &Source,
    compiler: &Compiler,
    cache: &Path,
    constants: &Constants,
) -> Result<String> {
    let preprocessed = source.clone().define("MSL_GPU").preprocess(compiler, cache)?;
    let rewritten = rewrite::rewrite(&preprocessed.text, &preprocessed.shim, Purpose::Gpu);
    let faults = rewritten.remarks.iter().filter(|remark| !remark.advice);
    let messages: Vec<String> = faults.map(ToString::to_string).collect();
    if !messages.is_empty() {
        let path = source.path.clone();
        return Err(Error::Compile { path, messages: messages.join("\n") });
    }
    Ok(format!("{}{}", constant_prologue(&constants.0), rewritten.text))
}
