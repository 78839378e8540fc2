//! Fuzzes derivatives, vmap and compile of our primitives and of a user's primitive.

use mlx_primitives::custom::{CustomPrimitive, Layout, Spec, View, ViewMut, apply};
use mlx_primitives::transforms::{compile, jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result};
use mlx_primitives_catalog::ops::{OPS, Op, Run};

use super::Call;
use crate::arrays::Draw;

pub const TRANSFORMED: &[Call] = &[
    ("vjp", |d| {
        let (x, f) = drawn(d)?;
        let shape = f(std::slice::from_ref(&x))?[0].shape().to_vec();
        let cotangent = d.array(&shape, x.dtype())?;
        let (outputs, gradients) = vjp(|p| f(&p), &[&x], &[&cotangent])?;
        Ok(outputs.into_iter().chain(gradients).collect())
    }),
    ("jvp", |d| {
        let (x, f) = drawn(d)?;
        let tangent = d.array(x.shape(), x.dtype())?;
        let (outputs, tangents) = jvp(|p| f(&p), &[&x], &[&tangent])?;
        Ok(outputs.into_iter().chain(tangents).collect())
    }),
    ("vmap", |d| {
        let (x, f) = drawn(d)?;
        let (from, to) = (d.axis(x.ndim()), d.axis(1));
        let from = if d.rng.u8(..8) == 0 { None } else { Some(from) };
        vmap(|p| f(&p), &[&x], [from], [to])
    }),
    ("compile", |d| {
        let ((x, f), shapeless) = (drawn(d)?, d.rng.bool());
        // This function has only our ops. MLX would fuse its own ops with a C++ compiler, which
        // takes seconds.
        let compiled = compile(move |p| f(&f(p)?), shapeless)?;
        let first = compiled.call(&[&x])?;
        let other = d.array(x.shape(), x.dtype())?;
        Ok(first.into_iter().chain(compiled.call(&[&other])?).collect())
    }),
    ("a primitive that a user wrote", |d| {
        let (shape, layout) = (d.shape(0..=4), *d.one(&[Layout::Any, Layout::RowContiguous]));
        let x = d.array(&shape, Dtype::Float32)?;
        apply(Twice { layout }, &[&x])
    }),
];

/// A random array, and one of our ops that takes a single array.
fn drawn(d: &mut Draw) -> Result<(Array, Run)> {
    let (mut shape, dtype) = (d.shape(1..=4), d.floating());
    // The maximum and the mean of an empty array have no derivatives.
    shape.iter_mut().for_each(|dim| *dim = (*dim).max(1));
    // Skip cross_entropy, because its targets would depend on how the sum of a row is rounded.
    let fits = |op: &&Op| op.shapes(1, 1).len() == 1 && op.name != "cross_entropy";
    let all: Vec<_> = OPS.iter().filter(fits).collect();
    let f = d.one(&all).run;
    Ok((d.array(&shape, dtype)?, f))
}

/// y = 2 x
struct Twice {
    layout: Layout,
}

impl CustomPrimitive for Twice {
    fn name(&self) -> &str {
        "twice"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn layout(&self, _: usize) -> Layout {
        self.layout
    }

    fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        if self.layout == Layout::RowContiguous {
            inputs[0].as_slice::<f32>()?;
        }
        let elements = inputs[0].elements::<f32>()?;
        outputs[0].as_mut_slice::<f32>()?.iter_mut().zip(elements).for_each(|(y, x)| *y = 2.0 * x);
        Ok(())
    }
}
