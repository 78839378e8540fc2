//! Adds the run-time library path of MLX to the program. Cargo does not pass it on from a
//! dependency.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let libdir = std::env::var("DEP_MLX_PRIMITIVES_LIBDIR").expect("mlx-primitives is a dependency");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{libdir}");
}
