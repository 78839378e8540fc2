//! Measures whether our kernel or a composition of MLX's ops is faster, for each op on this
//! machine.

use std::rc::Rc;
use std::time::Instant;

use anyhow::Result;
use mlx_primitives::device::{Device, with_device};
use mlx_primitives::tune::{Choices, Measured, classes_of, with_choices};
use mlx_primitives::{Array, memory};

use super::cases::{self, Case, Inputs, Kind, Size};
use super::measure::{calls, competitor};
use super::race::{agree, race};
use super::timing::Effort;
use super::{CACHE_LIMIT, workloads};
use crate::kernels::simulates;
use crate::model::progress;
use crate::output;

/// Measures these ops, or all ops if the list is empty. The ops run in chains, except those of the
/// size `Wide`, which run in single calls. Reports wrong results on stderr.
pub fn tune(device: Device, ops: &[String], quick: bool) -> Result<Choices> {
    memory::set_cache_limit(CACHE_LIMIT)?;
    let workloads = workloads::all();
    let mut cases = cases::select(&workloads, ops, &[], quick, false);
    let effort = if quick { &Effort::QUICK } else { &Effort::FULL };
    cases.retain(|case| match case.workload.size {
        Size::Large => false,
        // Skip these cases in the simulator, which would take minutes for them.
        Size::Wide | Size::Prefill if simulates() => false,
        Size::Wide => true,
        Size::Decode | Size::Prefill => case.kind == Kind::Chain,
    });
    let bar = progress(cases.len() as u64)?;
    let mut choices = Choices::ours();
    for case in &cases {
        bar.set_message(case.to_string());
        bar.inc(1);
        let added = with_device(device, || add(case, effort, &mut choices));
        let said = added.unwrap_or_else(|error| Some(format!("not measured: {error:#}")));
        if let Some(said) = said {
            bar.suspend(|| output::eprintln(format_args!("{case}: {said}")));
        }
    }
    bar.finish_and_clear();
    Ok(choices)
}

/// Measures a case if its call is a single op with a choice of implementations. If our result
/// differs from MLX's, the result of our CPU kernels decides which is right. These kernels are
/// tested on every machine.
fn add(case: &Case, effort: &Effort, choices: &mut Choices) -> Result<Option<String>> {
    memory::clear_cache()?;
    let inputs = case.inputs()?;
    let (_, classes) = classes_of(|| (inputs.ours)(&inputs.x, &inputs.others));
    let [class] = &classes[..] else { return Ok(None) };
    let sides = [Rc::new(Choices::ours()), Rc::new(Choices::mlx())];
    let [ours, mlx] = sides.each_ref().map(|side| result(side, &inputs));
    let (ours, mlx) = (ours?, mlx?);
    let agrees = agree(&ours, &mlx)?;
    if !agrees {
        let of_cpu = with_device(Device::Cpu, || result(&sides[0], &inputs))?;
        if agree(&ours, &of_cpu)? {
            return Ok(Some(
                "MLX's result differs from that of our CPU kernels: ours stays".into(),
            ));
        }
    }
    // Choose our kernels for this measurement, because the built-in of a case may also call our op.
    let calls = with_choices(sides[0].clone(), || calls(case.kind, &inputs))?;
    let [mut ours, mut mlx] = [0, 1].map(|_| competitor(calls, &inputs, &inputs.ours));
    let start = Instant::now();
    let measured = race(
        || with_choices(sides[0].clone(), &mut ours.run),
        || with_choices(sides[1].clone(), &mut mlx.run),
        &|| start.elapsed(),
        effort.budget,
    )?;
    let each = |seconds: f64| seconds / calls as f64;
    choices.add(class, Measured { ours: each(measured.ours), mlx: each(measured.mlx), agrees });
    let wrong = "our result is neither MLX's nor that of our CPU kernels: MLX's is taken. Please run \
                 `mlx-primitives verify`";
    Ok((!agrees).then(|| wrong.to_owned()))
}

fn result(side: &Rc<Choices>, inputs: &Inputs) -> Result<Array> {
    let y = with_choices(side.clone(), || (inputs.ours)(&inputs.x, &inputs.others))?;
    y.eval()?;
    Ok(y)
}
