//! Compares `masked_softmax` and its gradient with f64, on every instruction set and with several
//! numbers of threads.

use crate::testing::*;
use mlx_primitives_kernels::masked_softmax::*;

/// One call: the extents, the rules that hide keys, the scale, and the kind and strides of the
/// mask.
#[derive(Clone, Copy, Debug)]
struct Case {
    batch: usize,
    queries: usize,
    keys: usize,
    causal: bool,
    window: usize,
    scale: f32,
    mask: Kind,
    /// The strides of the mask over batch entries, queries and keys.
    strides: [i64; 3],
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    None,
    Bool,
    Additive,
}

impl Case {
    fn shape(&self) -> MaskedSoftmaxShape {
        let Case { batch, queries, keys, causal, window, .. } = *self;
        MaskedSoftmaxShape { rows: batch * queries, queries, keys, causal, window }
    }

    fn mask_at(&self, row: usize, key: usize) -> usize {
        let [batch, query, stride] = self.strides;
        let (b, q) = ((row / self.queries) as i64, (row % self.queries) as i64);
        (b * batch + q * query + key as i64 * stride) as usize
    }

    fn mask_length(&self) -> usize {
        let extents = [self.batch, self.queries, self.keys];
        let far = |(extent, stride): (usize, i64)| extent.saturating_sub(1) * stride as usize;
        extents.into_iter().zip(self.strides).map(far).sum::<usize>() + 1
    }

    fn hides(&self, row: usize, key: usize) -> bool {
        let position = (row % self.queries + self.keys) as i64 - self.queries as i64;
        let back = position - key as i64;
        self.causal && (back < 0 || self.window > 0 && back >= self.window as i64)
    }
}

/// Returns the elements of a boolean mask as bytes, and of an additive mask as numbers. Every
/// seventh byte is 0, which hides a key, and every seventh number is minus infinity.
fn mask_values<T: Sample>(count: usize) -> (Vec<u8>, Vec<T>) {
    let numbers = values::<T>(count, 2.0);
    let far = |i: usize| i % 7 == 3;
    let bools = (0..count).map(|i| u8::from(!far(i))).collect();
    let added =
        (0..count).map(|i| if far(i) { T::from_f32(f32::NEG_INFINITY) } else { numbers[i] });
    (bools, added.collect())
}

/// Computes the softmax, and the gradient for the cotangent `g`.
fn run<T: Sample>(case: &Case, x: &[T], g: &[T]) -> (Vec<T>, Vec<T>) {
    let (bools, added) = mask_values::<T>(case.mask_length());
    let extents = [case.batch as u32, case.queries as u32];
    let mask = (case.mask != Kind::None).then(|| Mask {
        data: if case.mask == Kind::Bool { bools.as_ptr() } else { added.as_ptr().cast() },
        additive: case.mask == Kind::Additive,
        shape: &extents,
        strides: &case.strides[..2],
        key_stride: case.strides[2] as isize,
    });
    let (shape, bools_only) = (case.shape(), mask.filter(|mask| !mask.additive));
    let y = in_place(x, |on, from, to| {
        // SAFETY: the buffers hold rows * keys elements, and the mask has all elements that its
        // strides reach.
        unsafe { masked_softmax_on(on, from, mask, to, &shape, case.scale) };
    });
    let grad = in_place(g, |on, from, to| {
        // SAFETY: as for the softmax.
        unsafe { grad_on(on, [y.as_ptr(), from], bools_only, to, &shape, case.scale) };
    });
    (y, grad)
}

/// Computes the masked softmax in f64, except that it rounds scores as the kernel does.
fn reference<T: Sample>(case: &Case, x: &[T]) -> Vec<f64> {
    let (bools, added) = mask_values::<T>(case.mask_length());
    let mut out = Vec::with_capacity(x.len());
    for row in 0..case.batch * case.queries {
        let score = |key: usize| {
            let mut score = rounded::<T>(x[row * case.keys + key].to_f32() * case.scale);
            match case.mask {
                Kind::None => {}
                Kind::Bool if bools[case.mask_at(row, key)] == 0 => score = T::LOWEST,
                Kind::Bool => {}
                Kind::Additive => {
                    score = rounded::<T>(score + added[case.mask_at(row, key)].to_f32());
                }
            }
            f64::from(if case.hides(row, key) { T::LOWEST } else { score })
        };
        let scores: Vec<f64> = (0..case.keys).map(score).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|v| (v - max).exp()).sum();
        out.extend(scores.iter().map(|v| (v - max).exp() / sum));
    }
    out
}

fn gradient<T: Sample>(case: &Case, y: &[T], g: &[T]) -> Vec<f64> {
    let (bools, _) = mask_values::<T>(case.mask_length());
    let number = |v: &T| f64::from(v.to_f32());
    let mut out = Vec::with_capacity(y.len());
    for row in 0..case.batch * case.queries {
        let at = row * case.keys;
        let seen = |key: usize| {
            let hidden = case.mask == Kind::Bool && bools[case.mask_at(row, key)] == 0;
            !case.hides(row, key) && !hidden
        };
        let along: f64 = (0..case.keys).map(|k| number(&y[at + k]) * number(&g[at + k])).sum();
        out.extend((0..case.keys).map(|k| {
            let value = number(&y[at + k]) * (number(&g[at + k]) - along);
            if seen(k) { value * f64::from(case.scale) } else { 0.0 }
        }));
    }
    out
}

fn check<T: Sample>(case: &Case) {
    let count = case.batch * case.queries * case.keys;
    let (x, g) = (values::<T>(count, 12.0), values::<T>(count + 1, 2.0)[1..].to_vec());
    let what = format!("{case:?}");
    let (y, grad) = run(case, &x, &g);
    // Scores have a range of up to 20, so x - max has an error of 1e-6.
    let relative = f64::from(T::EPSILON) / 2.0 + 8e-6;
    assert_close(&y, &reference(case, &x), relative, 3.1e-8, &what);
    // The sum of y * g over a row has an error of about 1e-7 times |g|.
    let expected = gradient(case, &y, &g);
    assert_close(&grad, &expected, f64::from(T::EPSILON) / 2.0 + 1e-6, 3e-7, &what);
}

fn shapes<T: Sample>() {
    for (batch, queries, keys) in [
        (1, 1, 1),
        (0, 3, 5),
        (3, 0, 5),
        (2, 7, 7),
        (1, 5, 40),
        (2, 40, 5),
        (3, 17, 100),
        (1, 33, 1000),
        (1, 2, 4099),
        (1, 1, 9000),
    ] {
        let (q, k) = (queries as i64, keys as i64);
        for (causal, window) in [(false, 0), (true, 0), (true, 1), (true, 16), (true, 10_000)] {
            for (mask, strides) in [
                (Kind::None, [0; 3]),
                (Kind::Bool, [q * k, k, 1]),
                (Kind::Additive, [0, k, 1]),
                (Kind::Additive, [k, 0, 1]),
                (Kind::Bool, [0, 1, q]),
                (Kind::Additive, [q, 1, 0]),
            ] {
                let scale = if window == 1 { 1.0 } else { 0.37 };
                check::<T>(&Case { batch, queries, keys, causal, window, scale, mask, strides });
            }
        }
    }
}

each_type!(shapes);

#[test]
fn nan_spoils_the_hidden_keys_too() {
    let case = Case {
        batch: 1,
        queries: 3,
        keys: 40,
        causal: true,
        window: 5,
        scale: 1.0,
        mask: Kind::None,
        strides: [0; 3],
    };
    let mut x = vec![1.0f32; 120];
    x[40 + 38] = f32::NAN;
    x[80] = f32::NAN; // seen by nobody
    let (y, _) = run(&case, &x, &[1.0; 120]);
    assert!(y[40..80].iter().all(|v| v.is_nan()));
    assert!(y[..40].iter().chain(&y[80..]).all(|v| *v == 0.0 || *v == 0.2));
}
