//! Converts 4-bit and 8-bit floats to f32 without a table.

use super::lanes::Lanes;

/// The bits of each lane that `mask` selects.
#[inline(always)]
fn bits<V: Lanes>(a: V::Int, mask: i32) -> V::Int {
    V::and_int(a, V::splat_int(mask))
}

/// Converts the low `BITS` bits of each lane, 4 or 8, to a float. The format has a sign, two or
/// four bits of exponent, and one or three bits of mantissa. It has no infinities. With eight bits,
/// an exponent and mantissa of all ones are NaN.
#[inline(always)]
pub fn low<V: Lanes, const BITS: u32>(a: V::Int) -> V {
    // `magnitude` has the exponent and mantissa at the bits where f32 has them. Its exponent is too
    // small by `bias`. If the exponent is zero, the number is `mantissa * step`.
    let (sign, magnitude, exponent, mantissa, bias, step) = match BITS {
        4 => (
            V::shift_left::<28>(bits::<V>(a, 0x8)),
            V::shift_left::<22>(bits::<V>(a, 0x7)),
            bits::<V>(a, 0x6),
            bits::<V>(a, 0x1),
            126 << 23,
            0.5,
        ),
        _ => (
            V::shift_left::<24>(bits::<V>(a, 0x80)),
            V::shift_left::<20>(bits::<V>(a, 0x7f)),
            bits::<V>(a, 0x78),
            bits::<V>(a, 0x7),
            120 << 23,
            1.0 / 512.0,
        ),
    };
    let normal = V::from_bits(V::add_int(magnitude, V::splat_int(bias)));
    let number = V::select(exponent, normal, V::from_int(mantissa) * V::splat(step)).xor_bits(sign);
    if BITS == 4 {
        return number;
    }
    let all_ones = V::and_int(V::add_int(bits::<V>(a, 0x7f), V::splat_int(1)), V::splat_int(0x80));
    V::select(all_ones, V::splat(f32::NAN), number)
}
