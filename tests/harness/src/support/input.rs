//! Deterministic inputs in every layout that an array can have.

use mlx_primitives::{Array, Dtype, Result, step};

pub use crate::table::inputs::{FLOATS, data, random};
pub use crate::table::reference_loops::values;

/// Random float32 data.
pub fn random32(shape: &[i32], seed: u64) -> Result<Array> {
    random(shape, Dtype::Float32, seed)
}

/// How the elements of an array are arranged in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    Contiguous,
    /// The last two axes are transposed.
    Transposed,
    /// The axes are in reverse order in memory.
    ColumnMajor,
    /// The array is every second element of a larger array's last axis.
    Stepped,
    /// Along every axis, the elements are in reverse order in memory.
    Reversed,
    /// All slices of the first axis are one slice that is broadcast.
    Broadcast,
    /// Each row is a single element that is broadcast.
    BroadcastLast,
    /// The elements are contiguous, but do not begin at the start of the buffer.
    OffsetView,
    /// There is a gap between the rows.
    Padded,
    /// Two axes of length 1 were removed by squeezing. One of them was a part of a longer axis.
    Squeezed,
}

pub const LAYOUTS: [Layout; 10] = [
    Layout::Contiguous,
    Layout::Transposed,
    Layout::ColumnMajor,
    Layout::Stepped,
    Layout::Reversed,
    Layout::Broadcast,
    Layout::BroadcastLast,
    Layout::OffsetView,
    Layout::Padded,
    Layout::Squeezed,
];

impl Layout {
    /// A lazy view of random data with this layout. The rank must be 2 or more, and no dimension
    /// may be 0.
    pub fn make(self, shape: &[i32], dtype: Dtype, seed: u64) -> Result<Array> {
        let rank = shape.len();
        let last = rank - 1;
        let with = |axis: usize, dim: i32| {
            let mut shape = shape.to_vec();
            shape[axis] = dim;
            shape
        };
        match self {
            Self::Contiguous => random(shape, dtype, seed),
            Self::Transposed => {
                let mut swapped = shape.to_vec();
                swapped.swap(last - 1, last);
                random(&swapped, dtype, seed)?.t()
            }
            Self::ColumnMajor => {
                let reversed: Vec<i32> = shape.iter().rev().copied().collect();
                let axes: Vec<i32> = (0..rank as i32).rev().collect();
                random(&reversed, dtype, seed)?.transpose(&axes)
            }
            Self::Stepped => {
                let n = shape[last];
                random(&with(last, 2 * n), dtype, seed)?.slice_axis(-1, step(1..2 * n, 2))
            }
            Self::Reversed => {
                let mut x = random(shape, dtype, seed)?;
                for axis in 0..rank as i32 {
                    x = x.slice_axis(axis, step(.., -1))?;
                }
                Ok(x)
            }
            Self::Broadcast => random(&with(0, 1), dtype, seed)?.broadcast_to(shape),
            Self::BroadcastLast => random(&with(last, 1), dtype, seed)?.broadcast_to(shape),
            Self::OffsetView => random(&with(0, shape[0] + 2), dtype, seed)?.i(2..),
            Self::Padded => {
                let n = shape[last];
                random(&with(last, n + 5), dtype, seed)?.slice_axis(-1, 3..n + 3)
            }
            Self::Squeezed => {
                let mut wide = shape.to_vec();
                wide.insert(last, 3);
                let x = random(&wide, dtype, seed)?.slice_axis(last as i32, 1..2)?;
                x.squeeze([last as i32])?.expand_dims([0])?.squeeze([0])
            }
        }
    }
}
