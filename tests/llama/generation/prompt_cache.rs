//! Prompt caches in memory and in files. A cache does not change any token. Only the model that
//! made a cache can use it.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use mlx_primitives::{Array, Dtype, io};
use mlx_primitives_llama::{Cache, CacheKind, Checkpoint, Options, PromptCache, Quantization};
use serde_json::json;

use super::{PROMPTS, encoded, ids, long_prompt, options, plain};
use crate::support::models::variant;
use crate::support::{Checked, message, simulated};

const KINDS: [CacheKind; 4] = [
    CacheKind::Plain,
    CacheKind::Quantized { group_size: 32, bits: 8 },
    CacheKind::Quantized { group_size: 32, bits: 3 },
    CacheKind::Rotating { max_size: 200, keep: 4 },
];

/// The cache after generating from a prompt.
fn filled(checkpoint: &Checkpoint, prompt: &[u32], options: &Options) -> PromptCache {
    let mut generation = checkpoint.generate(prompt, options).unwrap();
    ids(&mut generation);
    generation.into_prompt_cache().unwrap()
}

#[test(simulated = once)]
fn caches_of_every_kind_load_from_files() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("prompt.safetensors");
    let prompt = long_prompt(&checkpoint);
    let half = Options { max_tokens: 3, ..options() };
    for kind in KINDS {
        let options = Options { cache: kind, ..options() };
        let expected = ids(&mut checkpoint.generate(&prompt, &options)?);
        let cache = filled(&checkpoint, &prompt, &Options { cache: kind, ..half.clone() });
        // The model has not run the last generated token, so the cache does not contain it.
        assert_eq!(cache.tokens(), [&prompt[..], &expected[..2]].concat());
        cache.save(&path)?;
        let cache = PromptCache::load(&path, &checkpoint.llama)?;
        assert!(cache.is_of(kind, &checkpoint.llama)?);
        let other = CacheKind::Quantized { group_size: 32, bits: 5 };
        assert!(!cache.is_of(other, &checkpoint.llama)?);

        // Use the cache for the same prompt, all of whose tokens but the last are cached. Then use
        // it for a longer prompt, and for prompts that differ from some token on.
        let mut again = checkpoint.generate(&prompt, &options)?.with_cache(cache.clone())?;
        assert_eq!(ids(&mut again), expected, "{kind:?}");
        assert_eq!(again.statistics().cached_tokens, prompt.len() - 1);
        let longer = [&prompt[..], &expected[..3]].concat();
        let rest = Options { max_tokens: options.max_tokens - 3, ..options.clone() };
        let mut more = checkpoint.generate(&longer, &rest)?.with_cache(cache.clone())?;
        assert_eq!(ids(&mut more), expected[3..], "{kind:?}");
        assert_eq!(more.statistics().cached_tokens, longer.len() - 1);
        let mut other = prompt.clone();
        other[prompt.len() / 2] ^= 1;
        for other in [other, encoded(&checkpoint, PROMPTS[3])] {
            let alone = ids(&mut checkpoint.generate(&other, &options)?);
            let mut cached = checkpoint.generate(&other, &options)?.with_cache(cache.clone())?;
            assert_eq!(ids(&mut cached), alone, "{kind:?}");
            assert!(cached.statistics().cached_tokens < other.len());
        }
    }
    let files: Vec<_> = fs::read_dir(directory.path())?.collect();
    assert_eq!(files.len(), 1, "only the file itself is left");
    Ok(())
}

/// A full rotating cache cannot restore the positions that it has dropped. If they are needed, the
/// whole prompt runs again.
#[test(simulated = once)]
fn full_rotating_caches_go_on_or_start_anew() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("prompt.safetensors");
    let prompt = encoded(&checkpoint, PROMPTS[2]);
    for (max_size, prefill_step) in [(8, 512), (8, 3), (24, 512), (6, 2)] {
        let cache = CacheKind::Rotating { max_size, keep: 2 };
        let options = Options { cache, prefill_step, max_tokens: 20, ..Options::default() };
        let expected = ids(&mut checkpoint.llama.generate(&prompt, &options)?);
        for taken in if simulated() { vec![9] } else { (0..19).collect() } {
            let mut generation = checkpoint.llama.generate(&prompt, &options)?;
            for token in generation.by_ref().take(taken) {
                token?;
            }
            generation.into_prompt_cache()?.save(&path)?;
            let cache = PromptCache::load(&path, &checkpoint.llama)?;
            // If a prompt extends the cached tokens, generation continues as if the cache had not
            // been saved.
            let longer = [&prompt[..], &expected[..=taken]].concat();
            let rest = Options { max_tokens: 19 - taken, ..options.clone() };
            let mut rest = checkpoint.llama.generate(&longer, &rest)?.with_cache(cache.clone())?;
            let cached = rest.statistics().cached_tokens;
            assert_eq!(cached, if taken == 0 { 0 } else { longer.len() - 1 });
            if taken > 0 {
                assert_eq!(ids(&mut rest), expected[taken + 1..], "{max_size}, after {taken}");
            }
            let mut again = checkpoint.llama.generate(&prompt, &options)?.with_cache(cache)?;
            let cached = again.statistics().cached_tokens;
            assert!(cached == 0 || cached == prompt.len() - 1, "{cached}");
            assert_eq!(ids(&mut again), expected, "{max_size}, anew after {taken}");
        }
    }
    Ok(())
}

#[test(simulated = once)]
fn positions_are_taken_back() -> Checked {
    let llama = Checkpoint::demo()?.llama;
    let tokens: Vec<u32> = (0..12).map(|i| (i * 37 + 11) % 512).collect();
    let input = |tokens: &[u32]| Array::from_slice(tokens, [1, tokens.len() as i32]);
    let next = |cache: &mut Cache| -> anyhow::Result<Vec<f32>> {
        Ok(llama.forward(&input(&[7])?, cache)?.to_vec::<f32>()?)
    };
    for kind in KINDS {
        let mut cache = llama.new_cache_of(kind)?;
        let _ = llama.forward(&input(&tokens)?, &mut cache)?;
        let mut copy = cache.clone();
        copy.trim(5)?;
        let mut short = llama.new_cache_of(kind)?;
        let _ = llama.forward(&input(&tokens[..7])?, &mut short)?;
        assert_eq!((copy.len(), short.len()), (7, 7));
        let (got, expected) = (next(&mut copy)?, next(&mut short)?);
        // Steps of different lengths computed the keys and values, so their sums have different
        // orders.
        let worst = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let bound = if matches!(kind, CacheKind::Quantized { .. }) { 0.5 } else { 1e-3 };
        assert!(worst < bound, "{kind:?}: {worst}");
        assert!(cache.can_trim(12) && !cache.can_trim(13) && !cache.can_trim(-1));
        cache.trim(12)?;
        assert!(cache.is_empty());
        assert!(message(cache.trim(1)).contains("at most its 0 positions"));
    }
    let mut full = llama.new_cache_of(CacheKind::Rotating { max_size: 8, keep: 0 })?;
    let _ = llama.forward(&input(&tokens[..7])?, &mut full)?;
    assert!(full.can_trim(3) && full.forgets());
    let _ = llama.forward(&input(&tokens[7..8])?, &mut full)?;
    assert!(!full.can_trim(1) && full.can_trim(0));
    Ok(())
}

#[test(simulated = once)]
fn other_models_caches_are_refused() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("prompt.safetensors");
    let prompt = encoded(&checkpoint, PROMPTS[0]);
    let cache = filled(&checkpoint, &prompt, &options());
    cache.save(&path)?;
    let half = variant(Dtype::Float16, |_, _| {});
    let other = |llama: &mlx_primitives_llama::Llama| {
        let text = message(PromptCache::load(&path, llama));
        assert!(text.contains("prompt.safetensors"), "{text}");
        assert!(text.contains("[prompt_cache] expected a cache of model llama-"), "{text}");
        let refused = llama.generate(&prompt, &options()).unwrap().with_cache(cache.clone());
        assert!(message(refused).contains("a cache of model llama-"));
    };
    other(&Checkpoint::load(half.path())?.llama);
    other(&checkpoint.llama.quantized(Quantization::affine(32, 8))?);
    // Another model with the same shapes. One projection is slightly changed, as by fine-tuning.
    let tuned = variant(Dtype::Float32, |_, _| {});
    let file = tuned.path().join("model.safetensors");
    let arrays = io::load_safetensors(&file)?.arrays;
    let nudged = |name: &str, a: &Array| {
        if name.contains("2.mlp.up_proj") { a.multiply(1.001f32) } else { a.add(0.0f32) }
    };
    let arrays: Vec<(String, Array)> = arrays
        .iter()
        .map(|(name, a)| Ok((name.clone(), nudged(name, a)?)))
        .collect::<anyhow::Result<_>>()?;
    io::save_safetensors(&file, arrays.iter().map(|(name, a)| (name.as_str(), a)), [])?;
    other(&Checkpoint::load(tuned.path())?.llama);
    // Loading the same model again gives a model that accepts the cache.
    assert!(PromptCache::load(&path, &Checkpoint::demo()?.llama).is_ok());
    let mut begun = checkpoint.generate(&prompt, &options())?;
    begun.next_token()?;
    assert!(message(begun.with_cache(cache)).contains("before the first token"));
    Ok(())
}

/// Reads a cache's file, changes its arrays and metadata, and writes it to another path.
fn rewritten(
    from: &Path,
    to: &Path,
    change: impl Fn(&mut HashMap<String, Array>, &mut HashMap<String, String>),
) -> Checked {
    let mut tensors = io::load_safetensors(from)?;
    change(&mut tensors.arrays, &mut tensors.metadata);
    let arrays: Vec<(String, Array)> = tensors
        .arrays
        .iter()
        .map(|(name, array)| Ok((name.clone(), array.contiguous()?)))
        .collect::<anyhow::Result<_>>()?;
    let metadata = tensors.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str()));
    io::save_safetensors(to, arrays.iter().map(|(name, a)| (name.as_str(), a)), metadata)?;
    Ok(())
}

#[test(simulated = once)]
fn files_without_a_cache_are_refused() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("prompt.safetensors");
    let bad = directory.path().join("bad.safetensors");
    let prompt = encoded(&checkpoint, PROMPTS[0]);
    let refused = |said: &str| {
        let text = message(PromptCache::load(&bad, &checkpoint.llama));
        assert!(text.contains("bad.safetensors") && text.contains(said), "{said}: {text}");
    };
    refused("No such file");
    for (kind, part) in [(KINDS[0], "keys"), (KINDS[1], "packed"), (KINDS[3], "values")] {
        filled(&checkpoint, &prompt, &Options { cache: kind, ..options() }).save(&path)?;
        let layers = |edit: fn(&mut serde_json::Value)| {
            let path = path.clone();
            let bad = bad.clone();
            rewritten(&path, &bad, move |_, metadata| {
                let mut layers = serde_json::from_str(&metadata["layers"]).unwrap();
                edit(&mut layers);
                metadata.insert("layers".to_owned(), layers.to_string());
            })
        };
        rewritten(&path, &bad, |_, _| {})?;
        assert!(PromptCache::load(&bad, &checkpoint.llama).is_ok());
        rewritten(&path, &bad, |_, metadata| metadata.clear())?;
        refused("of format");
        rewritten(&path, &bad, |_, m| _ = m.insert("layers".to_owned(), "[".to_owned()))?;
        refused("layers in JSON");
        for text in ["", "-1", "many"] {
            rewritten(&path, &bad, |_, m| _ = m.insert("text".to_owned(), text.to_owned()))?;
            refused("the length of the text");
        }
        let name = format!("layers.2.{part}");
        rewritten(&path, &bad, |arrays, _| _ = arrays.remove(&name))?;
        refused(&format!("a tensor {name}, got none"));
        rewritten(&path, &bad, |arrays, _| {
            let half = arrays[&name].slice_axis(2, 1..).unwrap();
            arrays.insert(name.clone(), half);
        })?;
        refused(&format!("{name} of shape"));
        rewritten(&path, &bad, |arrays, _| {
            let other = arrays[&name].astype(Dtype::Float16).unwrap();
            arrays.insert(name.clone(), other);
        })?;
        refused(&format!("{name} of shape"));
        rewritten(&path, &bad, |arrays, _| _ = arrays.remove("tokens"))?;
        refused("tokens, got 0");
        rewritten(&path, &bad, |arrays, _| {
            let unknown = arrays["tokens"].add(600).unwrap();
            arrays.insert("tokens".to_owned(), unknown);
        })?;
        refused("tokens below 512");
        rewritten(&path, &bad, |arrays, _| {
            let text = arrays["tokens"].astype(Dtype::Float32).unwrap();
            arrays.insert("tokens".to_owned(), text);
        })?;
        refused("");
        layers(|layers| _ = layers.as_array_mut().unwrap().pop())?;
        refused("4 layers, got 3");
        layers(|layers| layers[1] = json!({"kind": "other"}))?;
        refused("a known kind");
        layers(|layers| layers[1]["len"] = json!(-1))?;
        refused("a number len");
        layers(|layers| layers[1]["len"] = json!(2.5))?;
        refused("a number len");
        layers(|layers| layers[3]["len"] = json!(0))?;
        refused("positions in all layers, got 0");
        layers(|layers| layers[0]["len"] = json!(1 << 29))?;
        refused("");
        layers(|layers| {
            layers[0] = json!({"kind": "quantized", "group_size": 5, "bits": 4, "len": 1})
        })?;
        refused("groups of 32");
        layers(|layers| {
            layers[0] = json!({"kind": "quantized", "group_size": 128, "bits": 4, "len": 1})
        })?;
        refused("divide 32");
        layers(|layers| {
            layers[0] = json!({"kind": "rotating", "max_size": 4, "keep": 9, "len": 1})
        })?;
        refused("keep below it");
        layers(|layers| layers[0]["next"] = json!(1 << 29))?;
        let text = PromptCache::load(&bad, &checkpoint.llama).err().map(|e| e.to_string());
        assert_eq!(text.is_some(), kind == KINDS[3], "slots are a rotating cache's: {text:?}");
    }
    let bytes = fs::read(&path)?;
    for length in [0, 7, 100, bytes.len() - 1] {
        fs::write(&bad, &bytes[..length])?;
        refused("");
    }
    let cache = filled(&checkpoint, &prompt, &options());
    assert!(
        message(cache.save(directory.path().join("cache.bin"))).contains("ends in .safetensors")
    );
    assert!(message(cache.save(directory.path().join("no/cache.safetensors"))).contains("cache"));
    assert_eq!(
        plain(&checkpoint, &prompt),
        ids(&mut checkpoint.generate(&prompt, &options())?.with_cache(cache)?)
    );
    Ok(())
}
