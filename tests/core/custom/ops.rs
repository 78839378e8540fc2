//! Three ops that implement the trait `CustomPrimitive`. Some also run under transforms.

use half::{bf16, f16};
use mlx_primitives::custom::{
    Call, CustomPrimitive, Launch, Layout, MetalLibrary, Spec, View, ViewMut, apply, apply_one,
};
use mlx_primitives::device::Device;
use mlx_primitives::transforms::{compile, grad};
use mlx_primitives::{Array, Dtype, Error, Result, async_eval, graph};
use mlx_primitives_check::{Check, Conformance};

use crate::support::compare::{assert_close, assert_same_order, numbers};
use crate::support::input::{FLOATS, random32};
use crate::support::{Checked, each_device, on_cpu, simulated};
use crate::table::backends;

pub fn kernels() -> Result<MetalLibrary> {
    MetalLibrary::from_source(include_str!("kernels.metal"))
}

/// The op cap * tanh(x / cap).
#[derive(Clone)]
pub struct SoftCap {
    pub cap: f32,
    pub library: MetalLibrary,
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct SoftCapParams {
    count: u32,
    cap: f32,
}

pub fn soft_cap(x: &Array, cap: f32) -> Result<Array> {
    apply_one(SoftCap { cap, library: kernels()? }, &[x])
}

macro_rules! each_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            Dtype::Float16 => {
                type $T = f16;
                $body
            }
            Dtype::Bfloat16 => {
                type $T = bf16;
                $body
            }
            _ => {
                type $T = f32;
                $body
            }
        }
    };
}

fn floating(op: &str, inputs: &[Spec]) -> Result<()> {
    match inputs {
        [x] if FLOATS.contains(&x.dtype) => Ok(()),
        _ => Err(Error::from(format!("[{op}] expected one floating input, got {inputs:?}"))),
    }
}

impl CustomPrimitive for SoftCap {
    fn name(&self) -> &str {
        "soft_cap"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        floating("soft_cap", inputs)?;
        Ok(inputs.to_vec())
    }

    fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        each_float!(inputs[0].dtype(), T => {
            let x = inputs[0].as_slice::<T>()?;
            for (y, x) in outputs[0].as_mut_slice::<T>()?.iter_mut().zip(x) {
                *y = T::from_f32(self.cap * (x.to_f32() / self.cap).tanh());
            }
        });
        Ok(())
    }

    fn launch(&self, call: &Call) -> Result<Vec<Launch>> {
        let x = &call.inputs[0];
        let count = x.size() as u32;
        let group = 256.min(call.max_threads);
        let launch = Launch::new(&self.library, format!("soft_cap_{}", x.dtype))
            .input(0, 0)
            .output(1, 0)
            .parameters(2, &SoftCapParams { count, cap: self.cap })
            .groups([count.div_ceil(group), 1, 1], [group, 1, 1]);
        Ok(vec![launch])
    }

    fn vjp(&self, _: &[Array], g: &[Array], _: &[usize], y: &[Array]) -> Result<Vec<Array>> {
        // The derivative of tanh is 1 - tanh².
        let slope = y[0].divide(self.cap)?.square()?.negative()?.add(1.0)?;
        Ok(vec![g[0].multiply(&slope)?.astype(g[0].dtype())?])
    }

    fn jvp(&self, x: &[Array], t: &[Array], argnums: &[usize]) -> Result<Vec<Array>> {
        let y = [apply_one(self.clone(), &[&x[0]])?];
        self.vjp(x, t, argnums, &y)
    }

    fn vmap(&self, x: &[Array], axes: &[Option<usize>]) -> Result<(Vec<Array>, Vec<usize>)> {
        let y = apply_one(self.clone(), &[&x[0]])?;
        Ok((vec![y], vec![axes[0].unwrap_or(0)]))
    }

    fn is_equivalent(&self, other: &Self) -> bool {
        self.cap == other.cap
    }
}

trait Float {
    fn to_f32(self) -> f32;
    fn from_f32(value: f32) -> Self;
}

impl Float for f32 {
    fn to_f32(self) -> f32 {
        self
    }
    fn from_f32(value: f32) -> Self {
        value
    }
}

/// The default bounds allow the roundings of both ops. `soft_cap` rounds a tanh, and then a product
/// of at most 2. `mean_square` adds squares of at most 9.
#[test]
fn conform() -> Checked {
    let soft_cap = Conformance::new(
        "soft_cap",
        |x| Ok(vec![soft_cap(&x[0], 2.0)?]),
        |x| vec![x[0].map(|x| 2.0 * (x / 2.0).tanh())],
    );
    let soft_cap = soft_cap.shapes(&[&[4, 6, 10]]).shapes(&[&[3, 5]]).shapes(&[&[0]]);
    let mean_square = Conformance::new(
        "mean_square",
        |x| Ok(vec![mean_square(&x[0])?]),
        |x| vec![x[0].map_rows(|row| row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64)],
    )
    .shapes(&[&[2, 6, 10]])
    .shapes(&[&[3, 1]])
    .without(Check::Extremes, "squares of the largest numbers overflow in float32")
    .without(Check::Vjp, "it has no derivatives")
    .without(Check::Jvp, "it has no derivatives")
    .without(Check::Vmap, "it has no vmap");
    for row in [soft_cap, mean_square] {
        let row = [31, 257, 1000].iter().fold(row, |row, &count| row.sizes(&[&[3, count]]));
        row.backends(&backends()?).run().check()?;
    }
    Ok(())
}

#[test]
fn second_derivatives_and_shapeless_functions() -> Checked {
    each_device(|device| {
        // Differentiating a gradient differentiates the graph that `vjp` has built.
        let x = random32(&[3, 5], 3)?;
        let first = |x: &[Array]| grad(|x| soft_cap(&x[0], 2.0)?.sum(..), &[&x[0]])?[0].sum(..);
        let second = grad(|p| first(&p), &[&x])?;
        let of = |x: &f64| -(x / 2.0).tanh() * (1.0 - (x / 2.0).tanh().powi(2));
        let want: Vec<f64> = numbers(&x)?.iter().map(of).collect();
        assert_close(&numbers(&second[0])?, &want, 4e-6, "second derivative");
        let f = |x: &[Array]| Ok(vec![soft_cap(&x[0].add(0.0)?, 2.0)?.exp()?]);
        let compiled = compile(f, true)?;
        for shape in [[3, 5], [2, 7]] {
            let x = random32(&shape, 6)?;
            assert_same_order(device, &compiled.call(&[&x])?[0], &f(&[x])?[0], "compiled")?;
        }
        Ok(())
    })
}

#[test]
fn equivalent_nodes_are_merged_by_compile() -> Checked {
    let x = random32(&[4], 7)?;
    let nodes = |a: f32, b: f32| -> Result<usize> {
        // The compiled function returns lazy outputs, so its simplified graph can be counted.
        let f = move |x: &[Array]| Ok(vec![soft_cap(&x[0], a)?.matmul(&soft_cap(&x[0], b)?)?]);
        let outputs = compile(f, false)?.call(&[&x])?;
        Ok(graph::nodes(&outputs)?.iter().filter(|node| node.name == "soft_cap").count())
    };
    assert_eq!((nodes(2.0, 2.0)?, nodes(2.0, 3.0)?), (1, 2));
    Ok(())
}

/// The mean of the squares of each row.
#[derive(Clone)]
struct MeanSquare(MetalLibrary);

fn mean_square(x: &Array) -> Result<Array> {
    apply_one(MeanSquare(kernels()?), &[x])
}

impl CustomPrimitive for MeanSquare {
    fn name(&self) -> &str {
        "mean_square"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        floating("mean_square", inputs)?;
        match inputs[0].shape.split_last() {
            Some((1.., rows)) => Ok(vec![Spec::new(rows, inputs[0].dtype)]),
            _ => Err(Error::from("[mean_square] expected a last axis, got none")),
        }
    }

    fn layout(&self, _: usize) -> Layout {
        // The Metal kernel requires contiguous rows, and `eval_cpu` accepts any strides.
        let on_cpu = mlx_primitives::device::current().is_ok_and(|device| device == Device::Cpu);
        if on_cpu && !simulated() { Layout::Any } else { Layout::RowContiguous }
    }

    fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let axis = inputs[0].shape().last().map_or(0, |&n| n as usize);
        each_float!(inputs[0].dtype(), T => {
            let mut x = inputs[0].elements::<T>()?;
            for y in outputs[0].as_mut_slice::<T>()? {
                let squares = x.by_ref().take(axis).map(|x| x.to_f32() * x.to_f32());
                *y = T::from_f32(squares.sum::<f32>() / axis as f32);
            }
            assert_eq!(x.len(), 0);
        });
        Ok(())
    }

    fn launch(&self, call: &Call) -> Result<Vec<Launch>> {
        let axis = call.inputs[0].shape.last().map_or(0, |&n| n as u32);
        let launch = Launch::new(&self.0, format!("mean_square_{}", call.inputs[0].dtype))
            .input(0, 0)
            .output(1, 0)
            .parameters(2, &axis)
            .groups([call.outputs[0].size() as u32, 1, 1], [32, 1, 1]);
        Ok(vec![launch])
    }
}

/// Computes the quotient and the remainder of a division by two. The outputs have different types.
struct DivMod;

impl CustomPrimitive for DivMod {
    fn name(&self) -> &str {
        "div_mod"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let odd = Spec::new(inputs[0].shape.clone(), Dtype::Bool);
        Ok(vec![inputs[0].clone(), odd])
    }

    fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let x = inputs[0].as_slice::<u16>()?;
        let [half, odd] = outputs else {
            return Err(Error::from("two outputs"));
        };
        let (half, odd) = (half.as_mut_slice::<u16>()?, odd.as_mut_slice::<bool>()?);
        for (i, x) in x.iter().enumerate() {
            (half[i], odd[i]) = (x / 2, x % 2 == 1);
        }
        Ok(())
    }
}

#[test]
fn several_outputs_of_several_types() -> Checked {
    on_cpu(|| {
        let x = Array::from_slice(&[4u16, 5, 65535], [3])?;
        let outputs = apply(DivMod, &[&x])?;
        async_eval(&outputs)?;
        assert_eq!(outputs[0].to_vec::<u16>()?, [2, 2, 32767]);
        assert_eq!(outputs[1].to_vec::<bool>()?, [false, true, true]);
        assert!(apply_one(DivMod, &[&x]).is_err());
        // Drop one of the two outputs before the other is computed.
        let odd = apply(DivMod, &[&x])?.swap_remove(1);
        assert_eq!(odd.to_vec::<bool>()?, [false, true, true]);
        Ok(())
    })
}
