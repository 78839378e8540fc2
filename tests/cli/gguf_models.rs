//! Runs the commands with GGUF model files in every supported arrangement.

use std::fs;
use std::path::Path;

use anyhow::ensure;
use mlx_primitives_llama::{ChatOptions, ChatTemplate, Checkpoint, message};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command::{piped, stderr, stdout, text_of};
use crate::support::Checked;
use crate::support::gguf::{Entry, Gguf, bytes_speaker};

/// The test model predicts the next token from the last token alone: each pair is a token and its
/// successor. After "a" it generates "bc" and an end-of-turn token. After that token it generates
/// text without an end.
const NEXT: [(u32, u32); 6] = [(97, 98), (98, 99), (99, 259), (259, 100), (100, 101), (101, 100)];
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}";

fn said(arguments: &[&str], input: &str) -> anyhow::Result<String> {
    let output = piped(arguments, input);
    ensure!(output.status.success(), "{arguments:?}: {}, {}", output.status, stderr(&output));
    Ok(stdout(&output))
}

fn json_of(arguments: &[&str], input: &str) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&said(arguments, input)?)?)
}

fn model() -> Gguf {
    let mut file = bytes_speaker(&NEXT);
    file.set("tokenizer.chat_template", TEMPLATE);
    file
}

/// Splits a model into two files in one folder, and returns the path of the second file.
fn write_halves(folder: &Path, whole: &Gguf) -> anyhow::Result<std::path::PathBuf> {
    let mut halves = [whole.clone(), Gguf::default()];
    halves[1].tensors = halves[0].tensors.split_off(5);
    for (number, half) in halves.iter_mut().enumerate() {
        half.set("split.no", Entry::U16(number as u16)).set("split.count", Entry::U16(2));
        half.write(&folder.join(format!("m-0000{}-of-00002.gguf", number + 1)))?;
    }
    Ok(folder.join("m-00002-of-00002.gguf"))
}

/// Runs every command with a model at `path`.
fn works(path: &Path) -> Checked {
    let (path, short) = (text_of(path), &["--max-tokens", "9"][..]);
    let generated = [&["generate", "--json", "--model", path][..], short].concat();
    let object = json_of(&[&generated[..], &["a"]].concat(), "")?;
    ensure!(object["text"] == "bc" && object["finish_reason"] == "stop", "{object}");
    ensure!(object["prompt_tokens"] == 2, "the template adds a token: {object}");
    let plain = [&generated[..], &["--ignore-chat-template", "a"]].concat();
    let object = json_of(&plain, "")?;
    ensure!(object["text"] == "bc" && object["prompt_tokens"] == 1, "{object}");
    let drafted = [&plain[..], &["--draft-model", path]].concat();
    ensure!(json_of(&drafted, "")?["text"] == "bc", "with a draft");
    let said = said(&[&["chat", "--model", path][..], short].concat(), "a\n")?;
    ensure!(said.trim() == "bc", "chat: {said:?}");
    let score = json_of(&["perplexity", "--json", "--model", path, "--file", "-"], "abc")?;
    ensure!(score["tokens"] == 2 && score["mean_nll"].as_f64() < Some(0.01), "{score}");
    let figures = ["bench", "--json", "--model", path, "-p", "4", "-g", "4", "-n", "1"];
    ensure!(json_of(&figures, "")?["generation_tps"].as_f64() > Some(0.0), "bench");
    let facts = json_of(&["info", "--json", "--model", path], "")?;
    ensure!(facts.to_string().contains("llama"), "{facts}");
    Ok(())
}

#[test]
fn every_command_runs_a_file_alone_with_a_tokenizer_in_parts_and_as_a_directory() -> Checked {
    let folder = TempDir::new()?;
    let alone = folder.path().join("model.gguf");
    model().write(&alone)?;
    works(&alone)?;

    let parts = TempDir::new()?;
    works(&write_halves(parts.path(), &model())?)?;

    // Some programs that write GGUF files leave out empty lists.
    let mut without_merges = model();
    without_merges.remove("tokenizer.ggml.merges").write(&alone)?;
    ensure!(Checkpoint::load(&alone)?.tokenizer.encode("abc")? == [97, 98, 99]);

    // A cache may name files by their hash, without an extension.
    let hashed = folder.path().join("sha256-0123");
    fs::copy(&alone, &hashed)?;
    works(&hashed)?;

    // `quantize` writes a directory. Its configuration has the values of the GGUF file's metadata,
    // and the model runs like the file.
    let directory = folder.path().join("packed");
    let packed = [
        "quantize",
        "--model",
        text_of(&alone),
        "--output",
        text_of(&directory),
        "--group-size",
        "32",
    ];
    said(&packed, "")?;
    works(&directory)?;
    let config: Value =
        serde_json::from_str(&fs::read_to_string(directory.join("tokenizer_config.json"))?)?;
    ensure!(config["eos_token"] == "</s>" && config["chat_template"] == TEMPLATE, "{config}");

    let beside = TempDir::new()?;
    let path = beside.path().join("model.gguf");
    model().write(&path)?;
    fs::copy(directory.join("tokenizer.json"), beside.path().join("tokenizer.json"))?;
    works(&path)
}

/// Compares the logits of a GGUF file with the logits of the directory that `quantize` writes from
/// it. The file has the rows of its query weights in llama.cpp's order.
#[test]
fn conversions_compute_what_the_file_does() -> Checked {
    let fixtures = crate::support::root().join("tests/fixtures/checkpoints");
    let folder = TempDir::new()?;
    let file = folder.path().join("model.gguf");
    fs::copy(fixtures.join("gguf-f16/model.gguf"), &file)?;
    let packed = folder.path().join("packed");
    let quantize =
        ["quantize", "--model", text_of(&file), "--output", text_of(&packed), "--bits", "8"];
    said(&[&quantize[..], &["--group-size", "32"]].concat(), "")?;
    let ids = mlx_primitives::Array::from_slice(&[3i32, 14, 15, 9, 26], [1, 5])?;
    let logits = |path: &Path| -> anyhow::Result<Vec<f32>> {
        let llama = mlx_primitives_llama::Llama::load(path)?;
        let logits = llama.forward(&ids, &mut llama.new_cache())?;
        Ok(logits.astype(mlx_primitives::Dtype::Float32)?.to_vec::<f32>()?)
    };
    let (expected, got) = (logits(&file)?, logits(&packed)?);
    let largest = expected.iter().fold(0f32, |all, value| all.max(value.abs()));
    let apart = expected.iter().zip(&got).fold(0f32, |all, (a, b)| all.max((a - b).abs()));
    // Quantization to eight bits changes a weight by at most half a percent of its group's range.
    // If the rows were in a wrong order, the logits would change by about their own magnitude.
    ensure!(apart < 0.1 * largest, "{apart} of {largest}");
    let of_four_bits = fixtures.join("gguf-q4_0/model.gguf");
    let again = ["quantize", "--model", text_of(&of_four_bits), "--output"];
    let output = piped(&[&again[..], &[text_of(&folder.path().join("again"))]].concat(), "");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(said.contains("expected float weights, got quantized ones"), "{said}");
    Ok(())
}

#[test]
fn texts_end_where_entries_or_well_known_texts_say() -> Checked {
    let folder = TempDir::new()?;
    let path = folder.path().join("model.gguf");
    let ends = |change: &dyn Fn(&mut Gguf)| -> anyhow::Result<Vec<u32>> {
        let mut file = bytes_speaker(&NEXT);
        change(&mut file);
        file.write(&path)?;
        Ok(Checkpoint::load(&path)?.eos)
    };
    // The loader recognizes the end tokens </s>, <|im_end|> and <|endoftext|> by their names.
    let always = [257, 259, 260];
    let with = |more: &[u32]| {
        let mut all = [&always[..], more].concat();
        all.sort_unstable();
        all.dedup();
        all
    };
    assert_eq!(ends(&|_| {})?, with(&[]));
    for key in ["eos", "eot", "eom"] {
        let key = format!("tokenizer.ggml.{key}_token_id");
        assert_eq!(
            ends(&|file| {
                file.set(&key, 65u32);
            })?,
            with(&[65])
        );
    }
    assert_eq!(
        ends(&|file| {
            file.set("tokenizer.ggml.eot_token_id", Entry::I32(-1));
        })?,
        with(&[])
    );
    assert_eq!(
        ends(&|file| {
            file.remove("tokenizer.ggml.eos_token_id");
        })?,
        with(&[])
    );
    // The tokens in a generation_config.json in the same folder are end tokens too.
    fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": 66}"#)?;
    let mut found = ends(&|_| {})?;
    found.sort_unstable();
    assert_eq!(found, with(&[66]));
    Ok(())
}

#[test]
fn templates_come_from_files_beside_or_from_the_entries() -> Checked {
    let folder = TempDir::new()?;
    let path = folder.path().join("model.gguf");
    let render = |name: Option<&str>| -> anyhow::Result<Option<String>> {
        let Some(template) = ChatTemplate::load(&path)? else { return Ok(None) };
        let options = ChatOptions { template: name.map(str::to_owned), ..ChatOptions::default() };
        Ok(Some(template.render(&[message("user", "hi")], &options)?))
    };
    let mut file = bytes_speaker(&NEXT);
    file.write(&path)?;
    assert_eq!(render(None)?, None);
    file.set("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}");
    file.write(&path)?;
    assert_eq!(render(None)?.as_deref(), Some("<s>hi</s>"));
    file.set("tokenizer.chat_template.tool_use", "tools: {{ messages[0].content }}")
        .set("tokenizer.chat_templates", Entry::Texts(vec!["tool_use".to_owned()]));
    file.write(&path)?;
    assert_eq!(render(None)?.as_deref(), Some("<s>hi</s>"));
    assert_eq!(render(Some("tool_use"))?.as_deref(), Some("tools: hi"));
    let config = json!({"chat_template": "config {{ eos_token }}", "eos_token": "<e>"});
    fs::write(folder.path().join("tokenizer_config.json"), config.to_string())?;
    assert_eq!(render(None)?.as_deref(), Some("config <e>"));
    fs::write(folder.path().join("chat_template.jinja"), "beside {{ bos_token }}{{ eos_token }}")?;
    assert_eq!(render(None)?.as_deref(), Some("beside <s><e>"));
    Ok(())
}
