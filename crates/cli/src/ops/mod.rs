//! `mlx-primitives ops`: compares our primitives with MLX's built-ins in one process.

mod cases;
mod inputs;
mod measure;
mod plan;
mod plot;
mod race;
mod report;
mod roofline;
mod table;
mod timing;
mod tuning;
mod workloads;

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use clap::builder::PossibleValuesParser;
use mlx_primitives::device::{self, Device};
use mlx_primitives::tune::{Choices, with_choices};
use mlx_primitives::{files, memory};
use serde_json::Value;

use measure::Measuring;
use plan::{Limits, Plan};
use report::{Form, Writer};
use timing::Effort;

use crate::interrupt;
use crate::kernels::Threads;
use crate::model::{Float, progress};
use crate::output;

/// The bytes that MLX may keep in its cache for reuse, which are several times the largest array.
const CACHE_LIMIT: usize = 2 << 30;

/// Shown below the options of `--help`.
const COLUMNS: &str = "\
Each call is timed in turn with the built-in's, in this process. `single` builds one op, evaluates \
it and waits; `chain` is one of up to 64 ops in a graph, each fed by the last; `backward` evaluates \
gradients. Times are medians ± half the interquartile range. The choice is the implementation that programs run: see `mlx-primitives tune`. GB/s counts the bytes that must be read and written, once. The limit is the time that the CPU kernels' \
threads take to copy, read or fill as many bytes, or to do as many multiplications in registers, \
whichever is longer; on a GPU that of MLX's `negative` for as many bytes.

Rows are printed as they are measured. Ctrl-C keeps them, ends the array of --json, writes --plot and \
--table from them, and the exit status is then 130.";

#[derive(clap::Args)]
#[command(after_help = COLUMNS)]
pub struct Args {
    /// Compare only these primitives.
    #[arg(long, value_name = "NAME", num_args = 1.., value_parser = PossibleValuesParser::new(workloads::names()))]
    op: Vec<String>,
    /// Compare only these element types.
    #[arg(long, value_name = "TYPE", num_args = 1.., value_enum)]
    dtype: Vec<Float>,
    /// The device to compare on; the GPU if there is one.
    #[arg(long, value_parser = ["cpu", "gpu"])]
    device: Option<String>,
    /// At most 100 seconds: fewer samples, wide and large shapes in one type, chains in decode
    /// shapes only. A slow built-in runs once; a slow machine leaves out large shapes and types.
    #[arg(long)]
    quick: bool,
    /// Compare the gradients of prompts as well, each below its op: of x, and of the weights unless
    /// they are packed.
    #[arg(long, conflicts_with_all = ["large", "table"])]
    backward: bool,
    /// Only shapes larger than the caches, and MLX's built-ins only where they take less than
    /// seconds.
    #[arg(long)]
    large: bool,
    /// Print an array of JSON objects instead of tables, one on each line as it is measured.
    #[arg(long)]
    json: bool,
    /// Print the book's table of the ops, given a file of their kernels' traffic
    /// (scripts/op_table.sh makes both).
    #[arg(long, value_name = "TRAFFIC", conflicts_with = "json")]
    table: Option<PathBuf>,
    /// Draw the speedups into this SVG file.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    threads: Threads,
}

pub fn run(args: &Args) -> Result<()> {
    device::check_version()?;
    args.threads.set()?;
    let device = device(args.device.as_deref())?;
    if let Some(path) = &args.plot {
        check_plot(path)?; // fail before the measurements, which take a minute
    }
    let traffic = args.table.as_deref().map(table::read_traffic).transpose()?;
    output::eprintln(machine(device)?);

    // With this limit, the op and the built-in write to recycled memory. The default limit of MLX's
    // GPU allocators has the same effect.
    memory::set_cache_limit(CACHE_LIMIT)?;
    let workloads = workloads::all();
    let types: Vec<_> = args.dtype.iter().map(|&float| float.into()).collect();
    let mut cases = cases::select(&workloads, &args.op, &types, args.quick, args.large);
    if args.backward {
        cases = cases::with_gradients(cases);
    }
    let effort = match (args.quick, args.large) {
        (true, _) => Effort::QUICK,
        (false, true) => Effort::LARGE,
        (false, false) => Effort::FULL,
    };
    let interrupted = interrupt::handle()?;
    let stopped = || interrupted.load(Ordering::Relaxed);
    let form = if args.json { Form::Json } else { Form::Tables };
    let mut writer = Writer::new(form, &cases);
    let mut measuring = Measuring::new(device, &stopped);
    let bar = progress(cases.len() as u64)?;
    let mut rows = Vec::new();
    let mut plan = Plan::new(args.quick, effort, &cases);
    let all = || -> Result<()> {
        for case in cases.iter().take_while(|_| !stopped()) {
            bar.set_message(case.to_string());
            bar.inc(1);
            let Some(limits) = plan.next(case) else { continue };
            let measured = measuring.measure(case, &limits).with_context(|| case.to_string())?;
            let Some(row) = measured else { break };
            if traffic.is_none() {
                bar.suspend(|| output::print(writer.row(&row)))?;
            }
            rows.push(row);
        }
        Ok(())
    };
    with_choices(Rc::new(Choices::ours()), || device::with_device(device, all))?;
    bar.finish_and_clear();
    output::print(match &traffic {
        Some(traffic) => table::markdown(&workloads, &rows, traffic)?,
        None => writer.end(),
    })?;
    if let Some(path) = &args.plot {
        let title = format!("Speedup over MLX's built-ins ({})", device.name()?);
        let svg = plot::svg(&rows, &title)?;
        std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if stopped() {
        let (done, all) = (rows.len(), cases.len());
        output::eprintln(format_args!("interrupted after {done} of {all} comparisons"));
        interrupt::end(interrupt::INTERRUPTED);
    }
    if plan.left_out > 0 {
        output::eprintln(format_args!(
            "{} of {} comparisons were left out, for which --quick has no time on this machine: run \
             without it, or name some by --op",
            plan.left_out,
            cases.len()
        ));
    }
    Ok(())
}

/// Checks that the command can write a chart to this file. Creates the file if it is missing.
pub fn check_plot(path: &Path) -> Result<()> {
    files::check_replaceable(path)?;
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map(drop).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the device with this name, or the default device.
pub fn device(name: Option<&str>) -> Result<Device> {
    let device = match name {
        Some("gpu") => Device::Gpu,
        Some(_) => Device::Cpu,
        None => device::default_device()?,
    };
    ensure!(device.is_available()?, "this machine has no GPU that MLX can use: try --device cpu");
    Ok(device)
}

pub use tuning::tune;
/// The names of the ops.
pub use workloads::names;

/// The latencies of an op.
pub struct Latency {
    /// The rows as JSON objects.
    pub rows: Vec<Value>,
    /// The rows as a table.
    pub text: String,
    /// The smallest speedup over MLX's built-in.
    pub least: Option<f64>,
    /// The errors of calls that the command could not measure.
    pub failures: Vec<String>,
}

/// Measures the latencies of an op for the shapes of `--quick` that are not larger than the caches,
/// or only for the first of these shapes.
pub fn latency(op: &str, device: Device, first: bool) -> Result<Latency> {
    memory::set_cache_limit(CACHE_LIMIT)?;
    let workloads = workloads::all();
    let mut cases = cases::select(&workloads, &[op.to_owned()], &[], true, false);
    let shape = cases.first().map(|case| case.workload.shape_label());
    cases.retain(|case| {
        let large = case.workload.size == cases::Size::Large;
        !large && (!first || Some(case.workload.shape_label()) == shape)
    });
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    let mut measuring = Measuring::new(device, &|| false);
    let limits = Limits { effort: Effort::QUICK, builtin: f64::INFINITY };
    let mut writer = Writer::new(Form::Tables, &cases);
    let mut text = String::new();
    for case in &cases {
        match device::with_device(device, || measuring.measure(case, &limits)) {
            Ok(row) => {
                text.extend(row.iter().map(|row| writer.row(row)));
                rows.extend(row);
            }
            Err(error) => failures.push(format!("{case}: {error:#}")),
        }
    }
    text += &writer.end();
    let least = rows.iter().filter_map(measure::Row::speedup).reduce(f64::min);
    Ok(Latency { rows: rows.iter().map(report::object).collect(), text, least, failures })
}

/// Describes the machine and the versions that the numbers depend on.
fn machine(device: Device) -> Result<String> {
    let (_, version) = device::mlx_versions();
    let cpu = Device::Cpu.name()?;
    let processor = match device {
        Device::Cpu => {
            format!("{cpu}, {} threads, {}", device::cpu_threads(), device::cpu_kernels())
        }
        Device::Gpu => format!("{} of {cpu}", device.name()?),
    };
    Ok(format!("{processor}, MLX {version}"))
}
