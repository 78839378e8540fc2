use crate::array::{Array, Block, concatenate};
use crate::error::Result;
use crate::ops;

use super::layer::Change;
use super::linear::{Around, Linear, Matrix};

/// Queries, keys and values of one input, in one dispatch where their formats allow.
#[derive(Clone)]
pub(super) struct Projections {
    parts: [Linear; 3],
    /// Plain rows of all three, of which the parts hold views.
    joined: Option<Linear>,
}

impl Projections {
    pub fn new(parts: [Linear; 3]) -> Result<Self> {
        let [Matrix::Plain(q), Matrix::Plain(k), Matrix::Plain(v)] =
            parts.each_ref().map(|part| &part.matrix)
        else {
            return Ok(Self { parts, joined: None });
        };
        let rows = concatenate(&[q, k, v], 0)?;
        let bias = joined_biases(&parts, &rows)?;
        Self::of_joined(parts, Linear { path: String::new(), matrix: Matrix::Plain(rows), bias })
    }

    /// The parts, as views of the joined rows.
    fn of_joined(mut parts: [Linear; 3], joined: Linear) -> Result<Self> {
        if let Matrix::Plain(rows) = &joined.matrix {
            let mut start = 0;
            for part in &mut parts {
                if let Matrix::Plain(own) = &mut part.matrix {
                    let end = start + own.dim(0)?;
                    *own = rows.slice(&[&(start..end)])?;
                    start = end;
                }
            }
        }
        Ok(Self { parts, joined: Some(joined) })
    }

    /// What holds the weights.
    pub fn linears(&self) -> &[Linear] {
        self.joined.as_ref().map_or(&self.parts, std::slice::from_ref)
    }

    /// The same, in a block.
    pub fn placed(&self, block: &mut Block) -> Result<Self> {
        match &self.joined {
            Some(joined) => Self::of_joined(self.parts.clone(), joined.placed(block)?),
            None => {
                let [q, k, v] = self.parts.each_ref().map(|part| part.placed(block));
                Ok(Self { parts: [q?, k?, v?], joined: None })
            }
        }
    }

    /// The results one after the other along the last axis.
    pub fn forward(&self, x: &Array, around: Around) -> Result<Array> {
        let adapted = around.adapters.is_some_and(|adapters| {
            self.parts.iter().any(|part| adapters.get(&part.path).is_some())
        });
        if let (Some(joined), false) = (&self.joined, adapted) {
            return joined.forward(x, around);
        }
        let formats = self.parts.each_ref().map(|part| part.matrix.format());
        if let ([Matrix::Quantized(q), Matrix::Quantized(k), Matrix::Quantized(v)], false) =
            (self.parts.each_ref().map(|part| &part.matrix), adapted)
            && formats[0] == formats[1]
            && formats[0] == formats[2]
        {
            let y = ops::quantized_linears(x, &[q, k, v], around.fused_norm())?;
            return match joined_biases(&self.parts, &y)? {
                Some(biases) => y.add(biases),
                None => Ok(y),
            };
        }
        let x = around.normed(x)?;
        let around = Around { norm: None, ..around };
        let results: Vec<Array> =
            self.parts.iter().map(|part| part.forward(&x, around)).collect::<Result<_>>()?;
        concatenate(&results.iter().collect::<Vec<_>>(), -1)
    }

    pub fn changed(&self, f: &Change) -> Result<Self> {
        let [q, k, v] = self.parts.each_ref().map(f);
        Self::new([q?, k?, v?])
    }

    pub fn parts(&self) -> &[Linear; 3] {
        &self.parts
    }

    pub fn arrays(&self) -> Vec<&Array> {
        self.parts.iter().chain(&self.joined).flat_map(Linear::arrays).collect()
    }
}

/// The biases one after the other, zeros for a part without; none if no part has any.
fn joined_biases(parts: &[Linear; 3], like: &Array) -> Result<Option<Array>> {
    if parts.iter().all(|part| part.bias.is_none()) {
        return Ok(None);
    }
    let of = |part: &Linear| match (&part.bias, &part.matrix) {
        (Some(bias), _) => Ok(bias.clone()),
        (None, Matrix::Plain(rows)) => Array::zeros_of(&[rows.dim(0)?], like.dtype()),
        (None, Matrix::Quantized(rows)) => Array::zeros_of(&[rows.outputs()], like.dtype()),
    };
    let biases: Vec<Array> = parts.iter().map(of).collect::<Result<_>>()?;
    Ok(Some(concatenate(&biases.iter().collect::<Vec<_>>(), 0)?))
}
