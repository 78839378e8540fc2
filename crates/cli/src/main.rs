//! The program of the command `mlx-primitives`.

fn main() -> std::process::ExitCode {
    mlx_primitives_cli::main()
}
