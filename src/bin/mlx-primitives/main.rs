//! The `mlx-primitives` command. stdout carries the result, stderr the rest; the exit status is
//! 0, 1 (failed) or 2 (bad usage).

mod chat;
mod generate;
mod info;
mod loading;
mod ops;
mod text;

use clap::{Parser, Subcommand};

/// Custom MLX primitives: generate text, compare latencies, inspect the build.
#[derive(Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Continue a prompt with a Llama that runs on our primitives.
    Generate(generate::Args),
    /// Talk with a model, line by line.
    Chat(chat::Args),
    /// Compare the latency of each primitive with MLX's built-in.
    Ops(ops::Args),
    /// Show MLX's version, the devices, and where the kernels come from.
    Info(info::Args),
}

fn main() {
    // clap exits with 2 for bad usage.
    let result = match Cli::parse().command {
        Command::Generate(args) => generate::run(&args),
        Command::Chat(args) => chat::run(&args),
        Command::Ops(args) => ops::run(&args),
        Command::Info(args) => info::run(&args),
    };
    if let Err(error) = result {
        eprintln!("error: {error:#}");
        std::process::exit(1);
    }
}
