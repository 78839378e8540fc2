//! `mlx-primitives tune`: measures which implementation each op should run on this machine.

use anyhow::{Context, Result, ensure};
use clap::builder::PossibleValuesParser;
use mlx_primitives::tune::{self, Choices, Key};
use serde_json::json;

use crate::kernels::Threads;
use crate::ops;
use crate::output;

const EXAMPLES: &str = "\
Compares the results of each of our ops with those of a composition of MLX's own ops, times both, and \
keeps the faster one for each type and number of rows in a file in the user's cache folder. Programs that \
use the crate run it where MLX_PRIMITIVES_TUNE=file is set, and nowhere else. The file is for this chip, \
system, MLX and these kernels: measure again when one of them changes.

Examples:
  mlx-primitives tune
  mlx-primitives tune --quick --op linear quantized_linear
  mlx-primitives tune --json";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Measure only these primitives, and keep the choices of the file for the others.
    #[arg(long, value_name = "NAME", num_args = 1.., value_parser = PossibleValuesParser::new(ops::names()))]
    op: Vec<String>,
    /// The device to measure; the GPU where there is one.
    #[arg(long, value_parser = ["cpu", "gpu"])]
    device: Option<String>,
    /// Take fewer samples of fewer shapes.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    threads: Threads,
}

pub fn run(args: &Args) -> Result<()> {
    args.threads.set()?;
    let device = ops::device(args.device.as_deref())?;
    let path = tune::path(device)
        .context("neither XDG_CACHE_HOME nor HOME names a folder to keep the choices in")?;
    let folder = path.parent().context("the file has a folder")?;
    // Check that the folder is writable before the measurement, which takes a minute.
    std::fs::create_dir_all(folder)
        .and_then(|()| tempfile::tempfile_in(folder))
        .with_context(|| format!("cannot write to {}", folder.display()))?;
    let key = Key::here(device)?;
    let measured = ops::tune(device, &args.op, args.quick)?;
    ensure!(measured.measured().next().is_some(), "nothing could be measured");
    let before = Choices::read(&path, &key).ok().flatten();
    let mut choices = before.unwrap_or_else(|| Choices::built_in(&key));
    choices.replace(measured.clone());
    choices.write(&path, &key)?;
    let micros = |seconds: f64| seconds * 1e6;
    if args.json {
        let rows: Vec<_> = measured
            .measured()
            .map(|(class, it)| {
                json!({
                    "class": class,
                    "choice": it.choice(),
                    "ours_us": micros(it.ours),
                    "mlx_us": micros(it.mlx),
                    "agrees": it.agrees,
                })
            })
            .collect();
        let object = json!({"file": path.to_string_lossy(), "key": key, "choices": rows});
        return Ok(output::println(object)?);
    }
    output::println(format_args!("{:<48}{:>12}{:>12}  choice", "calls", "ours µs", "MLX's µs"))?;
    for (class, it) in measured.measured() {
        let (ours, mlx) = (micros(it.ours), micros(it.mlx));
        output::println(format_args!("{class:<48}{ours:>12.2}{mlx:>12.2}  {}", it.choice()))?;
    }
    output::println(format_args!(
        "\nchoices: {} (MLX_PRIMITIVES_TUNE=file uses them)",
        path.display()
    ))?;
    Ok(())
}
