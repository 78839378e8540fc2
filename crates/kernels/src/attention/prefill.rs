//! Attention of prompts: each block of rows processes the keys tile by tile. Scores are stored
//! transposed, with a lane for each row. So the softmax adds nothing across lanes, and its weights
//! can be the left factor of the product with the values without a copy.

use std::marker::PhantomData;
use std::ops::Range;

use super::block::{Block, ROWS};
use super::product::{Left, Product, Right};
use super::scores::{cap, exponential_of};
use super::source::{Load, Rows, load_query};
use super::{Attention, MASKED, Mask, Source, TILE, with_scratch};
use crate::element::{Element, Float, with_element};
use crate::simd::{F32x16, Kernel, LANES};
use crate::{Machine, Shared};

/// # Safety
/// The contract of [`super::attention`] holds.
pub unsafe fn run<T: Float>(machine: Machine, call: &Attention, out: Shared<T>) {
    let blocks = call.rows().div_ceil(ROWS);
    let items = call.batch * call.kv_heads * blocks;
    // Work is in tenths of a nanosecond. One feature of one row and one key takes 1/8 of this unit,
    // or 1/16 under the causal rule, which hides about half of the keys.
    let work = ROWS * call.keys * (call.dim + call.value_dim) / 4 / if call.causal { 4 } else { 2 };
    machine.pool.for_each(items, work, &|items| {
        let space = Space::new(call);
        with_scratch(space.floats(), |at| {
            let (out, element) = (out.get().cast(), T::ELEMENT);
            let kernel = Blocks { call, out, items, blocks, space: space.at(at), element };
            // SAFETY: the caller's contract; the blocks have disjoint rows.
            unsafe { machine.level.run(kernel) }
        });
    });
}

/// The buffers of a block. `P` is the type of their positions: offsets or addresses.
struct Space<P> {
    /// The queries, transposed: the numbers of all rows for one feature are contiguous.
    q: P,
    /// The scores, transposed: the numbers of all rows for one key are contiguous.
    scores: P,
    /// The outputs, row by row.
    out: P,
    /// The keys as rows of floats, unless the call's keys can be used in place.
    keys: P,
    /// The values as rows of floats, unless the call's values can be used in place.
    values: P,
    max: P,
    sum: P,
    factor: P,
    end: P,
    /// The number of floats from one row of keys to the next.
    key_pitch: usize,
    /// The number of floats from one row of values to the next.
    pitch: usize,
}

impl Space<usize> {
    fn new(call: &Attention) -> Self {
        let (key_pitch, pitch) = (call.query_pitch(), call.value_pitch());
        let mut end = 0;
        let mut take = |floats: usize| {
            end += floats;
            end - floats
        };
        Space {
            q: take(key_pitch * ROWS),
            // The product may read the scores of a few rows past the last row.
            scores: take(TILE * ROWS + LANES),
            out: take(ROWS * pitch),
            keys: take(TILE * key_pitch),
            values: take(TILE * pitch),
            max: take(ROWS),
            sum: take(ROWS),
            factor: take(ROWS),
            end: take(0),
            key_pitch,
            pitch,
        }
    }

    fn floats(&self) -> usize {
        self.end
    }

    fn at(&self, base: *mut f32) -> Space<*mut f32> {
        let at = |offset| base.wrapping_add(offset);
        Space {
            q: at(self.q),
            scores: at(self.scores),
            out: at(self.out),
            keys: at(self.keys),
            values: at(self.values),
            max: at(self.max),
            sum: at(self.sum),
            factor: at(self.factor),
            end: at(self.end),
            key_pitch: self.key_pitch,
            pitch: self.pitch,
        }
    }
}

/// Processes blocks of rows. Only the steps of `Typed`, which are separate functions, depend on the
/// element type.
struct Blocks<'a> {
    call: &'a Attention,
    out: *mut u8,
    items: Range<usize>,
    blocks: usize,
    space: Space<*mut f32>,
    element: Element,
}

impl Kernel for Blocks<'_> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let call = self.call;
        for item in self.items.clone() {
            let head = item / self.blocks;
            // Under the causal rule, the last rows of a head take longest, so their blocks come
            // first.
            let block = Block::new(call, head, self.blocks - 1 - item % self.blocks);
            // SAFETY: the caller's contract.
            unsafe {
                self.typed::<V>(&block, Typed::Queries);
                let mut span = block.span(call);
                loop {
                    self.go_through::<V>(&block, span);
                    let max = std::slice::from_raw_parts(self.space.max, block.rows);
                    let whole = span == (0, call.keys) || matches!(call.mask, Mask::None);
                    if whole || !max.contains(&MASKED) {
                        break;
                    }
                    // A row whose keys are all masked weighs all keys equally, so repeat the block
                    // with all keys.
                    span = (0, call.keys);
                }
                self.typed::<V>(&block, Typed::Store);
            }
        }
    }
}

impl Blocks<'_> {
    /// # Safety
    /// The contract of the kernel.
    #[inline(always)]
    unsafe fn typed<V: F32x16>(&self, block: &Block, step: Typed) {
        with_element!(self.element, T => {
            let element = PhantomData::<T>;
            // SAFETY: the caller's contract.
            unsafe { V::part(Step { blocks: self, block, step, element }) }
        });
    }

    /// Loads the queries transposed, with zeros in the lanes past the last row.
    #[inline(always)]
    unsafe fn load_queries<V: F32x16, T: Float>(&self, block: &Block) {
        let (call, space) = (self.call, &self.space);
        let mut row_floats = [0.0f32; super::MAX_DIM];
        for row in 0..block.lanes {
            // SAFETY: the caller's contract; `space.q` holds `ROWS` rows.
            unsafe {
                if row < block.rows {
                    let (to, place) = (row_floats.as_mut_ptr(), block.place(call, row));
                    load_query::<V, T>(&call.q, place, call.dim, call.scale, to);
                } else {
                    row_floats.fill(0.0);
                }
                for (feature, &value) in row_floats.iter().take(call.dim).enumerate() {
                    *space.q.add(feature * block.lanes + row) = value;
                }
            }
        }
    }

    /// Computes the block's outputs, maxima and sums over the keys `first..end`.
    #[inline(always)]
    unsafe fn go_through<V: F32x16>(&self, block: &Block, (first, end): (usize, usize)) {
        let (call, space) = (self.call, &self.space);
        // SAFETY: the caller's contract; every access is within the buffers of `space`.
        unsafe {
            self.typed::<V>(block, Typed::Start);
            std::ptr::write_bytes(space.out, 0, ROWS * space.pitch);
            let before = call.dropped % TILE;
            let mut next = ((first + before) / TILE * TILE).saturating_sub(before);
            while next < end {
                let at = next;
                let count = (TILE - (at + before) % TILE).min(end - at);
                next = at + count;
                let place = (block.batch, block.kv_head);
                let rows = |data: *mut f32, pitch: usize| Rows::<f32> {
                    data: data.cast_const(),
                    stride: pitch as isize,
                };
                // The product reads keys in full tiles, and each value in blocks of sixteen
                // features. So a shorter tile of keys, or values with a shorter last block, must be
                // copied.
                let wide = self.element == Element::F32;
                let k = floats(&call.k, place, at, wide && count == TILE).unwrap_or_else(|| {
                    let to = (space.keys, space.key_pitch);
                    self.typed::<V>(block, Typed::Load(&call.k, call.dim, [at, count], to));
                    rows(space.keys, space.key_pitch)
                });
                let whole = wide && call.value_dim == space.pitch;
                let v = floats(&call.v, place, at, whole).unwrap_or_else(|| {
                    let to = (space.values, space.pitch);
                    self.typed::<V>(block, Typed::Load(&call.v, call.value_dim, [at, count], to));
                    rows(space.values, space.pitch)
                });
                self.score::<V>(block, &k);
                self.weigh::<V>(block, (at, count));
                self.add_values::<V>(block, &v, count);
            }
        }
    }

    #[inline(always)]
    unsafe fn score<V: F32x16>(&self, block: &Block, k: &Rows<f32>) {
        let left = Left { data: k.data, row: k.stride, depth: 1 };
        let right = Right { data: self.space.q, pitch: block.lanes as isize };
        let to = (self.space.scores, block.lanes);
        let (blocks, depth) = (block.lanes / LANES, self.call.dim);
        let extents = (TILE, blocks, depth);
        // SAFETY: the caller's contract; the keys have room for a full tile.
        unsafe { Product::<false> { left, right, to, extents }.run::<V>() }
    }

    /// Turns scores into weights. Updates maxima and sums, and rescales the outputs if a maximum
    /// has grown.
    #[inline(always)]
    unsafe fn weigh<V: F32x16>(&self, block: &Block, (first, count): (usize, usize)) {
        let (space, lanes) = (&self.space, block.lanes);
        // SAFETY: the caller's contract.
        unsafe {
            let call = self.call;
            if call.soft_cap > 0.0 {
                cap::<V>(space.scores, count * lanes, call.soft_cap);
            }
            self.typed::<V>(block, Typed::Hide((first, count)));
            let mut grown = false;
            let short = self.element != Element::F32;
            for lane in (0..lanes).step_by(LANES) {
                let score = |key: usize| space.scores.add(key * lanes + lane);
                let before = V::load(space.max.add(lane));
                let mut largest = [before; 4];
                for key in 0..count {
                    largest[key % 4] = V::load(score(key)).max(largest[key % 4]);
                }
                let [a, b, c, d] = largest;
                let largest = a.max(b).max(c.max(d));
                let factor = exponential_of::<V>(short, before - largest);
                grown |= (largest - before).any_above(0.0);
                let mut sums = [V::splat(0.0); 2];
                for key in 0..count {
                    let weight = exponential_of::<V>(short, V::load(score(key)) - largest);
                    weight.store(score(key));
                    sums[key % 2] = sums[key % 2] + weight;
                }
                let sum = V::load(space.sum.add(lane)).mul_add(factor, sums[0] + sums[1]);
                sum.store(space.sum.add(lane));
                largest.store(space.max.add(lane));
                factor.store(space.factor.add(lane));
            }
            if grown {
                for row in 0..block.rows {
                    let factor = V::splat(*space.factor.add(row));
                    for at in (0..space.pitch).step_by(LANES) {
                        let at = space.out.add(row * space.pitch + at);
                        (V::load(at) * factor).store(at);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn add_values<V: F32x16>(&self, block: &Block, v: &Rows<f32>, count: usize) {
        let space = &self.space;
        let left = Left { data: space.scores, row: 1, depth: block.lanes as isize };
        let right = Right { data: v.data, pitch: v.stride };
        let to = (space.out, space.pitch);
        let extents = (block.rows, space.pitch / LANES, count);
        // SAFETY: the caller's contract; the results of rows past the last one are not used.
        unsafe { Product::<true> { left, right, to, extents }.run::<V>() }
    }

    #[inline(always)]
    unsafe fn store<V: F32x16, T: Float>(&self, block: &Block) {
        let (call, space) = (self.call, &self.space);
        for row in 0..block.rows {
            let (batch, head, query) = block.place(call, row);
            let at = call.result(batch, head, query);
            // SAFETY: the caller's contract.
            unsafe {
                let scale = V::splat(1.0 / *space.sum.add(row));
                let out = self.out.cast::<T>().add(at);
                for at in (0..call.value_dim).step_by(LANES) {
                    let lanes = V::load(space.out.add(row * space.pitch + at)) * scale;
                    let count = LANES.min(call.value_dim - at);
                    if count == LANES {
                        T::store(lanes, out.add(at));
                    } else {
                        T::store_first(lanes, out.add(at), count);
                    }
                }
            }
        }
    }
}

/// A step of a block that depends on the element type.
enum Typed<'a> {
    Queries,
    /// Sets the initial maxima and sums.
    Start,
    /// Loads keys or values. The fields are the source, its features, the first row and the number
    /// of rows, and the address and pitch of the rows of floats to write.
    Load(&'a Source, usize, [usize; 2], (*mut f32, usize)),
    /// Masks scores. The fields are the first key and the number of keys.
    Hide((usize, usize)),
    Store,
}

struct Step<'a, T> {
    blocks: &'a Blocks<'a>,
    block: &'a Block,
    step: Typed<'a>,
    element: PhantomData<T>,
}

impl<T: Float> Kernel for Step<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { blocks, block, element, .. } = self;
        let (call, space) = (blocks.call, &blocks.space);
        // SAFETY: the caller's contract; every access is within the buffers of `space`.
        unsafe {
            match self.step {
                Typed::Queries => blocks.load_queries::<V, T>(block),
                Typed::Start => {
                    for row in 0..block.lanes {
                        let (_, head, _) = block.place(call, row.min(block.rows - 1));
                        (*space.max.add(row), *space.sum.add(row)) = call.start::<T>(head);
                    }
                }
                Typed::Load(source, dim, [first, count], (out, pitch)) => {
                    let place = (block.batch, block.kv_head);
                    V::part(Load { source, place, first, count, dim, out, pitch, element });
                }
                Typed::Hide(keys) => call.mask_block::<T>(space.scores, block, keys),
                Typed::Store => blocks.store::<V, T>(block),
            }
        }
    }
}

/// Returns the rows from `first` on without a copy, if `usable` is true and the features of a row
/// are contiguous. The caller sets `usable` only if the elements are f32.
#[inline(always)]
fn floats(
    source: &Source,
    (batch, head): (usize, usize),
    first: usize,
    usable: bool,
) -> Option<Rows<f32>> {
    if !usable {
        return None;
    }
    let rows = source.rows::<f32>(batch, head)?;
    Some(Rows { data: rows.at(first), stride: rows.stride })
}
