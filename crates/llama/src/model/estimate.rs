use mlx_primitives::ops::{KvLayout, QuantizedMode};
use mlx_primitives::{Dtype, Error, Result};

use crate::base::{Config, ModelType, Quantization};
use crate::cache::{CacheKind, LayerCache, STEP};

/// The estimated memory of a model, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// The bytes of the weights.
    pub weights: u64,
    /// The bytes of a cache that holds the whole context.
    pub cache: u64,
}

impl Estimate {
    /// The bytes of weights and cache together.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.cache)
    }
}

/// Estimates the memory of a model before it is loaded, in bytes: the weights, in `dtype` or
/// quantized, and a cache of the kind `cache` for `batch` sequences of `context` positions. The
/// activations of a step are not included. A layer whose window is shorter than `context` counts
/// with a rotating cache of the window's length.
///
/// As in mlx-lm, every projection and the embedding are quantized if the length of their rows is a
/// multiple of the group size. The norms are not quantized.
///
/// # Errors
///
/// Returns an error for a type that is not floating, for invalid groups or bits, and for an invalid
/// kind of cache.
///
/// ```
/// use mlx_primitives::Dtype;
/// use mlx_primitives_llama::{CacheKind, Config, Quantization, estimate};
///
/// let config = Config::parse(
///     r#"{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16,
///         "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8,
///         "rms_norm_eps": 1e-5, "vocab_size": 128256}"#,
/// )?;
/// let four_bits = Some(Quantization::affine(64, 4));
/// let bytes = estimate(&config, Dtype::Bfloat16, four_bits, CacheKind::Plain, 1, 4096)?;
/// assert_eq!(bytes.weights >> 20, 663);
/// assert_eq!(bytes.cache >> 20, 128);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn estimate(
    config: &Config,
    dtype: Dtype,
    quantization: Option<Quantization>,
    cache: CacheKind,
    batch: u32,
    context: u32,
) -> Result<Estimate> {
    if !dtype.is_floating() {
        return Err(Error::argument("estimate", format_args!("a floating type, got {dtype}")));
    }
    if let Some(Quantization { group_size, bits, .. }) = quantization
        && (group_size < 1 || !(1..=8).contains(&bits))
    {
        return Err(Error::argument(
            "estimate",
            format_args!("groups and 1 to 8 bits, got {group_size} and {bits}"),
        ));
    }
    let size = dtype.size() as u64;
    let context = u64::from(context);
    let per_layer = cache_of_layer(config, size, cache, context)?;
    // All layers with sliding-window attention have the same window length.
    let layers = 0..config.num_hidden_layers.unsigned_abs() as usize;
    let windows = layers.filter_map(|i| config.window_of(i));
    let (sliding, window) = windows.fold((0, 0), |(count, _), window| (count + 1, window));
    let full = extent(config.num_hidden_layers).saturating_sub(sliding);
    let mut caches = per_layer.saturating_mul(full);
    if sliding > 0 && context > extent(window) {
        let kind = CacheKind::Rotating { max_size: window, keep: 0 };
        let of_layer = cache_of_layer(config, size, kind, context)?;
        caches = caches.saturating_add(of_layer.saturating_mul(sliding));
    } else {
        caches = caches.saturating_add(per_layer.saturating_mul(sliding));
    }
    Ok(Estimate {
        weights: weights(config, size, quantization),
        cache: caches.saturating_mul(u64::from(batch)),
    })
}

/// Converts a number of a [`Config`]. The parser of `Config` has checked that it is positive.
fn extent(value: i32) -> u64 {
    u64::from(value.unsigned_abs())
}

fn weights(config: &Config, size: u64, quantization: Option<Quantization>) -> u64 {
    let matrix = |name: &str, [outputs, inputs]: [i32; 2]| {
        let numbers = extent(inputs).saturating_mul(extent(outputs));
        let stored = match quantization {
            Some(to @ Quantization { group_size, bits, mode }) if to.divides(inputs) => {
                let (group, of_group) = match mode {
                    QuantizedMode::Affine => (extent(group_size), 2 * size),
                    QuantizedMode::KQuant => (256, 20), // a block: elements, bytes of scales
                    _ => (extent(group_size), 1),
                };
                (numbers / 8).saturating_mul(extent(bits))
                    + (numbers / group).saturating_mul(of_group)
            }
            _ => numbers.saturating_mul(size),
        };
        let bias = config.has_bias(name.rsplit('.').next().unwrap_or(name));
        stored.saturating_add(if bias { extent(outputs) * size } else { 0 })
    };
    let hidden = extent(config.hidden_size);
    let head_norms = config.kind().is_ok_and(ModelType::normalizes_heads);
    let norms = 2 * hidden + if head_norms { 2 * extent(config.head_dim()) } else { 0 };
    let projections = config.projections().map(|(name, shape)| matrix(name, shape));
    let layer = projections.into_iter().fold(norms * size, u64::saturating_add);
    let embedding = matrix("embed_tokens", [config.vocab_size, config.hidden_size]);
    let heads = if config.tie_word_embeddings.unwrap_or(true) { 1 } else { 2 };
    layer
        .saturating_mul(extent(config.num_hidden_layers))
        .saturating_add(embedding.saturating_mul(heads))
        .saturating_add(hidden * size)
}

/// The bytes of a layer's cache for one sequence.
fn cache_of_layer(config: &Config, size: u64, kind: CacheKind, context: u64) -> Result<u64> {
    LayerCache::new(kind)?; // returns an error for an invalid kind
    let (heads, kv_heads) = (extent(config.num_attention_heads), extent(config.kv_heads()));
    let features = extent(config.head_dim());
    let step = extent(STEP);
    let capacity = context.div_ceil(step) * step;
    if context == 0 {
        return Ok(0);
    }
    let state = |capacity: u64| {
        let rows = heads * extent(KvLayout::QUERY_POSITIONS) + 2 * kv_heads * capacity;
        rows.saturating_mul(features * size)
    };
    Ok(match kind {
        CacheKind::Plain => state(capacity),
        CacheKind::Rotating { max_size, .. } => state(capacity.min(extent(max_size))),
        CacheKind::Quantized { group_size, bits } => {
            if !features.is_multiple_of(extent(group_size)) {
                return Err(Error::argument(
                    "estimate",
                    format_args!("groups that divide {features} features, got {group_size}"),
                ));
            }
            let vector = features / 8 * extent(bits) + features / extent(group_size) * 2 * size;
            (2 * kv_heads * capacity).saturating_mul(vector)
        }
    })
}
