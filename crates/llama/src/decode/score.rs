use mlx_primitives::ops::{self, CrossEntropy, RowOrder, with_row_order};
use mlx_primitives::{Array, Dtype, Error, Result, eval};

use super::draw::no_number;
use crate::cache::CacheKind;
use crate::model::Llama;

/// The greatest number of tokens in one step of the model.
const STEP: usize = 512;
/// The smallest window. Texts up to this length are scored in one window, even if the model
/// supports fewer positions.
const WINDOW: usize = 8192;
/// The greatest number of logits of one step: 64 MiB of float32.
const LOGITS: usize = 1 << 24;

/// A measure of how well a model predicts a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// The number of scored tokens, which is all tokens except the first.
    pub tokens: usize,
    /// The mean negative log-likelihood of the scored tokens, in nats.
    pub mean_nll: f64,
}

impl Score {
    /// The exponential of [`mean_nll`](Self::mean_nll).
    pub fn perplexity(&self) -> f64 {
        self.mean_nll.exp()
    }
}

impl Llama {
    /// Scores every token after the first. The context of a token is all earlier tokens.
    ///
    /// A text of more than [`score_window`](Self::score_window) + 1 tokens is scored in windows,
    /// each with a context of at most `score_window` tokens. Then the context of a token begins at
    /// the start of its window. The last token that a window scores is the first token of the next
    /// window's context.
    ///
    /// The likelihoods are computed from the logits in float32 and summed in float64. The logits of
    /// at most 512 tokens, and the keys and values of one window, are in memory at a time.
    /// `progress` receives the number of tokens scored so far.
    ///
    /// # Errors
    ///
    /// Returns an error for fewer than two tokens, for tokens outside the vocabulary, and for
    /// logits that are NaN or infinite.
    ///
    /// ```
    /// use mlx_primitives_llama::Checkpoint;
    ///
    /// let demo = Checkpoint::demo()?;
    /// let score = |text: &str| demo.llama.score(&demo.tokenizer.encode(text)?, |_| {});
    /// let likely = score("Once upon a time, there was")?;
    /// let odd = score("Was time upon, a there")?;
    /// assert!(likely.perplexity() * 10.0 < odd.perplexity());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn score(&self, tokens: &[u32], mut progress: impl FnMut(usize)) -> Result<Score> {
        let vocabulary = self.config().vocab_size.unsigned_abs();
        if tokens.len() < 2 || i32::try_from(tokens.len()).is_err() {
            return Err(Error::argument(
                "score",
                format_args!("a text of two tokens or more, got {}", tokens.len()),
            ));
        }
        if let Some(token) = tokens.iter().find(|&&token| token >= vocabulary) {
            return Err(Error::argument(
                "score",
                format_args!("tokens below {vocabulary}, got {token}"),
            ));
        }
        let step = (LOGITS / (vocabulary as usize).max(1)).clamp(1, STEP);
        let (context, targets) = (&tokens[..tokens.len() - 1], &tokens[1..]);
        let window = self.score_window();
        let windows = context.chunks(window).zip(targets.chunks(window));
        let (mut sum, mut scored) = (0.0, 0);
        for (context, targets) in windows {
            let mut cache = self.new_cache_for(CacheKind::Plain, context.len() + 1)?;
            cache.set_text_len(context.len() + 1);
            for (inputs, targets) in context.chunks(step).zip(targets.chunks(step)) {
                let shape = [1, inputs.len() as i32];
                let inputs_of_step = Array::from_slice(inputs, shape)?;
                let forward = || self.forward(&inputs_of_step, &mut cache);
                let logits = with_row_order(RowOrder::Prompt, forward)?;
                let losses = ops::cross_entropy(
                    &logits.astype(Dtype::Float32)?,
                    &Array::from_slice(targets, shape)?,
                    CrossEntropy::default(),
                )?;
                eval([&losses].into_iter().chain(cache.arrays()))?;
                sum += losses.to_vec::<f32>()?.into_iter().map(f64::from).sum::<f64>();
                if !sum.is_finite() {
                    return Err(no_number("score"));
                }
                scored += inputs.len();
                progress(scored);
            }
        }
        Ok(Score { tokens: scored, mean_nll: sum / scored as f64 })
    }

    /// The greatest number of tokens that [`score`](Self::score) uses as one context. It is the
    /// greatest length that the model supports, but at least 8192.
    pub fn score_window(&self) -> usize {
        self.longest().max(WINDOW)
    }
}
