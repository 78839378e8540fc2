//! Elementary functions on blocks of lanes.

use super::element::Float;
use super::simd::{F32x16, Function, INTEGERS, LANES};

/// e^x for x <= 0, within one ulp, subnormal results included; NaN gives NaN, -inf gives 0.
#[inline(always)]
pub fn exp_nonpositive<V: F32x16>(x: V) -> V {
    V::call::<ExpNonpositive>(x)
}

struct ExpNonpositive;

impl Function for ExpNonpositive {
    #[inline(always)]
    fn of<V: F32x16>(x: V) -> V {
        // The clamp keeps -inf out of the range reduction. At the clamp, e^x is 2^-190.
        let x = if V::SCALES { x } else { V::splat(-131.697_97).max(x) };
        // x = n ln 2 + r with |r| <= ln 2 / 2. Adding `INTEGERS` rounds to an integer. The high
        // part of ln 2 is short enough that its product with n is exact.
        let integers = V::splat(INTEGERS);
        let sum = x.mul_add(V::splat(std::f32::consts::LOG2_E), integers);
        let n = sum - integers;
        let r = n.mul_add(V::splat(-0.693_359_4), x);
        let r = n.mul_add(V::splat(2.121_944_4e-4), r);
        let p = V::splat(1.392_621_3e-3);
        let p = p.mul_add(r, V::splat(8.363_203e-3));
        let p = p.mul_add(r, V::splat(4.166_655_6e-2));
        let p = p.mul_add(r, V::splat(1.666_657_6e-1));
        let p = p.mul_add(r, V::splat(0.5));
        let p = p.mul_add(r, V::splat(1.0));
        let p = p.mul_add(r, V::splat(1.0));
        p.scale_by_power(n, sum)
    }
}

/// e^x for x <= 0, with a relative error of |x| * 2^-23 + 2^-22. It takes fewer operations than
/// [`exp_nonpositive`], and is exact enough for results that are rounded to at most eleven bits.
#[inline(always)]
pub fn exp_nonpositive_short<V: F32x16>(x: V) -> V {
    V::call::<ExpNonpositiveShort>(x)
}

struct ExpNonpositiveShort;

impl Function for ExpNonpositiveShort {
    #[inline(always)]
    fn of<V: F32x16>(x: V) -> V {
        let t = x * V::splat(std::f32::consts::LOG2_E);
        let t = if V::SCALES { t } else { V::splat(-190.0).max(t) };
        let (n, sum) = t.round_to_power();
        let r = t - n;
        let p = V::splat(1.327_647_1e-3);
        let p = p.mul_add(r, V::splat(9.675_541e-3));
        let p = p.mul_add(r, V::splat(5.550_713e-2));
        let p = p.mul_add(r, V::splat(2.402_212e-1));
        let p = p.mul_add(r, V::splat(6.931_469_4e-1));
        let p = p.mul_add(r, V::splat(1.0));
        p.scale_by_power(n, sum)
    }
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
        let result = exp_of_parts(whole, y - V::from_int(whole));
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
        let y = V::splat(-89.0).max(x) * V::splat(std::f32::consts::LOG2_E);
        // Compute floor(y + 1/2) without rounding the sum. Values halfway between integers must go
        // up, but `round` may round them down.
        let nearest = y.round();
        let below = (V::splat(0.5) - (y - nearest)).to_bits();
        let whole = V::select(below, nearest, nearest + V::splat(1.0));
        let result = exp_of_parts(whole.to_int(), y - whole);
        let under = x - V::splat(-88.0);
        let result = V::select(negative(under), V::splat(0.0), result);
        V::select(x.is_nan(), x, result)
    }
}

/// `2^(whole + part)` by MLX's polynomial.
#[inline(always)]
fn exp_of_parts<V: F32x16>(whole: V::Int, part: V) -> V {
    let p = V::splat(1.535_336_2e-4);
    let p = p.mul_add(part, V::splat(1.339_887_4e-3));
    let p = p.mul_add(part, V::splat(9.618_437e-3));
    let p = p.mul_add(part, V::splat(5.550_332_5e-2));
    let p = p.mul_add(part, V::splat(2.402_264_8e-1));
    let p = p.mul_add(part, V::splat(6.931_472e-1));
    let p = p.mul_add(part, V::splat(1.0));
    V::from_bits(V::shift_left::<23>(V::add_int(whole, V::splat_int(127)))) * p
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
    let (zero, one) = (V::splat(0.0), V::splat(1.0));
    let t = one / V::splat(0.327_591_1).mul_add(x.abs(), one);
    let r = V::splat(1.061_405_4).mul_add(t, V::splat(-1.453_152_1));
    let r = r.mul_add(t, V::splat(1.421_413_8));
    let r = r.mul_add(t, V::splat(-0.284_496_72));
    let r = r.mul_add(t, V::splat(0.254_829_6));
    let e = exp_of_mlx_down((zero - x) * x);
    let result = ((zero - e) * t).mul_add(r, one);
    (V::select(negative(zero - x), result, zero - result), e)
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
        let one = V::splat(1.0);
        let magnitude = x.abs();
        // (1 - e^-2|x|) / (1 + e^-2|x|) cancels near 0, so Cephes' polynomial is used there.
        let e = exp_nonpositive(magnitude * V::splat(-2.0));
        let sign = V::and_int(x.to_bits(), V::splat_int(i32::MIN));
        let large = ((one - e) / (one + e)).xor_bits(sign);
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
