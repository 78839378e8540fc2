//! Dot products within lanes and the preparation of their operands, for instruction sets that have
//! no instructions for these operations.

use super::lanes::{LANES, Lanes};

/// Computes [`F32x16::dot_bf16`](super::F32x16::dot_bf16) with two multiply-adds of floats.
#[inline(always)]
pub fn dot_bf16_by_halves<V: Lanes>(sum: V, a: V::Int, b: V::Int) -> V {
    lower::<V>(a).mul_add(lower(b), upper::<V>(a).mul_add(upper(b), sum))
}

#[inline(always)]
fn upper<V: Lanes>(pair: V::Int) -> V {
    V::from_bits(V::and_int(pair, V::splat_int(!0xffff)))
}

#[inline(always)]
fn lower<V: Lanes>(pair: V::Int) -> V {
    V::from_bits(V::shift_left::<16>(pair))
}

/// Computes [`F32x16::nibble_pairs`](super::F32x16::nibble_pairs) with shifts and conversions.
#[inline(always)]
pub fn nibble_pairs<V: Lanes>(words: V::Int) -> [V::Int; 4] {
    [
        pair::<V>(words, V::shift_right::<16>(words)),
        pair::<V>(V::shift_right::<4>(words), V::shift_right::<20>(words)),
        pair::<V>(V::shift_right::<8>(words), V::shift_right::<24>(words)),
        pair::<V>(V::shift_right::<12>(words), V::shift_right::<28>(words)),
    ]
}

/// Converts the low four bits of `low` and of `high` to a pair of bf16. The bf16 of a number below
/// sixteen is the upper half of its float.
#[inline(always)]
fn pair<V: Lanes>(low: V::Int, high: V::Int) -> V::Int {
    let low = V::shift_right::<16>(V::low_bits::<4>(low).to_bits());
    V::low_bits::<4>(high).xor_bits(low).to_bits()
}

/// Computes [`F32x16::dot_bytes`](super::F32x16::dot_bytes) lane by lane.
#[inline(always)]
pub fn dot_bytes_in_turn<V: Lanes>(sum: V::Int, a: V::Int, b: V::Int) -> V::Int {
    let mut words = [[0.0f32; LANES]; 3];
    // SAFETY: each array holds sixteen words; `load` accepts any bit pattern.
    unsafe {
        for (words, lanes) in words.iter_mut().zip([sum, a, b]) {
            V::from_bits(lanes).store(words.as_mut_ptr());
        }
        let [sums, a, b] = words;
        let lanes: [u32; LANES] = std::array::from_fn(|i| {
            let (a, b) = (a[i].to_bits().to_le_bytes(), b[i].to_bits().to_le_bytes());
            let products = a.iter().zip(b).map(|(&a, b)| i32::from(a) * i32::from(b as i8));
            (sums[i].to_bits() as i32).wrapping_add(products.sum()) as u32
        });
        V::load(lanes.as_ptr().cast()).to_bits()
    }
}

/// Computes [`F32x16::byte_fields`](super::F32x16::byte_fields) with a shift and a mask.
#[inline(always)]
pub fn byte_fields_by_shifts<V: Lanes>(a: V::Int, at: u32, bits: u32) -> V::Int {
    let mask = V::splat_int(((1 << bits) - 1) * 0x0101_0101);
    match at {
        0 => V::and_int(a, mask),
        2 => V::and_int(V::shift_right::<2>(a), mask),
        4 => V::and_int(V::shift_right::<4>(a), mask),
        _ => V::and_int(V::shift_right::<6>(a), mask),
    }
}
