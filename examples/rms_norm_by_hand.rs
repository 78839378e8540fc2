//! Writes RMSNorm with operators on arrays, and compares the values and the gradients with
//! `ops::rms_norm` in three types.
//!
//! ```sh
//! cargo run --example rms_norm_by_hand
//! ```

use mlx_primitives::prelude::*;
use mlx_primitives::random;

const ROWS: i32 = 4;
const FEATURES: i32 = 64;
const EPS: f32 = 1e-5;

/// A type, its epsilon, and the largest allowed differences of values and gradients. The unit of
/// the differences is an epsilon times the largest number of the array.
struct Case {
    dtype: Dtype,
    epsilon: f32,
    value: f32,
    gradient: f32,
}

const CASES: [Case; 3] = [
    // Each of the two versions adds FEATURES squares, in a different order, with an error of up to
    // FEATURES / 2 epsilons. The square root halves the error. So the results differ by up to
    // FEATURES / 2 epsilons and the errors of a few roundings. The gradient of x contains the
    // reciprocal square root four times, and a second sum, so its bound is larger.
    Case {
        dtype: Dtype::Float32,
        epsilon: f32::EPSILON,
        value: FEATURES as f32 / 2.0 + 8.0,
        gradient: 4.0 * FEATURES as f32,
    },
    // Both versions add in float32, whose errors are far below an epsilon of 16 bits, and round
    // twice: the normalized number, and its product with the weight. The error of a rounding is
    // half an epsilon, so four roundings give 2 epsilons.
    //
    // The gradient of the weight has seven roundings per version: of the normalized number, which
    // counts twice, of two products and of three additions of rows. All terms have the same sign,
    // so each version has an error of 3.5 epsilons, 7 in all. The gradient of x has four roundings
    // per version, of terms that may be twice as large as their difference: 8 in all.
    Case { dtype: Dtype::Float16, epsilon: 1.0 / 1024.0, value: 2.0, gradient: 8.0 },
    Case { dtype: Dtype::Bfloat16, epsilon: 1.0 / 128.0, value: 2.0, gradient: 8.0 },
];

/// Computes the steps that `ops::rms_norm` documents. The norm is computed in float32, and rounded
/// before it is multiplied by the weight.
fn by_hand(x: &Array, weight: &Array) -> Result<Array> {
    let wide = x.astype(Dtype::Float32)?;
    let rstd = (wide.square()?.mean_keepdims(-1)? + EPS)?.rsqrt()?;
    (wide * rstd)?.astype(x.dtype())? * weight
}

fn by_primitive(x: &Array, weight: &Array) -> Result<Array> {
    ops::rms_norm(x, Some(weight), EPS)
}

/// Differentiates half the sum of squares of the norm, in float32. The cotangent of the norm is
/// then the norm itself.
fn gradients(
    norm: fn(&Array, &Array) -> Result<Array>,
    x: &Array,
    weight: &Array,
) -> Result<(Array, Array)> {
    transforms::grad(
        |(x, weight)| norm(&x, &weight)?.astype(Dtype::Float32)?.square()?.sum(..)? * 0.5,
        (x, weight),
    )
}

/// Returns the largest difference, in units of an epsilon times the largest number of `b`.
fn distance(a: &Array, b: &Array, epsilon: f32) -> Result<f32> {
    let (a, b) = (a.astype(Dtype::Float32)?, b.astype(Dtype::Float32)?);
    let largest = b.abs()?.max(..)?.item::<f32>()?;
    Ok((a - b)?.abs()?.max(..)?.item::<f32>()? / (epsilon * largest))
}

fn main() -> Result<()> {
    let key = random::key(7)?;
    let x = random::normal::<f32>((ROWS, FEATURES), Some(&key))?;
    let weight = random::uniform::<f32>(0.5, 1.5, FEATURES, Some(&key))?;
    for Case { dtype, epsilon, value, gradient } in CASES {
        let (x, weight) = (x.astype(dtype)?, weight.astype(dtype)?);
        let y = by_hand(&x, &weight)?;
        assert_eq!((y.shape(), y.dtype()), (x.shape(), dtype));
        let off = distance(&by_primitive(&x, &weight)?, &y, epsilon)?;

        let (dx, dw) = gradients(by_primitive, &x, &weight)?;
        let (dx_hand, dw_hand) = gradients(by_hand, &x, &weight)?;
        assert_eq!((dx.dtype(), dw.dtype()), (dtype, dtype));
        let off_x = distance(&dx, &dx_hand, epsilon)?;
        let off_w = distance(&dw, &dw_hand, epsilon)?;

        println!(
            "{dtype}: off by {off:.2} of {value} epsilons; gradients by {off_x:.2} and {off_w:.2} of {gradient}"
        );
        assert!(off <= value, "{dtype}: values");
        assert!(off_x <= gradient && off_w <= gradient, "{dtype}: gradients");
    }
    Ok(())
}
