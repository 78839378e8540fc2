use crate::testing::*;
use mlx_primitives_kernels::layer_norm::{Affine, layer_norm_on};
use mlx_primitives_kernels::residual_norm::*;
use mlx_primitives_kernels::rms_norm::rms_norm_on;

/// Computes the sums and then their norms.
fn run<T: Sample>(
    x: &[T],
    residual: &[T],
    (weight, bias): (&[T], &[T]),
    axis: usize,
    centered: bool,
) -> Vec<T> {
    same(|on| {
        let mut outputs = vec![T::default(); 2 * x.len()];
        let (sum, norm) = outputs.split_at_mut(x.len());
        let call = ResidualNorm {
            x: x.as_ptr().cast(),
            residual: residual.as_ptr().cast(),
            weight: pointer(weight).cast(),
            bias: pointer(bias).cast(),
            sum: sum.as_mut_ptr().cast(),
            norm: norm.as_mut_ptr().cast(),
            rows: x.len().checked_div(axis).unwrap_or(3),
            axis,
            eps: 1e-5,
            centered,
        };
        // SAFETY: the row buffers hold rows * axis elements, and the vectors hold axis elements.
        unsafe { residual_norm_on::<T>(on, call) };
        outputs
    })
}

/// The kernel rounds the sum once. The norm of the sum equals, bit for bit, the norm that the
/// separate kernel computes from this sum.
fn shapes<T: Sample>() {
    for (rows, axis) in rows_and_axes(300_000) {
        let x = values::<T>(rows * axis, 3.0);
        let residual: Vec<T> = values::<T>(rows * axis + 1, 3.0).split_off(1);
        let (weight, bias) = (values::<T>(axis, 2.0), values::<T>(axis + 1, 2.0));
        let (w, b) = (&weight[..], &bias[..axis]);
        let pairs = std::iter::zip(&x, &residual);
        let sums: Vec<T> = pairs.map(|(a, b)| T::from_f32(a.to_f32() + b.to_f32())).collect();
        for ((w, b), centered) in
            [((&[][..], &[][..]), false), ((w, &[]), false), ((&[], &[]), true), ((w, b), true)]
        {
            let norms = in_place(&sums, |on, from, to| {
                let affine = Affine { weight: pointer(w), bias: pointer(b) };
                // SAFETY: the row buffers hold rows * axis elements, and the vectors hold axis
                // elements.
                unsafe {
                    if centered {
                        layer_norm_on(on, from, affine, to, rows, axis, 1e-5);
                    } else {
                        rms_norm_on(on, from, pointer(w), to, rows, axis, 1e-5);
                    }
                }
            });
            let got = run(&x, &residual, (w, b), axis, centered);
            assert_same(&got, &[sums.clone(), norms].concat(), "sum and norm");
        }
    }
}

each_type!(shapes);
