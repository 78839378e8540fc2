//! What the kernels are held against: memory read and filled, and registers multiplied, by
//! the kernels' threads and vectors and nothing else.

use std::hint::black_box;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::pool::Pool;
use super::simd::{F32x16, Kernel, LANES, fence, prefetch};
use super::{Machine, Shared, parallel_copy};

/// Bytes of an item of a job.
const BLOCK: usize = 4096;
/// How far ahead of the loads memory is asked for.
const AHEAD: usize = 4096;
/// Multiplications that a sum goes through in an item of a job.
const STEPS: usize = 1024;

/// Copies, past the caches if the buffers are larger than those.
///
/// # Safety
/// `from` is readable and `to` writable for `bytes`, and they do not overlap.
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    const CACHES: usize = 32 << 20;
    if bytes < CACHES {
        // SAFETY: the caller's contract.
        return unsafe { parallel_copy(from, to, bytes) };
    }
    let level = Machine::current().level;
    let (from, to) = (Shared(from.cast_mut()), Shared(to));
    for_blocks(bytes, &|part| {
        // SAFETY: the parts are disjoint and within the caller's buffers; the level is this machine's.
        unsafe {
            let (from, to) = (from.get().add(part.start), to.get().add(part.start));
            level.run(Stream { from, to, bytes: part.len() });
        }
    });
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
        // SAFETY: three runs of the caller's bytes, the middle one in whole, aligned vectors.
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

/// Writes the same byte everywhere.
///
/// # Safety
/// `to` is writable for `bytes`.
pub unsafe fn fill(to: *mut u8, bytes: usize) {
    let to = Shared(to);
    for_blocks(bytes, &|part| {
        // SAFETY: the parts are disjoint and within the caller's buffer.
        unsafe { std::ptr::write_bytes(to.get().add(part.start), 1, part.len()) }
    });
}

/// Loads all of it, as whole vectors.
///
/// # Safety
/// `from` is readable for `bytes`.
pub unsafe fn read(from: *const u8, bytes: usize) {
    let level = Machine::current().level;
    let (from, all) = (Shared(from.cast_mut()), AtomicU32::new(0));
    for_blocks(bytes, &|part| {
        let mut seen = 0;
        // SAFETY: the part is within the caller's buffer, and the level is this machine's.
        unsafe {
            level.run(Read { from: from.get().add(part.start), bytes: part.len(), seen: &mut seen })
        };
        all.fetch_xor(seen, Ordering::Relaxed);
    });
    black_box(all);
}

fn for_blocks(bytes: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
    Machine::current().pool.for_each(bytes.div_ceil(BLOCK), BLOCK / 8, &|blocks| {
        body(blocks.start * BLOCK..(blocks.end * BLOCK).min(bytes));
    });
}

struct Read<'a> {
    from: *const u8,
    bytes: usize,
    seen: &'a mut u32,
}

impl Kernel for Read<'_> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        const WIDTH: usize = LANES * size_of::<f32>();
        let mut seen = [V::splat(0.0); 4];
        let step = seen.len() * WIDTH;
        for at in (0..self.bytes / step).map(|i| i * step) {
            let from = self.from.wrapping_add(at);
            prefetch(from.wrapping_add(AHEAD), step);
            for (i, seen) in seen.iter_mut().enumerate() {
                // SAFETY: a whole step is left; `load` needs no alignment and takes any bits.
                *seen = seen.xor_bits(unsafe { V::load(from.add(i * WIDTH).cast()) }.to_bits());
            }
        }
        let [a, b, c, d] = seen;
        let both = a.xor_bits(b.to_bits()).xor_bits(c.xor_bits(d.to_bits()).to_bits());
        let mut lanes = [0.0f32; LANES];
        // SAFETY: sixteen lanes.
        unsafe { both.store(lanes.as_mut_ptr()) };
        *self.seen = lanes.iter().fold(0, |all, lane| all ^ lane.to_bits());
        for at in self.bytes / step * step..self.bytes {
            // SAFETY: within the buffer.
            *self.seen ^= u32::from(unsafe { *self.from.add(at) });
        }
    }
}

/// Multiplies and adds in registers, `rounds` times on every thread; returns how many
/// floating-point operations that was. `pairs`: of bf16 numbers, with the level's instruction for
/// their dot products if it has one.
pub fn multiply(pairs: bool, rounds: usize) -> f64 {
    let machine = Machine::current();
    let pairs = pairs && machine.level.dots_bf16();
    let all = AtomicU32::new(0);
    let items = rounds * machine.pool.threads();
    machine.pool.for_each(items, 10 * STEPS, &|items| {
        let mut done = 0;
        // SAFETY: the level is this machine's, and the kernel needs nothing else.
        unsafe { machine.level.run(Multiply { pairs, items: items.len(), done: &mut done }) };
        all.fetch_add(done, Ordering::Relaxed);
    });
    let per_sum = LANES * 2 * if pairs { 2 } else { 1 };
    all.into_inner() as f64 * (STEPS * per_sum) as f64
}

struct Multiply<'a> {
    pairs: bool,
    items: usize,
    /// Sums, times items.
    done: &'a mut u32,
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
        *self.done = (sums * self.items) as u32;
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

/// A pool for itself, apart from the kernels'.
#[derive(Clone, Copy)]
pub struct Team(&'static Pool);

impl Team {
    pub fn new(threads: usize) -> Self {
        Self(Pool::leak(threads))
    }

    pub fn run(&self, items: usize, nanoseconds: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        let tenths = nanoseconds.saturating_mul(10);
        self.0.for_each(items, tenths.div_ceil(items.max(1)), body);
    }
}
