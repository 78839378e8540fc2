//! The engine generates texts for several threads at the same time. Each prompt gets the same text
//! as alone, whatever other texts run.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures_core::Stream;
use mlx_primitives::Result;
use mlx_primitives_llama::decode::{Engine, EngineOptions, FinishReason, Generated};
use mlx_primitives_llama::{
    Adapters, CacheKind, Checkpoint, Options, Penalties, Sampling, TextGeneration, Token,
};

use super::{PROMPTS, encoded, long_prompt, options};
use crate::adapters::ADAPTERS;
use crate::support::{Checked, message};

fn engine(options: EngineOptions) -> Result<Engine> {
    Engine::start(Checkpoint::demo, options)
}

fn all(generated: &mut Generated) -> Result<Vec<Token>> {
    generated.collect()
}

/// Sets of options. Together they vary the settings that a caller may choose for each text.
fn kinds_of_options() -> Vec<Options> {
    let sampling = Sampling { temp: 0.8, seed: 5, ..Sampling::default() };
    let penalties = Penalties { repetition: 1.3, ..Penalties::default() };
    let packed = CacheKind::Quantized { group_size: 32, bits: 8 };
    let rotating = CacheKind::Rotating { max_size: 16, keep: 4 };
    vec![
        options(),
        Options { sampling, ..options() },
        Options { penalties, prefill_step: 3, ..options() },
        Options { cache: packed, logprobs: Some(2), ..options() },
        Options { cache: rotating, ..options() },
        Options { max_tokens: 1, ..options() },
        Options { max_tokens: 0, ..options() },
    ]
}

#[test(simulated = once)]
fn texts_of_threads_are_those_of_each_alone() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let adapted = Checkpoint::demo()?;
    let adapters = Adapters::load(ADAPTERS, &adapted.llama)?;
    let adapted = Checkpoint { llama: adapted.llama.adapted(&adapters)?, ..adapted };
    let engine = engine(EngineOptions {
        texts: 5,
        prompt_step: 7,
        adapters: vec![("stories".to_owned(), ADAPTERS.into())],
        ..EngineOptions::default()
    })?;
    let mut prompts: Vec<Vec<u32>> =
        PROMPTS.iter().map(|text| encoded(&checkpoint, text)).collect();
    prompts.push(long_prompt(&checkpoint));
    let mut expected = Vec::new();
    for (at, options) in kinds_of_options().into_iter().enumerate() {
        for (of, prompt) in prompts.iter().enumerate() {
            let adapter = ((at + of) % 3 == 0).then_some("stories");
            let alone = if adapter.is_some() { &adapted } else { &checkpoint };
            let mut generation = alone.generate(prompt, &options)?;
            let mut tokens = Vec::new();
            while let Some(token) = generation.next_token()? {
                tokens.push(token);
            }
            let case = (prompt.clone(), options.clone(), adapter);
            expected.push((case, tokens, generation.finish_reason()));
        }
    }
    std::thread::scope(|scope| {
        let asked: Vec<_> = expected
            .iter()
            .map(|((prompt, options, adapter), ..)| {
                let engine = engine.clone();
                scope.spawn(move || {
                    let mut generated = engine.generate(prompt, options, *adapter);
                    let tokens = all(&mut generated);
                    (tokens, generated.finish_reason())
                })
            })
            .collect();
        for (asked, (case, tokens, reason)) in asked.into_iter().zip(&expected) {
            let (got, finish) = asked.join().expect("no panic");
            let ids = |tokens: &[Token]| tokens.iter().map(|token| token.id).collect::<Vec<_>>();
            assert_eq!(ids(&got?), ids(tokens), "{case:?}");
            assert_eq!(finish, *reason, "{case:?}");
        }
        Ok(())
    })
}

#[test(simulated = never)]
fn texts_that_begin_alike_share_their_beginning() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let beginning = long_prompt(&checkpoint);
    let engine = engine(EngineOptions { prompt_step: 16, ..EngineOptions::default() })?;
    let mut asked: Vec<(Vec<u32>, Generated)> = Vec::new();
    for last in [300, 301, 302] {
        let prompt: Vec<u32> = beginning.iter().copied().chain([last]).collect();
        let generated = engine.generate(&prompt, &options(), None);
        asked.push((prompt, generated));
    }
    let mut known = 0;
    for (prompt, mut generated) in asked {
        let tokens = all(&mut generated)?.iter().map(|token| token.id).collect::<Vec<_>>();
        assert_eq!(tokens, super::plain(&checkpoint, &prompt));
        known += generated.cached_tokens();
    }
    assert!(known >= beginning.len(), "{known} of {} tokens", beginning.len());
    // The engine can also reuse the cache of a text that has ended.
    let mut again = engine.generate(&beginning, &options(), None);
    all(&mut again)?;
    assert_eq!(again.cached_tokens(), beginning.len() - 1);
    Ok(())
}

#[test(simulated = never)]
fn limits_are_kept() -> Checked {
    let one = EngineOptions { cache_bytes: 1 << 20, ..EngineOptions::default() };
    let prompt = encoded(&Checkpoint::demo()?, PROMPTS[0]);
    // The caches of all six texts do not fit into the engine's memory at the same time.
    let crowded = engine(one.clone())?;
    let mut texts: Vec<Generated> =
        (0..6).map(|_| crowded.generate(&prompt, &options(), None)).collect();
    let texts = texts.iter_mut().map(all).collect::<Result<Vec<_>>>()?;
    assert!(texts.iter().all(|text| text == &texts[0] && text.len() == super::length()));

    let small = engine(EngineOptions { cache_bytes: 1000, ..one })?;
    let refused = message(small.generate(&prompt, &options(), None).next().unwrap());
    assert!(refused.contains("at most 1000 bytes") && refused.contains("max_tokens"), "{refused}");
    let unknown = message(small.generate(&prompt, &options(), Some("none")).next().unwrap());
    assert!(unknown.contains(r#"adapters of [], got "none""#), "{unknown}");
    let empty = message(small.generate(&[], &options(), None).next().unwrap());
    assert!(empty.contains("a prompt of 1 to 256 tokens, got 0"), "{empty}");

    let full = engine(EngineOptions { texts: 1, waiting: 2, ..EngineOptions::default() })?;
    let asked: Vec<Generated> = (0..40).map(|_| full.generate(&prompt, &options(), None)).collect();
    let results: Vec<Result<Vec<Token>>> = asked.into_iter().map(Iterator::collect).collect();
    let refused = results.iter().filter(|result| result.is_err()).count();
    assert!(refused < 40 && results.iter().any(Result::is_ok));
    for error in results.into_iter().filter_map(Result::err) {
        assert!(error.to_string().contains("at most 2 texts that wait"), "{error}");
    }
    assert!(
        message(Engine::start(|| Checkpoint::load("/nowhere"), one_text())).contains("/nowhere")
    );
    Ok(())
}

fn one_text() -> EngineOptions {
    EngineOptions { texts: 1, ..EngineOptions::default() }
}

/// A thread-local value. Its destructor sets the flag when the thread ends.
struct Ends(Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

thread_local! {
    static ENDS: std::cell::RefCell<Option<Ends>> = const { std::cell::RefCell::new(None) };
}

#[test(simulated = never)]
fn dropped_texts_and_handles_end() -> Checked {
    let ended = Arc::new(AtomicBool::new(false));
    let ends = Ends(Arc::clone(&ended));
    let load = move || {
        ENDS.set(Some(ends));
        Checkpoint::demo()
    };
    let engine = Engine::start(load, one_text())?;
    let prompt = encoded(&Checkpoint::demo()?, PROMPTS[0]);
    let long = Options { max_tokens: 10_000, eos: Vec::new(), ..Options::default() };
    let mut first = engine.generate(&prompt, &long, None);
    assert!(first.next().is_some());
    // The engine runs one text at a time. Dropping the first text ends it soon, and the second one
    // runs.
    drop(first);
    assert_eq!(all(&mut engine.generate(&prompt, &options(), None))?.len(), super::length());
    // After all handles of the engine are dropped, a running text continues.
    let mut last = engine.generate(&prompt, &options(), None);
    drop(engine);
    assert_eq!(all(&mut last)?.len(), super::length());
    assert_eq!(last.finish_reason(), Some(FinishReason::Length));
    let since = Instant::now();
    while !ended.load(Ordering::SeqCst) {
        assert!(since.elapsed() < Duration::from_secs(60), "the thread goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

#[test(simulated = never)]
fn streams_and_texts_are_those_of_the_iterator() -> Checked {
    let engine = engine(EngineOptions::default())?;
    let prompt = engine.tokenizer().encode(PROMPTS[0])?;
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut stream = pin!(engine.generate(&prompt, &options(), None));
    let mut tokens = Vec::new();
    loop {
        match stream.as_mut().poll_next(&mut Context::from_waker(&waker)) {
            Poll::Ready(Some(token)) => tokens.push(token?),
            Poll::Ready(None) => break,
            Poll::Pending => std::thread::park(),
        }
    }
    assert_eq!(tokens, all(&mut engine.generate(&prompt, &options(), None))?);

    let stop = vec!["little".to_owned()];
    let checkpoint = Checkpoint::demo()?;
    let with_stop = Options { stop: stop.clone(), ..options() };
    let generated = engine.generate(&prompt, &with_stop, None);
    let text: Result<Vec<_>> = TextGeneration::new(generated, engine.tokenizer(), &stop)?.collect();
    let alone: Result<Vec<_>> = checkpoint.generate_text(&prompt, &with_stop)?.collect();
    assert_eq!(text?, alone?);
    Ok(())
}
