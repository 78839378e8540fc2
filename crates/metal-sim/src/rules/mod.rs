//! Finds code that MSL forbids and that a host compiler would accept.
//!
//! This module rewrites the source a second time, with its address spaces as clang address spaces,
//! and compiles it only for the compiler's messages. Other rules are checked on the tokens alone.

mod declarations;
mod functions;
mod positions;
mod signatures;
mod vocabulary;
mod words;

use std::path::Path;

use crate::compiler::Compiler;
use crate::error::Result;
use crate::rewrite::{self, Purpose, Tokens, constant_prologue, front};
use crate::source::{Preprocessed, Source};

pub use crate::rewrite::Violation;
pub use vocabulary::{Vocabulary, vocabulary};

/// Checks `source` against the rules of MSL. [`crate::Library::compile`] describes the folder
/// `cache`.
///
/// # Errors
///
/// Returns an error if the source or the cache cannot be read or written, the source cannot be
/// preprocessed, or the compiler does not start. Code that Metal does not allow is reported as a
/// [`Violation`], not as an error.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("bad.metal");
/// std::fs::write(&path, "
///     kernel void bad(device float* x [[buffer(0)]]) {
///         x[0] = double(1);
///     }")?;
/// let source = metal_sim::Source::new(&path);
/// let found = metal_sim::rules::check(&source, &metal_sim::Compiler::find()?, folder.path())?;
/// assert_eq!(found[0].line, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn check(source: &Source, compiler: &Compiler, cache: &Path) -> Result<Vec<Violation>> {
    let preprocessed = source.preprocess(compiler, cache)?;
    let shim = &preprocessed.shim;
    let rewritten = rewrite::rewrite(&preprocessed.text, shim, Purpose::Check);
    let mut found = remarks(&preprocessed, rewritten.remarks);
    let text = format!("{}{}", constant_prologue(&Default::default()), rewritten.text);
    let draft = crate::cache::draft(&preprocessed.folder).with_extension("cpp");
    crate::error::at_path(&draft, std::fs::write(&draft, text))?;
    let object = draft.with_extension("o");
    let mut arguments: Vec<String> = FLAGS.split_whitespace().map(String::from).collect();
    arguments.extend(compiler.check_flags(&object));
    arguments.push(draft.display().to_string());
    let output = compiler.run(Some(&preprocessed.folder), arguments);
    let _ = (std::fs::remove_file(&draft), std::fs::remove_file(&object));
    let messages = output?.stderr;
    found.extend(diagnostics(&String::from_utf8_lossy(&messages), shim));
    found.sort();
    found.dedup();
    Ok(found)
}

/// Finds only the violations that can be found without compiling the source for the host. The
/// source may therefore use names that this crate's Metal headers do not declare.
///
/// # Errors
///
/// Returns an error if the source or the cache cannot be read or written, or the source cannot be
/// preprocessed.
pub fn lint(source: &Source, compiler: &Compiler, cache: &Path) -> Result<Vec<Violation>> {
    let preprocessed = source.preprocess(compiler, cache)?;
    let rewritten = rewrite::rewrite(&preprocessed.text, &preprocessed.shim, Purpose::Check);
    let mut found = remarks(&preprocessed, rewritten.remarks);
    found.sort();
    Ok(found)
}

fn remarks(preprocessed: &Preprocessed, rewriting: Vec<Violation>) -> Vec<Violation> {
    let tokens = Tokens::parse(&preprocessed.text, &preprocessed.shim);
    let functions = front::functions(&tokens);
    (rewriting.into_iter())
        .chain(words::look(&tokens))
        .chain(functions::look(&tokens, &functions))
        .chain(declarations::look(&tokens, &functions))
        .chain(signatures::look(&tokens, &functions))
        .chain(positions::look(&tokens, &functions))
        .collect()
}

const FLAGS: &str = "-x c++ -std=c++17 -nostdinc -nostdinc++ -fsigned-char -ferror-limit=0 \
    -fno-caret-diagnostics -Wno-everything -Wimplicit-float-conversion -Wreturn-type \
    -Wuninitialized -Wzero-length-array";

const COPIES: [&str; 3] =
    ["no viable overloaded '='", "no matching constructor for init", "no matching conversion for"];

/// Reads the compiler's errors, and its warnings about code that is an error in MSL. An error in
/// the folder `shim`, which has this crate's Metal headers, is reported at the source line that a
/// later note names.
fn diagnostics(messages: &str, shim: &Path) -> Vec<Violation> {
    let shim = shim.to_string_lossy();
    let mut found = Vec::new();
    let mut pending: Option<String> = None;
    let mut fresh = false; // whether notes still belong to the last one found
    for line in messages.lines() {
        let Some((file, number, severity, text)) = diagnostic(line) else { continue };
        let narrowing = text.contains("to 'bfloat'") || text.contains("__bf16')");
        let counts = match severity {
            // Ignore failed static assertions, since this build replaces packed vectors of three
            // elements by larger vectors. The compiler checks the assertions again in the build
            // that the simulator runs.
            "error" | "fatal error" => {
                !is_of_a_space(text) && !text.starts_with("static assertion failed")
            }
            "warning" => !text.contains("implicit conversion") || (narrowing && loses(text)),
            _ => false,
        };
        if severity != "note" {
            fresh = counts;
        }
        if counts && file.starts_with(&*shim) {
            pending = Some(text.to_string());
        } else if counts {
            pending = None;
            found.push(violation(file, number, text));
        } else if fresh && text.contains("(the implicit ") {
            // MSL can construct and copy structs in any address space, but clang has no such
            // implicit operators.
            let spaced =
                |message: &str| text.contains("address space") || message.contains("space(");
            let copy = |message: &str| COPIES.iter().any(|copy| message.starts_with(copy));
            if found.pop_if(|last| copy(&last.message) && spaced(&last.message)).is_some() {
                fresh = false;
            }
        } else if severity == "note"
            && !file.starts_with(&*shim)
            && let Some(message) = pending.take()
        {
            found.push(violation(file, number, &message));
        }
    }
    found
}

/// Whether clang's error is due only to an address space, for an operation that MSL's structs have:
/// copies in `c ? x : y`, the operator of `matrix[i]`, or the conversion in `bool(x)`.
fn is_of_a_space(message: &str) -> bool {
    let is_plain = |word: &&str| *word != "const" && !word.starts_with("__attribute__");
    let bare = |name: &str| name.split(' ').filter(is_plain).collect::<Vec<_>>().join(" ");
    if let Some(types) = message.strip_prefix("incompatible operand types ('") {
        let types = types.trim_end_matches(['\'', ')']).split_once("' and '");
        return types.is_some_and(|(one, other)| !one.contains('*') && bare(one) == bare(other));
    }
    let converts = message.starts_with("no matching conversion for functional-style cast from '");
    (message.starts_with("no viable overloaded operator[]") && message.contains(") matrix<"))
        || (converts && message.contains("__attribute__((address_space(") && !message.contains('*'))
}

fn violation(file: &str, line: u32, message: &str) -> Violation {
    Violation { file: file.to_string(), line, message: message.to_string(), advice: false }
}

/// Whether the message is about an implicit conversion to bfloat. The last type that the message
/// names is the target.
fn loses(text: &str) -> bool {
    text.rsplit(" to ").next().is_some_and(|to| to.contains("bfloat") || to.contains("__bf16"))
}

/// Splits a message of the form `file:line:column: severity: text`.
fn diagnostic(line: &str) -> Option<(&str, u32, &str, &str)> {
    let severities = ["fatal error", "error", "warning", "note"];
    let (at, severity) = severities
        .iter()
        .filter_map(|s| line.find(&format!(": {s}: ")).map(|at| (at, *s)))
        .min_by_key(|(at, _)| *at)?;
    let text = &line[at + severity.len() + 4..];
    let mut place = line[..at].rsplitn(3, ':');
    let (_column, number, file) = (place.next()?, place.next()?, place.next()?);
    Some((file, number.parse().ok()?, severity, text))
}
