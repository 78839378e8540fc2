//! Lets the library find MLX's on macOS, where both packages lie in one folder. On Linux it finds
//! the libmlx that the process has loaded, by its name.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "macos") {
        println!("cargo::rustc-link-arg-cdylib=-Wl,-rpath,@loader_path/../mlx/lib");
    }
}
