//! The scales of K-quants. A block of 256 weights has two floats of 16 bits, and small integers for
//! the groups of the block. An f32 represents their products, the scales and biases of groups,
//! exactly. The kernels compute them from the blocks, and decode the weights like weights of an
//! affine format.

use std::marker::PhantomData;

use super::call::{Call, Mode};
use super::format::{Format, Scales, WriteScales};
use crate::element::{F16, Float};
use crate::simd::{F32x16, Kernel, LANES, Lines};

/// The number of weights in a block.
pub const BLOCK: usize = 256;
/// The number of bytes of a block's scales: two floats of 16 bits, then sixteen integers.
pub const SCALE_BYTES: usize = 20;

/// The bias of a group without an integer for its bias, divided by its scale.
const CENTER: f32 = -32.0;

/// The number of integers for the scales of a block whose groups have biases.
const HALF: usize = LANES / 2;

/// The largest number of weights for which [`Part`] has room.
const PART: usize = 1024;
/// The largest number of groups in [`PART`] weights.
const GROUPS: usize = PART / 16;
const _: () = assert!(GROUPS.is_multiple_of(LANES));

/// The layout of the scales of a call.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    /// The number of weights in a group.
    group: usize,
    /// Whether a group has one signed integer, and a weight is `scale * (code - 32)`. Otherwise a
    /// group has two integers, one for its scale and one for its bias.
    centered: bool,
}

impl Blocks {
    /// The layout of a format, or `None` if its scales are not in blocks.
    #[inline(always)]
    pub fn of(mode: Mode, bits: u32, group: usize) -> Option<Self> {
        (mode == Mode::KQuant).then_some(Self::of_bits(bits, group))
    }

    /// The layout of K-quants with codes of `bits` bits.
    #[inline(always)]
    pub fn of_bits(bits: u32, group: usize) -> Self {
        Self { group, centered: bits == 6 }
    }

    #[inline(always)]
    pub fn of_call(call: &Call) -> Option<Self> {
        Self::of(call.mode, call.bits, call.group)
    }

    /// The factor by which a group's scale is multiplied to get its bias, if it has no other bias.
    #[inline(always)]
    pub fn bias_factor(self) -> Option<f32> {
        self.centered.then_some(CENTER)
    }

    /// The size in bytes of the scales of `weights` weights.
    #[inline(always)]
    pub fn bytes(weights: usize) -> usize {
        weights / BLOCK * SCALE_BYTES
    }

    /// Returns the scales and biases of the first `count` groups of a row of blocks, followed by
    /// zeros. `count` is sixteen, or the number of groups of a block.
    ///
    /// # Safety
    /// `from` has the blocks of these groups.
    #[inline(always)]
    pub unsafe fn scales<V: F32x16>(self, from: *const u8, count: usize) -> [V; 2] {
        debug_assert!(count == LANES || count == BLOCK / self.group);
        let integers = from.wrapping_add(2 * size_of::<u16>());
        // SAFETY: the caller's contract; a block has two floats, and then sixteen integers.
        unsafe {
            let step = |at: usize| from.add(at).cast::<u16>().read_unaligned();
            if self.centered {
                let steps = [step(0); LANES];
                let integers = V::add_int(V::load_bytes(integers), V::splat_int(-128));
                let scales = V::from_int(integers) * F16::load(steps.as_ptr().cast());
                return [scales, scales * V::splat(CENTER)];
            }
            // Eight integers of a block are for scales, and eight for biases.
            let mut steps = [[0; LANES]; 2];
            let mut bytes = [[0; LANES]; 2];
            for block in 0..count / HALF {
                let at = block * SCALE_BYTES;
                for (i, (steps, bytes)) in steps.iter_mut().zip(&mut bytes).enumerate() {
                    steps[block * HALF..][..HALF].fill(step(at + i * size_of::<u16>()));
                    let eight = integers.add(at + i * HALF).cast::<[u8; HALF]>().read();
                    bytes[block * HALF..][..HALF].copy_from_slice(&eight);
                }
            }
            let mut all = [V::splat(0.0); 2];
            for i in 0..2 {
                let steps = F16::load::<V>(steps[i].as_ptr().cast());
                all[i] = V::from_int(V::load_bytes(bytes[i].as_ptr())) * steps;
            }
            all
        }
    }

    /// Writes a scale and a bias for each group of `weights` weights.
    ///
    /// # Safety
    /// `from` has the blocks of the weights, and there is room for the scales and biases.
    #[inline(always)]
    unsafe fn spread<V: F32x16>(
        self,
        from: *const u8,
        weights: usize,
        scales: *mut f32,
        biases: *mut f32,
    ) {
        let groups = weights / self.group;
        for at in (0..groups).step_by(LANES) {
            let count = LANES.min(groups - at);
            // SAFETY: the caller's contract.
            unsafe {
                let all = self.scales::<V>(from.add(Self::bytes(at * self.group)), count);
                for (all, to) in all.into_iter().zip([scales, biases]) {
                    if count == LANES {
                        all.store(to.add(at));
                    } else {
                        all.store_first(to.add(at), count);
                    }
                }
            }
        }
    }

    /// Does the work of `spread` in a separate function. All kernels of one instruction set share
    /// this function.
    ///
    /// # Safety
    /// The contract of `spread`; the machine has the features of the vectors.
    #[inline(always)]
    pub unsafe fn write<V: F32x16>(
        self,
        from: *const u8,
        weights: usize,
        scales: *mut f32,
        biases: *mut f32,
    ) {
        // SAFETY: the caller's contract.
        unsafe { V::part(Spread { blocks: self, from, weights, scales, biases }) }
    }

    /// The scale and the bias of group `index` of the blocks at `from`, in every lane.
    ///
    /// # Safety
    /// The group exists.
    #[inline(always)]
    pub unsafe fn of_group<V: F32x16>(self, from: *const u8, index: usize) -> [V; 2] {
        let (block, within) = (index * self.group / BLOCK, index % (BLOCK / self.group));
        let mut all = [0.0f32; 2 * LANES];
        let scales = all.as_mut_ptr();
        let biases = scales.wrapping_add(LANES);
        // SAFETY: the caller's contract; a block has at most sixteen groups.
        unsafe {
            let from = from.add(block * SCALE_BYTES);
            self.write::<V>(from, BLOCK, scales, biases);
        }
        [V::splat(all[within]), V::splat(all[LANES + within])]
    }
}

/// Writes out the scales and biases of consecutive groups.
struct Spread {
    blocks: Blocks,
    from: *const u8,
    weights: usize,
    scales: *mut f32,
    biases: *mut f32,
}

impl Kernel for Spread {
    const BF16: bool = false;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        // SAFETY: the caller's contract.
        unsafe { self.blocks.spread::<V>(self.from, self.weights, self.scales, self.biases) }
    }
}

/// Room for the scales and biases of a part of a row, at most [`PART`] weights, in f32.
pub(super) struct Part(Lines<{ 2 * GROUPS }>);

impl Part {
    #[inline(always)]
    pub fn new() -> Self {
        Self(Lines::uninit())
    }

    /// Writes the scales and biases of `weights` weights, whose blocks are at `from`, and returns
    /// their addresses.
    ///
    /// # Safety
    /// `from` has the blocks of `weights` weights, which are full blocks and at most [`PART`].
    #[inline(always)]
    pub unsafe fn of<V: F32x16>(
        &mut self,
        blocks: Blocks,
        from: *const u8,
        weights: usize,
    ) -> [*const f32; 2] {
        let scales = self.0.as_mut_ptr();
        let biases = scales.wrapping_add(GROUPS);
        // SAFETY: the caller's contract; there is room for all groups.
        unsafe { blocks.write::<V>(from, weights, scales, biases) };
        [scales, biases]
    }

    /// Does the work of [`of`](Self::of) for `groups` groups of a format whose scales are not in
    /// blocks.
    ///
    /// # Safety
    /// The groups exist and have at most [`PART`] weights.
    #[inline(always)]
    pub unsafe fn of_groups<V: F32x16, F: Format>(
        &mut self,
        of: &Scales,
        groups: usize,
    ) -> [*const f32; 2] {
        let all = self.0.as_mut_ptr();
        for at in (0..groups).step_by(LANES) {
            let (scales, biases) = (all.wrapping_add(at), all.wrapping_add(GROUPS + at));
            let (count, format) = (LANES.min(groups - at), PhantomData::<F::OfScales>);
            // SAFETY: the caller's contract; there is room for all groups, in full vectors.
            unsafe { V::part(WriteScales { of, at, count, scales, biases, format }) };
        }
        [all, all.wrapping_add(GROUPS)]
    }
}
