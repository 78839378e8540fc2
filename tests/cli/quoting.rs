//! Tests that errors quote at most about one line of a file, and no control characters that a
//! terminal would obey.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mlx_primitives::Error;
use mlx_primitives_llama::{Adapters, ChatTemplate, Checkpoint, PromptCache, message};
use serde_json::{Value, json};

use crate::support::models::{DEMO, demo_copy};
use crate::support::{Checked, safetensors};

const COMMAND: &str = env!("CARGO_BIN_EXE_mlx-primitives");

/// A string of a megabyte with several lines. It contains control characters that set a terminal's
/// title and colors and override the direction of text.
fn hostile() -> String {
    format!("\u{1b}]0;title\u{7}\u{9b}31m\u{202e}\r\nerror: other\n{}", "x".repeat(1 << 20))
}

fn check(what: &str, folder: &Path, text: &str) {
    let text = text.replace(&folder.display().to_string(), "");
    assert!(text.len() < 900, "{what}: {} bytes", text.len());
    let acts = |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}');
    assert!(!text.contains(acts), "{what}: {text:?}");
}

fn edited(name: &str, edit: impl FnOnce(&mut Value)) -> anyhow::Result<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(&fs::read(format!("{DEMO}/{name}"))?)?;
    edit(&mut value);
    Ok(value.to_string().into_bytes())
}

#[test(simulated = never)]
fn errors_of_checkpoints_quote_little() -> Checked {
    let mut cases: Vec<(String, &str, Vec<u8>)> = Vec::new();
    for key in [
        "model_type",
        "rope_scaling",
        "hidden_act",
        "vocab_size",
        "quantization",
        "rms_norm_eps",
        "tie_word_embeddings",
    ] {
        cases.push((
            key.to_owned(),
            "config.json",
            edited("config.json", |c| c[key] = json!(hostile()))?,
        ));
    }
    for value in [
        json!({"rope_type": hostile()}),
        json!({"type": hostile(), "factor": 2}),
        json!([hostile()]),
    ] {
        cases.push((
            "rope".to_owned(),
            "config.json",
            edited("config.json", |c| c["rope_scaling"] = value)?,
        ));
    }
    for value in
        [json!({"group_size": 64, "bits": 4, "mode": hostile()}), json!({hostile(): {"bits": 4}})]
    {
        cases.push((
            "quantization".to_owned(),
            "config.json",
            edited("config.json", |c| c["quantization"] = value)?,
        ));
    }
    cases.push((
        "layer_types".to_owned(),
        "config.json",
        edited("config.json", |c| c["layer_types"] = json!([hostile()]))?,
    ));
    cases.push(("no JSON".to_owned(), "config.json", hostile().into_bytes()));
    cases.push((
        "eos".to_owned(),
        "generation_config.json",
        json!({"eos_token_id": hostile()}).to_string().into_bytes(),
    ));
    cases.push((
        "kind".to_owned(),
        "tokenizer.json",
        edited("tokenizer.json", |t| t["model"]["type"] = json!(hostile()))?,
    ));
    cases.push((
        "normalizer".to_owned(),
        "tokenizer.json",
        edited("tokenizer.json", |t| t["normalizer"] = json!({"type": hostile()}))?,
    ));
    let decoder = json!({"added_tokens_decoder": {hostile(): {"content": "a"}}});
    cases.push(("decoder".to_owned(), "tokenizer_config.json", decoder.to_string().into_bytes()));
    let number = json!({"added_tokens_decoder": {"3": {"content": hostile()}}});
    cases.push(("number".to_owned(), "tokenizer_config.json", number.to_string().into_bytes()));
    cases.push((
        "eos_token".to_owned(),
        "tokenizer_config.json",
        json!({"eos_token": [hostile()]}).to_string().into_bytes(),
    ));
    cases.push((
        "added".to_owned(),
        "added_tokens.json",
        json!({hostile(): -1}).to_string().into_bytes(),
    ));
    let entry = json!({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]});
    cases.push((
        "tensor".to_owned(),
        "model.safetensors",
        safetensors(&json!({hostile(): entry}).to_string(), 8),
    ));
    cases.push((
        "dtype".to_owned(),
        "model.safetensors",
        safetensors(
            &json!({"a": {"dtype": hostile(), "shape": [2], "data_offsets": [0, 8]}}).to_string(),
            8,
        ),
    ));
    let index =
        json!({"weight_map": {"model.norm.weight": hostile(), hostile(): "model.safetensors"}});
    cases.push((
        "index".to_owned(),
        "model.safetensors.index.json",
        index.to_string().into_bytes(),
    ));
    let mut refused = 0;
    for (what, name, content) in &cases {
        let folder = demo_copy()?;
        if *name == "model.safetensors.index.json" {
            fs::remove_file(folder.path().join("model.safetensors"))?;
        }
        fs::write(folder.path().join(name), content)?;
        if let Err(error) = Checkpoint::load(folder.path()) {
            check(what, folder.path(), &error.to_string());
            refused += 1;
            if what == "model_type" || what == "index" {
                let output = Command::new(COMMAND)
                    .args(["generate", "a", "--model"])
                    .arg(folder.path())
                    .output()?;
                let stderr = String::from_utf8(output.stderr)?;
                check(what, folder.path(), stderr.trim_end());
                assert_eq!(output.status.code(), Some(1), "{what}");
            }
        }
    }
    assert!(refused >= 18, "only {refused} of {} are refused", cases.len());
    Ok(())
}

#[test]
fn errors_of_other_files_quote_little() -> Checked {
    let folder = demo_copy()?;
    let path = |name: &str| folder.path().join(name);
    let quoted = json!({"chat_template": "{{ raise_exception(messages[0].content) }}"});
    fs::write(path("tokenizer_config.json"), quoted.to_string())?;
    let template = ChatTemplate::load(folder.path())?.expect("a template");
    let error = template.render(&[message("user", &hostile())], &Default::default()).unwrap_err();
    check("raise_exception", folder.path(), &error.to_string());
    for source in [
        hostile(),
        format!("{{{{ {} }}}}", hostile()),
        format!("{{{{ 'a' | {}() }}}}", "x".repeat(9_999)),
    ] {
        let config = json!({"chat_template": source});
        let template = ChatTemplate::parse(&config.to_string())?.expect("a template");
        if let Err(error) = template.render(&[], &Default::default()) {
            check("template", folder.path(), &error.to_string());
        }
    }
    for config in [
        json!({"chat_template": {hostile(): 1}}),
        json!({"chat_template": [{"name": hostile()}]}),
        json!(hostile()),
    ] {
        if let Err(error) = ChatTemplate::parse(&config.to_string()) {
            check("chat_template", folder.path(), &error.to_string());
        }
    }
    let checkpoint = Checkpoint::demo()?;
    for metadata in [json!({"format": hostile()}), json!({"model": hostile(), hostile(): "1"})] {
        fs::write(
            path("cache.safetensors"),
            safetensors(&json!({"__metadata__": metadata}).to_string(), 8),
        )?;
        let error = PromptCache::load(path("cache.safetensors"), &checkpoint.llama)
            .err()
            .expect("an error");
        check("a prompt cache", folder.path(), &error.to_string());
    }
    let adapters = path("adapters");
    fs::create_dir(&adapters)?;
    fs::write(adapters.join("adapters.safetensors"), safetensors("{}", 8))?;
    for config in [
        json!({"peft_type": hostile()}),
        json!({"fine_tune_type": hostile()}),
        json!({"lora_parameters": hostile()}),
    ] {
        fs::write(adapters.join("adapter_config.json"), config.to_string())?;
        if let Err(error) = Adapters::load(&adapters, &checkpoint.llama) {
            check("adapters", folder.path(), &error.to_string());
        }
    }
    Ok(())
}

#[test]
fn paths_and_arguments_are_shown_in_one_line() {
    let path = PathBuf::from("/nowhere/\u{1b}[31m\n\u{202e}x").join("y".repeat(5_000));
    let Err(error) = Checkpoint::load(&path) else { panic!("a model") };
    check("a path", Path::new("/none"), &error.to_string());
    let error = Error::argument("op", format_args!("a number, got {}", hostile()));
    check("an argument", Path::new("/none"), &error.to_string());
    let text = error.to_string();
    assert!(text.starts_with("[op] expected a number, got \\u{1b}]0;title\\u{7}"), "{text}");
    assert!(text.ends_with("xxx") && text.contains(" … "), "{text}");
    // A message from other code, such as a compiler, keeps its line breaks.
    let error = Error::from("[kernel] line 1: error\n\tline 2\u{1b}");
    assert_eq!(error.to_string(), "[kernel] line 1: error\n\tline 2\\u{1b}");
}
