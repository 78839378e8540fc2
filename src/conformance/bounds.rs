//! How far a value may be from the one that it is compared with.

use super::Backend;
use super::inputs::{Tensor, epsilon, largest};
use crate::dtype::Dtype;
use crate::error::{Error, Result};

/// The largest error of a value: units in the last place of the expected value, in the output's
/// type, and an absolute error beside them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bound {
    /// Distances from the expected value to its neighbor; of subnormal numbers that of the smallest
    /// normal one.
    pub ulps: f64,
    /// An error of any value, whatever its size.
    pub absolute: f64,
}

/// What a bound may depend on.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Compared<'a> {
    /// What computed the value.
    pub backend: Backend,
    /// The type of the inputs.
    pub dtype: Dtype,
    /// The inputs of the op.
    pub inputs: &'a [Tensor],
}

/// A bound for each comparison.
pub(super) enum Tolerance {
    /// So many times the type's epsilon, of the larger of 1 and the expected value.
    Epsilons(f64),
    Bounds(Box<dyn Fn(&Compared<'_>) -> Bound>),
}

/// The bound of one comparison.
#[derive(Clone, Copy)]
pub(super) enum Limit {
    Epsilons(f64),
    Bound(Bound),
}

impl Tolerance {
    pub(super) fn limit(&self, compared: &Compared<'_>) -> Limit {
        match self {
            Self::Epsilons(count) => Limit::Epsilons(*count),
            Self::Bounds(bound) => Limit::Bound(bound(compared)),
        }
    }
}

impl Limit {
    /// The largest error of a value that should be `want`.
    fn of(self, want: f64, dtype: Dtype) -> f64 {
        match self {
            Self::Epsilons(count) => count * epsilon(dtype) * want.abs().max(1.0),
            Self::Bound(Bound { ulps, absolute }) => ulps * ulp(want, dtype) + absolute,
        }
    }

    /// An error unless `got` is NaN where `want` is, infinite where that is or rounds to infinity,
    /// and else near it.
    pub(super) fn hold(
        self,
        got: f64,
        want: f64,
        dtype: Dtype,
        what: impl FnOnce() -> String,
    ) -> Result<()> {
        let same = got.is_nan() && want.is_nan() || got == want;
        let allowed = self.of(want, dtype);
        let near = got.is_finite() && want.is_finite() && (got - want).abs() <= allowed;
        let overflows =
            got.is_infinite() && got * want > 0.0 && want.abs() + allowed > largest(dtype);
        if same || near || overflows {
            return Ok(());
        }
        Err(Error::Argument(format!("{} is {got}, and {want} by the reference", what())))
    }
}

/// The distance of neighbors at `value`; at subnormal numbers that of the smallest normal one.
fn ulp(value: f64, dtype: Dtype) -> f64 {
    let least: i32 = if dtype == Dtype::Float16 { -14 } else { -126 };
    let exponent = if value == 0.0 { least } else { value.abs().log2().floor() as i32 };
    epsilon(dtype) * 2f64.powi(exponent.max(least))
}
