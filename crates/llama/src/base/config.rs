use serde::Deserialize;

use mlx_primitives::ops::QuantizedMode;
use mlx_primitives::{Array, Error, Result};

use super::activation::Activation;
use super::config_json::{cut, parse_object, short};
use super::config_keys;
use super::model_type::{ModelType, Normalized, normalized};
use super::rope_frequencies::RopeFrequencies;
use super::rope_scaling::RopeScaling;

/// The `config.json` of a model, as Hugging Face and mlx-lm write it.
#[derive(Clone, Debug, Deserialize)]
pub struct Config {
    /// The name of the architecture, in the form that [`ModelType::parse`] reads.
    pub model_type: String,
    /// The width of the residual stream.
    pub hidden_size: i32,
    /// The number of decoder layers.
    pub num_hidden_layers: i32,
    /// The width of the feed-forward layer.
    pub intermediate_size: i32,
    /// The number of query heads.
    pub num_attention_heads: i32,
    /// The number of key heads, which is also the number of value heads. `None` means that it
    /// equals the number of query heads.
    pub num_key_value_heads: Option<i32>,
    /// The number of features of a head; `None` means `hidden_size / num_attention_heads`.
    pub head_dim: Option<i32>,
    /// The epsilon in the norms.
    pub rms_norm_eps: f32,
    /// The number of tokens in the embedding.
    pub vocab_size: i32,
    /// The greatest number of positions that the model supports.
    pub max_position_embeddings: Option<i32>,
    /// The base of the frequencies of the rotary embedding.
    #[serde(default = "default_rope_theta")]
    pub rope_theta: f32,
    /// Whether the rotary embedding pairs adjacent features. Otherwise it pairs each feature of the
    /// first half with a feature of the second half.
    #[serde(default)]
    pub rope_traditional: bool,
    /// The scaling of the rotary embedding for long sequences, in the form that
    /// [`RopeScaling::parse`] reads.
    pub rope_scaling: Option<serde_json::Value>,
    /// Whether the embedding is also the output projection. `None` means true if the model has no
    /// tensor `lm_head.weight`. The configuration of a [`Llama`](crate::Llama) never has `None`.
    pub tie_word_embeddings: Option<bool>,
    /// The quantization of projections and embedding: `group_size`, `bits` and `mode`. An entry
    /// under the path of a module has these fields for that module only, is false if the module is
    /// not quantized, or is true if it is quantized like the others.
    pub quantization: Option<serde_json::Value>,
    /// Whether the attention projections have biases. In qwen2, queries, keys and values always
    /// have biases. [`has_bias`](Self::has_bias) covers every architecture.
    #[serde(default)]
    pub attention_bias: bool,
    /// Whether the feed-forward projections have biases, in `llama` and `mistral` models.
    #[serde(default)]
    pub mlp_bias: bool,
    /// The attention of each layer: `full_attention` or `sliding_attention`. `None` means the
    /// default of the architecture and its other fields, see [`window_of`](Self::window_of).
    pub layer_types: Option<Vec<String>>,
    /// The number of positions that a query of a sliding-window layer sees, including its own.
    pub sliding_window: Option<i32>,
    /// The first layer of sliding-window attention, if `layer_types` is `None`. All later layers
    /// use it too.
    #[serde(skip)]
    pub(crate) slides_from: Option<i32>,
    /// The activation of the gate in the feed-forward layer, by its name in transformers. `None`
    /// means `gelu_pytorch_tanh` for gemma and `silu` for the other architectures.
    pub hidden_act: Option<String>,
    /// The tokens that end a sequence, unless `generation_config.json` lists others.
    #[serde(default)]
    pub eos_token_id: TokenIds,
}

/// A list of tokens. The file may have a list, a single token or nothing. Negative numbers, which
/// mean "no token" in some files, are dropped.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(try_from = "serde_json::Value")]
pub struct TokenIds(Vec<u32>);

impl TokenIds {
    /// Returns the tokens as a list.
    pub fn to_vec(&self) -> Vec<u32> {
        self.0.clone()
    }
}

impl TryFrom<serde_json::Value> for TokenIds {
    type Error = String;

    fn try_from(value: serde_json::Value) -> std::result::Result<Self, String> {
        let all = match &value {
            serde_json::Value::Null => &[],
            serde_json::Value::Array(all) => all.as_slice(),
            one => std::slice::from_ref(one),
        };
        let mut ids = Vec::new();
        for one in all {
            match one.as_i64() {
                Some(..0) => {}
                Some(id) if u32::try_from(id).is_ok() => ids.push(id as u32),
                _ => {
                    return Err(format!(
                        "a token's number or a list of them as eos_token_id, got {}",
                        short(one)
                    ));
                }
            }
        }
        Ok(Self(ids))
    }
}

/// The quantization format of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantization {
    /// The number of weights that share a scale.
    pub group_size: i32,
    /// The number of bits of a quantized weight.
    pub bits: i32,
    /// The way in which codes become numbers.
    pub mode: QuantizedMode,
}

impl Quantization {
    /// The affine format, with a scale and a bias for each group.
    pub fn affine(group_size: i32, bits: i32) -> Self {
        Self { group_size, bits, mode: QuantizedMode::Affine }
    }

    /// Whether rows with this number of elements can be quantized. The number must be a multiple of
    /// the group size and of 32, or of 256 for K-quants.
    pub(crate) fn divides(self, inputs: i32) -> bool {
        let least = if self.mode == QuantizedMode::KQuant { 256 } else { 32 };
        self.group_size > 0 && inputs % self.group_size.max(least) == 0
    }

    /// Returns the format as a JSON object for the key `quantization` of a `config.json`.
    pub fn to_json(self) -> serde_json::Value {
        let Self { group_size, bits, mode } = self;
        serde_json::json!({"group_size": group_size, "bits": bits, "mode": mode.name()})
    }

    /// Returns an error if neither MLX nor mlx-primitives has this format.
    pub(crate) fn check(self) -> Result<()> {
        Self::parse(&self.to_json()).map(drop)
    }

    fn parse(value: &serde_json::Value) -> Result<Self> {
        let number = |name: &str, default: i32| match value.get(name) {
            None => Some(default),
            Some(number) => number.as_i64().and_then(|number| i32::try_from(number).ok()),
        };
        if !value.is_object() {
            return Err(Error::argument("config", format_args!("quantization, got {value}")));
        }
        let mode = match value.get("mode") {
            None => Some(QuantizedMode::Affine),
            Some(name) => {
                QuantizedMode::ALL.into_iter().find(|mode| name.as_str() == Some(mode.name()))
            }
        };
        let only = mode.and_then(QuantizedMode::only_layout);
        let known = |layout| match only {
            Some(only) => layout == only,
            None if mode == Some(QuantizedMode::KQuant) => {
                matches!(layout, (32, 4 | 5) | (16, 6))
            }
            None => matches!(layout, (32 | 64 | 128, 2..=6 | 8)),
        };
        let (group_size, bits) = only.unwrap_or((64, 4));
        match (number("group_size", group_size), number("bits", bits), mode) {
            (Some(group_size), Some(bits), Some(mode)) if known((group_size, bits)) => {
                Ok(Self { group_size, bits, mode })
            }
            _ => Err(Error::argument(
                "config",
                format_args!(
                    "quantization with group_size 32, 64 or 128 and bits 2, 3, 4, 5, 6 or 8 of mode \
                     affine, 32 and 4 of mode mxfp4, 32 and 8 of mode mxfp8 or 16 and 4 of mode \
                     nvfp4, got {value}"
                ),
            )),
        }
    }
}

fn default_rope_theta() -> f32 {
    10_000.0
}

/// The greatest extent of an axis. Real models stay far below it, and products of two extents fit
/// in 64 bits.
const MAX_EXTENT: i32 = 1 << 24;
/// The greatest number of features of a head. It limits the list of frequencies, one for each pair
/// of features.
const MAX_HEAD_DIM: i32 = 1 << 13;

impl Config {
    /// Parses and checks a `config.json`.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not a JSON object, lacks a field that the model needs, or
    /// has a value that this crate does not support. The error names the field.
    ///
    /// ```
    /// use mlx_primitives_llama::Config;
    ///
    /// let error = Config::parse(r#"{"model_type": "llama"}"#).unwrap_err();
    /// assert!(error.to_string().contains("hidden_size"));
    /// ```
    pub fn parse(json: &str) -> Result<Self> {
        let Normalized { kind, config, slides_from } = normalized(parse_object(json)?)?;
        config_keys::check(&config, kind)?;
        let config = serde_json::Value::Object(config);
        let config: Self = serde_path_to_error::deserialize(config).map_err(|e| {
            let (path, reason) = (cut(&e.path().to_string()), cut(&e.inner().to_string()));
            Error::argument("config", format_args!("a Llama's config, got {path}: {reason}"))
        })?;
        let config = Self { slides_from, ..config };
        config.check()?;
        Ok(config)
    }

    /// Returns the architecture that `model_type` names.
    ///
    /// # Errors
    ///
    /// Returns an error if `model_type` does not name a [`ModelType`].
    pub fn kind(&self) -> Result<ModelType> {
        ModelType::parse(&self.model_type)
    }

    pub(crate) fn activation(&self) -> Result<Activation> {
        self.kind()?.activation(self.hidden_act.as_deref())
    }

    /// Computes `act(gate) * up`. `act` is the activation of the feed-forward layer, and both
    /// arrays have the same shape.
    ///
    /// # Errors
    ///
    /// Returns an error for an unknown activation, and for shapes that do not broadcast.
    pub fn gated(&self, gate: &Array, up: &Array) -> Result<Array> {
        self.activation()?.gated(gate, up)
    }

    fn check(&self) -> Result<()> {
        let refuse = |expected: &str, got: &dyn std::fmt::Display| {
            Err(Error::argument("config", format_args!("{expected}, got {got}")))
        };
        self.activation()?;
        self.quantization_of("")?;
        if let Some(all) = &self.quantization
            && ["group_size", "bits"].iter().any(|key| all.get(key).is_none())
        {
            return refuse("quantization with group_size and bits", all);
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
        if !(2..=MAX_HEAD_DIM).contains(&head_dim) || head_dim % 2 != 0 {
            return refuse(&format!("an even head_dim of at most {MAX_HEAD_DIM}"), &head_dim);
        }
        if self.num_attention_heads % self.kv_heads() != 0 {
            return refuse("query heads in multiples of key heads", &self.num_attention_heads);
        }
        let rows = i64::from(self.num_attention_heads) + 2 * i64::from(self.kv_heads());
        if i32::try_from(rows * i64::from(head_dim)).is_err() {
            return refuse("heads times head_dim of 31 bits", &self.num_attention_heads);
        }
        if !(self.rms_norm_eps >= 0.0 && self.rms_norm_eps.is_finite()) {
            return refuse("a finite rms_norm_eps >= 0", &self.rms_norm_eps);
        }
        if !(self.rope_theta > 0.0 && self.rope_theta.is_finite()) {
            return refuse("a finite rope_theta > 0", &self.rope_theta);
        }
        self.check_layer_types()?;
        self.rope_frequencies().map(|_| ())
    }

    fn check_layer_types(&self) -> Result<()> {
        let refuse = |expected: &str, got: &dyn std::fmt::Display| {
            Err(Error::argument("config", format_args!("{expected}, got {got}")))
        };
        let types = self.layer_types.as_deref().unwrap_or_default();
        let known = ["full_attention", "sliding_attention"];
        if let Some(kind) = types.iter().find(|kind| !known.contains(&kind.as_str())) {
            let kind = format!("{kind:.40}");
            return refuse("layer_types of full_attention and sliding_attention", &kind);
        }
        if self.layer_types.is_some() && i32::try_from(types.len()) != Ok(self.num_hidden_layers) {
            return refuse("as many layer_types as num_hidden_layers", &types.len());
        }
        let slides = self.slides_from.is_some() || types.iter().any(|kind| kind == known[1]);
        match self.sliding_window {
            Some(window) if slides && window < 1 => refuse("a sliding_window above 0", &window),
            None if slides => refuse("a sliding_window for sliding_attention", &"none"),
            _ => Ok(()),
        }
    }

    /// The number of positions that a query of this layer sees, including its own. Returns `None`
    /// for a layer of full attention.
    pub fn window_of(&self, layer: usize) -> Option<i32> {
        let slides = match &self.layer_types {
            Some(types) => types.get(layer).is_some_and(|kind| kind == "sliding_attention"),
            None => self.slides_from.is_some_and(|from| layer >= from.unsigned_abs() as usize),
        };
        self.sliding_window.filter(|_| slides)
    }

    /// Whether a projection has a bias. `name` is the last part of its path, such as `q_proj`.
    pub fn has_bias(&self, name: &str) -> bool {
        match self.kind() {
            Ok(ModelType::Llama | ModelType::Mistral) => match name {
                "q_proj" | "k_proj" | "v_proj" | "o_proj" => self.attention_bias,
                "gate_proj" | "up_proj" | "down_proj" => self.mlp_bias,
                _ => false,
            },
            Ok(ModelType::Qwen2) => matches!(name, "q_proj" | "k_proj" | "v_proj"),
            Ok(ModelType::Qwen3 | ModelType::Gemma) => {
                self.attention_bias && matches!(name, "q_proj" | "k_proj" | "v_proj" | "o_proj")
            }
            Err(_) => false,
        }
    }

    /// Computes the frequencies of the rotary embedding.
    ///
    /// # Errors
    ///
    /// Returns an error if the scaling is of an unknown type, if one of its numbers is missing or
    /// not allowed, or if the number of features is odd.
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

    /// The entry for the module at `path` in `quantization`. Returns `None` if there is no entry,
    /// and `Some(None)` if the entry says that the module is not quantized.
    pub(crate) fn quantization_by_name(&self, path: &str) -> Result<Option<Option<Quantization>>> {
        match self.quantization.as_ref().and_then(|all| Some((all, all.get(path)?))) {
            None => Ok(None),
            Some((_, serde_json::Value::Bool(false))) => Ok(Some(None)),
            Some((all, serde_json::Value::Bool(true))) => Ok(Some(Some(Quantization::parse(all)?))),
            Some((_, own)) => Ok(Some(Some(Quantization::parse(own)?))),
        }
    }

    /// The format that this configuration states for the module at `path`, or `None` if the module
    /// is not quantized. If the module has no entry, its weights may have another format.
    ///
    /// # Errors
    ///
    /// Returns an error for a format that neither MLX nor mlx-primitives has.
    pub fn quantization_of(&self, path: &str) -> Result<Option<Quantization>> {
        let Some(all) = &self.quantization else { return Ok(None) };
        match all.get(path) {
            Some(serde_json::Value::Bool(false)) => Ok(None),
            Some(own @ serde_json::Value::Object(_)) => Quantization::parse(own).map(Some),
            _ => Quantization::parse(all).map(Some),
        }
    }

    /// The number of key heads, which is also the number of value heads.
    pub fn kv_heads(&self) -> i32 {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// The number of features of a head.
    pub fn head_dim(&self) -> i32 {
        self.head_dim.unwrap_or_else(|| self.hidden_size / self.num_attention_heads.max(1))
    }
}
