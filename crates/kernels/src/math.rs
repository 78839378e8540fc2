//! Elementary functions on blocks of lanes.

use super::element::Float;
use super::simd::{F32x16, Function, INTEGERS, LANES};

/// e^x for x <= 0, within one ulp, subnormal results included; NaN gives NaN, -inf gives 0.
#[inline(always)]
pub fn exp_nonpositive<V: F32x16>(x: V) -> V {
    V::call::<ExpNonpositive<false>>(x)
}

/// e^x for x <= 0, with a relative error of |x| * 2^-28 + 2^-22. It takes fewer operations than
/// [`exp_nonpositive`], and is exact enough for results that are rounded to at most eleven bits.
#[inline(always)]
pub fn exp_nonpositive_short<V: F32x16>(x: V) -> V {
    V::call::<ExpNonpositive<true>>(x)
}

struct ExpNonpositive<const SHORT: bool>;

impl<const SHORT: bool> Function for ExpNonpositive<SHORT> {
    #[inline(always)]
    fn of<V: F32x16>(x: V) -> V {
        let x = if V::SCALES { x } else { clamped(x) };
        let (n, sum) = nearest(x);
        factor::<V, SHORT>(x, n).scale_by_power(n, sum)
    }
}

/// Replaces each lane below -190 ln 2 by -190 ln 2, so that -inf does not reach the range
/// reduction. The exponential of such a lane becomes zero.
#[inline(always)]
fn clamped<V: F32x16>(x: V) -> V {
    V::splat(-131.697_97).max(x)
}

/// Returns the integer n that is nearest to x / ln 2, and n + [`INTEGERS`].
#[inline(always)]
fn nearest<V: F32x16>(x: V) -> (V, V) {
    // The addition rounds to an integer.
    let sum = x.mul_add(V::splat(std::f32::consts::LOG2_E), V::splat(INTEGERS));
    (sum - V::splat(INTEGERS), sum)
}

/// Returns x - n ln 2, rounded once.
#[inline(always)]
fn remainder<V: F32x16>(x: V, n: V) -> V {
    n.mul_add(V::splat(-std::f32::consts::LN_2), x)
}

/// Returns e^x / 2^n for the n of [`nearest`], to the precision of [`exp_nonpositive`] or, with
/// `SHORT`, of [`exp_nonpositive_short`].
#[inline(always)]
fn factor<V: F32x16, const SHORT: bool>(x: V, n: V) -> V {
    if SHORT {
        let r = remainder(x, n);
        let p = V::splat(8.312_52e-3);
        let p = p.mul_add(r, V::splat(4.189_015_6e-2));
        let p = p.mul_add(r, V::splat(1.666_711_4e-1));
        let p = p.mul_add(r, V::splat(4.999_923e-1));
        let p = p.mul_add(r, V::splat(1.0));
        return p.mul_add(r, V::splat(1.0));
    }
    // The high part of ln 2 is short enough that its product with n is exact.
    let r = n.mul_add(V::splat(-0.693_359_4), x);
    let r = n.mul_add(V::splat(2.121_944_4e-4), r);
    let p = V::splat(1.392_621_3e-3);
    let p = p.mul_add(r, V::splat(8.363_203e-3));
    let p = p.mul_add(r, V::splat(4.166_655_6e-2));
    let p = p.mul_add(r, V::splat(1.666_657_6e-1));
    let p = p.mul_add(r, V::splat(0.5));
    let p = p.mul_add(r, V::splat(1.0));
    p.mul_add(r, V::splat(1.0))
}

/// The factor of [`raised_exponential`], 2^63.
pub const RAISE: f32 = f32::from_bits((127 + 63) << 23);

/// Returns 2^(n + 63), or zero for n = -190. `sum` is n + [`INTEGERS`]. Its lowest bits are
/// n + 190, the biased exponent of the result.
#[inline(always)]
fn raised_power<V: F32x16>(sum: V) -> V {
    V::from_bits(V::shift_left::<23>(sum.to_bits()))
}

/// Returns e^x * 2^63 for x <= 0, with the error of [`exp_nonpositive`] for `f32`, and of
/// [`exp_nonpositive_short`] for other types. The factor cancels in a quotient of two such numbers.
/// It makes exponentials down to 2^-188 normal numbers, which take fewer operations. Smaller
/// exponentials may become 0. For -inf the result is 0, and for NaN it is NaN.
#[inline(always)]
pub fn raised_exponential<V: F32x16, T: Float>(x: V) -> V {
    if size_of::<T>() == size_of::<f32>() {
        V::call::<RaisedExponential<false>>(x)
    } else {
        V::call::<RaisedExponential<true>>(x)
    }
}

struct RaisedExponential<const SHORT: bool>;

impl<const SHORT: bool> Function for RaisedExponential<SHORT> {
    #[inline(always)]
    fn of<V: F32x16>(x: V) -> V {
        let x = clamped(x);
        let (n, sum) = nearest(x);
        factor::<V, SHORT>(x, n) * raised_power(sum)
    }
}

/// Returns `total + e^x * 2^63` for x <= 0, with the error of [`raised_exponential`].
#[inline(always)]
pub fn add_raised_exponential<V: F32x16, T: Float>(total: V, x: V) -> V {
    let x = clamped(x);
    let (n, sum) = nearest(x);
    if size_of::<T>() == size_of::<f32>() {
        return factor::<V, false>(x, n).mul_add(raised_power(sum), total);
    }
    factor::<V, true>(x, n).mul_add(raised_power(sum), total)
}

/// Above this magnitude MLX calls libm instead of evaluating its polynomials.
const SINCOS_LIMIT: f32 = 8_388_608.0;

/// (sin x, cos x), with the same operations as MLX's CPU backend (the Cephes single-precision
/// polynomials), so that rotations match `mx.fast.rope` bit for bit.
#[inline(always)]
pub fn sin_cos<V: F32x16>(x: V) -> (V, V) {
    let magnitude = x.abs();
    let (sin, cos) = sin_cos_reduced(x, magnitude);
    if magnitude.any_above(SINCOS_LIMIT) {
        return sin_cos_by_lane(x, sin, cos);
    }
    (sin, cos)
}

#[inline(always)]
fn sin_cos_reduced<V: F32x16>(x: V, magnitude: V) -> (V, V) {
    // The octant, rounded up to an even number: 0, 2, 4 and 6 are the multiples of pi/2.
    let octant = (magnitude * V::splat(1.273_239_5)).to_int();
    let octant = V::and_int(V::add_int(octant, V::splat_int(1)), V::splat_int(!1));
    let y = V::from_int(octant);
    let r = y.mul_add(V::splat(-0.785_156_25), magnitude);
    let r = y.mul_add(V::splat(-2.418_756_5e-4), r);
    let r = y.mul_add(V::splat(-3.774_895e-8), r);
    let z = r * r;

    let c = z.mul_add(V::splat(2.443_315_7e-5), V::splat(-1.388_731_6e-3));
    let c = c.mul_add(z, V::splat(4.166_664_6e-2)) * z * z;
    let c = z.mul_add(V::splat(-0.5), c) + V::splat(1.0);
    let s = z.mul_add(V::splat(-1.951_529_6e-4), V::splat(8.332_161e-3));
    let s = s.mul_add(z, V::splat(-1.666_665_5e-1)) * z;
    let s = r.mul_add(s, r);

    // Bit 1 of the octant exchanges sine and cosine, and bit 2 is the sign. Adding +0 makes -0
    // positive.
    let swap = V::and_int(octant, V::splat_int(2));
    let sign = V::splat_int(i32::MIN);
    let sin_sign = V::and_int(V::shift_left::<29>(octant), sign);
    let cos_sign = V::add_int(octant, V::splat_int(2));
    let cos_sign = V::and_int(V::shift_left::<29>(cos_sign), sign);
    let x_sign = V::and_int((x + V::splat(0.0)).to_bits(), sign);
    let sin = V::select(swap, c, s).xor_bits(sin_sign).xor_bits(x_sign);
    let cos = V::select(swap, s, c).xor_bits(cos_sign);
    (sin, cos)
}

/// Replaces the lanes beyond the limit by libm's results.
#[cold]
#[inline(never)]
fn sin_cos_by_lane<V: F32x16>(x: V, sin: V, cos: V) -> (V, V) {
    let (mut xs, mut sines, mut cosines) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    // SAFETY: each array holds sixteen floats.
    unsafe {
        x.store(xs.as_mut_ptr());
        sin.store(sines.as_mut_ptr());
        cos.store(cosines.as_mut_ptr());
        for lane in 0..LANES {
            if xs[lane].abs() > SINCOS_LIMIT {
                sines[lane] = xs[lane].sin();
                cosines[lane] = xs[lane].cos();
            }
        }
        (V::load(sines.as_ptr()), V::load(cosines.as_ptr()))
    }
}

/// Computes e^x as MLX's CPU backend does. RoPE computes its frequencies with this function, since
/// for frequencies equality with MLX matters more than accuracy in the last bits.
#[inline(always)]
pub fn exp_like_mlx(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    if x > 88.0 {
        return f32::INFINITY;
    }
    if x < -88.0 {
        return 0.0;
    }
    let y = x * std::f32::consts::LOG2_E;
    // In MLX the 0.5 is a double.
    let whole = (f64::from(y) + 0.5).floor() as f32;
    let part = y - whole;
    let p = 1.535_336_2e-4_f32;
    let p = p.mul_add(part, 1.339_887_4e-3);
    let p = p.mul_add(part, 9.618_437e-3);
    let p = p.mul_add(part, 5.550_332_5e-2);
    let p = p.mul_add(part, 2.402_264_8e-1);
    let p = p.mul_add(part, 6.931_472e-1);
    let p = p.mul_add(part, 1.0);
    f32::from_bits(((whole as i32 + 127) << 23) as u32) * p
}

/// Computes [`exp_like_mlx`] on lanes, bit for bit, for x >= 0 and NaN.
#[inline(always)]
pub fn exp_of_mlx_up<V: F32x16>(x: V) -> V {
    V::call::<ExpOfMlxUp>(x)
}

struct ExpOfMlxUp;

impl Function for ExpOfMlxUp {
    #[inline(always)]
    fn of<V: F32x16>(x: V) -> V {
        let y = V::splat(89.0).min(x) * V::splat(std::f32::consts::LOG2_E);
        // Compute floor(y + 1/2) without rounding the sum: 2 y is exact and not negative, so its
        // truncation equals its floor.
        let whole = V::shift_right::<1>(V::add_int((y + y).to_int(), V::splat_int(1)));
        let power = V::shift_left::<23>(V::add_int(whole, V::splat_int(127)));
        let result = V::from_bits(power) * polynomial_of_mlx(y - V::from_int(whole));
        let over = V::splat(88.0) - x;
        V::select(negative(over), V::splat(f32::INFINITY), result)
    }
}

/// Computes [`exp_like_mlx`] on lanes, bit for bit, for x <= 0 and NaN.
#[inline(always)]
pub fn exp_of_mlx_down<V: F32x16>(x: V) -> V {
    V::call::<ExpOfMlxDown>(x)
}

struct ExpOfMlxDown;

impl Function for ExpOfMlxDown {
    #[inline(always)]
    fn of<V: F32x16>(x: V) -> V {
        // At -88, the power of two is zero, as MLX's result is for lanes below -88.
        let y = V::splat(-88.0).max(x) * V::splat(std::f32::consts::LOG2_E);
        // The sum may be rounded, but only between 0 and 1/2, where the floor does not change.
        let whole = (y + V::splat(0.5)).floor();
        // The lowest bits of the sum are the biased exponent of 2^whole.
        let power = V::shift_left::<23>((whole + V::splat(12_582_912.0 + 127.0)).to_bits());
        polynomial_of_mlx(y - whole) * V::from_bits(power)
    }
}

/// MLX's polynomial for `2^part`.
#[inline(always)]
fn polynomial_of_mlx<V: F32x16>(part: V) -> V {
    let p = V::splat(1.535_336_2e-4);
    let p = p.mul_add(part, V::splat(1.339_887_4e-3));
    let p = p.mul_add(part, V::splat(9.618_437e-3));
    let p = p.mul_add(part, V::splat(5.550_332_5e-2));
    let p = p.mul_add(part, V::splat(2.402_264_8e-1));
    let p = p.mul_add(part, V::splat(6.931_472e-1));
    p.mul_add(part, V::splat(1.0))
}

/// Returns an integer that is not zero in the lanes of `x` whose sign bit is set.
#[inline(always)]
fn negative<V: F32x16>(x: V) -> V::Int {
    V::and_int(x.to_bits(), V::splat_int(i32::MIN))
}

/// The logistic function as MLX's CPU backend computes it for `T`, rounded to `T`.
#[inline(always)]
pub fn sigmoid<V: F32x16, T: Float>(x: V) -> V {
    let one = V::splat(1.0);
    let y = one / (one + T::round(exp_of_mlx_up(x.abs())));
    T::round(V::select(negative(x), y, one - y))
}

/// The error function as MLX's CPU backend computes it, within 1.5e-7 (Abramowitz and Stegun
/// 7.1.26).
#[inline(always)]
pub fn erf_of_mlx<V: F32x16>(x: V) -> V {
    erf_and_exp(x).0
}

/// Computes [`erf_of_mlx`] and `exp(-x²)`.
#[inline(always)]
pub fn erf_and_exp<V: F32x16>(x: V) -> (V, V) {
    let (sign, one) = (V::splat_int(i32::MIN), V::splat(1.0));
    let t = one / V::splat(0.327_591_1).mul_add(x.abs(), one);
    let r = V::splat(1.061_405_4).mul_add(t, V::splat(-1.453_152_1));
    let r = r.mul_add(t, V::splat(1.421_413_8));
    let r = r.mul_add(t, V::splat(-0.284_496_72));
    let r = r.mul_add(t, V::splat(0.254_829_6));
    let e = exp_of_mlx_down(x.xor_bits(sign) * x);
    let magnitude = (e * t).xor_bits(sign).mul_add(r, one);
    (magnitude.xor_bits(V::and_int(x.to_bits(), sign)), e)
}

/// tanh x, within two ulps; NaN gives NaN.
#[inline(always)]
pub fn tanh<V: F32x16>(x: V) -> V {
    V::call::<Tanh>(x)
}

struct Tanh;

impl Function for Tanh {
    #[inline(always)]
    fn of<V: F32x16>(x: V) -> V {
        let magnitude = x.abs();
        // (1 - e^-2|x|) / (1 + e^-2|x|) cancels near 0, so Cephes' polynomial is used there.
        // Numerator and denominator have the factor of the exponential.
        let e = raised_exponential::<V, f32>(magnitude * V::splat(-2.0));
        let sign = V::and_int(x.to_bits(), V::splat_int(i32::MIN));
        let large = ((V::splat(RAISE) - e) / (V::splat(RAISE) + e)).xor_bits(sign);
        let z = x * x;
        let p = V::splat(-5.704_988_7e-3);
        let p = p.mul_add(z, V::splat(2.063_908_8e-2));
        let p = p.mul_add(z, V::splat(-5.373_971_6e-2));
        let p = p.mul_add(z, V::splat(1.333_144_2e-1));
        let p = p.mul_add(z, V::splat(-3.333_328e-1));
        let small = (p * z).mul_add(x, x);
        V::select(negative(magnitude - V::splat(0.625)), small, large)
    }
}
