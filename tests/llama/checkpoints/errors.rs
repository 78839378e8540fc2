//! Errors about checkpoints. Each error names the file and the tensor, and is reported once.

use std::fs;
use std::path::Path;

use mlx_primitives::{Array, Dtype, io};
use mlx_primitives_llama::{Config, Llama};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::models::checkpoints as root;
use crate::support::{Checked, message};

/// Copies a fixture, so that a test can damage the copy.
pub fn copy(name: &str) -> anyhow::Result<TempDir> {
    let folder = TempDir::new()?;
    for entry in fs::read_dir(root().join(name))? {
        let entry = entry?;
        fs::copy(entry.path(), folder.path().join(entry.file_name()))?;
    }
    Ok(folder)
}

fn refused(path: &Path, file: &str, parts: &[&str]) {
    let said = message(Llama::load(path));
    assert!(said.contains(file), "{file}: {said}");
    for part in parts {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// A copy with changed tensors.
fn with_tensors(
    name: &str,
    change: impl FnOnce(&mut std::collections::HashMap<String, Array>),
) -> anyhow::Result<TempDir> {
    let folder = copy(name)?;
    let file = folder.path().join("model.safetensors");
    let mut arrays = io::load_safetensors(&file)?.arrays;
    mlx_primitives::eval(arrays.values())?; // the file is about to be written
    change(&mut arrays);
    io::save_safetensors(&file, arrays.iter().map(|(name, array)| (name.as_str(), array)), [])?;
    Ok(folder)
}

fn with_config(name: &str, change: impl FnOnce(&mut Value)) -> anyhow::Result<TempDir> {
    let folder = copy(name)?;
    let file = folder.path().join("config.json");
    let mut config = serde_json::from_str(&fs::read_to_string(&file)?)?;
    change(&mut config);
    fs::write(&file, config.to_string())?;
    Ok(folder)
}

#[test(simulated = once)]
fn tensors_that_are_not_what_the_config_says() -> Checked {
    let file = "model.safetensors";
    let down = "model.layers.0.mlp.down_proj.weight";
    let folder = with_tensors("llama-f32-biases", |all| drop(all.remove(down)))?;
    refused(folder.path(), file, &[down, "[64, 96]", "got none"]);

    let bias = "model.layers.0.self_attn.o_proj.bias";
    let folder = with_tensors("llama-f32-biases", |all| drop(all.remove(bias)))?;
    refused(folder.path(), file, &[bias, "[64]"]);

    let folder = with_config("llama-f32-biases", |config| config["mlp_bias"] = json!(false))?;
    refused(folder.path(), file, &["model.layers.0.mlp.down_proj.bias", "3 unused"]);

    let folder = with_tensors("llama-f32-biases", |all| {
        let turned = all[down].t().unwrap();
        all.insert(down.into(), turned);
    })?;
    refused(folder.path(), file, &[down, "[64, 96]", "[96, 64]"]);

    let folder = with_tensors("llama-f32-biases", |all| {
        let whole = all[down].astype(Dtype::Int32).unwrap();
        all.insert(down.into(), whole);
    })?;
    refused(folder.path(), file, &[down, "int32"]);

    let norm = "model.layers.0.self_attn.q_norm.weight";
    let folder = with_tensors("qwen3-f32", |all| drop(all.remove(norm)))?;
    refused(folder.path(), file, &[norm, "[32]"]);
    Ok(())
}

#[test(simulated = once)]
fn packed_tensors_that_do_not_fit() -> Checked {
    let file = "model.safetensors";
    let down = "model.layers.0.mlp.down_proj";
    for part in ["scales", "biases"] {
        let name = format!("{down}.{part}");
        let folder = with_tensors("llama-q4-g32-biases", |all| drop(all.remove(&name)))?;
        refused(folder.path(), file, &[down]);
        let folder = with_tensors("llama-q4-g32-biases", |all| {
            let short = all[&name].i(1..).unwrap();
            all.insert(name.clone(), short);
        })?;
        refused(folder.path(), file, &[down]);
    }
    // In these cases, the config says that packed weights are not packed, gives another format for
    // packed weights, or says that plain weights are packed.
    let folder = with_config("llama-q4-g32-biases", |config| {
        config["quantization"][down] = json!(false);
    })?;
    refused(folder.path(), file, &[down, "uint32"]);
    let folder = with_config("llama-q4-g32-biases", |config| {
        config["quantization"][down] = json!({"group_size": 64, "bits": 4});
    })?;
    refused(folder.path(), file, &[down]);
    let folder = with_config("llama-overrides", |config| {
        config["quantization"][down] = json!({"group_size": 64, "bits": 4});
    })?;
    refused(folder.path(), file, &[down, "scales"]);
    let folder = with_config("llama-q4-g32-biases", |config| {
        config.as_object_mut().unwrap().retain(|key, _| !key.starts_with("quantization"));
    })?;
    refused(folder.path(), file, &["model.embed_tokens.weight", "uint32"]);
    Ok(())
}

#[test(simulated = once)]
fn shards_that_do_not_fit() -> Checked {
    let second = "model-00002-of-00002.safetensors";
    let folder = copy("llama-bf16-sharded")?;
    fs::remove_file(folder.path().join(second))?;
    refused(folder.path(), second, &["No such file"]);

    // Copy one shard over the other. Each tensor is then in both files, and the error names both.
    let folder = copy("llama-bf16-sharded")?;
    let first = folder.path().join("model-00001-of-00002.safetensors");
    fs::copy(&first, folder.path().join(second))?;
    refused(
        folder.path(),
        second,
        &["model-00001-of-00002.safetensors", "each tensor in one file"],
    );

    let index = "model.safetensors.index.json";
    let folder = copy("llama-bf16-sharded")?;
    let file = folder.path().join(index);
    let whole: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
    let mut map = whole["weight_map"].as_object().unwrap().clone();
    map.insert("model.layers.7.mlp.down_proj.weight".into(), json!(second));
    fs::write(&file, json!({"weight_map": map}).to_string())?;
    refused(folder.path(), second, &["model.layers.7.mlp.down_proj.weight"]);
    for (spoilt, part) in [
        (json!({"weight_map": {"x": "../model.safetensors"}}), "../model.safetensors"),
        (json!({"weight_map": {"x": "/etc/passwd"}}), "/etc/passwd"),
        (json!({"weight_map": {"x": ".."}}), ".."),
        (json!({"weight_map": {}}), "got none"),
        (json!({"weight_map": 3}), "weight_map"),
        (json!({}), "weight_map"),
    ] {
        fs::write(&file, spoilt.to_string())?;
        refused(folder.path(), index, &[part]);
    }
    // If there is no index, all safetensors files are loaded.
    fs::remove_file(&file)?;
    Llama::load(folder.path())?;
    Ok(())
}

#[test(simulated = once)]
fn configs_that_cannot_run() -> Checked {
    let with =
        |change: &dyn Fn(&mut Value)| with_config("llama-f32-sliding", |config| change(config));
    for (key, value, part) in [
        ("model_type", json!("mamba"), "llama, mistral, qwen2, qwen3, gemma, got mamba"),
        ("model_type", json!(null), "model_type, got none"),
        ("model_type", json!(7), "model_type"),
        ("sliding_window", json!(0), "sliding_window above 0"),
        ("sliding_window", json!(null), "sliding_window"),
        ("layer_types", json!(["full_attention"]), "as many layer_types"),
        ("head_dim", json!(1 << 20), "head_dim of at most"),
        ("num_attention_heads", json!(1 << 24), "an even head_dim"),
        ("num_attention_heads", json!(1 << 25), "num_attention_heads"),
        ("rms_norm_eps", json!(1e308), "rms_norm_eps"),
        ("quantization", json!(4), "quantization"),
        ("quantization", json!({"bits": 4}), "group_size and bits"),
        ("quantization", json!({"bits": 8, "group_size": 32, "mode": "mxfp4"}), "mode mxfp4"),
        ("quantization_config", json!({"quant_method": "awq", "bits": 4}), "quant_method"),
    ] {
        let folder = with(&|config| config[key] = value.clone())?;
        let said = message(Llama::load(folder.path()));
        assert!(said.contains("config.json") && said.contains(part), "{key} {value}: {said}");
    }
    let nan = with(&|_| {})?;
    let file = nan.path().join("config.json");
    let text = fs::read_to_string(&file)?.replace("10000.0", "NaN");
    fs::write(&file, text)?;
    refused(nan.path(), "config.json", &["[config] expected"]);
    Ok(())
}

/// Other programs write some keys of `config.json` differently.
#[test(simulated = once)]
fn configs_with_other_wording() -> Checked {
    let text = fs::read_to_string(root().join("llama-f16-llama3/config.json"))?;
    let base: Value = serde_json::from_str(&text)?;
    let periods = |config: &Value| -> anyhow::Result<Vec<f32>> {
        Ok(Config::parse(&config.to_string())?.rope_frequencies()?.values(1))
    };
    // transformers 5 writes the settings of the rotary embedding as a nested object.
    let mut nested = base.clone();
    let map = nested.as_object_mut().unwrap();
    let mut inner = map.remove("rope_scaling").unwrap();
    inner["rope_theta"] = map.remove("rope_theta").unwrap();
    map.insert("rope_parameters".into(), inner);
    assert_eq!(periods(&nested)?, periods(&base)?);
    nested["rope_parameters"] = json!({"rope_type": "default", "rope_theta": 5e5});
    assert_ne!(periods(&nested)?, periods(&base)?);

    let mut packed = base.clone();
    packed["quantization_config"] = json!({"quant_method": "mxfp4"});
    let mxfp4 = Config::parse(&packed.to_string())?.quantization_of("")?.unwrap();
    assert_eq!((mxfp4.group_size, mxfp4.bits), (32, 4));
    packed["quantization_config"] = json!({"group_size": 128, "bits": 3});
    let affine = Config::parse(&packed.to_string())?.quantization_of("")?.unwrap();
    assert_eq!((affine.group_size, affine.bits), (128, 3));
    // A null means the same as a missing key.
    let mut nulls = base.clone();
    for key in ["quantization", "head_dim", "rope_theta", "layer_types", "sliding_window"] {
        nulls[key] = json!(null);
    }
    assert_eq!(periods(&nulls)?, periods(&base)?);
    Ok(())
}
