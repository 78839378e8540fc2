//! `cargo bench [-- OPTIONS]`: the latency comparison of `mlx-primitives ops`.

use std::process::{Command, exit};

fn main() {
    let (own, forwarded): (Vec<_>, Vec<_>) =
        std::env::args_os().skip(1).partition(|argument| argument == "--bench");
    // `cargo test --all-targets` runs benches too, but without cargo's `--bench` flag.
    if own.is_empty() {
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-primitives"));
    let status = command.arg("ops").args(forwarded).status().expect("the binary starts");
    exit(status.code().unwrap_or(1));
}
