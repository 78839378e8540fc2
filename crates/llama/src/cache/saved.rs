//! Converts a cache to named arrays and JSON, and back.

use std::collections::HashMap;
use std::ops::Range;

use serde_json::{Value, json};

use mlx_primitives::{Array, Dtype, Error, Result};

use super::kind::CacheKind;
use super::layer::{LayerCache, Plain, Storage};
use super::layers::Cache;
use super::quantized::Quantized;
use crate::base::Heads;

/// The numbers of layers and heads and the type that a cache for the model must have.
pub(crate) struct Expected {
    /// The number of all layers of the model, and the range of layers to restore.
    pub all: usize,
    pub own: Range<i32>,
    pub heads: Heads,
    pub dtype: Dtype,
}

fn refuse<T>(expected: std::fmt::Arguments) -> Result<T> {
    Err(Error::argument("prompt_cache", expected))
}

impl Cache {
    /// Returns the arrays of the layers, by name, and a JSON description of each layer. `first` is
    /// the index of the first layer in the model.
    pub(crate) fn saved(&self, first: i32) -> Result<(Vec<(String, Array)>, Value)> {
        let mut arrays = Vec::new();
        let mut layers = Vec::new();
        for (i, layer) in (first..).zip(&self.layers) {
            let mut next = 0;
            let parts: Vec<(&str, Array)> = match &layer.storage {
                Storage::Plain(cache) => named(["keys", "values"], cache.keys_and_values()?),
                Storage::Quantized(cache) => named(["packed", "scales", "biases"], cache.parts()?),
                Storage::Rotating(cache) => {
                    let kept = cache.keys_and_values()?;
                    next = kept.as_ref().map_or(0, |(_, next)| *next);
                    named(["keys", "values"], kept.map(|(keys_values, _)| keys_values))
                }
            };
            arrays.extend(parts.into_iter().map(|(name, a)| (format!("layers.{i}.{name}"), a)));
            let mut about = kind_json(layer.kind());
            about["len"] = json!(layer.len());
            about["next"] = json!(next);
            layers.push(about);
        }
        Ok((arrays, Value::Array(layers)))
    }

    /// Makes a cache from the arrays and their description. Returns an error if they do not fit the
    /// expected model.
    pub(crate) fn restored(
        arrays: &mut HashMap<String, Array>,
        about: &Value,
        expected: &Expected,
    ) -> Result<Self> {
        let layers = about.as_array().map(Vec::as_slice).unwrap_or_default();
        if layers.len() != expected.all {
            return refuse(format_args!("{} layers, got {}", expected.all, layers.len()));
        }
        let own = layers.iter().enumerate().filter(|(i, _)| expected.own.contains(&(*i as i32)));
        let restored = |(i, about): (usize, &Value)| layer(arrays, i, about, expected);
        let layers: Vec<LayerCache> = own.map(restored).collect::<Result<_>>()?;
        let len = layers.first().map_or(0, LayerCache::len);
        match layers.iter().find(|layer| layer.len() != len) {
            Some(other) => {
                refuse(format_args!("{len} positions in all layers, got {}", other.len()))
            }
            None => Ok(Self { layers }),
        }
    }
}

fn named<const N: usize>(names: [&str; N], parts: Option<[Array; N]>) -> Vec<(&str, Array)> {
    parts.map(|parts| names.into_iter().zip(parts).collect()).unwrap_or_default()
}

fn kind_json(kind: CacheKind) -> Value {
    match kind {
        CacheKind::Plain => json!({"kind": "plain"}),
        CacheKind::Quantized { group_size, bits } => {
            json!({"kind": "quantized", "group_size": group_size, "bits": bits})
        }
        CacheKind::Rotating { max_size, keep } => {
            json!({"kind": "rotating", "max_size": max_size, "keep": keep})
        }
    }
}

/// Reads a number from the description. It must be within 0 to 2^30.
fn number(about: &Value, name: &str) -> Result<i32> {
    let number = about.get(name).and_then(Value::as_i64);
    match number.and_then(|number| i32::try_from(number).ok()) {
        Some(number) if (0..=1 << 30).contains(&number) => Ok(number),
        _ => refuse(format_args!("a layer with a number {name}, got {about}")),
    }
}

fn layer(
    arrays: &mut HashMap<String, Array>,
    index: usize,
    about: &Value,
    expected: &Expected,
) -> Result<LayerCache> {
    let kind = match about.get("kind").and_then(Value::as_str) {
        Some("plain") => CacheKind::Plain,
        Some("quantized") => CacheKind::Quantized {
            group_size: number(about, "group_size")?,
            bits: number(about, "bits")?,
        },
        Some("rotating") => CacheKind::Rotating {
            max_size: number(about, "max_size")?,
            keep: number(about, "keep")?,
        },
        _ => return refuse(format_args!("a layer of a known kind, got {about}")),
    };
    let empty = LayerCache::new(kind)?;
    let len = number(about, "len")?;
    if len == 0 {
        return Ok(empty);
    }
    let Heads { kv_heads, head_dim, .. } = expected.heads;
    let name = format!("layers.{index}.keys");
    let slots = arrays.get(&name).and_then(|keys| keys.dim(2).ok()).unwrap_or(len);
    let mut take = |part: &str, shape: [i32; 4], dtype: Dtype| -> Result<Array> {
        let name = format!("layers.{index}.{part}");
        match arrays.remove(&name) {
            Some(array) if *array.shape() == shape && array.dtype() == dtype => Ok(array),
            Some(array) => refuse(format_args!(
                "{name} of shape {shape:?} and {dtype}, got {:?} and {}",
                array.shape(),
                array.dtype()
            )),
            None => refuse(format_args!("a tensor {name}, got none")),
        }
    };
    let dtype = expected.dtype;
    let kind = match (kind, empty.storage) {
        (CacheKind::Quantized { group_size, bits }, _) => {
            if head_dim % group_size != 0 {
                return refuse(format_args!("groups that divide {head_dim}, got {group_size}"));
            }
            let of = |features: i32| [1, 2 * kv_heads, len, features];
            let groups = head_dim / group_size;
            let parts = [
                take("packed", of(head_dim / 32 * bits), Dtype::Uint32)?,
                take("scales", of(groups), dtype)?,
                take("biases", of(groups), dtype)?,
            ];
            Storage::Quantized(Quantized::holding(group_size, bits, parts)?)
        }
        (CacheKind::Rotating { max_size, .. }, Storage::Rotating(empty)) => {
            let next = number(about, "next")?;
            // Until the cache is full, every position has a slot. A step of several positions may
            // leave more than `max_size` slots, until the next step.
            let whole = slots == len || (slots >= max_size && slots < len);
            if !whole || next > slots || (len < max_size && next != len) {
                return refuse(format_args!("slots of {len} positions, got {slots} and {next}"));
            }
            let mut part = |part: &str| take(part, [1, kv_heads, slots, head_dim], dtype);
            Storage::Rotating(empty.holding(
                [part("keys")?, part("values")?],
                expected.heads,
                len,
                next,
            )?)
        }
        _ => {
            let mut part = |part: &str| take(part, [1, kv_heads, len, head_dim], dtype);
            Storage::Plain(Plain::holding([part("keys")?, part("values")?], expected.heads)?)
        }
    };
    Ok(kind.into())
}
