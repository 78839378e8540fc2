use serde_json::Value;

use mlx_primitives::{Error, Result};

use super::config_json::short;

/// How a model stretches its rotary embedding to sequences that are longer than in its training.
/// This is the `rope_scaling` or `rope_parameters` of a `config.json`, as transformers interprets
/// it.
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
    /// Increases the base with the length of the sequence, if this length exceeds
    /// `max_position_embeddings`.
    Dynamic {
        /// How fast the base grows.
        factor: f64,
    },
    /// Divides the frequencies of long wavelengths by a factor, keeps the frequencies of short
    /// wavelengths, and interpolates in between.
    Llama3 {
        /// The divisor of the frequencies of long wavelengths.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are long.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are short.
        high_freq_factor: f64,
        /// The number of positions in the model's first training; `None` means
        /// `max_position_embeddings`.
        original: Option<f64>,
    },
    /// Divides low frequencies by `factor`, and multiplies the rotated features by
    /// `attention_factor` ([Peng et al. 2023](https://arxiv.org/abs/2309.00071)).
    Yarn {
        /// The divisor of low frequencies; `None` means `max_position_embeddings` divided by
        /// `original`.
        factor: Option<f64>,
        /// The number of positions in the model's first training; `None` means
        /// `max_position_embeddings`.
        original: Option<f64>,
        /// Frequencies with at least this number of rotations in `original` positions stay
        /// unchanged.
        beta_fast: f64,
        /// Frequencies with at most this number of rotations in `original` positions are divided by
        /// the full factor.
        beta_slow: f64,
        /// The multiplier of the rotated features; `None` means that it follows from `factor` and
        /// `mscale`.
        attention_factor: Option<f64>,
        /// The weights of the logarithm of `factor` in the numerator and in the denominator of the
        /// multiplier. `None` means a weight of 1 in the numerator, and no denominator.
        mscale: Option<[f64; 2]>,
        /// Whether the limits of the range between `beta_fast` and `beta_slow` are rounded outward
        /// to integer indices of frequencies.
        truncate: bool,
    },
    /// Multiplies each period by a factor. The factors differ between sequences of at most
    /// `original` positions and longer ones ([Ding et al. 2024](https://arxiv.org/abs/2402.13753)).
    LongRope {
        /// The `dims / 2` factors for sequences of at most `original` positions, or one factor for
        /// all periods.
        short_factor: Vec<f64>,
        /// The factors for longer sequences. The list has the length of `short_factor`.
        long_factor: Vec<f64>,
        /// The number of positions in the model's first training; `None` means
        /// `max_position_embeddings`.
        original: Option<f64>,
        /// The greatest sequence length divided by `original`, which determines the multiplier;
        /// `None` means `max_position_embeddings` divided by `original`.
        factor: Option<f64>,
        /// The multiplier of the rotated features; `None` means that it follows from `factor` and
        /// `original`.
        attention_factor: Option<f64>,
    },
}

pub(crate) fn refuse<T>(expected: impl std::fmt::Display) -> Result<T> {
    Err(Error::argument("rope_scaling", expected))
}

/// The fields of a `rope_scaling` object.
struct Fields<'a>(&'a Value);

impl Fields<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn optional(&self, name: &str) -> Result<Option<f64>> {
        match self.get(name) {
            None => Ok(None),
            Some(value) if value.is_number() => Ok(Some(value.as_f64().unwrap_or(f64::NAN))),
            Some(value) => refuse(format_args!("a number {name}, got {}", short(value))),
        }
    }

    fn number(&self, name: &str, default: Option<f64>) -> Result<f64> {
        match self.optional(name)?.or(default) {
            Some(number) => Ok(number),
            None => refuse(format_args!("a number {name}, got none")),
        }
    }

    /// Returns the number `name`, or the default if it is missing or 0. Python writes this as
    /// `value or default`.
    fn or(&self, name: &str, default: f64) -> Result<f64> {
        Ok(self.optional(name)?.filter(|number| *number != 0.0).unwrap_or(default))
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.get(name) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(value) => refuse(format_args!("true or false as {name}, got {}", short(value))),
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

    /// Returns the name of the scaling from the field `rope_type` or, in older files, `type`.
    fn kind(&self) -> Result<&str> {
        let named = |key: &str| match self.get(key) {
            None => Ok(None),
            // Qwen2-VL's files have `mrope`, which rotates by three position indices. For plain
            // text, the three indices are equal. Older files of mlx-lm have `su`.
            Some(Value::String(name)) => Ok(Some(match name.as_str() {
                "mrope" => "default",
                "su" => "longrope",
                name => name,
            })),
            Some(other) => refuse(format_args!("a text as {key}, got {}", short(other))),
        };
        match (named("rope_type")?, named("type")?) {
            (Some(one), Some(other)) if one != other => refuse(format_args!(
                "one kind as rope_type and type, got {one:.40} and {other:.40}"
            )),
            (one, other) => Ok(one.or(other).unwrap_or("default")),
        }
    }
}

impl RopeScaling {
    /// Parses a `rope_scaling` object. The kind is `rope_type`, or else `type`, or else `default`.
    /// `mrope` is read as `default`, because its three position indices are equal for plain text.
    ///
    /// [`RopeFrequencies::new`](crate::base::RopeFrequencies::new) checks the ranges of the
    /// numbers.
    ///
    /// # Errors
    ///
    /// Returns an error for an unknown kind, if `rope_type` and `type` differ, for fields that are
    /// missing or malformed, and for a `partial_rotary_factor` other than 1.
    pub fn parse(value: &Value) -> Result<Self> {
        if value.is_null() {
            return Ok(Self::Default);
        }
        if !value.is_object() {
            return refuse(format_args!("an object, got {}", short(value)));
        }
        let fields = Fields(value);
        let number = |name, default| fields.number(name, default);
        let original = "original_max_position_embeddings";
        let partial = fields.optional("partial_rotary_factor")?;
        if let Some(other) = partial.filter(|factor| *factor != 1.0) {
            return refuse(format_args!("partial_rotary_factor 1, got {other}"));
        }
        Ok(match fields.kind()? {
            "default" => Self::Default,
            "linear" => Self::Linear { factor: number("factor", None)? },
            "dynamic" => Self::Dynamic { factor: number("factor", None)? },
            "llama3" => Self::Llama3 {
                factor: number("factor", None)?,
                low_freq_factor: number("low_freq_factor", Some(1.0))?,
                high_freq_factor: number("high_freq_factor", Some(4.0))?,
                original: fields.optional(original)?,
            },
            "yarn" => Self::Yarn {
                factor: fields.optional("factor")?,
                original: fields.optional(original)?,
                beta_fast: fields.or("beta_fast", 32.0)?,
                beta_slow: fields.or("beta_slow", 1.0)?,
                attention_factor: fields.optional("attention_factor")?,
                // transformers uses these two numbers only if the file has both.
                mscale: match [fields.or("mscale", 0.0)?, fields.or("mscale_all_dim", 0.0)?] {
                    [of_one, of_all] if of_one != 0.0 && of_all != 0.0 => Some([of_one, of_all]),
                    _ => None,
                },
                truncate: fields.flag("truncate", true)?,
            },
            "longrope" => {
                let (short, long) =
                    (fields.factors("short_factor")?, fields.factors("long_factor")?);
                if short.len() != long.len() {
                    return refuse(format_args!(
                        "as many short_factor as long_factor, got {} and {}",
                        short.len(),
                        long.len()
                    ));
                }
                Self::LongRope {
                    short_factor: short,
                    long_factor: long,
                    original: fields.optional(original)?,
                    factor: fields.optional("factor")?,
                    attention_factor: fields.optional("attention_factor")?,
                }
            }
            other => {
                return refuse(format_args!(
                    "rope_type default, linear, dynamic, llama3, yarn, longrope or mrope, got \
                     {other:.40}"
                ));
            }
        })
    }
}
