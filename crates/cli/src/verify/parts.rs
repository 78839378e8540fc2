//! The steps of `verify`, and their expected results.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use mlx_primitives::device::{Device, with_device};
use mlx_primitives::pipelines::{self, Pipeline};
use mlx_primitives_catalog as table;
use mlx_primitives_check::{Backend, Check, Conformance, Outcome, Share};
use mlx_primitives_llama::{Checkpoint, Options};
use serde_json::{Value, json};

use super::step::{Found, Step};
use crate::kernels::simulates;
use crate::{info, ops};

/// The tokens that mlx-lm decodes with the demo model and greedy sampling.
const GREEDY: &str = include_str!("../../assets/greedy.json");
/// The most failures, and the most differences of MLX's ops, that the report lists for a self-test.
const MOST_FAILURES: usize = 20;

/// Selects the comparisons that this process runs.
#[derive(Clone, Copy)]
pub struct Selected {
    pub quick: bool,
    pub share: Option<(usize, usize)>,
    pub without_peers: bool,
}

pub fn all(device: Device, selected: Selected) -> Vec<Step> {
    let quick = selected.quick;
    let step = |part, name: &str, run: Box<dyn Fn() -> Result<Found>>| Step {
        part,
        name: name.to_owned(),
        run,
    };
    let mut steps = Vec::new();
    // This step comes first, because other steps cannot run if a kernel has no pipeline.
    if device == Device::Gpu || simulates() {
        let all = pipelines::all();
        if !all.is_empty() {
            steps.push(step("build", "pipelines", Box::new(move || pipelines(&all))));
        }
    }
    steps.push(step("build", "facts", Box::new(facts)));
    for rows in table::ROWS {
        steps.push(step(
            "self-test",
            rows.name,
            Box::new(move || self_test(rows, device, selected)),
        ));
    }
    // Times in the simulator mean nothing, so do not measure them.
    if !simulates() {
        for op in ops::names() {
            steps.push(step("latency", op, Box::new(move || latency(op, device, quick))));
        }
    }
    let short = quick || simulates();
    steps.push(step("decode", "demo", Box::new(move || with_device(device, || decode(short)))));
    steps
}

/// Returns whether failures on a device count. They do not count on the GPU of a virtual Mac, which
/// hosted CI runners have. It belongs to an older family than the GPU of any real Mac, and MLX's
/// own ops are wrong on it too.
pub fn judges(device: Device) -> Result<bool> {
    Ok(device == Device::Cpu || !device.name()?.contains("Paravirtual"))
}

/// Creates the pipeline of every kernel, and lists the largest number of threads for each kernel.
fn pipelines(all: &[Pipeline]) -> Result<Found> {
    let (mut lines, mut limits, mut failures) = (String::new(), BTreeMap::new(), Vec::new());
    for pipeline in all {
        let name = pipeline.kernel();
        match pipeline.most_threads() {
            Ok(threads) => {
                lines += &format!("{name:<56}{threads:>5}\n");
                limits.insert(name.to_owned(), threads);
            }
            Err(error) => {
                failures.push(format!("{name} of metal/{}.metal: {error}", pipeline.stem()))
            }
        }
    }
    let range = limits.values().min().zip(limits.values().max());
    let range = range.map_or(String::new(), |(least, most)| {
        format!(", with room for {least} to {most} threads")
    });
    let said = format!("{} of {} kernels{range}", limits.len(), all.len());
    let json = json!({"kernels": all.len(), "threads": limits});
    Ok(Found { said, text: lines, failures, json })
}

fn facts() -> Result<Found> {
    let facts = info::build()?;
    let lines: Vec<_> = facts.iter().map(|(name, value)| format!("{name:<16}{value}\n")).collect();
    let said = facts.iter().filter(|(name, _)| ["MLX", "GPU", "system"].contains(name));
    let said: Vec<_> = said.map(|(name, value)| format!("{name} {value}")).collect();
    let json = info::build_json(&facts);
    Ok(Found { said: said.join(", "), text: lines.concat(), json, ..Found::default() })
}

/// Returns the tests that this process runs, each with the process's share of the cases. `share`
/// has the number of this process and the number of all processes. If there are at least as many
/// tests as processes, one process runs all cases of a test. So processes do not compile the same
/// kernels.
fn dealt(rows: Vec<Conformance>, share: Option<(usize, usize)>) -> Vec<(Conformance, Rc<Share>)> {
    let (number, of) = share.unwrap_or((1, 1));
    let (first, count) = (number - 1, rows.len().max(1));
    let part = |row: usize| {
        if count >= of {
            return (row % of == first).then(|| Share::new(1, 1));
        }
        let shares = (of - row).div_ceil(count);
        (first % count == row).then(|| Share::new(first / count + 1, shares))
    };
    let all = rows.into_iter().enumerate();
    all.filter_map(|(number, row)| Some((row, Rc::new(part(number)?)))).collect()
}

fn self_test(rows: &table::Rows, device: Device, args: Selected) -> Result<Found> {
    let backends = match device {
        _ if simulates() => table::backends()?,
        Device::Gpu => vec![Backend::Gpu],
        Device::Cpu => vec![Backend::Cpu],
    };
    let (mut found, mut compared, mut peers) = (Vec::new(), 0, Vec::new());
    let all = RefCell::new(Vec::new());
    (rows.each)(&|row| {
        all.borrow_mut().push(row);
        Ok(())
    })?;
    for (row, share) in dealt(all.into_inner(), args.share) {
        let kept = |check: &Check| !args.quick || matches!(check, Check::Values | Check::Vjp);
        let left_out = Check::ALL.into_iter().filter(|check| !kept(check));
        let row = left_out.fold(row, |row, check| row.without(check, "--quick"));
        let row = if args.without_peers { row.without_peer() } else { row };
        let report = row.backends(&backends).share(&share).run();
        compared += report.outcomes().len();
        found.extend(report.failures().map(|failure| format!("{}: {failure}", report.name())));
        peers.extend(report.peer_faults().map(|one| {
            let said = one.peer_fault.as_deref().unwrap_or_default();
            let Outcome { check, dtype, case, .. } = one;
            format!("{}: {check}, {dtype}, {case}: {said}\n", report.name())
        }));
    }
    let part = args.quick || args.share.is_some_and(|(_, of)| of > 1);
    ensure!(compared > 0 || part, "nothing was compared");
    let mut failures = found;
    let mut said = format!("{} of {compared} comparisons", compared - failures.len());
    if !peers.is_empty() {
        said += &format!("; in {} MLX's op differs, and ours is right", peers.len());
    }
    let json =
        json!({"comparisons": compared, "failed": failures.len(), "mlx_differs": peers.len()});
    peers.truncate(MOST_FAILURES);
    let more = failures.len().saturating_sub(MOST_FAILURES);
    failures.truncate(MOST_FAILURES);
    failures.extend((more > 0).then(|| format!("and {more} more")));
    Ok(Found { said, text: peers.concat(), failures, json })
}

fn latency(op: &str, device: Device, quick: bool) -> Result<Found> {
    let ops::Latency { rows, text, least, failures } = ops::latency(op, device, quick)?;
    let said = least.map_or_else(String::new, |speedup| {
        format!("at least {speedup:.2} times as fast as MLX's in {} calls", rows.len())
    });
    Ok(Found { said, text, failures, json: rows.into() })
}

/// Compares the demo model's greedy tokens with mlx-lm's tokens.
fn decode(short: bool) -> Result<Found> {
    let checkpoint = Checkpoint::demo()?;
    let greedy: Value = serde_json::from_str(GREEDY)?;
    let prompts = greedy["prompts"].as_array().context("the fixture has prompts")?;
    let (prompts, max_tokens) =
        if short { (&prompts[..prompts.len().min(2)], 12) } else { (&prompts[..], 96) };
    let options = Options { max_tokens, ..Options::default() };
    let ids = |value: &Value| -> Vec<u32> {
        let numbers = value.as_array().into_iter().flatten();
        numbers.filter_map(|id| id.as_u64()?.try_into().ok()).collect()
    };
    let (mut failures, mut tokens) = (Vec::new(), 0);
    let start = Instant::now();
    for prompt in prompts {
        let mut expected = ids(&prompt["float32"]["ids"]);
        expected.truncate(max_tokens);
        expected.retain(|id| !checkpoint.eos.contains(id));
        let generation = checkpoint.generate(&ids(&prompt["prompt_ids"]), &options)?;
        let got = generation.collect::<Result<Vec<u32>, _>>()?;
        tokens += got.len();
        if let Some(at) =
            (0..got.len().max(expected.len())).find(|&i| got.get(i) != expected.get(i))
        {
            let text = prompt["prompt"].as_str().unwrap_or_default();
            failures.push(format!(
                "{text:?}: token {at} is {:?}, mlx-lm's {:?}",
                got.get(at),
                expected.get(at)
            ));
        }
    }
    let speed = tokens as f64 / start.elapsed().as_secs_f64();
    let said = format!("{tokens} tokens of {} texts, {speed:.0} tokens a second", prompts.len());
    let json = json!({"texts": prompts.len(), "tokens": tokens, "tokens_per_second": speed});
    Ok(Found { said, failures, json, ..Found::default() })
}
