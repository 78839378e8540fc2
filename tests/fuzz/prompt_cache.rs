//! Fuzzes files of prompt caches for small models.

use std::fs;
use std::path::Path;

use mlx_primitives::Dtype;
use mlx_primitives_llama::{CacheKind, Config, Llama, Options, PromptCache};

use super::case::{Case, Fuzzer, Run};
use super::mutation::{self, once_in, one};

pub const FUZZER: Fuzzer = Fuzzer { name: "prompt_cache", allowance: 16 << 20, prepare };

const KINDS: [CacheKind; 4] = [
    CacheKind::Plain,
    CacheKind::Quantized { group_size: 32, bits: 4 },
    CacheKind::Rotating { max_size: 8, keep: 2 },
    CacheKind::Rotating { max_size: 4, keep: 0 },
];

/// A Llama with two layers and a vocabulary of 16 tokens.
pub fn model(dtype: Dtype) -> mlx_primitives::Result<Llama> {
    let config = r#"{"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2,
        "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
        "rms_norm_eps": 1e-5, "vocab_size": 16, "max_position_embeddings": 64}"#;
    Llama::random(Config::parse(config)?, dtype, None, 3)
}

/// A model with a sliding window of 5 positions. Its rotary frequencies depend on the length of the
/// text.
fn windowed() -> mlx_primitives::Result<Llama> {
    let config = r#"{"model_type": "mistral", "hidden_size": 32, "num_hidden_layers": 2,
        "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
        "rms_norm_eps": 1e-5, "vocab_size": 16, "max_position_embeddings": 64, "sliding_window": 5,
        "rope_scaling": {"type": "longrope", "short_factor": 1.0, "long_factor": 3.0,
        "original_max_position_embeddings": 7}}"#;
    Llama::random(Config::parse(config)?, Dtype::Float32, None, 4)
}

fn prepare(folder: &Path) -> anyhow::Result<Run> {
    let path = folder.join("cache.safetensors");
    let models = [model(Dtype::Float32)?, model(Dtype::Float16)?, windowed()?];
    let mut files = Vec::new();
    for (index, model) in models.iter().enumerate() {
        for kind in KINDS {
            for tokens in [1, 6] {
                let options = Options { max_tokens: tokens, cache: kind, ..Options::default() };
                let mut generation = model.generate(&[1, 2, 3], &options)?;
                generation.by_ref().collect::<mlx_primitives::Result<Vec<_>>>()?;
                generation.into_prompt_cache()?.save(&path)?;
                files.push((index, fs::read(&path)?));
            }
        }
    }
    Ok(Box::new(move |rng| {
        let (of, file) = one(rng, &files);
        let model = &models[if once_in(rng, 20) { (of + 1) % models.len() } else { *of }];
        let file = mutation::safetensors(rng, file);
        fs::write(&path, &file).expect("a file is written");
        let cache = PromptCache::load(&path, model);
        if let Ok(cache) = &cache {
            // The model must be able to continue from any cache that was accepted, whatever its
            // numbers are.
            let mut prompt = cache.tokens().to_vec();
            prompt.truncate(rng.usize(..=prompt.len()));
            prompt.push(5);
            let options = Options { max_tokens: 2, ..Options::default() };
            let generation = model.generate(&prompt, &options).expect("a prompt");
            let generation = generation.with_cache(cache.clone()).expect("a cache");
            let tokens: Result<Vec<u32>, _> = generation.collect();
            match tokens {
                Ok(tokens) => assert_eq!(tokens.len(), 2),
                Err(error) => assert!(error.to_string().contains("finite logits"), "{error}"),
            }
        }
        Case::new(file.len(), &cache)
    }))
}
