//! Adapters in PEFT's files have the same effect as in mlx-lm's files, or are refused with an error
//! that names the reason.

use std::fs;
use std::path::Path;

use mlx_primitives::{Array, Dtype, Result, io};
use mlx_primitives_llama::{Adapters, Checkpoint, Llama, ModelFiles};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::checkpoints::apart;
use crate::support::compare::numbers;
use crate::support::models::DEMO;
use crate::support::{Checked, message};

type Change<'a> = dyn Fn(&mut Value, &mut Vec<(String, Array)>) + 'a;

const ADAPTERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/adapters");

/// Writes the fixture's low-rank updates in PEFT's format. The rank and the scale come from
/// mlx-lm's configuration.
fn written(change: impl FnOnce(&mut Value, &mut Vec<(String, Array)>)) -> anyhow::Result<TempDir> {
    let mlx: Value = serde_json::from_str(&fs::read_to_string(
        Path::new(ADAPTERS).join("adapter_config.json"),
    )?)?;
    let rank = mlx["lora_parameters"]["rank"].as_f64().unwrap();
    let scale = mlx["lora_parameters"]["scale"].as_f64().unwrap();
    let mut config = json!({
        "peft_type": "LORA", "r": rank as i64, "lora_alpha": scale * rank, "bias": "none",
        "lora_dropout": 0.05, "use_rslora": false, "use_dora": false, "fan_in_fan_out": false,
        "modules_to_save": null, "rank_pattern": {}, "alpha_pattern": {}, "task_type": "CAUSAL_LM",
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"],
    });
    let mut tensors = Vec::new();
    for (name, array) in
        io::load_safetensors(Path::new(ADAPTERS).join("adapters.safetensors"))?.arrays
    {
        let name = name.replace(".lora_a", ".lora_A.weight").replace(".lora_b", ".lora_B.weight");
        tensors.push((format!("base_model.model.{name}"), array.t()?.contiguous()?));
    }
    tensors.sort_by(|one, other| one.0.cmp(&other.0));
    change(&mut config, &mut tensors);
    let folder = TempDir::new()?;
    fs::write(folder.path().join("adapter_config.json"), config.to_string())?;
    let named = tensors.iter().map(|(name, array)| (name.as_str(), array));
    io::save_safetensors(folder.path().join("adapter_model.safetensors"), named, [])?;
    Ok(folder)
}

fn logits(llama: &Llama) -> Result<Vec<f64>> {
    let tokens = Array::from_slice(&[3u32, 141, 59, 26, 5], [1, 5])?;
    numbers(&llama.forward(&tokens, &mut llama.new_cache())?)
}

fn with(folder: &Path) -> Result<Vec<f64>> {
    let llama = Checkpoint::demo()?.llama;
    let adapters = Adapters::load(folder, &llama)?;
    logits(&llama.adapted(&adapters)?)
}

#[test]
fn peft_adapters_are_the_same_updates() -> Checked {
    let want = with(Path::new(ADAPTERS))?;
    let plain = logits(&Checkpoint::demo()?.llama)?;
    assert!(apart(&plain, &want) > 0.1);
    let rank = |config: &Value| config["r"].as_f64().unwrap();
    let alpha = |config: &Value| config["lora_alpha"].as_f64().unwrap();
    let same: [(&str, Box<Change<'_>>); 7] = [
        ("as written", Box::new(|_, _| {})),
        (
            "rslora",
            Box::new(move |config, _| {
                config["lora_alpha"] = json!(alpha(config) / rank(config).sqrt());
                config["use_rslora"] = json!(true);
            }),
        ),
        (
            "patterns",
            Box::new(move |config, _| {
                // The first pattern that matches a module's name counts. A pattern must not begin
                // to match in the middle of a part of a name (parts are separated by dots).
                config["alpha_pattern"] = json!({
                    "roj": 99, "proj": 99, r"layers\.\d+\.self_attn\.[qkvo]_proj": alpha(config),
                    "mlp.down_proj": alpha(config), "up_proj|gate_proj": alpha(config),
                    r".*self_attn.*": 99,
                });
                config["rank_pattern"] = json!({r"^model\.layers.*": rank(config)});
                (config["lora_alpha"], config["r"]) = (json!(77), json!(33));
            }),
        ),
        ("all modules", Box::new(|config, _| config["target_modules"] = json!("all-linear"))),
        (
            "an adapter's name",
            Box::new(|_, tensors| {
                for (name, _) in tensors {
                    *name = name.replace(".weight", ".default.weight");
                }
            }),
        ),
        (
            "float16",
            Box::new(|_, tensors| {
                for (_, array) in tensors {
                    *array = array.astype(Dtype::Float16).unwrap();
                }
            }),
        ),
        (
            "keys of later versions",
            Box::new(|config, _| {
                config["peft_version"] = json!("0.20");
                config["eva_config"] = json!(null);
                config["lora_bias"] = json!(false);
            }),
        ),
    ];
    for (what, change) in same {
        let folder = written(change)?;
        let error = apart(&with(folder.path())?, &want);
        let allowed = if what == "float16" { 0.02 } else { 1e-5 };
        assert!(error <= allowed, "{what}: {error:e}");
    }
    // Half of alpha halves the scale.
    let half = written(|config, _| {
        config["lora_alpha"] = json!(config["lora_alpha"].as_f64().unwrap() / 2.0)
    })?;
    let half = with(half.path())?;
    assert!(apart(&half, &want) > 0.01 && apart(&half, &plain) > 0.01);

    let folder = written(|_, _| {})?;
    let parent = tempfile::tempdir()?;
    let out = parent.path().join("fused");
    let files = ModelFiles::open(DEMO)?;
    let adapters = Adapters::load(folder.path(), &files.llama()?)?;
    files.fused(&adapters, false, |_, _| {})?.save(&out)?;
    let error = apart(&logits(&Llama::load(&out)?)?, &want);
    assert!(error < 1e-3, "fused: {error:e}");
    Ok(())
}

#[test]
fn other_peft_adapters_are_refused_by_name() -> Checked {
    let refused = |part: &str, change: &Change| -> Checked {
        let folder = written(|config, tensors| change(config, tensors))?;
        let said = message(with(folder.path()));
        assert!(said.contains("[adapters] expected") && said.contains(part), "{part}: {said}");
        assert!(said.len() < 500, "{said}");
        Ok(())
    };
    for (key, value) in [
        ("peft_type", json!("IA3")),
        ("use_dora", json!(true)),
        ("lora_bias", json!(true)),
        ("modules_to_save", json!(["lm_head"])),
        ("trainable_token_indices", json!([1, 2])),
        ("layer_replication", json!([[0, 4]])),
        ("bias", json!("all")),
        ("init_lora_weights", json!("pissa_niter_4")),
        ("init_lora_weights", json!("olora")),
        ("lora_alpha", json!("16")),
        ("use_rslora", json!("yes")),
        ("rank_pattern", json!({"q_proj": "8"})),
        ("alpha_pattern", json!({"(": 8})),
        ("alpha_pattern", json!([8])),
        ("alpha_pattern", json!({"(?:(?:a{0,999}){0,999}){0,999}": 8})),
    ] {
        refused(key, &|config, _| config[key] = value.clone())?;
    }
    refused("rank r above 0", &|config, _| config["r"] = json!(0))?;
    refused("of rank 3", &|config, _| config["r"] = json!(3))?;
    refused("target_modules", &|config, _| config["target_modules"] = json!(["c_attn"]))?;
    refused("lora_magnitude_vector", &|_, tensors| {
        tensors[0].0 = "base_model.model.model.layers.2.mlp.down_proj.lora_magnitude_vector".into();
    })?;
    refused("lora_embedding_A", &|_, tensors| {
        tensors[0].0 = "base_model.model.model.embed_tokens.lora_embedding_A".into();
    })?;
    refused("both lora_A and lora_B", &|_, tensors| drop(tensors.remove(0)))?;
    refused("of shape", &|_, tensors| {
        tensors[0].1 = tensors[0].1.t().unwrap().contiguous().unwrap()
    })?;
    // The folder has only PyTorch's file, which the loader does not support.
    let folder = written(|_, _| {})?;
    fs::rename(
        folder.path().join("adapter_model.safetensors"),
        folder.path().join("adapter_model.bin"),
    )?;
    let said = message(with(folder.path()));
    assert!(said.contains("adapter_model.bin"), "{said}");
    Ok(())
}
