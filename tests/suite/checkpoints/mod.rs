//! Checkpoints that mlx-lm wrote, against what mlx-lm and transformers make of them.

mod corrupt;
mod damage;
mod errors;
mod progress;

use std::fs;
use std::path::{Path, PathBuf};

use mlx_primitives::llama::{Llama, Options};
use mlx_primitives::{Array, Dtype};
use serde_json::Value;

use crate::support::compare::{numbers, ulp};
use crate::support::{Checked, simulated};

/// One small model of each kind, for the simulator.
const FEW: [&str; 9] = [
    "llama-f32-biases",
    "llama-bf16-sharded",
    "llama-q4-g32-biases",
    "llama-mxfp4",
    "mistral-f16",
    "qwen2-f32",
    "qwen3-f32",
    "gemma-f32",
    "gguf-q8_0",
];

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoints")
}

/// The folders that hold a checkpoint.
fn names() -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root())? {
        let entry = entry?;
        if entry.path().join("expected.json").exists() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

pub fn load(name: &str) -> anyhow::Result<Llama> {
    let folder = root().join(name);
    let path = if name.starts_with("gguf") { folder.join("model.gguf") } else { folder };
    Ok(Llama::load(path)?)
}

fn expected(name: &str) -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&fs::read_to_string(root().join(name).join("expected.json"))?)?)
}

fn floats(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

/// `[1, time]`.
pub fn tokens(ids: &[u32]) -> anyhow::Result<Array> {
    Ok(Array::from_slice(ids, &[1, ids.len() as i32])?)
}

fn dtype(expected: &Value) -> Dtype {
    match expected["dtype"].as_str() {
        Some("float32") => Dtype::Float32,
        Some("float16") => Dtype::Float16,
        _ => Dtype::Bfloat16,
    }
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |most: f64, v| most.max(v.abs()))
}

fn apart(got: &[f64], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).fold(0.0, |most: f64, (got, want)| most.max((got - want).abs()))
}

fn best(row: &[f64]) -> u32 {
    row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map_or(0, |(i, _)| i as u32)
}

/// By how much logits may differ from mlx-lm's. In 32 bits sums in another order are all there is:
/// up to 128 terms, and each level's errors multiplied by the next, 64 ulps. In 16 bits mlx-lm's own
/// logits are `rounding` from those of the same numbers in float32 (on a CPU MLX even sums packed
/// products in 16 bits); ours may be as far to the other side, and each has an ulp of its own.
fn tolerance(dtype: Dtype, logits: &[f64], rounding: f64) -> f64 {
    match dtype {
        Dtype::Float32 => 64.0 * ulp(largest(logits), dtype),
        _ => 2.0 * rounding + 2.0 * ulp(largest(logits), dtype),
    }
}

/// Of each token after the first, in one context.
fn mean_nll(llama: &Llama, text: &[u32]) -> anyhow::Result<f64> {
    let logits = llama.forward(&tokens(&text[..text.len() - 1])?, &mut llama.new_cache())?;
    let logits = numbers(&logits)?;
    let vocab = logits.len() / (text.len() - 1);
    let losses = logits.chunks(vocab).zip(&text[1..]).map(|(row, &next)| {
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        most + row.iter().map(|v| (v - most).exp()).sum::<f64>().ln() - row[next as usize]
    });
    Ok(losses.sum::<f64>() / (text.len() - 1) as f64)
}

/// How far a perplexity is off, as a part of it.
fn perplexity_error(got: f64, want: f64) -> f64 {
    ((got - want).exp() - 1.0).abs()
}

/// Holds a checkpoint against mlx-lm; how many greedy tokens the margins decided.
fn assert_runs_as_mlx_lm_does(name: &str) -> anyhow::Result<usize> {
    let (llama, want) = (load(name)?, expected(name)?);
    let dtype = dtype(&want);
    let prompt = ids(&want["prompt"]);
    let mut cache = llama.new_cache();
    let logits = numbers(&llama.forward(&tokens(&prompt)?, &mut cache)?)?;
    let reference: Vec<f64> = want["logits"].as_array().unwrap().iter().flat_map(floats).collect();
    let rounding = want["rounding"].as_f64().unwrap();
    let tolerance = tolerance(dtype, &reference, rounding);
    let error = apart(&logits, &reference);
    assert!(error <= tolerance, "{name}: logits {error:e} apart, at most {tolerance:e} allowed");
    // What mlx-lm gives in float32 is no further from ours than from its own in this type.
    let exact = floats(&want["exact_last"]);
    let from_exact = apart(&logits[logits.len() - exact.len()..], &exact);
    let allowed = rounding.max(64.0 * ulp(largest(&reference), Dtype::Float32))
        + if dtype == Dtype::Float32 { 0.0 } else { 2.0 * ulp(largest(&reference), dtype) };
    assert!(from_exact <= allowed, "{name}: {from_exact:e} from float32, {allowed:e} allowed");

    // Each step is given mlx-lm's token, so that a tie decides nothing about those after it.
    let (greedy, margins) = (ids(&want["greedy"]), floats(&want["margins"]));
    let mut row = logits[logits.len() - llama.config().vocab_size as usize..].to_vec();
    let mut decided = 0;
    let steps = if simulated() { 3 } else { greedy.len() };
    for (step, (&token, margin)) in greedy.iter().zip(margins).take(steps).enumerate() {
        if margin > 2.0 * tolerance {
            assert_eq!(best(&row), token, "{name}, token {step} of margin {margin}");
            decided += 1;
        }
        row = numbers(&llama.forward(&tokens(&[token])?, &mut cache)?)?;
    }
    if simulated() {
        return Ok(decided);
    }
    if dtype == Dtype::Float32 {
        let options = Options { max_tokens: greedy.len(), ..Options::default() };
        let ours = llama.generate(&prompt, &options)?.collect::<Result<Vec<u32>, _>>()?;
        assert_eq!(ours, greedy, "{name}");
    }

    let allowed = if dtype == Dtype::Float32 { 1e-3 } else { 1e-2 };
    let nll = mean_nll(&llama, &ids(&want["text"]))?;
    let of_mlx_lm = perplexity_error(nll, want["mean_nll"].as_f64().unwrap());
    assert!(of_mlx_lm < allowed, "{name}: perplexity off by {of_mlx_lm:e}");
    let mut said = format!(
        "{name}: logits {error:.1e} of {tolerance:.1e}, {from_exact:.1e} from float32's, \
         {decided} tokens decided"
    );
    said += &format!(", perplexity off by {of_mlx_lm:.1e}");

    if let Some(transformers) = want.get("transformers") {
        let theirs = floats(&transformers["last_logits"]);
        let ours = &logits[logits.len() - theirs.len()..];
        // transformers' Gemma has another GELU, which differs from the exact one by up to 5e-4.
        let gelu = if name.starts_with("gemma") { 2e-3 } else { 0.0 };
        let error = apart(ours, &theirs);
        assert!(error <= tolerance + gelu, "{name}: {error:e} from transformers' logits");
        let off = perplexity_error(nll, transformers["mean_nll"].as_f64().unwrap());
        assert!(off < allowed, "{name}: perplexity off by {off:e} from transformers'");
        said += &format!("; transformers: logits {error:.1e}, perplexity {off:.1e}");
    }
    eprintln!("{said}");
    Ok(decided)
}

/// All whose name says so.
fn assert_all_run(least: usize, chosen: impl Fn(&str) -> bool) -> Checked {
    let mut checked = 0;
    for name in names()?.iter().filter(|name| chosen(name)) {
        if simulated() && !FEW.contains(&name.as_str()) {
            continue;
        }
        let decided = assert_runs_as_mlx_lm_does(name)?;
        // Of 24, a few within the rounding of 16 bits.
        eprintln!("{decided}");
        checked += 1;
    }
    assert!(checked >= if simulated() { 1 } else { least }, "{checked} checkpoints found");
    Ok(())
}

fn is_packed(name: &str) -> bool {
    ["-q", "mxfp4", "every", "overrides"].iter().any(|part| name.contains(part))
}

#[test]
fn float32_runs_as_in_mlx_lm() -> Checked {
    assert_all_run(6, |name| name.contains("f32") && !is_packed(name))
}

#[test]
fn float16_runs_as_in_mlx_lm() -> Checked {
    assert_all_run(8, |name| name.contains("-f16") && !name.starts_with("gguf"))
}

#[test]
fn bfloat16_runs_as_in_mlx_lm() -> Checked {
    assert_all_run(2, |name| name.contains("-bf16"))
}

#[test]
fn packed_llamas_run_as_in_mlx_lm() -> Checked {
    assert_all_run(10, |name| is_packed(name) && name.starts_with("llama"))
}

#[test]
fn packed_kin_run_as_in_mlx_lm() -> Checked {
    let chosen = |name: &str| {
        is_packed(name) && !["llama", "gguf"].iter().any(|kind| name.starts_with(kind))
    };
    if simulated() { Ok(()) } else { assert_all_run(4, chosen) }
}

#[test]
fn gguf_files_run_as_in_mlx_lm() -> Checked {
    assert_all_run(4, |name| name.starts_with("gguf"))
}

/// Every folder is in one of the tests above, and together they have all that configs can say.
#[test]
fn every_kind_is_there() -> Checked {
    let names = names()?;
    assert!(names.len() >= 30, "{names:?}");
    let mut configs = String::new();
    for name in &names {
        let known = is_packed(name)
            || ["f32", "-f16", "-bf16"].iter().any(|part| name.contains(part))
            || name.starts_with("gguf");
        assert!(known, "{name}");
        configs += &fs::read_to_string(root().join(name).join("config.json")).unwrap_or_default();
    }
    for part in ["llama3", "linear", "yarn", "dynamic", "longrope", "sliding_attention", "mxfp4"]
        .into_iter()
        .chain(["mistral", "qwen2", "qwen3", "gemma", "\"attention_bias\": true"])
        .chain(["\"mlp_bias\": true", "\"tie_word_embeddings\": false", "rope_traditional"])
        .chain(["\"model.layers.0.mlp.down_proj\": false"])
    {
        assert!(configs.contains(part), "{part}");
    }
    let packed: std::collections::BTreeSet<(i64, i64)> = ["llama-every-format"]
        .iter()
        .map(|name| fs::read_to_string(root().join(name).join("config.json")))
        .map(|json| serde_json::from_str::<Value>(&json.unwrap()).unwrap())
        .flat_map(|config| config["quantization"].as_object().unwrap().clone())
        .filter_map(|(_, own)| Some((own["bits"].as_i64()?, own["group_size"].as_i64()?)))
        .collect();
    assert_eq!(packed.len(), 15, "{packed:?}");
    Ok(())
}
