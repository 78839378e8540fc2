//! Draws calls of MLX's general ops, which are methods of arrays.

use mlx_primitives::{Array, Dtype, Result, concatenate, select, stack, step};

use super::Call;
use crate::arrays::Draw;

type Unary = fn(&Array) -> Result<Array>;
type Binary = fn(&Array, &Array) -> Result<Array>;
type Reduction = fn(&Array, &[i32], bool) -> Result<Array>;

const UNARY: [Unary; 18] = [
    Array::abs,
    Array::cos,
    Array::erf,
    Array::exp,
    Array::is_nan,
    Array::log,
    Array::logical_not,
    Array::negative,
    Array::reciprocal,
    Array::rsqrt,
    Array::sigmoid,
    Array::sin,
    Array::sqrt,
    Array::square,
    Array::tanh,
    Array::t,
    Array::contiguous,
    Array::stop_gradient,
];

const BINARY: [Binary; 15] = [
    |a, b| a.add(b),
    |a, b| a.divide(b),
    |a, b| a.equal(b),
    |a, b| a.greater(b),
    |a, b| a.greater_equal(b),
    |a, b| a.less(b),
    |a, b| a.less_equal(b),
    |a, b| a.logical_and(b),
    |a, b| a.logical_or(b),
    |a, b| a.maximum(b),
    |a, b| a.minimum(b),
    |a, b| a.multiply(b),
    |a, b| a.not_equal(b),
    |a, b| a.power(b),
    |a, b| a.subtract(b),
];

const REDUCTIONS: [Reduction; 8] = [
    |x, axes, keep| if keep { x.all_keepdims(axes) } else { x.all(axes) },
    |x, axes, keep| if keep { x.any_keepdims(axes) } else { x.any(axes) },
    |x, axes, keep| if keep { x.logsumexp_keepdims(axes) } else { x.logsumexp(axes) },
    |x, axes, keep| if keep { x.max_keepdims(axes) } else { x.max(axes) },
    |x, axes, keep| if keep { x.mean_keepdims(axes) } else { x.mean(axes) },
    |x, axes, keep| if keep { x.min_keepdims(axes) } else { x.min(axes) },
    |x, axes, keep| if keep { x.sum_keepdims(axes) } else { x.sum(axes) },
    |x, axes, keep| if keep { x.var_keepdims(axes) } else { x.var(axes) },
];

pub const GENERAL: &[Call] = &[
    ("a function of elements", |d| {
        let (x, f) = (any(d, 0..=4)?, *d.one(&UNARY));
        Ok(vec![f(&x)?])
    }),
    ("a function of two elements", |d| {
        let (shape, dtype, f) = (d.shape(0..=4), d.dtype(), *d.one(&BINARY));
        let narrow = d.narrower(&shape);
        let other = if d.rng.bool() { dtype } else { d.dtype() };
        Ok(vec![f(&d.array(&shape, dtype)?, &d.array(&narrow, other)?)?])
    }),
    ("a reduction", |d| {
        let (x, f, keepdims) = (any(d, 0..=4)?, *d.one(&REDUCTIONS), d.rng.bool());
        Ok(vec![f(&x, &axes(d, &x), keepdims)?])
    }),
    ("a product of elements", |d| {
        // A partial product may overflow or underflow in one order of multiplication and not in
        // another. So use numbers of any magnitude, because then the results are not compared.
        d.wild = true;
        let (x, keepdims) = (any(d, 0..=4)?, d.rng.bool());
        let axes = axes(d, &x);
        Ok(vec![if keepdims { x.prod_keepdims(axes)? } else { x.prod(axes)? }])
    }),
    ("an order along an axis", |d| {
        let x = any(d, 1..=3)?;
        let axis = d.axis(x.ndim());
        let result = match d.rng.u8(..4) {
            0 if d.rng.bool() => x.argmax_keepdims(axis),
            0 => x.argmax(axis),
            1 => x.sort(axis),
            2 => x.cumsum(axis),
            // Equal elements may come in any order, so sort the indices.
            _ => x.argsort(axis)?.sort(axis),
        };
        Ok(vec![result?])
    }),
    ("a product of matrices", |d| {
        let (m, n, k, dtype) = (d.dim(), d.dim(), d.dim(), d.floating());
        let batch = d.shape(0..=1);
        let (a, b) = ([&batch[..], &[m, k]].concat(), [k, n]);
        Ok(vec![d.array(&a, dtype)?.matmul(&d.array(&b, dtype)?)?])
    }),
    ("another shape", |d| {
        let x = any(d, 0..=4)?;
        let mut shape = d.shape(0..=4);
        if d.rng.bool() {
            shape = x.shape().to_vec();
            d.rng.shuffle(&mut shape);
        }
        let whole = shape.clone();
        if let Some(dim) = shape.first_mut() {
            *dim = if d.rng.bool() { -1 } else { d.int(*dim) };
        }
        let axes: Vec<i32> = (0..d.rng.usize(..4)).map(|_| d.axis(x.ndim())).collect();
        Ok(vec![match d.rng.u8(..5) {
            0 => x.reshape(&shape)?,
            1 => x.broadcast_to(&whole)?,
            2 => x.transpose(&axes)?,
            3 => x.expand_dims(&axes)?,
            _ => x.squeeze(&axes)?,
        }])
    }),
    ("a slice", |d| {
        let x = any(d, 1..=4)?;
        let axis = d.axis(x.ndim());
        let dim = x.dim(axis)?;
        let mut bound = || d.int(0).wrapping_add(d.rng.i32(-dim - 2..dim + 2));
        let (start, stop) = (bound(), bound());
        let every = d.rng.i32(-3..4);
        let every = d.int(every);
        Ok(vec![match d.rng.u8(..4) {
            0 => x.slice_axis(axis, step(start..stop, every))?,
            1 => x.slice_axis(axis, start..)?,
            2 => x.slice_axis(axis, step(.., every))?,
            _ => x.slice_axis(axis, start..stop)?,
        }])
    }),
    ("an update of a slice", |d| {
        let (shape, dtype) = (d.shape(1..=3), d.dtype());
        let (x, dim) = (d.array(&shape, dtype)?, shape[0]);
        let start = d.rng.i32(0..=dim);
        let stop = d.rng.i32(start..=dim);
        let mut part = shape.clone();
        part[0] = stop - start;
        let part = d.narrower(&part);
        let update = d.array(&part, dtype)?;
        Ok(vec![x.slice_update(d.int(start)..d.int(stop), &update)?])
    }),
    ("elements at indices", |d| {
        let x = any(d, 1..=3)?;
        let axis = d.axis(x.ndim());
        let dim = x.dim(axis)?;
        let kind = *d.one(&[Dtype::Int32, Dtype::Uint32, Dtype::Int8, Dtype::Int64, Dtype::Uint64]);
        if d.rng.bool() {
            let shape = d.shape(0..=2);
            return Ok(vec![x.take(&d.indices(&shape, -dim, dim, kind)?, axis)?]);
        }
        let mut shape = x.shape().to_vec();
        let at = (axis + if axis < 0 { shape.len() as i32 } else { 0 }) as usize;
        if d.rng.bool() {
            shape[at] = d.rng.i32(1..6);
            return Ok(vec![x.take_along_axis(&d.indices(&shape, -dim, dim, kind)?, axis)?]);
        }
        // With several indices per row, the order of writes to the same element would be
        // unspecified.
        shape[at] = 1;
        let (indices, values) = (d.indices(&shape, -dim, dim, kind)?, d.array(&shape, x.dtype())?);
        Ok(vec![x.put_along_axis(&indices, &values, axis)?])
    }),
    ("arrays put together", |d| {
        let (shape, dtype) = (d.shape(0..=3), d.dtype());
        let axis = d.axis(shape.len());
        let arrays: Vec<Array> =
            (0..d.rng.usize(..4)).map(|_| d.array(&shape, dtype)).collect::<Result<_>>()?;
        let arrays: Vec<&Array> = arrays.iter().collect();
        Ok(vec![match d.rng.bool() {
            true => concatenate(&arrays, axis)?,
            false => stack(&arrays, axis)?,
        }])
    }),
    ("a choice", |d| {
        let (shape, dtype) = (d.shape(0..=3), d.dtype());
        let (a, b) = (d.narrower(&shape), d.narrower(&shape));
        let condition = d.array(&shape, Dtype::Bool)?;
        Ok(vec![select(&condition, &d.array(&a, dtype)?, &d.array(&b, dtype)?)?])
    }),
    ("another type", |d| {
        // If a type cannot hold a number, the result of a conversion is unspecified, so draw small
        // numbers.
        d.wild = false;
        let (x, dtype) = (any(d, 0..=3)?.abs()?, d.dtype());
        Ok(vec![x.astype(dtype)?])
    }),
];

/// Draws some axes of an array in any order. Sometimes one of them does not exist.
fn axes(d: &mut Draw, x: &Array) -> Vec<i32> {
    let mut axes: Vec<i32> = (0..x.ndim() as i32).collect();
    d.rng.shuffle(&mut axes);
    axes.truncate(d.rng.usize(..=axes.len()));
    axes.iter_mut().for_each(|axis| *axis = d.int(*axis));
    axes
}

fn any(d: &mut Draw, ranks: std::ops::RangeInclusive<usize>) -> Result<Array> {
    let (shape, dtype) = (d.shape(ranks), d.dtype());
    d.array(&shape, dtype)
}
