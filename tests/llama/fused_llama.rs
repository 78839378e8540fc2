//! The Llama model with fused ops: packed weights, key/value caches of every kind, and adapters.

use mlx_primitives::ops::{Lora, QuantizedMode, QuantizedWeight};
use mlx_primitives::{Array, Dtype, Error, io, random};
use mlx_primitives_llama::{Adapters, CacheKind, Checkpoint, Options, Quantization};
use serde_json::json;

use crate::llama::greedy;
use crate::support::models::variant;

/// A checkpoint of packed weights in mlx-lm's format generates the same tokens as a model that is
/// packed after it was loaded.
#[test(simulated = once)]
fn packed_checkpoints_load() -> anyhow::Result<()> {
    let format = json!({"group_size": 32, "bits": 4});
    let directory = variant(Dtype::Float32, |name, json| {
        if name == "config.json" {
            json["quantization"] = format.clone();
        }
    });
    let file = directory.path().join("model.safetensors");
    let mut packed = Vec::new();
    for (name, array) in io::load_safetensors(&file)?.arrays {
        let Some(path) = name.strip_suffix(".weight").filter(|_| array.ndim() == 2) else {
            packed.push((name, array));
            continue;
        };
        let weight = QuantizedWeight::quantize(&array, 32, 4, QuantizedMode::Affine)?;
        packed.push((format!("{path}.weight"), weight.packed().clone()));
        packed.push((format!("{path}.scales"), weight.scales().clone()));
        packed.push((format!("{path}.biases"), weight.biases().unwrap().clone()));
    }
    io::save_safetensors(&file, packed.iter().map(|(name, a)| (name.as_str(), a)), [])?;
    let loaded = Checkpoint::load(directory.path())?;
    let same = Checkpoint::demo()?.llama.quantized(Quantization::affine(32, 4))?;
    assert_eq!(loaded.llama.nbytes(), same.nbytes());
    let prompt = loaded.tokenizer.encode("Once upon a time")?;
    let options = Options { max_tokens: 24, ..Options::default() };
    let [ours, theirs] = [&loaded.llama, &same]
        .map(|llama| -> Result<Vec<u32>, Error> { llama.generate(&prompt, &options)?.collect() });
    assert_eq!(ours?, theirs?);
    Ok(())
}

/// Generates with every kind of cache. Attention reads the storage of each cache directly.
#[test(simulated = once)]
fn caches_of_every_kind_generate() -> anyhow::Result<()> {
    let checkpoint = Checkpoint::demo()?;
    let prompt = checkpoint.tokenizer.encode("Once upon a time")?;
    let plain = greedy(&checkpoint, &prompt, 40);
    for cache in [
        CacheKind::Quantized { group_size: 32, bits: 8 },
        CacheKind::Rotating { max_size: 128, keep: 4 },
    ] {
        let options = Options { max_tokens: 40, cache, ..Options::default() };
        let tokens: Result<Vec<u32>, Error> = checkpoint.generate(&prompt, &options)?.collect();
        assert_eq!(tokens?, plain, "{cache:?}");
    }
    Ok(())
}

#[test(simulated = once)]
fn adapters_change_what_they_name_and_merge() -> anyhow::Result<()> {
    let llama = Checkpoint::demo()?.llama;
    let tokens = Array::from_slice(&[423u32, 17, 99, 240], [1, 4])?;
    for name in ["self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj"] {
        let name = format!("model.layers.1.{name}");
        let [outputs, inputs] = llama.projection_shape(&name)?;
        let a = random::normal::<f32>(&[2, inputs], None)?.multiply(0.1)?;
        let b = random::normal::<f32>(&[outputs, 2], None)?.multiply(0.1)?;
        let adapters: Adapters = [(name.clone(), Lora::new(a, b, 0.5)?)].into_iter().collect();
        let mut caches = [llama.new_cache(), llama.new_cache(), llama.new_cache()];
        let base = llama.forward(&tokens, &mut caches[0])?;
        let beside = llama.forward_adapted(&tokens, &mut caches[1], Some(&adapters))?;
        let merged = llama.merged(&adapters)?.forward(&tokens, &mut caches[2])?;
        let apart = |x: &Array, y: &Array| -> anyhow::Result<f32> {
            Ok(x.subtract(y)?.abs()?.max(..)?.item::<f32>()?)
        };
        assert!(apart(&beside, &base)? > 1e-3, "{name}");
        assert!(apart(&beside, &merged)? < 1e-4, "{name}: {}", apart(&beside, &merged)?);
    }
    let unknown: Adapters =
        [("model.layers.9.mlp".to_owned(), Lora::initial([4, 4], 2, 1.0)?)].into_iter().collect();
    assert!(llama.merged(&unknown).is_err());
    Ok(())
}
