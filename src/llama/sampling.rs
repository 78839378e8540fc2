use crate::array::{Array, select};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::random;

/// How the next token is drawn from the model's logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the likeliest token.
    pub temp: f32,
    /// Draw only from the likeliest tokens that together have this probability; 0 or 1: from all.
    pub top_p: f32,
    /// Draw only from tokens at least this fraction as likely as the likeliest; 0: from all.
    pub min_p: f32,
    /// Draw only from this many likeliest tokens; 0: from all.
    pub top_k: u32,
    /// Of the random numbers.
    pub seed: u64,
}

impl Default for Sampling {
    /// Greedy.
    fn default() -> Self {
        Self { temp: 0.0, top_p: 0.0, min_p: 0.0, top_k: 0, seed: 0 }
    }
}

/// Draws tokens; the same seed draws the same ones.
///
/// ```
/// use mlx_primitives::{Array, llama::{Sampler, Sampling}};
///
/// let logits = Array::from_slice(&[0.0f32, 9.0, 1.0], &[1, 3])?;
/// let mut sampler = Sampler::new(Sampling { temp: 0.7, top_k: 1, ..Sampling::default() })?;
/// assert_eq!(sampler.sample(&logits)?.to_vec::<u32>()?, [1]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub struct Sampler {
    sampling: Sampling,
    key: Array,
}

impl Sampler {
    /// An error for a temperature that is negative or not finite, or probabilities outside 0..=1.
    pub fn new(sampling: Sampling) -> Result<Self> {
        let Sampling { temp, top_p, min_p, .. } = sampling;
        if !(temp >= 0.0 && temp.is_finite()) {
            return Err(Error::argument("sampling", format_args!("temp >= 0, got {temp}")));
        }
        for (name, p) in [("top_p", top_p), ("min_p", min_p)] {
            if !(0.0..=1.0).contains(&p) {
                return Err(Error::argument("sampling", format_args!("{name} in 0..=1, got {p}")));
            }
        }
        Ok(Self { sampling, key: random::key(sampling.seed)? })
    }

    /// One `uint32` token for each row of logits `[batch, vocab]`; lazy.
    pub fn sample(&mut self, logits: &Array) -> Result<Array> {
        let Sampling { temp, top_p, min_p, top_k, .. } = self.sampling;
        if temp == 0.0 {
            return logits.argmax(-1, false);
        }
        let logits = logits.astype(Dtype::Float32)?;
        let mut logprobs = logits.subtract(logits.logsumexp(-1, true)?)?;
        if top_p > 0.0 && top_p < 1.0 {
            logprobs = keep_top_p(&logprobs, top_p)?;
        }
        if min_p > 0.0 {
            let least = logprobs.max(-1, true)?.add(min_p.ln())?;
            logprobs = keep_at_least(&logprobs, &least)?;
        }
        if top_k > 0 && i64::from(top_k) < i64::from(logprobs.dim(-1)?) {
            let least = logprobs.sort(-1)?.slice_axis(-1, -(top_k as i32)..)?;
            logprobs = keep_at_least(&logprobs, &least.slice_axis(-1, ..1)?)?;
        }
        let keys = random::split(&self.key, 2)?;
        self.key = keys.slice(&[&(..1)])?.squeeze(&[0])?;
        let key = keys.slice(&[&(1..)])?.squeeze(&[0])?;
        random::categorical(&logprobs.multiply(1.0 / temp)?, -1, Some(&key))
    }
}

fn keep_at_least(logprobs: &Array, least: &Array) -> Result<Array> {
    select(&logprobs.less(least)?, &Array::scalar(f32::NEG_INFINITY)?, logprobs)
}

/// The fewest likeliest tokens whose probabilities add up to `top_p`.
fn keep_top_p(logprobs: &Array, top_p: f32) -> Result<Array> {
    let ascending = logprobs.sort(-1)?;
    let mass = ascending.exp()?.cumsum(-1)?;
    let total = mass.slice_axis(-1, -1..)?;
    // A token goes if those likelier than it already have the mass.
    let dropped = total.subtract(&mass)?.greater_equal(total.multiply(top_p)?)?;
    let count = dropped.astype(Dtype::Int32)?.sum(-1, true)?;
    keep_at_least(logprobs, &ascending.take_along_axis(&count, -1)?)
}
