use std::ops::Range;

use mlx_primitives::ops::{self, Lora};
use mlx_primitives::support::Block;
use mlx_primitives::{Array, Result};

use super::matrix::Matrix;
use crate::base::{Axis, Config, Quantization, Share, Weights};

/// A function that changes a projection, for instance by packing its weights.
pub(crate) type Change<'a> = dyn Fn(&Linear) -> Result<Linear> + 'a;

/// The weight of an RMS normalization.
#[derive(Clone)]
pub(crate) struct Norm {
    pub weight: Array,
    pub eps: f32,
}

impl Norm {
    pub fn load(path: &str, features: i32, config: &Config, weights: &mut Weights) -> Result<Self> {
        let mut weight = weights.take(&format!("{path}.weight"), &[features])?;
        if config.kind()?.norms_from_one() {
            weight = weight.add(1.0)?;
        }
        Ok(Self { weight, eps: config.rms_norm_eps })
    }

    pub fn forward(&self, x: &Array) -> Result<Array> {
        ops::rms_norm(x, Some(&self.weight), self.eps)
    }

    /// The norm as the quantized ops take it.
    pub fn fused(&self) -> (&Array, f32) {
        (&self.weight, self.eps)
    }
}

/// The steps before and after a projection that run in its dispatch if its weights allow.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fusion<'a> {
    /// Normalizes the input.
    norm: Option<&'a Norm>,
    /// Is added to the result.
    residual: Option<&'a Array>,
}

impl<'a> Fusion<'a> {
    pub fn norm(norm: &'a Norm) -> Self {
        Self { norm: Some(norm), residual: None }
    }

    pub fn residual(residual: &'a Array) -> Self {
        Self { norm: None, residual: Some(residual) }
    }

    /// The input after the norm, where that runs by itself.
    fn normed(&self, x: &Array) -> Result<Array> {
        self.norm.map_or_else(|| Ok(x.clone()), |norm| norm.forward(x))
    }
}

impl Matrix {
    /// The product of `x` with the transposed matrix, plus the bias.
    pub(crate) fn forward(&self, x: &Array, bias: Option<&Array>, fusion: Fusion) -> Result<Array> {
        let residual = fusion.residual;
        match self {
            Self::Plain(rows) => {
                let options = ops::Linear { bias, residual, ..Default::default() };
                ops::linear(&fusion.normed(x)?, rows, options)
            }
            Self::Quantized(rows) => {
                let norm = fusion.norm.map(Norm::fused);
                ops::quantized_linear(x, rows, ops::QuantizedLinear { bias, residual, norm })
            }
        }
    }
}

/// A projection: a matrix, perhaps with a bias and a low-rank update.
#[derive(Clone)]
pub(crate) struct Linear {
    /// Its name in checkpoints, such as `model.layers.0.self_attn.q_proj`.
    pub path: String,
    pub matrix: Matrix,
    pub bias: Option<Array>,
    /// The rows of the whole matrix that `matrix` has, and the number of its outputs.
    pub rows: Range<i32>,
    pub outputs: i32,
    pub inputs: i32,
    /// The low-rank update that runs beside the matrix in every pass.
    pub update: Option<Lora>,
}

impl Linear {
    pub fn load(
        path: &str,
        [outputs, inputs]: [i32; 2],
        config: &Config,
        weights: &mut Weights,
    ) -> Result<Self> {
        let matrix = Matrix::load(path, [outputs, inputs], config, weights)?;
        let bias = match config.has_bias(path.rsplit('.').next().unwrap_or_default()) {
            true => Some(weights.take_part(&format!("{path}.bias"), path, outputs)?),
            false => None,
        };
        let rows = weights.share().rows(path, outputs);
        let path = path.to_owned();
        Ok(Self { path, matrix, bias, rows, outputs, inputs, update: None })
    }

    /// The numbers of outputs and inputs of the whole matrix.
    pub fn whole_shape(&self) -> [i32; 2] {
        [self.outputs, self.inputs]
    }

    /// The part of a low-rank update of the whole matrix that concerns this one.
    pub fn own_part(&self, update: &Lora) -> Result<Lora> {
        let (a, mut b) = (update.a().clone(), update.b().clone());
        if self.rows != (0..self.outputs) {
            b = b.i(self.rows.clone())?.contiguous()?;
        }
        Lora::new(a, b, update.scale())
    }

    /// `residual + W · x`, where `own` is the part of `x` that this process has of `axis`.
    pub fn added_to(
        &self,
        residual: &Array,
        own: Array,
        axis: Axis,
        share: &Share,
    ) -> Result<Array> {
        let all = share.gather(own, axis)?;
        let y = self.forward(&all, Fusion::residual(&share.own_features(residual)?))?;
        share.gather(y, Axis::Hidden)
    }

    pub fn forward(&self, x: &Array, fusion: Fusion) -> Result<Array> {
        let Some(update) = &self.update else {
            return self.matrix.forward(x, self.bias.as_ref(), fusion);
        };
        let y = update.apply(&fusion.normed(x)?, &self.matrix.weight())?;
        let terms = self.bias.iter().chain(fusion.residual);
        terms.into_iter().try_fold(y, |y, term| y.add(term))
    }

    pub fn arrays(&self) -> Vec<&Array> {
        self.matrix.arrays().into_iter().chain(&self.bias).collect()
    }

    /// The projection with its matrix copied into a block.
    pub fn placed(&self, block: &mut Block) -> Result<Self> {
        Ok(Self { matrix: self.matrix.placed(block)?, ..self.clone() })
    }

    /// The projection with its matrix copied into a separate block.
    pub fn placed_alone(self) -> Result<Self> {
        Ok(Self { matrix: self.matrix.placed_alone()?, ..self })
    }

    /// The number of parameters, packed or not.
    pub fn size(&self) -> u64 {
        self.matrix.size() + self.bias.as_ref().map_or(0, |bias| bias.size() as u64)
    }

    pub fn nbytes(&self) -> usize {
        self.matrix.nbytes() + self.bias.as_ref().map_or(0, Array::nbytes)
    }

    pub fn quantized(&self, to: Quantization) -> Result<Self> {
        Ok(Self { matrix: self.matrix.quantized(to)?, ..self.clone() })
    }
}
