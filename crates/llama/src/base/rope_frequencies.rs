use mlx_primitives::ops::{self, Rope, RopeAppend};
use mlx_primitives::{Array, Result, concatenate};

use super::rope_scaling::{RopeScaling, refuse};

/// The parameters of a rotary embedding: its periods, the scale of positions, and a multiplier that
/// is applied to the features before they are rotated.
///
/// ```
/// use mlx_primitives_llama::base::{RopeFrequencies, RopeScaling};
///
/// let linear = RopeScaling::Linear { factor: 4.0 };
/// let rope = RopeFrequencies::new(64, false, 10_000.0, &linear, None)?;
/// assert_eq!((rope.scale(), rope.multiplier()), (0.25, 1.0));
/// assert_eq!(rope.values(1)[0], 1.0);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RopeFrequencies {
    dims: i32,
    traditional: bool,
    base: f32,
    scale: f32,
    multiplier: f32,
    explicit: Option<Array>,
    values: Vec<f32>,
    dynamic: Option<Dynamic>,
    short: Option<Box<Short>>,
}

/// The periods for sequences of at most `longest` positions. Longer sequences use other periods.
#[derive(Clone, Debug)]
struct Short {
    longest: i32,
    explicit: Array,
    values: Vec<f32>,
}

#[derive(Clone, Copy, Debug)]
struct Dynamic {
    factor: f64,
    limit: f64,
}

impl RopeFrequencies {
    /// Computes the frequencies for heads of `dims` features. `limit` is the model's
    /// `max_position_embeddings`.
    ///
    /// # Errors
    ///
    /// Returns an error in these cases: `dims` is odd or below 2, or 2 with dynamic scaling. The
    /// base, a number of the scaling or a frequency is not positive and finite. A list of factors
    /// has neither one nor `dims / 2` entries. `high_freq_factor` is not above `low_freq_factor`.
    /// The scaling lacks a number whose default is `limit`, and `limit` is `None`.
    pub fn new(
        dims: i32,
        traditional: bool,
        base: f32,
        scaling: &RopeScaling,
        limit: Option<i32>,
    ) -> Result<Self> {
        if dims < 2 || dims % 2 != 0 {
            return refuse(format_args!("an even number of features, got {dims}"));
        }
        let mut rope = Self {
            dims,
            traditional,
            base: positive("base", f64::from(base))? as f32,
            scale: 1.0,
            multiplier: 1.0,
            explicit: None,
            values: powers(base, dims),
            dynamic: None,
            short: None,
        };
        match scaling {
            RopeScaling::Default => {}
            RopeScaling::Linear { factor } => {
                rope.scale = (1.0 / positive("factor", *factor)?) as f32;
                positive("factor of 32 bits", f64::from(rope.scale))?;
            }
            RopeScaling::Dynamic { factor } => {
                let factor = positive("factor", *factor)?;
                if dims == 2 {
                    return refuse("more than 2 features for type dynamic, got 2");
                }
                rope.dynamic = Some(Dynamic { factor, limit: known(limit)? });
            }
            _ => {
                rope.stretch(scaling, limit)?;
                positive("multiplier", f64::from(rope.multiplier))?;
                rope.explicit = Some(checked(&rope.values)?);
            }
        }
        Ok(rope)
    }

    /// Whether the rotation of a position depends on the length of the sequence.
    pub(crate) fn depends_on_length(&self) -> bool {
        self.dynamic.is_some() || self.short.is_some()
    }

    /// Whether rotated keys stay valid if the length of a sequence changes from `before` to `now`
    /// positions. If the sequence grew beyond the limit of dynamic scaling one position at a time,
    /// its keys have different bases.
    pub(crate) fn keeps_keys(&self, before: i32, now: i32) -> bool {
        let is_short = |short: &Short, len: i32| len <= short.longest;
        self.short.as_ref().is_none_or(|short| is_short(short, before) == is_short(short, now))
            && self.dynamic.is_none_or(|Dynamic { limit, .. }| f64::from(before.max(now)) <= limit)
    }

    /// The length up to which sequences use the short periods, if there are any.
    pub(crate) fn longest_short(&self) -> Option<i32> {
        self.short.as_ref().map(|short| short.longest)
    }

    /// Computes the periods for the kinds of scaling that need an explicit list. Uses the
    /// operations and types of transformers: f64 for numbers of the configuration, f32 for arrays.
    fn stretch(&mut self, scaling: &RopeScaling, limit: Option<i32>) -> Result<()> {
        let original = |stated: &Option<f64>| match stated {
            Some(stated) => positive("original_max_position_embeddings", *stated),
            None => known(limit),
        };
        match scaling {
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original: stated } => {
                let factor = positive("factor", *factor)? as f32;
                let original = original(stated)?;
                let low = positive("low_freq_factor", *low_freq_factor)?;
                let high = positive("high_freq_factor", *high_freq_factor)?;
                if high <= low {
                    return refuse(format_args!("high_freq_factor above {low}, got {high}"));
                }
                let (long, short) = ((original / low) as f32, (original / high) as f32);
                for freq in &mut self.values {
                    let wavelength = std::f64::consts::TAU as f32 * *freq;
                    if wavelength > long {
                        *freq *= factor;
                    } else if wavelength > short && wavelength < long {
                        let smooth =
                            (original as f32 / wavelength - low as f32) / (high - low) as f32;
                        *freq /= (1.0 - smooth) / factor + smooth;
                    }
                }
            }
            RopeScaling::Yarn {
                factor,
                original: stated,
                beta_fast,
                beta_slow,
                attention_factor,
                mscale,
                truncate,
            } => {
                let original = original(stated)?;
                let factor = match factor {
                    Some(factor) => positive("factor", *factor)?,
                    None => known(limit)? / original,
                };
                let (fast, slow) =
                    (positive("beta_fast", *beta_fast)?, positive("beta_slow", *beta_slow)?);
                let dims = f64::from(self.dims);
                let column = |turns: f64| {
                    dims * (original / (turns * std::f64::consts::TAU)).ln()
                        / (2.0 * f64::from(self.base).ln())
                };
                let (low, high) = match truncate {
                    true => (column(fast).floor(), column(slow).ceil()),
                    false => (column(fast), column(slow)),
                };
                let (low, mut high) = (low.max(0.0), high.min(dims - 1.0));
                if low == high {
                    high += 0.001;
                }
                let factor_f32 = factor as f32;
                for (i, freq) in self.values.iter_mut().enumerate() {
                    let ramp = (i as f32 - low as f32) / (high - low) as f32;
                    let kept = 1.0 - ramp.clamp(0.0, 1.0);
                    let slowed = factor_f32 * *freq;
                    *freq = (slowed * *freq) / (slowed * kept + *freq * (1.0 - kept));
                }
                let weight = |mscale: f64| match factor <= 1.0 {
                    true => 1.0,
                    false => 0.1 * mscale * factor.ln() + 1.0,
                };
                self.multiplier = match (attention_factor, mscale) {
                    (Some(stated), _) => *stated,
                    (None, Some([of_one, of_all])) => weight(*of_one) / weight(*of_all),
                    (None, None) => weight(1.0),
                } as f32;
            }
            RopeScaling::LongRope {
                short_factor,
                long_factor,
                original: stated,
                factor,
                attention_factor,
            } => {
                let original = original(stated)?;
                let powers = std::mem::take(&mut self.values);
                self.values = scaled(&powers, long_factor)?;
                if short_factor != long_factor {
                    let values = scaled(&powers, short_factor)?;
                    let longest = original.min(f64::from(i32::MAX)) as i32;
                    self.short =
                        Some(Box::new(Short { longest, explicit: checked(&values)?, values }));
                }
                let longer = match factor {
                    Some(factor) => positive("factor", *factor)?,
                    None => known(limit)? / original,
                };
                self.multiplier = match attention_factor {
                    Some(stated) => *stated,
                    None if longer > 1.0 => (1.0 + longer.ln() / original.ln()).sqrt(),
                    None => 1.0,
                } as f32;
            }
            _ => {}
        }
        Ok(())
    }

    /// The short periods, if a sequence of `len` positions uses them.
    fn short(&self, len: i32) -> Option<&Short> {
        self.short.as_deref().filter(|short| len <= short.longest)
    }

    /// The number of features that are rotated.
    pub fn dims(&self) -> i32 {
        self.dims
    }

    /// The factor for positions.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// The factor for the features that are rotated, applied before the rotation.
    pub fn multiplier(&self) -> f32 {
        self.multiplier
    }

    /// The base of the frequencies for a sequence of `len` positions. It depends on `len` only with
    /// [`RopeScaling::Dynamic`].
    pub fn base(&self, len: i32) -> f32 {
        let Some(Dynamic { factor, limit }) = self.dynamic else { return self.base };
        let dims = f64::from(self.dims);
        let stretch = factor * f64::from(len).max(limit) / limit - (factor - 1.0);
        (f64::from(self.base) * stretch.powf(dims / (dims - 2.0))) as f32
    }

    /// The `dims / 2` periods for a sequence of `len` positions, divided by 2 pi. [`ops::rope`]
    /// takes them as `freqs`.
    pub fn values(&self, len: i32) -> Vec<f32> {
        match (self.dynamic, self.short(len)) {
            (Some(_), _) => powers(self.base(len), self.dims),
            (None, Some(short)) => short.values.clone(),
            (None, None) => self.values.clone(),
        }
    }

    /// The rotation of the positions that start at `offset`, in a sequence of `len` positions, for
    /// [`ops::rope_append`].
    pub fn rotation(&self, offset: i32, len: i32) -> RopeAppend<'_> {
        let rope = Rope {
            dims: self.dims,
            traditional: self.traditional,
            base: self.explicit.is_none().then(|| self.base(len)),
            scale: self.scale,
            offset: offset.into(),
            freqs: self.short(len).map(|short| &short.explicit).or(self.explicit.as_ref()),
        };
        RopeAppend { multiplier: self.multiplier, ..rope.into() }
    }

    /// Rotates `x`, `[batch, ..., time, features]`, whose first position is `offset`.
    ///
    /// # Errors
    ///
    /// Returns an error if `x` has fewer than three axes, a type that is not a floating type, or
    /// fewer features than are rotated.
    pub fn rotate(&self, x: &Array, offset: i32) -> Result<Array> {
        self.rotate_in_text(x, offset, 0)
    }

    /// Rotates `x` as [`rotate`](Self::rotate) does, in a sequence of at least `len` positions.
    pub(crate) fn rotate_in_text(&self, x: &Array, offset: i32, len: i32) -> Result<Array> {
        let features = x.dim(-1)?;
        let end = offset.saturating_add(x.dim(-2)?);
        let RopeAppend { rope, multiplier, .. } = self.rotation(offset, end.max(len));
        let dims = rope.dims;
        let scaled = match (multiplier == 1.0, features == dims) {
            (true, _) => x.clone(),
            (false, true) => x.multiply(multiplier)?,
            (false, false) => {
                let turned = x.slice_axis(-1, ..dims)?.multiply(multiplier)?;
                concatenate(&[&turned, &x.slice_axis(-1, dims..)?], -1)?
            }
        };
        ops::rope(&scaled, rope)
    }
}

/// Returns `base^(2i / dims)` for each pair i of features.
fn powers(base: f32, dims: i32) -> Vec<f32> {
    (0..dims / 2).map(|i| base.powf((2 * i) as f32 / dims as f32)).collect()
}

/// Multiplies each period by its factor, or all periods by a single factor.
fn scaled(powers: &[f32], factors: &[f64]) -> Result<Vec<f32>> {
    if factors.len() != powers.len() && factors.len() != 1 {
        return refuse(format_args!("{} factors, got {}", powers.len(), factors.len()));
    }
    let each = factors.iter().cycle();
    Ok(powers.iter().zip(each).map(|(power, factor)| power * *factor as f32).collect())
}

/// Returns the periods as an array, or an error if one is not positive and finite.
fn checked(values: &[f32]) -> Result<Array> {
    for value in values {
        positive("finite frequencies above 0", f64::from(*value))?;
    }
    Array::from_slice(values, [i32::try_from(values.len()).unwrap_or(i32::MAX)])
}

fn positive(name: &str, value: f64) -> Result<f64> {
    match value > 0.0 && value.is_finite() {
        true => Ok(value),
        false => refuse(format_args!("a finite {name} above 0, got {value}")),
    }
}

fn known(limit: Option<i32>) -> Result<f64> {
    match limit {
        Some(limit) if limit > 0 => Ok(f64::from(limit)),
        _ => refuse("max_position_embeddings for this type, got none"),
    }
}
