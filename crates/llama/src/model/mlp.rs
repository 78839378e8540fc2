use mlx_primitives::ops::{self, QuantizedWeight};
use mlx_primitives::{Array, Result};

use super::linear::{Change, Fusion, Linear, Norm};
use super::matrix::{Matrix, same_format};
use crate::base::{Activation, Config, Weights};

/// The gated feed-forward layer.
#[derive(Clone)]
pub(crate) struct Mlp {
    pub gate_proj: Linear,
    pub up_proj: Linear,
    pub down_proj: Linear,
    pub activation: Activation,
    fused: Fused,
}

/// How gate, up and the activation run. It is decided when the weights are loaded or changed, and
/// when low-rank updates are attached.
#[derive(Clone)]
enum Fused {
    /// One dispatch over packed matrices of one format.
    PackedSwiglu { gate: QuantizedWeight, up: QuantizedWeight },
    /// Two products, then the activation.
    Apart,
}

impl Mlp {
    pub fn load(config: &Config, path: &str, weights: &mut Weights) -> Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let mut projection = |name: &str, outputs: i32, inputs: i32| {
            Linear::load(&format!("{path}.{name}"), [outputs, inputs], config, weights)
        };
        Ok(Self::new(
            config.activation()?,
            projection("gate_proj", inner, hidden)?,
            projection("up_proj", inner, hidden)?,
            projection("down_proj", hidden, inner)?,
        ))
    }

    fn new(activation: Activation, gate_proj: Linear, up_proj: Linear, down_proj: Linear) -> Self {
        let plain = |part: &Linear| part.bias.is_none() && part.update.is_none();
        let fused = match (&gate_proj.matrix, &up_proj.matrix) {
            (Matrix::Quantized(gate), Matrix::Quantized(up))
                if activation == Activation::Silu
                    && same_format(gate, up)
                    && plain(&gate_proj)
                    && plain(&up_proj) =>
            {
                Fused::PackedSwiglu { gate: gate.clone(), up: up.clone() }
            }
            _ => Fused::Apart,
        };
        Self { gate_proj, up_proj, down_proj, activation, fused }
    }

    /// `act(gate(norm(x))) * up(norm(x))`.
    pub fn gated(&self, x: &Array, norm: &Norm) -> Result<Array> {
        if let Fused::PackedSwiglu { gate, up } = &self.fused {
            return ops::quantized_swiglu(x, gate, up, Some(norm.fused()));
        }
        let x = norm.forward(x)?;
        let gate = self.gate_proj.forward(&x, Fusion::default())?;
        let up = self.up_proj.forward(&x, Fusion::default())?;
        self.activation.gated(&gate, &up)
    }

    /// The layer with each projection changed by `f`.
    pub fn changed(&self, f: &Change) -> Result<Self> {
        let [gate_proj, up_proj, down_proj] = self.projections().map(f);
        Ok(Self::new(self.activation, gate_proj?, up_proj?, down_proj?))
    }

    /// The projections, in the order in which they run.
    pub fn projections(&self) -> [&Linear; 3] {
        [&self.gate_proj, &self.up_proj, &self.down_proj]
    }
}
