//! A custom primitive in one file: the Huber loss of each element, with a Metal kernel, a CPU
//! version, derivatives and vmap. The program compares it with a reference in f64. On Linux a
//! simulator runs the kernel.
//!
//! ```sh
//! cargo run --example custom_primitive
//! ```

use std::collections::BTreeSet;

use mlx_primitives::custom::{
    Call, CustomPrimitive, Launch, MetalLibrary, Spec, View, ViewMut, apply_one,
};
use mlx_primitives::prelude::*;
use mlx_primitives_check::{Backend, Check, Conformance, Report, Tensor};

const SOURCE: &str = "
#include <metal_stdlib>

using namespace metal;

struct HuberParams {
  uint count;
  float delta;
};

[[kernel]] void huber(
    const device float* x [[buffer(0)]],
    const device float* y [[buffer(1)]],
    device float* loss [[buffer(2)]],
    constant HuberParams& params [[buffer(3)]],
    uint i [[thread_position_in_grid]]) {
  if (i < params.count) {
    float distance = abs(x[i] - y[i]);
    float inner = min(distance, params.delta);
    loss[i] = inner * (distance - 0.5f * inner);
  }
}
";

/// Returns `d² / 2` where `d = |x - y|` is at most delta, and `delta * (d - delta / 2)` elsewhere.
/// The inputs are two float32 arrays of one shape.
fn huber(x: &Array, y: &Array, delta: f32) -> Result<Array> {
    apply_one(Huber { delta, library: MetalLibrary::from_source(SOURCE)? }, &[x, y])
}

#[derive(Clone)]
struct Huber {
    delta: f32,
    library: MetalLibrary,
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct HuberParams {
    count: u32,
    delta: f32,
}

impl Huber {
    /// The derivative with respect to x. The derivative with respect to y is its negative.
    fn slope(&self, inputs: &[Array]) -> Result<Array> {
        (&inputs[0] - &inputs[1])?.maximum(-self.delta)?.minimum(self.delta)
    }
}

impl CustomPrimitive for Huber {
    fn name(&self) -> &str {
        "huber"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        match inputs {
            [x, y] if x.dtype == Dtype::Float32 && y.dtype == x.dtype && x.shape == y.shape => {
                Ok(vec![x.clone()])
            }
            _ => Err(Error::argument(
                "huber",
                format_args!("two float32 arrays of one shape, got {inputs:?}"),
            )),
        }
    }

    fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let (x, y) = (inputs[0].as_slice::<f32>()?, inputs[1].as_slice::<f32>()?);
        for ((loss, x), y) in outputs[0].as_mut_slice::<f32>()?.iter_mut().zip(x).zip(y) {
            let distance = (x - y).abs();
            let inner = distance.min(self.delta);
            *loss = inner * (distance - 0.5 * inner);
        }
        Ok(())
    }

    fn launch(&self, call: &Call) -> Result<Vec<Launch>> {
        let count = call.outputs[0].size() as u32;
        let group = 256.min(call.max_threads);
        let launch = Launch::new(&self.library, "huber")
            .input(0, 0)
            .input(1, 1)
            .output(2, 0)
            .parameters(3, &HuberParams { count, delta: self.delta })
            .groups([count.div_ceil(group), 1, 1], [group, 1, 1]);
        Ok(vec![launch])
    }

    fn vjp(&self, x: &[Array], g: &[Array], argnums: &[usize], _: &[Array]) -> Result<Vec<Array>> {
        let in_x = (self.slope(x)? * &g[0])?;
        argnums.iter().map(|&i| if i == 0 { Ok(in_x.clone()) } else { -&in_x }).collect()
    }

    fn jvp(&self, x: &[Array], t: &[Array], argnums: &[usize]) -> Result<Vec<Array>> {
        let along = match argnums {
            [0] => t[0].clone(),
            [1] => (-&t[0])?,
            _ => (&t[0] - &t[1])?,
        };
        Ok(vec![(self.slope(x)? * along)?])
    }

    fn vmap(&self, x: &[Array], axes: &[Option<usize>]) -> Result<(Vec<Array>, Vec<usize>)> {
        // Move mapped axes to the front. An input without a mapped axis is repeated along the
        // mapped axis of the other input.
        let front = |i: usize| match axes[i] {
            Some(axis) => {
                let mut order: Vec<i32> = (0..x[i].ndim() as i32).collect();
                order[..=axis].rotate_right(1);
                x[i].transpose(order)
            }
            None => x[i].expand_dims(0),
        };
        let (a, b) = (front(0)?, front(1)?);
        let shape = if axes[0].is_some() { a.shape() } else { b.shape() };
        let (a, b) = (a.broadcast_to(shape)?, b.broadcast_to(shape)?);
        Ok((vec![apply_one(self.clone(), &[&a, &b])?], vec![0]))
    }

    fn is_equivalent(&self, other: &Self) -> bool {
        self.delta == other.delta
    }
}

fn conformance() -> Report {
    Conformance::new(
        "huber",
        |x| Ok(vec![huber(&x[0], &x[1], 0.75)?]),
        |x| {
            let loss = x[0].values.iter().zip(&x[1].values).map(|(x, y)| {
                let distance = (x - y).abs();
                if distance <= 0.75 { distance * distance / 2.0 } else { 0.75 * (distance - 0.375) }
            });
            vec![Tensor::new(x[0].shape.clone(), loss.collect::<Vec<_>>())]
        },
    )
    .dtypes(&[Dtype::Float32])
    .shapes(&[&[3, 4], &[3, 4]])
    .shapes(&[&[1000], &[1000]])
    .run()
}

fn main() -> Result<()> {
    let x = Array::from_slice(&[0.25f32, 1.0, 3.0], 3)?;
    let gradient = transforms::grad(|x| huber(&x, &Array::zeros::<f32>(3)?, 0.75)?.sum(..), &x)?;
    assert_eq!(gradient.to_vec::<f32>()?, [0.25, 0.75, 0.75]);
    // The harness gives every input a tangent; this check gives only y a tangent.
    let one = Array::ones::<f32>(3)?;
    let (_, slope) = transforms::jvp(|y| huber(&x, &y, 0.75), &Array::zeros::<f32>(3)?, &one)?;
    assert_eq!(slope.to_vec::<f32>()?, [-0.25, -0.75, -0.75]);

    let report = conformance();
    if let Err(error) = report.check() {
        panic!("{error}");
    }
    assert!(report.ran_metal() && report.not_run().is_empty(), "{report}");
    let ran = |backend, check| {
        report.outcomes().iter().any(|outcome| (outcome.backend, outcome.check) == (backend, check))
    };
    for backend in Backend::available() {
        assert!(Check::ALL.iter().all(|&check| ran(backend, check)), "{report}");
    }
    let backends: BTreeSet<String> =
        report.outcomes().iter().map(|outcome| outcome.backend.to_string()).collect();
    println!("huber: {} comparisons passed, on {backends:?}", report.outcomes().len());
    Ok(())
}
