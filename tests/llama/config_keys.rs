//! Keys of `config.json` that change the model. Each key has the same effect as in transformers, or
//! is refused with an error that names it. `tests/fixtures/config_keys.py` writes the expected
//! results.

use std::collections::HashMap;
use std::fs;

use mlx_primitives::{Array, Dtype, Result, io};
use mlx_primitives_llama::{
    CacheKind, Config, Llama, ModelFiles, Options, PromptCache, Quantization,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::checkpoints::errors::copy;
use crate::checkpoints::{apart, floats, tokens};
use crate::support::compare::numbers;
use crate::support::models::checkpoints as root;
use crate::support::{Checked, message, simulated};

/// Copies a fixture and sets these keys. A null removes a key.
pub fn changed(name: &str, changes: &Value) -> anyhow::Result<TempDir> {
    let folder = copy(name)?;
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&path)?)?;
    for (key, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(config.as_object_mut().unwrap().remove(key)),
            value => config[key] = value.clone(),
        }
    }
    fs::write(path, config.to_string())?;
    Ok(folder)
}

fn text(length: usize) -> Vec<u32> {
    (0..length).map(|i| ((7 * i * i + 3 * i + 1) % 128) as u32).collect()
}

/// Adds the same output projection as the Python script that wrote the fixture.
fn add_head(folder: &TempDir) -> Checked {
    let path = folder.path().join("model.safetensors");
    let mut arrays = io::load_safetensors(&path)?.arrays;
    mlx_primitives::eval(arrays.values())?; // the file is about to be written
    let shape = arrays["model.embed_tokens.weight"].shape().to_vec();
    let steps = (0..shape[0] * shape[1]).map(|i| (i * 37 % 101 - 50) as f32 / 64.0);
    let head = Array::from_slice(&steps.collect::<Vec<_>>(), shape.as_slice())?;
    arrays.insert("lm_head.weight".into(), head);
    io::save_safetensors(&path, arrays.iter().map(|(name, array)| (name.as_str(), array)), [])?;
    Ok(())
}

fn case(case: &Value) -> anyhow::Result<TempDir> {
    let folder = changed(case["checkpoint"].as_str().unwrap(), &case["changes"])?;
    if case["headed"] == true {
        add_head(&folder)?;
    }
    Ok(folder)
}

fn last(logits: &Array) -> anyhow::Result<Vec<f64>> {
    let vocab = logits.dim(-1)? as usize;
    let all = numbers(logits)?;
    Ok(all[all.len() - vocab..].to_vec())
}

/// Runs each text in one pass and token by token, and scores it.
#[test]
fn keys_are_honored_as_transformers_does() -> Checked {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../fixtures/config_keys.json"))?;
    let (mut checked, mut wrong) = (0, Vec::new());
    for one in cases.iter().step_by(if simulated() { 7 } else { 1 }) {
        let folder = case(one)?;
        let llama = Llama::load(folder.path())?;
        let text = text(one["length"].as_u64().unwrap() as usize);
        let want = floats(&one["last_logits"]);
        let what = format!("{} {}", one["checkpoint"], one["changes"]);
        // The 24-bit significand of float32 causes errors of about 1e-5 in these logits. The
        // changed keys move them by 0.29 or more.
        let allowed = if llama.dtype() == Dtype::Float32 { 1e-3 } else { 0.05 };
        let mut check = |how: &str, got: &[f64]| {
            let error = apart(got, &want);
            checked += 1;
            if error > allowed {
                wrong.push(format!("{what} {how}: {error:e}"));
            }
        };
        let whole = tokens(&text)?;
        check("whole", &last(&llama.forward(&whole, &mut llama.new_cache())?)?);
        let kind = one["changes"]["rope_scaling"]["rope_type"]
            .as_str()
            .or(one["changes"]["rope_scaling"]["type"].as_str());
        // The angles of these rotations depend on the length of the whole text. That is unknown
        // when tokens run one at a time.
        if !["longrope", "dynamic"].contains(&kind.unwrap_or_default()) {
            for first in [1, 11] {
                let mut cache = llama.new_cache();
                let mut logits = llama.forward(&tokens(&text[..first])?, &mut cache)?;
                for &token in &text[first..] {
                    logits = llama.forward(&tokens(&[token])?, &mut cache)?;
                }
                check("step by step", &last(&logits)?);
            }
        }
        if !simulated() {
            let score = llama.score(&text, |_| {})?;
            let off = (score.mean_nll - one["mean_nll"].as_f64().unwrap()).abs();
            assert!(off < allowed, "{what}: {score:?}");
            // The quantized model keeps the configuration.
            if llama.dtype() == Dtype::Float32 {
                let packed = llama.quantized(Quantization::affine(32, 8))?;
                let logits = packed.forward(&whole, &mut packed.new_cache())?;
                let error = apart(&last(&logits)?, &want);
                assert!(error < one["moved"].as_f64().unwrap() / 2.0 + 0.25, "{what}: {error}");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(checked >= if simulated() { 12 } else { 115 }, "{checked}");
    Ok(())
}

fn greedy_by_whole_passes(llama: &Llama, prompt: &[u32], count: usize) -> anyhow::Result<Vec<u32>> {
    let mut text = prompt.to_vec();
    for _ in 0..count {
        let logits = last(&llama.forward(&tokens(&text)?, &mut llama.new_cache())?)?;
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
        text.push(best.unwrap() as u32);
    }
    Ok(text.split_off(prompt.len()))
}

fn generated(llama: &Llama, prompt: &[u32], options: &Options) -> anyhow::Result<Vec<u32>> {
    Ok(llama.generate(prompt, options)?.collect::<Result<_>>()?)
}

/// Some models change once a text is longer than a window or the original context. A text that
/// grows past this length gets the same tokens as if each pass ran over the whole text.
#[test(simulated = once)]
fn texts_grow_past_windows_and_original_lengths() -> Checked {
    let cases: Vec<Value> = serde_json::from_str(include_str!("../fixtures/config_keys.json"))?;
    let chosen = |one: &&Value| {
        let changes = &one["changes"];
        let scaling = &changes["rope_scaling"];
        scaling["rope_type"] == "longrope" || !changes["sliding_window"].is_null()
    };
    let mut checked = 0;
    for one in cases.iter().filter(chosen) {
        let folder = case(one)?;
        let llama = Llama::load(folder.path())?;
        let what = format!("{} {}", one["checkpoint"], one["changes"]);
        let forms = llama.config().rope_scaling.is_some();
        let prompts = if forms { [text(34), text(55)] } else { [text(4), text(23)] };
        let count = if simulated() { 5 } else { 14 };
        let options = Options { max_tokens: count, prefill_step: 8, ..Options::default() };
        let want = prompts
            .iter()
            .map(|prompt| greedy_by_whole_passes(&llama, prompt, count))
            .collect::<anyhow::Result<Vec<_>>>()?;
        for (prompt, want) in prompts.iter().zip(&want) {
            assert_eq!(&generated(&llama, prompt, &options)?, want, "{what} alone");
        }
        let mut batch = vec![Vec::new(); 2];
        for step in llama.generate_batch(&prompts, &options)? {
            let (prompt, token) = step?;
            batch[prompt].push(token.id);
        }
        assert_eq!(batch, want, "{what} in a batch");
        // A draft model works as long as the cache drops no position.
        let draft = Llama::load(root().join("llama-f32"))?;
        match llama.generate(&prompts[0], &options)?.with_draft(&draft, 3) {
            Ok(drafted) => {
                let window = one["changes"]["sliding_window"].as_u64().unwrap_or(0) as usize;
                let whole = prompts[0].len() + count <= window;
                assert!(forms || whole, "{what}: positions behind a window came back");
                assert_eq!(drafted.collect::<Result<Vec<_>>>()?, want[0], "{what} with a draft");
            }
            Err(error) => assert!(!forms && error.to_string().contains("rotating"), "{error}"),
        }
        // A cache may be saved before or after the text grows past the window or the original
        // context. In both cases it can be used for a longer text.
        let parent = tempfile::tempdir()?;
        let path = parent.path().join("cache.safetensors");
        let longer: Vec<u32> = prompts[0].iter().chain(&want[0]).copied().collect();
        let whole = greedy_by_whole_passes(&llama, &longer, 5)?;
        for kept in [1, count - 1, count] {
            let few = Options { max_tokens: kept, ..options.clone() };
            let mut first = llama.generate(&prompts[0], &few)?;
            first.by_ref().collect::<Result<Vec<_>>>()?;
            first.into_prompt_cache()?.save(&path)?;
            let cache = PromptCache::load(&path, &llama)?;
            assert!(cache.is_of(CacheKind::Plain, &llama)?, "{what}");
            let five = Options { max_tokens: 5, ..options.clone() };
            let next = llama.generate(&longer, &five)?.with_cache(cache.clone())?;
            assert_eq!(next.collect::<Result<Vec<_>>>()?, whole, "{what} from a cache of {kept}");
            let again = llama.generate(&prompts[0], &five)?.with_cache(cache)?;
            assert_eq!(again.collect::<Result<Vec<_>>>()?, want[0][..5.min(count)], "{what} again");
        }
        checked += 1;
    }
    assert!(checked >= 8, "{checked}");
    Ok(())
}

/// If a window is longer than the text, it has no effect, and drafts and batches work.
#[test]
fn windows_longer_than_the_text_do_not_matter() -> Checked {
    let llama = Llama::load(root().join("mistral-f16"))?;
    assert_eq!(llama.config().window_of(0), Some(4096));
    let prompt = text(12);
    let options = Options { max_tokens: 6, ..Options::default() };
    let plain = generated(&llama, &prompt, &options)?;
    let drafted = llama.generate(&prompt, &options)?.with_draft(&llama, 3)?;
    assert_eq!(drafted.collect::<Result<Vec<_>>>()?, plain);
    let kind = CacheKind::Quantized { group_size: 32, bits: 8 };
    let mut generation = llama.generate(&prompt, &Options { cache: kind, ..options })?;
    generation.by_ref().collect::<Result<Vec<_>>>()?;
    assert!(generation.into_prompt_cache()?.is_of(kind, &llama)?);
    // A missing key gives transformers' default window, and a null turns the window off.
    for (window, seen) in [(json!(9), Some(9)), (Value::Null, Some(4096))] {
        let folder = changed("mistral-f16", &json!({"sliding_window": window}))?;
        assert_eq!(Llama::load(folder.path())?.config().window_of(0), seen);
    }
    let config = fs::read_to_string(root().join("mistral-f16/config.json"))?;
    let config = Config::parse(&config.replace("4096", "null"))?;
    assert_eq!(config.window_of(0), None);
    Ok(())
}

fn base(kind: &str) -> Value {
    json!({
        "model_type": kind, "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 96,
        "num_attention_heads": 4, "head_dim": 16, "rms_norm_eps": 1e-5, "vocab_size": 128,
        "max_position_embeddings": 256,
    })
}

fn parsed(kind: &str, key: &str, value: &Value) -> Result<Config> {
    let mut config = base(kind);
    config[key] = value.clone();
    Config::parse(&config.to_string())
}

#[test]
fn keys_that_are_not_honored_are_refused_by_name() -> Checked {
    let nested =
        json!({"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}});
    let refused = [
        ("hidden_act", json!("xielu")),
        ("hidden_act", json!(3)),
        ("partial_rotary_factor", json!(0.5)),
        ("logits_soft_cap", json!(30.0)),
        ("final_logit_softcapping", json!(30.0)),
        ("attn_logit_softcapping", json!(50.0)),
        ("query_pre_attn_scalar", json!(144)),
        ("attention_multiplier", json!(0.5)),
        ("residual_multiplier", json!(0.22)),
        ("embedding_multiplier", json!(12.0)),
        ("logits_scaling", json!(8.0)),
        ("scale_emb", json!(12)),
        ("scale_depth", json!(1.4)),
        ("dim_model_base", json!(256)),
        ("clip_qkv", json!(8.0)),
        ("num_experts", json!(8)),
        ("num_local_experts", json!(8)),
        ("n_routed_experts", json!(64)),
        ("use_bidirectional_attention", json!(true)),
        ("is_causal", json!(false)),
        ("no_rope_layers", json!([1, 1, 1, 0])),
        ("alibi", json!(true)),
        ("attention_chunk_size", json!(8192)),
        ("kv_lora_rank", json!(512)),
        ("rope_parameters", nested),
        ("quantization_config", json!({"quant_method": "gptq", "bits": 4})),
        ("compression_config", json!({"format": "int-quantized"})),
    ];
    for kind in ["llama", "mistral", "qwen2", "qwen3", "gemma"] {
        for (key, value) in &refused {
            let said = message(parsed(kind, key, value));
            let inner = if *key == "quantization_config" { "quant_method" } else { key };
            assert!(said.contains(inner), "{kind} {key} {value}: {said}");
            assert!(said.len() < 420, "{said}");
        }
        for (key, value) in [
            ("partial_rotary_factor", json!(1.0)),
            ("logits_soft_cap", json!(null)),
            ("final_logit_softcapping", json!(null)),
            ("query_pre_attn_scalar", json!(16)),
            ("attention_multiplier", json!(0.25)),
            ("residual_multiplier", json!(1)),
            ("scale_depth", json!(2.0)),
            ("dim_model_base", json!(64)),
            ("clip_qkv", json!(null)),
            ("num_experts", json!(0)),
            ("no_rope_layers", json!([1, 1, 1, 1])),
            ("pretraining_tp", json!(4)), // the same sums in another order
            ("use_cache", json!(false)),
            ("attention_dropout", json!(0.1)),
            ("some_key_of_tomorrow", json!({"a": [1, 2]})),
            ("rope_parameters", json!({"full_attention": {"rope_theta": 1e6}})),
            ("rope_scaling", json!({"type": "mrope", "mrope_section": [2, 3, 3]})),
            (
                "rope_scaling",
                json!({"type": "default", "rope_type": "default", "mrope_section": [2]}),
            ),
        ] {
            let config = parsed(kind, key, &value);
            assert!(config.is_ok(), "{kind} {key} {value}: {}", message(config));
        }
    }
    // The error truncates long values.
    let said = message(parsed("llama", "clip_qkv", &json!("x".repeat(100_000))));
    assert!(said.contains("clip_qkv") && said.len() < 300, "{said}");
    Ok(())
}

#[test]
fn numbers_that_python_writes() -> Checked {
    let mut with_place = base("llama");
    with_place["rms_norm_eps"] = json!("@");
    let with_place = with_place.to_string();
    let text = base("llama").to_string();
    for literal in ["NaN", "Infinity", "-Infinity"] {
        // JSON does not allow these numbers, but Python writes them. They cause no error in keys
        // that the parser does not read.
        let harmless = text.replacen('{', &format!("{{\"a \\\" NaN\": [0.0, {literal}],"), 1);
        assert!(Config::parse(&harmless).is_ok(), "{literal}");
        let read = with_place.replace("\"@\"", literal);
        let said = message(Config::parse(&read));
        assert!(said.contains("rms_norm_eps") && said.contains(literal), "{said}");
    }
    assert!(Config::parse(&with_place.replace("\"@\"", "NaNs")).is_err());
    for (ids, want) in [
        (json!(-1), vec![]),
        (json!(null), vec![]),
        (json!([]), vec![]),
        (json!(7), vec![7]),
        (json!([7, -1, 9]), vec![7, 9]),
    ] {
        assert_eq!(parsed("llama", "eos_token_id", &ids)?.eos_token_id.to_vec(), want, "{ids}");
    }
    for ids in [json!("7"), json!(1.5), json!(1i64 << 40), json!([[7]]), json!({"a": 7})] {
        let said = message(parsed("llama", "eos_token_id", &ids));
        assert!(said.contains("eos_token_id"), "{ids}: {said}");
    }
    Ok(())
}

/// If the file has no output projection, the model uses the embedding. A converted checkpoint's
/// config states which of the two it uses.
#[test]
fn ties_are_decided_by_what_is_stored() -> Checked {
    for (stated, headed, tied) in
        [(Value::Null, true, false), (Value::Null, false, true), (json!(true), true, true)]
    {
        let folder = changed("llama-f32", &json!({"tie_word_embeddings": stated}))?;
        if headed {
            add_head(&folder)?;
        }
        let llama = Llama::load(folder.path())?;
        assert_eq!(llama.config().tie_word_embeddings, Some(tied), "{stated} {headed}");
        let parent = tempfile::tempdir()?;
        let packed = parent.path().join("packed");
        let to = Quantization::affine(32, 8);
        ModelFiles::open(folder.path())?.quantized(to, None, |_, _| {})?.save(&packed)?;
        let written: HashMap<String, Value> =
            serde_json::from_str(&fs::read_to_string(packed.join("config.json"))?)?;
        assert_eq!(written["tie_word_embeddings"], tied, "{stated} {headed}");
        let whole = tokens(&text(9))?;
        let [one, other] = [&llama, &Llama::load(&packed)?]
            .map(|llama| last(&llama.forward(&whole, &mut llama.new_cache()).unwrap()).unwrap());
        assert!(apart(&one, &other) < 0.3, "{stated} {headed}");
    }
    Ok(())
}
