#![doc = include_str!("../README.md")]
//!
//! # How it is built
//!
//! A kernel has one body, generic over the element type (`element::Float`) and the vector
//! (`simd::F32x16`). `simd::Level` names an instruction set and runs the body with it, and
//! `pool::Pool` splits the work. These modules are public only for this crate's tests.
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]

#[doc(hidden)]
pub mod activation;
#[doc(hidden)]
pub mod attention;
mod c_api;
#[doc(hidden)]
pub mod copy;
#[doc(hidden)]
pub mod cross_entropy;
#[doc(hidden)]
pub mod element;
#[doc(hidden)]
pub mod fold;
pub mod ggml_blocks;
#[doc(hidden)]
pub mod layer_norm;
#[doc(hidden)]
pub mod linear;
#[doc(hidden)]
pub mod logsumexp;
#[doc(hidden)]
pub mod lora;
#[doc(hidden)]
pub mod masked_softmax;
#[doc(hidden)]
pub mod math;
#[doc(hidden)]
pub mod norm_grad;
#[doc(hidden)]
pub mod output;
#[doc(hidden)]
pub mod pool;
#[doc(hidden)]
pub mod quantize;
#[doc(hidden)]
pub mod quantized_matmul;
#[doc(hidden)]
pub mod reduce;
#[doc(hidden)]
pub mod residual_norm;
#[doc(hidden)]
pub mod rms_norm;
pub mod roofline;
#[doc(hidden)]
pub mod rope;
#[doc(hidden)]
pub mod rope_append;
pub mod rope_append_heads;
mod row_order;
#[doc(hidden)]
pub mod simd;
#[doc(hidden)]
pub mod softmax;
pub mod take_grad;

pub use activation::{
    Activation, AffineShape, Combination, activation, affine, combination, combination_grad,
};
pub use attention::{
    Attention, Backward as AttentionBackward, Mask as AttentionMask, Source, View, attention,
    attention_grad,
};
pub use copy::{CopyCall, copy};
pub use cross_entropy::{Targets, cross_entropy, cross_entropy_grad};
pub use element::Element;
pub use layer_norm::layer_norm;
pub use linear::{LinearCall, linear};
pub use logsumexp::{log_softmax, logsumexp, logsumexp_grad};
pub use lora::{LoraCall, lora};
pub use masked_softmax::{Mask, MaskedSoftmaxShape, masked_softmax, masked_softmax_grad};
pub use norm_grad::{NormGrad, norm_grad};
pub use quantize::{QuantizeShape, TakenRows, dequantize, dequantize_rows, quantize};
pub use quantized_matmul::{
    Call as QuantizedCall, Join, LowRank, Mode, Norm, Weights, quantized_matmul,
};
pub use reduce::{Reduction, reduce, reduce_grad};
pub use residual_norm::{ResidualNorm, residual_norm};
pub use rms_norm::rms_norm;
pub use rope::{Frequencies, RopeShape, rope};
pub use rope_append::{AppendShape, QUERY_POSITIONS, rope_append};
pub use rope_append_heads::rope_heads;
pub use row_order::{FEW_ROWS, RowOrder};
pub use softmax::softmax;
pub use take_grad::take_grad;

pub use pool::MAX_THREADS;
use pool::Pool;
use simd::Level;

/// The instruction set and the threads that run a kernel. The process or a test chooses them.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Machine {
    pub level: Level,
    pub pool: &'static Pool,
}

impl Machine {
    pub fn current() -> Self {
        Self { level: Level::current(), pool: Pool::current() }
    }
}

/// The instruction set in use: `amx`, `avx512vnni`, `avx512bf16`, `avx512`, `avx2vnni`, `avx2`,
/// `i8mm`, `dotprod`, `neon` or `scalar`.
///
/// The environment variable `MLX_PRIMITIVES_SIMD` selects an instruction set. If this machine does
/// not have it, the kernels use the best available one.
pub fn simd_level_name() -> &'static str {
    Level::current().name()
}

/// Whether the instruction set in use multiplies bytes of x with weights of `bits` bits, if x is
/// rounded to eight bits.
pub fn multiplies_bytes(bits: u32) -> bool {
    Level::current().multiplies_bytes(bits)
}

/// Returns the first environment variable whose value cannot be used: its name, the values that it
/// accepts, and its value.
pub fn unusable_variable() -> Option<(&'static str, String, String)> {
    if let Err(text) = Pool::wanted() {
        let expected = format!("1 to {MAX_THREADS} threads");
        return Some(("MLX_PRIMITIVES_THREADS", expected, text));
    }
    let (wanted, known) = (Level::wanted(), Level::available().map(Level::name));
    let known: Vec<_> = known.collect();
    if wanted.is_empty() || known.iter().any(|name| name.eq_ignore_ascii_case(&wanted)) {
        return None;
    }
    let expected = format!("an instruction set of this machine ({})", known.join(", "));
    Some(("MLX_PRIMITIVES_SIMD", expected, wanted))
}

/// The number of threads for a large job; no more of them than the machine has cores take part.
/// [`start_threads`] or the environment variable `MLX_PRIMITIVES_THREADS` sets it. By default it is
/// the number of cores.
pub fn thread_count() -> usize {
    Pool::current().threads()
}

/// Sets the number of threads of [`thread_count`], at most [`MAX_THREADS`], unless a kernel has
/// already run. Returns the resulting number.
pub fn start_threads(threads: usize) -> usize {
    Pool::start(threads).threads()
}

/// Lets the calling thread run parts of kernels, until `done` returns true or no kernel has run for
/// a while.
pub fn lend_thread(done: &dyn Fn() -> bool) {
    Pool::current().lend(done);
}

/// Copies memory on the threads of the kernels' pool.
///
/// # Safety
/// `from` is readable and `to` writable for `bytes`, and they do not overlap.
pub unsafe fn parallel_copy(from: *const u8, to: *mut u8, bytes: usize) {
    const BLOCK: usize = 4096;
    let (from, to) = (Shared(from.cast_mut()), Shared(to));
    Pool::current().for_each(bytes.div_ceil(BLOCK), BLOCK / 8, &|blocks| {
        let start = blocks.start * BLOCK;
        let count = (blocks.end * BLOCK).min(bytes) - start;
        // SAFETY: the ranges are disjoint and within the caller's buffers.
        unsafe { std::ptr::copy_nonoverlapping(from.get().add(start), to.get().add(start), count) }
    });
}

/// Calls `body` with the index of each item and the item, on the threads of the kernels' pool. An
/// item takes about `work` tenths of a nanosecond.
pub fn for_each_item<T: Send>(items: &mut [T], work: usize, body: impl Fn(usize, &mut T) + Sync) {
    let start = Shared(items.as_mut_ptr());
    Pool::current().for_each(items.len(), work, &|range| {
        for index in range {
            // SAFETY: the ranges are disjoint and within `items`, which is borrowed until all calls
            // end.
            body(index, unsafe { &mut *start.get().add(index) });
        }
    });
}

/// The address of a buffer that is passed to several threads, which access disjoint parts of it.
struct Shared<T>(*mut T);

impl<T> Shared<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: this is only an address; each kernel states how its threads divide the buffer.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}
