use mlx_primitives::ops::{self, QuantizedWeight};
use mlx_primitives::support::Block;
use mlx_primitives::{Array, Result, concatenate};

use super::linear::{Change, Fusion, Linear, Norm};
use super::matrix::{Matrix, same_format};

/// The projections of queries, keys and values, which share their input.
#[derive(Clone)]
pub(crate) struct QkvProjection {
    parts: [Linear; 3],
    /// The plain rows of all three, of which the parts hold views.
    joined: Option<Linear>,
    fused: Fused,
}

/// How the three run. It is decided when the weights are loaded or changed, and when low-rank
/// updates are attached.
#[derive(Clone)]
enum Fused {
    /// One product with the joined rows.
    Joined(Linear),
    /// One dispatch over packed matrices of one format, to whose results the biases are added.
    Packed { weights: [QuantizedWeight; 3], biases: Option<Array> },
    /// Three products: the formats differ, or a part has an update.
    Apart,
}

impl QkvProjection {
    /// Makes a projection of the three parts and joins their rows if they are plain.
    pub fn new(parts: [Linear; 3]) -> Result<Self> {
        let [Matrix::Plain(q), Matrix::Plain(k), Matrix::Plain(v)] =
            parts.each_ref().map(|part| &part.matrix)
        else {
            return Self::decided(parts, None);
        };
        let matrix = Matrix::Plain(concatenate(&[q, k, v], 0)?);
        let bias = joined_biases(&parts)?;
        let [outputs, inputs] = matrix.shape()?;
        let (path, rows) = (String::new(), 0..outputs);
        let joined = Linear { path, matrix, bias, rows, outputs, inputs, update: None };
        Self::of_joined(parts, joined)
    }

    /// Makes the parts views of the joined rows.
    fn of_joined(mut parts: [Linear; 3], joined: Linear) -> Result<Self> {
        if let Matrix::Plain(rows) = &joined.matrix {
            let mut start = 0;
            for part in &mut parts {
                if let Matrix::Plain(own) = &mut part.matrix {
                    let end = start + own.dim(0)?;
                    *own = rows.i(start..end)?;
                    start = end;
                }
            }
        }
        Self::decided(parts, Some(joined))
    }

    fn decided(parts: [Linear; 3], joined: Option<Linear>) -> Result<Self> {
        let updated = parts.iter().any(|part| part.update.is_some());
        let fused = match (&joined, parts.each_ref().map(|part| &part.matrix)) {
            _ if updated => Fused::Apart,
            (Some(joined), _) => Fused::Joined(joined.clone()),
            (None, [Matrix::Quantized(q), Matrix::Quantized(k), Matrix::Quantized(v)])
                if same_format(q, k) && same_format(q, v) =>
            {
                let weights = [q, k, v].map(QuantizedWeight::clone);
                Fused::Packed { weights, biases: joined_biases(&parts)? }
            }
            _ => Fused::Apart,
        };
        Ok(Self { parts, joined, fused })
    }

    /// The projections of `norm(x)`, one after the other along the last axis.
    pub fn forward(&self, x: &Array, norm: &Norm) -> Result<Array> {
        match &self.fused {
            Fused::Joined(joined) => joined.forward(x, Fusion::norm(norm)),
            Fused::Packed { weights: [q, k, v], biases } => {
                let qkv = ops::quantized_linears(x, &[q, k, v], Some(norm.fused()))?;
                biases.iter().try_fold(qkv, |qkv, biases| qkv.add(biases))
            }
            Fused::Apart => {
                let x = norm.forward(x)?;
                let [q, k, v] =
                    self.parts.each_ref().map(|part| part.forward(&x, Fusion::default()));
                concatenate(&[&q?, &k?, &v?], -1)
            }
        }
    }

    /// The projections with each part changed by `f`.
    pub fn changed(&self, f: &Change) -> Result<Self> {
        let [q, k, v] = self.parts.each_ref().map(f);
        Self::new([q?, k?, v?])
    }

    /// The projections with each part changed by `f`, which leaves the matrices as they are.
    pub fn updated(&self, f: &Change) -> Result<Self> {
        let [q, k, v] = self.parts.each_ref().map(f);
        Self::decided([q?, k?, v?], self.joined.clone())
    }

    /// The projections with their matrices copied into a block.
    pub fn placed(&self, block: &mut Block) -> Result<Self> {
        match &self.joined {
            Some(joined) => Self::of_joined(self.parts.clone(), joined.placed(block)?),
            None => {
                let [q, k, v] = self.parts.each_ref().map(|part| part.placed(block));
                Self::decided([q?, k?, v?], None)
            }
        }
    }

    pub fn parts(&self) -> &[Linear; 3] {
        &self.parts
    }

    /// The projections that hold the weights.
    pub fn linears(&self) -> &[Linear] {
        self.joined.as_ref().map_or(&self.parts, std::slice::from_ref)
    }

    /// All arrays to evaluate before a pass.
    pub fn arrays(&self) -> Vec<&Array> {
        let biases = match &self.fused {
            Fused::Packed { biases, .. } => biases.as_ref(),
            _ => None,
        };
        self.parts.iter().chain(&self.joined).flat_map(Linear::arrays).chain(biases).collect()
    }
}

/// The biases one after the other, with zeros for a part that has none. `None` if no part has any.
fn joined_biases(parts: &[Linear; 3]) -> Result<Option<Array>> {
    let Some(dtype) = parts.iter().find_map(|part| Some(part.bias.as_ref()?.dtype())) else {
        return Ok(None);
    };
    let bias = |part: &Linear| match &part.bias {
        Some(bias) => Ok(bias.clone()),
        None => Array::zeros_of(&part.matrix.shape()?[..1], dtype),
    };
    let [q, k, v] = parts.each_ref().map(bias);
    Ok(Some(concatenate(&[&q?, &k?, &v?], 0)?))
}
