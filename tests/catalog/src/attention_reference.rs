//! A simple implementation of attention in f64, as a reference.

use mlx_primitives::ops::Attention;
use mlx_primitives::{Array, Dtype, Error, Result};
use mlx_primitives_check::Tensor;

use super::broadcast;

pub struct Reference {
    /// [batch, heads, queries, dim].
    shape: [usize; 4],
    kv_heads: usize,
    keys: usize,
    value_dim: usize,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    scale: f64,
    causal: bool,
    window: Option<i64>,
    soft_cap: Option<f64>,
    /// The terms that the mask adds to the scores, [batch, heads, queries, keys]. A term is `None`
    /// where a boolean mask hides the score.
    mask: Option<Vec<Option<f64>>>,
    sinks: Option<Vec<f64>>,
}

impl Reference {
    pub fn new(q: &Array, k: &Array, v: &Array, options: Attention<'_>) -> Result<Self> {
        let [q, k, v] = [Tensor::of(q)?, Tensor::of(k)?, Tensor::of(v)?];
        let mask = options.mask.map(|mask| Ok::<_, Error>((Tensor::of(mask)?, mask.dtype())));
        let mask = mask.transpose()?;
        let mask = mask.as_ref().map(|(mask, dtype)| (mask, *dtype == Dtype::Bool));
        let sinks = options.sinks.map(Tensor::of).transpose()?;
        Ok(Self::of([&q, &k, &v], mask, sinks.as_ref(), options))
    }

    /// `mask` is a pair: the mask, and true if it is boolean. Ignores the arrays in `options`.
    pub fn of(
        [q, k, v]: [&Tensor; 3],
        mask: Option<(&Tensor, bool)>,
        sinks: Option<&Tensor>,
        options: Attention<'_>,
    ) -> Self {
        let shape = [0, 1, 2, 3].map(|axis| q.shape[axis]);
        let [batch, heads, queries, dim] = shape;
        let (kv_heads, keys) = (k.shape[1], k.shape[2]);
        let mask = mask.map(|(mask, bools)| {
            let scores = [batch, heads, queries, keys];
            let own = [vec![1; 4 - mask.shape.len()], mask.shape.clone()].concat();
            let value = |index| mask.values[broadcast(&scores, &own, index)];
            let term = |value: f64| if bools { (value != 0.0).then_some(0.0) } else { Some(value) };
            (0..scores.iter().product()).map(|index| term(value(index))).collect()
        });
        Self {
            shape,
            kv_heads,
            keys,
            value_dim: v.shape[3],
            q: q.values.clone(),
            k: k.values.clone(),
            v: v.values.clone(),
            // The op computes the scale in f32, so the reference does too.
            scale: f64::from(options.scale.unwrap_or(1.0 / (dim as f32).sqrt())),
            causal: options.causal || options.window.is_some(),
            window: options.window.map(i64::from),
            soft_cap: options.soft_cap.map(f64::from),
            mask,
            sinks: sinks.map(|sinks| sinks.values.clone()),
        }
    }

    /// The result, [batch, heads, queries, value_dim].
    pub fn apply(&self) -> Vec<f64> {
        let [batch, heads, queries, dim] = self.shape;
        let mut out = Vec::with_capacity(self.q.len());
        for row in 0..batch * heads * queries {
            let (b, h, t) = (row / queries / heads, row / queries % heads, row % queries);
            let kv = b * self.kv_heads + h / (heads / self.kv_heads);
            let at = |s: usize, dim| (kv * self.keys + s) * dim..(kv * self.keys + s + 1) * dim;
            let query = &self.q[row * dim..(row + 1) * dim];
            let mut scores: Vec<f64> = (0..self.keys)
                .map(|s| {
                    let dot: f64 = query.iter().zip(&self.k[at(s, dim)]).map(|(q, k)| q * k).sum();
                    let mut score = dot * self.scale;
                    if let Some(cap) = self.soft_cap {
                        score = cap * (score / cap).tanh();
                    }
                    self.masked(score, row, t, s)
                })
                .collect();
            scores.extend(self.sinks.as_ref().map(|sinks| sinks[h]));
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            let mut total = vec![0.0; self.value_dim];
            for (s, weight) in weights.iter().enumerate().take(self.keys) {
                for (total, v) in total.iter_mut().zip(&self.v[at(s, self.value_dim)]) {
                    *total += weight / sum * v;
                }
            }
            out.extend(total);
        }
        out
    }

    fn masked(&self, score: f64, row: usize, t: usize, s: usize) -> f64 {
        const HIDDEN: f64 = -1e300; // finite, so if all keys are hidden, they have equal weights
        let term = self.mask.as_ref().map_or(Some(0.0), |mask| mask[row * self.keys + s]);
        let position = (self.keys + t) as i64 - self.shape[2] as i64;
        let late = self.causal && s as i64 > position;
        let early = self.window.is_some_and(|window| s as i64 <= position - window);
        match term {
            Some(term) if !late && !early => score + term,
            _ => HIDDEN,
        }
    }
}
