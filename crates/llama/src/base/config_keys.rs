//! Keys of a `config.json` that change the results in other programs but that this crate does not
//! implement. It accepts only the values that have no effect.

use serde_json::{Map, Value};

use mlx_primitives::{Error, Result};

use super::config_json::short;
use super::model_type::ModelType;

/// The values of a key that have no effect. A null value never has an effect.
#[derive(Clone, Copy)]
enum Neutral {
    /// The value is false, 0, or an empty list or object.
    Off,
    /// The value is true or 1.
    On,
    /// The value is this number.
    Number(f64),
    /// The value is at most this number.
    AtMost(f64),
    /// The value is a list whose items are all 1 or true.
    Ones,
    /// The value is one of these strings.
    Text(&'static [&'static str]),
}

/// The keys, grouped by the part of the model that they change.
const KEYS: [(&str, Neutral); 49] = [
    // Keys of the rotary embedding.
    ("partial_rotary_factor", Neutral::Number(1.0)),
    ("rotary_pct", Neutral::Number(1.0)),
    ("rope_pct", Neutral::Number(1.0)),
    ("rope_interleave", Neutral::Off),
    ("rope_interleaved", Neutral::Off),
    ("no_rope_layers", Neutral::Ones),
    ("no_rope_layer_interval", Neutral::Off),
    ("rope_local_base_freq", Neutral::Off),
    ("position_embedding_type", Neutral::Text(&["rope", "rotary", "absolute"])),
    ("alibi", Neutral::Off),
    // Keys of attention.
    ("attn_logit_softcapping", Neutral::Off),
    ("attn_logit_soft_cap", Neutral::Off),
    ("clip_qkv", Neutral::Off),
    ("use_qk_norm", Neutral::Off),
    ("qk_norm", Neutral::Off),
    ("qk_layernorm", Neutral::Off),
    ("attention_chunk_size", Neutral::Off),
    ("attn_temperature_tuning", Neutral::Off),
    ("use_bidirectional_attention", Neutral::Off),
    ("is_causal", Neutral::On),
    ("kv_lora_rank", Neutral::Off),
    ("q_lora_rank", Neutral::Off),
    ("attention_sink", Neutral::Off),
    ("num_kv_shared_layers", Neutral::Off),
    ("cross_layer_attention", Neutral::Off),
    // Keys for multipliers.
    ("residual_multiplier", Neutral::Number(1.0)),
    ("embedding_multiplier", Neutral::Number(1.0)),
    ("lm_head_multiplier", Neutral::Number(1.0)),
    ("key_multiplier", Neutral::Number(1.0)),
    ("logits_scaling", Neutral::Number(1.0)),
    ("logit_scale", Neutral::Number(1.0)),
    ("scale_emb", Neutral::Number(1.0)),
    // Keys of the logits.
    ("logits_soft_cap", Neutral::Off),
    ("logit_soft_cap", Neutral::Off),
    ("final_logit_softcapping", Neutral::Off),
    ("final_logit_soft_cap", Neutral::Off),
    // Keys that change the structure of layers.
    ("num_experts", Neutral::AtMost(1.0)),
    ("num_local_experts", Neutral::AtMost(1.0)),
    ("n_routed_experts", Neutral::AtMost(1.0)),
    ("moe_num_experts", Neutral::AtMost(1.0)),
    ("n_shared_experts", Neutral::Off),
    ("parallel_attn", Neutral::Off),
    ("use_parallel_residual", Neutral::Off),
    ("apply_residual_connection_post_layernorm", Neutral::Off),
    ("use_post_norm", Neutral::Off),
    ("sandwich_norm", Neutral::Off),
    ("hidden_size_per_layer_input", Neutral::Off),
    ("is_encoder_decoder", Neutral::Off),
    // Keys of the weights.
    ("compression_config", Neutral::Off),
];

impl Neutral {
    fn allows(self, value: &Value) -> bool {
        let is = |number: f64| value.as_f64() == Some(number);
        match self {
            Self::Off => match value {
                Value::Bool(on) => !on,
                Value::Array(list) => list.is_empty(),
                Value::Object(map) => map.is_empty(),
                _ => is(0.0),
            },
            Self::On => *value == Value::Bool(true) || is(1.0),
            Self::Number(number) => is(number),
            Self::AtMost(most) => value.as_f64().is_some_and(|number| number <= most),
            Self::Ones => value.as_array().is_some_and(|list| {
                list.iter().all(|one| one.as_f64() == Some(1.0) || *one == Value::Bool(true))
            }),
            Self::Text(texts) => value.as_str().is_some_and(|text| texts.contains(&text)),
        }
    }

    fn name(self) -> String {
        match self {
            Self::Off => "none or 0".to_owned(),
            Self::On => "true".to_owned(),
            Self::Number(number) => number.to_string(),
            Self::AtMost(most) => format!("at most {most}"),
            Self::Ones => "only ones".to_owned(),
            Self::Text(texts) => texts.join(" or "),
        }
    }
}

/// Returns an error if the configuration requires a computation that this crate does not implement.
/// The caller has removed nulls.
pub(crate) fn check(config: &Map<String, Value>, kind: ModelType) -> Result<()> {
    let refuse = |key: &str, expected: &str, value: &Value| {
        let expected = format!("{key} {expected}, got {}", short(value));
        Err(Error::argument("config", expected))
    };
    let normalizes = |key: &str| {
        kind.normalizes_heads() && ["use_qk_norm", "qk_norm", "qk_layernorm"].contains(&key)
    };
    for (key, neutral) in KEYS {
        match config.get(key) {
            Some(Value::Bool(true)) if normalizes(key) => {}
            Some(value) if !neutral.allows(value) => return refuse(key, &neutral.name(), value),
            _ => {}
        }
    }
    // For these keys, the value without effect depends on other keys.
    let number = |key: &str| config.get(key).and_then(Value::as_f64);
    let head_dim = number("head_dim")
        .or_else(|| Some((number("hidden_size")? / number("num_attention_heads")?).floor()));
    let scaled = number("num_hidden_layers").map(f64::sqrt);
    for (key, neutral) in [
        ("query_pre_attn_scalar", head_dim),
        ("attention_multiplier", head_dim.map(|head_dim| head_dim.powf(-0.5))),
        ("dim_model_base", number("hidden_size")),
        ("scale_depth", scaled),
    ] {
        let Some(value) = config.get(key) else { continue };
        let near =
            |neutral: f64| number(key).is_some_and(|it| (it - neutral).abs() <= 1e-6 * neutral);
        if !neutral.is_some_and(near) {
            let neutral = neutral.map_or("none".to_owned(), |neutral| neutral.to_string());
            return refuse(key, &neutral, value);
        }
    }
    Ok(())
}
