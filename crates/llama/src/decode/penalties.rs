use std::collections::HashMap;

use mlx_primitives::{Array, Dtype, Error, Result, select};

/// Changes to the logits before a token is drawn. They are applied in the order of the fields, as
/// in mlx-lm's `make_logits_processors`. Each penalty except `logit_bias` applies to the last
/// `..._context_size` tokens ("recent tokens") of the prompt and the generated tokens.
///
/// ```
/// use mlx_primitives::Array;
/// use mlx_primitives_llama::Penalties;
///
/// let logits = Array::from_slice(&[2.0f32, -2.0, 1.0], &[1, 3])?;
/// let penalties = Penalties { repetition: 2.0, ..Penalties::default() };
/// let changed = penalties.apply(&[0, 1, 1], &logits)?;
/// assert_eq!(changed.to_vec::<f32>()?, [1.0, -4.0, 1.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Penalties {
    /// Tokens, and the numbers that are added to their logits.
    pub logit_bias: Vec<(u32, f32)>,
    /// Divides positive logits of recent tokens by this number, and multiplies negative logits by
    /// it. The values 0 and 1 turn it off.
    pub repetition: f32,
    /// The number of recent tokens for `repetition`.
    pub repetition_context_size: usize,
    /// The number that is subtracted from the logits of recent tokens; 0 turns it off.
    pub presence: f32,
    /// The number of recent tokens for `presence`.
    pub presence_context_size: usize,
    /// The number that is subtracted from a recent token's logit for each occurrence of the token;
    /// 0 turns it off.
    pub frequency: f32,
    /// The number of recent tokens for `frequency`.
    pub frequency_context_size: usize,
}

impl Default for Penalties {
    /// No penalties, and a context size of 20 tokens.
    fn default() -> Self {
        Self {
            logit_bias: Vec::new(),
            repetition: 0.0,
            repetition_context_size: 20,
            presence: 0.0,
            presence_context_size: 20,
            frequency: 0.0,
            frequency_context_size: 20,
        }
    }
}

impl Penalties {
    /// Whether all penalties are off.
    pub fn is_none(&self) -> bool {
        self.logit_bias.is_empty()
            && (self.repetition == 0.0 || self.repetition == 1.0)
            && self.presence == 0.0
            && self.frequency == 0.0
    }

    /// Checks the penalties for a vocabulary of `vocab` tokens.
    ///
    /// # Errors
    ///
    /// Returns an error for numbers that are not finite, a negative repetition penalty, or a bias
    /// for a token outside the vocabulary. A bias of minus infinity is allowed.
    pub fn check(&self, vocab: usize) -> Result<()> {
        let refuse = |expected: std::fmt::Arguments| Err(Error::argument("penalties", expected));
        if !(self.repetition >= 0.0 && self.repetition.is_finite()) {
            return refuse(format_args!("a repetition penalty >= 0, got {}", self.repetition));
        }
        for (name, value) in [("presence", self.presence), ("frequency", self.frequency)] {
            if !value.is_finite() {
                return refuse(format_args!("a finite {name} penalty, got {value}"));
            }
        }
        for (token, bias) in &self.logit_bias {
            // Minus infinity bans a token.
            if *token as usize >= vocab || bias.is_nan() || *bias == f32::INFINITY {
                return refuse(format_args!(
                    "biases that are numbers of tokens below {vocab}, got {bias} of {token}"
                ));
            }
        }
        Ok(())
    }

    /// Applies the penalties to the logits `[1, vocab]` of the token after `tokens`. The result is
    /// lazy. Tokens outside the vocabulary are ignored.
    ///
    /// # Errors
    ///
    /// Returns an error if `logits` is not an array `[1, vocab]` of a floating type.
    pub fn apply(&self, tokens: &[u32], logits: &Array) -> Result<Array> {
        let mut logits = logits.clone();
        if !self.logit_bias.is_empty() {
            let mut sums: HashMap<u32, f32> = HashMap::new();
            for (token, bias) in &self.logit_bias {
                *sums.entry(*token).or_default() += bias;
            }
            logits = change(&logits, &sums, |chosen, bias| chosen.add(bias))?;
        }
        if self.repetition != 0.0 && self.repetition != 1.0 {
            let seen = counts(last(tokens, self.repetition_context_size));
            logits = change(&logits, &seen, |chosen, _| {
                let (more, less) =
                    (chosen.multiply(self.repetition)?, chosen.divide(self.repetition)?);
                select(&chosen.less(0.0)?, &more, &less)
            })?;
        }
        if self.presence != 0.0 {
            let seen = counts(last(tokens, self.presence_context_size));
            logits = change(&logits, &seen, |chosen, _| chosen.subtract(self.presence))?;
        }
        if self.frequency != 0.0 {
            let seen = counts(last(tokens, self.frequency_context_size));
            logits = change(&logits, &seen, |chosen, times| {
                chosen.subtract(times.multiply(self.frequency)?)
            })?;
        }
        Ok(logits)
    }
}

fn last(tokens: &[u32], count: usize) -> &[u32] {
    tokens.get(tokens.len().saturating_sub(count)..).unwrap_or_default()
}

fn counts(tokens: &[u32]) -> HashMap<u32, f32> {
    let mut counts = HashMap::new();
    for token in tokens {
        *counts.entry(*token).or_default() += 1.0;
    }
    counts
}

/// Replaces the logits of the tokens in `values`. `f` receives two arrays: these logits, and the
/// values of the tokens.
fn change(
    logits: &Array,
    values: &HashMap<u32, f32>,
    f: impl FnOnce(&Array, &Array) -> Result<Array>,
) -> Result<Array> {
    let vocab = logits.dim(-1)?;
    let known = |token: u32| i64::from(token) < i64::from(vocab);
    let mut values: Vec<(u32, f32)> =
        values.iter().map(|(t, v)| (*t, *v)).filter(|(token, _)| known(*token)).collect();
    if values.is_empty() {
        return Ok(logits.clone());
    }
    values.sort_unstable_by_key(|(token, _)| *token);
    let (tokens, values): (Vec<u32>, Vec<f32>) = values.into_iter().unzip();
    let count = i32::try_from(tokens.len()).unwrap_or(i32::MAX);
    let tokens = Array::from_slice(&tokens, [1, count])?;
    let values = Array::from_slice(&values, [1, count])?;
    let chosen = logits.take_along_axis(&tokens, -1)?.astype(Dtype::Float32)?;
    let changed = f(&chosen, &values)?.astype(logits.dtype())?;
    logits.put_along_axis(&tokens, &changed, -1)
}
