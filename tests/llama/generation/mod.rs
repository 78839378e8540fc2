//! Generation in all modes. In each mode, greedy tokens equal the tokens of plain generation.

mod batch;
mod engine;
mod processors;
mod prompt_cache;
mod speculative;
mod text;
mod widths;

use std::ops::ControlFlow;

use mlx_primitives::{Array, Dtype, Result};
use mlx_primitives_llama::{
    CacheKind, Checkpoint, Generation, Options, Penalties, Sampling, Token, decode::FinishReason,
};
use serde_json::json;

use crate::support::models::variant;
use crate::support::{Checked, fewer_if_simulated, message};

/// Prompts of several lengths.
pub const PROMPTS: [&str; 4] = ["Once upon a time", "One day", "Lily saw a big", "The"];

/// The number of generated tokens that the tests compare.
pub fn length() -> usize {
    fewer_if_simulated("tokens compared", 40, 8) as usize
}

pub fn options() -> Options {
    Options { max_tokens: length(), ..Options::default() }
}

pub fn encoded(checkpoint: &Checkpoint, text: &str) -> Vec<u32> {
    checkpoint.tokenizer.encode(text).unwrap()
}

pub fn ids(generation: &mut Generation) -> Vec<u32> {
    generation.collect::<Result<Vec<u32>>>().unwrap()
}

pub fn plain(checkpoint: &Checkpoint, prompt: &[u32]) -> Vec<u32> {
    ids(&mut checkpoint.generate(prompt, &options()).unwrap())
}

/// A story that the model has generated. As a prompt, it is long enough to run in several steps.
pub fn long_prompt(checkpoint: &Checkpoint) -> Vec<u32> {
    let mut prompt = encoded(checkpoint, "Once upon a time");
    let length = fewer_if_simulated("tokens of a long prompt", 100, 4) as usize;
    let options = Options { max_tokens: length, ..Options::default() };
    prompt.extend(ids(&mut checkpoint.llama.generate(&prompt, &options).unwrap()));
    prompt
}

#[test(simulated = once)]
fn prompts_in_steps_change_no_token() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = long_prompt(&checkpoint);
    let expected = plain(&checkpoint, &prompt);
    for prefill_step in [1, 7, prompt.len() - 1, 4096, usize::MAX] {
        if prefill_step == 1 && crate::support::simulated() {
            continue;
        }
        let options = Options { prefill_step, ..options() };
        // In this call, the last step of the prompt includes the last token. `prefill` below runs
        // only the tokens before it.
        assert_eq!(ids(&mut checkpoint.generate(&prompt, &options)?), expected, "{prefill_step}");
        let mut generation = checkpoint.generate(&prompt, &options)?;
        let mut steps = Vec::new();
        let flow = generation.prefill(|done, total| {
            steps.push((done, total));
            ControlFlow::Continue(())
        })?;
        assert_eq!(flow, ControlFlow::Continue(()));
        let total = prompt.len() - 1;
        assert_eq!(steps.len(), total.div_ceil(prefill_step));
        assert_eq!(steps.last(), Some(&(total, total)));
        assert!(steps.windows(2).all(|pair| pair[1].0 - pair[0].0 <= prefill_step));
        assert_eq!(ids(&mut generation), expected, "{prefill_step}");
    }
    let none = Options { prefill_step: 0, ..options() };
    assert!(message(checkpoint.generate(&prompt, &none)).contains("at least 1 token, got 0"));
    Ok(())
}

#[test(simulated = once)]
fn prompts_can_be_paused_and_resumed() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = long_prompt(&checkpoint);
    let options = Options { prefill_step: 5, ..options() };
    let mut generation = checkpoint.generate(&prompt, &options)?;
    let mut calls = 0;
    let flow = generation.prefill(|_, _| {
        calls += 1;
        ControlFlow::Break(())
    })?;
    assert_eq!((flow, calls), (ControlFlow::Break(()), 1));
    assert_eq!((generation.tokens(), generation.finish_reason()), (&prompt[..], None));
    assert_eq!(ids(&mut generation), plain(&checkpoint, &prompt));
    // After the first token, the whole prompt has run, so `prefill` has nothing to do.
    let mut generation = checkpoint.generate(&prompt, &options)?;
    generation.next_token()?;
    let flow = generation.prefill(|_, _| ControlFlow::Break(()))?;
    assert_eq!(flow, ControlFlow::Continue(()));
    Ok(())
}

/// Runs the model on these tokens without generation. Returns the logits after each position.
pub fn logits_after(checkpoint: &Checkpoint, tokens: &[u32]) -> anyhow::Result<Vec<Vec<f32>>> {
    let input = Array::from_slice(tokens, [1, tokens.len() as i32])?;
    let logits = checkpoint.llama.forward(&input, &mut checkpoint.llama.new_cache())?;
    let vocab = logits.dim(2)? as usize;
    let all = logits.astype(Dtype::Float32)?.to_vec::<f32>()?;
    Ok(all.chunks(vocab).map(<[f32]>::to_vec).collect())
}

#[test(simulated = once)]
fn log_probabilities_are_the_models() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = encoded(&checkpoint, PROMPTS[0]);
    let warm = Sampling { temp: 0.9, seed: 7, ..Sampling::default() };
    for sampling in [Sampling::default(), warm] {
        let options = Options { max_tokens: 6, logprobs: Some(5), sampling, ..options() };
        let mut generation = checkpoint.generate(&prompt, &options)?;
        let mut tokens: Vec<Token> = Vec::new();
        while let Some(token) = generation.next_token()? {
            tokens.push(token);
        }
        let without = Options { logprobs: None, ..options.clone() };
        let plain = ids(&mut checkpoint.generate(&prompt, &without)?);
        assert_eq!(tokens.iter().map(|t| t.id).collect::<Vec<_>>(), plain);

        let all = [prompt.clone(), plain].concat();
        let logits = logits_after(&checkpoint, &all)?;
        for (token, row) in tokens.iter().zip(&logits[prompt.len() - 1..]) {
            let most = row.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = row.iter().map(|l| f64::from(l - most).exp()).sum();
            let logprob = |id: u32| f64::from(row[id as usize] - most) - sum.ln();
            let near = |got: f32, id: u32| (f64::from(got) - logprob(id)).abs() < 1e-3;
            assert!(near(token.logprob.unwrap(), token.id));
            let mut order: Vec<u32> = (0..row.len() as u32).collect();
            order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]));
            assert_eq!(token.top_logprobs.len(), 5);
            for ((id, got), expected) in token.top_logprobs.iter().zip(order) {
                assert_eq!(*id, expected);
                assert!(near(*got, *id));
            }
        }
    }
    let more = Options { max_tokens: 1, logprobs: Some(9999), ..options() };
    let token = checkpoint.generate(&prompt, &more)?.next_token()?.unwrap();
    assert_eq!(token.top_logprobs.len(), 512);
    Ok(())
}

#[test(simulated = once)]
fn penalties_look_at_prompt_and_text() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = encoded(&checkpoint, PROMPTS[0]);
    let max_tokens = length();
    // With a huge penalty for tokens that are present, every new token is different.
    let penalties =
        Penalties { presence: 1e4, presence_context_size: usize::MAX, ..Penalties::default() };
    let options = Options { max_tokens, penalties, ..options() };
    let text = ids(&mut checkpoint.llama.generate(&prompt, &options)?);
    let mut all = [prompt.clone(), text].concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), prompt.len() + max_tokens);
    // A token with a bias of minus infinity never appears, and a token with a large bias always
    // does.
    let first = plain(&checkpoint, &prompt)[0];
    for (bias, expected) in [(f32::NEG_INFINITY, false), (1e4, true)] {
        let penalties = Penalties { logit_bias: vec![(first, bias)], ..Penalties::default() };
        let options = Options { max_tokens, penalties, ..options.clone() };
        let text = ids(&mut checkpoint.llama.generate(&prompt, &options)?);
        assert!(text.iter().all(|token| (*token == first) == expected) || !expected);
        assert_eq!(text.contains(&first), expected);
    }
    let unknown = Penalties { logit_bias: vec![(512, 1.0)], ..Penalties::default() };
    let options = Options { penalties: unknown, ..options };
    assert!(message(checkpoint.generate(&prompt, &options)).contains("tokens below 512"));
    Ok(())
}

/// A quantized cache changes the logits by a bounded error. The text stays the same as long as the
/// best token leads by more than twice this error.
#[test(simulated = once)]
fn quantized_caches_stay_within_their_error() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = long_prompt(&checkpoint);
    let expected = plain(&checkpoint, &prompt);
    let all = [prompt.clone(), expected.clone()].concat();
    let exact = logits_after(&checkpoint, &all)?;
    for (bits, bound) in [(8, 0.15f32), (6, 0.6), (4, 3.0)] {
        let kind = CacheKind::Quantized { group_size: 32, bits };
        let mut cache = checkpoint.llama.new_cache_of(kind)?;
        let input = Array::from_slice(&all, [1, all.len() as i32])?;
        let logits = checkpoint.llama.forward(&input, &mut cache)?.to_vec::<f32>()?;
        let worst =
            logits.iter().zip(exact.concat()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst > 0.0 && worst < bound, "{bits} bits: {worst}");
        // No logit has a larger error, so a lead of twice this error decides the token.
        let lead = |row: &[f32]| {
            let mut row = row.to_vec();
            row.sort_by(|a, b| b.total_cmp(a));
            row[0] - row[1]
        };
        let decided = exact[prompt.len() - 1..].iter().take_while(|row| lead(row) > 2.0 * worst);
        let decided = decided.count().min(expected.len());
        let text = ids(&mut checkpoint.generate(&prompt, &Options { cache: kind, ..options() })?);
        assert_eq!(text[..decided], expected[..decided], "{bits} bits");
        assert!(bits < 8 || decided >= 4, "{decided} tokens decided");
    }
    Ok(())
}

#[test(simulated = once)]
fn every_end_token_of_the_checkpoint_ends_a_text() -> Checked {
    let demo = Checkpoint::demo()?;
    let prompt = encoded(&demo, PROMPTS[0]);
    let text = plain(&demo, &prompt);
    // The end tokens come from generation_config.json. If this file names no end token, they come
    // from config.json.
    for (own, other, expected) in [
        (json!([0, text[3], 9]), json!(text[1]), 3),
        (json!(text[2]), json!(null), 2),
        (json!(null), json!([7, text[1]]), 1),
        (json!([]), json!(text[0]), 0),
    ] {
        let directory = variant(Dtype::Float32, |name, json| match name {
            "generation_config.json" => json["eos_token_id"] = own.clone(),
            "config.json" => json["eos_token_id"] = other.clone(),
            _ => {}
        });
        let checkpoint = Checkpoint::load(directory.path())?;
        let mut generation = checkpoint.generate(&prompt, &options())?;
        let first = text.iter().position(|token| *token == text[expected]).unwrap();
        assert_eq!(ids(&mut generation), text[..first], "{own} {other}");
        assert_eq!(generation.finish_reason(), Some(FinishReason::Stop));
    }
    Ok(())
}

#[test(simulated = once)]
fn ends_are_distinguished() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = encoded(&checkpoint, PROMPTS[0]);
    let text = plain(&checkpoint, &prompt);
    // The options can make any token an end token. Here it is the third token of the text.
    let options = Options { eos: vec![text[2]], ..options() };
    let mut generation = checkpoint.generate(&prompt, &options)?;
    let until = text.iter().position(|token| *token == text[2]).unwrap();
    assert_eq!(ids(&mut generation), text[..until]);
    assert_eq!(generation.finish_reason(), Some(FinishReason::Stop));
    assert_eq!(generation.tokens(), [&prompt[..], &text[..until]].concat());
    assert_eq!(generation.next_token()?, None);
    let names = [FinishReason::Stop, FinishReason::Length, FinishReason::StopString];
    assert_eq!(names.map(FinishReason::name), ["stop", "length", "stop_string"]);
    Ok(())
}
