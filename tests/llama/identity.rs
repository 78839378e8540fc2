//! A prompt cache belongs to one model. A model is identified by all of its tensors and its
//! adapters.

use std::path::Path;

use mlx_primitives::ops::Lora;
use mlx_primitives::{Array, Dtype, Result, io};
use mlx_primitives_llama::{Adapters, Llama, Options, PromptCache};

use crate::checkpoints::errors::copy;
use crate::support::models::checkpoints as root;
use crate::support::{Checked, message, simulated};

fn save_cache(llama: &Llama, path: &Path) -> Checked {
    let mut generation =
        llama.generate(&[1, 2, 3], &Options { max_tokens: 2, ..Options::default() })?;
    generation.by_ref().collect::<Result<Vec<_>>>()?;
    Ok(generation.into_prompt_cache()?.save(path)?)
}

/// Changes only the last element. A packed code changes by a single bit.
fn nudged(array: &Array) -> anyhow::Result<Array> {
    let flat = array.reshape(-1)?;
    let (kept, last) = (flat.slice_axis(0, ..-1)?, flat.slice_axis(0, -1..)?);
    let last = match array.dtype() {
        Dtype::Uint32 => Array::from_slice(&[last.item::<u32>()? ^ 1], [1])?,
        Dtype::Uint8 => Array::from_slice(&[last.item::<u8>()? ^ 1], [1])?,
        dtype => last.multiply(1.25f32)?.add(0.001f32)?.astype(dtype)?,
    };
    Ok(mlx_primitives::concatenate(&[&kept, &last], 0)?.reshape(array.shape())?)
}

#[test]
fn a_change_in_any_tensor_makes_another_model() -> Checked {
    let mut checked = 0;
    for name in ["qwen2-q4-g32", "qwen3-q8-g32", "llama-f16-mha-untied", "gemma-f32", "llama-mxfp4"]
    {
        if simulated() && name != "qwen2-q4-g32" {
            continue;
        }
        let parent = tempfile::tempdir()?;
        let cache = parent.path().join("cache.safetensors");
        let llama = Llama::load(root().join(name))?;
        save_cache(&llama, &cache)?;
        PromptCache::load(&cache, &Llama::load(root().join(name))?)?;
        PromptCache::load(&cache, &Llama::load_lazily(root().join(name))?)?;
        let tensors = io::load_safetensors(root().join(name).join("model.safetensors"))?.arrays;
        let mut names: Vec<&String> = tensors.keys().collect();
        names.sort();
        for changed in names {
            let folder = copy(name)?;
            let file = folder.path().join("model.safetensors");
            let mut arrays = io::load_safetensors(&file)?.arrays;
            mlx_primitives::eval(arrays.values())?; // the file is about to be written
            arrays.insert(changed.clone(), nudged(&arrays[changed])?);
            mlx_primitives::eval(arrays.values())?;
            io::save_safetensors(&file, arrays.iter().map(|(name, a)| (name.as_str(), a)), [])?;
            let said = message(PromptCache::load(&cache, &Llama::load(folder.path())?));
            assert!(said.contains("expected a cache of model"), "{name} {changed}: {said}");
            checked += 1;
        }
    }
    assert!(checked >= if simulated() { 20 } else { 100 }, "{checked}");
    Ok(())
}

#[test]
fn adapters_make_another_model() -> Checked {
    let load = || Llama::load(root().join("llama-f32"));
    let name = "model.layers.1.self_attn.v_proj".to_owned();
    let [outputs, inputs] = load()?.projection_shape(&name)?;
    let half = |rows: i32, columns: i32, step: f32| {
        let numbers = (0..rows * columns).map(|i| ((i * 7 % 23) as f32 - 11.0) * step);
        Array::from_slice(&numbers.collect::<Vec<_>>(), [rows, columns])
    };
    let adapters = |step: f32, scale: f32, at: &str| -> anyhow::Result<Adapters> {
        let update = Lora::new(half(2, inputs, 0.01)?, half(outputs, 2, step)?, scale)?;
        Ok([(at.to_owned(), update)].into_iter().collect())
    };
    let other_layer = name.replace('1', "0");
    let base = load()?;
    let variants = [
        base,
        load()?.adapted(&adapters(0.01, 2.0, &name)?)?,
        load()?.adapted(&adapters(0.02, 2.0, &name)?)?,
        load()?.adapted(&adapters(0.01, 3.0, &name)?)?,
        load()?.adapted(&adapters(0.01, 2.0, &other_layer)?)?,
        load()?.merged(&adapters(0.01, 2.0, &name)?)?,
    ];
    let parent = tempfile::tempdir()?;
    let path = parent.path().join("cache.safetensors");
    for (i, one) in variants.iter().enumerate() {
        save_cache(one, &path)?;
        for (j, other) in variants.iter().enumerate() {
            assert_eq!(PromptCache::load(&path, other).is_ok(), i == j, "{i} {j}");
        }
    }
    // Attach other adapters first, and then the adapters of `variants[1]` in their place. The model
    // has the identity of `variants[1]`.
    let again = load()?.adapted(&adapters(0.5, 1.0, &name)?)?;
    let again = again.adapted(&adapters(0.01, 2.0, &name)?)?;
    save_cache(&variants[1], &path)?;
    assert!(PromptCache::load(&path, &again).is_ok());
    Ok(())
}
