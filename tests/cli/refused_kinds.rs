//! Tests that commands refuse models and adapters of unsupported kinds. The error names the kind,
//! and the command writes no result.

use std::collections::BTreeMap;
use std::fs;

use mlx_primitives::{Array, Dtype, io};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command::{piped, stderr, stdout, text_of};
use crate::support::Checked;
use crate::support::models::{DEMO, variant};

/// Runs each command with the arguments. Checks that the error contains these parts, and that the
/// command wrote no result.
fn refused(what: &str, commands: &[&str], arguments: &[&str], parts: &[&str]) -> Checked {
    let out = tempfile::tempdir()?;
    let saved = out.path().join("saved");
    for command in commands {
        let own: &[&str] = match *command {
            "generate" => &["generate", "-p", "Once", "-m", "2"],
            "perplexity" => &["perplexity", "--file", "-"],
            "quantize" => &["quantize", "--output", text_of(&saved)],
            "fuse" => &["fuse", "--save-path", text_of(&saved)],
            other => &[other],
        };
        let output = piped(&[own, arguments].concat(), "Once upon a time\n");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{what}, {command}: {said}");
        assert_eq!(stdout(&output), "", "{what}, {command}");
        for part in parts {
            assert!(said.contains(part), "{what}, {command}: {part:?} in {said}");
        }
        assert!(said.len() < 700, "{what}, {command}: {said}");
        assert!(!saved.exists(), "{what}, {command}: a result was written");
    }
    Ok(())
}

fn written(config: &Value, file: &str, tensors: &[(String, Vec<i32>)]) -> anyhow::Result<TempDir> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("adapter_config.json"), config.to_string())?;
    let arrays: BTreeMap<&str, Array> = tensors
        .iter()
        .map(|(name, shape)| Ok((&**name, Array::zeros::<f32>(&shape[..])?)))
        .collect::<mlx_primitives::Result<_>>()?;
    io::save_safetensors(folder.path().join(file), arrays.iter().map(|(n, a)| (*n, a)), [])?;
    Ok(folder)
}

const PROJECTION: &str = "model.layers.3.self_attn.q_proj";

#[test]
fn adapters_of_other_kinds() -> Checked {
    let demo: Value = serde_json::from_str(&fs::read_to_string(format!("{DEMO}/config.json"))?)?;
    let size = |key: &str| demo[key].as_i64().unwrap() as i32;
    let (hidden, vocab) = (size("hidden_size"), size("vocab_size"));
    let mlx = |kind: &str, keys: Value| {
        json!({"fine_tune_type": kind, "num_layers": 4,
               "lora_parameters": {"rank": 4, "scale": 2.0, "dropout": 0.0, "keys": keys}})
    };
    let peft = |dora: bool, target: &str| {
        json!({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "bias": "none",
               "use_dora": dora, "use_rslora": false, "fan_in_fan_out": false,
               "target_modules": [target], "task_type": "CAUSAL_LM"})
    };
    let low_rank = |name: &str, rows: i32| {
        vec![(format!("{name}.lora_a"), vec![rows, 4]), (format!("{name}.lora_b"), vec![4, hidden])]
    };
    let in_peft = |name: &str, a: &str, b: &str, columns: i32| {
        let path = |half: &str| format!("base_model.model.{name}.{half}");
        vec![(path(a), vec![4, columns]), (path(b), vec![hidden, 4])]
    };
    let q = json!(["self_attn.q_proj"]);
    let mlx_dora = [low_rank(PROJECTION, hidden), vec![(format!("{PROJECTION}.m"), vec![hidden])]];
    let magnitude = format!("base_model.model.{PROJECTION}.lora_magnitude_vector");
    let peft_dora = [
        in_peft(PROJECTION, "lora_A.weight", "lora_B.weight", hidden),
        vec![(magnitude, vec![hidden])],
    ];
    let embedding = in_peft("model.embed_tokens", "lora_embedding_A", "lora_embedding_B", vocab);
    let cases = [
        (
            "DoRA of mlx-lm without its magnitudes",
            mlx("dora", q.clone()),
            "adapters.safetensors",
            low_rank(PROJECTION, hidden),
            "model.layers.3.self_attn.q_proj.m, got none",
        ),
        (
            "all weights of mlx-lm",
            mlx("full", q.clone()),
            "adapters.safetensors",
            vec![(format!("{PROJECTION}.weight"), vec![hidden, hidden])],
            "\"full\"",
        ),
        // These adapters have tensors of DoRA, but their configuration does not mention DoRA.
        (
            "magnitudes of mlx-lm",
            mlx("lora", q),
            "adapters.safetensors",
            mlx_dora.concat(),
            "model.layers.3.self_attn.q_proj.m",
        ),
        (
            "an embedding of mlx-lm",
            mlx("lora", json!(["model.embed_tokens"])),
            "adapters.safetensors",
            low_rank("model.embed_tokens", vocab),
            "embed_tokens",
        ),
        (
            "DoRA of PEFT",
            peft(true, "q_proj"),
            "adapter_model.safetensors",
            peft_dora.concat(),
            "use_dora",
        ),
        (
            "magnitudes of PEFT",
            peft(false, "q_proj"),
            "adapter_model.safetensors",
            peft_dora.concat(),
            "lora_magnitude_vector",
        ),
        (
            "an embedding of PEFT",
            peft(false, "embed_tokens"),
            "adapter_model.safetensors",
            embedding,
            "embed_tokens",
        ),
    ];
    for (what, config, file, tensors, part) in cases {
        let folder = written(&config, file, &tensors)?;
        let arguments = ["--model", DEMO, "--adapter-path", text_of(folder.path())];
        let commands = ["generate", "chat", "perplexity", "bench", "fuse"];
        // `fuse` accepts adapters of the kind "full", which have all weights.
        let commands = if part == "\"full\"" { &commands[..4] } else { &commands };
        refused(what, commands, &arguments, &["adapter", part])?;
    }
    for (name, shape) in [(format!("{PROJECTION}.weight"), vec![1, 2]), ("a".into(), vec![1])] {
        let part = format!("got {name}");
        let folder = written(&mlx("full", Value::Null), "adapters.safetensors", &[(name, shape)])?;
        let arguments = ["--model", DEMO, "--adapter-path", text_of(folder.path())];
        refused("other weights", &["fuse"], &arguments, &["adapters.safetensors", &part])?;
    }
    Ok(())
}

#[test]
fn rotations_that_differ_by_kind_of_layer() -> Checked {
    let by_kind = json!({"full_attention": {"rope_type": "default", "rope_theta": 1e6},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}});
    for kind in ["llama", "gemma", "mistral", "qwen3"] {
        let folder = variant(Dtype::Float32, |name, json| {
            if name == "config.json" {
                json["model_type"] = json!(kind);
                json["rope_parameters"] = by_kind.clone();
            }
        });
        let arguments = ["--model", text_of(folder.path())];
        let parts = ["config.json", "rope_parameters that are equal for all kinds of layers"];
        refused(
            kind,
            &["generate", "chat", "perplexity", "bench", "quantize"],
            &arguments,
            &parts,
        )?;
    }
    Ok(())
}

/// If a folder has weights but no tokenizer, the error says where to get one.
#[test]
fn a_model_without_a_tokenizer() -> Checked {
    let folder = variant(Dtype::Float32, |_, _| {});
    fs::remove_file(folder.path().join("tokenizer.json"))?;
    let parts = ["there is no tokenizer.json: download it", "save_pretrained"];
    let arguments = ["--model", text_of(folder.path())];
    refused("weights alone", &["generate", "chat", "perplexity"], &arguments, &parts)
}
