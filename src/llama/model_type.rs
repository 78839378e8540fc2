use serde_json::{Map, Value, json};

use crate::error::{Error, Result};

/// The architectures that share the code of [`Llama`](super::Llama). Each reads a `config.json` as
/// mlx-lm's module of that name does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelType {
    /// Has the biases and the layers of sliding attention that the configuration asks for.
    Llama,
    /// A Llama by another name. `sliding_window` alone changes nothing.
    Mistral,
    /// Has biases for queries, keys and values.
    Qwen2,
    /// Normalizes the vectors of queries and keys before their rotation.
    Qwen3,
    /// Has norms of `1 + weight`, GELU as the gate, and an embedding multiplied by
    /// `sqrt(hidden_size)`.
    Gemma,
}

impl ModelType {
    /// Every architecture.
    pub const ALL: [Self; 5] = [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3, Self::Gemma];

    /// The name in `model_type` of a `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma => "gemma",
        }
    }

    /// The architecture of a name in `model_type`.
    ///
    /// # Errors
    ///
    /// Returns an error that lists the known names if this is not one of them.
    ///
    /// ```
    /// use mlx_primitives::llama::ModelType;
    ///
    /// assert_eq!(ModelType::parse("qwen3")?, ModelType::Qwen3);
    /// let error = ModelType::parse("mamba").unwrap_err().to_string();
    /// assert!(error.contains("llama, mistral, qwen2, qwen3, gemma") && error.contains("mamba"));
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn parse(name: &str) -> Result<Self> {
        // mlx-lm runs these two as Llamas.
        if matches!(name, "iquestcoder" | "xverse") {
            return Ok(Self::Llama);
        }
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::argument("config", format_args!("model_type among {known}, got {name}"))
        })
    }

    /// Whether a `config.json` may list the kind of attention of each layer.
    pub(super) fn has_layer_types(self) -> bool {
        matches!(self, Self::Llama | Self::Mistral)
    }

    /// Whether queries and keys are normalized head by head.
    pub(super) fn normalizes_heads(self) -> bool {
        self == Self::Qwen3
    }

    /// Whether norms multiply by `1 + weight`.
    pub(super) fn norms_from_one(self) -> bool {
        self == Self::Gemma
    }

    /// Whether the gate is GELU rather than SiLU. mlx-lm's Gemma computes it by erf, that of
    /// transformers by the approximation with tanh.
    pub(super) fn gates_by_gelu(self) -> bool {
        self == Self::Gemma
    }

    /// Whether the embedding is multiplied by the square root of its width.
    pub(super) fn scales_embedding(self) -> bool {
        self == Self::Gemma
    }
}

/// Converts a `config.json` to the form that [`Config`](super::Config) reads: without nulls, with
/// the defaults of its type, and with the fields that newer files nest where older ones have them.
pub(super) fn normalized(mut config: Map<String, Value>) -> Result<(ModelType, Value)> {
    let refuse = |expected: &str, got: &dyn std::fmt::Display| {
        Err(Error::argument("config", format_args!("{expected}, got {got}")))
    };
    config.retain(|_, value| !value.is_null());
    let kind = match config.get("model_type") {
        Some(Value::String(name)) => ModelType::parse(name)?,
        Some(other) => return refuse("a text as model_type", other),
        None => return refuse("model_type", &"none"),
    };
    // transformers 5 writes both of these fields here. mlx-lm reads them for its newer types alone,
    // but files of other types give the wrong text without them.
    if let Some(Value::Object(nested)) = config.remove("rope_parameters") {
        if let (None, Some(theta)) = (config.get("rope_theta"), nested.get("rope_theta")) {
            config.insert("rope_theta".into(), theta.clone());
        }
        config.entry("rope_scaling").or_insert(Value::Object(nested));
    }
    match kind {
        ModelType::Llama | ModelType::Mistral => {}
        ModelType::Qwen2 => {
            config.remove("head_dim");
            config.entry("rope_theta").or_insert(json!(1e6));
        }
        ModelType::Qwen3 => {
            config.remove("rope_traditional");
            require(&config, kind, &["head_dim", "rope_theta", "tie_word_embeddings"])?;
        }
        ModelType::Gemma => {
            config.remove("rope_scaling");
            config.insert("tie_word_embeddings".into(), json!(true));
            require(&config, kind, &["head_dim"])?;
        }
    }
    if !kind.has_layer_types() {
        config.remove("layer_types");
    }
    if let (None, Some(method)) = (config.get("quantization"), config.get("quantization_config")) {
        let quantization = legacy_quantization(method)?;
        config.insert("quantization".into(), quantization);
    }
    Ok((kind, Value::Object(config)))
}

fn require(config: &Map<String, Value>, kind: ModelType, keys: &[&str]) -> Result<()> {
    match keys.iter().find(|key| !config.contains_key(**key)) {
        None => Ok(()),
        Some(key) => Err(Error::argument(
            "config",
            format_args!("{key} for model_type {}, got none", kind.name()),
        )),
    }
}

/// Converts a `quantization_config` without a `quantization` beside it to MLX's fields.
fn legacy_quantization(config: &Value) -> Result<Value> {
    match config.get("quant_method") {
        Some(Value::String(method)) if method == "mxfp4" => {
            Ok(json!({"group_size": 32, "bits": 4, "mode": "mxfp4"}))
        }
        Some(method) => Err(Error::argument(
            "config",
            format_args!("quantization_config of quant_method mxfp4 or of MLX's own, got {method}"),
        )),
        None => Ok(config.clone()),
    }
}
