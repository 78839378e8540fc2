//! Draws arrays with random shapes, types, numbers and strides.

use std::ops::RangeInclusive;

use fastrand::Rng;
use mlx_primitives::{Array, Dtype, Index, Result, step};
use mlx_primitives_catalog::ops::{Run, of_elements};

use super::mutation::{once_in, one};

pub const FLOATS: [Dtype; 3] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];

/// The largest number of elements of an array.
const MOST: i32 = 4096;

/// Draws arguments. Two generators in the same state draw equal arguments, but one may draw strided
/// views and the other contiguous copies.
pub struct Draw {
    pub rng: Rng,
    /// If true, arrays are row-contiguous, and only the op holds a handle of them.
    plain: bool,
    /// If true, numbers may have any magnitude, or be infinite or NaN.
    pub wild: bool,
    /// On average, one in this many arguments is invalid for its op.
    pub wrong: u32,
    /// Some of the drawn arrays, with the bits that they had when they were drawn.
    held: Vec<(Array, Vec<u32>)>,
}

impl Draw {
    pub fn new(mut rng: Rng, plain: bool) -> Self {
        let wild = once_in(&mut rng, 4);
        let wrong = *one(&mut rng, &[4, 20, 20, 1000]);
        Self { rng, plain, wild, wrong, held: Vec::new() }
    }

    pub fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        one(&mut self.rng, of)
    }

    /// Draws an elementwise op with this number of inputs.
    pub fn of_elements(&mut self, inputs: usize) -> Run {
        let all: Vec<_> = of_elements(inputs).collect();
        self.one(&all).run
    }

    fn is_wrong(&mut self) -> bool {
        once_in(&mut self.rng, self.wrong)
    }

    /// Returns the given number, or sometimes an invalid one.
    pub fn int(&mut self, right: i32) -> i32 {
        let near = right.saturating_add(self.rng.i32(-2..3));
        let edges = [0, -1, 1, 64, 1 << 20, i32::MAX, i32::MAX - 1, i32::MIN, i32::MIN + 1, near];
        if self.is_wrong() { *self.one(&edges) } else { right }
    }

    pub fn float(&mut self, right: f32) -> f32 {
        let edges = [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::MAX, f32::MIN_POSITIVE, 1e-40];
        if self.is_wrong() { *self.one(&edges) } else { right }
    }

    /// Draws an axis of an array of this rank. It counts from the start or from the end.
    pub fn axis(&mut self, rank: usize) -> i32 {
        let rank = rank as i32;
        let axis = self.rng.i32(-rank..rank.max(1));
        self.int(axis)
    }

    pub fn dtype(&mut self) -> Dtype {
        if self.rng.bool() { self.floating() } else { *self.one(Dtype::ALL) }
    }

    pub fn floating(&mut self) -> Dtype {
        *self.one(&FLOATS)
    }

    /// Returns the given type, or sometimes another one.
    pub fn typed(&mut self, right: Dtype) -> Dtype {
        if self.is_wrong() { *self.one(Dtype::ALL) } else { right }
    }

    pub fn dim(&mut self) -> i32 {
        *self.one(&[1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65, 0])
    }

    pub fn shape(&mut self, ranks: RangeInclusive<usize>) -> Vec<i32> {
        let rank = self.rng.usize(ranks);
        let mut shape: Vec<i32> = (0..rank).map(|_| self.dim()).collect();
        while shape.iter().map(|dim| dim.max(&1)).product::<i32>() > MOST {
            let axis = self.rng.usize(..rank);
            shape[axis] = 1 + shape[axis] / 3;
        }
        shape
    }

    /// Draws a shape that broadcasts to the given one.
    pub fn narrower(&mut self, shape: &[i32]) -> Vec<i32> {
        let skipped = self.rng.usize(..=shape.len());
        let skipped = if self.rng.bool() { 0 } else { skipped };
        let mut narrow = shape[skipped..].to_vec();
        narrow.iter_mut().for_each(|dim| *dim = if once_in(&mut self.rng, 4) { 1 } else { *dim });
        narrow
    }

    /// Returns the given shape, or sometimes a wrong one.
    fn bent(&mut self, shape: &[i32]) -> Vec<i32> {
        let mut shape = shape.to_vec();
        if self.is_wrong() {
            match self.rng.u8(..4) {
                0 => shape.push(1),
                1 => drop(shape.pop()),
                2 => shape.reverse(),
                _ => {
                    if let Some(last) = shape.last_mut() {
                        *last += 1;
                    }
                }
            }
        }
        shape
    }

    /// Draws an array with any strides. It usually has this shape and type.
    pub fn array(&mut self, shape: &[i32], dtype: Dtype) -> Result<Array> {
        let (shape, dtype) = (self.bent(shape), self.typed(dtype));
        let view = self.view(&shape, dtype)?;
        self.given(view)
    }

    /// Draws integers in the range `from..to`, or sometimes outside it.
    pub fn indices(&mut self, shape: &[i32], from: i32, to: i32, dtype: Dtype) -> Result<Array> {
        let shape = self.bent(shape);
        let count = shape.iter().product::<i32>();
        let (from, to) =
            if self.is_wrong() { (-100_000, 100_000) } else { (from, to.max(from + 1)) };
        let numbers: Vec<i32> = (0..count).map(|_| self.rng.i32(from..to)).collect();
        let numbers = Array::from_slice(&numbers, &shape)?.astype(self.typed(dtype))?;
        self.given(numbers)
    }

    /// Returns the array that the op receives: the view, or a contiguous copy. May record the
    /// view's bits.
    fn given(&mut self, view: Array) -> Result<Array> {
        let hold = self.rng.bool();
        if self.plain {
            let copy = view.contiguous()?;
            copy.eval()?;
            return Ok(copy);
        }
        if hold {
            self.held.push((view.clone(), bits(&view)?));
        }
        Ok(view)
    }

    /// Checks that ops have not changed the recorded arrays.
    pub fn check_held(&self) {
        for (array, before) in &self.held {
            let after = bits(array).expect("an input can be read again");
            assert!(*before == after, "an input of shape {:?} was written", array.shape());
        }
    }

    /// Draws a view of a larger buffer. Its axes may be permuted, strided, reversed or broadcast.
    fn view(&mut self, shape: &[i32], dtype: Dtype) -> Result<Array> {
        let rank = shape.len();
        let mut order: Vec<i32> = (0..rank as i32).collect();
        if self.rng.bool() {
            self.rng.shuffle(&mut order);
        }
        // For each axis, the range of indices and the step that the view selects.
        let mut taken: Vec<Index> = Vec::new();
        let mut lengths = Vec::new();
        for &dim in shape {
            let (before, after) = (self.rng.i32(0..2), self.rng.i32(0..2));
            let every = if once_in(&mut self.rng, 3) { self.rng.i32(1..3) } else { 1 };
            let (index, length) = match self.rng.u8(..6) {
                0 if dim > 0 => ((0..1).into(), 1), // to be broadcast
                1 => {
                    let length = before + every * dim + after;
                    let start = before + every * dim - 1;
                    let stop = start - every * dim;
                    (step(start..if stop < 0 { -length - 1 } else { stop }, -every), length)
                }
                2 | 3 => (step(before..before + every * dim, every), before + every * dim + after),
                _ => ((0..dim).into(), dim),
            };
            taken.push(index);
            lengths.push(length);
        }
        let base: Vec<i32> = order.iter().map(|&axis| lengths[axis as usize]).collect();
        let mut back = vec![0; rank];
        order.iter().enumerate().for_each(|(at, &axis)| back[axis as usize] = at as i32);
        let mut x = self.numbers(&base, dtype)?;
        if rank > 0 {
            x = x.transpose(&back)?;
        }
        if self.rng.bool() {
            x.eval()?;
        }
        let x = x.i(&taken[..])?.broadcast_to(shape)?;
        if self.rng.bool() {
            x.eval()?;
        }
        Ok(x)
    }

    fn numbers(&mut self, shape: &[i32], dtype: Dtype) -> Result<Array> {
        let count = shape.iter().product::<i32>() as usize;
        if dtype.is_floating() || dtype == Dtype::Complex64 {
            let edges =
                [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38, -1e38, 0.0, -0.0, 1e-40, 7e4];
            let number = |draw: &mut Self| match draw.wild && once_in(&mut draw.rng, 8) {
                true => *draw.one(&edges),
                false => draw.rng.f32() * 6.0 - 3.0,
            };
            let numbers: Vec<f32> = (0..count).map(|_| number(self)).collect();
            return Array::from_slice(&numbers, shape)?.astype(dtype);
        }
        let number = |draw: &mut Self| match draw.wild && once_in(&mut draw.rng, 8) {
            true => draw.rng.i64(..),
            false => draw.rng.i64(0..5),
        };
        let numbers: Vec<i64> = (0..count).map(|_| number(self)).collect();
        Array::from_slice(&numbers, shape)?.astype(dtype)
    }
}

/// The bits of the elements as float32. All NaNs get the same bits.
fn bits(x: &Array) -> Result<Vec<u32>> {
    Ok(numbers(x)?.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect())
}

/// The elements as float32.
pub fn numbers(x: &Array) -> Result<Vec<f32>> {
    x.astype(Dtype::Float32)?.to_vec::<f32>()
}
