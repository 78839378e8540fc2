//! The factors of products: rows of weights and the prepared rows of x.

use std::ops::Range;

use super::format::{Format, Scales};
use super::k_quant::Blocks;
use super::prepare::{OfX, Prepared};
use super::{Call, Weights};
use crate::element::Element;
use crate::simd::{F32x16, LANES, prefetch_far};

/// The largest number of blocks of sixteen columns that one call of `Kind::multiply` computes. It
/// computes several blocks, since the call itself takes about 60 ns (Zen 4).
pub(super) const BLOCKS: usize = 7;
/// The largest number of rows of x in any band. One pass over the weights multiplies all rows of a
/// band.
pub(super) const MOST_ROWS: usize = 64;

/// One row of weights, and the prepared rows of x.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a> {
    pub packed: *const u8,
    /// The row's scales and biases.
    scales: Scales,
    /// The layout of the scales and biases, if they are the blocks of K-quants.
    pub blocks: Option<Blocks>,
    /// The factor of the biases that are read. It is 1, except if the scales are read in their
    /// place, because each bias is the scale times this factor.
    pub bias_factor: f32,
    /// The number of bytes of a row of weights (`bytes`), of a row of scales (`scale_bytes`) and of
    /// the scales of sixteen groups (`step`).
    pub bytes: usize,
    pub scale_bytes: usize,
    pub step: usize,
    /// Scales are prefetched this many bytes ahead of their loads.
    ahead: usize,
    pub axis: usize,
    pub group: usize,
    pub prepared: &'a Prepared,
}

/// Weights are prefetched this many bytes ahead of their loads. Scales are prefetched for the
/// weights at this distance.
const AHEAD: usize = 8192;

impl<'a> Operands<'a> {
    /// The operands of the first row of weights. The divisions are done once here, since they take
    /// as long as the work on a short row.
    pub fn first(kind: Kind, call: &Call, weights: &Weights, prepared: &'a Prepared) -> Self {
        let &Weights { packed, scales, biases, .. } = weights;
        let &Call { axis, group, .. } = call;
        let blocks = Blocks::of_call(call);
        let element = kind.element.unwrap_or(call.of_scales);
        // Rows in their place have the bits of longer prompts, which read the biases.
        let (biases, bias_factor) = match call.centered && prepared.of_x == OfX::Prepared {
            true => (scales, -((1 << (kind.bits - 1)) as f32)),
            false => (if blocks.is_some() { scales } else { biases }, 1.0),
        };
        let each = if kind.affine { element.bytes() } else { 1 };
        // The number of bytes of the scales of some weights.
        let of_weights = |weights: usize| match blocks {
            Some(_) => Blocks::bytes(weights),
            None => weights / group * each,
        };
        Self {
            packed,
            scales: Scales { element, scales, biases },
            blocks,
            bias_factor,
            bytes: axis * kind.bits / 8,
            scale_bytes: of_weights(axis),
            step: of_weights(LANES * group),
            ahead: of_weights(AHEAD * 8 / kind.bits),
            axis,
            group,
            prepared,
        }
    }

    /// The operands of the row that is `rows` rows below.
    #[inline(always)]
    pub fn below(mut self, rows: usize) -> Self {
        self.packed = self.packed.wrapping_add(rows * self.bytes);
        self.scales = self.scales.after(rows * self.scale_bytes);
        self
    }

    /// The row's scales, read as elements of type `element` if it is given.
    #[inline(always)]
    pub fn scales(&self, element: Option<Element>) -> Scales {
        Scales { element: element.unwrap_or(self.scales.element), ..self.scales }
    }

    /// Returns the scales and biases of the first `count` groups at `here`, followed by zeros.
    /// `count` is sixteen, or the number of groups that are left in the row.
    ///
    /// # Safety
    /// The groups belong to a row of the call, and begin at a multiple of sixteen.
    #[inline(always)]
    pub unsafe fn load_scales<V: F32x16, F: Format>(&self, here: &Scales, count: usize) -> [V; 2] {
        // SAFETY: the caller's contract; rows of K-quants are full blocks.
        unsafe {
            if const { F::IN_BLOCKS } && self.blocks.is_some() {
                let blocks = Blocks::of_bits(F::BITS, self.group);
                return blocks.scales(here.scales, count);
            }
            let [scales, biases] = F::scales::<V>(here, 0, count);
            [scales, if F::AFFINE { biases * V::splat(self.bias_factor) } else { biases }]
        }
    }

    /// Prefetches the scales and biases of the weights that are `AHEAD` bytes after the weights of
    /// `here`. Hardware prefetchers do not follow two more streams that advance this slowly.
    #[inline(always)]
    pub fn prefetch_scales(&self, here: &Scales) {
        let ahead = here.after(self.ahead);
        prefetch_far(ahead.scales, 1);
        prefetch_far(ahead.biases, 1);
    }
}

/// Prefetches the weights `AHEAD` bytes after a chunk, for a chunk of `bytes` bytes.
#[inline(always)]
pub(super) fn prefetch_weights(chunk: *const u8, bytes: usize) {
    prefetch_far(chunk.wrapping_add(AHEAD), bytes);
}

/// The properties of a kind of products, for the loop over bands of rows of x.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub bits: usize,
    pub affine: bool,
    pub element: Option<Element>,
    /// The largest number of rows of x in a band.
    pub band: usize,
    /// Multiplies rows of weights, in blocks of sixteen, with a band of rows of x. It writes block
    /// after block, sixteen columns for each row of the band.
    pub multiply: unsafe fn(Operands, usize, Range<usize>, *mut [f32; LANES]),
}
