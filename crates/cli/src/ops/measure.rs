//! Times our op, MLX's built-in, and the roofline of each case.

use std::collections::HashMap;
use std::rc::Rc;

use anyhow::Result;
use mlx_primitives::device::Device;
use mlx_primitives::tune::{Choice, Choices, classes_of};
use mlx_primitives::{Dtype, memory};

use super::cases::{Case, Function, Inputs, Kind, Workload};
use super::plan::Limits;
use super::roofline;
use super::timing::{Competitor, Timing, interleave};

/// The measurement of MLX's built-in for a case.
pub enum Builtin {
    Timed(Timing),
    /// The built-in did not run, because it would take about this number of seconds.
    LeftOut(f64),
    /// There is no built-in to compare with for a case of this size.
    None,
}

impl Builtin {
    pub fn timing(&self) -> Option<&Timing> {
        match self {
            Self::Timed(timing) => Some(timing),
            _ => None,
        }
    }
}

/// A case's result.
pub struct Row<'a> {
    pub workload: &'a Workload,
    pub dtype: Dtype,
    pub kind: Kind,
    pub device: Device,
    pub ours: Timing,
    /// The implementation that this machine chose for the op, or `None` if there is nothing to
    /// choose.
    pub choice: Option<Choice>,
    pub builtin: Builtin,
    bytes: usize,
    /// The number of floating-point operations in matrix products.
    flops: f64,
    /// The name of the resource that limits the op, and the shortest time in seconds that the
    /// machine needs.
    pub limit: (&'static str, f64),
}

impl Row<'_> {
    pub fn speedup(&self) -> Option<f64> {
        self.builtin.timing().map(|builtin| builtin.median / self.ours.median)
    }

    /// Returns the amount of work of a call: operations for products, bytes for other ops. The time
    /// of an op is roughly proportional to this amount.
    fn work(&self) -> f64 {
        if self.flops > 0.0 { self.flops } else { self.bytes as f64 }
    }

    /// Returns the bandwidth: the bytes that the op must read and write, divided by our time.
    pub fn gbps(&self) -> f64 {
        self.bytes as f64 / self.ours.median / 1e9
    }

    /// Returns the GFLOP/s if arithmetic limits the op.
    pub fn gflops(&self) -> Option<f64> {
        (self.limit.0 == "compute").then(|| self.flops / self.ours.median / 1e9)
    }

    /// Returns the shortest time that the machine needs, divided by our time.
    pub fn limit_fraction(&self) -> f64 {
        self.limit.1 / self.ours.median
    }
}

/// Measures the cases of a device. The cases of an op come in the order of their sizes, so that
/// small cases predict the time of large ones.
pub struct Measuring<'a> {
    pub device: Device,
    pub stopped: &'a dyn Fn() -> bool,
    /// For each op and variant, the most seconds per unit of work that the built-in has taken in a
    /// case.
    slowest: HashMap<(&'static str, &'static str), f64>,
}

impl<'a> Measuring<'a> {
    pub fn new(device: Device, stopped: &'a dyn Fn() -> bool) -> Self {
        Self { device, stopped, slowest: HashMap::new() }
    }

    /// Measures a case. Returns `None` if the measurement was stopped.
    pub fn measure<'c>(&mut self, case: &Case<'c>, limits: &Limits) -> Result<Option<Row<'c>>> {
        memory::clear_cache()?; // frees the buffers of earlier cases
        let device = self.device;
        let mut inputs = case.inputs()?;
        let (flops, dtype) = inputs.products.map_or((0.0, None), |(flops, it)| (flops, Some(it)));
        let bytes = inputs.read + inputs.written;
        let work = if flops > 0.0 { flops } else { bytes as f64 };
        let key = (case.workload.op, case.workload.variant);
        let expected = self.slowest.get(&key).map_or(0.0, |each| each * work);
        let left_out = expected > limits.builtin && inputs.builtin.take().is_some();
        let calls = calls(case.kind, &inputs)?;
        let (_, classes) = classes_of(|| (inputs.ours)(&inputs.x, &inputs.others));
        let negative: Function = Rc::new(|x, _| x.negative());
        let (mover, moved) = match device {
            Device::Cpu => (roofline::bandwidth(inputs.read, inputs.written), bytes),
            // On a GPU, use MLX's `negative`, which every backend has. It reads and writes as many
            // bytes as x has.
            Device::Gpu => (competitor(calls, &inputs, &negative), 2 * inputs.x.nbytes()),
        };
        let mut competitors = vec![competitor(calls, &inputs, &inputs.ours), mover];
        let mut done = 0.0;
        if let (Device::Cpu, Some(dtype)) = (device, dtype) {
            let (multiplier, operations) = roofline::arithmetic(dtype);
            competitors.push(multiplier);
            done = operations;
        }
        let chosen = Choices::of_process(device)?;
        let first = competitors.len();
        competitors.extend(inputs.builtin.iter().map(|op| competitor(calls, &inputs, op)));
        let timings = interleave(&mut competitors, &limits.effort, self.stopped)?;
        let Some(timings) = timings else { return Ok(None) };
        let memory = timings[1].median * bytes as f64 / moved as f64;
        let compute = if done > 0.0 { timings[2].median * flops / done } else { 0.0 };
        let row = Row {
            workload: case.workload,
            dtype: case.dtype,
            kind: case.kind,
            device,
            ours: timings[0],
            choice: classes.first().map(|class| chosen.choice(class)),
            builtin: match timings.get(first) {
                Some(timing) => Builtin::Timed(*timing),
                None if left_out => Builtin::LeftOut(expected),
                None => Builtin::None,
            },
            bytes,
            flops,
            limit: later(memory, compute),
        };
        if let Some(timing) = row.builtin.timing() {
            let each = self.slowest.entry(key).or_default();
            *each = each.max(timing.median / row.work());
        }
        Ok(Some(row))
    }
}

/// Returns the name of the resource that takes longer, and its time in seconds.
fn later(memory: f64, compute: f64) -> (&'static str, f64) {
    if compute > memory { ("compute", compute) } else { ("memory", memory) }
}

/// Returns the number of calls in a run. A chain has fewer calls if the built-in takes long.
pub fn calls(kind: Kind, inputs: &Inputs) -> Result<usize> {
    const CHAIN_SECONDS: f64 = 0.1;
    if kind != Kind::Chain {
        return Ok(1);
    }
    let slowest = inputs.builtin.as_ref().unwrap_or(&inputs.ours);
    let mut once = competitor(1, inputs, slowest);
    let mut seconds = once.time()?;
    if seconds < CHAIN_SECONDS {
        seconds = once.time()?; // the first run may have done extra work
    }
    Ok(((CHAIN_SECONDS / seconds) as usize).clamp(4, kind as usize))
}

/// Returns a competitor that runs a chain of `calls` ops. An op takes the result of the previous
/// op. The chain holds no reference to intermediate arrays, so MLX can let an op overwrite its
/// input.
pub fn competitor<'a>(calls: usize, inputs: &'a Inputs, op: &'a Function) -> Competitor<'a> {
    Competitor::new(calls, move || {
        let mut y = op(&inputs.x, &inputs.others)?;
        for _ in 1..calls {
            y = op(&y, &inputs.others)?;
        }
        Ok(y.eval()?)
    })
}

#[cfg(test)]
mod tests {
    use mlx_primitives::device;

    use super::super::{cases, cases::Size, workloads};
    use super::*;

    #[test]
    fn the_later_limit_binds() {
        assert_eq!((later(1.0, 0.0), later(1.0, 2.0)), (("memory", 1.0), ("compute", 2.0)));
    }

    /// Checks that an op allocates only its output: no hidden copy and no temporary array.
    #[test]
    fn ours_allocates_only_its_output() {
        device::with_device(Device::Cpu, || {
            let workloads = workloads::all();
            let mut failures = Vec::new();
            for case in cases::select(&workloads, &[], &[], true, false) {
                let op = case.workload.op;
                let several_outputs = op.ends_with("_residual") || op == "quantize";
                // Chains of these ops are skipped. Such an op cannot overwrite its input, so a
                // chain holds buffers that MLX has not freed yet.
                let in_place = !["linear", "matmul", "attention"].iter().any(|&o| op.contains(o));
                let alone = several_outputs || case.kind == Kind::Chain && !in_place;
                if case.workload.size == Size::Large || alone {
                    continue;
                }
                let inputs = case.inputs().unwrap();
                let output = (inputs.ours)(&inputs.x, &inputs.others).unwrap().nbytes();
                device::synchronize().unwrap();
                let before = memory::active_memory();
                memory::reset_peak_memory();
                (competitor(case.kind as usize, &inputs, &inputs.ours).run)().unwrap();
                // Allow some extra bytes, because some allocators round a size up to a page.
                let beyond = memory::peak_memory().saturating_sub(before + output);
                if beyond >= 1 << 16 {
                    failures.push(format!("{case}: {beyond} bytes beside the output"));
                }
            }
            assert!(failures.is_empty(), "{failures:#?}");
        });
    }
}
