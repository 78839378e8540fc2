//! Compares two tables of each kernel's arguments. This crate's rewriter, which turns Metal into
//! C++, makes one table from the source. Apple's compiler has stored the other table in the
//! metadata of AIR.

use metal_sim::KernelInfo;

use crate::{apple, metallib, result, sources};

/// The lines of a kernel's table that must agree. Apple's compiler decides the alignment of
/// structs, so only the alignment of scalars is compared.
fn table(kernel: &KernelInfo) -> Vec<String> {
    let arguments = kernel.arguments.iter().map(|a| {
        let access = if a.writable { "written" } else { "read" };
        let kind = a.kind;
        format!("{kind:?}({}) '{}' {access} {} bytes at {}", a.index, a.name, a.size, a.align)
    });
    let values = kernel.values.iter().map(|value| format!("'{}' {}", value.name, value.builtin));
    arguments.chain(values).collect()
}

/// Compares the tables of these kernels with Apple's tables. Returns the number of kernels.
fn compare(ours: &[KernelInfo]) -> usize {
    let names: Vec<&str> = ours.iter().map(|kernel| kernel.name.as_str()).collect();
    let theirs = apple(&names).kernels();
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert!(!ours.arguments.is_empty() && !ours.values.is_empty(), "{}", ours.name);
        assert_eq!(table(ours), table(theirs), "{}", ours.name);
    }
    theirs.len()
}

/// Returns the names of all of Apple's kernels that begin with one of the prefixes.
fn every(prefixes: &[&str]) -> Vec<String> {
    let names = metallib().names();
    names.filter(|name| prefixes.iter().any(|p| name.starts_with(p))).map(String::from).collect()
}

/// Compares the tables, and checks that they include every kernel of Apple's with these prefixes.
fn all(kernels: &[KernelInfo], prefixes: &[&str], expected: usize) {
    assert_eq!(compare(kernels), expected);
    let mut names: Vec<String> = kernels.iter().map(|kernel| kernel.name.clone()).collect();
    names.sort_unstable();
    assert_eq!(names, every(prefixes));
}

#[test]
fn of_headers() {
    let mut kernels = sources::header("softmax").0.kernels().unwrap();
    kernels.extend(sources::header("logsumexp").0.kernels().unwrap());
    let prefixes = ["block_softmax", "looped_softmax", "block_logsumexp", "looped_logsumexp"];
    all(&kernels, &prefixes, 16);
    result("tables", 16, "softmax, logsumexp: 16 of 16 argument tables are Apple's");
}

#[test]
#[ignore = "needs METAL_SIM_MLX, a checkout of MLX"]
fn of_checkout() {
    let mut kernels = Vec::new();
    for source in ["rms_norm", "layer_norm", "rope"] {
        kernels.extend(sources::checkout(source).kernels().unwrap());
    }
    let prefixes = ["rms", "vjp_rms", "layer_norm", "vjp_layer_norm", "rope_"];
    all(&kernels, &prefixes, 42);
    result("tables", 42, "rms_norm, layer_norm, rope: 42 of 42 argument tables are Apple's");
}
