//! Operations that measure the machine's roofline, for benchmarks. They copy, read and fill memory
//! and multiply in registers, with the same threads and vectors as the kernels. The caller measures
//! the time.

use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::simd::{F32x16, Kernel, LANES, fence, prefetch};
use super::{Machine, Shared, parallel_copy};

/// Bytes that one item of a thread-pool job processes.
const BLOCK: usize = 4096;
/// How many bytes ahead of the loads the prefetches are.
const AHEAD: usize = 4096;
/// The number of multiply-adds that each accumulator performs in one item of a job.
const STEPS: usize = 1024;

/// Copies as many bytes as both slices have. Copies of at least `CACHES` bytes use streaming
/// stores. The speed is a bound for kernels that read their input once and write their output once.
pub fn copy(from: &[u8], to: &mut [u8]) {
    const CACHES: usize = 32 << 20;
    let bytes = from.len().min(to.len());
    let (from, start) = (Shared(from.as_ptr().cast_mut()), Shared(to.as_mut_ptr()));
    if bytes < CACHES {
        // SAFETY: both slices hold `bytes` bytes. They do not overlap, because `to` is a unique
        // borrow.
        unsafe { parallel_copy(from.get(), start.get(), bytes) };
    } else {
        let level = Machine::current().level;
        for_blocks(bytes, &|part| {
            // SAFETY: the parts are disjoint and within both slices; this machine supports `level`.
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
        // SAFETY: the kernel copies the caller's bytes in three ranges. The middle one consists of
        // aligned, full vectors.
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

/// Fills the slice with ones. The speed is a bound for kernels that read almost nothing.
pub fn fill(to: &mut [u8]) {
    let start = Shared(to.as_mut_ptr());
    for_blocks(to.len(), &|part| {
        // SAFETY: the parts are disjoint and within the slice.
        unsafe { std::ptr::write_bytes(start.get().add(part.start), 1, part.len()) }
    });
    black_box(to);
}

/// Loads the slice into vector registers. The speed is a bound for kernels that write almost
/// nothing.
pub fn read(from: &[u8]) {
    let level = Machine::current().level;
    // SAFETY: this machine supports `level`, and the kernel reads only a slice.
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
                // SAFETY: the chunk has `step` bytes. `load` needs no alignment and accepts any bit
                // pattern.
                *seen = seen.xor_bits(unsafe { V::load(from.add(i * WIDTH).cast()) }.to_bits());
            }
        }
        let [a, b, c, d] = seen;
        let both = a.xor_bits(b.to_bits()).xor_bits(c.xor_bits(d.to_bits()).to_bits());
        black_box(both.reduce_add());
        black_box(steps.remainder().iter().fold(0, |all, &byte| all ^ byte));
    }
}

/// Multiplies and adds in registers, for a few microseconds on every thread in each of `rounds`
/// rounds. Returns the number of floating-point operations. The caller divides it by the time to
/// get a bound for matrix products. With `pairs`, multiplies pairs of bf16 by a dot-product
/// instruction, if the machine has one.
pub fn multiply(pairs: bool, rounds: usize) -> f64 {
    let machine = Machine::current();
    let pairs = pairs && machine.level.dots_bf16();
    let done = AtomicU32::new(0);
    let items = rounds * machine.pool.threads();
    machine.pool.for_each(items, 10 * STEPS, &|items| {
        // SAFETY: this machine supports `machine.level`; the kernel requires nothing else.
        unsafe { machine.level.run(Multiply { pairs, items: items.len(), done: &done }) };
    });
    let per_sum = LANES * 2 * if pairs { 2 } else { 1 };
    done.into_inner() as f64 * (STEPS * per_sum) as f64
}

struct Multiply<'a> {
    pairs: bool,
    items: usize,
    /// The number of accumulators times the number of items, summed over all threads.
    done: &'a AtomicU32,
}

impl Kernel for Multiply<'_> {
    const BF16: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        // Enough accumulators to hide the latency of an instruction, but not more than the
        // registers hold.
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
