//! Prepares x once for all rows of weights. Prepared rows are normalized if the call has a norm,
//! and their elements are in the order in which the weights in the lanes of a chunk (sixteen lanes
//! of packed weights) are decoded. The sum of each group is stored too.

use std::cell::Cell;
use std::thread::LocalKey;

use super::{Call, Order, format};
use crate::element::Float;
use crate::rms_norm;
use crate::simd::{F32x16, Kernel, LANES, transpose};
use crate::{Machine, Shared};

/// A cache line. The scratch memory is a vector of cache lines.
#[derive(Clone, Copy)]
#[repr(align(64))]
#[expect(dead_code, reason = "only room")]
struct Line([u8; LINE]);

const LINE: usize = 64;

thread_local! {
    /// Memory that is kept between calls, since a decoded token makes a hundred calls with the same
    /// few sizes.
    static SCRATCH: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
    /// A row before its elements are reordered.
    static PLAIN: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Takes the memory that this thread kept. It is empty if the thread is ending.
fn kept<T>(place: &'static LocalKey<Cell<Vec<T>>>) -> Vec<T> {
    place.try_with(Cell::take).unwrap_or_default()
}

/// Calls `body` with room for `count` floats, which this thread keeps.
pub(super) fn with_plain(count: usize, body: &mut dyn FnMut(*mut f32)) {
    let mut plain = kept(&PLAIN);
    plain.resize(plain.len().max(count), 0.0);
    body(plain.as_mut_ptr());
    keep(&PLAIN, plain);
}

fn keep<T>(place: &'static LocalKey<Cell<Vec<T>>>, value: Vec<T>) {
    let _ = place.try_with(|place| place.set(value));
}

/// The elements of rows of x.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum OfX {
    /// Elements that one kind of products prepares.
    Prepared,
    /// f32 in their place.
    Floats,
    /// bf16 in their place, for the instruction that multiplies pairs.
    Pairs,
}

/// The prepared rows of x.
pub(super) struct Prepared {
    pub of_x: OfX,
    /// Empty if the rows are in their place.
    lines: Vec<Line>,
    /// The address of the first row.
    first: Shared<u8>,
    rows: usize,
    /// The number of bytes of the elements of a row.
    row_bytes: usize,
    /// The number of rows whose cache lines alternate: one line of each row, then the next line
    /// of each row.
    band: usize,
    /// The offset of the sums in bytes, and the number of sums of a row, padded to full vectors.
    sums_at: usize,
    sums: usize,
}

impl Prepared {
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The elements of row `m` in the order of the chunks. The next line of the row is
    /// [`apart`](Self::apart) lines further on.
    #[inline(always)]
    pub fn row<E>(&self, m: usize) -> *const E {
        let within = m % self.band;
        let at = (m - within) * self.row_bytes + within * LINE;
        self.first.get().cast_const().wrapping_add(at).cast()
    }

    /// The number of rows whose lines alternate with the lines of row `m`.
    #[inline(always)]
    pub fn apart(&self, m: usize) -> usize {
        self.band.min(self.rows - (m - m % self.band))
    }

    /// The sums of the groups of row `m`, then zeros up to a multiple of sixteen.
    #[inline(always)]
    pub fn sums(&self, m: usize) -> *const f32 {
        let at = self.sums_at + m * self.sums * size_of::<f32>();
        self.lines.as_ptr().cast::<u8>().wrapping_add(at).cast()
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if !self.lines.is_empty() {
            keep(&SCRATCH, std::mem::take(&mut self.lines));
        }
    }
}

impl Prepared {
    /// Takes scratch memory for `rows` rows of `row_bytes` bytes and `sums` sums each. The lines of
    /// each `band` rows alternate.
    pub fn new(rows: usize, row_bytes: usize, sums: usize, band: usize) -> Self {
        let sums_at = (rows * row_bytes).next_multiple_of(LINE);
        let bytes = sums_at + rows * sums * size_of::<f32>();
        let mut lines = kept(&SCRATCH);
        lines.resize(bytes.div_ceil(LINE), Line([0; LINE]));
        let (of_x, first) = (OfX::Prepared, Shared(lines.as_mut_ptr().cast()));
        Self { of_x, lines, first, rows, row_bytes, band, sums_at, sums }
    }

    /// Takes rows that need no preparation, in their place. They have no sums, and are only read.
    pub fn in_place(of_x: OfX, first: *const u8, rows: usize, row_bytes: usize) -> Self {
        let (lines, first) = (Vec::new(), Shared(first.cast_mut()));
        Self { of_x, lines, first, rows, row_bytes, band: 1, sums_at: 0, sums: 0 }
    }
}

/// Prepares all rows of x, in the element type that `order` specifies.
///
/// # Safety
/// The contract of [`super::quantized_matmul`] holds.
pub(super) unsafe fn prepare<T: Float>(machine: Machine, call: &Call, order: Order) -> Prepared {
    let chunk = order.lanes * order.per_lane;
    let padded = call.axis.div_ceil(chunk) * chunk;
    let row_bytes = padded * order.element_bytes();
    let sums = (call.axis / call.group).div_ceil(LANES) * LANES;
    let prepared = Prepared::new(call.rows, row_bytes, sums, order.band);
    let sums_at = prepared.sums_at;

    let at = Shared(prepared.lines.as_ptr().cast_mut().cast::<u8>());
    // An element takes a nanosecond, so sharing several rows among threads saves time.
    machine.pool.for_each(call.rows, 10 * call.axis, &|rows| {
        let mut plain = kept(&PLAIN);
        plain.resize(plain.len().max(padded), 0.0);
        plain[call.axis..padded].fill(0.0);
        for m in rows {
            let fill = Fill::<T> {
                x: call.x.cast::<T>().wrapping_add(m * call.axis),
                weight: call.norm.map(|norm| (norm.weight.cast::<T>(), norm.eps)),
                plain: &mut plain[..padded],
                axis: call.axis,
                group: call.group,
                order,
                row: prepared.row::<u8>(m).cast_mut(),
                apart: prepared.apart(m) * LINE,
                sums: at.get().wrapping_add(sums_at + m * sums * size_of::<f32>()).cast(),
                sum_count: sums,
            };
            // SAFETY: the caller's contract; every row has its own part of the scratch.
            unsafe { machine.level.run(fill) };
        }
        keep(&PLAIN, plain);
    });
    prepared
}

/// Prepares one row.
struct Fill<'a, T> {
    x: *const T,
    weight: Option<(*const T, f32)>,
    plain: &'a mut [f32],
    axis: usize,
    group: usize,
    order: Order,
    row: *mut u8,
    /// The number of bytes from one line of the row to the next.
    apart: usize,
    sums: *mut f32,
    sum_count: usize,
}

impl<T: Float> Kernel for Fill<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let plain = self.plain.as_mut_ptr();
        // SAFETY: the caller's contract; the plain copy has room for the row.
        unsafe {
            normalize::<V, T>(self.x, self.weight, self.axis, plain);
            group_sums::<V>(plain, self.axis, self.group, self.sums, self.sum_count);
            self.lay_out::<V>();
        }
    }
}

impl<T: Float> Fill<'_, T> {
    /// Writes the row in the order of the chunks, sixteen elements at a time.
    ///
    /// # Safety
    /// The row has room for the elements, which are full chunks.
    #[inline(always)]
    unsafe fn lay_out<V: F32x16>(&self) {
        let (order, bytes) = (self.order, self.order.element_bytes());
        let Order { lanes, per_lane, half, .. } = order;
        let by_position = by_position::<V>(per_lane);
        let mut places = V::splat(1.0);
        if V::IN_PLACE && order.bits > 0 {
            let each = LANES / per_lane;
            let place = |i| format::one_of_place(order.bits as usize, per_lane, i / each);
            places = transpose::from_lanes(place);
        }
        for at in (0..self.plain.len()).step_by(LANES) {
            let within = at & (lanes * per_lane - 1);
            let line = (at - within) / lanes;
            let to = self.row.wrapping_add(line * self.apart + bytes * (within / per_lane));
            let mut all = [0u32; LANES];
            // SAFETY: the caller's contract; each position of these lanes has a separate part of
            // the row.
            unsafe {
                let mut x = V::load(self.plain.as_ptr().add(at)).permute(by_position);
                if V::IN_PLACE {
                    x = x * places;
                }
                if half {
                    // The numbers are bf16, so the upper half of each f32 has all bits.
                    let upper = V::narrow(V::shift_right::<16>(x.to_bits()));
                    V::store_half(upper, all.as_mut_ptr().cast());
                } else {
                    x.store(all.as_mut_ptr().cast());
                }
                let (all, apart) = (all.as_ptr().cast(), self.apart);
                match bytes * LANES / per_lane {
                    16 => store_parts::<16>(all, per_lane, to, apart),
                    8 => store_parts::<8>(all, per_lane, to, apart),
                    _ => store_parts::<4>(all, per_lane, to, apart),
                }
            }
        }
    }
}

/// The order of sixteen elements in which the elements at the first position of each lane come
/// first, then the elements at the second position, and so on.
#[inline(always)]
pub(super) fn by_position<V: F32x16>(positions: usize) -> V::Int {
    // The positions are constants, since divisions take longer than the work on a short row.
    match positions {
        1 => order::<V, 1>(),
        2 => order::<V, 2>(),
        4 => order::<V, 4>(),
        8 => order::<V, 8>(),
        _ => order::<V, LANES>(),
    }
}

#[inline(always)]
fn order<V: F32x16, const POSITIONS: usize>() -> V::Int {
    let lanes = LANES / POSITIONS;
    transpose::numbers::<V>(|to| to % lanes * POSITIONS + to / lanes)
}

/// Copies `count` parts of `N` bytes to places that are `apart` bytes apart, each by one move.
///
/// # Safety
/// The parts are readable, and their places writable.
#[inline(always)]
pub(super) unsafe fn store_parts<const N: usize>(
    all: *const u8,
    count: usize,
    to: *mut u8,
    apart: usize,
) {
    for part in 0..count {
        // SAFETY: the caller's contract.
        unsafe { to.add(part * apart).copy_from_nonoverlapping(all.add(part * N), N) };
    }
}

/// Writes a row in f32. With a norm, which is a weight and an epsilon, the row is normalized and
/// rounded.
///
/// # Safety
/// `x`, the weight and `plain` have `axis` elements, a multiple of sixteen.
#[inline(always)]
pub(super) unsafe fn normalize<V: F32x16, T: Float>(
    x: *const T,
    norm: Option<(*const T, f32)>,
    axis: usize,
    plain: *mut f32,
) {
    // SAFETY: the caller's contract.
    unsafe {
        // `map` would need a closure, which would be compiled without the CPU features of the
        // kernel, so that its intrinsics would remain calls.
        let mut inverse = None;
        if let Some((weight, eps)) = norm {
            inverse = Some((weight, V::splat(rms_norm::inverse_rms::<V, T>(x, axis, eps))));
        }
        for at in (0..axis).step_by(LANES) {
            let mut lanes = T::load::<V>(x.add(at));
            if let Some((weight, inverse)) = inverse {
                lanes = T::round(T::round(lanes * inverse) * T::load(weight.add(at)));
            }
            lanes.store(plain.add(at));
        }
    }
}

/// Writes `count` numbers: the sums of a row's groups, then zeros.
///
/// # Safety
/// `x` has `axis` elements, in groups of a multiple of sixteen; `sums` has room.
#[inline(always)]
unsafe fn group_sums<V: F32x16>(
    x: *const f32,
    axis: usize,
    group: usize,
    sums: *mut f32,
    count: usize,
) {
    for index in 0..count {
        let mut lanes = V::splat(0.0);
        // SAFETY: the caller's contract.
        unsafe {
            if index < axis / group {
                for at in (0..group).step_by(LANES) {
                    lanes = lanes + V::load(x.add(index * group + at));
                }
            }
            *sums.add(index) = lanes.reduce_add();
        }
    }
}
