use serde_json::{Map, Value, json};

use mlx_primitives::{Error, Result};

use super::activation::Activation;
use super::config_json::short;

/// The architectures that [`Llama`](crate::Llama) implements. For each, this crate reads a
/// `config.json` as transformers does. If transformers does not have a field, this crate reads the
/// field as mlx-lm does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModelType {
    /// Has biases and sliding-window layers if the configuration says so.
    Llama,
    /// Like `Llama`, but every layer sees only the last `sliding_window` positions, unless this
    /// field is null or `layer_types` lists the kinds of layers.
    Mistral,
    /// Has biases for queries, keys and values. With `use_sliding_window`, the layers from
    /// `max_window_layers` on, or those that `layer_types` names, see only the last
    /// `sliding_window` positions.
    Qwen2,
    /// Normalizes each head's queries and keys before the rotation. Has windows like
    /// [`Qwen2`](Self::Qwen2).
    Qwen3,
    /// Its norms multiply by `1 + weight`, its activation is GELU, and its embedding is multiplied
    /// by `sqrt(hidden_size)`.
    Gemma,
}

impl ModelType {
    /// All architectures.
    pub const ALL: [Self; 5] = [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3, Self::Gemma];

    /// The name of the architecture in `model_type` of a `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma => "gemma",
        }
    }

    /// Returns the architecture with this name in `model_type`.
    ///
    /// # Errors
    ///
    /// Returns an error that lists the known names if `name` is unknown.
    ///
    /// ```
    /// use mlx_primitives_llama::base::ModelType;
    ///
    /// assert_eq!(ModelType::parse("qwen3")?, ModelType::Qwen3);
    /// let error = ModelType::parse("mamba").unwrap_err().to_string();
    /// assert!(error.contains("llama, mistral, qwen2, qwen3, gemma") && error.contains("mamba"));
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Error::argument("config", format_args!("model_type among {known}, got {name}"))
        })
    }

    /// Whether the model normalizes the queries and the keys of each head.
    pub(crate) fn normalizes_heads(self) -> bool {
        self == Self::Qwen3
    }

    /// Whether norms multiply by `1 + weight`.
    pub(crate) fn norms_from_one(self) -> bool {
        self == Self::Gemma
    }

    /// The activation that `hidden_act` names. In Gemma, `gelu` means the tanh approximation of
    /// GELU, as in transformers, because Gemma was trained with it. mlx-lm computes the exact GELU
    /// instead.
    pub(crate) fn activation(self, hidden_act: Option<&str>) -> Result<Activation> {
        match (self, hidden_act) {
            (Self::Gemma, None | Some("gelu")) => Ok(Activation::GeluTanh),
            (_, Some(name)) => Activation::parse(name),
            (_, None) => Ok(Activation::Silu),
        }
    }

    /// Whether the model multiplies the embedding by the square root of its width.
    pub(crate) fn scales_embedding(self) -> bool {
        self == Self::Gemma
    }
}

/// A `config.json` in the form that [`Config`](crate::Config) reads.
pub(crate) struct Normalized {
    pub kind: ModelType,
    /// The configuration without nulls, with the defaults of its architecture. Fields that
    /// newer files nest are moved to where older files have them.
    pub config: Map<String, Value>,
    /// The first layer of sliding-window attention, if no field lists the kinds of layers. All
    /// later layers use it too.
    pub slides_from: Option<i32>,
}

/// The default window in transformers.
const WINDOW: i32 = 4096;

pub(crate) fn normalized(mut config: Map<String, Value>) -> Result<Normalized> {
    let refuse = |expected: &str, got: &dyn std::fmt::Display| {
        Err(Error::argument("config", format_args!("{expected}, got {got}")))
    };
    let no_window = config.get("sliding_window").is_some_and(Value::is_null);
    config.retain(|_, value| !value.is_null());
    let kind = match config.get("model_type") {
        Some(Value::String(name)) => ModelType::parse(name)?,
        Some(other) => return refuse("a text as model_type", &short(other)),
        None => return refuse("model_type", &"none"),
    };
    gather_rope(&mut config)?;
    match kind {
        ModelType::Llama | ModelType::Mistral | ModelType::Qwen2 => {}
        ModelType::Qwen3 => {
            config.remove("rope_traditional");
            config.entry("head_dim").or_insert(json!(128));
        }
        ModelType::Gemma => {
            config.entry("head_dim").or_insert(json!(256));
        }
    }
    if let Some(other) = config.get("hidden_activation") {
        let own = kind.activation(config.get("hidden_act").and_then(Value::as_str))?;
        if kind.activation(other.as_str())? != own {
            return refuse("the same activation as hidden_act in hidden_activation", &short(other));
        }
    }
    let slides_from = slides_from(&mut config, kind, no_window)?;
    if let (None, Some(method)) = (config.get("quantization"), config.get("quantization_config")) {
        let quantization = legacy_quantization(method)?;
        config.insert("quantization".into(), quantization);
    }
    Ok(Normalized { kind, config, slides_from })
}

/// Moves the settings of the rotary embedding to the fields that [`Config`](crate::Config) reads.
/// As in transformers, `rope_scaling` takes precedence over `rope_parameters`, and a `rope_theta`
/// inside one of them takes precedence over the top-level `rope_theta`.
fn gather_rope(config: &mut Map<String, Value>) -> Result<()> {
    let mut inner = None;
    for key in ["rope_parameters", "rope_scaling"] {
        let Some(Value::Object(map)) = config.get(key) else { continue };
        let mut map = map.clone();
        map.retain(|_, value| !value.is_null());
        if map.values().any(Value::is_object) {
            map = of_all_layers(map)?;
        }
        if let Some(theta) = map.get("rope_theta") {
            config.insert("rope_theta".into(), theta.clone());
        }
        if !map.is_empty() {
            inner = Some(map);
        }
        config.remove(key);
    }
    let Some(mut inner) = inner else { return Ok(()) };
    // As in transformers, the top-level value takes precedence over the value in the settings.
    let original = "original_max_position_embeddings";
    if let Some(stated) = config.get(original) {
        inner.insert(original.into(), stated.clone());
    }
    config.insert("rope_scaling".into(), Value::Object(inner));
    Ok(())
}

/// Returns the settings of the rotary embedding from a list by kind of layer. They must be equal
/// for all kinds.
fn of_all_layers(by_kind: Map<String, Value>) -> Result<Map<String, Value>> {
    let mut all = by_kind.into_iter();
    match all.next() {
        Some((_, Value::Object(first)))
            if all.all(|(_, other)| other == Value::Object(first.clone())) =>
        {
            Ok(first)
        }
        _ => Err(Error::argument(
            "config",
            "rope_parameters that are equal for all kinds of layers, got different ones",
        )),
    }
}

/// Returns the first layer of sliding-window attention: 0 for Mistral, and `max_window_layers` for
/// Qwen. Returns `None` if no layer has a window, or if `layer_types` lists the kinds of layers.
fn slides_from(
    config: &mut Map<String, Value>,
    kind: ModelType,
    no_window: bool,
) -> Result<Option<i32>> {
    let first = match kind {
        // In transformers, Llama and Gemma see all positions. In mlx-lm, Llama reads `layer_types`,
        // so this function leaves the field in Llama's configuration.
        ModelType::Llama => return Ok(None),
        ModelType::Gemma => None,
        ModelType::Mistral => Some(0),
        ModelType::Qwen2 | ModelType::Qwen3 => match config.get("use_sliding_window") {
            Some(Value::Bool(true)) => match config.get("max_window_layers") {
                None => Some(28),
                Some(layers) => match layers.as_i64().map(i32::try_from) {
                    Some(Ok(layers)) if layers >= 0 => Some(layers),
                    _ => {
                        let got = format!("a number max_window_layers, got {}", short(layers));
                        return Err(Error::argument("config", got));
                    }
                },
            },
            None | Some(Value::Bool(false)) => None,
            Some(other) => {
                let got = format!("true or false as use_sliding_window, got {}", short(other));
                return Err(Error::argument("config", got));
            }
        },
    };
    let Some(first) = first.filter(|_| !no_window) else {
        if kind != ModelType::Mistral {
            config.remove("layer_types");
        }
        config.remove("sliding_window");
        return Ok(None);
    };
    config.entry("sliding_window").or_insert(json!(WINDOW));
    Ok((!config.contains_key("layer_types")).then_some(first))
}

/// Converts a `quantization_config` to the fields that MLX uses, if the file has no `quantization`.
fn legacy_quantization(config: &Value) -> Result<Value> {
    match config.get("quant_method") {
        Some(Value::String(method)) if method == "mxfp4" => {
            Ok(json!({"group_size": 32, "bits": 4, "mode": "mxfp4"}))
        }
        Some(method) => Err(Error::argument(
            "config",
            format_args!(
                "quantization_config of quant_method mxfp4 or of MLX's own, got {}",
                short(method)
            ),
        )),
        None => Ok(config.clone()),
    }
}
