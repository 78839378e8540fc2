//! Links the programs and tests of this package to the MLX that the build of `mlx-primitives`
//! found.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let arguments = std::env::var("DEP_MLX_PRIMITIVES_LINK_ARGS").unwrap_or_default();
    for argument in arguments.split('\t').filter(|argument| !argument.is_empty()) {
        println!("cargo::rustc-link-arg={argument}");
    }
}
