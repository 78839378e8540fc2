//! Compares the derivatives of attention with derivatives that are computed in f64.

use super::*;

/// The derivatives with respect to queries, keys, values, mask and sinks. The first four are
/// [batch, position, head, feature or key].
type Gradients<T> = [Vec<T>; 5];

/// A random cotangent, [batch, heads, queries, value_dim]. One unused element follows each row.
fn cotangent<T: Sample>(call: &Attention) -> (Vec<T>, [isize; 4]) {
    let at = strides(call.heads, call.queries, call.value_dim, 1, 1);
    (values::<T>(call.batch * at[0] as usize + 2, 1.0), at)
}

impl<T: Sample> Case<T> {
    fn gradients(&self, machine: Machine) -> Gradients<T> {
        self.some_gradients(machine, true)
    }

    /// Computes the derivatives, with respect to keys and values only if `of_keys`.
    fn some_gradients(&self, machine: Machine, of_keys: bool) -> Gradients<T> {
        let forward = self.ready();
        let (g, at) = cotangent::<T>(&forward);
        let Attention { batch, heads, kv_heads, queries, keys, dim, value_dim, .. } = forward;
        let room =
            |wanted: bool, count: usize| vec![T::from_f32(1.0); if wanted { count } else { 0 }];
        let masked = matches!(forward.mask, Mask::Additive(_));
        let mut all = [
            room(true, batch * heads * queries * dim),
            room(of_keys, batch * kv_heads * keys * dim),
            room(of_keys, batch * kv_heads * keys * value_dim),
            room(masked, batch * heads * queries * keys),
            room(!forward.sinks.is_null(), heads),
        ];
        let [dq, dk, dv, dmask, dsinks] = all.each_mut().map(|x| match x.is_empty() {
            true => std::ptr::null_mut(),
            false => x.as_mut_ptr().cast(),
        });
        let cotangent = View { data: g.as_ptr().cast(), strides: at };
        let call = Backward { forward, cotangent, dq, dk, dv, dmask, dsinks };
        // SAFETY: the views stay within their vectors, and each derivative has enough room.
        unsafe { attention_grad_on::<T>(machine, &call) };
        all
    }

    fn exact_gradients(&self) -> [Vec<f64>; 5] {
        let call = self.ready();
        let (g, at) = cotangent::<T>(&call);
        let g = View { data: g.as_ptr().cast(), strides: at };
        let Attention { batch, heads, kv_heads, queries, keys, dim, value_dim, .. } = call;
        let scale = f64::from(call.scale);
        let mut dq = vec![0.0; batch * queries * heads * dim];
        let mut dk = vec![0.0; batch * keys * kv_heads * dim];
        let mut dv = vec![0.0; batch * keys * kv_heads * value_dim];
        let masked = matches!(call.mask, Mask::Additive(_));
        let mut dmask = vec![0.0; if masked { batch * heads * queries * keys } else { 0 }];
        let mut dsinks = vec![0.0; if call.sinks.is_null() { 0 } else { heads }];
        for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
            let kv = h / (heads / kv_heads);
            for t in 0..queries {
                let weights = self.weights(&call, (b, h, t));
                let q = element_row::<T>(&call.q, b, h, t, dim);
                let g = element_row::<T>(&g, b, h, t, value_dim);
                let row = |s| Self::row(&call.v, value_dim, (b, kv, s));
                let grads: Vec<f64> = (0..keys)
                    .map(|s| row(s).iter().zip(&g).map(|(v, g)| v * g).sum::<f64>())
                    .collect();
                let delta: f64 = weights.iter().zip(&grads).map(|((w, _), grad)| w * grad).sum();
                for (s, grad) in grads.into_iter().enumerate() {
                    let (weight, slope) = weights[s];
                    let of_score = weight * (grad - delta);
                    if masked && slope != 0.0 {
                        dmask[((b * queries + t) * heads + h) * keys + s] = of_score;
                    }
                    let grad = scale * of_score * slope;
                    let k = Self::row(&call.k, dim, (b, kv, s));
                    let (query, key) = ((b * queries + t) * heads + h, (b * keys + s) * kv_heads);
                    for d in 0..dim {
                        dq[query * dim + d] += grad * k[d];
                        dk[(key + kv) * dim + d] += grad * q[d];
                    }
                    for (d, g) in g.iter().enumerate() {
                        dv[(key + kv) * value_dim + d] += weight * g;
                    }
                }
                if let Some((weight, _)) = weights.get(keys) {
                    dsinks[h] -= weight * delta;
                }
            }
        }
        [dq, dk, dv, dmask, dsinks]
    }

    /// Checks every instruction set with several numbers of threads. Derivatives are close to f64.
    /// On each instruction set, every number of threads gives equal derivatives.
    fn check_gradients(&self, what: &str) {
        let expected = self.exact_gradients();
        // The bounds cover f32 errors in sums of products whose magnitudes are at most 4, the error
        // of the weight in each product, and rounding.
        let relative = f64::from(T::EPSILON) / 2.0 + 1e-4;
        let absolute = 1e-5 * (self.call.queries as f64).sqrt() + f64::from(T::EPSILON) / 64.0;
        let mut of_level: Option<(Level, Gradients<T>)> = None;
        for machine in machines() {
            let got = self.gradients(machine);
            for (name, (got, expected)) in
                ["queries", "keys", "values", "mask", "sinks"].iter().zip(got.iter().zip(&expected))
            {
                let what = format!("{what}, {name} on {:?}", machine.level);
                assert_close(got, expected, relative, absolute, &what);
            }
            match &of_level {
                Some((level, before)) if *level == machine.level => {
                    let pairs = got.iter().zip(before);
                    pairs.for_each(|(got, before)| assert_same(got, before, what));
                }
                _ => of_level = Some((machine.level, got)),
            }
        }
    }
}

/// Extents with more and fewer rows of queries than a block of the kernel has, more and fewer keys
/// than a tile of the kernel has, unusual numbers of features, and queries that see no key. In some
/// cases, a thread computes several blocks.
const EXTENTS: [(Three, Three); 14] = [
    ((1, 1, 1), (1, 1, 1)),
    ((1, 4, 1), (1, 7, 64)),
    ((2, 6, 2), (1, 65, 32)),
    ((1, 2, 2), (3, 131, 80)),
    ((1, 2, 1), (3, 2, 128)),
    ((1, 1, 1), (16, 70, 256)),
    ((2, 4, 2), (33, 65, 64)),
    ((1, 3, 1), (40, 50, 80)),
    ((1, 2, 2), (97, 97, 33)),
    ((1, 5, 1), (20, 64, 7)),
    ((1, 2, 1), (30, 20, 256)),
    ((2, 1, 1), (100, 48, 128)),
    ((17, 2, 2), (5, 3, 16)),
    ((1, 4, 1), (250, 9, 8)),
];

fn gradients<T: Sample>() {
    for (heads, extents) in EXTENTS {
        for causal in [false, true] {
            let mut case = case::<T>(heads, extents, (1, 0));
            case.call.causal = causal;
            case.check_gradients(&format!("{heads:?} {extents:?} causal {causal}"));
        }
    }
}

each_type!(gradients);

#[test]
fn of_values_of_other_sizes() {
    for (heads, extents) in [((1, 2, 1), (3, 70, 33)), ((2, 2, 2), (60, 61, 64))] {
        for value_dim in [1, 17, 80, 128, 256] {
            let what = format!("{heads:?} {extents:?} values of {value_dim}");
            case::<f32>(heads, extents, (1, 0)).with_values(value_dim).check_gradients(&what);
            case::<F16>(heads, extents, (1, 0)).with_values(value_dim).check_gradients(&what);
        }
    }
}

/// In two of the cases, adjacent features are two or three elements apart.
#[test]
fn of_rules_masks_and_sinks() {
    for (extents, step) in [((2, 100, 32), 1), ((30, 110, 24), 2), ((50, 20, 16), 3)] {
        for masked in [Masked::No, Masked::Bool, Masked::Additive, Masked::Nothing] {
            for (sinks, causal, window, soft_cap) in [
                (true, false, 0, 0.0),
                (false, true, 0, 1.5),
                (false, true, 5, 0.0),
                (true, true, 60, 30.0),
                (false, false, 3, 0.0),
            ] {
                let mut case = case::<f32>((2, 4, 2), extents, (step, 2)).with(masked, sinks);
                (case.call.causal, case.call.window) = (causal, window);
                case.call.soft_cap = soft_cap;
                let rules = format!("{sinks} {causal} {window} {soft_cap}");
                case.check_gradients(&format!("{extents:?} {masked:?} {rules}"));
            }
        }
    }
}

#[test]
fn of_extremes_as_mlx() {
    for machine in machines() {
        let with = |change: fn(&mut Case<f32>)| {
            let mut case = case::<f32>((1, 1, 1), (40, 70, 16), (1, 0));
            change(&mut case);
            case.with(Masked::Additive, false).gradients(machine)
        };
        let all_nan = |x: &[f32]| x.iter().all(|v| v.is_nan());
        let [dq, dk, dv, dmask, _] = with(|case| case.mask.fill(f32::NEG_INFINITY));
        assert!(all_nan(&dq) && all_nan(&dk) && all_nan(&dv), "all scores -inf");
        assert!(all_nan(&dmask), "all scores -inf");
        let [dq, dk, dv, ..] = with(|case| case.k[5 * 16] = f32::NAN);
        assert!(all_nan(&dq) && all_nan(&dk) && all_nan(&dv), "a NaN among the keys");
        let [dq, dk, dv, ..] = with(|case| case.v[5 * 16] = f32::NAN);
        assert!(all_nan(&dq) && all_nan(&dk), "a NaN among the values");
        assert!(dv.iter().all(|v| v.is_finite()), "a NaN among the values");
        let [dq, dk, _, dmask, _] =
            with(|case| case.mask.iter_mut().step_by(70).for_each(|m| *m = 1e38));
        let mut all = dq.iter().chain(&dk).chain(&dmask);
        assert!(all.all(|v| *v == 0.0), "all weight on the first key");
    }
}

#[test]
fn without_keys_and_values() {
    for extents in [(3, 131, 80), (100, 60, 16)] {
        let mut case = case::<F16>((2, 4, 2), extents, (1, 0)).with(Masked::Additive, true);
        case.call.causal = true;
        for machine in machines() {
            let some = case.some_gradients(machine, false);
            let [dq, dk, dv, dmask, dsinks] = case.gradients(machine);
            assert!(some[1].is_empty() && some[2].is_empty() && !dk.is_empty() && !dv.is_empty());
            assert_same(&some[0], &dq, "queries");
            assert_same(&some[3], &dmask, "the mask");
            assert_same(&some[4], &dsinks, "sinks");
        }
    }
}
