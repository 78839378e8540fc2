use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use mlx_primitives::{Array, Error, Result};

use super::options::{FinishReason, Options, Token};
use super::scheduler::{Event, Scheduler, Text};
use crate::files::Checkpoint;
use crate::model::Llama;

/// An iterator over the tokens that continue several prompts, in one batch. Each item is the index
/// of a prompt and a token. In each step, every sequence whose prompt has run yields one token,
/// until it ends.
///
/// All sequences share the matrix products, but attention runs for each sequence separately. So
/// each sequence gets the tokens that [`generate`](Llama::generate) would give it. Each sequence
/// has a separate random number generator, with the seed of the options. A sequence copies the keys
/// and values of a prefix of at least 16 tokens, if another sequence has run this prefix already.
///
/// ```
/// use mlx_primitives_llama::{Checkpoint, Options};
///
/// let checkpoint = Checkpoint::demo()?;
/// let prompts = ["Once upon a time", "One day"].map(|text| checkpoint.tokenizer.encode(text));
/// let prompts = prompts.into_iter().collect::<Result<Vec<_>, _>>()?;
/// let options = Options { max_tokens: 5, ..Options::default() };
/// let mut texts = vec![Vec::new(); 2];
/// for step in checkpoint.generate_batch(&prompts, &options)? {
///     let (prompt, token) = step?;
///     texts[prompt].push(token.id);
/// }
/// for (prompt, text) in prompts.iter().zip(texts) {
///     let alone: Result<Vec<u32>, _> = checkpoint.generate(prompt, &options)?.collect();
///     assert_eq!(text, alone?);
/// }
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub struct BatchGeneration<'a> {
    scheduler: Scheduler<'a>,
    ready: VecDeque<(usize, Token)>,
    finished: Vec<Option<FinishReason>>,
    started: bool,
    failed: bool,
}

impl Checkpoint {
    /// Runs prompts in a batch and yields the tokens that follow each prompt, up to an end token of
    /// the checkpoint or of the options.
    ///
    /// # Errors
    ///
    /// Returns an error for prompts and options that [`Llama::generate_batch`] rejects.
    pub fn generate_batch(
        &self,
        prompts: &[Vec<u32>],
        options: &Options,
    ) -> Result<BatchGeneration<'_>> {
        let mut options = options.clone();
        options.eos.extend(&self.eos);
        self.llama.generate_batch(prompts, &options)
    }
}

impl Llama {
    /// Runs prompts in a batch and yields the tokens that follow each prompt, up to an end token of
    /// the options.
    ///
    /// # Errors
    ///
    /// Returns an error for an empty list of prompts, and for a prompt or options that
    /// [`generate`](Self::generate) rejects.
    pub fn generate_batch(
        &self,
        prompts: &[Vec<u32>],
        options: &Options,
    ) -> Result<BatchGeneration<'_>> {
        if prompts.is_empty() {
            return Err(Error::argument("generate_batch", "at least one prompt, got none"));
        }
        let mut scheduler = Scheduler::new(options.prefill_step);
        for prompt in prompts {
            scheduler.add(Text::new(self, prompt, options)?);
        }
        let finished = vec![None; prompts.len()];
        let ready = VecDeque::new();
        Ok(BatchGeneration { scheduler, ready, finished, started: false, failed: false })
    }
}

impl<'a> BatchGeneration<'a> {
    /// Calls `processor` to change the logits before each token is drawn, as
    /// [`Generation::with_logits_processor`](super::Generation::with_logits_processor) does. The
    /// processor also receives the index of the prompt.
    ///
    /// # Errors
    ///
    /// Returns an error if the first token was requested already.
    pub fn with_logits_processor(
        mut self,
        processor: impl FnMut(usize, &[u32], &Array) -> Result<Array> + 'a,
    ) -> Result<Self> {
        if self.started {
            return Err(Error::argument("generate", "this before the first token is asked for"));
        }
        let shared = Rc::new(RefCell::new(processor));
        for (prompt, text) in self.scheduler.texts_mut() {
            let shared = Rc::clone(&shared);
            text.draw.process(move |tokens: &[u32], logits: &Array| {
                match shared.try_borrow_mut() {
                    Ok(mut processor) => processor(prompt, tokens, logits),
                    Err(_) => {
                        Err(Error::argument("generate", "a processor that does not call itself"))
                    }
                }
            });
        }
        Ok(self)
    }

    /// The reason why the sequence of a prompt ended. Returns `None` until the sequence ends, and
    /// if there is no prompt with this index.
    pub fn finish_reason(&self, prompt: usize) -> Option<FinishReason> {
        self.finished.get(prompt).copied().flatten()
    }

    /// Draws one token for each sequence that has not ended and whose prompt has run, and runs the
    /// next parts of the other prompts.
    fn step(&mut self) -> Result<()> {
        for (prompt, event) in self.scheduler.step() {
            match event {
                Event::Token(token) => self.ready.push_back((prompt, token)),
                Event::End { reason, .. } => {
                    if let Some(finished) = self.finished.get_mut(prompt) {
                        *finished = Some(reason);
                    }
                }
                Event::Failed(error) => return Err(error),
            }
        }
        while self.scheduler.forget() {}
        Ok(())
    }
}

impl Iterator for BatchGeneration<'_> {
    type Item = Result<(usize, Token)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.started = true;
        while self.ready.is_empty() && !self.failed && self.scheduler.len() > 0 {
            if let Err(error) = self.step() {
                self.failed = true;
                return Some(Err(error));
            }
        }
        self.ready.pop_front().map(Ok)
    }
}
