use crate::testing::*;
use half::{bf16, f16};
use mlx_primitives_kernels::simd::{Kernel, LANES, Level};

/// Converts 16-bit values to floats, or floats to 16-bit values and to rounded floats. Processes
/// one block at a time.
struct Convert<'a, T> {
    patterns: &'a mut [T],
    floats: &'a mut [f32],
    encode: bool,
    /// Whether the lanes are in the order of `load_mixed` during the conversion.
    mixed: bool,
}

impl<T: Float> Kernel for Convert<'_, T> {
    const BF16: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for i in (0..self.patterns.len()).step_by(LANES) {
            // SAFETY: both slices have the same length, a multiple of sixteen.
            unsafe {
                let (pattern, float) =
                    (self.patterns.as_mut_ptr().add(i), self.floats.as_mut_ptr().add(i));
                let lanes = V::load(float);
                match (self.encode, self.mixed) {
                    (true, true) => {
                        T::store_mixed(T::mixed(lanes), pattern);
                        T::round_number(lanes).store(float);
                    }
                    (true, false) => {
                        T::store(lanes, pattern);
                        T::round(lanes).store(float);
                    }
                    (false, true) => T::ordered(T::load_mixed::<V>(pattern)).store(float),
                    (false, false) => T::load::<V>(pattern).store(float),
                }
            }
        }
    }
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

fn check<T: Float>(
    make: fn(u16) -> T,
    bits: fn(&T) -> u16,
    to: fn(u16) -> f32,
    from: fn(f32) -> u16,
) {
    let ways = Level::available().flat_map(|level| [(level, false), (level, true)]);
    for (level, mixed) in ways {
        let mut patterns: Vec<T> = (0..=u16::MAX).map(make).collect();
        let mut floats = vec![0.0f32; 1 << 16];
        let (p, f) = (&mut patterns[..], &mut floats[..]);
        // SAFETY: both slices have the same length, a multiple of sixteen.
        unsafe { level.run(Convert { patterns: p, floats: f, encode: false, mixed }) };
        for bits in 0..=u16::MAX {
            assert!(same(floats[usize::from(bits)], to(bits)), "{level:?} {bits:#x}");
        }
        // Inputs are the 16-bit values themselves, the midpoints between two values (ties), the
        // floats next to midpoints, and a few extreme floats.
        for nudge in [0, 1, 2, 3] {
            let inputs: Vec<f32> = (0..=u16::MAX)
                .map(|bits| {
                    let (low, high) = (to(bits), to(bits.wrapping_add(1)));
                    let middle = ((f64::from(low) + f64::from(high)) / 2.0) as f32;
                    match nudge {
                        0 => low,
                        1 => middle,
                        2 => middle.next_up(),
                        _ => middle.next_down(),
                    }
                })
                .chain([65519.996, 65520.0, f32::MAX, -f32::MAX, 1e-45, f32::NAN])
                .chain([f32::from_bits(0x7fff_ffff), f32::from_bits(0xff80_0001)])
                .chain([0.0; 8])
                // `store_mixed` and `round_number` accept only NaNs that were loaded from `T` or
                // that arithmetic produced, so this replaces other NaNs.
                .map(|x| if mixed && x.is_nan() { f32::NAN } else { x })
                .collect();
            let mut patterns: Vec<T> = inputs.iter().map(|_| make(0)).collect();
            let mut floats = inputs.clone();
            let (p, f) = (&mut patterns[..], &mut floats[..]);
            // SAFETY: both slices have the same length, a multiple of sixteen.
            unsafe { level.run(Convert { patterns: p, floats: f, encode: true, mixed }) };
            for (i, &input) in inputs.iter().enumerate() {
                let expected = to(from(input));
                assert!(same(to(bits(&patterns[i])), expected), "{level:?} {mixed} {input:e}");
                assert!(same(floats[i], expected), "{level:?} {mixed} {input:e} rounded");
            }
        }
    }
}

#[test]
fn every_f16_pattern() {
    let (to, from) = (|b| f16::from_bits(b).to_f32(), |v| f16::from_f32(v).to_bits());
    check::<F16>(F16, |v| v.0, to, from);
}

#[test]
fn every_bf16_pattern() {
    let (to, from) = (|b| bf16::from_bits(b).to_f32(), |v| bf16::from_f32(v).to_bits());
    check::<Bf16>(Bf16, |v| v.0, to, from);
}
