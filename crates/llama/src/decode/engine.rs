//! A thread that owns a model and continues the sequences of many callers in batches. A text, or
//! sequence, is a prompt with the tokens generated after it.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_channel::{Receiver, Sender};
use mlx_primitives::{Error, Result};

use super::options::{FinishReason, Options, Token};
use super::scheduler::{Event, Scheduler, Text};
use crate::cache::CacheKind;
use crate::files::Checkpoint;
use crate::model::{Adapters, Llama, estimate};
use crate::text::Tokenizer;

/// The limits of an [`Engine`], and the adapters that its callers can name.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// The greatest number of sequences that run at the same time.
    pub texts: usize,
    /// The greatest number of sequences that wait. The engine rejects further requests.
    pub waiting: usize,
    /// The greatest number of prompt tokens that run between two steps of the running sequences.
    pub prompt_step: usize,
    /// The greatest size of all caches in bytes. It counts the caches of running sequences, at
    /// their final lengths. It also counts the caches of some ended sequences, which the engine
    /// keeps for new prompts with the same prefix. A sequence waits until its cache fits, and is
    /// rejected if it would not fit even alone. Weights, logits and intermediate results take
    /// additional memory.
    pub cache_bytes: usize,
    /// The names of adapters, each with the path that [`Adapters::load`] reads.
    pub adapters: Vec<(String, PathBuf)>,
}

impl Default for EngineOptions {
    /// 32 sequences at the same time, 1,024 that wait, 512 prompt tokens per step, 4 GiB of keys
    /// and values, and no adapters.
    fn default() -> Self {
        Self {
            texts: 32,
            waiting: 1024,
            prompt_step: 512,
            cache_bytes: usize::try_from(4u64 << 30).unwrap_or(usize::MAX),
            adapters: Vec::new(),
        }
    }
}

/// A handle to a thread that owns a model and continues the sequences of all callers in batches.
/// The handle can be cloned and sent to other threads.
///
/// Sequences join and leave the batch between steps. Each sequence has its own options, adapters
/// and random numbers. A step draws one token for every sequence whose prompt has run, and then
/// runs parts of the other sequences' prompts, in round-robin order. A sequence copies the keys and
/// values of a prefix of at least 16 tokens, if another sequence has run this prefix already. A
/// caller gets the text that [`Checkpoint::generate`] makes from the prompt and options.
///
/// The thread ends once all handles are dropped and all sequences have ended.
///
/// ```
/// use mlx_primitives_llama::{Checkpoint, Options, decode::Engine};
///
/// let engine = Engine::start(Checkpoint::demo, Default::default())?;
/// let texts: Vec<_> = ["Once upon a time", "One day"]
///     .map(|prompt| {
///         let engine = engine.clone();
///         std::thread::spawn(move || {
///             let prompt = engine.tokenizer().encode(prompt)?;
///             let options = Options { max_tokens: 8, ..Options::default() };
///             engine.generate(&prompt, &options, None).collect::<Result<Vec<_>, _>>()
///         })
///     })
///     .into();
/// for text in texts {
///     let tokens = text.join().expect("no panic")?;
///     assert_eq!(tokens.len(), 8);
/// }
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
#[derive(Clone)]
pub struct Engine {
    requests: Sender<Request>,
    tokenizer: Arc<Tokenizer>,
}

/// A caller's request for a sequence.
struct Request {
    prompt: Vec<u32>,
    options: Options,
    adapter: Option<String>,
    events: Sender<Event>,
}

impl Engine {
    /// Starts a thread, which calls `load` and keeps the model. Returns once the model is loaded.
    ///
    /// # Errors
    ///
    /// Returns the error of `load`, an error for adapters that cannot be loaded or do not fit the
    /// model, and an error if the operating system cannot start a thread.
    pub fn start(
        load: impl FnOnce() -> Result<Checkpoint> + Send + 'static,
        options: EngineOptions,
    ) -> Result<Self> {
        let (requests, waiting) = async_channel::unbounded();
        let (loaded, tokenizer) = async_channel::bounded(1);
        let run = move || {
            let result = load().and_then(|checkpoint| {
                let Checkpoint { llama, tokenizer, eos } = checkpoint;
                Ok((Models::load(llama, &options.adapters)?, tokenizer, eos))
            });
            match result {
                Ok((models, tokenizer, eos)) => {
                    let _ = loaded.try_send(Ok(tokenizer));
                    Work::new(&models, eos, options).serve(&waiting);
                }
                Err(error) => drop(loaded.try_send(Err(error))),
            }
        };
        let thread = std::thread::Builder::new().name("engine".to_owned());
        thread.spawn(run).map_err(|error| {
            Error::argument("engine", format_args!("a thread for the model, got {error}"))
        })?;
        let tokenizer = tokenizer.recv_blocking().map_err(|_| stopped())??;
        Ok(Self { requests, tokenizer: Arc::new(tokenizer) })
    }

    /// The tokenizer of the model.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Continues a prompt up to an end token of the checkpoint or of the options. `adapter` names
    /// the adapters to use. Returns at once. For an unknown name, for a prompt or options that
    /// [`Llama::generate`] rejects, and for a request beyond the limits of [`EngineOptions`], the
    /// iterator yields an error.
    pub fn generate(&self, prompt: &[u32], options: &Options, adapter: Option<&str>) -> Generated {
        let (events, received) = async_channel::unbounded();
        let (prompt, options) = (prompt.to_vec(), options.clone());
        let adapter = adapter.map(str::to_owned);
        // If the thread has ended, the request is dropped, which closes its channel of events. The
        // caller then receives an error from the iterator.
        let _ = self.requests.try_send(Request { prompt, options, adapter, events });
        Generated { events: Box::pin(received), finish: None, cached_tokens: 0, ended: false }
    }
}

/// The tokens of a sequence that an [`Engine`] continues: an iterator that blocks, and a
/// [`Stream`](futures_core::Stream) for asynchronous callers. Dropping it ends the sequence.
pub struct Generated {
    events: Pin<Box<Receiver<Event>>>,
    finish: Option<FinishReason>,
    cached_tokens: usize,
    ended: bool,
}

impl Generated {
    /// The number of prompt tokens whose keys and values came from another sequence. It is 0 until
    /// the sequence ends.
    pub fn cached_tokens(&self) -> usize {
        self.cached_tokens
    }

    /// The reason why the sequence ended. It is `None` until the sequence ends, and after an error.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }

    /// Converts an event to an item of the iterator. The event `None` means that the engine has
    /// stopped.
    fn item(&mut self, event: Option<Event>) -> Option<Result<Token>> {
        let item = match event {
            Some(Event::Token(token)) => return Some(Ok(token)),
            Some(Event::End { reason, cached_tokens }) => {
                (self.finish, self.cached_tokens) = (Some(reason), cached_tokens);
                None
            }
            Some(Event::Failed(error)) => Some(Err(error)),
            None => Some(Err(stopped())),
        };
        self.ended = true;
        item
    }
}

impl Iterator for Generated {
    type Item = Result<Token>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let event = self.events.recv_blocking().ok();
        self.item(event)
    }
}

impl futures_core::Stream for Generated {
    type Item = Result<Token>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        match futures_core::Stream::poll_next(self.events.as_mut(), context) {
            Poll::Ready(event) => Poll::Ready(self.item(event)),
            Poll::Pending => Poll::Pending,
        }
    }
}

fn stopped() -> Error {
    Error::argument("engine", "a thread that runs the model, which has ended")
}

/// A model without adapters, and a copy of the model for each of the adapters.
struct Models {
    plain: Llama,
    adapted: HashMap<String, Llama>,
}

impl Models {
    fn load(plain: Llama, adapters: &[(String, PathBuf)]) -> Result<Self> {
        let mut adapted = HashMap::new();
        for (name, path) in adapters {
            let adapters = Adapters::load(path, &plain)?;
            adapted.insert(name.clone(), plain.with_updates(&adapters)?);
        }
        Ok(Self { plain, adapted })
    }

    fn named(&self, adapter: Option<&str>) -> Result<&Llama> {
        let Some(name) = adapter else { return Ok(&self.plain) };
        self.adapted.get(name).ok_or_else(|| {
            let mut names: Vec<&str> = self.adapted.keys().map(String::as_str).collect();
            names.sort_unstable();
            Error::argument("engine", format_args!("adapters of {names:?}, got {name:?}"))
        })
    }
}

/// A sequence that waits, and the size of its cache at its final length.
struct Waiting<'a> {
    text: Text<'a>,
    bytes: usize,
    events: Sender<Event>,
}

struct Work<'a> {
    models: &'a Models,
    eos: Vec<u32>,
    options: EngineOptions,
    scheduler: Scheduler<'a>,
    waiting: VecDeque<Waiting<'a>>,
    /// For each running sequence, the size of its cache and the channel to its caller.
    running: HashMap<usize, (usize, Sender<Event>)>,
}

impl<'a> Work<'a> {
    fn new(models: &'a Models, eos: Vec<u32>, options: EngineOptions) -> Self {
        let scheduler = Scheduler::new(options.prompt_step);
        let (waiting, running) = (VecDeque::new(), HashMap::new());
        Self { models, eos, options, scheduler, waiting, running }
    }

    /// Runs sequences until all handles are dropped and all sequences have ended.
    fn serve(mut self, requests: &Receiver<Request>) {
        loop {
            if self.running.is_empty() && self.waiting.is_empty() {
                match requests.recv_blocking() {
                    Ok(request) => self.accept(request),
                    Err(_) => return,
                }
            }
            while let Ok(request) = requests.try_recv() {
                self.accept(request);
            }
            self.drop_canceled();
            self.start_waiting();
            while self.used() > self.options.cache_bytes && self.scheduler.forget() {}
            for (id, event) in self.scheduler.step() {
                let last = !matches!(event, Event::Token(_));
                if let Some((_, events)) = self.running.get(&id) {
                    let _ = events.try_send(event); // `drop_canceled` finds a closed channel
                }
                if last {
                    self.running.remove(&id);
                }
            }
        }
    }

    /// Adds a sequence to the waiting ones, or rejects it with an error.
    fn accept(&mut self, request: Request) {
        let events = request.events.clone();
        match self.checked(request) {
            Ok(waiting) => self.waiting.push_back(waiting),
            Err(error) => drop(events.try_send(Event::Failed(error))),
        }
    }

    fn checked(&self, request: Request) -> Result<Waiting<'a>> {
        let Request { prompt, mut options, adapter, events } = request;
        let EngineOptions { waiting: most, cache_bytes, .. } = self.options;
        if self.waiting.len() >= most {
            let expected = format_args!("at most {most} texts that wait, got one more");
            return Err(Error::argument("engine", expected));
        }
        options.eos.extend(&self.eos);
        let model = self.models.named(adapter.as_deref())?;
        let text = Text::new(model, &prompt, &options)?;
        let bytes = bytes_of(model, options.cache, text.positions())?;
        if bytes > cache_bytes {
            return Err(Error::argument(
                "engine",
                format_args!(
                    "a text whose keys and values take at most {cache_bytes} bytes, got {} positions, \
                     which take {bytes}: shorten the prompt or max_tokens",
                    text.positions()
                ),
            ));
        }
        Ok(Waiting { text, bytes, events })
    }

    /// Drops the sequences whose callers have dropped their iterators.
    fn drop_canceled(&mut self) {
        self.waiting.retain(|waiting| !waiting.events.is_closed());
        self.running.retain(|_, (_, events)| !events.is_closed());
        self.scheduler.retain(|id| self.running.contains_key(&id));
    }

    /// Starts waiting sequences in the order of their arrival, until one does not fit.
    fn start_waiting(&mut self) {
        while let Some(next) = self.waiting.pop_front() {
            let running: usize = self.running.values().map(|(bytes, _)| bytes).sum();
            let fits = running.saturating_add(next.bytes) <= self.options.cache_bytes;
            if !fits || self.running.len() >= self.options.texts.max(1) {
                self.waiting.push_front(next);
                return;
            }
            let id = self.scheduler.add(next.text);
            self.running.insert(id, (next.bytes, next.events));
        }
    }

    /// The size of all caches in bytes: running sequences at their final lengths, and kept caches
    /// of ended sequences.
    fn used(&self) -> usize {
        let running = self.running.values().map(|(bytes, _)| bytes).sum::<usize>();
        running.saturating_add(self.scheduler.kept())
    }
}

/// The size in bytes of a sequence's cache with this number of positions.
fn bytes_of(model: &Llama, kind: CacheKind, positions: usize) -> Result<usize> {
    let positions = u32::try_from(positions).unwrap_or(u32::MAX);
    let bytes = estimate(model.config(), model.dtype(), None, kind, 1, positions)?.cache;
    Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
}
