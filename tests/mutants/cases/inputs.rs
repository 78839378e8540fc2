//! Inputs that make a wrong element, a wrong bound or a wrong order change the result.

use mlx_primitives::{Array, Result};

fn count(shape: &[i32]) -> usize {
    shape.iter().map(|&dim| dim as usize).product()
}

/// Numbers from -2.001 to 1.999. They are not zero, and adjacent ones differ. `seed` shifts the
/// sequence.
pub fn wave(shape: &[i32], seed: usize) -> Result<Array> {
    let value = |i: usize| (((i + 31 * seed) * 7919 + 13) % 1009) as f32 / 252.0 - 2.001;
    let values: Vec<f32> = (0..count(shape)).map(value).collect();
    Array::from_slice(&values, shape)
}

/// Rows of seven kinds: all numbers are far below zero; a large maximum in the middle; a large
/// maximum at the end; every third number is -inf; the first half is -inf; a wide range; only -inf.
pub fn logits(shape: &[i32]) -> Result<Array> {
    let axis = *shape.last().unwrap_or(&1) as usize;
    let x = wave(shape, 0)?.to_vec::<f32>()?;
    let masked = f32::NEG_INFINITY;
    let logit = |(at, x): (usize, f32)| {
        let (row, i) = (at / axis, at % axis);
        match (row + axis) % 7 {
            0 => x - 200.0,
            1 if i == axis / 2 => 110.0,
            5 if i + 1 == axis => 110.0,
            1 | 5 => x,
            2 if i % 3 == 1 => masked,
            2 => x + 20.0,
            3 if i < axis / 2 => masked,
            3 => x,
            4 => x * 8.0 - if i % 4 == 3 { 150.0 } else { 0.0 },
            _ => masked,
        }
    };
    let values: Vec<f32> = x.into_iter().enumerate().map(logit).collect();
    Array::from_slice(&values, shape)
}
