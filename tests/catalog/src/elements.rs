//! Rows of the catalog for element-wise ops.

use mlx_primitives_check::{Bound, Conformance, Tensor};
use mlx_primitives::{Array, Result, ops};

use super::inputs::{Checked, simulated, ulp};
use super::reference::{gelu, gelu_tanh, silu};
use super::{broadcast, composed, derivatives_of_ops, exact, Hold};

/// An element-wise function of an input `a` and, if `two` is true, a second input `b`.
#[derive(Clone, Copy)]
struct Activation {
    name: &'static str,
    two: bool,
    op: fn(&Array, &Array) -> Result<Array>,
    of: fn(f64, f64) -> f64,
    /// True if every backend computes the same bits, because the function only adds, multiplies and
    /// compares.
    exact: bool,
}

const fn one(
    name: &'static str,
    op: fn(&Array, &Array) -> Result<Array>,
    of: fn(f64, f64) -> f64,
) -> Activation {
    Activation { name, two: false, op, of, exact: false }
}

const fn two(
    name: &'static str,
    op: fn(&Array, &Array) -> Result<Array>,
    of: fn(f64, f64) -> f64,
) -> Activation {
    Activation { two: true, ..one(name, op, of) }
}

const ACTIVATIONS: [Activation; 9] = [
    Activation { exact: true, ..one("relu", |a, _| ops::relu(a), |a, _| a.max(0.0)) },
    one("silu", |a, _| ops::silu(a), |a, _| silu(a)),
    one("gelu", |a, _| ops::gelu(a), |a, _| gelu(a)),
    one("gelu_tanh", |a, _| ops::gelu_tanh(a), |a, _| gelu_tanh(a)),
    two("swiglu", ops::swiglu, |a, b| silu(a) * b),
    two("geglu", ops::geglu, |a, b| gelu(a) * b),
    two("geglu_tanh", ops::geglu_tanh, |a, b| gelu_tanh(a) * b),
    Activation { exact: true, ..two("add_relu", ops::add_relu, |a, b| (a + b).max(0.0)) },
    Activation { exact: true, ..two("mul_relu", ops::mul_relu, |a, b| (a * b).max(0.0)) },
];

/// Applies `f` to two inputs that are broadcast to each other, or to a single input.
fn each(x: &[Tensor], f: impl Fn(f64, f64) -> f64) -> Tensor {
    let Some(b) = x.get(1) else { return x[0].map(|a| f(a, 1.0)) };
    let rank = x[0].shape.len().max(b.shape.len());
    let long = |t: &Tensor| [vec![1; rank - t.shape.len()], t.shape.clone()].concat();
    let (of_a, of_b) = (long(&x[0]), long(b));
    let shape: Vec<usize> =
        of_a.iter().zip(&of_b).map(|(&a, &b)| if a == 1 { b } else { a }).collect();
    let count = shape.iter().product::<usize>();
    let value =
        |i| f(x[0].values[broadcast(&shape, &of_a, i)], b.values[broadcast(&shape, &of_b, i)]);
    let values: Vec<f64> = (0..count).map(value).collect();
    Tensor::new(shape.clone(), values)
}

/// Checks the activations. The error bound is five ulps. Half of the bound covers five roundings to
/// the type: four of factors up to 1 that multiply `a`, and one of the result. The other half
/// covers the errors of tanh and erf in f32 (1.5e-7 on the CPU) and of constants.
///
/// On the CPU, MLX uses the same polynomials as this crate, except that it calls libm's tanh. On
/// other backends, MLX and this crate are both within this bound of the exact value.
pub(super) fn activations(hold: &Hold<'_>) -> Checked {
    // Numbers at the ends of the ranges in which exponentials, tanh, erf and polynomials are
    // computed. In the simulator, our Metal kernels are compared with MLX's CPU backend. It
    // computes e^-88 as 0, and 0 times infinity is NaN. So functions of two inputs skip `of_exp`
    // there.
    let ends = [0.5, 9.0, 11.5, 17.5, 50.0, 300.0];
    let of_exp = [87.5, 88.5, 104.0];
    for case in ACTIVATIONS {
        let Activation { name, two, op, of, exact: same } = case;
        let one = ends.iter().chain(if two && simulated() { &[] } else { &of_exp[..] });
        let numbers: Vec<f64> = one.flat_map(|&v| [v, -v]).collect();
        let of_b = move |x: &[Array]| Ok(vec![op(&x[0], x.get(1).unwrap_or(&x[0]))?]);
        let row = Conformance::new(name, of_b, move |x| vec![each(x, of)])
            .range(-6.0, 6.0)
            .extremes(&numbers)
            .bounds(|_| Bound::ulps(1.0))
            .errors(move |compared| {
                let dtype = compared.dtype;
                let tanh = name.contains("tanh");
                let bits = compared.peer && (same || !compared.backend.is_metal() && !tanh);
                vec![each(compared.inputs, |a, b| {
                    let reach = a.abs().max(1e-30) * b.abs().max(1.0);
                    if bits { 0.0 } else { 5.0 * ulp(1.0, dtype) * reach }
                })]
            })
            .peer(composed(of_b), move |compared| {
                let tanh = name.contains("tanh");
                let bits = same || !compared.backend.is_metal() && !tanh;
                if bits { Bound::default() } else { Bound::ulps(1.0) }
            })
            .extremes_as_peer()
            .vmap_bounds(exact)
            .derivative_bounds(derivatives_of_ops(2e-5, 18.0));
        let mut row = row;
        let inputs = if two { 2 } else { 1 };
        for shape in [&[][..], &[0], &[1], &[3], &[2, 17], &[1024], &[3, 1, 1031], &[4097]] {
            row = row.sizes(&vec![shape; inputs]);
        }
        row = row.shapes(&vec![&[2, 3, 7][..]; inputs]).shapes(&vec![&[41][..]; inputs]);
        if two {
            row = row.shapes(&[&[2, 1, 7], &[3, 1]]).shapes(&[&[7], &[2, 1, 7]]);
        }
        hold(row)?;
    }
    Ok(())
}

/// Checks `affine`. It rounds the product and the sum to the type, like two separate ops.
pub(super) fn affine(hold: &Hold<'_>) -> Checked {
    let op = |x: &[Array]| Ok(vec![ops::affine(&x[0], &x[1], &x[2])?]);
    let mut row = Conformance::new("affine", op, |x| {
        let products = each(&x[..2], |x, scale| x * scale);
        vec![each(&[products, x[2].clone()], |x, shift| x + shift)]
    })
    .bounds(|_| Bound::ulps(0.51))
    .errors(|compared| {
        let half = if compared.peer { 0.0 } else { ulp(1.0, compared.dtype) / 2.0 };
        vec![each(&compared.inputs[..2], |x, scale| half * (x * scale).abs())]
    })
    .peer(|x| Ok(vec![x[0].multiply(&x[1])?.add(&x[2])?]), exact)
    .extremes_as_peer()
    .vmap_bounds(exact);
    for shape in [&[3, 5][..], &[7, 1], &[0, 4], &[2, 3, 1030], &[300, 4], &[6000]] {
        let vector = &shape[shape.len() - 1..];
        for (scale, shift) in [(vector, vector), (vector, &[]), (&[], vector), (&[], &[])] {
            row = row.sizes(&[shape, scale, shift]);
        }
    }
    row = row.sizes(&[&[], &[], &[]]).shapes(&[&[3, 4, 6], &[6], &[6]]);
    hold(row.shapes(&[&[40], &[40], &[]]).shapes(&[&[2, 5], &[], &[]]))
}
