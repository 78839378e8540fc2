//! `mlx-primitives completions` and `mlx-primitives man`: generate shell completions and manual
//! pages from the command-line options.

use anyhow::{Context, Result};
use clap::Command;
use clap::error::ErrorKind;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::output;

const SHELLS: &str = "\
Examples:
  mlx-primitives completions bash > ~/.local/share/bash-completion/completions/mlx-primitives
  mlx-primitives completions zsh > ~/.zfunc/_mlx-primitives
  mlx-primitives completions fish > ~/.config/fish/completions/mlx-primitives.fish";

#[derive(clap::Args)]
#[command(after_help = SHELLS)]
pub struct Completions {
    /// The shell whose completions to print.
    shell: Shell,
}

const PAGES: &str = "\
Examples:
  mlx-primitives man generate | man -l -
  mlx-primitives man > ~/.local/share/man/man1/mlx-primitives.1";

#[derive(clap::Args)]
#[command(after_help = PAGES)]
pub struct Manual {
    /// The command whose page to print [default: that of all commands].
    command: Option<String>,
}

pub fn completions(args: &Completions, mut command: Command) -> Result<()> {
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut text);
    Ok(output::print(String::from_utf8(text)?)?)
}

pub fn manual(args: &Manual, mut all: Command) -> Result<()> {
    all.build();
    let page = match &args.command {
        None => all,
        Some(name) => {
            let found = all.find_subcommand(name).cloned();
            found.ok_or_else(|| {
                let names: Vec<_> = all.get_subcommands().map(Command::get_name).collect();
                let said = format!("expected a command ({}), got {name:?}\n", names.join(", "));
                clap::Error::raw(ErrorKind::InvalidValue, said)
            })?
        }
    };
    let mut text = Vec::new();
    Man::new(page).render(&mut text).context("forming the page")?;
    Ok(output::print(String::from_utf8(text)?)?)
}
