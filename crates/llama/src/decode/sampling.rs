use mlx_primitives::{Array, Dtype, Error, Result, random, select};

/// How the next token is drawn from the model's logits. The steps follow mlx-lm's `make_sampler`,
/// and run in the order of the fields from `top_p` to `top_k`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// The temperature. It divides the logits of the tokens that the other steps keep. 0 takes the
    /// most likely token.
    pub temp: f32,
    /// Keeps the most likely tokens that together have this probability; 0 and 1 keep all tokens.
    pub top_p: f32,
    /// Keeps tokens whose probability is at least this fraction of the greatest probability; 0
    /// keeps all tokens.
    pub min_p: f32,
    /// The number of most likely tokens that `min_p` never removes; 0 counts as 1.
    pub min_tokens_to_keep: u32,
    /// The probability with which XTC ("exclude top choices") takes effect. It removes all tokens
    /// with probabilities above `xtc_threshold`, except the least likely of them.
    pub xtc_probability: f32,
    /// The probability above which a token is a top choice. It is at most 0.5.
    pub xtc_threshold: f32,
    /// Keeps this number of most likely tokens; 0 keeps all tokens.
    pub top_k: u32,
    /// The seed of the random numbers.
    pub seed: u64,
}

impl Default for Sampling {
    /// Always takes the most likely token.
    fn default() -> Self {
        Self {
            temp: 0.0,
            top_p: 0.0,
            min_p: 0.0,
            min_tokens_to_keep: 1,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            top_k: 0,
            seed: 0,
        }
    }
}

impl Sampling {
    fn check(&self) -> Result<()> {
        let temp = self.temp;
        if !(temp >= 0.0 && temp.is_finite()) {
            return Err(Error::argument("sampling", format_args!("temp >= 0, got {temp}")));
        }
        for (name, p, most) in [
            ("top_p", self.top_p, 1.0),
            ("min_p", self.min_p, 1.0),
            ("xtc_probability", self.xtc_probability, 1.0),
            ("xtc_threshold", self.xtc_threshold, 0.5),
        ] {
            if !(0.0..=most).contains(&p) {
                return Err(Error::argument(
                    "sampling",
                    format_args!("{name} in 0..={most}, got {p}"),
                ));
            }
        }
        Ok(())
    }
}

/// Draws tokens from logits. Equal seeds draw equal tokens from equal logits.
///
/// ```
/// use mlx_primitives::Array;
/// use mlx_primitives_llama::{Sampling, decode::Sampler};
///
/// let logits = Array::from_slice(&[0.0f32, 9.0, 1.0], &[1, 3])?;
/// let mut sampler = Sampler::new(Sampling { temp: 0.7, top_k: 1, ..Sampling::default() })?;
/// assert_eq!(sampler.sample(&logits)?.to_vec::<u32>()?, [1]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub struct Sampler {
    sampling: Sampling,
    /// Tokens that XTC never removes.
    spared: Vec<u32>,
    key: Array,
}

impl Sampler {
    /// Creates a sampler with a random number generator for its seed.
    ///
    /// # Errors
    ///
    /// Returns an error for a temperature that is negative or not finite, probabilities outside
    /// 0..=1, or an XTC threshold outside 0..=0.5.
    pub fn new(sampling: Sampling) -> Result<Self> {
        sampling.check()?;
        Ok(Self { sampling, spared: Vec::new(), key: random::key(sampling.seed)? })
    }

    /// Sets tokens that XTC never removes. In mlx-lm, these are the end tokens and the line break.
    pub fn sparing(self, tokens: &[u32]) -> Self {
        Self { spared: tokens.to_vec(), ..self }
    }

    /// Whether the sampler always takes the most likely token. If so, it draws no random numbers.
    pub fn is_greedy(&self) -> bool {
        self.sampling.temp == 0.0
    }

    /// Draws a token for each row of logits `[batch, vocab]`. Returns a lazy uint32 array
    /// `[batch]`.
    ///
    /// # Errors
    ///
    /// Returns an error if `logits` is not a matrix of a floating type, or has no columns.
    pub fn sample(&mut self, logits: &Array) -> Result<Array> {
        self.sample_watched(logits).map(|(tokens, _)| tokens)
    }

    /// Draws tokens like [`sample`](Self::sample). Also returns an array that the caller checks for
    /// NaN and infinity. It is the logits if the sampler takes the greatest logit, or else the
    /// logarithms of the sums of the exponentials of the logits.
    pub(crate) fn sample_watched(&mut self, logits: &Array) -> Result<(Array, Array)> {
        if self.is_greedy() {
            return Ok((logits.argmax(-1)?, logits.clone()));
        }
        let logits = logits.astype(Dtype::Float32)?;
        let total = logits.logsumexp_keepdims(-1)?;
        Ok((self.draw(&logits.subtract(&total)?)?, total))
    }

    /// Draws a token for each row of log probabilities.
    fn draw(&mut self, logprobs: &Array) -> Result<Array> {
        let Sampling { temp, top_p, min_p, top_k, xtc_probability, .. } = self.sampling;
        let mut logprobs = logprobs.clone();
        if top_p > 0.0 && top_p < 1.0 {
            logprobs = keep_top_p(&logprobs, top_p)?;
        }
        if min_p > 0.0 {
            logprobs = keep_min_p(&logprobs, min_p, self.sampling.min_tokens_to_keep)?;
        }
        if xtc_probability > 0.0 {
            let chance = random::uniform::<f32>(0.0, 1.0, &[], Some(&self.next_key()?))?;
            let cut = self.without_top_choices(&logprobs)?;
            logprobs = select(&chance.greater(xtc_probability)?, &logprobs, &cut)?;
        }
        if top_k > 0 && i64::from(top_k) < i64::from(logprobs.dim(-1)?) {
            logprobs = keep_top_k(&logprobs, top_k as i32)?;
        }
        let key = self.next_key()?;
        random::categorical(&logprobs.multiply(1.0 / temp)?, -1, Some(&key))
    }

    fn next_key(&mut self) -> Result<Array> {
        let keys = random::split(&self.key, 2)?;
        self.key = keys.i(..1)?.squeeze([0])?;
        keys.i(1..)?.squeeze([0])
    }

    fn without_top_choices(&self, logprobs: &Array) -> Result<Array> {
        // As in mlx-lm, tokens that were removed have probability 0, and the other probabilities
        // are scaled to a sum of 1.
        let probs = logprobs.subtract(logprobs.logsumexp_keepdims(-1)?)?.exp()?;
        let above = probs.greater(self.sampling.xtc_threshold)?;
        let least = select(&above, &probs, &Array::scalar(f32::INFINITY)?)?.min_keepdims(-1)?;
        let cut = select(&probs.greater(least)?, &Array::scalar(f32::NEG_INFINITY)?, logprobs)?;
        let vocab = logprobs.dim(-1)?;
        let spared: Vec<u32> = self
            .spared
            .iter()
            .copied()
            .filter(|&token| i64::from(token) < i64::from(vocab))
            .collect();
        if spared.is_empty() {
            return Ok(cut);
        }
        let rows = logprobs.dim(0)?;
        let count = i32::try_from(spared.len()).unwrap_or(i32::MAX);
        let spared = Array::from_slice(&spared, [1, count])?.broadcast_to([rows, count])?;
        cut.put_along_axis(&spared, &logprobs.take_along_axis(&spared, -1)?, -1)
    }
}

fn keep_at_least(logprobs: &Array, least: &Array) -> Result<Array> {
    select(&logprobs.less(least)?, &Array::scalar(f32::NEG_INFINITY)?, logprobs)
}

/// Keeps the smallest set of most likely tokens whose probabilities add up to at least `top_p`.
fn keep_top_p(logprobs: &Array, top_p: f32) -> Result<Array> {
    let ascending = logprobs.sort(-1)?;
    let mass = ascending.exp()?.cumsum(-1)?;
    let total = mass.slice_axis(-1, -1..)?;
    // Removes a token if the more likely tokens already have a total probability of `top_p`.
    let dropped = total.subtract(&mass)?.greater_equal(total.multiply(top_p)?)?;
    let count = dropped.astype(Dtype::Int32)?.sum_keepdims(-1)?;
    keep_at_least(logprobs, &ascending.take_along_axis(&count, -1)?)
}

/// Keeps exactly `k` most likely tokens. If several tokens at the limit are equally likely, any of
/// them may be kept.
fn keep_top_k(logprobs: &Array, k: i32) -> Result<Array> {
    let dropped = logprobs.negative()?.argsort(-1)?.slice_axis(-1, k..)?;
    let lowest = Array::scalar(f32::NEG_INFINITY)?.broadcast_to(dropped.shape())?;
    logprobs.put_along_axis(&dropped, &lowest, -1)
}

/// Keeps tokens whose probability is at least `min_p` times the greatest probability, and at least
/// `least` tokens.
fn keep_min_p(logprobs: &Array, min_p: f32, least: u32) -> Result<Array> {
    let vocab = logprobs.dim(-1)?;
    let mut bound = logprobs.max_keepdims(-1)?.add(min_p.ln())?;
    let least = i32::try_from(least).unwrap_or(i32::MAX).min(vocab);
    if least > 1 {
        let kept = logprobs.sort(-1)?.slice_axis(-1, vocab - least..vocab - least + 1)?;
        bound = bound.minimum(kept)?;
    }
    keep_at_least(logprobs, &bound)
}
