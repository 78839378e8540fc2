//! The operations that measure the machine's roofline, for benchmarks. They copy, read and fill
//! memory, and multiply registers, with the threads and vectors of the kernels. The caller measures
//! the time.

use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::simd::{F32x16, Kernel, LANES, fence, prefetch};
use super::{Machine, Shared, parallel_copy};

/// Bytes of an item of a job.
const BLOCK: usize = 4096;
/// How far ahead of the loads memory is prefetched, in bytes.
const AHEAD: usize = 4096;
/// Multiply-adds of each sum in an item of a job.
const STEPS: usize = 1024;

/// Copies the bytes that fit both slices, past the caches if there are more than the caches hold.
/// This bounds kernels that read their input once and write their output once.
pub fn copy(from: &[u8], to: &mut [u8]) {
    const CACHES: usize = 32 << 20;
    let bytes = from.len().min(to.len());
    let (from, start) = (Shared(from.as_ptr().cast_mut()), Shared(to.as_mut_ptr()));
    if bytes < CACHES {
        // SAFETY: both slices hold `bytes` bytes, and a unique borrow overlaps no other.
        unsafe { parallel_copy(from.get(), start.get(), bytes) };
    } else {
        let level = Machine::current().level;
        for_blocks(bytes, &|part| {
            // SAFETY: the parts are disjoint and within both slices; the level is this machine's.
            unsafe {
                let (from, to) = (from.get().add(part.start), start.get().add(part.start));
                level.run(Stream { from, to, bytes: part.len() });
            }
        });
    }
    black_box(to);
}

struct Stream {
    from: *const u8,
    to: *mut u8,
    bytes: usize,
}

impl Kernel for Stream {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        const WIDTH: usize = LANES * size_of::<f32>();
        let head = self.to.align_offset(WIDTH).min(self.bytes);
        let body = (self.bytes - head) / WIDTH * WIDTH;
        // SAFETY: the caller's bytes are copied in three runs, the middle one as whole, aligned
        // vectors.
        unsafe {
            std::ptr::copy_nonoverlapping(self.from, self.to, head);
            for at in (head..head + body).step_by(WIDTH) {
                V::load(self.from.add(at).cast()).stream(self.to.add(at).cast());
            }
            let end = head + body;
            std::ptr::copy_nonoverlapping(self.from.add(end), self.to.add(end), self.bytes - end);
        }
        fence();
    }
}

/// Fills the slice with ones. This bounds kernels that read almost nothing.
pub fn fill(to: &mut [u8]) {
    let start = Shared(to.as_mut_ptr());
    for_blocks(to.len(), &|part| {
        // SAFETY: the parts are disjoint and within the slice.
        unsafe { std::ptr::write_bytes(start.get().add(part.start), 1, part.len()) }
    });
    black_box(to);
}

/// Loads the slice into registers as whole vectors. This bounds kernels that write almost nothing.
pub fn read(from: &[u8]) {
    let level = Machine::current().level;
    // SAFETY: the level is this machine's, and the kernel reads a slice.
    for_blocks(from.len(), &|part| unsafe { level.run(Read(&from[part])) });
}

fn for_blocks(bytes: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
    Machine::current().pool.for_each(bytes.div_ceil(BLOCK), BLOCK / 8, &|blocks| {
        body(blocks.start * BLOCK..(blocks.end * BLOCK).min(bytes));
    });
}

struct Read<'a>(&'a [u8]);

impl Kernel for Read<'_> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        const WIDTH: usize = LANES * size_of::<f32>();
        let mut seen = [V::splat(0.0); 4];
        let step = seen.len() * WIDTH;
        let mut steps = self.0.chunks_exact(step);
        for from in &mut steps {
            let from = from.as_ptr();
            prefetch(from.wrapping_add(AHEAD), step);
            for (i, seen) in seen.iter_mut().enumerate() {
                // SAFETY: the chunk is a whole step; `load` needs no alignment and takes any bits.
                *seen = seen.xor_bits(unsafe { V::load(from.add(i * WIDTH).cast()) }.to_bits());
            }
        }
        let [a, b, c, d] = seen;
        let both = a.xor_bits(b.to_bits()).xor_bits(c.xor_bits(d.to_bits()).to_bits());
        black_box(both.reduce_add());
        black_box(steps.remainder().iter().fold(0, |all, &byte| all ^ byte));
    }
}

/// Multiplies and adds in registers, for about ten microseconds on every thread in each of `rounds`
/// rounds. Returns the number of floating-point operations; divided by the time, it bounds matrix
/// products. With `pairs`, pairs of bf16 are multiplied by the level's dot instruction, if it has
/// one.
pub fn multiply(pairs: bool, rounds: usize) -> f64 {
    let machine = Machine::current();
    let pairs = pairs && machine.level.dots_bf16();
    let done = AtomicU32::new(0);
    let items = rounds * machine.pool.threads();
    machine.pool.for_each(items, 10 * STEPS, &|items| {
        // SAFETY: the level is this machine's, and the kernel needs nothing else.
        unsafe { machine.level.run(Multiply { pairs, items: items.len(), done: &done }) };
    });
    let per_sum = LANES * 2 * if pairs { 2 } else { 1 };
    done.into_inner() as f64 * (STEPS * per_sum) as f64
}

struct Multiply<'a> {
    pairs: bool,
    items: usize,
    /// The number of sums times the number of items.
    done: &'a AtomicU32,
}

impl Kernel for Multiply<'_> {
    const BF16: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        // Enough sums to hide the latency of an instruction, and few enough for the registers.
        let sums = match (V::ONE_REGISTER, self.pairs) {
            (true, true) => spin::<V, 16, true>(self.items),
            (true, false) => spin::<V, 16, false>(self.items),
            (false, _) => spin::<V, 5, false>(self.items),
        };
        self.done.fetch_add((sums * self.items) as u32, Ordering::Relaxed);
    }
}

#[inline(always)]
fn spin<V: F32x16, const SUMS: usize, const PAIRS: bool>(items: usize) -> usize {
    let mut sums = [V::splat(0.0); SUMS];
    let (a, b) = (V::splat(black_box(1.0)), V::splat(black_box(0.5)));
    for _ in 0..items * STEPS {
        for sum in &mut sums {
            *sum = if PAIRS { sum.dot_bf16(a.to_bits(), b.to_bits()) } else { a.mul_add(b, *sum) };
        }
    }
    let total = sums.into_iter().fold(V::splat(0.0), V::add);
    black_box(total.reduce_add());
    SUMS
}
