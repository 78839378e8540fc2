//! Tokens and their log probabilities have the same bits with any number of draft proposals, in
//! batches, and with a prompt in chunks of any length. The weights are random, so logits differ
//! little and any changed bit is likely to change a token.

use mlx_primitives::ops::CpuActivations;
use mlx_primitives::{Dtype, Result};
use mlx_primitives_llama::{CacheKind, Config, Generation, Llama, Options, Quantization};

use crate::support::Checked;

/// The numbers of query heads and of key/value heads.
const LAYOUTS: [(i32, i32); 8] = [(1, 1), (4, 2), (4, 1), (8, 2), (5, 1), (14, 2), (8, 1), (16, 1)];

/// The number of kinds of models.
const KINDS: usize = 7;

fn model((heads, kv_heads): (i32, i32), kind: usize, seed: u64) -> Result<Llama> {
    let config = Config::parse(&format!(
        r#"{{"model_type": "llama", "hidden_size": 96, "num_hidden_layers": 2,
            "intermediate_size": 160, "num_attention_heads": {heads}, "head_dim": 32,
            "num_key_value_heads": {kv_heads}, "rms_norm_eps": 1e-5, "vocab_size": 101}}"#
    ))?;
    let (exact, rounded) = (CpuActivations::Exact, CpuActivations::Int8);
    let (dtype, packed, activations) = [
        (Dtype::Float32, None, exact),
        (Dtype::Bfloat16, Some(Quantization::affine(32, 4)), exact),
        (Dtype::Bfloat16, None, exact),
        (Dtype::Float32, Some(Quantization::affine(32, 4)), exact),
        (Dtype::Float16, Some(Quantization::affine(32, 8)), exact),
        (Dtype::Float32, Some(Quantization::affine(32, 4)), rounded),
        (Dtype::Bfloat16, Some(Quantization::affine(32, 6)), rounded),
    ][kind % KINDS];
    Ok(Llama::random(config, dtype, packed, seed)?.with_activations(activations))
}

/// The cache keeps only the latest positions. The prompt is longer than the cache, and runs in
/// chunks of several lengths. It also runs in a batch with two other prompts.
#[test(simulated = never)]
fn rotating_caches_do_not_depend_on_steps() -> Checked {
    for (layout, kind) in [((4, 1), 0), ((7, 1), 1), ((2, 2), 2)] {
        let llama = model(layout, kind, 7)?;
        for max_size in [70, 100] {
            let prompt: Vec<u32> = (0..331).map(|i| (i * i + 5 * i) % 101).collect();
            let cache = CacheKind::Rotating { max_size, keep: 0 };
            let options =
                Options { max_tokens: 90, logprobs: Some(1), cache, ..Options::default() };
            let expected = bits(&mut llama.generate(&prompt, &options)?)?;
            for prefill_step in [1, 7, 64, 100, 330] {
                let options = Options { prefill_step, ..options.clone() };
                let got = bits(&mut llama.generate(&prompt, &options)?)?;
                assert!(got == expected, "{layout:?}, {max_size}, {prefill_step}");
            }
            let prompts = vec![prompt[5..].to_vec(), prompt.clone(), prompt[..3].to_vec()];
            let mut got = Vec::new();
            for token in llama.generate_batch(&prompts, &options)? {
                let (text, token) = token?;
                got.extend((text == 1).then_some((token.id, token.logprob.map(f32::to_bits))));
            }
            assert!(got == expected, "{layout:?}, {max_size}, in a batch");
        }
    }
    Ok(())
}

fn cache(kind: usize) -> CacheKind {
    match kind % 3 {
        0 => CacheKind::Plain,
        1 => CacheKind::Quantized { group_size: 32, bits: 8 },
        _ => CacheKind::Quantized { group_size: 32, bits: 4 },
    }
}

/// The generated tokens, each with the bits of its log probability.
fn bits(generation: &mut Generation) -> Result<Vec<(u32, Option<u32>)>> {
    let mut tokens = Vec::new();
    while let Some(token) = generation.next_token()? {
        tokens.push((token.id, token.logprob.map(f32::to_bits)));
    }
    Ok(tokens)
}

#[test(simulated = never)]
fn neither_proposals_nor_cuts_nor_neighbors_change_a_bit() -> Checked {
    let cases = (0..LAYOUTS.len()).flat_map(|layout| (0..2).map(move |more| (layout, more)));
    for (layout, more) in cases {
        let kind = layout + 2 * more;
        let llama = model(LAYOUTS[layout], kind, 7)?;
        let other = model(LAYOUTS[layout], kind, 8)?;
        let kept = cache(layout + more);
        let what = format!("{:?}, {}, {kept:?}", LAYOUTS[layout], kind % KINDS);
        // Some prompts have more keys than a tile of the attention kernel, and others have fewer.
        let prompt = |of: usize| -> Vec<u32> {
            let len = [70, 3, 131, 1, 17, 64, 40][of % 7];
            (0..len).map(|i| ((i * i + 31 * of + 5 * i) % 101) as u32).collect()
        };
        let options =
            Options { max_tokens: 33, logprobs: Some(1), cache: kept, ..Options::default() };
        let expected = bits(&mut llama.generate(&prompt(0), &options)?)?;

        for count in [1, 2, 3, 8, 15, 31] {
            for draft in [&llama, &other] {
                let generation = llama.generate(&prompt(0), &options)?;
                let got = bits(&mut generation.with_draft(draft, count)?)?;
                assert!(got == expected, "{what}: {count} proposals: {got:?} for {expected:?}");
            }
            let generation = llama.generate(&prompt(0), &options)?;
            let got = bits(&mut generation.with_prompt_lookup(count)?)?;
            assert!(got == expected, "{what}: {count} proposals of the text");
        }
        for prefill_step in [1, 7, 64] {
            let options = Options { prefill_step, ..options.clone() };
            let got = bits(&mut llama.generate(&prompt(0), &options)?)?;
            assert!(got == expected, "{what}: steps of {prefill_step}");
            let mut generation = llama.generate(&prompt(0), &options)?;
            let _ = generation.prefill(|_, _| std::ops::ControlFlow::Continue(()))?;
            assert!(bits(&mut generation)? == expected, "{what}: read in steps of {prefill_step}");
        }
        let alone: Vec<_> = (0..32)
            .map(|of| bits(&mut llama.generate(&prompt(of), &options)?))
            .collect::<Result<_>>()?;
        for texts in [2, 9, 32] {
            let prompts: Vec<Vec<u32>> = (0..texts).map(prompt).collect();
            let mut got = vec![Vec::new(); texts];
            for token in llama.generate_batch(&prompts, &options)? {
                let (text, token) = token?;
                got[text].push((token.id, token.logprob.map(f32::to_bits)));
            }
            for (of, (got, alone)) in got.iter().zip(&alone).enumerate() {
                assert!(got == alone, "{what}: text {of} of {texts}: {got:?} for {alone:?}");
            }
        }
    }
    Ok(())
}
