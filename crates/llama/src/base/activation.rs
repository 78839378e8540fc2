//! The activation of the gate in the feed-forward layer.

use mlx_primitives::{Array, Error, Result, ops};

/// The activation of the gate. `hidden_act` in a `config.json` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    Silu,
    Gelu,
    GeluTanh,
    /// `x * sigmoid(1.702 x)`.
    QuickGelu,
    Relu,
    /// The square of `Relu`.
    Relu2,
    /// `Relu`, limited to at most 6.
    Relu6,
    Sigmoid,
    Tanh,
    Linear,
}

/// The names that transformers uses. In transformers, two names for the same activation may give
/// results that differ by rounding.
const NAMES: [(&str, Activation); 16] = [
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("gelu", Activation::Gelu),
    ("gelu_python", Activation::Gelu),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_python_tanh", Activation::GeluTanh),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_accurate", Activation::GeluTanh),
    ("quick_gelu", Activation::QuickGelu),
    ("relu", Activation::Relu),
    ("relu2", Activation::Relu2),
    ("relu6", Activation::Relu6),
    ("sigmoid", Activation::Sigmoid),
    ("tanh", Activation::Tanh),
    ("linear", Activation::Linear),
];

impl Activation {
    /// Returns the activation with this name.
    pub fn parse(name: &str) -> Result<Self> {
        NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, activation)| *activation)
            .ok_or_else(|| {
                let known = NAMES.map(|(name, _)| name).join(", ");
                Error::argument("config", format_args!("hidden_act among {known}, got {name:.40}"))
            })
    }

    /// Computes `act(gate) * up`, with a fused op of mlx-primitives if there is one for the
    /// activation.
    pub fn gated(self, gate: &Array, up: &Array) -> Result<Array> {
        match self {
            Self::Silu => ops::swiglu(gate, up),
            Self::Gelu => ops::geglu(gate, up),
            Self::GeluTanh => ops::geglu_tanh(gate, up),
            other => other.built_of_mlx(gate)?.multiply(up),
        }
    }

    /// Computes `act(x)` with built-in ops of MLX only.
    pub fn built_of_mlx(self, x: &Array) -> Result<Array> {
        let relu = || x.maximum(0.0);
        match self {
            Self::Silu => x.multiply(x.sigmoid()?),
            Self::Gelu => {
                let half = x.divide(std::f32::consts::SQRT_2)?.erf()?.add(1.0)?.divide(2.0)?;
                x.multiply(half)
            }
            Self::GeluTanh => {
                let cubed = x.square()?.multiply(x)?.multiply(0.044_715)?;
                let root = (2.0 / std::f32::consts::PI).sqrt();
                let inner = x.add(cubed)?.multiply(root)?.tanh()?;
                x.multiply(0.5)?.multiply(inner.add(1.0)?)
            }
            Self::QuickGelu => x.multiply(x.multiply(1.702)?.sigmoid()?),
            Self::Relu => relu(),
            Self::Relu2 => relu()?.square(),
            Self::Relu6 => relu()?.minimum(6.0),
            Self::Sigmoid => x.sigmoid(),
            Self::Tanh => x.tanh(),
            Self::Linear => Ok(x.clone()),
        }
    }
}
