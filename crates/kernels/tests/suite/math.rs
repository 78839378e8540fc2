use std::marker::PhantomData;

use crate::testing::*;
use mlx_primitives_kernels::math::*;
use mlx_primitives_kernels::simd::{Kernel, Level};

/// A kernel that computes two kinds of exponentials, sines and cosines of a slice.
struct Apply<'a> {
    x: &'a [f32],
    exp: &'a mut [f32],
    short: &'a mut [f32],
    sin: &'a mut [f32],
    cos: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    const BF16: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for i in (0..self.x.len()).step_by(LANES) {
            // SAFETY: the slices have the same length, a multiple of sixteen.
            unsafe {
                let x = V::load(self.x.as_ptr().add(i));
                exp_nonpositive(x).store(self.exp.as_mut_ptr().add(i));
                exp_nonpositive_short(x).store(self.short.as_mut_ptr().add(i));
                let (sin, cos) = sin_cos(x);
                sin.store(self.sin.as_mut_ptr().add(i));
                cos.store(self.cos.as_mut_ptr().add(i));
            }
        }
    }
}

fn apply(level: Level, x: &[f32]) -> [Vec<f32>; 4] {
    let mut out = [(); 4].map(|()| vec![0.0; x.len()]);
    let [exp, sin, cos, short] = &mut out;
    // SAFETY: the slices have the same length, a multiple of sixteen.
    unsafe { level.run(Apply { x, exp, short, sin, cos }) };
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| if v.is_nan() { 0x7fc0_0000 } else { v.to_bits() }).collect()
}

/// Returns the error in units of the last place of the f32 result.
fn ulps(got: f32, exact: f64) -> f64 {
    let exponent = (exact.abs().max(1e-300).log2().floor() as i32).max(-126);
    (f64::from(got) - exact).abs() / f64::from(exponent - 23).exp2()
}

#[test]
fn exp_is_within_one_ulp() {
    let x: Vec<f32> = (0..1 << 21).map(|i| -(i as f32) * (105.0 / (1 << 21) as f32)).collect();
    let [got, ..] = apply(Level::current(), &x);
    let worst = x.iter().zip(&got).map(|(&x, &got)| ulps(got, f64::from(x).exp()));
    let worst = worst.fold(0.0, f64::max);
    println!("exp: {worst:.3} ulp at worst");
    assert!(worst <= 1.0, "{worst}");
}

#[test]
fn short_exp_is_as_close_as_it_says() {
    let x: Vec<f32> = (0..1 << 20).map(|i| -(i as f32) * (87.0 / (1 << 20) as f32)).collect();
    let [.., short] = apply(Level::current(), &x);
    for (&x, &got) in x.iter().zip(&short) {
        let (x, got) = (f64::from(x), f64::from(got));
        let relative = (got - x.exp()).abs() / x.exp();
        assert!(relative <= x.abs() * 2f64.powi(-23) + 2f64.powi(-22), "{x}: {relative:e}");
    }
}

#[test]
fn exp_at_the_ends() {
    let mut x = [0.0f32; LANES];
    x[..6].copy_from_slice(&[0.0, -0.0, f32::NEG_INFINITY, f32::NAN, f32::MIN, -1e-40]);
    x[6..13].copy_from_slice(&[-105.0, -110.0, -131.4, -131.6, -131.8, -140.0, -1e6]);
    for level in Level::available() {
        let [exp, _, _, short] = apply(level, &x);
        for exp in [exp, short] {
            assert_eq!(exp[..3], [1.0, 1.0, 0.0]);
            assert!(exp[3].is_nan());
            assert_eq!(exp[4..6], [0.0, 1.0]);
            assert_eq!(exp[6..13], [0.0; 7]);
        }
    }
}

#[test]
fn sine_and_cosine_are_close_to_libm() {
    let x: Vec<f32> = (0..1 << 20).map(|i| (i as f32 - 524_288.0) * 0.017).collect();
    let [_, sin, cos, _] = apply(Level::current(), &x);
    for (i, &x) in x.iter().enumerate() {
        let (s, c) = f64::from(x).sin_cos();
        assert!((f64::from(sin[i]) - s).abs() < 1e-6 && (f64::from(cos[i]) - c).abs() < 1e-6);
    }
}

#[test]
fn angles_beyond_the_polynomials_are_libms() {
    let mut x = [1.5f32; LANES];
    x[..5].copy_from_slice(&[8_388_610.0, -3e30, f32::INFINITY, f32::NAN, -0.0]);
    for level in Level::available() {
        let [_, sin, cos, _] = apply(level, &x);
        assert_eq!(sin[..2], [x[0].sin(), x[1].sin()]);
        assert_eq!(cos[..2], [x[0].cos(), x[1].cos()]);
        assert!(sin[2..4].iter().chain(&cos[2..4]).all(|v| v.is_nan()));
        assert_eq!(sin[4].to_bits(), 0);
        assert!((sin[5] - 1.5f32.sin()).abs() < 1e-7);
    }
}

/// A kernel that applies one function to a slice.
struct Each<'a, F> {
    x: &'a [f32],
    out: &'a mut [f32],
    function: F,
}

trait Function {
    fn of<V: F32x16>(&self, x: V) -> V;
}

struct ExpUp;
struct ExpDown;
struct Tanh;
struct Raised<T>(PhantomData<T>);
struct RaisedSum<T>(PhantomData<T>);

impl Function for ExpUp {
    #[inline(always)]
    fn of<V: F32x16>(&self, x: V) -> V {
        exp_of_mlx_up(x)
    }
}

impl Function for ExpDown {
    #[inline(always)]
    fn of<V: F32x16>(&self, x: V) -> V {
        exp_of_mlx_down(x)
    }
}

impl Function for Tanh {
    #[inline(always)]
    fn of<V: F32x16>(&self, x: V) -> V {
        tanh(x)
    }
}

impl<T: Float> Function for Raised<T> {
    #[inline(always)]
    fn of<V: F32x16>(&self, x: V) -> V {
        raised_exponential::<V, T>(x)
    }
}

impl<T: Float> Function for RaisedSum<T> {
    #[inline(always)]
    fn of<V: F32x16>(&self, x: V) -> V {
        add_raised_exponential::<V, T>(V::splat(0.0), x)
    }
}

impl<F: Function> Kernel for Each<'_, F> {
    const BF16: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for i in (0..self.x.len()).step_by(LANES) {
            // SAFETY: the slices have the same length, a multiple of sixteen.
            unsafe {
                let x = V::load(self.x.as_ptr().add(i));
                self.function.of(x).store(self.out.as_mut_ptr().add(i));
            }
        }
    }
}

fn each(level: Level, x: &[f32], function: impl Function) -> Vec<f32> {
    let mut out = vec![0.0; x.len()];
    // SAFETY: the slices have the same length, a multiple of sixteen.
    unsafe { level.run(Each { x, out: &mut out, function }) };
    out
}

#[test]
fn exp_on_lanes_is_that_of_one() {
    // Bit patterns with every exponent, numbers from 0 to 90, and multiples of ln(2) / 2, where the
    // floor in the range reduction changes.
    let up: Vec<f32> = (0..1 << 16)
        .map(|i| f32::from_bits(i * 65_521).abs())
        .chain((0..1 << 16).map(|i| i as f32 * (90.0 / 65_536.0)))
        .chain((0..1 << 10).map(|i| i as f32 * (std::f32::consts::LN_2 / 2.0)))
        .collect();
    let mut down: Vec<f32> = up.iter().map(|x| -x).collect();
    // Neighbors of -88, where MLX's result becomes zero, and NaNs with a full payload.
    down.extend((0..LANES as u32 / 2).map(|i| f32::from_bits((-88.0f32).to_bits() + i - 4)));
    down.extend([f32::from_bits(0x7fff_ffff), f32::from_bits(0xffff_ffff)].repeat(LANES / 4));
    let exp = |x: &[f32]| bits(&x.iter().map(|&x| exp_like_mlx(x)).collect::<Vec<_>>());
    for level in Level::available() {
        assert_eq!(bits(&each(level, &up, ExpUp)), exp(&up), "{level:?}");
        assert_eq!(bits(&each(level, &down, ExpDown)), exp(&down), "{level:?}");
    }
}

/// Checks a function that computes e^x * 2^63. Its relative error is at most `|x| * slope + error`.
fn check_raised<F: Function>(function: fn() -> F, slope: f64, error: f64) {
    let mut x: Vec<f32> = (0..1 << 19).map(|i| -(i as f32) * (130.0 / (1 << 19) as f32)).collect();
    let near = x.len();
    x.extend([f32::NEG_INFINITY, f32::MIN, -132.0, -200.0, -1e6, -0.0, f32::NAN, -f32::NAN]);
    x.extend([-1e-40; LANES / 2]);
    let first = each(Level::Scalar, &x, function());
    assert_eq!(first[0], RAISE);
    for (&x, &got) in x.iter().zip(&first[..near]) {
        let (x, got) = (f64::from(x), f64::from(got) / f64::from(RAISE));
        assert!((got - x.exp()).abs() <= x.exp() * (x.abs() * slope + error), "{x}: {got:e}");
    }
    assert_eq!(first[near..near + 5], [0.0; 5]);
    assert_eq!(first[near + 5], RAISE);
    assert!(first[near + 6].is_nan() && first[near + 7].is_nan());
    assert_eq!(first[near + 8..], [RAISE; LANES / 2]);
    for level in Level::available() {
        assert_eq!(bits(&each(level, &x, function())), bits(&first), "{level:?}");
    }
}

#[test]
fn raised_exponentials_are_as_close_as_they_say() {
    let power = |n: i32| 2f64.powi(n);
    check_raised(|| Raised::<f32>(PhantomData), 0.0, power(-23));
    check_raised(|| Raised::<F16>(PhantomData), power(-28), power(-22));
    check_raised(|| RaisedSum::<f32>(PhantomData), 0.0, power(-23));
    check_raised(|| RaisedSum::<F16>(PhantomData), power(-28), power(-22));
}

#[test]
fn tanh_is_within_two_ulps() {
    let x: Vec<f32> = (0..1 << 18)
        .map(|i| (i as f32 - 131_072.0) * (12.0 / 131_072.0))
        .chain((0..1 << 16).map(|i| f32::from_bits(i * 65_521)))
        .collect();
    let first = each(Level::Scalar, &x, Tanh);
    for (&x, &got) in x.iter().zip(&first) {
        let exact = f64::from(x).tanh();
        assert!(x.is_nan() && got.is_nan() || ulps(got, exact) <= 2.0, "{x:e}: {got:e}");
    }
    for level in Level::available() {
        assert_eq!(bits(&each(level, &x, Tanh)), bits(&first), "{level:?}");
    }
}

#[test]
fn levels_agree_bit_for_bit() {
    let x: Vec<f32> = (0..1 << 16).map(|i| f32::from_bits(i * 65_521)).collect();
    let expected = apply(Level::Scalar, &x).map(|values| bits(&values));
    let nonpositive = |values: &[u32]| -> Vec<u32> {
        let kept = x.iter().zip(values).filter(|(x, _)| x.is_nan() || **x <= 0.0);
        kept.map(|(_, &bits)| bits).collect()
    };
    for level in Level::available() {
        let [exp, sin, cos, short] = apply(level, &x).map(|values| bits(&values));
        assert_eq!(nonpositive(&exp), nonpositive(&expected[0]), "{level:?}");
        assert_eq!(nonpositive(&short), nonpositive(&expected[3]), "{level:?}");
        for (name, got, expected) in [("sin", &sin, &expected[1]), ("cos", &cos, &expected[2])] {
            for ((x, got), expected) in x.iter().zip(got).zip(expected) {
                assert_eq!(got, expected, "{name} {x:e} {level:?}");
            }
        }
    }
}
