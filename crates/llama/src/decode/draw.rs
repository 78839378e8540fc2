use mlx_primitives::{Array, Dtype, Error, Result};

use super::options::{Options, Token};
use super::penalties::Penalties;
use super::sampling::Sampler;

/// A function that receives the tokens so far and the logits `[1, vocab]` of the next token, and
/// returns changed logits.
type Processor<'a> = dyn FnMut(&[u32], &Array) -> Result<Array> + 'a;

/// Draws tokens from logits with penalties and a sampler.
pub(crate) struct Draw<'a> {
    sampler: Sampler,
    /// The penalties, or `None` if they have no effect.
    penalties: Option<Penalties>,
    processors: Vec<Box<Processor<'a>>>,
    logprobs: Option<usize>,
}

/// A token that was drawn. MLX may still be computing it.
pub(crate) struct Drawn {
    /// The token, uint32 `[1]`.
    pub token: Array,
    /// An array to check for NaN and infinity. If the sampler took the greatest logit, it is the
    /// logits `[1, vocab]`. Otherwise it is the logarithm of the sum of their exponentials.
    watched: Array,
    /// Whether penalties or a caller's function may have set the greatest logit to infinity.
    forced: bool,
    /// The log probabilities `[1, vocab]`, and the number of most likely tokens to return.
    logprobs: Option<(Array, usize)>,
}

impl<'a> Draw<'a> {
    pub fn new(options: &Options, vocab: usize) -> Result<Self> {
        options.penalties.check(vocab)?;
        Ok(Self {
            sampler: Sampler::new(options.sampling)?.sparing(&options.xtc_spared),
            penalties: Some(&options.penalties).filter(|it| !it.is_none()).cloned(),
            processors: Vec::new(),
            logprobs: options.logprobs,
        })
    }

    /// Adds a function that changes the logits. It runs after the penalties and after functions
    /// that were added earlier.
    pub fn process(&mut self, processor: impl FnMut(&[u32], &Array) -> Result<Array> + 'a) {
        self.processors.push(Box::new(processor));
    }

    /// Whether the draw always takes the token with the greatest logit, and no log probabilities
    /// are requested.
    pub fn is_argmax(&self) -> bool {
        self.sampler.is_greedy()
            && self.penalties.is_none()
            && self.processors.is_empty()
            && self.logprobs.is_none()
    }

    /// Whether earlier tokens influence a draw only through the logits, because there are no
    /// penalties or processors.
    pub fn ignores_tokens(&self) -> bool {
        self.penalties.is_none() && self.processors.is_empty()
    }

    /// Draws the token after `tokens` from its logits `[1, vocab]`. The result is lazy.
    pub fn draw(&mut self, tokens: &[u32], logits: &Array) -> Result<Drawn> {
        let mut logits = match &self.penalties {
            Some(penalties) => penalties.apply(tokens, logits)?,
            None => logits.clone(),
        };
        for processor in &mut self.processors {
            let shape = logits.shape().to_vec();
            logits = processor(tokens, &logits)?;
            if logits.shape() != shape {
                let expected = format_args!("logits {shape:?} from a processor");
                return Err(Error::shape("generate", expected, logits.shape()));
            }
        }
        let logprobs = match self.logprobs {
            None => None,
            Some(count) => {
                let logits = logits.astype(Dtype::Float32)?;
                Some((logits.subtract(logits.logsumexp_keepdims(-1)?)?, count))
            }
        };
        let (token, watched) = self.sampler.sample_watched(&logits)?;
        Ok(Drawn { token, watched, forced: !self.ignores_tokens(), logprobs })
    }
}

impl Drawn {
    /// The arrays that MLX must evaluate for this token.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        [&self.token, &self.watched].into_iter().chain(self.logprobs.as_ref().map(|(row, _)| row))
    }

    /// Waits for the token and returns it. Returns an error if the logits are NaN or infinite.
    pub fn read(&self) -> Result<Token> {
        let id = self.token.item::<u32>()?;
        let at = if self.watched.size() == 1 { 0 } else { id as usize };
        check(&self.watched, at, self.forced)?;
        let Some((row, count)) = &self.logprobs else {
            return Ok(Token { id, ..Token::default() });
        };
        let row = row.to_vec::<f32>()?;
        let logprob = row.get(id as usize).copied();
        Ok(Token { id, logprob, top_logprobs: likeliest(&row, *count), from_draft: false })
    }
}

/// Returns an error if the element at `index`, which decided the token, is NaN or infinite. If
/// penalties or a caller's function may have `forced` the logits, positive infinity is accepted.
/// One element is enough, because NaN and infinity from broken weights spread to all logits.
/// Checking all logits would take time.
pub(crate) fn check(logits: &Array, index: usize, forced: bool) -> Result<()> {
    fn at<const N: usize>(bytes: &[u8], index: usize) -> Option<[u8; N]> {
        bytes.as_chunks::<N>().0.get(index).copied()
    }
    let dtype = logits.dtype();
    let value = logits.with_bytes(|bytes| match dtype {
        Dtype::Float32 => at(bytes, index).map(f32::from_le_bytes),
        Dtype::Float16 => at(bytes, index).map(|it| half::f16::from_le_bytes(it).to_f32()),
        Dtype::Bfloat16 => at(bytes, index).map(|it| half::bf16::from_le_bytes(it).to_f32()),
        _ => None,
    })?;
    match value {
        Some(value) if !(value.is_finite() || forced && value == f32::INFINITY) => {
            Err(no_number("generate"))
        }
        _ => Ok(()),
    }
}

/// Makes the error for logits that are NaN or infinite.
pub(crate) fn no_number(op: &str) -> Error {
    Error::argument(
        op,
        "finite logits, got NaN or infinity: the weights, or keys and values of a cache, are no numbers, \
         or their products are too large for the model's type",
    )
}

/// Returns the `count` greatest elements of a row with their indices, the greatest first. Equal
/// elements are in index order.
fn likeliest(row: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
    let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if count == 0 {
        return Vec::new();
    }
    if count < all.len() {
        all.select_nth_unstable_by(count - 1, order);
        all.truncate(count);
    }
    all.sort_unstable_by(order);
    all
}
