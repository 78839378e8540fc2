//! `mlx-primitives verify`: checks and times this build on this machine. Writes a report that the
//! user can attach to a bug report.

mod parts;
mod random;
mod report;
mod step;
mod widths;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::error::ErrorKind;
use mlx_primitives::files;
use mlx_primitives::tune::{Choices, with_choices};

use crate::kernels::Threads;
use crate::model::{Packing, progress};
use crate::{ops, output};
use random::Random;
use report::Report;
use step::{Done, Found, Step};

use parts::Selected;

const EXAMPLES: &str = "\
Checks every op against references in double precision and against MLX's own ops (values in all layouts, \
extremes, derivatives, vmap, compile), times each op beside MLX's, and compares the texts of the demo model \
with those of mlx-lm. The default device is checked: the GPU where there is one.

With --config, it also compares the greedy tokens of random weights with those of the CPU kernels; on \
the CPU, with those of MLX's ops.

The report is written after each step, so it shows how far the command got if the process ends. \
The exit status is 1 if anything failed.

Examples:
  mlx-primitives verify
  mlx-primitives verify --quick --output report.md
  mlx-primitives verify --only softmax attention --json
  mlx-primitives verify --config config.json --bits 4 --only decode
  mlx-primitives verify --only quantized --share 2/8 --output part2.md
  mlx-primitives verify --widths";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Write the report to this file.
    #[arg(long, value_name = "FILE", default_value = "mlx-primitives-report.md")]
    output: PathBuf,
    /// A short run: only values and gradients, one shape of each op, two texts.
    #[arg(long)]
    quick: bool,
    /// Run only the steps whose names contain one of these texts. The whole name of a self-test,
    /// such as sums::softmax, selects that one alone.
    #[arg(long, value_name = "TEXT", num_args = 1..)]
    only: Vec<String>,
    /// Run only one of N shares of each self-test, or of the rows of --widths: N processes with
    /// different I check all.
    #[arg(long, value_name = "I/N", value_parser = share)]
    share: Option<(usize, usize)>,
    /// Compare values with the references alone, not with MLX's own ops too, which may take long to
    /// compile on an NVIDIA GPU.
    #[arg(long)]
    without_peers: bool,
    /// A config.json whose model gets random weights and decodes too.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    packing: Packing,
    /// Only check that the bits of a row are the same whatever runs beside it. Prints for each op
    /// in how many cases they are, for tokens at 1 to 256 rows and for prompts in steps of 1 to
    /// 512.
    #[arg(long, conflicts_with_all = ["only", "config", "without_peers"])]
    widths: bool,
    /// The device to check; the GPU where there is one.
    #[arg(long, value_parser = ["cpu", "gpu"])]
    device: Option<String>,
    /// Print one JSON object instead of the summary.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    threads: Threads,
}

/// Parses a share, such as 2/8.
fn share(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
    let share = numbers.filter(|&(i, n)| 0 < i && i <= n);
    share.ok_or_else(|| "expected I/N with numbers 1 <= I <= N".to_owned())
}

pub fn run(args: &Args) -> Result<()> {
    args.threads.set()?;
    let device = ops::device(args.device.as_deref())?;
    if args.widths {
        return widths::run(device, args.quick, args.share, args.json);
    }
    files::check_replaceable(&args.output)?;
    let quantization = args.packing.quantization()?;
    ensure!(
        quantization.is_none() || args.config.is_some(),
        "expected --config with --bits, --group-size or --mode"
    );
    let Args { quick, share, without_peers, .. } = *args;
    let mut steps = parts::all(device, Selected { quick, share, without_peers });
    let random = args.config.clone().map(|config| Random { config, quantization });
    steps.extend(random.map(|random| random.step(device, args.quick)));
    let named = |step: &Step| format!("{} {}", step.part, step.name);
    let whole = |text: &str| text.contains("::") && steps.iter().any(|step| step.name == text);
    let (whole, parts): (Vec<&String>, Vec<&String>) =
        args.only.iter().partition(|text| whole(text));
    steps.retain(|step| {
        args.only.is_empty()
            || whole.iter().any(|text| step.name == **text)
            || parts.iter().any(|text| named(step).contains(text.as_str()))
    });
    if steps.is_empty() {
        let said = format!("no step has {} in its name\n", args.only.join(" or "));
        return Err(clap::Error::raw(ErrorKind::InvalidValue, said).into());
    }
    let write = |report: &Report| {
        let text = report.markdown();
        std::fs::write(&args.output, text)
            .with_context(|| format!("cannot write {}", args.output.display()))
    };
    let judges = parts::judges(device)?;
    let mut report = Report::new(device, args.quick, steps.len());
    let bar = progress(steps.len() as u64)?;
    for step in &steps {
        report.running = named(step);
        write(&report)?;
        bar.set_message(named(step));
        let mut done = run_step(step);
        if !judges && done.part != "build" {
            done.found = unjudged(done.found);
        }
        // The report lists all failures.
        for failure in done.found.failures.iter().take(1) {
            bar.suspend(|| output::eprintln(format_args!("failed: {}: {failure}", named(step))));
        }
        report.done.push(done);
        bar.inc(1);
    }
    bar.finish_and_clear();
    report.running.clear();
    write(&report)?;
    if args.json {
        output::println(report.json(&args.output))?;
    } else {
        output::println(format_args!("{}\nreport: {}", report.summary(), args.output.display()))?;
    }
    let failed = report.failed().count();
    ensure!(failed == 0, "{failed} of {} steps failed: see {}", steps.len(), args.output.display());
    Ok(())
}

/// Runs a step, and turns an error or a panic into a failure.
fn run_step(step: &Step) -> Done {
    let start = Instant::now();
    let failed = |said: String| Found { failures: vec![said], ..Found::default() };
    // Choose our kernels, because the steps check them even if this machine has chosen MLX's ops.
    let run = || with_choices(Rc::new(Choices::ours()), || (step.run)());
    let found = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => failed(format!("{error:#}")),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
            failed(format!("panicked: {text}"))
        }
    };
    let seconds = start.elapsed().as_secs_f64();
    Done { part: step.part, name: step.name.clone(), seconds, found }
}

/// Moves the failures of a step to its details, so that the command does not fail.
fn unjudged(mut found: Found) -> Found {
    let failures = std::mem::take(&mut found.failures);
    if let Some(first) = failures.first() {
        let comma = if found.said.is_empty() { "" } else { "; " };
        found.said += &format!(
            "{comma}not judged on this virtual GPU, the first of {}: {first}",
            failures.len()
        );
        found.text += &failures.iter().map(|failure| format!("{failure}\n")).collect::<String>();
    }
    found
}

#[cfg(test)]
mod tests {
    use anyhow::bail;
    use mlx_primitives::device::Device;

    use super::*;

    #[test]
    fn errors_and_panics_are_failures_of_their_steps() {
        let step = |name: &str, run: fn() -> Result<Found>| Step {
            part: "self-test",
            name: name.into(),
            run: Box::new(run),
        };
        let steps = [
            step("error", || bail!("an error")),
            step("panic", || panic!("a planted {}", "panic")),
            step("pass", || Ok(Found { said: "fine".into(), ..Found::default() })),
        ];
        let mut report = Report::new(Device::Cpu, true, steps.len());
        report.done.extend(steps.iter().map(run_step));
        assert_eq!(report.failed().map(|done| &*done.name).collect::<Vec<_>>(), ["error", "panic"]);
        let text = report.markdown();
        for part in ["an error", "panicked: a planted panic", "| pass | passed | fine |"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let object = report.json("report.md".as_ref());
        assert_eq!((&object["passed"], &object["failed"]), (&false.into(), &2.into()));
    }

    #[test]
    fn a_virtual_gpus_results_are_told_and_fail_nothing() {
        let found = || Found {
            said: "8 of 9".into(),
            failures: vec!["off by 3".into()],
            ..Found::default()
        };
        let mut report = Report::new(Device::Gpu, true, 1);
        let step =
            Step { part: "self-test", name: "sums".into(), run: Box::new(move || Ok(found())) };
        let mut done = run_step(&step);
        done.found = unjudged(done.found);
        report.done.push(done);
        let text = report.markdown();
        assert!(text.contains("All 1 steps passed."), "{text}");
        assert_eq!(text.matches("off by 3").count(), 2, "{text}");
        let said = "8 of 9; not judged on this virtual GPU, the first of 1: off by 3";
        assert!(text.contains(said), "{text}");
        assert_eq!(unjudged(Found::default()).said, "");
    }
}
