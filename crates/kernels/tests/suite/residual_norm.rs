use crate::testing::*;
use mlx_primitives_kernels::element::{Bf16, F16};
use mlx_primitives_kernels::residual_norm::*;
use mlx_primitives_kernels::{layer_norm, rms_norm};

fn run<T: Sample>(
    on: Machine,
    x: &[T],
    residual: &[T],
    (weight, bias): (&[T], &[T]),
    axis: usize,
    centered: bool,
) -> (Vec<T>, Vec<T>) {
    let mut outputs = (vec![T::default(); x.len()], vec![T::default(); x.len()]);
    let pointer = |v: &[T]| if v.is_empty() { std::ptr::null() } else { v.as_ptr().cast() };
    let call = ResidualNorm {
        x: x.as_ptr().cast(),
        residual: residual.as_ptr().cast(),
        weight: pointer(weight),
        bias: pointer(bias),
        sum: outputs.0.as_mut_ptr().cast(),
        norm: outputs.1.as_mut_ptr().cast(),
        rows: x.len().checked_div(axis).unwrap_or(3),
        axis,
        eps: 1e-5,
        centered,
    };
    // SAFETY: the buffers hold rows * axis and axis elements.
    unsafe { residual_norm_on::<T>(on, call) };
    outputs
}

/// The sum is rounded once, and the norm equals the separate norm of that sum, bit by bit.
fn shapes<T: Sample>(element: Element) {
    for axis in AXES {
        for rows in [0, 1, 3, 67] {
            if rows * axis > 300_000 {
                continue;
            }
            let x = values::<T>(rows * axis, 3.0);
            let residual: Vec<T> = values::<T>(rows * axis + 1, 3.0).split_off(1);
            let (weight, bias) = (values::<T>(axis, 2.0), values::<T>(axis + 1, 2.0));
            let bias = &bias[..axis];
            let sums: Vec<T> = std::iter::zip(&x, &residual)
                .map(|(a, b)| T::from_f32(a.to_f32() + b.to_f32()))
                .collect();
            for (affine, centered) in [
                ((&[][..], &[][..]), false),
                ((&weight[..], &[]), false),
                ((&[], &[]), true),
                ((&weight, bias), true),
            ] {
                let mut want = vec![T::default(); x.len()];
                let pointer =
                    |v: &[T]| if v.is_empty() { std::ptr::null() } else { v.as_ptr().cast() };
                let (w, b) = (pointer(affine.0), pointer(affine.1));
                let (from, to) = (sums.as_ptr().cast(), want.as_mut_ptr().cast());
                // SAFETY: the buffers hold rows * axis and axis elements.
                unsafe {
                    if centered {
                        layer_norm(element, from, w, b, to, rows, axis, 1e-5);
                    } else {
                        rms_norm(element, from, w, to, rows, axis, 1e-5);
                    }
                }
                for machine in machines() {
                    let (sum, norm) = run(machine, &x, &residual, affine, axis, centered);
                    assert_same(&sum, &sums, "sum");
                    assert_same(&norm, &want, "norm");
                }
            }
        }
    }
}

#[test]
fn shapes_in_f32() {
    shapes::<f32>(Element::F32);
}

#[test]
fn shapes_in_f16() {
    shapes::<F16>(Element::F16);
}

#[test]
fn shapes_in_bf16() {
    shapes::<Bf16>(Element::BF16);
}
