//! Special tokens that are named in other files than `tokenizer.json`, and tokens that end a text.

use std::fs;
use std::path::Path;

use mlx_primitives_llama::{ChatTemplate, Checkpoint, Options, Tokenizer, decode::FinishReason};
use serde_json::{Value, json};

use crate::support::models::{DEMO, demo_copy};
use crate::support::{Checked, message as error_of};

/// A copy of the demo model, with these additional files.
fn demo_with(files: &Value) -> anyhow::Result<tempfile::TempDir> {
    let folder = demo_copy()?;
    for (name, content) in files.as_object().unwrap() {
        fs::write(folder.path().join(name), content.to_string())?;
    }
    Ok(folder)
}

/// The tokens equal the tokens of transformers, which `generate.py` in the fixture's folder writes.
#[test]
fn tokens_named_elsewhere_are_those_of_transformers() -> Checked {
    let path =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/special_tokens/cases.json");
    let cases: Vec<Value> = serde_json::from_str(&fs::read_to_string(path)?)?;
    assert!(cases.len() >= 20);
    for case in &cases {
        let name = &case["name"];
        let folder = demo_with(&case["files"])?;
        let tokenizer = Tokenizer::load(folder.path())?;
        for text in case["texts"].as_array().unwrap() {
            let tokens = tokenizer.encode_verbatim(text[0].as_str().unwrap())?;
            assert_eq!(json!(tokens), text[1], "{name}: {}", text[0]);
        }
        assert_eq!(json!(tokenizer.eos()), case["eos"], "{name}");
    }
    Ok(())
}

/// The demo model's embedding has no row for a new token. So the checkpoint does not add the token.
#[test]
fn tokens_that_the_model_cannot_read_are_not_added() -> Checked {
    let folder = demo_with(&json!({"tokenizer_config.json": {"eos_token": "<|new|>"}}))?;
    assert_eq!(Tokenizer::load(folder.path())?.encode_verbatim("<|new|>")?.len(), 1);
    let checkpoint = Checkpoint::load(folder.path())?;
    let tokens = checkpoint.tokenizer.encode_verbatim("<|new|>")?;
    assert_eq!(tokens, Tokenizer::load(DEMO)?.encode_verbatim("<|new|>")?);
    assert!(tokens.len() > 1);
    assert_eq!(checkpoint.tokenizer.eos(), None);
    Ok(())
}

#[test]
fn conflicting_and_broken_files_are_refused() -> Checked {
    let new = json!({"content": "<|new|>", "special": true});
    for (file, content, said) in [
        (
            "tokenizer_config.json",
            json!({"added_tokens_decoder": {"7": new}}),
            "the number 7 for the token \"<|new|>\"",
        ),
        ("added_tokens.json", json!({"<|new|>": 3}), "the number 3 for the token \"<|new|>\""),
        ("added_tokens.json", json!({"<|new|>": -3}), "expected a number for the token"),
        ("added_tokens.json", json!([1]), "expected a JSON object"),
        (
            "tokenizer_config.json",
            json!({"added_tokens_decoder": [1]}),
            "expected added_tokens_decoder to be an object",
        ),
        (
            "tokenizer_config.json",
            json!({"added_tokens_decoder": {"x": new}}),
            "expected numbers with tokens",
        ),
        (
            "tokenizer_config.json",
            json!({"eos_token": 3}),
            "expected eos_token to name tokens, got 3",
        ),
        ("special_tokens_map.json", json!({"additional_special_tokens": [1]}), "got 1"),
    ] {
        let folder = demo_with(&json!({file: content}))?;
        let text = error_of(Tokenizer::load(folder.path()));
        assert!(text.contains(said), "{file}: {text}");
        assert!(text.starts_with(&folder.path().display().to_string()), "{text}");
        assert_eq!(error_of(Checkpoint::load(folder.path())), text);
    }
    Ok(())
}

#[test]
fn templates_know_the_special_tokens_of_every_file() -> Checked {
    let folder = demo_with(&json!({
        "tokenizer_config.json": {"chat_template": "{{ bos_token }}|{{ eos_token }}"},
        "special_tokens_map.json": {"bos_token": "<s>", "eos_token": {"content": "</s>"}},
    }))?;
    let template = ChatTemplate::load(folder.path())?.expect("a template");
    assert_eq!(template.render(&[], &Default::default())?, "<s>|</s>");
    assert_eq!(template.special_token("bos_token"), Some("<s>"));
    Ok(())
}

fn text_of(folder: &Path, options: &Options) -> anyhow::Result<(String, Option<FinishReason>)> {
    let checkpoint = Checkpoint::load(folder)?;
    let prompt = checkpoint.tokenizer.encode("Once upon a time")?;
    let (mut text, mut reason) = (String::new(), None);
    for piece in checkpoint.generate_text(&prompt, options)? {
        let piece = piece?;
        text += &piece.text;
        reason = piece.finish_reason;
    }
    Ok((text, reason))
}

/// The configurations name end tokens. As in mlx-lm, the tokenizer's end token is one too.
#[test]
fn the_tokenizers_end_token_ends_a_text() -> Checked {
    let options = Options { max_tokens: 12, ..Options::default() };
    let plain = text_of(Path::new(DEMO), &options)?.0;
    let (sentence, _) = plain.split_once('.').expect("a sentence");
    let dot = Tokenizer::load(DEMO)?.token_id(".").expect("a token of the vocabulary");
    let config: Value = serde_json::from_str(&fs::read_to_string(format!("{DEMO}/config.json"))?)?;
    let with = |eos: Value| {
        let mut config = config.clone();
        config["eos_token_id"] = eos;
        config
    };
    let own = json!({"eos_token": "."});
    for (files, eos) in [
        (json!({"tokenizer_config.json": own}), vec![0, dot]),
        (json!({"tokenizer_config.json": {"eos_token": {"content": "."}}}), vec![0, dot]),
        (json!({"special_tokens_map.json": own}), vec![0, dot]),
        (
            json!({"tokenizer_config.json": own, "generation_config.json": {}, "config.json": with(json!(5))}),
            vec![5, dot],
        ),
        (
            json!({"tokenizer_config.json": own, "generation_config.json": {}, "config.json": with(json!(null))}),
            vec![dot],
        ),
        (
            json!({"tokenizer_config.json": own, "generation_config.json": {"eos_token_id": [dot, 0]}}),
            vec![dot, 0],
        ),
        (json!({"generation_config.json": {"eos_token_id": [3, dot]}}), vec![3, dot, 0]),
    ] {
        let folder = demo_with(&files)?;
        assert_eq!(Checkpoint::load(folder.path())?.eos, eos, "{files}");
        let (text, reason) = text_of(folder.path(), &options)?;
        assert_eq!((&*text, reason), (sentence, Some(FinishReason::Stop)), "{files}");
    }
    // No file names an end token, so the text continues to its maximum length.
    let folder = demo_with(
        &json!({"tokenizer_config.json": {}, "generation_config.json": {}, "config.json": with(json!(null))}),
    )?;
    assert_eq!(text_of(folder.path(), &options)?.1, Some(FinishReason::Length));
    Ok(())
}

#[test]
fn stop_strings_may_contain_special_tokens() -> Checked {
    // The configuration makes the comma a special token, which is not part of the text.
    let folder =
        demo_with(&json!({"tokenizer_config.json": {"additional_special_tokens": [","]}}))?;
    let options = |stop: &[&str]| Options {
        max_tokens: 12,
        stop: stop.iter().map(|&stop| stop.to_owned()).collect(),
        ..Options::default()
    };
    let plain = text_of(Path::new(DEMO), &options(&[]))?.0;
    assert!(plain.starts_with(", there was a little"), "{plain}");
    let hidden = text_of(folder.path(), &options(&[]))?.0;
    assert_eq!(hidden, plain.replace(',', ""));
    for (stop, text) in [
        (&[","] as &[&str], ""),
        (&[", there"], ""),
        (&[", the girl", "little"], " there was a "),
        (&[", there was not", "a lit"], " there was "),
        (&["re was"], " the"),
    ] {
        let (ours, reason) = text_of(folder.path(), &options(stop))?;
        assert_eq!((&*ours, reason), (text, Some(FinishReason::StopString)), "{stop:?}");
    }
    // The last piece could be the start of the stop string, so it is held back. The piece is shown
    // after all when the text ends.
    let (ours, reason) = text_of(folder.path(), &options(&[", there was no"]))?;
    assert_eq!((&*ours, reason), (&*hidden, Some(FinishReason::Length)));
    Ok(())
}

#[test]
fn a_stream_of_bytes_is_what_decode_makes_of_them() -> Checked {
    let vocabulary: serde_json::Map<String, Value> = ["<unk>", "a", "<0xC3>", "<0xA9>", "<0xFF>"]
        .iter()
        .enumerate()
        .map(|(id, token)| ((*token).to_owned(), json!(id)))
        .collect();
    let tokenizer = Tokenizer::parse(
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": null, "post_processor": null,
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
            "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true,
                      "vocab": vocabulary, "merges": []},
        })
        .to_string()
        .as_bytes(),
    )?;
    for (tokens, expected) in [
        (&[1u32, 2, 3, 1] as &[u32], "aéa"),
        (&[1, 2, 3, 4, 1], "a\u{fffd}\u{fffd}\u{fffd}a"),
        (&[4, 2, 3], "\u{fffd}\u{fffd}\u{fffd}"),
        (&[2, 1], "\u{fffd}a"),
    ] {
        let mut stream = tokenizer.stream();
        let mut text = String::new();
        for token in tokens {
            text += &stream.push(*token)?;
        }
        text += &stream.finish()?;
        assert_eq!((&*text, &*tokenizer.decode(tokens)?), (expected, expected), "{tokens:?}");
    }
    Ok(())
}
