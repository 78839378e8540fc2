//! On macOS, lets the library find MLX's library, since Python installs both packages into one
//! folder. On Linux, the library refers to libmlx by its name, and the process has already loaded a
//! libmlx. With the feature `cuda`, this build allows a libmlx that lacks the functions for CUDA.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let os = std::env::var("CARGO_CFG_TARGET_OS");
    if os.as_ref().is_ok_and(|os| os == "macos") {
        println!("cargo::rustc-link-arg-cdylib=-Wl,-rpath,@loader_path/../mlx/lib");
    }
    if os.is_ok_and(|os| os == "linux") && std::env::var_os("CARGO_FEATURE_CUDA").is_some() {
        for argument in ["-Wl,-z,lazy", "-Wl,--allow-shlib-undefined"] {
            println!("cargo::rustc-link-arg-cdylib={argument}");
        }
    }
}
