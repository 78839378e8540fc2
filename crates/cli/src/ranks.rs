//! Lets several processes run a command together, each with a part of the model. Each process is a
//! rank. Only rank 0 reads the user's input and prints the result.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use mlx_primitives_ranks::{Group, Options, Scheme, Split};

use crate::joined::{self, group};

/// The options of commands that can run on several ranks.
#[derive(clap::Args)]
#[command(next_help_heading = "Several machines")]
pub struct Ranks {
    /// How ranks share a model: gather or pipeline.
    #[arg(long, value_name = "SCHEME", default_value = "gather", value_parser = scheme(), hide_possible_values = true)]
    split: Scheme,
    /// Share of each rank in the model, such as 3,1 [default: equal shares].
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    shares: Vec<u32>,
    /// End if another rank has not answered for this time.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    peer_timeout: u64,
}

/// Returns a parser for the names of the schemes by which ranks can share a model.
pub fn scheme() -> impl TypedValueParser<Value = Scheme> {
    PossibleValuesParser::new(Scheme::ALL.map(Scheme::name)).map(|name| {
        Scheme::ALL.into_iter().find(|scheme| scheme.name() == name).unwrap_or_default()
    })
}

/// The options that may differ between ranks, because each machine has different paths and a
/// different number of cores.
const LOCAL: [&str; 8] = [
    "--threads",
    "--model",
    "--adapter-path",
    "--draft-model",
    "--prompt-cache-file",
    "--config",
    "--file",
    "-f",
];

impl Ranks {
    /// Joins the group of ranks, if MLX's environment variables describe a group.
    pub fn join(&self) -> Result<()> {
        let timeout = Duration::from_secs(self.peer_timeout);
        let group = Group::join(Options { timeout, ..Options::default() })?;
        ensure!(
            group.size() > 1 || self.shares.len() < 2,
            "expected a rank for each of --shares, as mlx.launch starts them, got one rank"
        );
        ensure!(
            group.size() > 1 || self.split == Scheme::default(),
            "expected several ranks for --split {}, as mlx.launch starts them, got one rank",
            self.split.name()
        );
        if group.size() > 1 {
            let split = Split::new(&group, &self.shares)?.with_scheme(self.split);
            joined::set(group.clone(), split);
            group.agree("the command's options", &common(std::env::args_os().skip(1)))?;
        }
        Ok(())
    }
}

/// Joins the arguments that must be equal on all ranks into one text.
fn common(arguments: impl Iterator<Item = OsString>) -> String {
    let mut kept = Vec::new();
    let mut skip = false;
    for argument in arguments {
        // If an argument is not valid UTF-8, compare its escaped bytes.
        let argument = argument.into_string().unwrap_or_else(|bytes| format!("{bytes:?}"));
        let name = argument.split_once('=').map_or(&*argument, |(name, _)| name);
        let local = LOCAL.contains(&name);
        if !skip && !local {
            kept.push(argument.clone());
        }
        skip = local && !argument.contains('=');
    }
    kept.join(" ")
}

/// Returns, on every rank, the text that `read` returns on rank 0.
pub fn from_first(read: impl FnOnce() -> Result<String>) -> Result<String> {
    let Some(group) = group() else { return read() };
    let text = if group.rank() == 0 { read()? } else { String::new() };
    let bytes = group.broadcast(text.as_bytes())?;
    String::from_utf8(bytes).context("a text of rank 0")
}

/// Waits until all ranks have finished.
pub fn leave() -> Result<()> {
    Ok(group().map_or(Ok(()), Group::leave)?)
}
