//! Logits processors: functions of the caller that change the logits before a token is drawn.

use std::cell::RefCell;

use mlx_primitives::{Array, Error, Result};
use mlx_primitives_llama::{Checkpoint, Options, Quantization, Sampling};

use super::{PROMPTS, encoded, ids, length, logits_after, options, plain};
use crate::support::{Checked, message};

/// Replaces the logits of some tokens by this value.
fn with(logits: &Array, tokens: &[u32], value: f32) -> Result<Array> {
    let count = tokens.len() as i32;
    let at = Array::from_slice(tokens, [1, count])?;
    let values = Array::full([1, count], value)?.astype(logits.dtype())?;
    logits.put_along_axis(&at, &values, -1)
}

#[test(simulated = once)]
fn without_the_best_token_comes_the_second_best() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = encoded(&checkpoint, PROMPTS[0]);
    let logits = logits_after(&checkpoint, &prompt)?;
    let row = logits.last().expect("a prompt");
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]));
    for banned in 0..3 {
        let ban = order[..banned].to_vec();
        let mut generation = checkpoint.llama.generate(&prompt, &options())?;
        if banned > 0 {
            generation =
                generation.with_logits_processor(|_, l| with(l, &ban, f32::NEG_INFINITY))?;
        }
        assert_eq!(generation.next().expect("a token")?, order[banned], "{banned} banned");
    }
    Ok(())
}

#[test(simulated = once)]
fn a_bias_forces_a_token_however_it_is_drawn() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = encoded(&checkpoint, PROMPTS[1]);
    let warm = Sampling { temp: 1.0, top_p: 0.9, seed: 3, ..Sampling::default() };
    for sampling in [Sampling::default(), warm] {
        let options = Options { sampling, max_tokens: 4, logprobs: Some(1), ..options() };
        let mut generation = checkpoint
            .llama
            .generate(&prompt, &options)?
            .with_logits_processor(|_, logits| with(logits, &[77], 1e4))?;
        while let Some(token) = generation.next_token()? {
            assert_eq!((token.id, &token.top_logprobs[..]), (77, &[(77, 0.0)][..]));
        }
        assert_eq!(generation.statistics().generated_tokens, 4);
    }
    Ok(())
}

#[test(simulated = once)]
fn processors_see_the_tokens_so_far_once_each_and_in_order() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = encoded(&checkpoint, PROMPTS[0]);
    let expected = plain(&checkpoint, &prompt);
    let seen = RefCell::new(Vec::new());
    let watch = |tokens: &[u32], logits: &Array| {
        seen.borrow_mut().push(tokens.to_vec());
        assert_eq!(logits.shape(), [1, 512]);
        Ok(logits.clone())
    };
    // Each processor receives the logits that the processor before it returns.
    let mut generation = checkpoint
        .llama
        .generate(&prompt, &options())?
        .with_logits_processor(|_, logits| with(logits, &[5], 1e4))?
        .with_logits_processor(|_, logits| with(logits, &[5], f32::NEG_INFINITY))?
        .with_logits_processor(watch)?;
    let drawn = ids(&mut generation);
    drop(generation);
    assert_eq!(drawn[..expected.len()], expected);
    let so_far = |count: usize| [&prompt[..], &drawn[..count]].concat();
    let want: Vec<Vec<u32>> = (0..drawn.len()).map(so_far).collect();
    assert_eq!(seen.take(), want);
    Ok(())
}

#[test(simulated = once)]
fn errors_of_a_processor_end_the_generation() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = encoded(&checkpoint, PROMPTS[0]);
    let fails = |tokens: &[u32], logits: &Array| match tokens.len() - prompt.len() {
        2 => Err(Error::argument("grammar", "a token that goes on")),
        _ => Ok(logits.clone()),
    };
    let generation = checkpoint.generate(&prompt, &options())?.with_logits_processor(fails)?;
    let drawn: Vec<Result<u32>> = generation.collect();
    let (last, before) = drawn.split_last().expect("an error");
    assert!(matches!(last, Err(Error::Argument { op: Some(op), .. }) if op == "grammar"));
    assert!(before.len() <= 2 && before.iter().all(Result::is_ok));

    let mut short = checkpoint
        .generate(&prompt, &options())?
        .with_logits_processor(|_, logits| logits.slice_axis(-1, ..3))?;
    let text = message(short.next_token());
    assert!(text.contains("logits [1, 512] from a processor, got shape [1, 3]"), "{text}");
    assert!(short.next().is_none());

    let mut begun = checkpoint.generate(&prompt, &options())?;
    begun.next_token()?;
    let late = begun.with_logits_processor(|_, logits| Ok(logits.clone()));
    assert!(message(late).contains("before the first token"));
    Ok(())
}

#[test(simulated = once)]
fn drafts_change_no_processed_token() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let draft = checkpoint.llama.quantized(Quantization::affine(32, 4))?;
    let prompt = encoded(&checkpoint, PROMPTS[2]);
    // The rule negates the logits of every third token, so the least likely token is drawn.
    let rule = |tokens: &[u32], logits: &Array| match tokens.len() % 3 {
        0 => logits.negative(),
        _ => Ok(logits.clone()),
    };
    for sampling in [Sampling::default(), Sampling { temp: 0.8, seed: 5, ..Sampling::default() }] {
        let options = Options { sampling, max_tokens: length(), ..options() };
        let alone = checkpoint.llama.generate(&prompt, &options)?.with_logits_processor(rule)?;
        let expected: Vec<u32> = alone.collect::<Result<_>>()?;
        let mut drafted = checkpoint
            .llama
            .generate(&prompt, &options)?
            .with_logits_processor(rule)?
            .with_draft(&draft, 3)?;
        assert_eq!(ids(&mut drafted), expected);
        assert!(drafted.statistics().accepted_tokens > 0);
    }
    Ok(())
}

#[test(simulated = once)]
fn texts_and_batches_are_processed_too() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompts: Vec<Vec<u32>> =
        PROMPTS[..2].iter().map(|text| encoded(&checkpoint, text)).collect();
    let options = Options { max_tokens: 3, ..options() };
    let text = checkpoint
        .generate_text(&prompts[0], &options)?
        .with_logits_processor(|_, logits| with(logits, &[77], 1e4))?;
    let tokens: Vec<u32> = text
        .filter_map(|piece| piece.map(|piece| piece.token.map(|token| token.id)).transpose())
        .collect::<Result<_>>()?;
    assert_eq!(tokens, [77; 3]);

    let mut batch = checkpoint.llama.generate_batch(&prompts, &options)?.with_logits_processor(
        |prompt, tokens, logits| {
            assert!(tokens.starts_with(&prompts[prompt]));
            with(logits, &[70 + prompt as u32], 1e4)
        },
    )?;
    for step in batch.by_ref() {
        let (prompt, token) = step?;
        assert_eq!(token.id, 70 + prompt as u32);
    }
    assert!(message(batch.with_logits_processor(|_, _, l| Ok(l.clone()))).contains("before"));
    Ok(())
}
