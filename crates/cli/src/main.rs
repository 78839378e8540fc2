//! The binary of the `mlx-primitives` command.

fn main() -> std::process::ExitCode {
    mlx_primitives_cli::main()
}
