//! Reads metadata entries of a GGUF file as numbers, strings or flags. Refuses entries that
//! describe a model that this crate cannot run.

use std::fmt::Display;

use mlx_primitives::io::gguf::{Entries, Value};
use mlx_primitives::{Error, Result};

pub(super) fn refused(expected: impl Display) -> Error {
    Error::argument("gguf", expected)
}

fn mistyped<T>(key: &str, expected: &str, value: &Value) -> Result<T> {
    Err(refused(format_args!("{expected} {key}, got {}", value.brief())))
}

/// Reads an integer that is not negative. A list with one number for each layer is read as a single
/// number if all its numbers are equal.
pub(super) fn whole(entries: &Entries, key: &str) -> Result<Option<u64>> {
    match entries.get(key) {
        None => Ok(None),
        Some(Value::Unsigned(number)) => Ok(Some(*number)),
        Some(Value::Signed(number)) if *number >= 0 => Ok(Some(number.unsigned_abs())),
        Some(value @ Value::List(list)) => {
            let mut numbers = list.numbers().into_iter().flatten();
            match numbers.next() {
                Some(first) if numbers.all(|it| it == first) && (0.0..1e9).contains(&first) => {
                    Ok(Some(first as u64))
                }
                Some(_) => mistyped(key, "equal whole numbers", value),
                None => mistyped(key, "a whole number", value),
            }
        }
        Some(value) => mistyped(key, "a whole number", value),
    }
}

/// Reads a finite number.
pub(super) fn number(entries: &Entries, key: &str) -> Result<Option<f64>> {
    let Some(value) = entries.get(key) else { return Ok(None) };
    match value.number() {
        Some(number) if number.is_finite() => Ok(Some(number)),
        _ => mistyped(key, "a number", value),
    }
}

pub(super) fn text<'a>(entries: &'a Entries, key: &str) -> Result<Option<&'a str>> {
    match entries.get(key) {
        None => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text)),
        Some(value) => mistyped(key, "a text", value),
    }
}

pub(super) fn flag(entries: &Entries, key: &str) -> Result<Option<bool>> {
    match entries.get(key) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(value) => mistyped(key, "true or false as", value),
    }
}

/// The keys that the module `config` reads. In a file, the name of the architecture precedes a key,
/// for example in `llama.block_count`.
const HONORED: [&str; 18] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
];

/// The keys that do not change the models that this crate runs. Some of them only describe the
/// model. The others have an effect only together with keys that `check` refuses.
const WITHOUT_EFFECT: [&str; 12] = [
    "attention.key_length_swa",
    "attention.layer_norm_epsilon",
    "attention.sliding_window_pattern",
    "attention.value_length_swa",
    "expert_used_count",
    "interleave_moe_layer_step",
    "pooling_type",
    "rope.dimension_count_swa",
    "rope.freq_base_swa",
    "rope.scaling.finetuned",
    "tensor_data_layout",
    "vocab_size",
];

/// Whether `value` leaves the model unchanged, for keys whose neutral value is not zero.
fn is_neutral(entries: &Entries, architecture: &str, key: &str, value: &Value) -> Result<bool> {
    let is = |expected: f64| value.number() == Some(expected);
    let own = |key: &str| number(entries, &format!("{architecture}.{key}"));
    Ok(match key {
        "attention.causal" => *value == Value::Bool(true),
        "hidden_activation" => matches!(value, Value::Text(text) if text == "silu"),
        "attention.output_scale"
        | "attention.value_scale"
        | "embedding_scale"
        | "logit_scale"
        | "residual_scale"
        | "rope.scaling.yarn_attn_factor" => is(1.0),
        "rope.scaling.yarn_ext_factor" => {
            let yarn = text(entries, &format!("{architecture}.rope.scaling.type"))? == Some("yarn");
            is(-1.0) || yarn && is(1.0)
        }
        // A window that is at least as long as the context masks no token.
        "attention.sliding_window" => match (value.number(), own("context_length")?) {
            (Some(window), Some(context)) => window >= context,
            _ => false,
        },
        "attention.scale" => {
            let width = match own("attention.key_length")? {
                Some(width) => Some(width),
                None => own("embedding_length")?
                    .zip(own("attention.head_count")?)
                    .map(|(width, heads)| width / heads),
            };
            let usual = width.map(|width| 1.0 / width.sqrt());
            usual.zip(value.number()).is_some_and(|(a, b)| (a - b).abs() <= 1e-6 * a)
        }
        _ => false,
    })
}

/// Whether a value turns off the feature that its key describes: false, 0, or an empty string or
/// list.
fn is_nothing(key: &str, value: &Value) -> bool {
    match value {
        // This crate runs only causal models, so `attention.causal` must not be false.
        Value::Bool(flag) => !flag && key != "attention.causal",
        Value::Text(text) => text.is_empty(),
        Value::List(list) => {
            list.len() == 0 || list.numbers().is_some_and(|mut all| all.all(|it| it == 0.0))
        }
        other => other.number() == Some(0.0),
    }
}

/// Returns an error if an entry of the architecture changes the model in a way that this crate does
/// not support. The error names the entry.
pub(super) fn check(entries: &Entries, architecture: &str) -> Result<()> {
    if let Some(kind) = text(entries, "general.type")?
        && kind != "model"
    {
        return Err(refused(format_args!(
            "general.type model, got {}",
            mlx_primitives::io::gguf::brief(kind)
        )));
    }
    let mut keys: Vec<&str> = entries.keys().collect();
    keys.sort_unstable();
    for key in keys {
        let own = key.strip_prefix(architecture).and_then(|rest| rest.strip_prefix('.'));
        let (Some(own), Some(value)) = (own, entries.get(key)) else { continue };
        if HONORED.contains(&own)
            || WITHOUT_EFFECT.contains(&own)
            || is_nothing(own, value)
            || is_neutral(entries, architecture, own, value)?
        {
            continue;
        }
        return Err(refused(format_args!(
            "a model without {key}, which is not supported, got {}",
            value.brief()
        )));
    }
    Ok(())
}
