//! Runs the cases: ours, MLX's built-in and the copy that bounds both.

use std::time::Duration;

use anyhow::{Context, Result};
use mlx_primitives::device::Device;
use mlx_primitives::{Array, memory, yardstick};

use super::cases::{Case, Function, Inputs, Kind, Workload};
use super::timing::{Contestant, Timing, interleave};

pub use super::timing::Effort;

impl Effort {
    pub const FULL: Self = Self { budget: Duration::from_millis(400), least_rounds: 3 };
    pub const QUICK: Self = Self { budget: Duration::from_millis(60), least_rounds: 2 };
}

/// A case's result.
pub struct Row<'a> {
    pub workload: &'a Workload,
    pub dtype: mlx_primitives::Dtype,
    pub device: Device,
    pub kind: Kind,
    pub ours: Timing,
    pub builtin: Timing,
    pub copy: Timing,
    ideal_bytes: usize,
    copied_bytes: usize,
    flops: f64,
}

impl Row<'_> {
    pub fn speedup(&self) -> f64 {
        self.builtin.median / self.ours.median
    }

    /// The ideal bytes over our time.
    pub fn gbps(&self) -> f64 {
        self.ideal_bytes as f64 / self.ours.median / 1e9
    }

    /// GFLOP/s, where they are the limit.
    pub fn gflops(&self) -> Option<f64> {
        (self.flops > 0.0).then(|| self.flops / self.ours.median / 1e9)
    }

    /// Our bandwidth over that of the copy.
    pub fn copy_fraction(&self) -> f64 {
        self.gbps() / (self.copied_bytes as f64 / self.copy.median / 1e9)
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
    let copied_bytes = inputs.ideal_bytes / 2 * 2;
    let negative: Function = Box::new(Array::negative);
    let copy = match device {
        Device::Cpu => pool_copy(copied_bytes / 2),
        // Every GPU backend has it, and it reads and writes the same bytes.
        Device::Gpu => contestant(calls, &inputs.x, &negative),
    };
    let (ours, builtin) = (&inputs.ours, &inputs.builtin);
    let [ours, builtin] = [ours, builtin].map(|op| contestant(calls, &inputs.x, op));
    let mut contestants = [ours, builtin, copy];
    let timings = interleave(&mut contestants, effort)?;
    Ok(Row {
        workload: case.workload,
        dtype: case.dtype,
        device,
        kind: case.kind,
        ours: timings[0],
        builtin: timings[1],
        copy: timings[2],
        ideal_bytes: inputs.ideal_bytes,
        copied_bytes,
        flops: inputs.flops,
    })
}

/// Calls in a run: fewer in a chain where the built-in takes long.
fn calls(kind: Kind, inputs: &Inputs) -> Result<usize> {
    const CHAIN_SECONDS: f64 = 0.1;
    if kind == Kind::Single {
        return Ok(1);
    }
    let mut once = contestant(1, &inputs.x, &inputs.builtin);
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

/// A copy between buffers that stay.
fn pool_copy(bytes: usize) -> Contestant<'static> {
    // One copy of a small buffer is shorter than the clock's resolution on some machines.
    let calls = (1 << 22 >> bytes.max(1).ilog2()).clamp(1, 256);
    let (from, mut to) = (vec![1u8; bytes], vec![2u8; bytes]);
    let run = move || {
        for _ in 0..calls {
            yardstick::copy(&from, &mut to)?;
        }
        Ok(())
    };
    Contestant { calls, run: Box::new(run) }
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
            for case in select(&workloads, &[], &[], false) {
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
