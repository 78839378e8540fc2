use serde::Deserialize;

use crate::error::{Error, Result};
use crate::ops::QuantizedMode;

use super::rope_frequencies::RopeFrequencies;
use super::rope_scaling::RopeScaling;

/// `config.json` of a Llama, as Hugging Face and mlx-lm write it.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// Must be `llama`.
    pub model_type: String,
    /// Width of the residual stream.
    pub hidden_size: i32,
    /// Decoder layers.
    pub num_hidden_layers: i32,
    /// Width of the feed-forward layer.
    pub intermediate_size: i32,
    /// Query heads.
    pub num_attention_heads: i32,
    /// Key and value heads; as many as query heads if absent.
    pub num_key_value_heads: Option<i32>,
    /// Width of a head; `hidden_size / num_attention_heads` if absent.
    pub head_dim: Option<i32>,
    /// The norms' epsilon.
    pub rms_norm_eps: f32,
    /// Tokens known to the embedding.
    pub vocab_size: i32,
    /// The longest sequence the model was made for.
    pub max_position_embeddings: Option<i32>,
    /// Base of the rotary frequencies.
    #[serde(default = "default_rope_theta")]
    pub rope_theta: f32,
    /// Rotate neighbours rather than halves.
    #[serde(default)]
    pub rope_traditional: bool,
    /// How the rotary embedding is stretched, as [`RopeScaling::parse`] reads it.
    pub rope_scaling: Option<serde_json::Value>,
    /// Whether the embedding is the output projection too.
    #[serde(default = "default_tie")]
    pub tie_word_embeddings: bool,
    /// How projections and embedding are packed: group_size, bits and mode, and under a module's
    /// path the same for it alone, or false.
    pub quantization: Option<serde_json::Value>,
    /// Whether the attention's projections have biases; [`estimate`](super::estimate) asks, the
    /// model takes what the checkpoint has.
    #[serde(default)]
    pub attention_bias: bool,
    /// The same of the feed-forward layer's.
    #[serde(default)]
    pub mlp_bias: bool,
    /// Attention of each layer; only `full_attention` is supported.
    pub layer_types: Option<Vec<String>>,
    /// Tokens that end a text; overridden by generation_config.json.
    #[serde(default)]
    pub eos_token_id: TokenIds,
}

/// One token or a list of them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged)]
pub enum TokenIds {
    /// None.
    #[default]
    None,
    /// One.
    One(u32),
    /// Several.
    Many(Vec<u32>),
}

impl TokenIds {
    /// As a list.
    pub fn to_vec(&self) -> Vec<u32> {
        match self {
            Self::None => Vec::new(),
            Self::One(id) => vec![*id],
            Self::Many(ids) => ids.clone(),
        }
    }
}

/// How the numbers of a matrix are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantization {
    /// Numbers of a group, which has a scale.
    pub group_size: i32,
    /// Bits of a number.
    pub bits: i32,
    /// How groups become numbers.
    pub mode: QuantizedMode,
}

impl Quantization {
    /// With a scale and a bias for each group.
    pub fn affine(group_size: i32, bits: i32) -> Self {
        Self { group_size, bits, mode: QuantizedMode::Affine }
    }

    /// As `quantization` in `config.json`.
    pub fn to_json(self) -> serde_json::Value {
        let mode = match self.mode {
            QuantizedMode::Affine => "affine",
            QuantizedMode::Mxfp4 => "mxfp4",
        };
        serde_json::json!({"group_size": self.group_size, "bits": self.bits, "mode": mode})
    }

    fn parse(value: &serde_json::Value) -> Result<Self> {
        let number = |name: &str| {
            let number = value.get(name).and_then(serde_json::Value::as_i64);
            number.and_then(|number| i32::try_from(number).ok())
        };
        let mode = match value.get("mode").map(|mode| mode.as_str()) {
            None | Some(Some("affine")) => Some(QuantizedMode::Affine),
            Some(Some("mxfp4")) => Some(QuantizedMode::Mxfp4),
            Some(_) => None,
        };
        match (number("group_size"), number("bits"), mode) {
            (Some(group_size @ (32 | 64 | 128)), Some(bits @ (2 | 3 | 4 | 6 | 8)), Some(mode)) => {
                Ok(Self { group_size, bits, mode })
            }
            _ => Err(Error::argument(
                "config",
                format_args!(
                    "quantization with group_size 32, 64 or 128, bits 2, 3, 4, 6 or 8 and mode \
                     affine or mxfp4, got {value}"
                ),
            )),
        }
    }
}

fn default_rope_theta() -> f32 {
    10_000.0
}

fn default_tie() -> bool {
    true
}

/// Far above any model, far below what overflows when extents are multiplied.
const MAX_EXTENT: i32 = 1 << 24;

impl Config {
    /// Parses and checks `config.json`.
    ///
    /// ```
    /// use mlx_primitives::llama::Config;
    ///
    /// let error = Config::parse(r#"{"model_type": "llama"}"#).unwrap_err();
    /// assert!(error.to_string().contains("hidden_size"));
    /// ```
    pub fn parse(json: &str) -> Result<Self> {
        let config: Self = serde_json::from_str(json)
            .map_err(|e| Error::argument("config", format_args!("a Llama's config, got {e}")))?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<()> {
        let refuse = |expected: &str, got: &dyn std::fmt::Display| {
            Err(Error::argument("config", format_args!("{expected}, got {got}")))
        };
        if self.model_type != "llama" {
            return refuse("model_type llama", &self.model_type);
        }
        self.quantization_of("")?;
        if let Some(kind) = self.layer_types.iter().flatten().find(|t| *t != "full_attention") {
            return refuse("layer_types of full_attention", kind);
        }
        let extents = [
            ("hidden_size", self.hidden_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("intermediate_size", self.intermediate_size),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.kv_heads()),
            ("vocab_size", self.vocab_size),
            ("max_position_embeddings", self.max_position_embeddings.unwrap_or(1)),
        ];
        for (name, extent) in extents {
            if !(1..=MAX_EXTENT).contains(&extent) {
                return refuse(&format!("{name} within 1 to {MAX_EXTENT}"), &extent);
            }
        }
        let head_dim = self.head_dim();
        if !(2..=MAX_EXTENT).contains(&head_dim) || head_dim % 2 != 0 {
            return refuse("an even head_dim", &head_dim);
        }
        if self.num_attention_heads % self.kv_heads() != 0 {
            return refuse("query heads in multiples of key heads", &self.num_attention_heads);
        }
        if self.num_attention_heads.checked_mul(head_dim).is_none() {
            return refuse("heads times head_dim of 31 bits", &self.num_attention_heads);
        }
        if !(self.rms_norm_eps >= 0.0 && self.rms_norm_eps.is_finite()) {
            return refuse("a finite rms_norm_eps >= 0", &self.rms_norm_eps);
        }
        if !(self.rope_theta > 0.0 && self.rope_theta.is_finite()) {
            return refuse("a finite rope_theta > 0", &self.rope_theta);
        }
        self.rope_frequencies().map(|_| ())
    }

    /// What the rotary embedding turns by.
    pub fn rope_frequencies(&self) -> Result<RopeFrequencies> {
        let scaling = match &self.rope_scaling {
            Some(scaling) => RopeScaling::parse(scaling)?,
            None => RopeScaling::Default,
        };
        RopeFrequencies::new(
            self.head_dim(),
            self.rope_traditional,
            self.rope_theta,
            &scaling,
            self.max_position_embeddings,
        )
    }

    /// How the module at `path` is packed, if its weights are.
    pub fn quantization_of(&self, path: &str) -> Result<Option<Quantization>> {
        let Some(all) = &self.quantization else { return Ok(None) };
        match all.get(path) {
            Some(serde_json::Value::Bool(false)) => Ok(None),
            Some(own @ serde_json::Value::Object(_)) => Quantization::parse(own).map(Some),
            _ => Quantization::parse(all).map(Some),
        }
    }

    /// Key and value heads.
    pub fn kv_heads(&self) -> i32 {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// Features of a head.
    pub fn head_dim(&self) -> i32 {
        self.head_dim.unwrap_or_else(|| self.hidden_size / self.num_attention_heads.max(1))
    }
}
