//! The `mlx-primitives` command. It writes the result to stdout and everything else to stderr. The
//! exit status is 0, 1 (failed), 2 (bad usage) or 130 (interrupted). If the reader of stdout closes
//! it, as `head` does, the command ends without an error and with status 0.
//!
//! Only `main.rs` uses this library. The code is not in the program itself, because cargo compiles
//! a program only after all crates that it depends on. A library compiles at the same time as other
//! crates.

mod bench;
mod cache_args;
mod chat;
mod fuse;
mod generate;
mod info;
mod interrupt;
mod joined;
mod kernels;
mod loading;
mod lora;
mod model;
mod ops;
#[cfg(unix)]
mod out_of_memory;
mod output;
mod pages;
mod perplexity;
mod quantize;
mod ranks;
mod statistics;
mod text;
mod tune;
mod verify;
mod wired;

use std::env;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use mlx_primitives::device;

use output::StdoutError;

/// Custom MLX primitives: generate text, compare latencies, inspect the build.
#[derive(Parser)]
#[command(name = "mlx-primitives", version, arg_required_else_help = true)]
struct Cli {
    /// Write only errors to stderr: no progress, notes or statistics.
    #[arg(long, short, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Continue a prompt with a Llama that runs on our primitives.
    Generate(generate::Args),
    /// Chat with a model, line by line.
    Chat(chat::Args),
    /// Compare the latency of each primitive with MLX's built-in.
    Ops(ops::Args),
    /// Score a text: how well a model predicts its tokens.
    Perplexity(perplexity::Args),
    /// Measure how fast a model runs its prompt and decodes.
    Bench(bench::Args),
    /// Pack the weights of a float checkpoint in MLX's layout.
    Quantize(quantize::Args),
    /// Fine-tune a model on texts, as mlx_lm.lora does.
    Lora(Box<lora::Args>),
    /// Add low-rank adapters to the weights of a checkpoint.
    Fuse(fuse::Args),
    /// Choose between our kernels and MLX's ops by measuring both on this machine.
    Tune(tune::Args),
    /// Check every op and the model on this machine, and write a report to attach to a bug report.
    Verify(verify::Args),
    /// Show MLX's version, the devices, and where the kernels come from.
    Info(info::Args),
    /// Print what a shell needs to complete commands and options.
    Completions(pages::Completions),
    /// Print a page for `man`.
    Man(pages::Manual),
}

impl Command {
    /// Returns the paths or names of the models and adapters that the command reads.
    fn models(&mut self) -> Vec<&mut PathBuf> {
        match self {
            Self::Generate(args) => args.text.models(),
            Self::Chat(args) => args.text.models(),
            Self::Perplexity(args) => args.source.models(),
            Self::Bench(args) => args.source.models(),
            Self::Info(args) => args.source.models(),
            Self::Quantize(args) => vec![&mut args.model],
            Self::Fuse(args) => vec![&mut args.model, &mut args.adapter_path],
            // `lora` may take the model's name from a configuration file, so it finds its model
            // itself.
            Self::Ops(_) | Self::Tune(_) | Self::Verify(_) | Self::Lora(_) => Vec::new(),
            Self::Completions(_) | Self::Man(_) => Vec::new(),
        }
    }

    fn computes(&self) -> bool {
        !matches!(self, Self::Completions(_) | Self::Man(_))
    }
}

/// The variable that controls whether, on an NVIDIA GPU, MLX rounds the float32 factors of a
/// product to a fraction of 10 bits. MLX does this by default. Derivatives that are compositions of
/// MLX's ops would then differ from their references, so `verify` turns it off.
const TF32: &str = "MLX_ENABLE_TF32";

const FAILED: u8 = 1;
const BAD_USAGE: u8 = 2;

/// Runs the command with the arguments of the process.
pub fn main() -> ExitCode {
    let ended = match Cli::try_parse() {
        Ok(cli) => {
            if matches!(cli.command, Command::Verify(_)) && env::var_os(TF32).is_none() {
                // SAFETY: no other thread runs yet.
                unsafe { env::set_var(TF32, "0") };
            }
            if let Err(error) = device::check_environment() {
                output::error(error);
                return ExitCode::from(BAD_USAGE);
            }
            run(cli)
        }
        Err(usage) if usage.use_stderr() => {
            let _ = usage.print();
            return ExitCode::from(BAD_USAGE);
        }
        // The user asked for the help text or the version. This text is the command's result, so it
        // goes to stdout.
        Err(asked) => output::printed(|| asked.print()).map_err(Into::into),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.downcast_ref().is_some_and(StdoutError::is_broken_pipe) => {
            joined::fail("the reader of its output has gone away");
            ExitCode::SUCCESS
        }
        Err(error) if error.is::<clap::Error>() => {
            joined::fail(&error);
            output::answer(format_args!("{error}"));
            ExitCode::from(BAD_USAGE)
        }
        Err(error) => {
            joined::fail(format_args!("{error:#}"));
            output::error(format_args!("{error:#}"));
            ExitCode::from(FAILED)
        }
    }
}

fn run(mut cli: Cli) -> anyhow::Result<()> {
    output::check_stdout()?;
    output::quiet(cli.quiet);
    if cli.command.computes() {
        device::check_version()?;
    }
    for model in cli.command.models() {
        loading::find(model)?;
    }
    match cli.command {
        Command::Generate(args) => generate::run(&args),
        Command::Chat(args) => chat::run(&args),
        Command::Ops(args) => ops::run(&args),
        Command::Perplexity(args) => perplexity::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Lora(args) => lora::run(*args),
        Command::Fuse(args) => fuse::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Completions(args) => pages::completions(&args, Cli::command()),
        Command::Man(args) => pages::manual(&args, Cli::command()),
    }?;
    ranks::leave()
}
