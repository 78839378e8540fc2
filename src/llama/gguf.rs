//! Models in GGUF files: converts llama.cpp's names of tensors and its configuration.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde_json::{Map, Value, json};

use crate::array::Array;
use crate::error::{Error, Result};
use crate::io;

use super::config::Config;
use super::weights::Weights;

/// The names of a layer's modules in GGUF files and in checkpoints.
const PARTS: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The architectures whose files have a Llama's names.
const ARCHITECTURES: [&str; 3] = ["llama", "qwen2", "qwen3"];

pub(super) fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// Reads the configuration and the tensors, by their names in checkpoints.
pub(super) fn load(path: &Path) -> Result<(Config, Weights)> {
    let io::Tensors { mut arrays, metadata } = io::load_gguf(path)?;
    let factors = arrays.remove("rope_freqs.weight");
    let named = arrays.into_iter().map(|(name, array)| (translated(&name), array)).collect();
    let config = config(&metadata, &named, factors.as_ref()).map_err(|e| Error::file(path, e))?;
    let mut weights = Weights::of(path);
    weights.add(path, named)?;
    Ok((config, weights))
}

/// The name of a tensor in checkpoints. An unknown name stays as it is, and is refused later.
fn translated(name: &str) -> String {
    let (stem, part) = name.rsplit_once('.').unwrap_or((name, ""));
    let stem = match stem {
        "token_embd" => "model.embed_tokens".to_owned(),
        "output_norm" => "model.norm".to_owned(),
        "output" => "lm_head".to_owned(),
        _ => {
            let layer = stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
            let known = layer.and_then(|(layer, module)| {
                let (_, ours) = PARTS.iter().find(|(theirs, _)| *theirs == module)?;
                Some(format!("model.layers.{layer}.{ours}"))
            });
            match known {
                Some(stem) => stem,
                None => return name.to_owned(),
            }
        }
    };
    format!("{stem}.{part}")
}

/// Converts the entries of a file to a configuration.
fn config(
    metadata: &HashMap<String, String>,
    arrays: &HashMap<String, Array>,
    factors: Option<&Array>,
) -> Result<Config> {
    let refuse = |expected: std::fmt::Arguments| Err(Error::argument("gguf", expected));
    let architecture = metadata.get("general.architecture").map_or("none", String::as_str);
    if !ARCHITECTURES.contains(&architecture) {
        let known = ARCHITECTURES.join(", ");
        return refuse(format_args!("general.architecture among {known}, got {architecture}"));
    }
    let entry = |key: &str| metadata.get(&format!("{architecture}.{key}"));
    let number = |key: &str| -> Result<Option<Value>> {
        let Some(text) = entry(key) else { return Ok(None) };
        if let Ok(whole) = text.parse::<i64>() {
            return Ok(Some(json!(whole)));
        }
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok(Some(json!(number))),
            _ => Err(Error::argument("gguf", format_args!("a number {key}, got {text}"))),
        }
    };
    let mut config = Map::new();
    config.insert("model_type".into(), json!(architecture));
    for (key, theirs) in [
        ("hidden_size", "embedding_length"),
        ("num_hidden_layers", "block_count"),
        ("intermediate_size", "feed_forward_length"),
        ("num_attention_heads", "attention.head_count"),
        ("num_key_value_heads", "attention.head_count_kv"),
        ("head_dim", "attention.key_length"),
        ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
        ("rope_theta", "rope.freq_base"),
        ("max_position_embeddings", "context_length"),
    ] {
        if let Some(value) = number(theirs)? {
            config.insert(key.into(), value);
        }
    }
    // llama.cpp orders a Llama's rows of queries and keys so that neighbors are rotated as a pair.
    config.insert("rope_traditional".into(), json!(architecture == "llama"));
    let has = |name: &str| arrays.contains_key(name);
    let vocab = arrays.get("model.embed_tokens.weight").and_then(|rows| rows.shape().first());
    config.insert("vocab_size".into(), json!(vocab));
    config.insert("tie_word_embeddings".into(), json!(!has("lm_head.weight")));
    config.insert("attention_bias".into(), json!(has("model.layers.0.self_attn.o_proj.bias")));
    config.insert("mlp_bias".into(), json!(has("model.layers.0.mlp.down_proj.bias")));
    if let Some(bits) = most_common_bits(arrays) {
        // The format of each module follows from the shape of its scales.
        config.insert("quantization".into(), json!({"group_size": 32, "bits": bits}));
    }
    let scaling = match (entry("rope.scaling.type").map(String::as_str), factors) {
        (_, Some(factors)) => Some(by_factors(factors, config.get("max_position_embeddings"))?),
        (None | Some("none"), None) => None,
        (Some("linear"), None) => {
            Some(json!({"type": "linear", "factor": number("rope.scaling.factor")?}))
        }
        (Some("yarn"), None) => Some(json!({
            "type": "yarn",
            "factor": number("rope.scaling.factor")?,
            "original_max_position_embeddings": number("rope.scaling.original_context_length")?,
        })),
        (Some(other), None) => {
            return refuse(format_args!("rope.scaling.type none, linear or yarn, got {other}"));
        }
    };
    config.insert("rope_scaling".into(), json!(scaling));
    Config::parse(&Value::Object(config).to_string())
}

/// The bits of the codes in the largest part of the packed weights; `None` if nothing is packed.
fn most_common_bits(arrays: &HashMap<String, Array>) -> Option<i32> {
    let mut bytes = BTreeMap::<i32, usize>::new();
    for (name, scales) in arrays {
        let stem = name.strip_suffix(".scales");
        let Some(packed) = stem.and_then(|stem| arrays.get(&format!("{stem}.weight"))) else {
            continue;
        };
        // A group has 32 weights, so one word for each bit of a code.
        let (words, groups) = (packed.shape().last()?, scales.shape().last()?);
        let bits = words.checked_div(*groups).unwrap_or(0);
        *bytes.entry(bits).or_default() += packed.nbytes();
    }
    bytes.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(bits, _)| bits)
}

/// A longrope scaling by these factors. The original limit equals the model's, so that the
/// multiplier is 1.
fn by_factors(factors: &Array, limit: Option<&Value>) -> Result<Value> {
    let factors = factors.astype(crate::Dtype::Float32)?.to_vec::<f32>()?;
    Ok(json!({
        "type": "longrope",
        "short_factor": factors,
        "long_factor": factors,
        "original_max_position_embeddings": limit,
    }))
}
