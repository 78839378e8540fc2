//! The command.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Args, Parser};
use metal_sim::{
    Access, ArgumentKind, Buffer, Compiler, Constants, Dispatch, Error, Kernel, KernelInfo,
    Library, Schedule, Source,
};
use serde_json::json;

use crate::data;
use crate::report::{self, Outcome, order_name};

const EXAMPLES: &str = "\
Examples:
  metal-check kernels.metal
  metal-check kernels.metal --entry add --grid 1000 --threadgroup 256 \\
    --buffer 0=f32:1000:random --buffer 1=f32:1000 --bytes 2=u32:1000";

/// Runs a Metal kernel on this machine's CPU and reports data races, accesses outside of buffers,
/// reads of memory that was never written, and barriers that not all threads reach.
///
/// Without --entry it lists the kernels of the file.
#[derive(Parser)]
#[command(version, after_help = EXAMPLES, arg_required_else_help = true)]
struct Arguments {
    /// The Metal source.
    file: PathBuf,
    /// The kernel to run.
    #[arg(long, value_name = "NAME")]
    entry: Option<String>,
    #[command(flatten)]
    size: Size,
    /// A buffer: a type (f32, f16, bf16, i8 to u64, bool), a number of elements and, if it is
    /// not only an output, its contents: random, zeros, iota, a number, or @FILE.
    #[arg(long, value_name = "INDEX=TYPE:COUNT[:CONTENTS]")]
    buffer: Vec<String>,
    /// Numbers that a kernel takes by value; + continues a struct with another type.
    #[arg(long, value_name = "INDEX=TYPE:VALUE[,VALUE]")]
    bytes: Vec<String>,
    /// The bytes of a threadgroup argument.
    #[arg(long, value_name = "INDEX=BYTES")]
    memory: Vec<String>,
    /// A function constant.
    #[arg(long, value_name = "INDEX=TYPE:VALUE")]
    constant: Vec<String>,
    /// The order of threads: forward, reversed, shuffled, or all three.
    #[arg(long, default_value = "all", value_parser = ["all", "forward", "reversed", "shuffled"])]
    order: String,
    /// The seed of random contents and of the shuffled order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A folder of files that the source includes.
    #[arg(short = 'I', value_name = "FOLDER")]
    include: Vec<PathBuf>,
    /// A macro of the preprocessor.
    #[arg(short = 'D', value_name = "NAME[=VALUE]")]
    define: Vec<String>,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
struct Size {
    /// Threads along each axis, as dispatchThreads counts them.
    #[arg(long, value_name = "X[,Y[,Z]]", value_delimiter = ',', conflicts_with = "groups")]
    grid: Vec<u32>,
    /// Threadgroups along each axis, as dispatchThreadgroups counts them.
    #[arg(long, value_name = "X[,Y[,Z]]", value_delimiter = ',')]
    groups: Vec<u32>,
    /// Threads of a threadgroup along each axis.
    #[arg(long, value_name = "X[,Y[,Z]]", value_delimiter = ',')]
    threadgroup: Vec<u32>,
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
            let bad_usage = error.downcast_ref::<BadUsage>().is_some();
            eprintln!("error: {error:#}");
            ExitCode::from(if bad_usage { 2 } else { 1 })
        }
    }
}

/// An argument that fits no kernel.
#[derive(Debug)]
struct BadUsage(String);

impl std::fmt::Display for BadUsage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadUsage {}

fn usage<T>(result: Result<T>) -> Result<T> {
    result.map_err(|error| BadUsage(format!("{error:#}")).into())
}

/// The folder of compiled kernels.
fn cache() -> Result<PathBuf> {
    let folder = |name| std::env::var_os(name).map(PathBuf::from).filter(|at| at.is_absolute());
    let cache = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    let cache = cache.context("XDG_CACHE_HOME and HOME name no folder for compiled kernels")?;
    Ok(cache.join("metal-check"))
}

/// Checks the kernel, or lists those of the file. Returns whether there was no fault.
fn run(arguments: &Arguments) -> Result<bool> {
    // Compiled kernels are found again by the text and the name of their source.
    let whole =
        |path: &Path| path.canonicalize().map_err(|error| anyhow!("{}: {error}", path.display()));
    let mut source = Source::new(whole(&arguments.file)?);
    for folder in &arguments.include {
        source = source.include_dir(whole(folder)?);
    }
    for define in &arguments.define {
        source = source.define(define);
    }
    let cache = cache()?;
    std::fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    let library = Library::compile(&source, &Compiler::find()?, &cache)?;
    let Some(entry) = &arguments.entry else {
        return list(&library.kernels()?, arguments.output.json).map(|()| true);
    };
    let mut given = BTreeMap::new();
    for text in &arguments.constant {
        let (index, value) = usage(data::indexed(text))?;
        given.insert(index, usage(data::constant(value))?);
    }
    for constant in library.function_constants().iter().filter(|it| !it.optional) {
        given.entry(constant.index).or_insert_with(|| {
            let (index, name) = (constant.index, &constant.name);
            eprintln!("note: --constant {index}=TYPE:VALUE is missing, so {name} is 0");
            0
        });
    }
    let constants =
        given.into_iter().fold(Constants::new(), |all, (index, bits)| all.with(index, bits));
    let kernel = library.kernel(entry, &constants)?;
    let mut outcome = check(&kernel, entry, arguments)?;
    let rules = metal_sim::rules::check(&source, &Compiler::find()?, &cache)?;
    outcome.broken = rules.into_iter().filter(|rule| !rule.advice).collect();
    outcome.name_files();
    let file = arguments.file.display().to_string();
    let text = match &arguments.output {
        Output { json: true, .. } => outcome.json().to_string(),
        Output { github: true, .. } => outcome.github(&file),
        Output { sarif: true, .. } => {
            report::sarif(std::slice::from_ref(&outcome), &file).to_string()
        }
        _ => outcome.text(),
    };
    print(&text)?;
    Ok(outcome.is_clean())
}

fn print(text: &str) -> Result<()> {
    if !text.is_empty() {
        writeln!(std::io::stdout(), "{text}")?;
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
        text.push(format!("{} ({}:{})", kernel.name, report::shown(&kernel.file), kernel.line));
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

/// Three numbers of threads, of which those that are missing are 1.
fn extents(given: &[u32], what: &str) -> Result<[u32; 3]> {
    ensure!(
        given.len() <= 3 && !given.contains(&0),
        "{what}: expected one to three numbers above 0"
    );
    let mut all = [1; 3];
    all[..given.len()].copy_from_slice(given);
    Ok(all)
}

/// A buffer of the kernel, before it is bound.
struct Bound {
    index: u32,
    bytes: Vec<u8>,
    access: Access,
}

fn buffers(kernel: &Kernel, arguments: &Arguments) -> Result<Vec<Bound>> {
    let mut all: Vec<Bound> = Vec::new();
    for (number, text) in (0..).zip(&arguments.buffer) {
        let (index, rest) = data::indexed(text)?;
        let contents = data::buffer(rest, arguments.seed + number).with_context(|| text.clone())?;
        let of_kernel =
            |it: &&metal_sim::Argument| it.kind == ArgumentKind::Buffer && it.index == index;
        let found = kernel.arguments().iter().find(of_kernel);
        let Some(argument) = found else {
            bail!("{text}: the kernel has no buffer {index}; run metal-check without --entry");
        };
        let access = match (argument.writable, contents.filled) {
            (true, true) => Access::ReadWrite,
            (true, false) => Access::Write,
            (false, true) => Access::Read,
            (false, false) => bail!(
                "{text}: the kernel only reads {}, so it needs contents, such as {text}:random",
                argument.name
            ),
        };
        all.push(Bound { index, bytes: contents.bytes, access });
    }
    Ok(all)
}

fn check(kernel: &Kernel, entry: &str, arguments: &Arguments) -> Result<Outcome> {
    let Size { grid, groups, threadgroup } = &arguments.size;
    let group = usage(extents(threadgroup, "--threadgroup"))?;
    let by_groups = !groups.is_empty();
    let grid = match by_groups {
        true => usage(extents(groups, "--groups"))?,
        false => usage(extents(grid, "--grid"))?,
    };
    let buffers = usage(buffers(kernel, arguments))?;
    let mut by_value = Vec::new();
    for text in &arguments.bytes {
        let (index, values) = usage(data::indexed(text))?;
        by_value.push((index, usage(data::values(values))?));
    }
    let mut memory = Vec::new();
    for text in &arguments.memory {
        let (index, bytes) = usage(data::indexed(text))?;
        let bytes: usize = usage(bytes.parse().with_context(|| format!("{text}: expected bytes")))?;
        memory.push((index, bytes));
    }
    let shuffled = Schedule::Shuffled(arguments.seed);
    let orders = match arguments.order.as_str() {
        "forward" => vec![Schedule::Forward],
        "reversed" => vec![Schedule::Reversed],
        "shuffled" => vec![shuffled],
        _ => vec![Schedule::Forward, Schedule::Reversed, shuffled],
    };
    let [x, y, z] = grid;
    let [group_x, group_y, group_z] = group;
    let unit = if by_groups { "threadgroups" } else { "threads" };
    let mut outcome = Outcome {
        kernel: entry.to_owned(),
        size: format!("{x}x{y}x{z} {unit}, {group_x}x{group_y}x{group_z} a group"),
        orders: orders.iter().map(|&order| order_name(order)).collect(),
        found: Vec::new(),
        broken: Vec::new(),
        threads: 0,
        barriers: 0,
        device_bytes: 0,
    };
    for order in orders {
        let mut dispatch = Dispatch::new(kernel).schedule(order);
        dispatch = match by_groups {
            true => dispatch.grid_groups(grid, group),
            false => dispatch.threads(grid, group),
        };
        for Bound { index, bytes, access } in &buffers {
            dispatch = dispatch.buffer(*index, Buffer::with(bytes.clone(), *access));
        }
        for (index, bytes) in &by_value {
            dispatch = dispatch.bytes(*index, bytes);
        }
        for &(index, bytes) in &memory {
            dispatch = dispatch.threadgroup(index, bytes);
        }
        match dispatch.run() {
            Ok(report) => {
                if outcome.threads == 0 {
                    outcome.threads = report.threads;
                    outcome.barriers = report.threadgroup_barriers;
                    outcome.device_bytes = report.device_bytes();
                }
                for fault in report.faults {
                    outcome.add(fault, &order_name(order));
                }
            }
            Err(Error::Faults(faults)) => {
                faults.into_iter().for_each(|fault| outcome.add(fault, &order_name(order)));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(outcome)
}
