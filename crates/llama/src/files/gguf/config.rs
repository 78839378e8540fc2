//! Converts the metadata entries of a GGUF file to the contents of a `config.json`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use mlx_primitives::io::gguf::{Entries, brief};
use mlx_primitives::{Array, Dtype, Result};

use crate::base::Quantization;
use crate::model::of_k_quants;

use super::keys::{self, number, refused, text, whole};
use super::tensors::{BIASED, Files, find};
use super::vocabulary;

/// The architectures whose GGUF files name their tensors as Llama's files do.
const ARCHITECTURES: [&str; 3] = ["llama", "qwen2", "qwen3"];

/// Converts the entries of a file to a configuration. `factors` is the tensor with a
/// factor for each period of the rotary embedding, if the file has this tensor.
pub(super) fn of(
    entries: &Entries,
    files: &Files,
    factors: Option<&Array>,
) -> Result<Map<String, Value>> {
    let architecture = text(entries, "general.architecture")?.unwrap_or("none");
    if !ARCHITECTURES.contains(&architecture) {
        let (known, got) = (ARCHITECTURES.join(", "), brief(architecture));
        return Err(refused(format_args!("general.architecture among {known}, got {got}")));
    }
    keys::check(entries, architecture)?;
    let key = |key: &str| format!("{architecture}.{key}");
    let mut config = Map::new();
    config.insert("model_type".into(), json!(architecture));
    for (ours, theirs) in [
        ("hidden_size", "embedding_length"),
        ("num_hidden_layers", "block_count"),
        ("intermediate_size", "feed_forward_length"),
        ("num_attention_heads", "attention.head_count"),
        ("num_key_value_heads", "attention.head_count_kv"),
        ("head_dim", "attention.key_length"),
        ("max_position_embeddings", "context_length"),
    ] {
        if let Some(value) = whole(entries, &key(theirs))? {
            config.insert(ours.into(), json!(value));
        }
    }
    for (ours, theirs) in
        [("rms_norm_eps", "attention.layer_norm_rms_epsilon"), ("rope_theta", "rope.freq_base")]
    {
        if let Some(value) = number(entries, &key(theirs))? {
            config.insert(ours.into(), json!(value));
        }
    }
    // llama.cpp's default.
    config.entry("rope_theta").or_insert(json!(10_000.0));
    check_heads(entries, architecture, &config)?;
    let tensors: usize = files.iter().map(|(_, arrays)| arrays.len()).sum();
    if let Some(blocks) = config.get("num_hidden_layers").and_then(Value::as_u64)
        && blocks > tensors as u64
    {
        let key = key("block_count");
        return Err(refused(format_args!("{key} of at most {tensors} tensors, got {blocks}")));
    }
    let vocab = find(files, "model.embed_tokens.weight").and_then(|rows| rows.shape().first());
    config.insert("vocab_size".into(), json!(vocab));
    if let (Some(tokens), Some(&rows)) = (vocabulary::count(entries)?, vocab)
        && i64::try_from(tokens) != Ok(i64::from(rows))
    {
        return Err(refused(format_args!("a token for each of {rows} embeddings, got {tokens}")));
    }
    let untied = find(files, "lm_head.weight").is_some();
    config.insert("tie_word_embeddings".into(), json!(!untied));
    for (key, parts) in BIASED {
        let biased = files.iter().flat_map(|(_, arrays)| arrays.keys()).any(|name| {
            let path = name.strip_suffix(".bias");
            path.is_some_and(|path| parts.iter().any(|part| path.ends_with(part)))
        });
        config.insert(key.into(), json!(biased));
    }
    if let Some(most) = most_common(files) {
        // The entry `quantization` gets the most common format. The loader derives the format of
        // each module from the shape of the module's scales.
        config.insert("quantization".into(), most.to_json());
    }
    config.insert("rope_scaling".into(), scaling(entries, architecture, &config, factors)?);
    config.insert("eos_token_id".into(), json!(vocabulary::end_tokens(entries)?));
    Ok(config)
}

/// The width of a head, if the entries of the file determine it.
fn head_dim(config: &Map<String, Value>) -> Option<u64> {
    let number = |key: &str| config.get(key).and_then(Value::as_u64);
    number("head_dim")
        .or_else(|| number("hidden_size")?.checked_div(number("num_attention_heads")?))
}

/// Returns an error if only a part of each head is rotated, or if values are not as wide as keys.
fn check_heads(entries: &Entries, architecture: &str, config: &Map<String, Value>) -> Result<()> {
    for key in ["attention.value_length", "rope.dimension_count"] {
        let key = format!("{architecture}.{key}");
        if let (Some(got), Some(width)) = (whole(entries, &key)?, head_dim(config))
            && got != width
        {
            return Err(refused(format_args!("{key} of a head's width {width}, got {got}")));
        }
    }
    Ok(())
}

/// The format with the most bytes of packed weights; `None` if no weights are packed.
fn most_common(files: &Files) -> Option<Quantization> {
    let mut bytes = BTreeMap::<(i32, i32), (Quantization, usize)>::new();
    for (name, scales) in files.iter().flat_map(|(_, arrays)| arrays) {
        let stem = name.strip_suffix(".scales");
        let Some(packed) = stem.and_then(|stem| find(files, &format!("{stem}.weight"))) else {
            continue;
        };
        let (words, scales_of_row) = (*packed.shape().last()?, *scales.shape().last()?);
        let format = match of_k_quants(words, scales_of_row, scales.dtype()) {
            Some(format) => format,
            // A group has 32 weights. Weights of n bits fill n 32-bit words per group.
            None => Quantization::affine(32, words.checked_div(scales_of_row).unwrap_or(0)),
        };
        let (_, sum) = bytes.entry((format.group_size, format.bits)).or_insert((format, 0));
        *sum += packed.nbytes();
    }
    bytes.into_values().max_by_key(|(_, bytes)| *bytes).map(|(format, _)| format)
}

/// The `rope_scaling` of the configuration. As in llama.cpp, the default type is linear, and a
/// factor that is missing or 0 counts as 1.
fn scaling(
    entries: &Entries,
    architecture: &str,
    config: &Map<String, Value>,
    factors: Option<&Array>,
) -> Result<Value> {
    let key = |key: &str| format!("{architecture}.rope.{key}");
    let kind = text(entries, &key("scaling.type"))?.unwrap_or("linear");
    let factor = match number(entries, &key("scaling.factor"))? {
        Some(factor) => Some(factor),
        None => number(entries, &key("scale_linear"))?, // its name in old files
    };
    let factor = factor.filter(|factor| *factor != 0.0 && kind != "none").unwrap_or(1.0);
    let attention = number(entries, &key("scaling.attn_factor"))?.unwrap_or(1.0);
    let limit = config.get("max_position_embeddings");
    if kind != "yarn" && attention != 1.0 {
        let key = key("scaling.attn_factor");
        return Err(refused(format_args!(
            "{key} only with type yarn, got {attention} with {kind}"
        )));
    }
    match (kind, factors) {
        ("none" | "linear", Some(factors)) => {
            let pairs = head_dim(config).unwrap_or(0) / 2;
            if factors.ndim() != 1 || factors.size() as u64 != pairs {
                let shape = factors.shape();
                return Err(refused(format_args!("rope_freqs of [{pairs}], got {shape:?}")));
            }
            let factors: Vec<f64> = factors
                .astype(Dtype::Float32)?
                .to_vec::<f32>()?
                .into_iter()
                .map(|own| f64::from(own) * factor)
                .collect();
            // LongRoPE takes a factor for each period. It does not scale attention here, because
            // both length limits are equal.
            Ok(json!({
                "type": "longrope",
                "short_factor": factors,
                "long_factor": factors,
                "original_max_position_embeddings": limit,
            }))
        }
        ("none" | "linear", None) if factor == 1.0 => Ok(Value::Null),
        ("none" | "linear", None) => Ok(json!({"type": "linear", "factor": factor})),
        ("yarn", None) => {
            let original = whole(entries, &key("scaling.original_context_length"))?;
            let original =
                original.map_or_else(|| limit.cloned(), |original| Some(json!(original)));
            // YaRN scales attention by `1 + logarithm`. The file's factor `attention` multiplies
            // this value.
            let logarithm = 0.1 * factor.max(1.0).ln();
            let multiplier = (1.0 + logarithm) * attention;
            let mscale = match logarithm > 0.0 {
                true => (multiplier - 1.0) / logarithm,
                false if attention == 1.0 => 1.0,
                false => {
                    let key = key("scaling.attn_factor");
                    return Err(refused(format_args!("{key} with a factor above 1, got {factor}")));
                }
            };
            let mut scaling = json!({
                "type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": original,
                "mscale": mscale,
                "attention_factor": multiplier,
            });
            for (ours, theirs) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")]
            {
                if let Some(value) = number(entries, &key(&format!("scaling.{theirs}")))? {
                    scaling[ours] = json!(value);
                }
            }
            Ok(scaling)
        }
        ("yarn", Some(_)) => Err(refused("no rope_freqs beside rope.scaling.type yarn, got both")),
        (other, _) => {
            let other = brief(other);
            Err(refused(format_args!("rope.scaling.type none, linear or yarn, got {other}")))
        }
    }
}
