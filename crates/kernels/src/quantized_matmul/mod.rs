//! `x · Wᵀ` with W in MLX's packed layouts. Weights are read once, in place, and decoded in
//! registers. The scale of a group multiplies its part of the sum, and its bias the sum of its
//! inputs.

#[cfg(target_arch = "x86_64")]
mod avx512bf16;
mod columns;
mod digits;
mod dot;
mod finish;
mod format;
pub mod int8;
mod order;
mod prefill;
mod prepare;
#[cfg(target_arch = "x86_64")]
mod unpack;

use std::marker::PhantomData;
use std::ops::Range;

use super::Machine;
use super::element::{Element, Float, with_element};
use super::simd::{F32x16, Kernel, LANES};
use columns::Columns;
use finish::Finish;
use format::{Affine, Floats, Format};

/// How weights are packed, like MLX's `mode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mode {
    /// `scale * q + bias`, with q of 2, 3, 4, 5, 6 or 8 bits.
    Affine,
    /// `2^(e - 127) * q`, with q a 4-bit float.
    Mxfp4,
    /// `2^(e - 127) * q`, with q an 8-bit float.
    Mxfp8,
    /// `s * q` with a 4-bit float q and an 8-bit float s.
    Nvfp4,
    /// Not packed: `packed` is `[columns, axis]` of the element type, for a low-rank correction of
    /// plain weights, with one matrix and no norm.
    Plain,
}

/// One packed matrix: `columns` rows of weights, each a column of the result.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Weights {
    /// `axis * bits / 8` bytes for each row.
    pub packed: *const u8,
    /// One scale for each group, of the element type or one byte.
    pub scales: *const u8,
    /// One bias for each group, of the element type; null if the mode has no biases.
    pub biases: *const u8,
    pub columns: usize,
}

/// RMS normalization of x before the product.
#[derive(Clone, Copy)]
pub struct Norm {
    pub weight: *const u8,
    pub eps: f32,
}

/// A low-rank correction of the product, `scale * (x · Aᵀ) · Bᵀ`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LowRank {
    /// `[rank, axis]`.
    pub a: *const u8,
    /// `[columns, rank]`.
    pub b: *const u8,
    pub rank: usize,
    /// Already rounded to the element type.
    pub scale: f32,
}

/// How the columns of the products form the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Join {
    /// One after the other.
    Concatenate,
    /// `silu(first) * second`: both have the same number of columns.
    Swiglu,
}

/// One call. Buffers hold elements of `element` and are aligned to them.
pub struct Call<'a> {
    pub element: Element,
    pub mode: Mode,
    pub bits: u32,
    pub group: usize,
    /// `[rows, axis]`; `axis` is a multiple of `group`, and of 32.
    pub x: *const u8,
    pub rows: usize,
    pub axis: usize,
    pub norm: Option<Norm>,
    pub weights: &'a [Weights],
    pub join: Join,
    /// `[columns of the result]`, or null.
    pub bias: *const u8,
    /// `[rows, columns of the result]`, or null; may be `out`.
    pub residual: *const u8,
    pub low_rank: Option<LowRank>,
    /// Whether many rows of x may be rounded to eight bits, on machines where this is faster.
    pub int8: bool,
    pub out: *mut u8,
}

// SAFETY: the buffers belong to one call: its threads read the same inputs and write columns that
// they divide among themselves.
unsafe impl Sync for Call<'_> {}

impl Call<'_> {
    /// Columns of the result.
    pub fn columns(&self) -> usize {
        match self.join {
            Join::Concatenate => self.weights.iter().map(|weights| weights.columns).sum(),
            Join::Swiglu => self.weights.first().map_or(0, |weights| weights.columns),
        }
    }
}

/// Products accumulate in f32. Results are rounded to the element type where MLX's composition
/// rounds: the normalized x, the product, and each step after it.
///
/// # Safety
/// The buffers hold what the fields say, `out` overlaps nothing except `residual`, which it may be;
/// MLX supports `bits` and `group`.
pub unsafe fn quantized_matmul(call: &Call) {
    // SAFETY: as the caller promises; the kernel runs on this machine.
    unsafe { quantized_matmul_on(Machine::current(), call) }
}

/// Runs `$run` with the format of a call; does nothing if there is no such format.
macro_rules! with_format {
    ($call:expr, $format:ident => $run:expr) => {
        match ($call.mode, $call.bits) {
            (Mode::Affine, 2) => {
                type $format = Affine<2>;
                $run
            }
            (Mode::Affine, 3) => {
                type $format = Affine<3>;
                $run
            }
            (Mode::Affine, 4) => {
                type $format = Affine<4>;
                $run
            }
            (Mode::Affine, 5) => {
                type $format = Affine<5>;
                $run
            }
            (Mode::Affine, 6) => {
                type $format = Affine<6>;
                $run
            }
            (Mode::Affine, 8) => {
                type $format = Affine<8>;
                $run
            }
            (Mode::Mxfp4, _) => {
                type $format = Floats<4, false>;
                $run
            }
            (Mode::Mxfp8, _) => {
                type $format = Floats<8, false>;
                $run
            }
            (Mode::Nvfp4, _) => {
                type $format = Floats<4, true>;
                $run
            }
            _ => {}
        }
    };
}
use with_format;

pub unsafe fn quantized_matmul_on(machine: Machine, call: &Call) {
    if call.axis == 0 || call.rows == 0 {
        return;
    }
    with_element!(call.element, T => {
        if call.rows > FEW_ROWS {
            let int8 = call.int8 && int8::takes::<T>(machine, call);
            // SAFETY: the caller's contract.
            unsafe {
                match int8 {
                    true => int8::run::<T>(machine, call),
                    false => prefill::run::<T>(machine, call),
                }
            }
        } else if call.mode == Mode::Plain {
            // SAFETY: as above.
            unsafe { prefill::run_few_plain::<T>(machine, call) }
        } else {
            // SAFETY: as above.
            with_format!(call, F => unsafe { run::<T, F>(machine, call) })
        }
    })
}

/// The order of prepared inputs: that in which the lanes of a chunk yield their weights, the first
/// of every lane, then the second, and so on.
#[derive(Clone, Copy)]
struct Order {
    lanes: usize,
    /// 4, 8 or 16, or half as many if `half`.
    per_lane: usize,
    /// bf16 patterns instead of f32.
    half: bool,
}

impl Order {
    fn element_bytes(self) -> usize {
        if self.half { 2 } else { 4 }
    }
}

/// The most rows of x that are multiplied by dot products with the rows of weights.
pub const FEW_ROWS: usize = 8;

unsafe fn run<T: Float, F: Format>(machine: Machine, call: &Call) {
    // SAFETY: the caller's contract.
    let finish = unsafe { Finish::<T>::new(machine, call) };
    let finish = &finish;
    if const { digits::support::<T, F>() } && digits::takes(machine, call) {
        // SAFETY: the caller's contract.
        if let Some(prepared) = &unsafe { digits::prepare::<T, F>(machine, call) } {
            return each_range::<F>(machine, call, &|range| {
                let columns = Columns::<T> { call, prepared, finish, range };
                let kernel = InDigits::<T, F> { columns, format: PhantomData };
                // SAFETY: the caller's contract; the ranges of columns are disjoint.
                unsafe { machine.level.run(kernel) };
            });
        }
    }
    let half = T::IS_BF16 && machine.level.dots_bf16();
    let order = if half {
        // Twice as many lanes of sixteen bits, each with half as many weights.
        Order { lanes: 2 * LANES, per_lane: F::PER_LANE / 2, half }
    } else {
        Order { lanes: LANES, per_lane: F::PER_LANE, half }
    };
    // SAFETY: the caller's contract.
    let prepared = &unsafe { prepare::prepare::<T>(machine, call, order) };
    each_range::<F>(machine, call, &|range| {
        // SAFETY: the caller's contract; the ranges of columns are disjoint.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if half {
                let finish = finish.of::<super::element::Bf16>();
                return avx512bf16::run::<F>(Columns { call, prepared, finish, range });
            }
            let columns = Columns::<T> { call, prepared, finish, range };
            machine.level.run(Decoded::<T, F> { columns, format: PhantomData });
        }
    });
}

/// Divides the columns of the result among the threads.
fn each_range<F: Format>(machine: Machine, call: &Call, run: &(dyn Fn(Range<usize>) + Sync)) {
    let products = if call.join == Join::Swiglu { 2 } else { 1 };
    let bytes = products * call.axis * F::BITS as usize / 8;
    // A core reads about twenty bytes per nanosecond; each further row of x costs half the first.
    let work = bytes * (1 + call.rows.div_ceil(2)) / 2 / 2 + 10;
    let columns = call.columns();
    order::follow(machine.pool, call, LANES * work, call.axis * F::BITS as usize / 8);
    machine.pool.for_each(columns.div_ceil(LANES), LANES * work, &|blocks| {
        run(LANES * blocks.start..columns.min(LANES * blocks.end));
    });
}

/// Computes the columns with the body that all levels share.
struct Decoded<'a, T, F> {
    columns: Columns<'a, T>,
    format: PhantomData<F>,
}

impl<T: Float, F: Format> Kernel for Decoded<'_, T, F> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        // SAFETY: the caller's contract.
        unsafe { self.columns.run::<V, dot::Decode<T, F>>() }
    }
}

/// Computes the columns in integers.
struct InDigits<'a, T, F> {
    columns: Columns<'a, T>,
    format: PhantomData<F>,
}

impl<T: Float, F: Format> Kernel for InDigits<'_, T, F> {
    const BF16: bool = true;
    const ONLY_BF16: bool = true;
    const BYTES: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        // SAFETY: the caller's contract.
        unsafe { self.columns.run::<V, digits::Digits<T, F>>() }
    }
}
