use serde_json::Value;

use crate::error::{Error, Result};

/// How a model stretches its rotary embedding to longer texts than it was trained on: the
/// `rope_scaling` of a `config.json`, with the meaning that mlx-lm gives it.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum RopeScaling {
    /// No scaling.
    #[default]
    Default,
    /// Divides positions by a factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Increases the base with the length of the text once it exceeds the model's limit.
    Dynamic {
        /// How fast the base grows.
        factor: f64,
    },
    /// Stretches long wavelengths, keeps short ones, and interpolates those between.
    Llama3 {
        /// The factor of long wavelengths.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are long.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are short.
        high_freq_factor: f64,
        /// The number of positions that the model was first trained on.
        original: f64,
    },
    /// Divides low frequencies by a factor, and multiplies the rotated features
    /// ([Peng et al. 2023](https://arxiv.org/abs/2309.00071)).
    Yarn {
        /// The divisor of low frequencies.
        factor: f64,
        /// The number of positions that the model was first trained on.
        original: f64,
        /// A frequency with at least this number of turns over those positions is kept.
        beta_fast: f64,
        /// A frequency with at most this number of turns over those positions is divided by the
        /// whole factor.
        beta_slow: f64,
        /// The weight of the factor's logarithm in the numerator of the multiplier.
        mscale: f64,
        /// The weight of the factor's logarithm in the denominator of the multiplier.
        mscale_all_dim: f64,
    },
    /// Multiplies each period by its own factor
    /// ([Ding et al. 2024](https://arxiv.org/abs/2402.13753)).
    LongRope {
        /// `dims / 2` factors, or one for all periods.
        long_factor: Vec<f64>,
        /// The number of positions that the model was first trained on.
        original: f64,
    },
}

pub(super) fn refuse<T>(expected: impl std::fmt::Display) -> Result<T> {
    Err(Error::argument("rope_scaling", expected))
}

/// The fields of a `rope_scaling` object.
struct Fields<'a>(&'a Value);

impl Fields<'_> {
    fn number(&self, name: &str, default: Option<f64>) -> Result<f64> {
        match (self.0.get(name), default) {
            (None | Some(Value::Null), Some(default)) => Ok(default),
            (Some(value), _) if value.is_number() => Ok(value.as_f64().unwrap_or(f64::NAN)),
            (value, _) => refuse(format_args!(
                "a number {name}, got {}",
                value.map_or("none".into(), Value::to_string)
            )),
        }
    }

    fn factors(&self, name: &str) -> Result<Vec<f64>> {
        let numbers = match self.0.get(name) {
            Some(Value::Array(list)) => list.iter().map(Value::as_f64).collect(),
            Some(value) => value.as_f64().map(|factor| vec![factor]),
            None => None,
        };
        numbers.map_or_else(|| refuse(format_args!("a list of numbers {name}")), Ok)
    }
}

impl RopeScaling {
    /// Reads a `rope_scaling` object; its kind is `type`, else `rope_type`, else `default`.
    ///
    /// [`RopeFrequencies::new`](super::RopeFrequencies::new) checks the ranges of the numbers.
    ///
    /// # Errors
    ///
    /// Returns an error for an unknown kind, and for missing fields.
    pub fn parse(value: &Value) -> Result<Self> {
        if value.is_null() {
            return Ok(Self::Default);
        }
        if !value.is_object() {
            return refuse(format_args!("an object, got {value}"));
        }
        let named = |key: &str| value.get(key).filter(|kind| !kind.is_null());
        let kind = named("type").or(named("rope_type")).map_or(Some("default"), Value::as_str);
        let fields = Fields(value);
        let number = |name, default| fields.number(name, default);
        let original = "original_max_position_embeddings";
        Ok(match kind {
            Some("default") => Self::Default,
            Some("linear") => Self::Linear { factor: number("factor", None)? },
            Some("dynamic") => Self::Dynamic { factor: number("factor", None)? },
            Some("llama3") => Self::Llama3 {
                factor: number("factor", None)?,
                low_freq_factor: number("low_freq_factor", Some(1.0))?,
                high_freq_factor: number("high_freq_factor", Some(4.0))?,
                original: number(original, Some(8192.0))?,
            },
            Some("yarn") => Self::Yarn {
                factor: number("factor", None)?,
                original: number(original, Some(4096.0))?,
                beta_fast: number("beta_fast", Some(32.0))?,
                beta_slow: number("beta_slow", Some(1.0))?,
                mscale: number("mscale", Some(1.0))?,
                mscale_all_dim: number("mscale_all_dim", Some(0.0))?,
            },
            Some("longrope" | "su") => {
                let original = number(original, None)?;
                let (short, long) =
                    (fields.factors("short_factor")?, fields.factors("long_factor")?);
                if short.len() != long.len() {
                    return refuse(format_args!(
                        "as many short_factor as long_factor, got {} and {}",
                        short.len(),
                        long.len()
                    ));
                }
                Self::LongRope { long_factor: long, original }
            }
            _ => {
                return refuse(format_args!(
                    "type default, linear, dynamic, llama3, yarn or longrope, got {value}"
                ));
            }
        })
    }
}
