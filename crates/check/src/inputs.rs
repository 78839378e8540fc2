//! Inputs of an op, both as arrays and as numbers in `f64` for the reference.

use half::{bf16, f16};

use mlx_primitives::Dtype;
use mlx_primitives::{Array, stack, step};
use mlx_primitives::{Error, Result};

/// A shape and its elements in `f64`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// The length of each dimension.
    pub shape: Vec<usize>,
    /// The elements, in row-major order.
    pub values: Vec<f64>,
}

impl Tensor {
    /// Makes a tensor from a shape and its elements in row-major order.
    pub fn new(shape: impl Into<Vec<usize>>, values: impl Into<Vec<f64>>) -> Self {
        Self { shape: shape.into(), values: values.into() }
    }

    /// Applies `f` to each element.
    pub fn map(&self, f: impl Fn(f64) -> f64) -> Self {
        Self::new(self.shape.clone(), self.values.iter().map(|&x| f(x)).collect::<Vec<_>>())
    }

    /// Applies `f` to each row along the last axis and returns the results, without that axis. A
    /// scalar counts as a row of one element.
    pub fn map_rows(&self, f: impl Fn(&[f64]) -> f64) -> Self {
        let (axis, rows) = match self.shape.split_last() {
            Some((&axis, rows)) => (axis, rows),
            None => (1, &[][..]),
        };
        let count: usize = rows.iter().product();
        let row = |i: usize| f(self.values.get(i * axis..(i + 1) * axis).unwrap_or_default());
        Self::new(rows, (0..count).map(row).collect::<Vec<_>>())
    }

    /// Returns the elements of an array. Types other than int32 are first converted to float32.
    /// True becomes 1.
    ///
    /// # Errors
    ///
    /// Returns an error if the array cannot be converted or evaluated.
    pub fn of(array: &Array) -> Result<Self> {
        let shape: Vec<usize> = array.shape().iter().map(|&dim| dim as usize).collect();
        let values: Vec<f64> = match array.dtype() {
            Dtype::Int32 => array.to_vec::<i32>()?.into_iter().map(f64::from).collect(),
            _ => {
                let values = array.astype(Dtype::Float32)?.to_vec::<f32>()?;
                values.into_iter().map(f64::from).collect()
            }
        };
        Ok(Self::new(shape, values))
    }

    /// Makes an array of the elements. Rounds them to a floating type, truncates them to int32, or
    /// makes them true if they are not 0.
    ///
    /// # Errors
    ///
    /// Returns an error if the type is not float32, float16, bfloat16, int32 or bool, or if the
    /// number of elements does not fit the shape.
    pub fn array(&self, dtype: Dtype) -> Result<Array> {
        let shape: Vec<i32> = self.shape.iter().map(|&dim| dim as i32).collect();
        let values = &self.values;
        match dtype {
            Dtype::Float32 => Array::from_slice(&collect(values, |v| v as f32), &shape),
            Dtype::Float16 => Array::from_slice(&collect(values, f16::from_f64), &shape),
            Dtype::Bfloat16 => Array::from_slice(&collect(values, bf16::from_f64), &shape),
            Dtype::Int32 => Array::from_slice(&collect(values, |v| v as i32), &shape),
            Dtype::Bool => Array::from_slice(&collect(values, |v| v != 0.0), &shape),
            other => Err(Error::argument(
                "conformance",
                format_args!("float32, float16, bfloat16, int32 or bool, got {other}"),
            )),
        }
    }

    /// Returns random elements that are uniformly distributed in the input's range. Equal seeds
    /// give equal elements.
    pub(super) fn random(shape: &[i32], input: Input, seed: u64) -> Self {
        let (low, high) = match input {
            Input::Float(low, high) | Input::Float32(low, high) => (low, high),
            Input::Integer(low, high) => (f64::from(low), f64::from(high)),
            Input::Bool => (0.0, 4.0),
        };
        let shape: Vec<usize> = shape.iter().map(|&dim| dim.max(0) as usize).collect();
        let count = shape.iter().product();
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
        let mut next = || {
            // splitmix64
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
        };
        let held = |value: f64| match input {
            Input::Float(..) | Input::Float32(..) => value,
            Input::Integer(..) => value.floor(),
            Input::Bool => f64::from(u8::from(value >= 1.0)),
        };
        let values: Vec<f64> = (0..count).map(|_| held(low + (high - low) * next())).collect();
        Self::new(shape, values)
    }
}

/// The kind of an input of an op.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Input {
    /// Floats of the type that is checked, between the two numbers. The checks of derivatives and
    /// of extreme numbers include this input.
    Float(f64, f64),
    /// Floats of type float32, whatever type is checked, between the two numbers. The checks of
    /// derivatives and of extreme numbers leave this input out.
    Float32(f64, f64),
    /// Integers of type int32, from the first number up to, but not including, the second number.
    Integer(i32, i32),
    /// Random bools. Three out of four are true.
    Bool,
}

impl Input {
    pub(super) fn is_differentiable(self) -> bool {
        matches!(self, Self::Float(..))
    }

    /// Returns the type of the input's arrays in a check of `dtype`.
    pub(super) fn dtype(self, dtype: Dtype) -> Dtype {
        match self {
            Self::Float(..) => dtype,
            Self::Float32(..) => Dtype::Float32,
            Self::Integer(..) => Dtype::Int32,
            Self::Bool => Dtype::Bool,
        }
    }
}

fn collect<T>(values: &[f64], convert: impl Fn(f64) -> T) -> Vec<T> {
    values.iter().map(|&value| convert(value)).collect()
}

/// Returns the distance from 1 to the next larger number of the type.
pub(super) fn epsilon(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::Float16 => 2f64.powi(-10),
        Dtype::Bfloat16 => 2f64.powi(-7),
        _ => f64::from(f32::EPSILON),
    }
}

pub(super) fn largest(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::Float16 => f16::MAX.to_f64(),
        Dtype::Bfloat16 => bf16::MAX.to_f64(),
        _ => f64::from(f32::MAX),
    }
}

/// Returns the extreme numbers of a type, with their names.
pub(super) fn extremes(dtype: Dtype) -> [(&'static str, f64); 9] {
    let subnormal = match dtype {
        Dtype::Float16 => f16::MIN_POSITIVE_SUBNORMAL.to_f64(),
        Dtype::Bfloat16 => bf16::MIN_POSITIVE_SUBNORMAL.to_f64(),
        _ => f64::from(f32::from_bits(1)),
    };
    [
        ("0", 0.0),
        ("-0", -0.0),
        ("a subnormal", subnormal),
        ("a negative subnormal", -subnormal),
        ("the largest", largest(dtype)),
        ("the lowest", -largest(dtype)),
        ("inf", f64::INFINITY),
        ("-inf", f64::NEG_INFINITY),
        ("nan", f64::NAN),
    ]
}

/// The memory layout of an input's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrangement {
    RowContiguous,
    Transposed,
    Stepped,
    Reversed,
    Offset,
    ColumnMajor,
    Padded,
    Squeezed,
    Broadcast,
    BroadcastLast,
}

impl Arrangement {
    pub(super) const ALL: [Self; 10] = [
        Self::RowContiguous,
        Self::Transposed,
        Self::Stepped,
        Self::Reversed,
        Self::Offset,
        Self::ColumnMajor,
        Self::Padded,
        Self::Squeezed,
        Self::Broadcast,
        Self::BroadcastLast,
    ];

    /// Returns a view with the array's values in this arrangement. But `Broadcast` and
    /// `BroadcastLast` repeat the first value of an axis.
    pub(super) fn of(self, x: &Array) -> Result<Array> {
        let rank = x.ndim();
        if rank == 0 || x.size() == 0 {
            return Ok(x.clone());
        }
        // `Stepped` and `Squeezed` fill the gaps between the elements with other values. The op
        // must not read these gaps.
        let other = || if x.dtype() == Dtype::Bool { x.logical_not() } else { x.negative() };
        match self {
            Self::RowContiguous => Ok(x.clone()),
            Self::Transposed if rank < 2 => Ok(x.clone()),
            Self::Transposed => x.t()?.contiguous()?.t(),
            Self::Stepped => {
                let pairs = stack(&[x, &other()?], rank as i32)?.contiguous()?;
                pairs.slice_axis(-1, 0..1)?.squeeze([-1])
            }
            Self::Reversed => {
                let all = 0..rank as i32;
                let reversed =
                    |x: Array| all.clone().try_fold(x, |x, i| x.slice_axis(i, step(.., -1)));
                reversed(reversed(x.clone())?.contiguous()?)
            }
            Self::Offset => {
                let more = mlx_primitives::concatenate(&[x, x], 0)?.contiguous()?;
                more.slice_axis(0, x.shape()[0]..2 * x.shape()[0])
            }
            Self::ColumnMajor => {
                let axes: Vec<i32> = (0..rank as i32).rev().collect();
                x.transpose(&axes)?.contiguous()?.transpose(&axes)
            }
            Self::Padded => {
                let more = mlx_primitives::concatenate(&[x, x], -1)?.contiguous()?;
                more.slice_axis(-1, 0..x.dim(-1)?)
            }
            Self::Squeezed => {
                let pairs = stack(&[x, &other()?], rank as i32 - 1)?.contiguous()?;
                pairs.slice_axis(-2, 0..1)?.squeeze([-2])?.expand_dims([0])?.squeeze([0])
            }
            Self::BroadcastLast => x.slice_axis(-1, 0..1)?.contiguous()?.broadcast_to(x.shape()),
            Self::Broadcast => x.slice_axis(0, 0..1)?.contiguous()?.broadcast_to(x.shape()),
        }
    }
}
