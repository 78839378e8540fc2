//! Continues several sequences with one or more models. Here a text is a prompt with the tokens
//! generated after it. In each step, every text whose prompt has run gets a token, and then some
//! tokens of the other prompts run.

use std::collections::{BTreeMap, VecDeque};

use mlx_primitives::ops::{RowOrder, with_row_order};
use mlx_primitives::{Error, Result, eval};

use super::draw::Draw;
use super::options::{FinishReason, Options, Token};
use crate::cache::Cache;
use crate::model::{Llama, Step};

/// The greatest number of texts in one pass of the model.
const WIDEST: usize = 256;
/// The smallest number of positions that is worth copying from another text's cache.
const SHARED: usize = 16;
/// The greatest number of ended texts whose caches are kept.
const KEPT: usize = 64;

/// A token of a text, or the end of the text.
pub(super) enum Event {
    Token(Token),
    /// The text has ended. No further events follow.
    End {
        reason: FinishReason,
        /// The number of prompt tokens whose keys and values came from another text's cache.
        cached_tokens: usize,
    },
    /// The text has ended with an error. No further events follow.
    Failed(Error),
}

pub(super) struct Text<'a> {
    model: &'a Llama,
    /// The prompt and the tokens drawn after it. The cache contains a prefix of them.
    tokens: Vec<u32>,
    prompt: usize,
    cache: Cache,
    pub draw: Draw<'a>,
    eos: Vec<u32>,
    left: usize,
    prefill_step: usize,
    cached_tokens: usize,
}

impl<'a> Text<'a> {
    pub fn new(model: &'a Llama, prompt: &[u32], options: &Options) -> Result<Self> {
        let left = model.check_prompt(prompt, options)?;
        let mut cache = model.new_cache_for(options.cache, prompt.len().saturating_add(left))?;
        cache.set_text_len(prompt.len());
        Ok(Self {
            model,
            tokens: prompt.to_vec(),
            prompt: prompt.len(),
            cache,
            draw: Draw::new(options, model.vocab())?,
            eos: options.eos.clone(),
            left,
            prefill_step: options.prefill_step,
            cached_tokens: 0,
        })
    }

    fn end(&self, reason: FinishReason) -> Event {
        Event::End { reason, cached_tokens: self.cached_tokens }
    }

    /// The greatest number of positions that the text can have at its end.
    pub fn positions(&self) -> usize {
        self.prompt.saturating_add(self.left)
    }

    /// The number of tokens whose keys and values are in the cache.
    fn seen(&self) -> usize {
        self.cache.len().unsigned_abs() as usize
    }

    /// The number of prompt tokens that have not run yet.
    fn unread(&self) -> usize {
        self.prompt.saturating_sub(self.seen())
    }

    /// Adds a token. Returns whether the token belongs to the text, and the reason for the end if
    /// the text ends here.
    fn add(&mut self, token: u32) -> (bool, Option<FinishReason>) {
        self.left = self.left.saturating_sub(1);
        if self.eos.contains(&token) {
            return (false, Some(FinishReason::Stop));
        }
        self.tokens.push(token);
        (true, (self.left == 0).then_some(FinishReason::Length))
    }

    /// Returns a copy of this text's cache, trimmed to the common prefix of both prompts. Returns
    /// `None` if the texts differ in their models, kinds of caches or rotations, if the cache
    /// cannot be trimmed, or if the prefix is not at least `SHARED` positions longer than the cache
    /// of `other`.
    fn beginning_for(&self, other: &Self) -> Option<Cache> {
        let pairs = self.tokens.iter().zip(&other.tokens);
        let same = pairs.take_while(|(a, b)| a == b).count();
        let common = same.min(self.prompt).min(self.seen()).min(other.prompt - 1);
        let alike = std::ptr::eq(self.model, other.model)
            && self.cache.has_kinds_of(&other.cache)
            && self.model.keeps_keys(self.cache.text_len(), other.tokens.len());
        if !alike || common < other.seen() + SHARED {
            return None;
        }
        let mut cache = self.cache.clone();
        cache.trim(i32::try_from(self.seen() - common).ok()?).ok()?;
        cache.set_text_len(other.tokens.len());
        Some(cache)
    }
}

/// The id of a text, the number of tokens that a pass runs for it, and the text.
type Part<'a> = (usize, usize, Text<'a>);

pub(super) struct Scheduler<'a> {
    /// The texts that have not ended, by their ids.
    texts: BTreeMap<usize, Text<'a>>,
    /// The ids of the texts whose prompts have not run completely, in round-robin order.
    reading: VecDeque<usize>,
    /// Ended texts. Their caches are kept for new prompts with the same prefix.
    ended: VecDeque<Text<'a>>,
    /// The greatest number of prompt tokens that one step runs.
    budget: usize,
    next: usize,
}

impl<'a> Scheduler<'a> {
    pub fn new(budget: usize) -> Self {
        Self {
            texts: BTreeMap::new(),
            reading: VecDeque::new(),
            ended: VecDeque::new(),
            budget: budget.max(1),
            next: 0,
        }
    }

    /// Adds a text and returns its id. Ids count up from 0.
    pub fn add(&mut self, text: Text<'a>) -> usize {
        let id = self.next;
        self.next += 1;
        self.texts.insert(id, text);
        self.reading.push_back(id);
        id
    }

    pub fn len(&self) -> usize {
        self.texts.len()
    }

    pub fn texts_mut(&mut self) -> impl Iterator<Item = (usize, &mut Text<'a>)> {
        self.texts.iter_mut().map(|(&id, text)| (id, text))
    }

    /// Drops the texts for whose ids `goes_on` returns false.
    pub fn retain(&mut self, mut goes_on: impl FnMut(usize) -> bool) {
        self.texts.retain(|&id, _| goes_on(id));
    }

    /// The size in bytes of the kept caches of ended texts.
    pub fn kept(&self) -> usize {
        self.ended.iter().map(|text| text.cache.nbytes()).sum()
    }

    /// Drops the ended text that was kept for the longest time. Returns whether there was one.
    pub fn forget(&mut self) -> bool {
        self.ended.pop_front().is_some()
    }

    /// Draws a token for each text whose prompt has run, then runs the next part of the other
    /// prompts.
    pub fn step(&mut self) -> Vec<(usize, Event)> {
        let mut events = Vec::new();
        for (id, text) in self.take(|text| text.left == 0) {
            events.push((id, text.end(FinishReason::Length)));
        }
        let ready = self.take(|text| text.unread() == 0);
        for parts in apart(ready.into_iter().map(|(id, text)| (id, 1, text))) {
            with_row_order(RowOrder::Tokens, || self.pass(parts, &mut events));
        }
        for parts in apart(self.next_of_prompts().into_iter()) {
            with_row_order(RowOrder::Prompt, || self.pass(parts, &mut events));
        }
        events
    }

    /// Removes and returns the texts for which `taken` returns true.
    fn take(&mut self, taken: impl Fn(&Text) -> bool) -> Vec<(usize, Text<'a>)> {
        let of = self.texts.iter().filter(|(_, text)| taken(text));
        let ids: Vec<usize> = of.map(|(&id, _)| id).collect();
        ids.into_iter().filter_map(|id| Some((id, self.texts.remove(&id)?))).collect()
    }

    /// Removes and returns the texts whose prompts run in this step, with their numbers of tokens.
    /// A text first gets the longest suitable prefix from another text's cache.
    fn next_of_prompts(&mut self) -> Vec<Part<'a>> {
        let (mut parts, mut left) = (Vec::new(), self.budget);
        for _ in 0..self.reading.len() {
            let Some(id) = self.reading.pop_front() else { break };
            let Some(mut text) = self.texts.remove(&id) else { continue };
            let others = self.texts.values().chain(parts.iter().map(|(_, _, text)| text));
            let known = others.chain(&self.ended).filter_map(|other| other.beginning_for(&text));
            if let Some(cache) = known.max_by_key(Cache::len) {
                text.cached_tokens += cache.len().unsigned_abs() as usize - text.seen();
                text.cache = cache;
            }
            let count = text.unread().min(text.prefill_step).min(left);
            left -= count;
            parts.push((id, count, text));
            if left == 0 {
                break;
            }
        }
        parts
    }

    /// Runs texts in one pass of their common model, and puts back the texts that do not end.
    fn pass(&mut self, mut parts: Vec<Part<'a>>, events: &mut Vec<(usize, Event)>) {
        let drawn = match run(&mut parts) {
            Ok(drawn) => drawn,
            Err(error) => {
                let message = error.to_string();
                let again = || Error::Mlx { op: None, message: message.clone() };
                events.extend(parts.iter().map(|&(id, ..)| (id, Event::Failed(again()))));
                if let Some((_, first)) = events.iter_mut().rev().nth(parts.len() - 1) {
                    *first = Event::Failed(error);
                }
                return;
            }
        };
        for ((id, _, mut text), token) in parts.into_iter().zip(drawn) {
            let end = match token {
                None => {
                    self.reading.push_back(id);
                    None
                }
                Some(Err(error)) => Some(Event::Failed(error)),
                Some(Ok(token)) => {
                    let (belongs, end) = text.add(token.id);
                    if belongs {
                        events.push((id, Event::Token(token)));
                    }
                    end.map(|reason| text.end(reason))
                }
            };
            match end {
                None => drop(self.texts.insert(id, text)),
                Some(event) => {
                    if matches!(event, Event::End { .. }) {
                        self.ended.push_back(text);
                    }
                    if self.ended.len() > KEPT {
                        self.forget();
                    }
                    events.push((id, event));
                }
            }
        }
    }
}

/// Groups texts by model, with at most `WIDEST` texts in a group.
fn apart<'a>(parts: impl Iterator<Item = Part<'a>>) -> Vec<Vec<Part<'a>>> {
    let mut groups: Vec<Vec<Part<'a>>> = Vec::new();
    for part in parts {
        let fits = |group: &&mut Vec<Part<'a>>| {
            group.len() < WIDEST
                && group.first().is_none_or(|(_, _, text)| std::ptr::eq(text.model, part.2.model))
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(part),
            None => groups.push(vec![part]),
        }
    }
    groups
}

/// Runs the next tokens of all texts in one pass. Draws a token for each text whose last token was
/// part of the pass.
fn run(parts: &mut [Part<'_>]) -> Result<Vec<Option<Result<Token>>>> {
    let Some(model) = parts.first().map(|(_, _, text)| text.model) else { return Ok(Vec::new()) };
    for (_, _, text) in parts.iter_mut().filter(|(_, _, text)| text.unread() == 0) {
        model.renew(&mut text.cache, &text.tokens, text.prefill_step)?;
    }
    let mut steps = Vec::with_capacity(parts.len());
    for (_, count, text) in parts.iter_mut() {
        let start = text.seen();
        let tokens = text.tokens.get(start..start + *count).unwrap_or_default();
        let logits = start + *count == text.tokens.len();
        steps.push(Step { tokens, cache: &mut text.cache, logits });
    }
    let wanted: Vec<bool> = steps.iter().map(|step| step.logits).collect();
    let logits = model.forward_texts(&mut steps)?;
    let (mut drawn, mut row) = (Vec::with_capacity(parts.len()), 0);
    for ((_, _, text), wanted) in parts.iter_mut().zip(wanted) {
        drawn.push(match logits.as_ref().filter(|_| wanted) {
            None => None,
            Some(logits) => {
                let logits = logits.slice_axis(0, row..row + 1)?;
                row += 1;
                Some(text.draw.draw(&text.tokens, &logits))
            }
        });
    }
    // Evaluates the caches of texts that got no token. For the others, evaluating the token also
    // evaluates the cache.
    let unfinished = parts.iter().zip(&drawn).filter(|(_, drawn)| drawn.is_none());
    let caches = unfinished.flat_map(|((_, _, text), _)| text.cache.arrays());
    let tokens = drawn.iter().flatten().flatten().flat_map(|drawn| drawn.arrays());
    eval(caches.chain(tokens))?;
    Ok(drawn.into_iter().map(|drawn| Some(drawn?.and_then(|drawn| drawn.read()))).collect())
}
