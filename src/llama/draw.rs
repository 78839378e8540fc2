use crate::array::Array;
use crate::dtype::Dtype;
use crate::error::{Error, Result};

use super::options::{Options, Token};
use super::penalties::Penalties;
use super::sampling::Sampler;

/// Changes the logits `[1, vocab]` that follow tokens.
type Processor<'a> = dyn FnMut(&[u32], &Array) -> Result<Array> + 'a;

/// Draws tokens from logits, by penalties and a sampler.
pub(super) struct Draw<'a> {
    sampler: Sampler,
    penalties: Penalties,
    processors: Vec<Box<Processor<'a>>>,
    logprobs: Option<usize>,
}

/// A token whose computation may not have ended.
pub(super) struct Drawn {
    /// The token, uint32 `[1]`.
    pub token: Array,
    /// The log probabilities `[1, vocab]`, and the number of likeliest tokens to return.
    logprobs: Option<(Array, usize)>,
}

impl<'a> Draw<'a> {
    pub fn new(options: &Options, vocab: usize) -> Result<Self> {
        options.penalties.check(vocab)?;
        Ok(Self {
            sampler: Sampler::new(options.sampling)?.sparing(&options.xtc_spared),
            penalties: options.penalties.clone(),
            processors: Vec::new(),
            logprobs: options.logprobs,
        })
    }

    /// Adds a function that changes the logits after the penalties and the processors before it.
    pub fn process(&mut self, processor: impl FnMut(&[u32], &Array) -> Result<Array> + 'a) {
        self.processors.push(Box::new(processor));
    }

    /// Whether a token is the one with the greatest logit, and no log probabilities are requested.
    pub fn is_argmax(&self) -> bool {
        self.sampler.is_greedy()
            && self.penalties.is_none()
            && self.processors.is_empty()
            && self.logprobs.is_none()
    }

    /// Whether tokens are drawn without regard to those before them, except for their logits.
    pub fn ignores_tokens(&self) -> bool {
        self.penalties.is_none() && self.processors.is_empty()
    }

    /// Draws the token after `tokens` from its logits `[1, vocab]`. The result is lazy.
    pub fn draw(&mut self, tokens: &[u32], logits: &Array) -> Result<Drawn> {
        let mut logits = self.penalties.apply(tokens, logits)?;
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
        Ok(Drawn { token: self.sampler.sample(&logits)?, logprobs })
    }
}

impl Drawn {
    /// The arrays to evaluate.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        [&self.token].into_iter().chain(self.logprobs.as_ref().map(|(row, _)| row))
    }

    /// Waits for the token and returns it.
    pub fn read(&self) -> Result<Token> {
        let id = self.token.item::<u32>()?;
        let Some((row, count)) = &self.logprobs else {
            return Ok(Token { id, ..Token::default() });
        };
        let row = row.to_vec::<f32>()?;
        let logprob = row.get(id as usize).copied();
        Ok(Token { id, logprob, top_logprobs: likeliest(&row, *count), from_draft: false })
    }
}

/// The `count` greatest elements of a row with their indices, greatest first, equal ones in the
/// order of their indices.
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
