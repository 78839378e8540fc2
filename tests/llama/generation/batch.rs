//! Batches: each prompt gets the same text in a batch as alone.

use mlx_primitives::Dtype;
use mlx_primitives_llama::{
    CacheKind, Checkpoint, Options, Penalties, Sampling, Token, decode::FinishReason,
};
use serde_json::json;

use super::{PROMPTS, encoded, ids, long_prompt, options};
use crate::support::models::variant;
use crate::support::{Checked, message, simulated};

/// Generates for all prompts together. Returns each prompt's tokens, and why its text ended.
fn together(
    checkpoint: &Checkpoint,
    prompts: &[Vec<u32>],
    options: &Options,
) -> anyhow::Result<Vec<(Vec<Token>, Option<FinishReason>)>> {
    let mut batch = checkpoint.generate_batch(prompts, options)?;
    let mut texts = vec![Vec::new(); prompts.len()];
    for step in batch.by_ref() {
        let (prompt, token) = step?;
        texts[prompt].push(token);
    }
    assert!(batch.next().is_none());
    Ok((0..).zip(texts).map(|(i, text)| (text, batch.finish_reason(i))).collect())
}

fn assert_as_alone(checkpoint: &Checkpoint, prompts: &[Vec<u32>], options: &Options) -> Checked {
    for (prompt, (text, reason)) in prompts.iter().zip(together(checkpoint, prompts, options)?) {
        let mut alone = checkpoint.generate(prompt, options)?;
        let text: Vec<u32> = text.iter().map(|token| token.id).collect();
        assert_eq!(text, ids(&mut alone), "{options:?}, {} tokens", prompt.len());
        assert_eq!(reason, alone.finish_reason());
    }
    Ok(())
}

fn prompts(checkpoint: &Checkpoint) -> Vec<Vec<u32>> {
    let mut prompts: Vec<Vec<u32>> = PROMPTS.iter().map(|text| encoded(checkpoint, text)).collect();
    prompts.push(long_prompt(checkpoint));
    prompts.push(vec![423]);
    prompts
}

#[test(simulated = once)]
fn texts_of_a_batch_are_those_of_each_alone() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompts = prompts(&checkpoint);
    // Run until all texts end. Some end before others.
    let whole = Options { max_tokens: if simulated() { 8 } else { 140 }, ..options() };
    assert_as_alone(&checkpoint, &prompts, &whole)?;
    assert_as_alone(&checkpoint, &prompts[..1], &options())?;
    let same = vec![prompts[0].clone(); 3];
    assert_as_alone(&checkpoint, &same, &options())?;
    if simulated() {
        return Ok(());
    }
    for options in [
        Options { prefill_step: 7, ..options() },
        Options { prefill_step: 1, max_tokens: 9, ..options() },
        Options { max_tokens: 0, ..options() },
        Options { max_tokens: 1, ..options() },
        Options { eos: vec![prompts[4][20], 13], ..options() },
        Options { cache: CacheKind::Rotating { max_size: 16, keep: 4 }, ..options() },
        Options { penalties: Penalties { repetition: 1.3, ..Penalties::default() }, ..options() },
        Options { sampling: Sampling { temp: 0.8, seed: 3, ..Sampling::default() }, ..options() },
    ] {
        assert_as_alone(&checkpoint, &prompts, &options)?;
    }
    Ok(())
}

#[test(simulated = once)]
fn batches_end_with_the_context_of_each() -> Checked {
    if simulated() {
        return Ok(()); // slow, and no different from shorter texts
    }
    let mut checkpoint = Checkpoint::demo()?;
    checkpoint.eos.clear();
    let prompts = prompts(&checkpoint);
    let options = Options { max_tokens: 10_000, ..Options::default() };
    for (prompt, (text, reason)) in prompts.iter().zip(together(&checkpoint, &prompts, &options)?) {
        assert_eq!(text.len(), 257 - prompt.len());
        assert_eq!(reason, Some(FinishReason::Length));
    }
    Ok(())
}

#[test(simulated = once)]
fn quantized_batches_decode_near_their_rows() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompts = prompts(&checkpoint);
    // In a batch, a prompt's positions may be shifted, so its keys are rotated differently. The
    // rounding of keys to 8 bits then has other errors, so compare with a tolerance.
    let cache = CacheKind::Quantized { group_size: 32, bits: 8 };
    let options = Options { cache, max_tokens: 6, logprobs: Some(1), ..options() };
    for (prompt, (text, _)) in prompts.iter().zip(together(&checkpoint, &prompts, &options)?) {
        let alone = checkpoint.generate(prompt, &options)?.next_token()?.unwrap();
        assert!((text[0].logprob.unwrap() - alone.logprob.unwrap()).abs() < 0.1);
    }
    Ok(())
}

/// With dynamic scaling, the rotary frequencies depend on the length of each text.
#[test(simulated = once)]
fn dynamic_rope_is_of_each_text() -> Checked {
    let directory = variant(Dtype::Float32, |name, json| {
        if name == "config.json" {
            json["max_position_embeddings"] = json!(64);
            json["rope_scaling"] = json!({"rope_type": "dynamic", "factor": 2.0});
        }
    });
    let checkpoint = Checkpoint::load(directory.path())?;
    let prompts: Vec<Vec<u32>> = PROMPTS.iter().map(|text| encoded(&checkpoint, text)).collect();
    assert_as_alone(&checkpoint, &prompts, &Options { max_tokens: 12, ..options() })
}

#[test(simulated = once)]
fn bad_batches_are_refused() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let refused = |prompts: &[Vec<u32>]| message(checkpoint.generate_batch(prompts, &options()));
    assert!(refused(&[]).contains("at least one prompt, got none"));
    assert!(refused(&[vec![1], vec![]]).contains("a prompt of 1 to 256 tokens, got 0"));
    assert!(refused(&[vec![1], vec![512]]).contains("tokens below 512, got 512"));
    assert_eq!(checkpoint.generate_batch(&[vec![1]], &options())?.finish_reason(5), None);
    Ok(())
}
