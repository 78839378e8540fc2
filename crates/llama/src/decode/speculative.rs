use mlx_primitives::ops::{RowOrder, with_row_order};
use mlx_primitives::{Array, Error, Result, concatenate};

use super::draw::{Draw, check};
use super::options::Token;
use super::prompt::row;
use crate::cache::{Cache, CacheKind};
use crate::model::Llama;

/// Proposes several tokens at a time for speculative decoding.
pub(crate) struct Draft<'a> {
    source: Source<'a>,
    count: usize,
}

enum Source<'a> {
    /// A smaller model proposes tokens.
    Model { model: &'a Llama, cache: Cache },
    /// Proposes the tokens that followed an earlier occurrence of the last tokens.
    Text,
}

/// The tokens that a model drew in one pass over proposals.
pub(crate) struct Round {
    /// The accepted proposals, and then one more token. The model drew it instead of the first
    /// rejected proposal, or after the last proposal.
    pub tokens: Vec<Token>,
    pub proposed: usize,
    pub accepted: usize,
}

/// The greatest number of tokens to propose at a time. More would not save time.
const MOST: usize = 64;

/// The number of tokens per step when the draft runs a prompt that came from a prompt cache.
const STEP: usize = 512;

/// How many of the last tokens to search for earlier in the text: the search tries each number in
/// this order until it finds an occurrence.
const ALIKE: [usize; 3] = [4, 3, 2];

impl<'a> Draft<'a> {
    /// Creates a draft with a model. It proposes `count` tokens at a time, for sequences of up to
    /// `positions` tokens.
    pub fn new(model: &'a Llama, count: usize, positions: usize) -> Result<Self> {
        let refuse = |expected: std::fmt::Arguments| Err(Error::argument("speculative", expected));
        check_count(count)?;
        if let Some(limit) = model.config().max_position_embeddings
            && positions > limit as usize
        {
            return refuse(format_args!(
                "a draft model for {positions} positions, got one for {limit}"
            ));
        }
        let cache = model.new_cache_for(CacheKind::Plain, positions.saturating_add(MOST))?;
        if cache.forgets() {
            return refuse(format_args!(
                "a draft model whose windows hide none of {positions} positions"
            ));
        }
        Ok(Self { source: Source::Model { model, cache }, count })
    }

    /// Creates a draft without a model, which proposes up to `count` tokens at a time from the text
    /// itself.
    pub fn of_text(count: usize) -> Result<Self> {
        check_count(count)?;
        Ok(Self { source: Source::Text, count })
    }

    /// Returns an error for a cache that cannot remove its last positions.
    pub fn check(&self, cache: &Cache) -> Result<()> {
        match cache.forgets() {
            false => Ok(()),
            true => Err(Error::argument(
                "speculative",
                "a cache whose last positions can be taken back, got a rotating one",
            )),
        }
    }

    /// Runs the tokens of `tokens[..end]` that the draft has not run yet.
    pub fn catch_up(&mut self, tokens: &[u32], end: usize, step: usize) -> Result<()> {
        match &mut self.source {
            Source::Model { model, cache } => model.prefill(tokens, end, step, cache),
            Source::Text => Ok(()),
        }
    }

    /// Proposes tokens after `tokens`, and runs `model` on the proposals in one pass. Then draws
    /// tokens from the logits, until a token differs from its proposal, but at most `most` tokens.
    /// Before and after the call, `cache` contains all tokens except the last one.
    pub fn round(
        &mut self,
        model: &Llama,
        cache: &mut Cache,
        draw: &mut Draw<'_>,
        tokens: &[u32],
        most: usize,
    ) -> Result<Round> {
        let proposals = self.propose(tokens, self.count.min(most.saturating_sub(1)))?;
        let last = tokens.last().copied().unwrap_or_default();
        let mut inputs = vec![Array::from_slice(&[last], [1])?];
        inputs.extend(proposals);
        let inputs = concatenate(&inputs.iter().collect::<Vec<_>>(), 0)?;
        let inputs_of_text = inputs.expand_dims([0])?;
        let logits = with_row_order(RowOrder::Tokens, || model.forward(&inputs_of_text, cache))?;

        let vocab = logits.dim(-1)?.unsigned_abs() as usize;
        let best = match draw.is_argmax() {
            true => Some(logits.argmax(-1)?.to_vec::<u32>()?),
            false => None,
        };
        let inputs = inputs.to_vec::<u32>()?;
        let proposed = inputs.get(1..).unwrap_or_default();
        let (mut text, mut drawn) = (tokens.to_vec(), Vec::new());
        for (i, at) in (0..inputs.len()).zip(0..) {
            let mut token = match best.as_ref().and_then(|best| best.get(i)) {
                Some(&id) => {
                    check(&logits, i * vocab + id as usize, false)?;
                    Token { id, ..Token::default() }
                }
                None => {
                    let logits = logits.slice_axis(1, at..at + 1)?.squeeze([1])?;
                    draw.draw(&text, &logits)?.read()?
                }
            };
            token.from_draft = proposed.get(i) == Some(&token.id);
            let stands = token.from_draft;
            text.push(token.id);
            drawn.push(token);
            if !stands {
                break;
            }
        }
        let accepted = drawn.iter().filter(|token| token.from_draft).count();
        // Removes the rejected proposals. The model has not run the token that was drawn last.
        let wrong = proposed.len() - accepted;
        cache.trim(i32::try_from(wrong).unwrap_or(i32::MAX))?;
        self.keep(text.len() - 1)?;
        Ok(Round { tokens: drawn, proposed: proposed.len(), accepted })
    }

    /// Proposes up to `count` tokens, as arrays `[1]`. A draft model proposes the most likely token
    /// after the tokens before it, as a lazy array.
    fn propose(&mut self, tokens: &[u32], count: usize) -> Result<Vec<Array>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let Source::Model { model, cache } = &mut self.source else {
            let one = |token: &u32| Array::from_slice(&[*token], [1]);
            return followers(tokens, count).iter().map(one).collect();
        };
        // If the prompt came from a prompt cache, the draft has not run its beginning yet.
        if tokens.len() - cache.len() as usize > MOST {
            model.prefill(tokens, tokens.len() - 1, STEP, cache)?;
        }
        let rest = tokens.get(cache.len() as usize..).unwrap_or_default();
        let mut input = row(rest)?;
        let mut proposals = Vec::with_capacity(count);
        for _ in 0..count {
            let logits = model.forward(&input, cache)?;
            let best = logits.slice_axis(1, -1..)?.argmax(-1)?; // [1, 1]
            proposals.push(best.squeeze([0])?);
            input = best;
        }
        Ok(proposals)
    }

    /// Removes all positions after the first `len` from the draft's cache.
    fn keep(&mut self, len: usize) -> Result<()> {
        let Source::Model { cache, .. } = &mut self.source else { return Ok(()) };
        let extra = (cache.len() as usize).saturating_sub(len);
        cache.trim(i32::try_from(extra).unwrap_or(i32::MAX))
    }
}

fn check_count(count: usize) -> Result<()> {
    match (1..=MOST).contains(&count) {
        true => Ok(()),
        false => {
            let expected = format_args!("1 to {MOST} draft tokens, got {count}");
            Err(Error::argument("speculative", expected))
        }
    }
}

/// Finds the latest earlier occurrence of the last tokens, and returns up to `count` tokens that
/// follow it.
fn followers(tokens: &[u32], count: usize) -> &[u32] {
    let Some((_, before)) = tokens.split_last() else { return &[] };
    for alike in ALIKE {
        let Some(last) = tokens.len().checked_sub(alike).and_then(|at| tokens.get(at..)) else {
            continue;
        };
        if let Some(at) = before.windows(alike).rposition(|window| window == last) {
            let start = at + alike;
            let end = tokens.len().min(start.saturating_add(count));
            return tokens.get(start..end).unwrap_or_default();
        }
    }
    &[]
}
