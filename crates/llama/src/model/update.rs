use mlx_primitives::ops::{self, LinearWeight, Lora};
use mlx_primitives::{Array, Result, random};

/// A low-rank update that runs beside a projection's matrix.
#[derive(Clone)]
pub(super) struct Update {
    pub lora: Lora,
    /// In DoRA, the factor of each row of the matrix with its update.
    factors: Option<Array>,
    /// In training, the fraction of the update's inputs that dropout sets to zero, and the random
    /// key for the choice of these inputs.
    pub dropout: Option<(f32, Array)>,
}

impl Update {
    /// Makes the update of a matrix. `squares` has the sum of squares of each row of the matrix, if
    /// the caller knows them.
    pub fn new(lora: Lora, matrix: &LinearWeight, squares: Option<&Array>) -> Result<Self> {
        let factors = lora.row_factors(matrix, squares)?;
        Ok(Self { lora, factors, dropout: None })
    }

    pub fn apply(&self, x: &Array, matrix: &LinearWeight) -> Result<Array> {
        let (a, b, scale) = (self.lora.a(), self.lora.b(), self.lora.scale());
        let y = match &self.dropout {
            None => ops::lora_linear(x, matrix, a, b, scale)?,
            Some((rate, key)) => {
                let kept = random::uniform::<f32>(0.0, 1.0, x.shape(), Some(key))?;
                let kept = kept.greater_equal(*rate)?.astype(x.dtype())?;
                let some = kept.multiply(x)?.multiply(1.0 / (1.0 - rate))?;
                let plain = ops::Linear::default();
                let low = ops::linear(&ops::linear(&some, a, plain)?, b, plain)?;
                matrix.apply(x)?.add(low.multiply(scale)?)?
            }
        };
        match &self.factors {
            Some(factors) => y.multiply(factors.astype(y.dtype())?),
            None => Ok(y),
        }
    }
}
