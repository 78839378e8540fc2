//! Simple reference implementations of ops in f64.

/// `x / sqrt(mean(x²) + eps) * weight` of each row.
pub fn rms_norm(x: &[f64], weight: Option<&[f64]>, axis: usize, eps: f64) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(axis.max(1)) {
        let mean = row.iter().map(|v| v * v).sum::<f64>() / axis as f64;
        let inverse = 1.0 / (mean + eps).sqrt();
        out.extend(row.iter().enumerate().map(|(i, v)| v * inverse * weight.map_or(1.0, |w| w[i])));
    }
    out
}

/// `exp(x - max) / sum(exp(x - max))` of each row.
pub fn softmax(x: &[f64], axis: usize) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(axis.max(1)) {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = row.iter().map(|v| (v - max).exp()).sum();
        out.extend(row.iter().map(|v| (v - max).exp() / sum));
    }
    out
}

pub fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Computes erf from a series of positive terms: exp(-x²) times the sum of 2^n x^(2n+1) / (2n+1)!!,
/// times 2 / sqrt(pi).
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

pub fn gelu(x: f64) -> f64 {
    x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)) / 2.0
}

pub fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    x / 2.0 * (1.0 + inner.tanh())
}

/// A rotary embedding of an array `[batch, heads, seq, features]`.
pub struct Rope<'a> {
    pub shape: [usize; 4],
    pub dims: usize,
    pub traditional: bool,
    /// The `dims / 2` periods.
    pub freqs: Vec<f64>,
    pub scale: f64,
    /// One offset for all batch entries, or an offset for each batch entry.
    pub offsets: &'a [i32],
}

impl Rope<'_> {
    pub fn base(base: f64, dims: usize) -> Vec<f64> {
        (0..dims / 2).map(|i| base.powf(2.0 * i as f64 / dims as f64)).collect()
    }

    /// The angle of position `t` of batch entry `b` at pair `i`.
    fn angle(&self, b: usize, t: usize, i: usize) -> f64 {
        let offset = if self.offsets.len() > 1 { self.offsets[b] } else { self.offsets[0] };
        (t as f64 + f64::from(offset)) * self.scale / self.freqs[i]
    }

    /// Returns the rotated elements, and a factor for each element that bounds the effect of an
    /// error in the angle or the coordinates. The factor is the length of the pair times (1 +
    /// |angle|), and zero for elements that are not rotated.
    pub fn apply(&self, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let [_, heads, seq, features] = self.shape;
        let mut out = x.to_vec();
        let mut reach = vec![0.0; x.len()];
        for (row, values) in x.chunks_exact(features).enumerate() {
            let (b, t) = (row / (heads * seq), row % seq);
            for i in 0..self.dims / 2 {
                let (first, second) =
                    if self.traditional { (2 * i, 2 * i + 1) } else { (i, i + self.dims / 2) };
                let angle = self.angle(b, t, i);
                let (x1, x2) = (values[first], values[second]);
                let at = row * features;
                out[at + first] = x1 * angle.cos() - x2 * angle.sin();
                out[at + second] = x1 * angle.sin() + x2 * angle.cos();
                reach[at + first] = x1.hypot(x2) * (1.0 + angle.abs());
                reach[at + second] = reach[at + first];
            }
        }
        (out, reach)
    }
}
