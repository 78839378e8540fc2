//! If logits are NaN, drawing or scoring tokens ends with an error. With a rotating cache, a text
//! may become longer than the model's maximum number of positions.

use mlx_primitives::{Array, Result, io};
use mlx_primitives_llama::{CacheKind, Llama, Options, Penalties, Sampling, Token};
use serde_json::json;

use crate::checkpoints::errors::copy;
use crate::config_keys::changed;
use crate::support::models::checkpoints as root;
use crate::support::{Checked, message, simulated};

/// Loads a fixture with one tensor multiplied by a number.
fn broken(name: &str, tensor: &str, by: f32) -> anyhow::Result<Llama> {
    let folder = copy(name)?;
    let file = folder.path().join("model.safetensors");
    let mut arrays = io::load_safetensors(&file)?.arrays;
    mlx_primitives::eval(arrays.values())?; // the file is about to be written
    let dtype = arrays[tensor].dtype();
    arrays.insert(tensor.to_owned(), arrays[tensor].multiply(by)?.astype(dtype)?);
    mlx_primitives::eval(arrays.values())?;
    io::save_safetensors(&file, arrays.iter().map(|(name, a)| (name.as_str(), a)), [])?;
    Ok(Llama::load(folder.path())?)
}

#[test]
fn broken_weights_end_with_an_error() -> Checked {
    let good = Llama::load(root().join("llama-f32"))?;
    let half = Llama::load(root().join("mistral-f16"))?;
    for (llama, draft) in [
        (broken("llama-f32", "model.norm.weight", f32::NAN)?, &good),
        (broken("llama-f32", "model.layers.0.self_attn.k_proj.weight", f32::INFINITY)?, &good),
        (broken("mistral-f16", "model.layers.0.mlp.down_proj.weight", 1e6)?, &half),
    ] {
        let sampled = Sampling { temp: 0.8, ..Sampling::default() };
        let ways = [
            Options::default(),
            Options { sampling: sampled, ..Options::default() },
            Options {
                sampling: Sampling { top_k: 3, min_p: 0.1, ..sampled },
                ..Options::default()
            },
            Options { logprobs: Some(2), ..Options::default() },
            Options {
                penalties: Penalties { repetition: 1.3, ..Default::default() },
                ..Options::default()
            },
        ];
        let is_said = |said: &str| {
            assert!(said.contains("expected finite logits, got NaN or infinity"), "{said}");
        };
        for options in ways {
            let options = Options { max_tokens: 4, ..options };
            let mut generation = llama.generate(&[1, 2], &options)?;
            is_said(&message(generation.next_token()));
            assert_eq!(generation.next_token()?, None);
            let mut batch = llama.generate_batch(&[vec![1, 2], vec![3]], &options)?;
            is_said(&message(batch.next().unwrap()));
            let mut drafted = llama.generate(&[1, 2], &options)?.with_draft(draft, 2)?;
            is_said(&message(drafted.next_token()));
            // If the draft model is broken, generation is slower but its tokens do not change.
            if options.sampling.temp == 0.0 {
                let by_broken = draft.generate(&[1, 2], &options)?.with_draft(&llama, 2)?;
                let plain = draft.generate(&[1, 2], &options)?.collect::<Result<Vec<_>>>()?;
                assert_eq!(by_broken.collect::<Result<Vec<_>>>()?, plain);
            }
        }
        is_said(&message(llama.score(&[1, 2, 3], |_| {})));
    }
    Ok(())
}

/// A logits processor may forbid tokens with minus infinity, and force a token with infinity.
#[test]
fn processors_may_use_infinities() -> Checked {
    let llama = Llama::load(root().join("llama-f32"))?;
    let vocab = llama.config().vocab_size;
    let row = |other: f32| {
        let mut row = vec![other; vocab as usize];
        row[9] = f32::INFINITY;
        Array::from_slice(&row, [1, vocab])
    };
    let options = Options { max_tokens: 3, ..Options::default() };
    let forced = llama
        .generate(&[1], &options)?
        .with_logits_processor(move |_, logits| logits.add(row(0.0)?))?;
    assert_eq!(forced.collect::<Result<Vec<u32>>>()?, [9, 9, 9]);
    let mut none = llama
        .generate(&[1], &options)?
        .with_logits_processor(|_, logits| logits.add(f32::NEG_INFINITY))?;
    assert!(message(none.next_token()).contains("finite logits"));
    Ok(())
}

#[test]
fn rotating_caches_go_on_beyond_the_positions() -> Checked {
    let folder = changed("llama-f32", &json!({"max_position_embeddings": 24}))?;
    let llama = Llama::load(folder.path())?;
    // A model with these weights and more positions generates the same text.
    let longer = Llama::load(root().join("llama-f32"))?;
    let cache = CacheKind::Rotating { max_size: 16, keep: 4 };
    let count = if simulated() { 26 } else { 60 };
    let options = Options { max_tokens: count, cache, ..Options::default() };
    for prompt in [vec![1, 2], (0..50).collect::<Vec<u32>>()] {
        let tokens = |llama: &Llama| -> Result<Vec<Token>> {
            let mut generation = llama.generate(&prompt, &options)?;
            let mut all = Vec::new();
            while let Some(token) = generation.next_token()? {
                all.push(token);
            }
            Ok(all)
        };
        let all = tokens(&llama)?;
        assert_eq!(all.len(), count);
        assert_eq!(all, tokens(&longer)?);
    }
    // With another cache, the text ends when the positions are used up. A longer prompt is refused.
    let plain = Options { cache: CacheKind::Plain, ..options };
    let tokens: Vec<u32> = llama.generate(&[1, 2], &plain)?.collect::<Result<_>>()?;
    assert_eq!(tokens.len(), 23);
    let prompt: Vec<u32> = (0..50).collect();
    assert!(message(llama.generate(&prompt, &plain)).contains("1 to 24 tokens"));
    Ok(())
}
