use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use mlx_primitives::{Array, Error, Result, eval};

use super::draw::Draw;
use super::generate::Generation;
use super::options::{FinishReason, Options, Token};
use crate::cache::{Cache, CacheKind};
use crate::files::Checkpoint;
use crate::model::Llama;

/// An iterator over the tokens that follow several prompts: it yields the index of a prompt and a
/// token, for each prompt in turn that has not ended.
///
/// Prompts of different lengths run together, the shorter ones after padding that no position sees.
/// That changes only the rounding of a text's logits. Each text draws from a separate sequence of
/// random numbers, as if it were alone. If the kind of cache or of rotary embedding depends on the
/// number of positions, each prompt runs by itself.
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
    rows: Rows<'a>,
    ready: VecDeque<(usize, Token)>,
    failed: bool,
}

enum Rows<'a> {
    Together(Box<Together<'a>>),
    Apart(Vec<Generation<'a>>),
}

struct Together<'a> {
    model: &'a Llama,
    cache: Cache,
    texts: Vec<Text<'a>>,
    /// The indices of the texts that go on, in their order in the cache.
    active: Vec<usize>,
    eos: Vec<u32>,
    prefill_step: usize,
    prefilled: bool,
}

struct Text<'a> {
    tokens: Vec<u32>,
    draw: Draw<'a>,
    left: usize,
    finish: Option<FinishReason>,
}

impl Checkpoint {
    /// Runs prompts together and yields the tokens that follow each, up to an end token of the
    /// checkpoint or of the options.
    ///
    /// # Errors
    ///
    /// Returns an error for what [`Llama::generate_batch`] refuses.
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
    /// Runs prompts together and yields the tokens that follow each, up to an end token of the
    /// options.
    ///
    /// # Errors
    ///
    /// Returns an error for an empty list of prompts, and for a prompt or options that
    /// [`generate`](Self::generate) refuses.
    pub fn generate_batch(
        &self,
        prompts: &[Vec<u32>],
        options: &Options,
    ) -> Result<BatchGeneration<'_>> {
        if prompts.is_empty() {
            return Err(Error::argument("generate_batch", "at least one prompt, got none"));
        }
        let mut texts = Vec::with_capacity(prompts.len());
        let mut positions = 0;
        for prompt in prompts {
            let max_tokens = self.check_prompt(prompt, options)?;
            positions = positions.max(prompt.len()).saturating_add(max_tokens);
            texts.push(Text {
                tokens: prompt.clone(),
                draw: Draw::new(options, self.vocab())?,
                left: max_tokens,
                finish: None,
            });
        }
        let cache = self.new_cache_for(options.cache, positions)?;
        let apart = cache.forgets()
            || matches!(options.cache, CacheKind::Rotating { .. })
            || self.config().rope_frequencies()?.depends_on_length();
        let rows = if apart {
            let each = prompts.iter().map(|prompt| self.generate(prompt, options));
            Rows::Apart(each.collect::<Result<_>>()?)
        } else {
            Rows::Together(Box::new(Together {
                model: self,
                cache,
                active: (0..texts.len()).collect(),
                texts,
                eos: options.eos.clone(),
                prefill_step: options.prefill_step,
                prefilled: false,
            }))
        };
        Ok(BatchGeneration { rows, ready: VecDeque::new(), failed: false })
    }
}

impl<'a> BatchGeneration<'a> {
    /// Lets `processor` change the logits before each token is drawn, as
    /// [`Generation::with_logits_processor`] does. It also receives the number of the prompt.
    ///
    /// # Errors
    ///
    /// Returns an error if the first token was asked for already.
    pub fn with_logits_processor(
        mut self,
        processor: impl FnMut(usize, &[u32], &Array) -> Result<Array> + 'a,
    ) -> Result<Self> {
        let shared = Rc::new(RefCell::new(processor));
        let of_prompt = |prompt: usize| {
            let shared = Rc::clone(&shared);
            move |tokens: &[u32], logits: &Array| match shared.try_borrow_mut() {
                Ok(mut processor) => processor(prompt, tokens, logits),
                Err(_) => Err(Error::argument("generate", "a processor that does not call itself")),
            }
        };
        match &mut self.rows {
            Rows::Together(rows) if rows.prefilled => {
                return Err(Error::argument(
                    "generate",
                    "this before the first token is asked for",
                ));
            }
            Rows::Together(rows) => {
                for (prompt, text) in rows.texts.iter_mut().enumerate() {
                    text.draw.process(of_prompt(prompt));
                }
            }
            Rows::Apart(rows) => {
                let each = std::mem::take(rows).into_iter().enumerate();
                *rows = each
                    .map(|(prompt, row)| row.with_logits_processor(of_prompt(prompt)))
                    .collect::<Result<_>>()?;
            }
        }
        Ok(self)
    }

    /// Why the text of a prompt ended, or `None` while it goes on or if there is no such prompt.
    pub fn finish_reason(&self, prompt: usize) -> Option<FinishReason> {
        match &self.rows {
            Rows::Together(rows) => rows.texts.get(prompt)?.finish,
            Rows::Apart(rows) => rows.get(prompt)?.finish_reason(),
        }
    }

    /// Draws one token for each text that goes on.
    fn step(&mut self) -> Result<()> {
        match &mut self.rows {
            Rows::Together(rows) => rows.step(&mut self.ready),
            Rows::Apart(rows) => {
                for (i, row) in rows.iter_mut().enumerate() {
                    if let Some(token) = row.next_token()? {
                        self.ready.push_back((i, token));
                    }
                }
                Ok(())
            }
        }
    }

    fn goes_on(&self) -> bool {
        match &self.rows {
            Rows::Together(rows) => !rows.active.is_empty(),
            Rows::Apart(rows) => rows.iter().any(|row| row.finish_reason().is_none()),
        }
    }
}

impl Iterator for BatchGeneration<'_> {
    type Item = Result<(usize, Token)>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty() && !self.failed && self.goes_on() {
            if let Err(error) = self.step() {
                self.failed = true;
                return Some(Err(error));
            }
        }
        self.ready.pop_front().map(Ok)
    }
}

impl<'a> Together<'a> {
    fn step(&mut self, ready: &mut VecDeque<(usize, Token)>) -> Result<()> {
        self.end(|text| (text.left == 0).then_some(FinishReason::Length))?;
        if self.active.is_empty() {
            return Ok(());
        }
        if !self.prefilled {
            self.prefill()?;
            self.prefilled = true;
        }
        let last = self.column(|text| text.tokens.last().copied().unwrap_or_default());
        let logits = self.model.forward(&last?, &mut self.cache)?.squeeze([1])?;
        let mut drawn = Vec::with_capacity(self.active.len());
        for (at, &i) in (0..).zip(&self.active) {
            let Some(text) = self.texts.get_mut(i) else { continue };
            drawn.push((i, text.draw.draw(&text.tokens, &logits.slice_axis(0, at..at + 1)?)?));
        }
        eval(drawn.iter().flat_map(|(_, drawn)| drawn.arrays()))?;
        for (i, drawn) in drawn {
            let (token, Some(text)) = (drawn.read()?, self.texts.get_mut(i)) else { continue };
            text.left -= 1;
            if self.eos.contains(&token.id) {
                text.finish = Some(FinishReason::Stop);
                continue;
            }
            text.tokens.push(token.id);
            ready.push_back((i, token));
        }
        self.end(|text| text.finish.or((text.left == 0).then_some(FinishReason::Length)))
    }

    /// Runs all tokens of each prompt except the last one, padded at the beginning to end together.
    fn prefill(&mut self) -> Result<()> {
        let longest = self.rows().map(|text| text.tokens.len()).max().unwrap_or(1);
        let padding = |text: &Text| longest - text.tokens.len();
        let positions = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
        let paddings: Vec<i32> = self.rows().map(|text| positions(padding(text))).collect();
        self.cache.set_padding(&paddings);
        let mut start = 0;
        while start + 1 < longest {
            let end = start.saturating_add(self.prefill_step).min(longest - 1);
            let mut chunk = Vec::new();
            for text in self.rows() {
                let token = |at: usize| text.tokens.get(at.checked_sub(padding(text))?).copied();
                chunk.extend((start..end).map(|at| token(at).unwrap_or_default()));
            }
            let shape = [positions(self.active.len()), positions(end - start)];
            let _ = self.model.forward(&Array::from_slice(&chunk, shape)?, &mut self.cache)?;
            eval(self.cache.arrays())?;
            start = end;
        }
        Ok(())
    }

    /// The texts that go on.
    fn rows(&self) -> impl Iterator<Item = &Text<'a>> {
        self.active.iter().filter_map(|&i| self.texts.get(i))
    }

    fn column(&self, token: impl Fn(&Text) -> u32) -> Result<Array> {
        let tokens: Vec<u32> = self.rows().map(token).collect();
        Array::from_slice(&tokens, [i32::try_from(tokens.len()).unwrap_or(i32::MAX), 1])
    }

    /// Ends the texts for which `reason` returns one.
    fn end(&mut self, reason: impl Fn(&Text) -> Option<FinishReason>) -> Result<()> {
        let (mut kept, mut places) = (Vec::new(), Vec::new());
        for (at, &i) in (0..).zip(&self.active) {
            let Some(text) = self.texts.get_mut(i) else { continue };
            text.finish = reason(text);
            if text.finish.is_none() {
                kept.push(i);
                places.push(at);
            }
        }
        if kept.len() < self.active.len() && !kept.is_empty() && self.prefilled {
            self.cache.select_rows(&places)?;
        }
        self.active = kept;
        Ok(())
    }
}
