//! Compares the tokenizers of GGUF files with the tokenizers of llama.cpp, SentencePiece and the
//! `tokenizers` library. `tests/fixtures/vocabularies/generate.py` writes the expected tokens.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use mlx_primitives_llama::Checkpoint;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::gguf::{Entry, bytes_speaker, speaker};
use crate::support::root;
use crate::support::{Checked, message};

fn ids(value: &Value) -> Vec<u32> {
    let ids = value.as_array().expect("a list of tokens").iter();
    ids.map(|id| id.as_u64().expect("a token") as u32).collect()
}

/// An entry of the fixture.
fn entry(value: &Value) -> Entry {
    let whole = |value: &Value| value.as_i64().map(|number| number as i32);
    match value {
        Value::Bool(flag) => Entry::Bool(*flag),
        Value::String(text) => Entry::Text(text.clone()),
        Value::Number(_) => Entry::U32(value.as_u64().expect("a token") as u32),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            Entry::Texts(items.iter().filter_map(Value::as_str).map(str::to_owned).collect())
        }
        Value::Array(items) if items.iter().all(|item| item.is_i64() || item.is_u64()) => {
            Entry::I32s(items.iter().filter_map(whole).collect())
        }
        Value::Array(items) => {
            Entry::F32s(items.iter().map(|item| item.as_f64().expect("a score") as f32).collect())
        }
        other => panic!("{other}"),
    }
}

#[test]
fn tokens_are_those_of_the_reference() -> Checked {
    let path = root().join("tests/fixtures/vocabularies/vocabularies.json");
    let fixture: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
    let texts: Vec<&str> =
        fixture["texts"].as_array().context("texts")?.iter().filter_map(Value::as_str).collect();
    let folder = TempDir::new()?;
    let path = folder.path().join("model.gguf");
    let mut compared = 0;
    for group in fixture["vocabularies"].as_array().context("vocabularies")? {
        let vocabulary = group["vocabulary"].as_object().context("a vocabulary")?;
        let size = vocabulary["tokens"].as_array().context("tokens")?.len();
        for case in group["cases"].as_array().context("cases")? {
            let name = format!("{} {}", vocabulary["model"], case["name"]);
            let mut file = speaker(size, &[]);
            let changes = case["changes"].as_object().context("changes")?;
            for (key, value) in vocabulary.iter().chain(changes) {
                let scores = key == "scores" || key == "charsmap";
                let value = match (scores, value) {
                    (true, Value::Array(all)) => Entry::F32s(
                        all.iter().filter_map(Value::as_f64).map(|score| score as f32).collect(),
                    ),
                    _ => entry(value),
                };
                file.set(&format!("tokenizer.ggml.{key}"), value);
            }
            file.write(&path)?;
            let checkpoint = Checkpoint::load(&path).with_context(|| name.clone())?;
            ensure!(checkpoint.eos == ids(&case["eog"]), "{name}: ends {:?}", checkpoint.eos);
            let tokenizer = &checkpoint.tokenizer;
            for (text, expected) in texts.iter().zip(case["texts"].as_array().context("texts")?) {
                let found = [tokenizer.encode(text)?, tokenizer.encode_verbatim(text)?];
                for (found, expected) in found.iter().zip([&expected[0], &expected[1]]) {
                    let expected = ids(expected);
                    let spelled =
                        |ids: &[u32]| ids.iter().map(|id| tokenizer.token(*id)).collect::<Vec<_>>();
                    ensure!(
                        *found == expected,
                        "{name}, {text:?}: {:?}, expected {:?}",
                        spelled(found),
                        spelled(&expected)
                    );
                }
                // Decoding restores only some texts. Unigram tokenizers merge spaces and drop
                // unknown characters. If a text contains a special token, the tokenizer adds a
                // space before the rest of the text.
                let whole = vocabulary["model"] != "t5"
                    && found[1].iter().all(|id| !tokenizer.is_special(*id))
                    && !text.starts_with(' ')
                    && !text.contains("<tool>");
                if whole {
                    let decoded = tokenizer.decode(&found[1])?;
                    ensure!(decoded == *text, "{name}, {text:?}: decoded {decoded:?}");
                }
                compared += 1;
            }
        }
    }
    ensure!(compared == 37 * texts.len(), "{compared} texts compared");
    Ok(())
}

/// Loads a vocabulary with as many tokens and merges as Llama 3's. Optimized code takes a fraction
/// of a second. The limit is for a debug build on a busy machine.
#[test]
fn a_large_vocabulary_loads_quickly() -> Checked {
    let mut file = bytes_speaker(&[]);
    let Some((_, Entry::Texts(tokens))) =
        file.entries.iter().find(|(key, _)| key.ends_with(".tokens")).cloned()
    else {
        anyhow::bail!("no tokens")
    };
    let letters: Vec<String> = (b'!'..=b'~').map(|byte| char::from(byte).to_string()).collect();
    let mut merges = Vec::new();
    let mut merged = tokens.clone();
    let mut ends = letters.clone();
    while merged.len() < 128_000 {
        let mut longer = Vec::new();
        for left in &ends {
            for right in &letters {
                if merged.len() < 128_000 {
                    merges.push(format!("{left} {right}"));
                    merged.push(format!("{left}{right}"));
                    longer.push(format!("{left}{right}"));
                }
            }
        }
        ends = longer;
    }
    let mut rows = speaker(merged.len(), &[]);
    for (key, value) in &file.entries {
        rows.set(key, value.clone());
    }
    let (types, special) = (vec![1; merged.len()], vec![3; merged.len()]);
    rows.set("tokenizer.ggml.tokens", Entry::Texts(merged))
        .set("tokenizer.ggml.token_type", Entry::I32s(special));
    let folder = TempDir::new()?;
    let path = folder.path().join("special.gguf");
    rows.write(&path)?;
    let text = message(Checkpoint::load(&path));
    ensure!(text.contains("at most 16384 special tokens"), "{text}");
    rows.set("tokenizer.ggml.token_type", Entry::I32s(types))
        .set("tokenizer.ggml.merges", Entry::Texts(merges))
        .set("tokenizer.ggml.pre", "llama-bpe");
    file = rows;
    let path = folder.path().join("large.gguf");
    file.write(&path)?;
    let start = Instant::now();
    let checkpoint = Checkpoint::load(&path)?;
    let took = start.elapsed();
    eprintln!("a vocabulary of 128,000 tokens took {took:?}");
    ensure!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!(checkpoint.tokenizer.encode_verbatim("ab")?.len(), 1);
    Ok(())
}

/// Loads a file whose entries `change` has changed. Returns the error message.
fn refusal(change: impl FnOnce(&mut crate::support::gguf::Gguf)) -> anyhow::Result<String> {
    let folder = TempDir::new()?;
    let path = folder.path().join("model.gguf");
    let mut file = bytes_speaker(&[]);
    change(&mut file);
    file.write(&path)?;
    let text = message(Checkpoint::load(&path));
    ensure!(text.starts_with(&path.display().to_string()), "{text}");
    ensure!(text.len() < path.display().to_string().len() + 300, "{text}");
    ensure!(!text.chars().any(char::is_control), "{text:?}");
    Ok(text)
}

#[test]
fn vocabularies_that_are_not_understood_are_refused_by_name() -> Checked {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let cases: [(&str, Option<Entry>, &str); 14] = [
        ("model", Some("rwkv".into()), "tokenizer.ggml.model"),
        ("model", Some("bert".into()), "tokenizer.json beside the file"),
        ("model", None, "a vocabulary in the file or a tokenizer.json beside it"),
        ("pre", Some("superbpe".into()), "tokenizer.ggml.pre"),
        ("pre", Some("x\n\u{1b}[31m".repeat(100).as_str().into()), "tokenizer.ggml.pre"),
        ("merges", Some(Entry::Texts(vec!["ab".into()])), "pairs in tokenizer.ggml.merges"),
        ("merges", Some(Entry::Texts(vec!["a b".into()])), "a usable tokenizer"),
        ("merges", Some(Entry::I32s(vec![1])), "a list of texts tokenizer.ggml.merges"),
        ("token_type", Some(Entry::I32s(vec![1])), "262 numbers in tokenizer.ggml.token_type"),
        ("token_type", Some(1u32.into()), "a list tokenizer.ggml.token_type"),
        ("eos_token_id", Some(262u32.into()), "tokenizer.ggml.eos_token_id below 262, got 262"),
        ("eot_token_id", Some("x".into()), "a whole number tokenizer.ggml.eot_token_id"),
        ("add_bos_token", Some(1u32.into()), "true or false as tokenizer.ggml.add_bos_token"),
        ("tokens", Some(Entry::Texts(vec!["a".into(); 262])), "tokens of different texts"),
    ];
    for (name, value, expected) in cases {
        let text = refusal(|file| {
            match value {
                Some(value) => file.set(&key(name), value),
                None => file.remove(&key(name)),
            };
        })?;
        ensure!(text.contains(expected), "{name}: {text}");
    }
    let text = refusal(|file| {
        file.remove("tokenizer.ggml.bos_token_id").set("tokenizer.ggml.add_bos_token", true);
    })?;
    ensure!(text.contains("tokenizer.ggml.bos_token_id"), "{text}");
    // If there are no merges, every token must be a single character.
    let text = refusal(|file| {
        file.remove("tokenizer.ggml.merges");
        if let Some((_, Entry::Texts(tokens))) =
            file.entries.iter_mut().find(|(key, _)| key.ends_with(".tokens"))
        {
            tokens[65] = "AB".to_owned();
        }
    })?;
    ensure!(text.contains("tokenizer.ggml.merges, got none"), "{text}");
    for (model, name, value) in [
        ("llama", "scores", None),
        ("llama", "scores", Some(Entry::F32s(vec![f32::NAN; 262]))),
        ("t5", "scores", Some(Entry::F32s(vec![f32::INFINITY; 262]))),
        ("t5", "precompiled_charsmap", Some(Entry::Bytes(vec![255; 9]))),
    ] {
        let text = refusal(|file| {
            file.set("tokenizer.ggml.model", model);
            file.set("tokenizer.ggml.scores", Entry::F32s(vec![-1.0; 262]));
            match value {
                Some(value) => file.set(&key(name), value),
                None => file.remove(&key(name)),
            };
        })?;
        ensure!(text.contains(&key(name)), "{model} {name}: {text}");
    }
    Ok(())
}
