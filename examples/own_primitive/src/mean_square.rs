//! A reduction.

use mlx_primitives::custom::{
    Call, CustomPrimitive, Launch, MetalLibrary, Spec, View, ViewMut, apply_one,
};
use mlx_primitives::{Array, Error, Result, metal_library};

use crate::{Float, one_float, with_float};

/// Returns the mean of the squares along the last axis. The sum is computed in float32.
///
/// `x` has the shape `[..., n]` with n >= 1 and the type float32, float16 or bfloat16. The result
/// has the shape `[...]` and the type of `x`.
pub fn mean_square(x: &Array) -> Result<Array> {
    apply_one(MeanSquare { library: metal_library!("own")? }, &[x])
}

#[derive(Clone)]
struct MeanSquare {
    library: MetalLibrary,
}

fn run<T: Float>(axis: usize, x: &View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
    let rows = x.as_slice::<T>()?.chunks_exact(axis);
    for (y, row) in y.as_mut_slice::<T>()?.iter_mut().zip(rows) {
        let sum: f32 = row.iter().map(|x| x.to_f32() * x.to_f32()).sum();
        *y = T::of_f32(sum / axis as f32);
    }
    Ok(())
}

/// Multiplies `x` by `2 / n` and by a factor for each row.
fn scaled(x: &Array, rows: &Array) -> Result<Array> {
    let n = x.dim(-1)? as f32;
    x.multiply(&rows.expand_dims(-1)?)?.multiply(2.0 / n)
}

impl CustomPrimitive for MeanSquare {
    fn name(&self) -> &str {
        "mean_square"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let x = one_float("mean_square", inputs)?;
        match x.shape.split_last() {
            Some((1.., rows)) => Ok(vec![Spec::new(rows, x.dtype)]),
            _ => Err(Error::argument(
                "mean_square",
                format_args!("a last axis of at least one element, got {x}"),
            )),
        }
    }

    fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let axis = inputs[0].shape().last().map_or(1, |&n| n as usize);
        with_float!(inputs[0].dtype(), run(axis, &inputs[0], &mut outputs[0]))
    }

    fn launch(&self, call: &Call) -> Result<Vec<Launch>> {
        let x = &call.inputs[0];
        let axis = x.shape.last().map_or(1, |&n| n as u32);
        let launch = Launch::new(&self.library, format!("mean_square_{}", x.dtype))
            .input(0, 0)
            .output(1, 0)
            .parameters(2, &axis)
            .groups([call.outputs[0].size() as u32, 1, 1], [32, 1, 1]);
        Ok(vec![launch])
    }

    fn vjp(&self, x: &[Array], g: &[Array], _: &[usize], _: &[Array]) -> Result<Vec<Array>> {
        Ok(vec![scaled(&x[0], &g[0])?])
    }

    fn jvp(&self, x: &[Array], t: &[Array], _: &[usize]) -> Result<Vec<Array>> {
        // The mean is computed in float32, like the mean of the squares.
        let products = x[0].astype(mlx_primitives::Dtype::Float32)?.multiply(&t[0])?;
        Ok(vec![products.mean(-1)?.multiply(2.0)?.astype(x[0].dtype())?])
    }

    /// Moves the mapped axis to the front, where it is one more axis of rows.
    fn vmap(&self, x: &[Array], axes: &[Option<usize>]) -> Result<(Vec<Array>, Vec<usize>)> {
        let axis = axes[0].unwrap_or(0) as i32;
        let mut order: Vec<i32> = (0..x[0].ndim() as i32).filter(|&other| other != axis).collect();
        order.insert(0, axis);
        Ok((vec![apply_one(self.clone(), &[&x[0].transpose(&order)?])?], vec![0]))
    }

    fn is_equivalent(&self, _: &Self) -> bool {
        true
    }
}
