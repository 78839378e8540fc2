//! The command line's arguments and output.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser};
use metal_sim::{ArgumentKind, KernelInfo};
use serde_json::json;

use crate::case::{self, BadUsage, Case, usage};
use crate::check::check;
use crate::cost;
use crate::kernels::Files;
use crate::report::{self, Outcome};

const EXAMPLES: &str = "\
Examples:
  metal-check kernels.metal
  metal-check kernels.metal --entry add --grid 1000 --threadgroup 256 \\
    --buffer 0=f32:1000:random --buffer 1=f32:1000 --bytes 2=u32:1000
  metal-check cases.toml --github";

/// Runs a Metal kernel on this machine's CPU and reports data races, accesses outside of buffers,
/// reads of memory that was never written, and barriers that not all threads reach.
///
/// Without --entry it lists the kernels of the file.
#[derive(Parser)]
#[command(version, after_help = EXAMPLES, arg_required_else_help = true)]
struct Arguments {
    /// Metal source, a .metallib, AIR (.air, .bc, .ll), or a .toml file with cases, whose keys are
    /// source and the names of the options.
    file: PathBuf,
    #[command(flatten)]
    case: Case,
    /// Print what the kernels cost as machine code of Apple's M1, instead of running them. This
    /// needs Mesa's compiler, which a checkout of mlx-primitives builds.
    #[arg(long)]
    cost: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
#[group(multiple = false)]
struct Output {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Print a log in SARIF 2.1.0.
    #[arg(long)]
    sarif: bool,
    /// Print annotations for a workflow of GitHub.
    #[arg(long)]
    github: bool,
}

pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(clean) => ExitCode::from(u8::from(!clean)),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(if error.is::<BadUsage>() { 2 } else { 1 })
        }
    }
}

/// Checks kernels, lists the kernels of the file, or prints their cost. Returns `true` if there was
/// no fault.
fn run(arguments: &Arguments) -> Result<bool> {
    let Arguments { file, case, cost, output } = arguments;
    if *cost {
        let costs = cost::costs(file, case)?;
        let json = || serde_json::to_string(&costs);
        print(&if output.json { json()? } else { cost::text(&costs) })?;
        return Ok(true);
    }
    if file.extension().is_some_and(|extension| extension == "toml") {
        let alone = ensure_alone(case, file);
        usage(alone)?;
        let cases = usage(case::read(file))?;
        let mut files = Files::new()?;
        let mut outcomes = Vec::new();
        for case in &cases {
            outcomes.push(match check(&mut files, case) {
                Ok(outcome) => outcome,
                Err(error) if error.is::<BadUsage>() => {
                    let name = case.name.as_ref().or(case.entry.as_ref());
                    return usage(Err(error).with_context(|| name.cloned().unwrap_or_default()));
                }
                Err(error) => Outcome::failed(case, &error),
            });
        }
        let json = || json!({"cases": outcomes.iter().map(Outcome::json).collect::<Vec<_>>()});
        print(&shown(&outcomes, output, json))?;
        return Ok(outcomes.iter().all(Outcome::is_clean));
    }
    let mut files = Files::new()?;
    if case.entry.is_none() {
        return list(&files.list(file, case)?, output.json).map(|()| true);
    }
    let case = Case { source: Some(file.clone()), ..case.clone() };
    let outcome = check(&mut files, &case)?;
    print(&shown(std::slice::from_ref(&outcome), output, || outcome.json()))?;
    Ok(outcome.is_clean())
}

fn ensure_alone(case: &Case, file: &Path) -> Result<()> {
    let file = file.display();
    ensure!(*case == Case::default(), "{file} says how its kernels run; give no other options");
    Ok(())
}

fn shown(outcomes: &[Outcome], output: &Output, json: impl Fn() -> serde_json::Value) -> String {
    if output.github || output.sarif {
        eprintln!("{}", report::text(outcomes)); // for the log of the workflow
    }
    match output {
        Output { json: true, .. } => json().to_string(),
        Output { github: true, .. } => report::github(outcomes),
        Output { sarif: true, .. } => report::sarif(outcomes).to_string(),
        _ => report::text(outcomes),
    }
}

fn print(text: &str) -> Result<()> {
    if !text.is_empty() {
        match writeln!(std::io::stdout(), "{text}") {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {} // for example by `| head`
            result => result?,
        }
    }
    Ok(())
}

fn list(kernels: &[KernelInfo], json: bool) -> Result<()> {
    if json {
        let kernels = kernels.iter().map(|kernel| {
            let arguments = kernel.arguments.iter().map(|argument| {
                json!({"index": argument.index, "name": argument.name, "bytes": argument.size,
                       "writable": argument.writable,
                       "threadgroup": argument.kind == ArgumentKind::Threadgroup})
            });
            json!({"name": kernel.name, "file": report::shown(&kernel.file), "line": kernel.line,
                   "arguments": arguments.collect::<Vec<_>>()})
        });
        return print(&json!({"kernels": kernels.collect::<Vec<_>>()}).to_string());
    }
    let mut text = Vec::new();
    for kernel in kernels {
        let place = match kernel.file.as_str() {
            "" => String::new(), // a compiled kernel has no place
            file => format!(" ({}:{})", report::shown(file), kernel.line),
        };
        text.push(format!("{}{place}", kernel.name));
        for argument in &kernel.arguments {
            let kind = match argument.kind {
                ArgumentKind::Buffer if argument.writable => "buffer, written",
                ArgumentKind::Buffer => "buffer",
                ArgumentKind::Threadgroup => "threadgroup",
            };
            let (index, name, size) = (argument.index, &argument.name, argument.size);
            text.push(format!("  {index:>2}  {name:<20}  {kind}, elements of {size} bytes"));
        }
    }
    if text.is_empty() {
        text.push("The file has no kernel.".to_owned());
    }
    print(&text.join("\n"))
}
