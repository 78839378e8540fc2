mod gradients;
mod order;
mod strides;

use crate::testing::*;
use mlx_primitives_kernels::RowOrder;
use mlx_primitives_kernels::attention::*;
use mlx_primitives_kernels::simd::Level;

/// The numbers of batch entries, heads and key/value heads; or of queries, keys and features; or
/// the indices of a batch entry, a head and a row.
type Three = (usize, usize, usize);

/// A call and the arrays that it reads. The arrays are row-contiguous, except for optional gaps
/// between features and between rows.
struct Case<T> {
    call: Attention,
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
    mask: Vec<T>,
    bools: Vec<u8>,
    sinks: Vec<T>,
}

/// The strides of an array [batch, heads, rows, dim]. Adjacent features are `step` elements apart,
/// and `gap` unused elements follow each row.
fn strides(heads: usize, rows: usize, dim: usize, step: usize, gap: usize) -> [isize; 4] {
    let row = dim * step + gap;
    [heads * rows * row, rows * row, row, step].map(|stride| stride as isize)
}

fn case<T: Sample>(
    (batch, heads, kv_heads): Three,
    (queries, keys, dim): Three,
    (step, gap): (usize, usize),
) -> Case<T> {
    let q = values::<T>(batch * heads * queries * dim * step + 64, 2.0);
    let room = batch * kv_heads * keys * (dim * step + gap) + 1;
    let (k, v) = (values::<T>(room, 2.0), values::<T>(room + 1, 1.0));
    let nowhere = View { data: std::ptr::null(), strides: [0; 4] };
    let call = Attention {
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        dim,
        value_dim: dim,
        scale: 1.0 / (dim as f32).sqrt(),
        soft_cap: 0.0,
        causal: false,
        window: 0,
        q: View { strides: strides(heads, queries, dim, step, 0), ..nowhere },
        k: Source::Plain(View { strides: strides(kv_heads, keys, dim, step, gap), ..nowhere }),
        v: Source::Plain(View { strides: strides(kv_heads, keys, dim, step, gap), ..nowhere }),
        mask: Mask::None,
        sinks: std::ptr::null(),
        order: RowOrder::ByCount,
        dropped: 0,
    };
    let mask = values::<T>(batch * heads * queries * keys, 1.0);
    let bools = (0..batch * heads * queries * keys).map(|i| u8::from(i * 7 % 11 > 3)).collect();
    Case { call, q, k, v, mask, bools, sinks: values::<T>(heads, 3.0) }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Masked {
    No,
    Bool,
    Additive,
    /// A mask that hides all keys from the second query.
    Nothing,
}

impl<T: Sample> Case<T> {
    /// Replaces the values by random values with `dim` features. One unused element follows each
    /// row.
    fn with_values(mut self, dim: usize) -> Self {
        let Attention { batch, kv_heads, keys, .. } = self.call;
        let at = strides(kv_heads, keys, dim, 1, 1);
        self.v = values::<T>(batch * kv_heads * keys * (dim + 1), 1.0);
        self.call.value_dim = dim;
        self.call.v = Source::Plain(View { data: std::ptr::null(), strides: at });
        self
    }

    fn with(mut self, masked: Masked, sinks: bool) -> Self {
        let Attention { heads, queries, keys, .. } = self.call;
        if masked == Masked::Nothing {
            self.bools.iter_mut().enumerate().for_each(|(i, bool)| {
                *bool = u8::from(i / keys % queries != 1);
            });
        }
        let at = strides(heads, queries, keys, 1, 0);
        self.call.mask = match masked {
            Masked::No => Mask::None,
            Masked::Additive => {
                Mask::Additive(View { data: self.mask.as_ptr().cast(), strides: at })
            }
            _ => Mask::Bool(View { data: self.bools.as_ptr(), strides: at }),
        };
        if sinks {
            self.call.sinks = self.sinks.as_ptr().cast();
        }
        self
    }

    /// Returns the call with the addresses of this case's arrays.
    fn ready(&self) -> Attention {
        let mut call = self.call;
        call.q.data = self.q.as_ptr().cast();
        if let (Source::Plain(k), Source::Plain(v)) = (&mut call.k, &mut call.v) {
            k.data = self.k.as_ptr().cast();
            v.data = self.v.as_ptr().cast();
        }
        call
    }

    fn run(&self, machine: Machine) -> Vec<T> {
        let call = self.ready();
        let mut out = vec![T::default(); call.batch * call.heads * call.queries * call.value_dim];
        // SAFETY: the vectors hold all elements of the views and of the output.
        unsafe { attention_on(machine, &call, out.as_mut_ptr()) };
        out
    }

    fn reference(&self) -> Vec<f64> {
        self.reference_of(&self.ready())
    }

    /// The features of a key or a value. `Three` is the batch entry, the head and the row.
    fn row(source: &Source, dim: usize, (b, h, r): Three) -> Vec<f64> {
        match source {
            Source::Plain(view) => element_row::<T>(view, b, h, r, dim),
            Source::Quantized { packed, scales, biases, bits, group } => {
                let words = dim * bits / 32;
                let each = 32 / bits;
                let scale = element_row::<T>(scales, b, h, r, dim / group);
                let bias = element_row::<T>(biases, b, h, r, dim / group);
                // SAFETY: the test's vectors hold all packed words of the row.
                let word = |i: usize| unsafe { *packed.at::<u32>(b, h, r).add(i) };
                assert!(packed.strides[3] == 1 && words * each == dim);
                (0..dim)
                    .map(|d| {
                        let code = word(d / each) >> (d % each * bits) & ((1 << bits) - 1);
                        scale[d / group] * f64::from(code) + bias[d / group]
                    })
                    .collect()
            }
        }
    }

    /// For each key, returns its weight in the row, and the derivative of its score with respect to
    /// the scaled dot product. The weight of the sink follows, if there is a sink.
    fn weights(&self, call: &Attention, (b, h, t): Three) -> Vec<(f64, f64)> {
        let kv = h / (call.heads / call.kv_heads);
        let q = element_row::<T>(&call.q, b, h, t, call.dim);
        let position = (call.keys + t) as i64 - call.queries as i64;
        let mut scores: Vec<(f64, f64)> = (0..call.keys)
            .map(|s| {
                let k = Self::row(&call.k, call.dim, (b, kv, s));
                let dot: f64 = q.iter().zip(&k).map(|(q, k)| q * k).sum();
                let (mut score, mut slope) = (dot * f64::from(call.scale), 1.0);
                if call.soft_cap > 0.0 {
                    let cap = f64::from(call.soft_cap);
                    let tanh = (score / cap).tanh();
                    (score, slope) = (cap * tanh, 1.0 - tanh * tanh);
                }
                let at = ((b * call.heads + h) * call.queries + t) * call.keys + s;
                let hidden = (-1e300, 0.0);
                match call.mask {
                    Mask::None => {}
                    Mask::Bool(_) if self.bools[at] == 0 => (score, slope) = hidden,
                    Mask::Bool(_) => {}
                    Mask::Additive(_) => score += f64::from(self.mask[at].to_f32()),
                }
                let late = call.causal && s as i64 > position;
                let early = call.window > 0 && s as i64 <= position - call.window as i64;
                if late || early { hidden } else { (score, slope) }
            })
            .collect();
        if !call.sinks.is_null() {
            scores.push((f64::from(self.sinks[h].to_f32()), 0.0));
        }
        let max = scores.iter().map(|(s, _)| *s).fold(f64::NEG_INFINITY, f64::max);
        scores.iter_mut().for_each(|(score, _)| *score = (*score - max).exp());
        let sum: f64 = scores.iter().map(|(weight, _)| weight).sum();
        scores.iter_mut().for_each(|(weight, _)| *weight /= sum);
        scores
    }

    /// Computes the reference result in f64. The call's views must have addresses.
    fn reference_of(&self, call: &Attention) -> Vec<f64> {
        let mut out = Vec::new();
        for b in 0..call.batch {
            for t in 0..call.queries {
                for h in 0..call.heads {
                    let kv = h / (call.heads / call.kv_heads);
                    let weights = self.weights(call, (b, h, t));
                    let mut total = vec![0.0; call.value_dim];
                    for (s, (weight, _)) in weights.iter().enumerate().take(call.keys) {
                        let v = Self::row(&call.v, call.value_dim, (b, kv, s));
                        total.iter_mut().zip(v).for_each(|(total, v)| *total += weight * v);
                    }
                    out.extend(total);
                }
            }
        }
        out
    }

    /// Checks every instruction set with several numbers of threads. Results are close to the
    /// reference in f64. On each instruction set, every number of threads gives equal results.
    fn check(&self, what: &str) {
        let expected = self.reference();
        // The bounds cover f32 errors in dot products with factors up to 2, errors in the weights
        // of a hundred keys, and rounding.
        let relative = f64::from(T::EPSILON) / 2.0 + 1e-5;
        let mut of_level: Option<(Level, Vec<T>)> = None;
        for machine in machines() {
            let what = format!("{what} on {:?}", machine.level);
            let got = self.run(machine);
            assert_close(&got, &expected, relative, 4e-6 + f64::from(T::EPSILON) / 64.0, &what);
            match &of_level {
                Some((level, before)) if *level == machine.level => {
                    assert_same(&got, before, &what);
                }
                _ => of_level = Some((machine.level, got)),
            }
        }
    }
}

fn element_row<T: Sample>(view: &View, b: usize, h: usize, r: usize, dim: usize) -> Vec<f64> {
    let row = view.at::<T>(b, h, r);
    let element = |i: usize| {
        // SAFETY: the test's vectors hold all elements of the row.
        unsafe { *row.offset(i as isize * view.strides[3]) }
    };
    (0..dim).map(|i| f64::from(element(i).to_f32())).collect()
}

/// Shapes for the kernels for few queries and for many. Some numbers of features, queries and keys
/// are not multiples of sixteen, and some calls have enough keys for several chunks.
const SHAPES: [(Three, Three); 14] = [
    ((1, 1, 1), (1, 1, 1)),
    ((1, 4, 1), (1, 7, 64)),
    ((2, 6, 2), (1, 65, 32)),
    ((1, 2, 2), (1, 300, 80)),
    ((1, 8, 2), (2, 257, 96)),
    ((1, 7, 1), (2, 513, 40)),
    ((1, 2, 1), (3, 2, 128)),
    ((1, 1, 1), (16, 70, 256)),
    ((1, 1, 1), (17, 5, 64)),
    ((2, 4, 2), (33, 65, 64)),
    ((1, 3, 1), (40, 131, 80)),
    ((1, 2, 2), (97, 97, 33)),
    ((1, 5, 1), (20, 64, 7)),
    ((1, 2, 1), (30, 20, 256)),
];

fn shapes<T: Sample>() {
    for (heads, extents) in SHAPES {
        for causal in [false, true] {
            let mut case = case::<T>(heads, extents, (1, 0));
            case.call.causal = causal;
            case.check(&format!("{heads:?} {extents:?} causal {causal}"));
        }
    }
}

#[test]
fn values_of_other_sizes() {
    for (heads, extents) in SHAPES {
        for value_dim in [1, 17, 64, 80, 128, 256] {
            let what = format!("{heads:?} {extents:?} values of {value_dim}");
            case::<f32>(heads, extents, (1, 0)).with_values(value_dim).check(&what);
            case::<Bf16>(heads, extents, (1, 0)).with_values(value_dim).check(&what);
        }
    }
}

#[test]
fn rules_masks_and_sinks() {
    for extents in [(1, 70, 64), (2, 300, 32), (30, 150, 32), (50, 20, 16)] {
        for masked in [Masked::No, Masked::Bool, Masked::Additive, Masked::Nothing] {
            for (sinks, causal, window, soft_cap) in [
                (true, false, 0, 0.0),
                (false, true, 0, 1.5),
                (false, true, 5, 0.0),
                (true, true, 100, 30.0),
                (false, false, 3, 0.0),
            ] {
                let mut case = case::<f32>((2, 4, 2), extents, (1, 0)).with(masked, sinks);
                (case.call.causal, case.call.window) = (causal, window);
                case.call.soft_cap = soft_cap;
                case.check(&format!("{extents:?} {masked:?} {sinks} {causal} {window} {soft_cap}"));
            }
        }
    }
}

fn quantized<T: Sample>() {
    for (heads, queries, keys) in [(4, 1, 300), (4, 3, 70), (2, 1, 33), (10, 1, 17), (4, 40, 70)] {
        for (bits, group, dim) in [
            (4, 32, 32),
            (4, 32, 64),
            (4, 64, 64),
            (4, 64, 128),
            (4, 128, 256),
            (8, 32, 96),
            (8, 128, 128),
        ] {
            let mut case = case::<T>((1, heads, 2), (queries, keys, dim), (1, 0));
            let words: Vec<u32> = (0..2 * keys * dim * bits / 32)
                .map(|i| (i as u32).wrapping_mul(2_654_435_761) ^ 0x5bd1_e995)
                .collect();
            // Elements of about 1, so that scores stay small.
            let scales = values::<T>(2 * keys * dim / group, 1.6 / (1 << bits) as f32);
            let biases = values::<T>(2 * keys * dim / group + 1, 0.5);
            let at = |row| strides(2, keys, row, 1, 0);
            let source = Source::Quantized {
                packed: View { data: words.as_ptr().cast(), strides: at(dim * bits / 32) },
                scales: View { data: scales.as_ptr().cast(), strides: at(dim / group) },
                biases: View { data: biases.as_ptr().cast(), strides: at(dim / group) },
                bits,
                group,
            };
            (case.call.k, case.call.v) = (source, source);
            case.call.causal = true;
            case.check(&format!("{heads}x{queries}x{keys} {bits} bits by {group} of {dim}"));
        }
    }
}

each_type!(shapes quantized);

#[test]
fn extremes_as_mlx() {
    for queries in [1, 40] {
        for machine in machines() {
            let with = |change: fn(&mut Case<f32>)| {
                let mut case = case::<f32>((1, 1, 1), (queries, 70, 16), (1, 0));
                change(&mut case);
                case.with(Masked::Additive, false).run(machine)
            };
            let hidden = with(|case| case.mask.fill(f32::NEG_INFINITY));
            assert!(hidden.iter().all(|v| v.is_nan()), "all scores -inf");
            let nan = with(|case| case.k[5 * 16] = f32::NAN);
            assert!(nan.iter().all(|v| v.is_nan()), "a NaN among the keys");
            let infinite = with(|case| case.mask.iter_mut().step_by(70).for_each(|m| *m = 1e38));
            let values = case::<f32>((1, 1, 1), (queries, 70, 16), (1, 0)).v;
            for row in infinite.chunks_exact(16) {
                assert_eq!(row, &values[..16], "all weight on the first key");
            }
        }
    }
}
