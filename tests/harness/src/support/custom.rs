//! A user's primitive that is made from a closure.

use mlx_primitives::Result;
use mlx_primitives::custom::{CustomPrimitive, Spec, View, ViewMut};

/// A primitive with a name and a closure. The outputs have the shapes of the inputs, and the
/// closure computes them on a CPU.
pub struct Computed<F>(pub &'static str, pub F);

impl<F> CustomPrimitive for Computed<F>
where
    F: Fn(&[View<'_>], &mut [ViewMut<'_>]) -> Result<()> + Send + Sync + 'static,
{
    fn name(&self) -> &str {
        self.0
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(inputs.to_vec())
    }

    fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        (self.1)(inputs, outputs)
    }
}

/// Computes y = x in float32.
///
/// # Errors
///
/// Returns an error if x has another type.
pub fn same(x: &[View<'_>], y: &mut [ViewMut<'_>]) -> Result<()> {
    y[0].as_mut_slice::<f32>()?.copy_from_slice(x[0].as_slice::<f32>()?);
    Ok(())
}
