//! Products of packed weights with several rows of x. A band is a few rows of x that are multiplied
//! together, and a chunk is sixteen lanes of packed weights. The kernel decodes the weights of a
//! chunk in registers, once for a few rows of a band ([`chunk`]). Meanwhile the part of x for this
//! chunk is in the first-level cache. Every product is added up in the order of [`Dots::dot`].

mod chunk;

use std::marker::PhantomData;
use std::ops::Range;

use super::format::Format;
use super::operands::Operands;
use crate::linear::together::PITCH;
use crate::simd::{F32x16, Kernel, LANES, Lines, prefetch, prefetch_far};
pub(super) use chunk::Chunks;
use chunk::{Chunk, TOGETHER};

/// Returns the group of each of the sixteen lanes of a chunk, counted from the first group of the
/// chunk. A group has `2^shift` lanes.
#[inline(always)]
pub(super) fn lane_groups<V: F32x16>(shift: u32) -> V::Int {
    let groups: [u32; LANES] = std::array::from_fn(|lane| lane as u32 >> shift);
    // SAFETY: the array has sixteen words, and `load` does not change their bits.
    unsafe { V::load(groups.as_ptr().cast()).to_bits() }
}

/// Multiplies `count` rows of weights, at most sixteen, with a band of rows of x.
pub(super) struct Block<'a, D> {
    operands: Operands<'a>,
    count: usize,
    band: Range<usize>,
    /// A row of sixteen columns for each row of the band.
    to: *mut [f32; LANES],
    dots: PhantomData<D>,
}

impl<D: Chunks> Block<'_, D> {
    /// Implements [`Dots::many`], if x is laid out in bands.
    ///
    /// # Safety
    /// The contract of [`Dots::many`] holds.
    #[inline(always)]
    pub unsafe fn run_if_banded<V: F32x16>(
        operands: Operands,
        count: usize,
        band: Range<usize>,
        to: *mut [f32; LANES],
    ) -> bool {
        let banded = operands.prepared.apart(band.start) > 1;
        if banded {
            // SAFETY: the caller's contract.
            unsafe { V::part(Block::<D> { operands, count, band, to, dots: PhantomData }) };
        }
        banded
    }
}

impl<D: Chunks> Kernel for Block<'_, D> {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { operands, count, band, to, .. } = self;
        let (mut sums, mut biases) =
            (Lines::<{ LANES * PITCH }>::uninit(), Lines::<{ LANES * PITCH }>::uninit());
        let (sums, biases) = (sums.as_mut_ptr(), biases.as_mut_ptr());
        // The last row is only for `load_each`, which reads eight scales from any group on.
        let mut of_groups = Lines::<{ (LANES + 1) * LANES }>::uninit();
        let of_groups = of_groups.as_mut_ptr();
        let mut of_lanes = Lines::<{ LANES * LANES }>::uninit();
        let of_lanes = of_lanes.as_mut_ptr();
        const { assert!(D::Format::CHUNK_BYTES <= LANES * size_of::<f32>()) };
        let mut filled_up = Lines::<{ LANES * LANES }>::uninit();
        let filled_up = filled_up.as_mut_ptr().cast::<u8>();
        let (rows, bytes) = (band.len(), D::Format::CHUNK_BYTES);
        let (groups, row_bytes) = (operands.axis / operands.group, operands.axis * D::BITS / 8);
        let shift = (operands.group / D::Format::PER_LANE).trailing_zeros();
        let lane_groups = lane_groups::<V>(shift);
        let apart = operands.prepared.apart(band.start) * LANES;
        let (mut packed, mut x) = (operands.packed, operands.prepared.row::<f32>(band.start));
        // SAFETY: the caller's contract; there is room for sixteen rows of weights and a chunk of
        // each.
        unsafe {
            of_groups.write_bytes(0, (LANES + 1) * LANES);
            for column in 0..LANES {
                sums.add(column * PITCH).write_bytes(0, rows * LANES);
            }
            for at in (0..groups).step_by(LANES) {
                let here = LANES.min(groups - at);
                for column in 0..count {
                    let here_of = operands.below(column).scales(D::ELEMENT);
                    let here_of = here_of.after(at / LANES * operands.step);
                    operands.prefetch_scales(&here_of);
                    let [scales, bias] = operands.load_scales::<V, D::Format>(&here_of, here);
                    scales.store(of_groups.add(column * LANES));
                    if D::Format::AFFINE {
                        for (i, m) in band.clone().enumerate() {
                            let to = biases.add(column * PITCH + i * LANES);
                            let of_x = V::load(operands.prepared.sums(m).add(at));
                            let before = if at == 0 { V::splat(0.0) } else { V::load(to) };
                            bias.mul_add(of_x, before).store(to);
                        }
                    }
                }
                let lanes = here << shift;
                for lane in (0..lanes).step_by(LANES) {
                    let place = V::add_int(lane_groups, V::splat_int((lane >> shift) as i32));
                    for column in 0..count.next_multiple_of(TOGETHER) {
                        let scales = of_groups.add(column * LANES);
                        let scales = if V::IN_PLACE {
                            V::load_each(scales.add(lane >> shift), shift)
                        } else {
                            V::load(scales).permute(place)
                        };
                        scales.store(of_lanes.add(column * LANES));
                    }
                    for column in 0..count {
                        // Prefetch the next chunk of this row, and the same chunk of a row in the
                        // next block.
                        let from = packed.wrapping_add(column * row_bytes);
                        prefetch(from.wrapping_add(bytes), bytes);
                        prefetch_far(from.wrapping_add(LANES * row_bytes), bytes);
                    }
                    let (mut packed_here, mut row_bytes_here) = (packed, row_bytes);
                    if lanes - lane < LANES {
                        // Fill up the last chunk of each row with zeros.
                        let there = (lanes - lane) * bytes / LANES;
                        filled_up.write_bytes(0, LANES * bytes);
                        for column in 0..count {
                            let from = packed.wrapping_add(column * row_bytes);
                            filled_up.add(column * bytes).copy_from_nonoverlapping(from, there);
                        }
                        (packed_here, row_bytes_here) = (filled_up, bytes);
                    }
                    V::part(Chunk::<D> {
                        packed: packed_here,
                        row_bytes: row_bytes_here,
                        count,
                        x,
                        apart,
                        rows,
                        sums,
                        scales: of_lanes,
                        dots: PhantomData,
                    });
                    packed = packed.wrapping_add(bytes);
                    x = x.wrapping_add(D::VECTORS * apart);
                }
            }
            for row in 0..rows {
                let mut all = [V::splat(0.0); LANES];
                for (column, all) in all.iter_mut().enumerate().take(count) {
                    let at = column * PITCH + row * LANES;
                    let zero = V::splat(0.0);
                    let bias = if D::Format::AFFINE { V::load(biases.add(at)) } else { zero };
                    *all = V::load(sums.add(at)) + bias;
                }
                V::reduce_add_each(all).store(to.add(row).cast());
            }
        }
    }
}
