//! The memory that loading a model takes, the progress that it reports, lazy loading, and caches of
//! a model with sliding windows.

use std::fs;
use std::path::Path;

use mlx_primitives::{Array, Dtype, io, random};
use mlx_primitives_llama::{Config, Llama, base::Progress};
use serde_json::json;
use tempfile::TempDir;

use super::corrupt::{memory, reset_peak};
use super::{load, tokens};
use crate::support::models::checkpoints as root;
use crate::support::{Checked, in_another_process, simulated};

const CHILD: &str = "MLX_PRIMITIVES_LOAD_CHILD";

/// Writes a model of about 40 MB of float16 in eight layers.
fn large(folder: &Path) -> anyhow::Result<u64> {
    let config = json!({
        "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 8,
        "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5, "vocab_size": 1024, "tie_word_embeddings": true,
    });
    fs::write(folder.join("config.json"), config.to_string())?;
    let mut tensors: Vec<(String, Array)> = Vec::new();
    let mut add = |name: String, shape: &[i32]| -> anyhow::Result<()> {
        let noise = random::normal::<f32>(shape, None)?.multiply(0.05)?;
        tensors.push((name, noise.astype(Dtype::Float16)?));
        Ok(())
    };
    add("model.embed_tokens.weight".into(), &[1024, 512])?;
    add("model.norm.weight".into(), &[512])?;
    for layer in 0..8 {
        for (name, rows, columns) in [
            ("self_attn.q_proj", 512, 512),
            ("self_attn.k_proj", 256, 512),
            ("self_attn.v_proj", 256, 512),
            ("self_attn.o_proj", 512, 512),
            ("mlp.gate_proj", 1024, 512),
            ("mlp.up_proj", 1024, 512),
            ("mlp.down_proj", 512, 1024),
        ] {
            add(format!("model.layers.{layer}.{name}.weight"), &[rows, columns])?;
        }
        for name in ["input_layernorm", "post_attention_layernorm"] {
            add(format!("model.layers.{layer}.{name}.weight"), &[512])?;
        }
    }
    let file = folder.join("model.safetensors");
    io::save_safetensors(&file, tensors.iter().map(|(name, a)| (name.as_str(), a)), [])?;
    Ok(fs::metadata(file)?.len())
}

/// The loader reads weights layer by layer. So in addition to the weights, only the current layer
/// and its joined matrices take memory.
#[test(simulated = once)]
fn loading_takes_little_more_than_the_weights() -> Checked {
    if simulated() {
        return Ok(()); // runs no kernel
    }
    if let Some(folder) = std::env::var_os(CHILD) {
        return load_large(Path::new(&folder));
    }
    let folder = TempDir::new()?;
    large(folder.path())?;
    let test = "checkpoints::progress::loading_takes_little_more_than_the_weights";
    let said = in_another_process(test, |child| child.env(CHILD, folder.path()))?;
    eprintln!("{}", said.lines().find(|line| line.contains(" times ")).unwrap_or_default());
    Ok(())
}

fn load_large(folder: &Path) -> Checked {
    let file = folder.join("model.safetensors");
    let size = fs::metadata(&file)?.len() as f64;
    Array::ones::<f32>(&[4])?.eval()?; // starts the runtime
    // Loading a broken file takes no more memory than loading a good one, wherever the error is.
    let whole = fs::read(&file)?;
    let length = u64::from_le_bytes(whole[..8].try_into()?) as usize;
    for (what, from, to) in [
        ("a shape", "[512,1024]", "[1024,512]"),
        ("a type", "\"F16\"", "\"I16\""),
        ("a name", "model.layers.7.mlp.up_proj", "model.layers.7.mlp.up_pro_"),
    ] {
        let header = std::str::from_utf8(&whole[8..8 + length])?;
        let spoilt = header.replace(from, to);
        assert!(spoilt != header && spoilt.len() == header.len(), "{what}");
        let bad = TempDir::new()?;
        fs::copy(folder.join("config.json"), bad.path().join("config.json"))?;
        let bytes = [&whole[..8], spoilt.as_bytes(), &whole[8 + length..]].concat();
        fs::write(bad.path().join("model.safetensors"), bytes)?;
        let before = memory("VmRSS:");
        reset_peak();
        assert!(Llama::load(bad.path()).is_err(), "{what}");
        let taken = memory("VmHWM:").saturating_sub(before) as f64;
        assert!(taken < 2.0 * size, "{what}: {taken} bytes for {size}");
    }
    drop(whole);

    mlx_primitives::memory::clear_cache()?;
    mlx_primitives::memory::reset_peak_memory();
    let active = mlx_primitives::memory::active_memory();
    let before = memory("VmRSS:");
    reset_peak();
    let llama = Llama::load(folder)?;
    let resident = memory("VmHWM:").saturating_sub(before) as f64;
    let arrays = (mlx_primitives::memory::peak_memory() - active) as f64;
    let weights = llama.nbytes() as f64;
    eprintln!(
        "loading {weights} bytes of weights took {:.2} times as much in arrays, {:.2} times resident",
        arrays / weights,
        resident / weights
    );
    // In addition to all weights, loading takes the size of one of the eight layers, and of its
    // queries', keys' and values' matrices once more.
    assert!(arrays < 1.2 * weights, "{arrays} for {weights}");
    assert!(resident < 1.6 * weights, "{resident} for {weights}");
    Ok(())
}

#[test(simulated = once)]
fn progress_is_reported_layer_by_layer() -> Checked {
    let mut told = Vec::new();
    let llama = Llama::load_with(root().join("llama-q2-g32"), |progress| told.push(progress))?;
    let total = llama.nbytes() as u64;
    assert_eq!(told.len(), 2 + llama.config().num_hidden_layers as usize + 1, "{told:?}");
    assert_eq!(told.first(), Some(&Progress { done: 0, total }));
    assert_eq!(told.last(), Some(&Progress { done: total, total }));
    assert!(told.windows(2).all(|pair| pair[0].done < pair[1].done), "{told:?}");
    Ok(())
}

#[test(simulated = once)]
fn lazy_models_are_equal() -> Checked {
    let name = "llama-f32-biases";
    let (read, unread) = (load(name)?, Llama::load_lazily(root().join(name))?);
    let ids = tokens(&[1, 2, 3, 4])?;
    let [a, b] = [&read, &unread].map(|llama| -> anyhow::Result<Vec<f32>> {
        Ok(llama.forward(&ids, &mut llama.new_cache())?.to_vec::<f32>()?)
    });
    assert_eq!(a?, b?);
    Ok(())
}

/// Each layer gets the kind of cache that suits its attention. The memory estimate counts these
/// caches.
#[test(simulated = once)]
fn sliding_layers_keep_their_window() -> Checked {
    let llama = load("llama-f32-sliding")?;
    let ids: Vec<u32> = (0..40).map(|i| i * 7 % 128).collect();
    let mut cache = llama.new_cache();
    llama.forward(&tokens(&ids)?, &mut cache)?.eval()?;
    llama.forward(&tokens(&[5])?, &mut cache)?.eval()?;
    assert_eq!(cache.len(), 41);
    let rows: Vec<i32> = cache.arrays().map(|state| state.shape()[1]).collect();
    assert!(rows.len() == 2 && rows[1] < rows[0] && rows[0] > 2 * 256, "{rows:?}");
    let quantized = mlx_primitives_llama::CacheKind::Quantized { group_size: 32, bits: 8 };
    assert!(llama.new_cache_of(quantized).is_err(), "heads of 16 features");
    let text = fs::read_to_string(root().join("llama-f32-sliding/config.json"))?;
    let estimate = |text: &str| -> anyhow::Result<u64> {
        let plain = mlx_primitives_llama::CacheKind::Plain;
        let config = Config::parse(text)?;
        Ok(mlx_primitives_llama::estimate(&config, Dtype::Float32, None, plain, 1, 256)?.cache)
    };
    let full = text.replace("sliding_attention", "full_attention");
    assert!(estimate(&text)? < estimate(&full)?);
    Ok(())
}
