//! Compiles the kernels and adds the run-time library path of MLX.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    mlx_primitives_build::Metal::new("metal/own.metal").build()?;
    let libdir = std::env::var("DEP_MLX_PRIMITIVES_LIBDIR")?;
    println!("cargo::rustc-link-arg=-Wl,-rpath,{libdir}");
    if std::env::var_os("CARGO_FEATURE_CUDA").is_some() {
        // With lazy binding, the program also starts with MLX's library for CPUs, which lacks the
        // functions for CUDA.
        println!("cargo::rustc-link-arg=-Wl,-z,lazy");
    }
    Ok(())
}
