//! Products with bf16 inputs on AVX512_BF16. Weights are converted to bf16 by table lookup, or by
//! `floats` if they are 8-bit floats. Both are exact for up to eight bits. One instruction
//! multiplies 32 weights by 32 inputs and adds up in f32.

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::{transmute, transmute_copy};
use std::ops::Range;

use super::bands::{Block, Chunks};
use super::columns::{Columns, Dots};
use super::format::Format;
use super::operands::{Operands, prefetch_weights};
use crate::element::Element;
use crate::linear::arithmetic::InBf16;
use crate::simd::{Avx512, F32x16, LANES};

/// # Safety
/// The CPU has the features of `Level::Avx512Bf16`, and the contract of [`Columns::run`] holds.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn run<F: Format>(columns: Columns) {
    // SAFETY: the caller's contract.
    unsafe { columns.run::<Avx512<true>, Lookup<F>>() }
}

pub(super) struct Lookup<F>(PhantomData<F>);

/// A lookup table with the bf16 patterns of 64 numbers. Only the low `bits` bits of the index
/// select a number.
const fn table(bits: u32, fp4: bool, unit: f32) -> [u16; 64] {
    const FP4: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let mut table = [0; 64];
    let mut i = 0;
    while i < 64 {
        let q = i & ((1 << bits) - 1);
        let value = match (fp4, q & 8) {
            (false, _) => q as f32 * unit,
            (true, 0) => FP4[q & 7],
            (true, _) => -FP4[q & 7],
        };
        table[i] = (value.to_bits() >> 16) as u16;
        i += 1;
    }
    table
}

/// Converts the 8-bit floats in the lower halves of 16-bit lanes, or with `UPPER` in the upper
/// halves, to bf16.
///
/// # Safety
/// This machine has the instructions.
#[inline(always)]
unsafe fn floats<const UPPER: bool>(lanes: __m512i) -> __m512i {
    // The subnormal numbers, whose exponent is zero. The low bits of the code are the index.
    const SMALL: [u16; 32] = {
        let (mut table, mut i) = ([0; 32], 0);
        while i < 8 {
            table[i] = ((i as f32 / 512.0).to_bits() >> 16) as u16;
            i += 1;
        }
        table
    };
    // SAFETY: the caller's contract.
    unsafe {
        let upper = if UPPER { lanes } else { _mm512_slli_epi16::<8>(lanes) };
        // Move exponent and significand into place. Copies of the sign are in front of the
        // exponent.
        let placed =
            _mm512_and_si512(_mm512_srai_epi16::<4>(upper), _mm512_set1_epi16(0x87f0_u16 as i16));
        let normal = _mm512_add_epi16(placed, _mm512_set1_epi16(120 << 7));
        let small = _mm512_testn_epi16_mask(placed, _mm512_set1_epi16(0x0780));
        let index = if UPPER { _mm512_srli_epi16::<8>(lanes) } else { lanes };
        let table = _mm512_loadu_si512(SMALL.as_ptr().cast());
        let number = _mm512_mask_permutexvar_epi16(normal, small, index, table);
        let ones = _mm512_set1_epi16(0x07f0);
        let nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(placed, ones), ones);
        let number = _mm512_mask_mov_epi16(number, nan, _mm512_set1_epi16(0x7fc0));
        // number | (upper & 0x8000)
        _mm512_ternarylogic_epi32::<0xf8>(number, upper, _mm512_set1_epi16(i16::MIN))
    }
}

impl<F: Format> Lookup<F> {
    /// The numbers of all codes. A code of eight bits is looked up as two halves of four bits: this
    /// table has the numbers of the lower halves, and `UPPER` has the numbers of the upper halves.
    pub const TABLE: [u16; 64] = table(if F::BITS == 8 { 4 } else { F::BITS }, !F::AFFINE, 1.0);
    const UPPER: [u16; 64] = table(4, false, 16.0);
}

/// Loads `count` of the sixteen lanes of a chunk of weights, or all of them if `WHOLE`. The result
/// has 32 lanes of sixteen bits: each lane of the chunk becomes two lanes (its halves), which hold
/// whole weights.
#[inline(always)]
unsafe fn load<F: Format, const WHOLE: bool>(from: *const u8, count: usize) -> __m512i {
    // SAFETY: the caller ensures that `count` lanes are readable; masks limit the loads to them.
    unsafe {
        if !F::STRADDLES {
            if WHOLE || count == LANES {
                return _mm512_loadu_si512(from.cast());
            }
            return _mm512_maskz_loadu_epi32((1 << count) - 1, from.cast());
        }
        let words = if WHOLE || count == LANES {
            _mm512_maskz_loadu_epi32((1 << (F::LANE_BITS / 2)) - 1, from.cast())
        } else {
            _mm512_maskz_loadu_epi8((1 << (F::LANE_BITS * count / 8)) - 1, from.cast())
        };
        // Copy the 16-bit words of four lanes into each quarter of the register. Within a quarter,
        // each half of these lanes then takes the two bytes that contain its bits.
        let Spread { words: quarters, bytes, shifts } = const { &Spread::of(F::LANE_BITS) };
        let quarters = _mm512_loadu_si512(quarters.as_ptr().cast());
        let pairs = _mm512_broadcast_i32x4(_mm_loadu_si128(bytes.as_ptr().cast()));
        let words = _mm512_shuffle_epi8(_mm512_permutexvar_epi16(quarters, words), pairs);
        let shifts = _mm512_broadcast_i32x4(_mm_loadu_si128(shifts.as_ptr().cast()));
        _mm512_srlv_epi16(words, shifts)
    }
}

/// Where [`load`] finds the halves of packed lanes, which may begin in the middle of a byte.
/// `words` has the 16-bit words of four lanes that each quarter of the register takes. For each of
/// the eight halves of these lanes, `bytes` has the two bytes of the quarter that contain it, and
/// `shifts` has the number of bits before it in these bytes.
struct Spread {
    words: [u16; 32],
    bytes: [u8; 16],
    shifts: [u16; 8],
}

impl Spread {
    const fn of(lane_bits: usize) -> Self {
        let mut spread = Self { words: [0; 32], bytes: [0; 16], shifts: [0; 8] };
        let mut i = 0;
        while i < 32 {
            spread.words[i] = (i / 8 * lane_bits / 4 + i % 8) as u16;
            let bit = i % 8 * lane_bits / 2;
            spread.shifts[i % 8] = (bit % 8) as u16;
            spread.bytes[i % 8 * 2] = (bit / 8) as u8;
            spread.bytes[i % 8 * 2 + 1] = (bit / 8 + 1) as u8;
            i += 1;
        }
        spread
    }
}

#[inline(always)]
unsafe fn load_bf16<const WHOLE: bool>(from: *const u16, count: usize) -> __m512 {
    // SAFETY: the caller ensures that `count` elements are readable; the mask limits the load to
    // them.
    unsafe {
        let halves = if WHOLE {
            _mm256_loadu_si256(from.cast())
        } else {
            _mm256_maskz_loadu_epi16(((1u32 << count) - 1) as u16, from.cast())
        };
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
    }
}

/// Shifts the lowest weight out of each 16-bit lane.
#[inline(always)]
unsafe fn next_weights<F: Format>(weights: __m512i) -> __m512i {
    // SAFETY: the caller ensures that this machine has the instructions.
    unsafe {
        match F::BITS {
            2 => _mm512_srli_epi16::<2>(weights),
            3 => _mm512_srli_epi16::<3>(weights),
            4 => _mm512_srli_epi16::<4>(weights),
            5 => _mm512_srli_epi16::<5>(weights),
            _ => _mm512_srli_epi16::<6>(weights),
        }
    }
}

/// Adds the products of the weights at one position of every lane. This is a function, since a
/// closure would lack the target features, and its intrinsics would remain calls.
#[inline(always)]
unsafe fn add<const M: usize>(
    mut sums: [__m512; M],
    weight: __m512i,
    x: [*const u16; M],
    position: usize,
) -> [__m512; M] {
    for (sum, x) in sums.iter_mut().zip(x) {
        // SAFETY: prepared rows cover full chunks; this machine has the instructions.
        unsafe {
            let of_x = _mm512_loadu_si512(x.add(position * 2 * LANES).cast());
            let (weight, of_x) =
                (transmute::<__m512i, __m512bh>(weight), transmute::<__m512i, __m512bh>(of_x));
            *sum = _mm512_dpbf16_ps(*sum, weight, of_x);
        }
    }
    sums
}

impl<F: Format> Chunks for Lookup<F> {
    type Format = F;
    type Arithmetic = InBf16;
    const STEPS: usize = if F::BITS == 8 && F::AFFINE { F::PER_LANE } else { F::PER_LANE / 2 };
    const VECTORS: usize = F::PER_LANE / 2;

    #[inline(always)]
    unsafe fn load<V: F32x16>(from: *const u8) -> V::Int {
        // SAFETY: the caller's contract; this machine has the instructions, and `V` is one
        // register.
        unsafe { transmute_copy(&load::<F, true>(from, LANES)) }
    }

    #[inline(always)]
    fn weights<V: F32x16>(lanes: V::Int, step: usize) -> V {
        // SAFETY: this machine has the instructions, and `V` is one 512-bit register.
        unsafe {
            let weights: __m512i = transmute_copy(&lanes);
            let lower = _mm512_loadu_si512(Self::TABLE.as_ptr().cast());
            let rest = _mm512_loadu_si512(Self::TABLE.as_ptr().add(32).cast());
            let upper = _mm512_loadu_si512(Self::UPPER.as_ptr().cast());
            let decoded = match (F::BITS, step % 2) {
                (8, 0) if !F::AFFINE => floats::<false>(weights),
                (8, _) if !F::AFFINE => floats::<true>(weights),
                (8, 1) => _mm512_permutexvar_epi16(weights, upper),
                (6, _) => _mm512_permutex2var_epi16(lower, weights, rest),
                _ => _mm512_permutexvar_epi16(weights, lower),
            };
            transmute_copy(&decoded)
        }
    }

    #[inline(always)]
    fn rest<V: F32x16>(lanes: V::Int) -> V::Int {
        // SAFETY: this machine has the instructions, and `V` is one 512-bit register.
        unsafe {
            let weights: __m512i = transmute_copy(&lanes);
            transmute_copy(&match F::BITS {
                8 if !F::AFFINE => weights,
                8 => _mm512_srli_epi16::<4>(weights),
                _ => next_weights::<F>(weights),
            })
        }
    }
}

impl<F: Format> Dots for Lookup<F> {
    const BITS: usize = F::BITS as usize;
    const AFFINE: bool = F::AFFINE;
    const ELEMENT: Option<Element> = Some(Element::BF16);

    #[inline(always)]
    unsafe fn many<V: F32x16>(
        operands: Operands,
        count: usize,
        band: Range<usize>,
        to: *mut [f32; LANES],
    ) -> bool {
        // SAFETY: the caller's contract.
        unsafe { Block::<Self>::run_if_banded::<V>(operands, count, band, to) }
    }

    #[inline(always)]
    unsafe fn dot<V: F32x16, const M: usize>(row: Operands, rows: [usize; M]) -> [V; M] {
        let groups = row.axis / row.group;
        // SAFETY: this machine has the instructions; the groups from `at` on belong to this row.
        unsafe {
            let mut sums = Sums::<M> {
                shift: (row.group / F::PER_LANE).trailing_zeros(),
                products: [_mm512_setzero_ps(); M],
                biases: [_mm512_setzero_ps(); M],
            };
            let whole = groups / LANES * LANES;
            for at in (0..whole).step_by(LANES) {
                sums = sums.add::<V, F, true>(row, rows, at, LANES);
            }
            if whole < groups {
                sums = sums.add::<V, F, false>(row, rows, whole, groups - whole);
            }
            let mut total = [V::splat(0.0); M];
            for (m, total) in total.iter_mut().enumerate() {
                let lanes = _mm512_add_ps(sums.products[m], sums.biases[m]);
                *total = V::load((&raw const lanes).cast());
            }
            total
        }
    }
}

/// The running sums of the products of a row of weights with `M` rows of x.
#[derive(Clone, Copy)]
struct Sums<const M: usize> {
    /// A group has `2^shift` lanes.
    shift: u32,
    products: [__m512; M],
    biases: [__m512; M],
}

impl<const M: usize> Sums<M> {
    /// Adds the products of `count` groups, from group `at` on. With `WHOLE`, `count` is sixteen.
    #[inline(always)]
    unsafe fn add<V: F32x16, F: Format, const WHOLE: bool>(
        mut self,
        row: Operands,
        rows: [usize; M],
        at: usize,
        count: usize,
    ) -> Self {
        let of_groups = row.scales(Some(Element::BF16)).after(at / LANES * row.step);
        row.prefetch_scales(&of_groups);
        let prepared = row.prepared;
        let mut packed = row.packed.wrapping_add(at * row.group * F::BITS as usize / 8);
        let mut x: [*const u16; M] = [prepared.row(rows[0]); M];
        for m in 0..M {
            x[m] = prepared.row::<u16>(rows[m]).wrapping_add(at * row.group);
        }
        // SAFETY: this machine has the instructions; the weights and scales of these groups belong
        // to this row; prepared rows cover full chunks, and their sums cover full vectors.
        unsafe {
            let lower = _mm512_loadu_si512(Lookup::<F>::TABLE.as_ptr().cast());
            let rest = _mm512_loadu_si512(Lookup::<F>::TABLE.as_ptr().add(32).cast());
            let upper = _mm512_loadu_si512(Lookup::<F>::UPPER.as_ptr().cast());
            let scales = if F::AFFINE {
                let factor = _mm512_set1_ps(row.bias_factor);
                let bias = load_bf16::<WHOLE>(of_groups.biases.cast(), count);
                let bias = _mm512_mul_ps(bias, factor);
                for (sum, &m) in self.biases.iter_mut().zip(&rows) {
                    let of_x = _mm512_loadu_ps(prepared.sums(m).add(at));
                    *sum = _mm512_fmadd_ps(bias, of_x, *sum);
                }
                load_bf16::<WHOLE>(of_groups.scales.cast(), count)
            } else {
                let mut lanes = [0.0f32; LANES];
                let [scales, _] = F::scales::<V>(&of_groups, 0, count);
                scales.store(lanes.as_mut_ptr());
                _mm512_loadu_ps(lanes.as_ptr())
            };
            let mut group: [u32; LANES] = [0; LANES];
            for (lane, group) in group.iter_mut().enumerate() {
                *group = lane as u32 >> self.shift;
            }
            let mut group = _mm512_loadu_si512(group.as_ptr().cast());
            // If a group has two chunks, only every second chunk starts a new group.
            let mut step = _mm512_set1_epi32(LANES as i32 >> self.shift);
            let mut other = _mm512_sub_epi32(_mm512_set1_epi32(32 >> self.shift), step);
            let lanes = count << self.shift;
            for lane in (0..lanes).step_by(LANES) {
                prefetch_weights(packed, F::CHUNK_BYTES);
                let mut weights = load::<F, WHOLE>(packed, LANES.min(lanes - lane));
                packed = packed.wrapping_add(F::CHUNK_BYTES);
                let mut chunk = [_mm512_setzero_ps(); M];
                for position in 0..F::PER_LANE / 2 {
                    if F::BITS == 8 && !F::AFFINE {
                        // A 16-bit lane holds only these two numbers.
                        chunk = add(chunk, floats::<false>(weights), x, 0);
                        chunk = add(chunk, floats::<true>(weights), x, 1);
                        break;
                    }
                    if F::BITS == 8 {
                        let weight = _mm512_permutexvar_epi16(weights, lower);
                        chunk = add(chunk, weight, x, position);
                        weights = _mm512_srli_epi16::<4>(weights);
                        let weight = _mm512_permutexvar_epi16(weights, upper);
                        chunk = add(chunk, weight, x, position);
                        weights = _mm512_srli_epi16::<4>(weights);
                        continue;
                    }
                    let weight = if F::BITS == 6 {
                        _mm512_permutex2var_epi16(lower, weights, rest)
                    } else {
                        _mm512_permutexvar_epi16(weights, lower)
                    };
                    chunk = add(chunk, weight, x, position);
                    weights = next_weights::<F>(weights);
                }
                let scale = _mm512_permutexvar_ps(group, scales);
                group = _mm512_add_epi32(group, step);
                (step, other) = (other, step);
                for m in 0..M {
                    self.products[m] = _mm512_fmadd_ps(chunk[m], scale, self.products[m]);
                    x[m] = x[m].add(F::CHUNK);
                }
            }
        }
        self
    }
}
