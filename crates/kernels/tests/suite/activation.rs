use crate::reference::{gelu, gelu_tanh, silu};
use crate::testing::*;
use mlx_primitives_kernels::activation::affine::affine_on;
use mlx_primitives_kernels::activation::*;

const SIZES: [usize; 8] = [0, 1, 15, 16, 17, 1000, 1024, 5003];

type Exact = fn(f64) -> f64;

const KINDS: [(Activation, Exact); 4] = [
    (Activation::Relu, |x| x.max(0.0)),
    (Activation::Gelu, gelu),
    (Activation::GeluTanh, gelu_tanh),
    (Activation::Silu, silu),
];

const COMBINATIONS: [Combination; 5] = [
    Combination::Swiglu,
    Combination::Geglu,
    Combination::GegluTanh,
    Combination::AddRelu,
    Combination::MulRelu,
];

fn one<T: Sample>(kind: Activation, x: &[T]) -> Vec<T> {
    in_place(x, |on, from, to| {
        // SAFETY: both buffers have the same length.
        unsafe { activation_on(on, kind, from, to, x.len()) };
    })
}

fn two<T: Sample>(kind: Combination, a: &[T], b: &[T]) -> Vec<T> {
    same(|on| {
        let mut out = b.to_vec();
        // SAFETY: all buffers have the same length; the second input is also the output.
        unsafe { combination_on(on, kind, a.as_ptr(), out.as_ptr(), out.as_mut_ptr(), a.len()) };
        out
    })
}

fn sizes<T: Sample>() {
    for size in SIZES {
        let (a, b) = (values::<T>(size, 9.0), values::<T>(size + 1, 3.0)[1..].to_vec());
        for (kind, exact) in KINDS {
            for (y, x) in one(kind, &a).iter().zip(&a) {
                let x = f64::from(x.to_f32());
                // The result is x times a factor. The kernel rounds the factor five times, and erf
                // has an f32 error.
                let allowed = 5.0 * f64::from(T::EPSILON) * x.abs();
                let error = (f64::from(y.to_f32()) - exact(x)).abs();
                assert!(error <= allowed, "{kind:?} of {x}: {}", y.to_f32());
            }
        }
        for kind in COMBINATIONS {
            let gate = match kind {
                Combination::Swiglu => Some(Activation::Silu),
                Combination::Geglu => Some(Activation::Gelu),
                Combination::GegluTanh => Some(Activation::GeluTanh),
                _ => None,
            };
            let gated = gate.map_or(a.clone(), |gate| one(gate, &a));
            let expected: Vec<T> = gated
                .iter()
                .zip(&b)
                .map(|(a, b)| {
                    let (a, b) = (a.to_f32(), b.to_f32());
                    let y = if kind == Combination::AddRelu { a + b } else { a * b };
                    let y = rounded::<T>(y);
                    T::from_f32(if gate.is_none() { y.max(0.0) } else { y })
                })
                .collect();
            assert_same(&two(kind, &a, &b), &expected, &format!("{kind:?}"));
        }
    }
}

each_type!(sizes);

/// Long arrays of 16-bit types use lookup tables. Each bit pattern has the same result as in a
/// short array.
fn tables<T: Sample>(of: fn(u16) -> T) {
    const SHORT: usize = 4096;
    let a: Vec<T> = (0..=u16::MAX).chain(0..17).map(of).collect();
    let b = values::<T>(a.len(), 3.0);
    for (kind, _) in KINDS {
        let short: Vec<T> = a.chunks(SHORT).flat_map(|a| one(kind, a)).collect();
        assert_same(&one(kind, &a), &short, &format!("{kind:?}"));
    }
    for kind in COMBINATIONS {
        let pairs = a.chunks(SHORT).zip(b.chunks(SHORT));
        let short: Vec<T> = pairs.flat_map(|(a, b)| two(kind, a, b)).collect();
        assert_same(&two(kind, &a, &b), &short, &format!("{kind:?}"));
    }
}

#[test]
fn tables_of_sixteen_bits() {
    tables(F16);
    tables(Bf16);
}

#[test]
fn affine_of_numbers_and_vectors() {
    for (rows, columns) in [(0, 3), (1, 1), (3, 17), (5, 32), (2, 3000), (70, 1)] {
        let x = values::<Bf16>(rows * columns, 3.0);
        let (scale, shift) = (values::<Bf16>(columns, 2.0), values::<Bf16>(columns + 1, 2.0));
        for scale_columns in [1, columns] {
            for shift_columns in [1, columns] {
                let shape = AffineShape { rows, columns, scale_columns, shift_columns };
                let expected: Vec<Bf16> = (0..x.len())
                    .map(|i| {
                        let at = |of: &[Bf16], n: usize| of[i % columns % n].to_f32();
                        let y = rounded::<Bf16>(x[i].to_f32() * at(&scale, scale_columns));
                        Bf16::from_f32(y + at(&shift, shift_columns))
                    })
                    .collect();
                let got = same(|on| {
                    let mut out = x.clone();
                    let (scale, shift, to) = (scale.as_ptr(), shift.as_ptr(), out.as_mut_ptr());
                    // SAFETY: the buffers have the shape's length; the kernel runs in place.
                    unsafe { affine_on(on, to.cast_const(), scale, shift, to, &shape) };
                    out
                });
                assert_same(&got, &expected, "affine");
            }
        }
    }
}
