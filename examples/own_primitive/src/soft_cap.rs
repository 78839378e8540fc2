//! An elementwise op.

use mlx_primitives::custom::{
    Call, CustomPrimitive, Launch, MetalLibrary, Spec, View, ViewMut, apply_one,
};
use mlx_primitives::{Array, Result, metal_library};

use crate::{Float, one_float, with_float};

/// `cap * tanh(x / cap)`: close to `x` if `x` is small, and always within ±`cap`.
///
/// `x` has any shape and the type float32, float16 or bfloat16. The result has the shape and type
/// of `x`.
pub fn soft_cap(x: &Array, cap: f32) -> Result<Array> {
    apply_one(SoftCap { cap, library: metal_library!("own")? }, &[x])
}

#[derive(Clone)]
struct SoftCap {
    cap: f32,
    library: MetalLibrary,
}

/// Must match the struct in `metal/own.metal`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct SoftCapParams {
    count: u32,
    cap: f32,
}

fn run<T: Float>(cap: f32, x: &View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
    for (y, x) in y.as_mut_slice::<T>()?.iter_mut().zip(x.as_slice::<T>()?) {
        *y = T::of_f32(cap * (x.to_f32() / cap).tanh());
    }
    Ok(())
}

impl CustomPrimitive for SoftCap {
    fn name(&self) -> &str {
        "soft_cap"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![one_float("soft_cap", inputs)?.clone()])
    }

    fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        with_float!(inputs[0].dtype(), run(self.cap, &inputs[0], &mut outputs[0]))
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

    /// `1 - tanh²`, computed from the output.
    fn vjp(&self, _: &[Array], g: &[Array], _: &[usize], y: &[Array]) -> Result<Vec<Array>> {
        let slope = y[0].divide(self.cap)?.square()?.negative()?.add(1.0)?;
        Ok(vec![g[0].multiply(&slope)?])
    }

    /// The Jacobian is diagonal, so forward mode multiplies a tangent by the same factor as reverse
    /// mode multiplies a cotangent.
    fn jvp(&self, x: &[Array], t: &[Array], argnums: &[usize]) -> Result<Vec<Array>> {
        let y = apply_one(self.clone(), &[&x[0]])?;
        self.vjp(x, t, argnums, &[y])
    }

    /// An elementwise op needs no change for one more axis.
    fn vmap(&self, x: &[Array], axes: &[Option<usize>]) -> Result<(Vec<Array>, Vec<usize>)> {
        let y = apply_one(self.clone(), &[&x[0]])?;
        Ok((vec![y], vec![axes[0].unwrap_or(0)]))
    }

    fn is_equivalent(&self, other: &Self) -> bool {
        self.cap == other.cap
    }
}
