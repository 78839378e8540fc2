use std::collections::BTreeMap;

use serde::Deserialize;

use mlx_primitives::{Array, Dtype, Error, Result, select};

/// Trained arrays, or their gradients, by name.
pub type Parameters = BTreeMap<String, Array>;

/// An optimizer and its options, with the formulas of `mlx.optimizers`. The state and the
/// arithmetic are float32 for parameters of any floating type. Each new parameter is rounded to its
/// type once.
///
/// ```
/// use mlx_primitives::Array;
/// use mlx_primitives_llama::train::{Optimizer, Parameters, Sgd};
///
/// let mut parameters = Parameters::from([("w".to_owned(), Array::full(2, 1.0f32)?)]);
/// let gradients = Parameters::from([("w".to_owned(), Array::full(2, 0.5f32)?)]);
/// let optimizer = Optimizer::Sgd(Sgd::default());
/// let mut state = optimizer.state(&parameters)?;
/// optimizer.update(&mut parameters, &gradients, &mut state, 0.1)?;
/// assert_eq!(parameters["w"].to_vec::<f32>()?, [0.95, 0.95]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// Adam ([Kingma and Ba 2015](https://arxiv.org/abs/1412.6980)) or, with a weight decay, AdamW
    /// ([Loshchilov and Hutter 2019](https://arxiv.org/abs/1711.05101)).
    Adam(Adam),
    /// Stochastic gradient descent.
    Sgd(Sgd),
    /// Adafactor ([Shazeer and Stern 2018](https://arxiv.org/abs/1804.04235)).
    Adafactor(Adafactor),
}

/// The options of Adam and AdamW: `m = β₁ m + (1 - β₁) g`, `v = β₂ v + (1 - β₂) g²`, and
/// `w = w (1 - rate · decay) - rate · m / (√v + ε)`.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adam {
    /// The decay of both moments, β₁ and β₂.
    pub betas: [f64; 2],
    /// The term ε of the denominator.
    pub eps: f64,
    /// The weight decay. With a learning rate of 1, an update subtracts this fraction of a
    /// parameter. MLX's AdamW uses 0.01.
    pub weight_decay: f64,
    /// Whether the moments are divided by `1 - βᵗ` in update t, counted from 1.
    pub bias_correction: bool,
}

impl Default for Adam {
    fn default() -> Self {
        Self { betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0, bias_correction: false }
    }
}

/// The options of SGD: `g = g + decay · w`, `v = μ v + (1 - dampening) g`, and `w = w - rate · v`,
/// or with Nesterov's momentum `w = w - rate · (g + μ v)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sgd {
    /// The momentum μ, the factor of the previous `v`.
    pub momentum: f64,
    /// The weight decay. This factor times the parameter is added to its gradient.
    pub weight_decay: f64,
    /// The fraction of a gradient that is not added to `v`. It has no effect if the momentum μ is
    /// 0.
    pub dampening: f64,
    /// Whether Nesterov's momentum is used.
    pub nesterov: bool,
}

/// The options of Adafactor. For a matrix, Adafactor keeps the mean squares of the rows and of the
/// columns of the gradient, instead of the squares of all elements.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adafactor {
    /// The first number is added to squared gradients. With `scale_parameter`, the second number is
    /// a lower bound for the root mean square of a parameter.
    pub eps: [f64; 2],
    /// The maximum root mean square of a step before the rate multiplies it. Larger steps are
    /// scaled down to this value.
    pub clip_threshold: f64,
    /// The exponent d in the decay `1 - tᵈ` of the mean squares. Updates t are counted from 1.
    pub decay_rate: f64,
    /// The decay of the moving average of the steps. With `None`, steps are not averaged.
    pub beta_1: Option<f64>,
    /// The weight decay. With a learning rate of 1, an update subtracts this fraction of a
    /// parameter.
    pub weight_decay: f64,
    /// Whether the rate is multiplied by the root mean square of the parameter.
    pub scale_parameter: bool,
    /// Whether the rate is `min(0.01, 1 / √t)` in update t, instead of the rate of the schedule.
    pub relative_step: bool,
    /// Whether the rate is `min(10⁻⁶ t, 1 / √t)` with `relative_step`.
    pub warmup_init: bool,
}

impl Default for Adafactor {
    fn default() -> Self {
        Self {
            eps: [1e-30, 1e-3],
            clip_threshold: 1.0,
            decay_rate: -0.8,
            beta_1: None,
            weight_decay: 0.0,
            scale_parameter: true,
            relative_step: true,
            warmup_init: false,
        }
    }
}

/// The state of an optimizer between updates.
#[derive(Clone, Debug, Default)]
pub struct OptimizerState {
    /// The number of updates so far.
    pub updates: u64,
    /// Float32 arrays. Each name combines the name of a parameter and the name of an array, for
    /// example `w.m` for the parameter `w` and Adam's array `m`.
    pub arrays: Parameters,
}

impl Optimizer {
    /// Makes the state before the first update of these parameters.
    ///
    /// # Errors
    ///
    /// Returns an error for invalid options, and for parameters whose type is not floating.
    pub fn state(&self, parameters: &Parameters) -> Result<OptimizerState> {
        self.check()?;
        let mut arrays = Parameters::new();
        for (name, parameter) in parameters {
            if !parameter.dtype().is_floating() {
                let got = format_args!("floating parameters, got {name} of {}", parameter.dtype());
                return Err(Error::argument("optimizer", got));
            }
            let shape = parameter.shape();
            for (part, shape) in self.parts(shape) {
                arrays.insert(format!("{name}.{part}"), Array::zeros::<f32>(&shape)?);
            }
        }
        Ok(OptimizerState { updates: 0, arrays })
    }

    /// The names and shapes of the state's arrays for a parameter of shape `shape`.
    pub(super) fn parts(&self, shape: &[i32]) -> Vec<(&'static str, Vec<i32>)> {
        let whole = shape.to_vec();
        match self {
            Self::Adam(_) => vec![("m", whole.clone()), ("v", whole)],
            Self::Sgd(Sgd { momentum, .. }) if *momentum > 0.0 => vec![("v", whole)],
            Self::Sgd(_) => Vec::new(),
            Self::Adafactor(options) => {
                let mut parts = match shape {
                    [above @ .., rows, columns] => vec![
                        ("exp_avg_sq_row", [above, &[*rows]].concat()),
                        ("exp_avg_sq_col", [above, &[*columns]].concat()),
                    ],
                    _ => vec![("exp_avg_sq", whole.clone())],
                };
                parts.extend(options.beta_1.map(|_| ("exp_avg", whole)));
                parts
            }
        }
    }

    fn check(&self) -> Result<()> {
        let refuse = |expected: &str| Err(Error::argument("optimizer", expected));
        let share = |beta: f64| (0.0..1.0).contains(&beta);
        let positive = |x: f64| x.is_finite() && x >= 0.0;
        match self {
            Self::Adam(Adam { betas, eps, weight_decay, .. }) => {
                if !betas.iter().all(|&beta| share(beta)) {
                    return refuse("betas in [0, 1)");
                }
                if !positive(*eps) || !positive(*weight_decay) {
                    return refuse("eps and weight_decay of at least 0");
                }
            }
            Self::Sgd(Sgd { momentum, weight_decay, dampening, nesterov }) => {
                if ![momentum, weight_decay, dampening].into_iter().all(|&x| positive(x)) {
                    return refuse("momentum, weight_decay and dampening of at least 0");
                }
                if *nesterov && (*momentum <= 0.0 || *dampening != 0.0) {
                    return refuse("a momentum and no dampening with nesterov");
                }
            }
            Self::Adafactor(Adafactor { eps, clip_threshold, beta_1, weight_decay, .. }) => {
                if ![eps[0], eps[1], *weight_decay].into_iter().all(positive)
                    || !positive(*clip_threshold)
                    || *clip_threshold == 0.0
                    || !beta_1.is_none_or(share)
                {
                    return refuse(
                        "eps and weight_decay of at least 0, a clip_threshold, beta_1 below 1",
                    );
                }
            }
        }
        Ok(())
    }

    /// Updates the parameters and the state once. Nothing is evaluated.
    ///
    /// # Errors
    ///
    /// Returns an error if a parameter has no gradient, or if `state` belongs to other parameters.
    pub fn update(
        &self,
        parameters: &mut Parameters,
        gradients: &Parameters,
        state: &mut OptimizerState,
        rate: f64,
    ) -> Result<()> {
        state.updates = state.updates.saturating_add(1);
        for (name, parameter) in parameters {
            let missing = |what: &str| {
                Error::argument("optimizer", format_args!("{what} of {name}, got none"))
            };
            let gradient = gradients.get(name).ok_or_else(|| missing("a gradient"))?;
            let mut kept = Vec::new();
            let parts = self.parts(parameter.shape());
            for (part, _) in &parts {
                kept.push(
                    state
                        .arrays
                        .get(&format!("{name}.{part}"))
                        .ok_or_else(|| missing(part))?
                        .clone(),
                );
            }
            let dtype = parameter.dtype();
            let (g, w) = (gradient.astype(Dtype::Float32)?, parameter.astype(Dtype::Float32)?);
            let new = match self {
                Self::Adam(options) => options.step(&g, &w, &mut kept, rate, state.updates),
                Self::Sgd(options) => options.step(g, &w, &mut kept, rate, state.updates),
                Self::Adafactor(options) => options.step(&g, &w, &mut kept, rate, state.updates),
            };
            *parameter = new?.astype(dtype)?;
            for ((part, _), array) in parts.into_iter().zip(kept) {
                state.arrays.insert(format!("{name}.{part}"), array);
            }
        }
        Ok(())
    }
}

/// The moving mean `β · mean + (1 - β) · new`.
fn moving(mean: &Array, new: &Array, beta: f64) -> Result<Array> {
    mean.multiply(beta as f32)?.add(new.multiply((1.0 - beta) as f32)?)
}

impl Adam {
    fn step(&self, g: &Array, w: &Array, kept: &mut [Array], rate: f64, t: u64) -> Result<Array> {
        let [m, v] = kept else { return Ok(w.clone()) };
        let [b1, b2] = self.betas;
        (*m, *v) = (moving(m, g, b1)?, moving(v, &g.square()?, b2)?);
        let corrections = match self.bias_correction {
            true => [b1, b2].map(|beta| 1.0 - beta.powf(t as f64)),
            false => [1.0; 2],
        };
        let above = m.multiply((rate / corrections[0]) as f32)?;
        let below =
            v.sqrt()?.multiply(corrections[1].sqrt().recip() as f32)?.add(self.eps as f32)?;
        w.multiply((1.0 - rate * self.weight_decay) as f32)?.subtract(above.divide(below)?)
    }
}

impl Sgd {
    fn step(&self, g: Array, w: &Array, kept: &mut [Array], rate: f64, _: u64) -> Result<Array> {
        let g = match self.weight_decay {
            0.0 => g,
            decay => g.add(w.multiply(decay as f32)?)?,
        };
        let step = match kept {
            [v] => {
                let new = g.multiply((1.0 - self.dampening) as f32)?;
                *v = v.multiply(self.momentum as f32)?.add(new)?;
                match self.nesterov {
                    true => g.add(v.multiply(self.momentum as f32)?)?,
                    false => v.clone(),
                }
            }
            _ => g,
        };
        w.subtract(step.multiply(rate as f32)?)
    }
}

impl Adafactor {
    fn step(&self, g: &Array, w: &Array, kept: &mut [Array], rate: f64, t: u64) -> Result<Array> {
        let rms = |x: &Array| x.square()?.mean(..)?.sqrt();
        let relative = || {
            let least = if self.warmup_init { 1e-6 * t as f64 } else { 1e-2 };
            least.min((t as f64).sqrt().recip())
        };
        let rate = if self.relative_step { relative() } else { rate };
        let rate = match self.scale_parameter {
            true => maximum(&rms(w)?, self.eps[1])?.multiply(rate as f32)?,
            false => Array::scalar(rate as f32)?,
        };
        let beta = 1.0 - (t as f64).powf(self.decay_rate);
        let squares = g.square()?.add(self.eps[0] as f32)?;
        let step = match kept {
            [row, column, ..] if g.ndim() >= 2 => {
                *row = moving(row, &squares.mean(-1)?, beta)?;
                *column = moving(column, &squares.mean(-2)?, beta)?;
                let rows = row.divide(row.mean_keepdims(-1)?)?.rsqrt()?;
                rows.expand_dims(-1)?.multiply(column.rsqrt()?.expand_dims(-2)?)?.multiply(g)?
            }
            [all, ..] => {
                *all = moving(all, &squares, beta)?;
                all.rsqrt()?.multiply(g)?
            }
            [] => g.clone(),
        };
        let excess = maximum(&rms(&step)?.divide(self.clip_threshold as f32)?, 1.0)?;
        let mut step = step.divide(excess)?.multiply(&rate)?;
        if let (Some(beta), Some(mean)) = (self.beta_1, kept.last_mut()) {
            *mean = moving(mean, &step, beta)?;
            step = mean.clone();
        }
        let w = match self.weight_decay {
            0.0 => w.clone(),
            decay => w.subtract(w.multiply(rate.multiply(decay as f32)?)?)?,
        };
        w.subtract(step)
    }
}

fn maximum(x: &Array, least: f64) -> Result<Array> {
    let least = Array::scalar(least as f32)?;
    select(&x.greater(&least)?, x, &least)
}

/// Multiplies the gradients by `min(1, most / (norm + 10⁻⁶))`, as MLX's `clip_grad_norm` does.
/// Returns the gradients and `norm`, a float32 scalar. The norm is the square root of the sum of
/// the squares of all elements.
///
/// # Errors
///
/// Returns an error if `most` is not above 0.
pub fn clip(gradients: &Parameters, most: f64) -> Result<(Parameters, Array)> {
    if most.is_nan() || most <= 0.0 {
        return Err(Error::argument("clip", format_args!("a norm above 0, got {most}")));
    }
    let mut squares = Array::scalar(0f32)?;
    for gradient in gradients.values() {
        squares = squares.add(gradient.astype(Dtype::Float32)?.square()?.sum(..)?)?;
    }
    let norm = squares.sqrt()?;
    let most = Array::scalar(most as f32)?;
    let factor = most.divide(norm.add(1e-6)?)?;
    let one = Array::scalar(1f32)?;
    let factor = select(&factor.less(&one)?, &factor, &one)?;
    let clipped = gradients.iter().map(|(name, gradient)| {
        Ok((name.clone(), gradient.multiply(factor.astype(gradient.dtype())?)?))
    });
    Ok((clipped.collect::<Result<_>>()?, norm))
}
