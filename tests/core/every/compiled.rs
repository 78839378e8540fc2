//! Every op inside `compile`: for all shapes and layouts, alone and under the other transforms.

use mlx_primitives::device::Device;
use mlx_primitives::transforms::{Compiled, compile, grad, jvp, vmap};
use mlx_primitives::{Array, Result};
use mlx_primitives_check::Backend;

use super::loss;
use crate::support::compare::{assert_close, assert_same, numbers};
use crate::support::input::{LAYOUTS, random32};
use crate::support::{Checked, each_device, refs};
use crate::table::ops::{OPS, Op};

type Function = Box<dyn Fn(&[Array]) -> Result<Vec<Array>>>;

/// The functions of an op that may be compiled: its values, gradients, directional derivatives, and
/// values for a batch. The bool says if the compiled result must be equal in every bit.
fn functions(op: &'static Op) -> [(Function, bool); 4] {
    let run = op.run;
    let batch = move |p: &[Array]| {
        let inputs: Result<Vec<Array>> = p.iter().map(|x| x.expand_dims([0])).collect();
        vmap(|p| run(&p), &refs(&inputs?), vec![Some(0); p.len()], 0)
    };
    [
        (Box::new(run), true),
        (Box::new(move |p| grad(|p| loss(run)(&p), &refs(p))), false),
        (Box::new(move |p| Ok(jvp(|p| run(&p), &refs(p), &refs(p))?.1)), false),
        (Box::new(batch), true),
    ]
}

/// Fused code may skip the rounding of a product. This changes a result by a few half ulps of
/// numbers up to 10.
#[test]
fn for_any_shape_and_layout() -> Checked {
    each_device(|device| {
        for (op, kind) in OPS.iter().flat_map(|op| (0..4).map(move |kind| (op, kind))) {
            // MLX runs g++ on each compiled derivative, which is slow. So only three ops compile
            // their derivatives here.
            if (kind == 1 || kind == 2) && !["rms_norm", "softmax", "rope"].contains(&op.name) {
                continue;
            }
            // Surround the op with other ops, which MLX may fuse.
            let moved = move |x: &[Array]| {
                let moved: Result<Vec<Array>> = x.iter().map(|x| x.add(1.0)).collect();
                let outputs = functions(op)[kind].0(&moved?)?;
                outputs.iter().map(|y| y.multiply(2.0)).collect()
            };
            // `vmap` needs fixed shapes. Directional derivatives need them too, because MLX counts
            // the elements of a shapeless mean with an op that has no derivative. `rms_norm` is an
            // exception.
            let fixed = kind == 3 || kind == 2 && op.name != "rms_norm";
            let modes = if fixed { &[false][..] } else { &[false, true] };
            for &shapeless in modes {
                let compiled: Compiled = compile(moved, shapeless)?;
                // If a shapeless function sums over an axis that has one element, but had more when
                // MLX traced the function, MLX reads out of bounds.
                let last = if kind == 0 || kind == 3 { 1 } else { 3 };
                for (rows, seed) in [(2, 9), (5, 19), (last, 29)] {
                    for &layout in &LAYOUTS[..if kind == 0 { LAYOUTS.len() } else { 2 }] {
                        let make = |(x, seed): (Array, u64)| match x.ndim() {
                            0 | 1 => random32(x.shape(), seed),
                            _ => layout.make(x.shape(), x.dtype(), seed),
                        };
                        let inputs = op.inputs(rows, 0)?.into_iter().zip(seed..).map(make);
                        let inputs = inputs.collect::<Result<Vec<_>>>()?;
                        if seed == 19 {
                            inputs.iter().try_for_each(Array::eval)?;
                        }
                        let outputs = compiled.call(&refs(&inputs))?;
                        let what = format!("{} {kind}, {rows} rows, {layout:?}", op.name);
                        for (got, want) in outputs.iter().zip(moved(&inputs)?) {
                            // MLX fuses products and sums on NVIDIA GPUs.
                            let fuses =
                                kind == 3 && Backend::Gpu.is_cuda() && device != Device::Cpu;
                            if functions(op)[kind].1 && !fuses {
                                assert_same(got, &want, &what)?;
                            } else {
                                assert_close(&numbers(got)?, &numbers(&want)?, 1e-4, &what);
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    })
}

#[test]
fn gradients_of_compiled_functions() -> Checked {
    for op in OPS {
        let inputs = op.inputs(3, 39)?;
        let compiled = compile(op.run, false)?;
        let through = |p: &[Array]| {
            let all = compiled.call(&refs(p))?.into_iter().map(|y| y.square()?.sum(..));
            all.reduce(|a, b| a?.add(b?)).unwrap_or_else(|| Array::scalar(0.0f32))
        };
        let got = grad(|p| through(&p), &refs(&inputs))?;
        let want = grad(|p| loss(op.run)(&p), &refs(&inputs))?;
        for (got, want) in got.iter().zip(&want) {
            assert_close(&numbers(got)?, &numbers(want)?, 1e-4, op.name);
        }
    }
    Ok(())
}
