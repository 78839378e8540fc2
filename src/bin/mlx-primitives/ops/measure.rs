//! Runs the cases: ours, MLX's built-in and what bounds both.

use std::time::Duration;

use anyhow::{Context, Result};
use mlx_primitives::device::Device;
use mlx_primitives::{Array, Dtype, memory};

use super::cases::{Case, Function, Inputs, Kind, Workload};
use super::limits::{self, Limit, Limits};
use super::timing::{Contestant, Timing, interleave};

pub use super::timing::Effort;

impl Effort {
    pub const FULL: Self = Self { budget: Duration::from_millis(400), least_rounds: 3 };
    pub const LARGE: Self = Self { budget: Duration::from_millis(250), least_rounds: 3 };
    pub const QUICK: Self = Self { budget: Duration::from_millis(60), least_rounds: 2 };
}

/// A case's result.
pub struct Row<'a> {
    pub workload: &'a Workload,
    pub dtype: Dtype,
    pub device: Device,
    pub kind: Kind,
    pub ours: Timing,
    /// None where it would take too long.
    pub builtin: Option<Timing>,
    pub limits: Limits,
    bytes: usize,
    flops: f64,
}

impl Row<'_> {
    pub fn speedup(&self) -> Option<f64> {
        self.builtin.map(|builtin| builtin.median / self.ours.median)
    }

    /// What has to be read and written, over our time.
    pub fn gbps(&self) -> f64 {
        self.bytes as f64 / self.ours.median / 1e9
    }

    /// GFLOP/s, where they are the limit.
    pub fn gflops(&self) -> Option<f64> {
        let limited = self.limits.nearest().0 == Limit::Compute;
        limited.then(|| self.flops / self.ours.median / 1e9)
    }

    /// The time that the machine needs at least, over ours.
    pub fn limit_fraction(&self) -> f64 {
        self.limits.nearest().1 / self.ours.median
    }
}

/// Measures every case, announcing each.
pub fn all<'a>(
    cases: &[Case<'a>],
    device: Device,
    effort: &Effort,
    announce: impl Fn(&Case),
) -> Result<Vec<Row<'a>>> {
    let measured = cases.iter().map(|case| {
        announce(case);
        one(case, device, effort).with_context(|| case.to_string())
    });
    measured.collect()
}

fn one<'a>(case: &Case<'a>, device: Device, effort: &Effort) -> Result<Row<'a>> {
    memory::clear_cache()?; // of buffers no use to this case
    let inputs = Inputs::new(case.workload, case.dtype)?;
    let calls = calls(case.kind, &inputs)?;
    let negative: Function = Box::new(Array::negative);
    let mut contestants = vec![contestant(calls, &inputs.x, &inputs.ours)];
    let mut flops = 0.0;
    match device {
        Device::Cpu => {
            contestants.push(limits::memory(inputs.read, inputs.written));
            if let Some((_, product)) = inputs.products {
                let (yardstick, done) = limits::compute(product);
                contestants.push(yardstick);
                flops = done;
            }
        }
        // Every GPU backend has it, and it reads and writes as many bytes as x has.
        Device::Gpu => contestants.push(contestant(calls, &inputs.x, &negative)),
    }
    let measured = contestants.len();
    contestants.extend(inputs.builtin.iter().map(|op| contestant(calls, &inputs.x, op)));
    let timings = interleave(&mut contestants, effort)?;
    let bytes = inputs.read + inputs.written;
    let wanted = inputs.products.map_or(0.0, |(flops, _)| flops);
    let moved = match device {
        Device::Cpu => bytes,
        Device::Gpu => 2 * inputs.x.nbytes(),
    };
    Ok(Row {
        workload: case.workload,
        dtype: case.dtype,
        device,
        kind: case.kind,
        ours: timings[0],
        builtin: timings.get(measured).copied(),
        limits: Limits {
            memory: timings[1].median * bytes as f64 / moved as f64,
            compute: if flops > 0.0 { timings[2].median * wanted / flops } else { 0.0 },
        },
        bytes,
        flops: wanted,
    })
}

/// Calls in a run: fewer in a chain where the built-in takes long.
fn calls(kind: Kind, inputs: &Inputs) -> Result<usize> {
    const CHAIN_SECONDS: f64 = 0.1;
    if kind == Kind::Single {
        return Ok(1);
    }
    let slowest = inputs.builtin.as_ref().unwrap_or(&inputs.ours);
    let mut once = contestant(1, &inputs.x, slowest);
    once.time()?;
    Ok(((CHAIN_SECONDS / once.time()?) as usize).clamp(4, kind.calls()))
}

fn contestant<'a>(calls: usize, x: &'a Array, op: &'a Function) -> Contestant<'a> {
    Contestant { calls, run: Box::new(move || Ok(chain(calls, x, op)?)) }
}

/// `calls` ops, each fed by the last. Nothing else holds the arrays between, so that MLX can
/// give an op its input's buffer to write to.
fn chain(calls: usize, x: &Array, op: &Function) -> mlx_primitives::Result<()> {
    let mut y = op(x)?;
    for _ in 1..calls {
        y = op(&y)?;
    }
    y.eval()
}

#[cfg(test)]
mod tests {
    use mlx_primitives::device;

    use super::super::cases::{Size, all as all_workloads, select};
    use super::*;

    /// The allocator sees the output and nothing else: no hidden copy, no temporary.
    #[test]
    fn ours_allocates_its_output_only() {
        device::with_device(Device::Cpu, || {
            let workloads = all_workloads();
            let mut failures = Vec::new();
            for case in select(&workloads, &[], &[], false, false) {
                let op = case.workload.op;
                let several_outputs = op.ends_with("_residual") || op == "quantize";
                // These cannot write to their input's buffer: a chain holds what MLX has not freed.
                let in_place = !["linear", "matmul", "attention"].iter().any(|&o| op.contains(o));
                let alone = several_outputs || case.kind == Kind::Chain && !in_place;
                if case.workload.size == Size::Large || alone {
                    continue;
                }
                let inputs = Inputs::new(case.workload, case.dtype).unwrap();
                let output = (inputs.ours)(&inputs.x).unwrap().nbytes();
                device::synchronize().unwrap();
                let before = memory::active_memory();
                memory::reset_peak_memory();
                chain(case.kind.calls(), &inputs.x, &inputs.ours).unwrap();
                // Some allocators round up to a page.
                let beyond = memory::peak_memory().saturating_sub(before + output);
                if beyond >= 1 << 16 {
                    failures.push(format!("{case}: {beyond} bytes beside the output"));
                }
            }
            assert!(failures.is_empty(), "{failures:#?}");
        });
    }
}
