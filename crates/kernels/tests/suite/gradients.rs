//! Compares the gradient kernels with derivatives in f64, on every instruction set and with several
//! numbers of threads.

use crate::reference;
use crate::testing::*;
use mlx_primitives_kernels::activation::*;
use mlx_primitives_kernels::logsumexp::grad_on;
use mlx_primitives_kernels::norm_grad::{NormGrad, norm_grad_on};

/// Computes the derivative of a smooth function, with an error of about 1e-10.
fn derivative(f: fn(f64) -> f64, x: f64) -> f64 {
    const H: f64 = 1e-3;
    let central = |h: f64| (f(x + h) - f(x - h)) / (2.0 * h);
    (4.0 * central(H) - central(2.0 * H)) / 3.0
}

type Exact = fn(f64) -> f64;

const GATES: [(Combination, Combination, Exact); 3] = [
    (Combination::Swiglu, Combination::SiluSlope, reference::silu),
    (Combination::Geglu, Combination::GeluSlope, reference::gelu),
    (Combination::GegluTanh, Combination::GeluTanhSlope, reference::gelu_tanh),
];

/// Computes the gradients of a and b into one buffer. Also checks that the kernel computes them in
/// place.
fn both<T: Sample>(kind: Combination, inputs: [&[T]; 3]) -> Vec<T> {
    let size = inputs[0].len();
    let run = |on, inputs: [*const T; 3], out: &mut Vec<T>| {
        let outs = [out.as_mut_ptr(), out.as_mut_ptr().wrapping_add(size)];
        // SAFETY: all buffers have at least `size` elements.
        unsafe { combination_grad_on(on, kind, inputs, outs, size) };
    };
    let apart = same(|on| {
        let mut out = vec![T::default(); 2 * size];
        run(on, inputs.map(<[T]>::as_ptr), &mut out);
        out
    });
    let within = same(|on| {
        let mut out = [inputs[0], inputs[2]].concat();
        let place = out.as_ptr();
        run(on, [place, inputs[1].as_ptr(), place.wrapping_add(size)], &mut out);
        out
    });
    assert_same(&within, &apart, &format!("{kind:?} in place"));
    apart
}

fn slope<T: Sample>(kind: Combination, x: &[T], g: &[T]) -> Vec<T> {
    in_place(x, |on, from, to| {
        // SAFETY: all buffers have the same length.
        unsafe { combination_on(on, kind, from, g.as_ptr(), to, x.len()) };
    })
}

/// The bounds: the kernel rounds a slope, and then the product of the slope and g. The f32 error
/// of a slope is below 1e-6. The gradient of b contains the activation of a, which is a times a
/// factor. The kernel rounds this factor five times, as the activation op does.
fn activations<T: Sample>() {
    // The last size is long enough for lookup tables.
    for size in [0, 1, 17, 1000, 70_000] {
        let a = values::<T>(size, 9.0);
        let (b, g) = (values::<T>(size + 1, 3.0)[1..].to_vec(), values::<T>(size + 2, 2.0));
        let g = g[2..].to_vec();
        let allowed = |factor: f64, roundings: f64| {
            f64::from(T::EPSILON) * roundings + 1e-6 * factor.abs() + 1e-7
        };
        for (gated, of_one, exact) in GATES {
            let all = both(gated, [&a, &b, &g]);
            let alone = slope(of_one, &a, &g);
            for i in 0..size {
                let [a, b, g] = [&a, &b, &g].map(|of| f64::from(of[i].to_f32()));
                let d = derivative(exact, a);
                for (got, factor, exact, roundings) in [
                    (all[i], b * g, d * b * g, 1.02 * (d * b * g).abs()),
                    (all[size + i], g * a, exact(a) * g, 5.0 * (g * a).abs()),
                    (alone[i], g, d * g, 1.02 * (d * g).abs()),
                ] {
                    let error = (f64::from(got.to_f32()) - exact).abs();
                    assert!(error <= allowed(factor, roundings), "{gated:?} at {a}: {error}");
                }
            }
        }
        let relu = slope(Combination::ReluSlope, &a, &g);
        for (kind, add) in [(Combination::AddRelu, true), (Combination::MulRelu, false)] {
            let all = both(kind, [&a, &b, &g]);
            for i in 0..size {
                let [a, b, g] = [&a, &b, &g].map(|of| of[i].to_f32());
                let inner = rounded::<T>(if add { a + b } else { a * b });
                let kept = if inner > 0.0 { g } else { 0.0 };
                let (of_a, of_b) = if add { (kept, kept) } else { (kept * b, kept * a) };
                assert_eq!(all[i].to_f32(), rounded::<T>(of_a));
                assert_eq!(all[size + i].to_f32(), rounded::<T>(of_b));
                assert_eq!(relu[i].to_f32(), if a > 0.0 { g } else { 0.0 });
            }
        }
    }
}

/// The slope at NaN is NaN, but the slope of relu is 0. The product of 0 and infinity is NaN.
#[test]
fn activations_of_extremes() {
    let x = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-30, -1e-30, 100.0, -100.0];
    let ones = [1.0; 9];
    for (_, kind, _) in GATES {
        let got = slope(kind, &x, &ones);
        assert!(got[0].is_nan() && got[3] == 0.5 && got[4] == 0.5, "{kind:?}: {got:?}");
        assert!(got[7] == 1.0 && got[8].abs() < 1e-30, "{kind:?}: {got:?}");
    }
    let got = slope(Combination::ReluSlope, &x, &ones);
    assert_eq!(got, [0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
    let got = slope(Combination::ReluSlope, &[-1.0, 1.0], &[f32::INFINITY; 2]);
    assert!(got[0].is_nan() && got[1] == f32::INFINITY);
}

struct Norm<'a, T> {
    x: &'a [T],
    weight: &'a [T],
    g: &'a [T],
    added: &'a [T],
    axis: usize,
    centered: bool,
    affine: bool,
}

const EPS: f32 = 1e-3;

impl<T: Sample> Norm<'_, T> {
    /// Computes the gradients of x, the weight and the bias, and concatenates them. With `within`,
    /// the gradient of x overwrites g.
    fn gradients(&self, on: Machine, within: bool) -> Vec<T> {
        let (size, axis) = (self.x.len(), self.axis);
        let mut out = vec![T::default(); size + 2 * axis];
        let mut g = self.g.to_vec();
        let place = if within { g.as_mut_ptr() } else { out.as_mut_ptr() };
        let vectors = out.as_mut_ptr().wrapping_add(size);
        let call = NormGrad {
            x: self.x.as_ptr().cast(),
            weight: pointer(self.weight).cast(),
            g: g.as_ptr().cast(),
            added: pointer(self.added).cast(),
            of_x: place.cast(),
            of_weight: vectors.cast(),
            of_bias: vectors.wrapping_add(axis).cast(),
            rows: size / axis,
            axis,
            eps: EPS,
            centered: self.centered,
            affine: self.affine,
        };
        // SAFETY: the call's buffers are the vectors of this function and of `self`.
        unsafe { norm_grad_on::<T>(on, call) };
        if within {
            out[..size].copy_from_slice(&g);
        }
        out
    }

    fn exact(&self) -> Vec<f64> {
        let axis = self.axis;
        let (mut of_x, mut of_weight, mut of_bias) = (Vec::new(), vec![0.0; axis], vec![0.0; axis]);
        let (x, g, added) = (wide(self.x), wide(self.g), wide(self.added));
        let weight = if self.weight.is_empty() { vec![1.0; axis] } else { wide(self.weight) };
        let mean = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() / axis as f64;
        for (row, (x, g)) in x.chunks_exact(axis).zip(g.chunks_exact(axis)).enumerate() {
            let middle = if self.centered { mean(&mut x.iter().copied()) } else { 0.0 };
            let square = mean(&mut x.iter().map(|x| (x - middle).powi(2)));
            let root = (square + f64::from(EPS)).sqrt();
            let inverse = if self.affine { 1.0 } else { 1.0 / root };
            let n: Vec<_> = x.iter().map(|x| (x - middle) * inverse).collect();
            let h: Vec<_> = g.iter().zip(&weight).map(|(g, w)| g * w).collect();
            let height = if self.centered { mean(&mut h.iter().copied()) } else { 0.0 };
            let along = mean(&mut h.iter().zip(&n).map(|(h, n)| h * n));
            let along = if self.affine { 0.0 } else { along };
            for i in 0..axis {
                let more = added.get(row * axis + i).copied().unwrap_or(0.0);
                of_x.push((h[i] - height - n[i] * along) * inverse + more);
                of_weight[i] += g[i] * n[i];
                of_bias[i] += g[i];
            }
        }
        [of_x, of_weight, of_bias].concat()
    }
}

/// The bounds are for f32 sums of terms below 6. The gradient of a weight or bias adds at most
/// `rows / 8 + 64` terms in sequence, and the gradient of a row adds `axis / 32`. The factor
/// `1 / sqrt(variance + EPS)` is at most 32.
fn norms<T: Sample>() {
    for (rows, axis) in rows_and_axes(200_000).filter(|&(_, axis)| axis > 0).chain([(700, 50)]) {
        let (x, g) = (values::<T>(rows * axis, 3.0), values::<T>(rows * axis + 1, 2.0));
        let (g, weight) = (g[1..].to_vec(), values::<T>(axis, 2.0));
        let added = values::<T>(rows * axis + 2, 1.0)[2..].to_vec();
        for (weight, added, centered, affine) in [
            (&weight[..], &added[..], false, false),
            (&[], &[], false, false),
            (&weight[..], &[], true, false),
            (&[], &added[..], true, false),
            (&weight[..], &[], false, true),
            (&weight[..], &added[..], false, true),
        ] {
            let norm = Norm { x: &x, weight, g: &g, added, axis, centered, affine };
            let got = same(|on| norm.gradients(on, false));
            assert_same(&norm.gradients(machines()[0], true), &got, "in place");
            let relative = f64::from(T::EPSILON) / 2.0 * 1.01 + 4e-6;
            let absolute = 1e-6 * (rows as f64 / 8.0 + 64.0) + 32.0 * 4e-6;
            assert_close(&got, &norm.exact(), relative, absolute, "norm_grad");
        }
    }
}

fn logarithms<T: Sample>() {
    for (rows, axis) in rows_and_axes(200_000).filter(|&(_, axis)| axis > 0).chain([(2, 40_000)]) {
        let x = values::<T>(rows * axis, 9.0);
        let g = values::<T>(rows * axis + 1, 2.0)[1..].to_vec();
        let mut shares: Vec<f64> = Vec::new();
        for row in wide(&x).chunks_exact(axis) {
            let sum: f64 = row.iter().map(|x| x.exp()).sum();
            shares.extend(row.iter().map(|x| x.exp() / sum));
        }
        let total = |row: usize| wide(&g[row * axis..(row + 1) * axis]).iter().sum::<f64>();
        let of_log: Vec<f64> = shares
            .iter()
            .enumerate()
            .map(|(i, share)| share * f64::from(g[i / axis].to_f32()))
            .collect();
        let of_rows: Vec<f64> = shares
            .iter()
            .enumerate()
            .map(|(i, share)| f64::from(g[i].to_f32()) - share * total(i / axis))
            .collect();
        let run = |subtracted: bool| {
            in_place(&x, |on, from, to| {
                // SAFETY: the buffers hold rows * axis elements.
                unsafe {
                    match subtracted {
                        true => grad_on::<T, true>(on, [from, g.as_ptr()], to, rows, axis),
                        false => grad_on::<T, false>(on, [from, g.as_ptr()], to, rows, axis),
                    }
                }
            })
        };
        // `exp_nonpositive_short`, which 16-bit types use, has an error of about 2^-22. For the sum
        // over a row of g, each lane adds axis / 64 terms.
        let relative = f64::from(T::EPSILON) / 2.0 * 1.01 + 1e-5;
        assert_close(&run(false), &of_log, relative, 1e-7, "the gradient of logsumexp");
        let absolute = 1e-5 + 1e-7 * axis as f64 / 64.0;
        assert_close(&run(true), &of_rows, relative, absolute, "the gradient of log_softmax");
    }
}

each_type!(activations norms logarithms);
