//! Computes the derivatives of one job, block by block of its rows.
//!
//! A block keeps its scores, and the derivatives with respect to its attention weights, in memory
//! for all keys that it sees. As in a tile of `prefill`, each row has a lane. The job does not
//! divide the weights by their sum. Instead, it divides the rows of the cotangent and the
//! derivatives with respect to the scores by this sum.

use std::marker::PhantomData;
use std::ops::Range;

use super::backward_plan::{Backward, Plan, put};
use super::backward_space::{KEYS, Space};
use super::block::{Block, ROWS};
use super::product::{ADD_ROWS, Left, Product, Right, SET_ROWS};
use super::scores::{cap, exponential, factor};
use super::source::{Load, load_query};
use super::{MASKED, Mask, Source};
use crate::element::Float;
use crate::simd::{F32x16, Kernel, LANES, prefetch};

/// Runs jobs. Each item is one part of the rows of a key/value head.
pub struct Jobs<'a, T> {
    pub call: &'a Backward,
    pub plan: Plan,
    pub sums: *mut f32,
    pub items: Range<usize>,
    pub space: Space,
    pub element: PhantomData<T>,
}

/// The keys of a tile, and the offset of their scores in the scores of a block.
#[derive(Clone, Copy)]
pub struct Tile {
    pub first: usize,
    pub count: usize,
    at: usize,
}

/// Splits the keys `first..end` into tiles.
fn tiles(block: &Block, (first, end): (usize, usize)) -> impl Iterator<Item = Tile> {
    let lanes = block.lanes;
    (first..end).step_by(KEYS).map(move |at| Tile {
        first: at,
        count: KEYS.min(end - at),
        at: (at - first) * lanes,
    })
}

impl<T: Float> Kernel for Jobs<'_, T> {
    const BF16: bool = false; // conversions take a small part of the time

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let (call, plan) = (&self.call.forward, self.plan);
        for item in self.items.clone() {
            let (head, part) = (item / plan.parts, item % plan.parts);
            let sums = self.sums.wrapping_add(item * plan.floats);
            // SAFETY: the caller's contract.
            unsafe {
                sums.write_bytes(0, plan.floats);
                for index in (part..plan.blocks).step_by(plan.parts) {
                    let block = Block::new(call, head, index);
                    self.load::<V>(&block);
                    let mut span = block.span(call);
                    loop {
                        self.score::<V>(&block, span);
                        let max = std::slice::from_raw_parts(self.space.max, block.rows);
                        let whole = span == (0, call.keys) || matches!(call.mask, Mask::None);
                        if whole || !max.contains(&MASKED) {
                            break;
                        }
                        // All keys are masked for some row, and such a row weighs all keys equally.
                        // So compute the scores of all keys.
                        span = (0, call.keys);
                    }
                    self.divide::<V>(&block, sums.add(plan.sinks));
                    self.clear_mask(&block, span);
                    self.add::<V>(&block, span, sums);
                    self.store::<V>(&block);
                }
            }
        }
    }
}

impl<T: Float> Jobs<'_, T> {
    /// Loads the queries and the cotangents, both row by row and transposed. Fills missing rows
    /// with zeros.
    #[inline(always)]
    unsafe fn load<V: F32x16>(&self, block: &Block) {
        let (call, space) = (&self.call.forward, &self.space);
        for (view, scale, dim, (to, turned), pitch) in [
            (&call.q, call.scale, call.dim, (space.q, space.turned_q), space.key_pitch),
            (&self.call.cotangent, 1.0, call.value_dim, (space.g, space.turned_g), space.pitch),
        ] {
            // SAFETY: the caller keeps the contract, and the buffers have room for `ROWS` rows.
            unsafe {
                for row in 0..block.rows {
                    let (to, place) = (to.add(row * pitch), block.place(call, row));
                    load_query::<V, T>(view, place, dim, scale, to);
                }
                to.add(block.rows * pitch).write_bytes(0, (block.lanes - block.rows) * pitch);
                let blocks = dim.div_ceil(LANES);
                V::part(Turn { from: to, pitch, blocks, to: turned, lanes: block.lanes });
            }
        }
    }

    /// Loads the keys or values of a tile. Fills the other rows that a product reads with zeros.
    #[inline(always)]
    unsafe fn load_tile<V: F32x16>(&self, block: &Block, tile: Tile, values: bool) {
        let (call, space) = (&self.call.forward, &self.space);
        let (source, dim, pitch): (&Source, _, _) = match values {
            false => (&call.k, call.dim, space.key_pitch),
            true => (&call.v, call.value_dim, space.pitch),
        };
        let Tile { first, count, .. } = tile;
        let (place, out) = ((block.batch, block.kv_head), space.tile);
        // SAFETY: the caller keeps the contract, and the buffer has room for `KEYS` rows.
        unsafe {
            let element = PhantomData::<T>;
            V::part(Load { source, place, first, count, dim, out, pitch, element });
            let read = count.next_multiple_of(SET_ROWS);
            out.add(count * pitch).write_bytes(0, (read - count) * pitch);
        }
    }

    /// Computes the scores, and the derivatives with respect to the weights. Adds up the weights of
    /// each row, and the products of weights and derivatives. A weight is relative to the largest
    /// score so far.
    #[inline(always)]
    unsafe fn score<V: F32x16>(&self, block: &Block, span: (usize, usize)) {
        let (call, space, lanes) = (&self.call.forward, &self.space, block.lanes);
        // SAFETY: the caller keeps the contract, and every address is within the job's buffers.
        unsafe {
            for row in 0..lanes {
                let (_, head, _) = block.place(call, row.min(block.rows - 1));
                *space.max.add(row) = call.start::<T>(head).0;
            }
            space.sum.write_bytes(0, lanes);
            space.delta.write_bytes(0, lanes);
            for tile in tiles(block, span) {
                let Tile { first, count, at } = tile;
                let (scores, grads) = (space.scores.add(at), space.grads.add(at));
                self.load_tile::<V>(block, tile, false);
                V::part(Product::<false> {
                    left: Left { data: space.tile, row: space.key_pitch as isize, depth: 1 },
                    right: Right { data: space.turned_q, pitch: lanes as isize },
                    to: (scores, lanes),
                    extents: (count, lanes / LANES, call.dim),
                });
                if call.soft_cap > 0.0 {
                    cap::<V>(scores, count * lanes, call.soft_cap);
                    let inverse = V::splat(1.0 / call.soft_cap);
                    for at in (at..at + count * lanes).step_by(LANES) {
                        let tanh = V::load(space.scores.add(at)) * inverse;
                        (V::splat(1.0) - tanh * tanh).store(space.slopes.add(at));
                    }
                }
                call.mask_block::<T>(scores, block, (first, count));
                self.load_tile::<V>(block, tile, true);
                V::part(Product::<false> {
                    left: Left { data: space.tile, row: space.pitch as isize, depth: 1 },
                    right: Right { data: space.turned_g, pitch: lanes as isize },
                    to: (grads, lanes),
                    extents: (count, lanes / LANES, call.value_dim),
                });
                for lane in (0..lanes).step_by(LANES) {
                    let (max, sum) = (space.max.add(lane), space.sum.add(lane));
                    let delta = space.delta.add(lane);
                    let before = V::load(max);
                    let mut largest = [before; 2];
                    for key in 0..count {
                        let score = V::load(scores.add(key * lanes + lane));
                        largest[key % 2] = score.max(largest[key % 2]);
                    }
                    let largest = largest[0].max(largest[1]);
                    let mut sums = [V::splat(0.0); 2];
                    let mut deltas = [V::splat(0.0); 2];
                    for key in 0..count {
                        let at = key * lanes + lane;
                        let score = V::load(scores.add(at));
                        let weight = exponential::<V, T>(score - largest);
                        sums[key % 2] = sums[key % 2] + weight;
                        let grad = V::load(grads.add(at));
                        deltas[key % 2] = weight.mul_add(grad, deltas[key % 2]);
                    }
                    let factor = exponential::<V, T>(before - largest);
                    V::load(sum).mul_add(factor, sums[0] + sums[1]).store(sum);
                    V::load(delta).mul_add(factor, deltas[0] + deltas[1]).store(delta);
                    largest.store(max);
                }
            }
        }
    }

    /// Divides the cotangents and `delta` by the sums of the weights, and replaces these sums by
    /// their inverses. Adds up the derivatives with respect to the sinks.
    #[inline(always)]
    unsafe fn divide<V: F32x16>(&self, block: &Block, sinks: *mut f32) {
        let (call, space) = (&self.call.forward, &self.space);
        // SAFETY: the caller keeps the contract, and every address is within the job's buffers.
        unsafe {
            for row in 0..block.rows {
                let (_, head, _) = block.place(call, row);
                let (max, weight) = call.start::<T>(head);
                let sink = weight * factor::<V, T>(max - *space.max.add(row));
                // If all scores of a row are -inf, this divides 0 by 0, as MLX does.
                let inverse = 1.0 / (*space.sum.add(row) + sink);
                *space.sum.add(row) = inverse;
                *space.delta.add(row) *= inverse;
                if !call.sinks.is_null() {
                    *sinks.add(head % call.group()) -= sink * inverse * *space.delta.add(row);
                }
                for at in (0..call.value_dim).step_by(LANES) {
                    let at = space.g.add(row * space.pitch + at);
                    (V::load(at) * V::splat(inverse)).store(at);
                }
            }
        }
    }

    /// Computes the derivatives with respect to scores (`of_scores`) from the derivatives with
    /// respect to weights. Adds the products of `of_scores` and keys to `dq`. Adds the products of
    /// `of_scores` and queries, and of weights and cotangents, to the job's sums.
    #[inline(always)]
    unsafe fn add<V: F32x16>(&self, block: &Block, span: (usize, usize), sums: *mut f32) {
        let (call, space, plan, lanes) = (&self.call.forward, &self.space, &self.plan, block.lanes);
        // SAFETY: the caller keeps the contract, and every address is within the job's buffers or
        // sums.
        unsafe {
            let max = std::slice::from_raw_parts(space.max, block.rows);
            let blind = max.contains(&MASKED);
            space.dq.write_bytes(0, ROWS * space.key_pitch);
            for tile in tiles(block, span) {
                let Tile { first, count, at } = tile;
                let (weights, grads) = (space.weights, space.of_scores);
                let of_keys = sums.wrapping_add(first * plan.key_pitch);
                let of_values = sums.wrapping_add(plan.values + first * plan.pitch);
                if !self.call.dk.is_null() {
                    // Prefetch these sums, because the products load only a few rows at a time and
                    // would have to wait for them.
                    prefetch(of_keys.cast(), count * plan.key_pitch * size_of::<f32>());
                    prefetch(of_values.cast(), count * plan.pitch * size_of::<f32>());
                }
                for lane in (0..lanes).step_by(LANES) {
                    let largest = V::load(space.max.add(lane));
                    let inverse = V::load(space.sum.add(lane));
                    let delta = V::load(space.delta.add(lane));
                    for key in 0..count {
                        let i = key * lanes + lane;
                        let score = V::load(space.scores.add(at + i));
                        let weight = exponential::<V, T>(score - largest);
                        weight.store(weights.add(i));
                        let grad = (V::load(space.grads.add(at + i)) - delta) * inverse;
                        (weight * grad).store(grads.add(i));
                    }
                }
                if blind {
                    self.skip_hidden(block, tile);
                }
                if !self.call.dmask.is_null() {
                    self.store_mask::<V>(block, tile);
                }
                if call.soft_cap > 0.0 {
                    for i in (0..count * lanes).step_by(LANES) {
                        let slope = V::load(space.slopes.add(at + i));
                        (V::load(grads.add(i)) * slope).store(grads.add(i));
                    }
                }
                // Clear the rows after the last key. The products below also add these rows,
                // because their tiles have four or `ADD_ROWS` rows.
                let unused = (count.next_multiple_of(2 * ADD_ROWS) - count) * lanes;
                weights.add(count * lanes).write_bytes(0, unused);
                grads.add(count * lanes).write_bytes(0, unused);

                self.load_tile::<V>(block, tile, false);
                let blocks = call.dim.div_ceil(LANES);
                V::part(Product::<true> {
                    left: Left { data: grads, row: 1, depth: lanes as isize },
                    right: Right { data: space.tile, pitch: space.key_pitch as isize },
                    to: (space.dq, space.key_pitch),
                    extents: (block.rows, blocks, count),
                });
                if self.call.dk.is_null() {
                    continue;
                }
                V::part(Product::<true> {
                    left: Left { data: grads, row: lanes as isize, depth: 1 },
                    right: Right { data: space.q, pitch: space.key_pitch as isize },
                    to: (of_keys, plan.key_pitch),
                    extents: (count, blocks, block.rows),
                });
                V::part(Product::<true> {
                    left: Left { data: weights, row: lanes as isize, depth: 1 },
                    right: Right { data: space.g, pitch: space.pitch as isize },
                    to: (of_values, plan.pitch),
                    extents: (count, call.value_dim.div_ceil(LANES), block.rows),
                });
            }
        }
    }

    /// Clears the derivatives with respect to masked scores in rows that see no key. Such a row
    /// weighs all keys equally, so its result does not depend on the scores.
    #[inline(never)]
    unsafe fn skip_hidden(&self, block: &Block, Tile { first, count, .. }: Tile) {
        let (call, space) = (&self.call.forward, &self.space);
        for row in 0..block.rows {
            // SAFETY: the caller keeps the contract, and every address is within the job's buffers.
            unsafe {
                if *space.max.add(row) != MASKED {
                    continue;
                }
                let place = block.place(call, row);
                for key in 0..count {
                    if call.hides(place, first + key) {
                        *space.of_scores.add(key * block.lanes + row) = 0.0;
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store<V: F32x16>(&self, block: &Block) {
        let (call, space) = (&self.call.forward, &self.space);
        for row in 0..block.rows {
            let (batch, head, query) = block.place(call, row);
            let at = ((batch * call.queries + query) * call.heads + head) * call.dim;
            let to = self.call.dq.cast::<T>().wrapping_add(at);
            for at in (0..call.dim).step_by(LANES) {
                // SAFETY: the caller keeps the contract, and every address is within the job's
                // buffers.
                unsafe {
                    let lanes = V::load(space.dq.add(row * space.key_pitch + at));
                    let count = LANES.min(call.dim - at);
                    put::<V, T>(lanes * V::splat(call.scale), to.add(at), count);
                }
            }
        }
    }
}

/// Transposes `lanes` rows with `blocks` blocks of features each. `lanes` must be a multiple of 16.
struct Turn {
    from: *const f32,
    pitch: usize,
    blocks: usize,
    to: *mut f32,
    lanes: usize,
}

impl Kernel for Turn {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { from, pitch, blocks, to, lanes } = self;
        for row in (0..lanes).step_by(LANES) {
            for feature in (0..blocks * LANES).step_by(LANES) {
                // SAFETY: the caller's contract.
                unsafe {
                    let mut square = [V::splat(0.0); LANES];
                    for (i, lanes) in square.iter_mut().enumerate() {
                        *lanes = V::load(from.add((row + i) * pitch + feature));
                    }
                    for (i, turned) in V::transpose(square).into_iter().enumerate() {
                        turned.store(to.add((feature + i) * lanes + row));
                    }
                }
            }
        }
    }
}
