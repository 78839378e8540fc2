//! Speculative decoding gives the same tokens as plain decoding, whatever tokens a draft model
//! proposes.

use mlx_primitives_llama::{
    CacheKind, Checkpoint, Llama, Options, Penalties, Quantization, Sampling,
};

use super::{PROMPTS, encoded, ids, length, long_prompt, options, plain};
use crate::support::models::variant;
use crate::support::{Checked, message, simulated};

/// Named draft models: the model itself, its weights in 4 and in 2 bits, and one of its layers.
fn drafts(checkpoint: &Checkpoint) -> anyhow::Result<Vec<(&'static str, Llama)>> {
    // This draft has only one of the model's four layers, so it behaves like a different model.
    let shallow = variant(mlx_primitives::Dtype::Float32, |_, _| {});
    let file = shallow.path().join("model.safetensors");
    let tensors = mlx_primitives::io::load_safetensors(&file)?.arrays;
    let kept = tensors
        .iter()
        .filter(|(name, _)| !["s.1.", "s.2.", "s.3."].iter().any(|n| name.contains(n)));
    let kept: Vec<_> = kept.map(|(name, a)| (name.as_str(), a.add(0.0f32).unwrap())).collect();
    mlx_primitives::io::save_safetensors(&file, kept.iter().map(|(name, a)| (*name, a)), [])?;
    let config = shallow.path().join("config.json");
    let text = std::fs::read_to_string(&config)?;
    std::fs::write(&config, text.replace("\"num_hidden_layers\":4", "\"num_hidden_layers\":1"))?;
    Ok(vec![
        ("itself", Checkpoint::demo()?.llama),
        ("in 4 bits", checkpoint.llama.quantized(Quantization::affine(32, 4))?),
        ("in 2 bits", checkpoint.llama.quantized(Quantization::affine(32, 2))?),
        ("one layer", Checkpoint::load(shallow.path())?.llama),
    ])
}

#[test(simulated = once)]
fn proposals_from_the_text_change_no_token() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let counts: &[usize] = if simulated() { &[3] } else { &[1, 3, 8, 64] };
    let mut prompts: Vec<Vec<u32>> =
        PROMPTS.iter().map(|text| encoded(&checkpoint, text)).collect();
    prompts.push([long_prompt(&checkpoint), prompts[0].clone()].concat());
    let mut accepted = 0;
    for prompt in prompts {
        let expected = plain(&checkpoint, &prompt);
        for &count in counts {
            let generation = checkpoint.generate(&prompt, &options())?.with_prompt_lookup(count)?;
            let mut generation = generation;
            assert_eq!(ids(&mut generation), expected, "{count} at a time, {prompt:?}");
            accepted += generation.statistics().accepted_tokens;
        }
    }
    assert!(simulated() || accepted > 0);
    let refused =
        |count| message(checkpoint.generate(&[1], &options()).unwrap().with_prompt_lookup(count));
    assert!(refused(0).contains("1 to 64 draft tokens, got 0"));
    let rotating = CacheKind::Rotating { max_size: 8, keep: 0 };
    let rotating = Options { cache: rotating, ..options() };
    let refused = message(checkpoint.generate(&[1], &rotating)?.with_prompt_lookup(3));
    assert!(refused.contains("got a rotating one"), "{refused}");
    Ok(())
}

#[test(simulated = once)]
fn drafts_change_no_token() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let counts: &[usize] = if simulated() { &[3] } else { &[1, 2, 3, 8, 64] };
    let prompts = if simulated() { &PROMPTS[..1] } else { &PROMPTS[..] };
    let mut rates = Vec::new();
    for (name, draft) in drafts(&checkpoint)? {
        let (mut drafted, mut accepted) = (0, 0);
        for text in prompts {
            let prompt = encoded(&checkpoint, text);
            let expected = plain(&checkpoint, &prompt);
            for &count in counts {
                let generation = checkpoint.generate(&prompt, &options())?;
                let mut generation = generation.with_draft(&draft, count)?;
                assert_eq!(ids(&mut generation), expected, "{name}, {count} at a time, {text:?}");
                let s = generation.statistics();
                assert!(s.accepted_tokens <= s.draft_tokens);
                assert_eq!(s.generated_tokens, expected.len());
                (drafted, accepted) = (drafted + s.draft_tokens, accepted + s.accepted_tokens);
            }
        }
        assert!(drafted > 0, "{name}");
        rates.push((name, accepted as f64 / drafted as f64));
    }
    // If a model is its own draft, it accepts all proposals, except proposals after the end of the
    // text.
    assert!(rates[0].1 > 0.8, "{rates:?}");
    assert!(simulated() || (rates[3].1 < 0.7 && rates[1].1 > rates[3].1), "{rates:?}");
    Ok(())
}

#[test(simulated = once)]
fn tokens_say_whether_they_were_proposed() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = encoded(&checkpoint, PROMPTS[0]);
    let draft = checkpoint.llama.quantized(Quantization::affine(32, 4))?;
    let mut generation = checkpoint.llama.generate(&prompt, &options())?.with_draft(&draft, 3)?;
    let mut proposed = 0;
    while let Some(token) = generation.next_token()? {
        proposed += usize::from(token.from_draft);
    }
    assert_eq!(proposed, generation.statistics().accepted_tokens);
    assert!(proposed > 0);
    Ok(())
}

/// The drawn token depends only on the model's logits and the random numbers, not on the draft.
#[test(simulated = once)]
fn sampled_and_penalized_texts_are_the_same_too() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = encoded(&checkpoint, PROMPTS[1]);
    let penalties = Penalties { repetition: 1.2, frequency: 0.3, ..Penalties::default() };
    let warm = Sampling { temp: 0.8, top_p: 0.9, seed: 5, ..Sampling::default() };
    for options in [
        Options { sampling: warm, ..options() },
        Options { penalties: penalties.clone(), ..options() },
        Options { sampling: warm, penalties, logprobs: Some(1), ..options() },
        Options { cache: CacheKind::Quantized { group_size: 32, bits: 8 }, ..options() },
    ] {
        let expected = ids(&mut checkpoint.generate(&prompt, &options)?);
        let draft = Checkpoint::demo()?.llama;
        let mut generation = checkpoint.generate(&prompt, &options)?.with_draft(&draft, 4)?;
        assert_eq!(ids(&mut generation), expected, "{options:?}");
        assert!(generation.statistics().accepted_tokens > 0);
    }
    Ok(())
}

#[test(simulated = once)]
fn drafts_start_from_cached_prompts() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = long_prompt(&checkpoint);
    let expected = plain(&checkpoint, &prompt);
    let mut first = checkpoint.generate(&prompt, &options())?;
    ids(&mut first);
    let cache = first.into_prompt_cache()?;
    let draft = Checkpoint::demo()?.llama;
    let mut generation =
        checkpoint.generate(&prompt, &options())?.with_cache(cache)?.with_draft(&draft, 3)?;
    assert_eq!(ids(&mut generation), expected);
    assert_eq!(generation.statistics().cached_tokens, prompt.len() - 1);
    // The generation may stop anywhere. Its cache can then be used like any other.
    for taken in [0, 1, 2, 5] {
        let mut generation = checkpoint.generate(&prompt, &options())?.with_draft(&draft, 3)?;
        let text: Vec<u32> = generation.by_ref().take(taken).collect::<Result<_, _>>()?;
        let cache = generation.into_prompt_cache()?;
        assert!(cache.tokens().len() <= prompt.len() + taken);
        let longer = [prompt.clone(), text.clone()].concat();
        let rest = Options { max_tokens: length() - taken, ..options() };
        let mut rest = checkpoint.generate(&longer, &rest)?.with_cache(cache)?;
        assert_eq!([text, ids(&mut rest)].concat(), expected, "after {taken}");
    }
    Ok(())
}

#[test(simulated = once)]
fn unsuitable_drafts_are_refused() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let draft = Checkpoint::demo()?.llama;
    let prompt = encoded(&checkpoint, PROMPTS[0]);
    let with =
        |options: &Options, count| checkpoint.generate(&prompt, options)?.with_draft(&draft, count);
    assert!(message(with(&options(), 0)).contains("1 to 64 draft tokens, got 0"));
    assert!(message(with(&options(), 65)).contains("got 65"));
    let rotating = Options { cache: CacheKind::Rotating { max_size: 64, keep: 4 }, ..options() };
    assert!(message(with(&rotating, 2)).contains("got a rotating one"));
    let mut begun = checkpoint.generate(&prompt, &options())?;
    begun.next_token()?;
    assert!(message(begun.with_draft(&draft, 2)).contains("before the first token"));

    let short = variant(mlx_primitives::Dtype::Float32, |name, json| {
        if name == "config.json" {
            json["max_position_embeddings"] = serde_json::json!(16);
        }
    });
    let short = Checkpoint::load(short.path())?.llama;
    let long = Options { max_tokens: 40, ..Options::default() };
    let refused = checkpoint.generate(&prompt, &long)?.with_draft(&short, 2);
    assert!(message(refused).contains("43 positions, got one for 16"));
    Ok(())
}
