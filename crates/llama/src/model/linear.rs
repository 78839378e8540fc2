use std::ops::Range;

use mlx_primitives::ops::{self, LinearWeight, Lora};
use mlx_primitives::{Array, Result};

use super::matrix;
use super::part::Part;
use super::update::Update;
use crate::base::{Config, Weights};

/// An RMS normalization with its weight.
#[derive(Clone)]
pub(super) struct Norm {
    /// The name of the norm in checkpoints, such as `model.norm`.
    pub path: String,
    pub weight: Array,
    pub eps: f32,
}

impl Norm {
    pub fn load(path: &str, features: i32, config: &Config, weights: &mut Weights) -> Result<Self> {
        let mut weight = weights.take(&format!("{path}.weight"), &[features])?;
        if config.kind()?.norms_from_one() {
            weight = weight.add(1.0)?;
        }
        Ok(Self { path: path.to_owned(), weight, eps: config.rms_norm_eps })
    }

    pub fn forward(&self, x: &Array) -> Result<Array> {
        ops::rms_norm(x, Some(&self.weight), self.eps)
    }

    /// Returns the weight and the epsilon for ops whose dispatch also computes the norm.
    pub fn fused(&self) -> (&Array, f32) {
        (&self.weight, self.eps)
    }
}

/// A projection: a matrix and, optionally, a bias and a low-rank update.
#[derive(Clone)]
pub(super) struct Linear {
    /// The name of the projection in checkpoints, such as `model.layers.0.self_attn.q_proj`.
    pub path: String,
    pub matrix: LinearWeight,
    pub bias: Option<Array>,
    /// The range of rows of the whole matrix that `matrix` contains. The whole matrix has `outputs`
    /// rows.
    pub rows: Range<i32>,
    pub outputs: i32,
    pub inputs: i32,
    /// The low-rank update that runs beside the matrix in every forward pass.
    pub update: Option<Update>,
    pub part: Part,
}

impl Linear {
    pub fn load(
        path: &str,
        [outputs, inputs]: [i32; 2],
        config: &Config,
        weights: &mut Weights,
    ) -> Result<Self> {
        let matrix = matrix::load(path, [outputs, inputs], config, weights)?;
        let bias = match config.has_bias(path.rsplit('.').next().unwrap_or_default()) {
            true => Some(weights.take_part(&format!("{path}.bias"), path, outputs)?),
            false => None,
        };
        let rows = weights.share().rows(path, outputs);
        let part = Part::of(path, weights);
        Ok(Self { path: path.to_owned(), matrix, bias, rows, outputs, inputs, update: None, part })
    }

    /// Computes `W · norm(x) + bias + residual`, and applies the update if there is one. If the
    /// format of the weights allows it, the dispatch of the product also computes the norm and adds
    /// the bias and the residual.
    pub fn forward(
        &self,
        x: &Array,
        norm: Option<&Norm>,
        residual: Option<&Array>,
    ) -> Result<Array> {
        if self.part.exchanges() {
            let own = Self { part: Part::default(), ..self.clone() };
            return self.part.exchanged(x, residual, |x, residual| own.forward(x, norm, residual));
        }
        let normed = || norm.map_or_else(|| Ok(x.clone()), |norm| norm.forward(x));
        let bias = self.bias.as_ref();
        match (&self.update, &self.matrix) {
            (Some(update), matrix) => {
                let y = update.apply(&normed()?, matrix)?;
                bias.into_iter().chain(residual).try_fold(y, |y, term| y.add(term))
            }
            (None, LinearWeight::Plain(rows)) => {
                let options = ops::Linear { bias, residual, ..Default::default() };
                ops::linear(&normed()?, rows, options)
            }
            (None, LinearWeight::Quantized(rows)) => {
                let norm = norm.map(Norm::fused);
                ops::quantized_linear(x, rows, ops::QuantizedLinear { bias, residual, norm })
            }
        }
    }

    /// Returns the part of a low-rank update that applies to the rows in `matrix`. `update` is the
    /// update of the whole matrix.
    pub fn own_part(&self, update: &Lora) -> Result<Lora> {
        let own = |array: &Array| match self.rows == (0..self.outputs) {
            true => Ok(array.clone()),
            false => array.i(self.rows.clone())?.contiguous(),
        };
        let part = Lora::new(update.a().clone(), own(update.b())?, update.scale())?;
        match update.magnitude() {
            Some(magnitude) => part.with_magnitude(own(magnitude)?),
            None => Ok(part),
        }
    }

    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.matrix.arrays().chain(&self.bias)
    }
}

/// A part of a model that has weights.
#[derive(Clone, Copy)]
pub(super) enum Module<'a> {
    Norm(&'a Norm),
    Linear(&'a Linear),
}

impl<'a> Module<'a> {
    pub fn path(self) -> &'a str {
        match self {
            Self::Norm(norm) => &norm.path,
            Self::Linear(linear) => &linear.path,
        }
    }

    pub fn arrays(self) -> impl Iterator<Item = &'a Array> {
        let (norm, linear) = match self {
            Self::Norm(norm) => (Some(&norm.weight), None),
            Self::Linear(linear) => (None, Some(linear.arrays())),
        };
        norm.into_iter().chain(linear.into_iter().flatten())
    }
}
