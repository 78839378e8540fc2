//! Converts the tensors of GGUF files to the names, biases and row order of checkpoints.

use std::collections::HashMap;
use std::path::PathBuf;

use serde_json::{Map, Value};

use mlx_primitives::{Array, Result};

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

/// Renames all tensors of a GGUF file to their names in checkpoints.
pub(super) fn translated(arrays: HashMap<String, Array>) -> HashMap<String, Array> {
    arrays.into_iter().map(|(name, array)| (translate(&name), array)).collect()
}

/// Returns the name of a tensor in checkpoints. An unknown name stays unchanged, and the loader
/// refuses it.
pub(super) fn translate(name: &str) -> String {
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

/// Pairs of a configuration key and the projections that have biases in a checkpoint if the key is
/// true.
pub(super) const BIASED: [(&str, &[&str]); 2] = [
    (
        "attention_bias",
        &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"],
    ),
    ("mlp_bias", &["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]),
];

/// The path of each file of a model, and the tensors in the file.
pub(super) type Files = [(PathBuf, HashMap<String, Array>)];

/// Finds a tensor by its name in all files.
pub(super) fn find<'a>(files: &'a Files, name: &str) -> Option<&'a Array> {
    files.iter().find_map(|(_, arrays)| arrays.get(name))
}

/// Adds zeros as missing biases. In a checkpoint, all projections of a group in `BIASED` have
/// biases (in Qwen2, all except `o_proj`), or no projection of the group has a bias. In a GGUF
/// file, only some projections of a group may have biases.
pub(super) fn complete_biases(files: &mut Files, config: &Map<String, Value>) -> Result<()> {
    let kind = config.get("model_type").and_then(Value::as_str).unwrap_or_default();
    let missing = |name: &str| {
        let path = name.strip_suffix(".weight")?;
        let part = path.strip_prefix("model.layers.")?.split_once('.')?.1;
        let (key, _) = BIASED.iter().find(|(_, parts)| parts.contains(&part))?;
        let biased = match kind {
            "qwen2" => *key == "attention_bias" && part != "self_attn.o_proj",
            _ => config.get(*key) == Some(&Value::Bool(true)),
        };
        Some(format!("{path}.bias")).filter(|bias| biased && find(files, bias).is_none())
    };
    let mut zeros = Vec::new();
    for (index, (_, arrays)) in files.iter().enumerate() {
        for (name, array) in arrays {
            if let (Some(bias), [rows, _]) = (missing(name), array.shape()) {
                zeros.push((index, bias, Array::zeros::<f32>([*rows])?));
            }
        }
    }
    for (index, name, array) in zeros {
        if let Some((_, arrays)) = files.get_mut(index) {
            arrays.insert(name, array);
        }
    }
    Ok(())
}

/// Puts the rows of Llama's query and key projections in the order of checkpoints, in which the
/// rotary embedding pairs the two halves of a head. In llama.cpp's order, the rotary embedding
/// pairs neighboring rows. With one order for all models, an adapter fits a model from either kind
/// of file.
pub(super) fn reorder_heads(files: &mut Files, config: &Map<String, Value>) -> Result<()> {
    let number = |key: &str| config.get(key).and_then(Value::as_u64);
    let heads = number("num_attention_heads");
    let kv_heads = number("num_key_value_heads").or(heads);
    for (name, array) in files.iter_mut().flat_map(|(_, arrays)| arrays) {
        let heads = match name.rsplit_once('.').map(|(path, _)| path) {
            Some(path) if path.ends_with("self_attn.q_proj") => heads,
            Some(path) if path.ends_with("self_attn.k_proj") => kv_heads,
            _ => continue,
        };
        let heads = heads.and_then(|heads| i32::try_from(heads).ok()).filter(|heads| *heads > 0);
        let (Some(heads), [rows, rest @ ..]) = (heads, array.shape()) else { continue };
        if rows % (2 * heads) != 0 {
            continue; // the loader refuses this shape
        }
        let (rows, rest) = (*rows, rest.to_vec());
        let apart = [&[heads, rows / heads / 2, 2], &rest[..]].concat();
        let swapped: &[i32] = if rest.is_empty() { &[0, 2, 1] } else { &[0, 2, 1, 3] };
        let whole = [&[rows], &rest[..]].concat();
        if rest.len() <= 1 {
            *array = array.reshape(apart)?.transpose(swapped)?.reshape(whole)?;
        }
    }
    Ok(())
}
