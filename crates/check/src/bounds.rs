//! Bounds of the difference between a value of the op and the value of the reference or the peer.
//! The peer is another implementation, such as MLX's own op.

use super::inputs::{Tensor, epsilon, largest};
use super::{Backend, Check};
use mlx_primitives::Dtype;
use mlx_primitives::Result;

/// The largest allowed error of a value. It is a number of units in the last place of the expected
/// value, in the output's type, plus an absolute error. The default allows no error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bound {
    /// The allowed error in units in the last place of the expected value. A unit is the distance
    /// between this value and its neighbor. For a subnormal number, it is the distance at the
    /// smallest normal number.
    pub ulps: f64,
    /// The allowed absolute error, which does not depend on the expected value.
    pub absolute: f64,
    /// The smallest share of an output's values that must be exactly equal. Two additional values
    /// may always differ. Use this for ops that round in the same places as the peer, so that only
    /// the last bits of a sum can differ.
    pub same: f64,
}

impl Bound {
    /// Returns a bound of `ulps` units in the last place.
    pub fn ulps(ulps: f64) -> Self {
        Self { ulps, ..Self::default() }
    }
}

/// Describes a comparison, so that a bound can depend on it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Compared<'a> {
    /// The backend that computed the value.
    pub backend: Backend,
    /// The check that compares the value.
    pub check: Check,
    /// The type of the inputs.
    pub dtype: Dtype,
    /// The inputs of the op.
    pub inputs: &'a [Tensor],
    /// Whether the comparison uses the peer's value instead of the reference's value.
    pub peer: bool,
}

pub(super) type Errors = dyn Fn(&Compared<'_>) -> Vec<Tensor>;

/// A bound for each comparison.
pub(super) enum Tolerance {
    /// The allowed error, as a multiple of the type's epsilon times the larger of 1 and the
    /// magnitude of the expected value.
    Epsilons(f64),
    Bounds(Box<dyn Fn(&Compared<'_>) -> Bound>),
}

enum Allowed {
    Epsilons(f64),
    Bound(Bound),
}

/// The bound of one comparison.
pub(super) struct Limit {
    allowed: Allowed,
    /// Additional allowed errors for each value of each output.
    errors: Vec<Tensor>,
}

impl Tolerance {
    pub(super) fn limit(&self, errors: Option<&Errors>, compared: &Compared<'_>) -> Limit {
        let allowed = match self {
            Self::Epsilons(count) => Allowed::Epsilons(*count),
            Self::Bounds(bound) => Allowed::Bound(bound(compared)),
        };
        Limit { allowed, errors: errors.map(|errors| errors(compared)).unwrap_or_default() }
    }
}

/// The position of a value: the number of an output and an index in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) output: usize,
    pub(super) at: usize,
}

impl Limit {
    /// Returns the largest allowed error of the value at `place`, whose expected value is `want`.
    fn of(&self, want: f64, dtype: Dtype, place: Place) -> f64 {
        let errors = self.errors.get(place.output);
        // If `errors` has this output but no entry for this value, NaN allows no error.
        let beside = errors.map_or(0.0, |e| e.values.get(place.at).copied().unwrap_or(f64::NAN));
        beside
            + match self.allowed {
                Allowed::Epsilons(count) => count * epsilon(dtype) * want.abs().max(1.0),
                Allowed::Bound(Bound { ulps, absolute, .. }) => ulps * ulp(want, dtype) + absolute,
            }
    }

    /// Returns an error if too many values of an output differ: more than two, plus the fraction
    /// `1 - same` of all values. See [`Bound::same`].
    pub(super) fn hold_share(&self, differing: usize, count: usize, what: &str) -> Result<()> {
        match self.allowed {
            Allowed::Bound(Bound { same, .. })
                if differing as f64 > 2.0 + (1.0 - same) * count as f64 =>
            {
                let said = format!("{what}: {differing} of {count} values differ");
                Err(said.into())
            }
            _ => Ok(()),
        }
    }

    /// Checks that `got` equals `want`, differs from it by at most the allowed error, or is
    /// infinite where `want` may round to infinity. NaN equals NaN. If the allowed error is
    /// infinite or NaN, only an equal value passes. If it is 0, zeros must also have the same sign.
    pub(super) fn hold(
        &self,
        got: f64,
        want: f64,
        dtype: Dtype,
        place: Place,
        what: &str,
    ) -> Result<()> {
        let allowed = self.of(want, dtype, place);
        let same = is_same(got, want)
            && (allowed > 0.0 || got.is_sign_negative() == want.is_sign_negative() || got.is_nan());
        let near = allowed > 0.0
            && allowed.is_finite()
            && want.is_finite()
            && (got - want).abs() <= allowed;
        let overflows =
            got.is_infinite() && got * want > 0.0 && want.abs() + allowed > largest(dtype);
        if same || near || overflows {
            return Ok(());
        }
        let at = place.at;
        let said = format!(
            "{what} at {at} is {got}, and {want} by the reference: {allowed:e} off is allowed"
        );
        Err(said.into())
    }
}

/// Returns whether two numbers are equal. NaN equals NaN here.
pub(super) fn is_same(got: f64, want: f64) -> bool {
    got == want || got.is_nan() && want.is_nan()
}

/// Returns the distance between `value` and its neighbor. For a subnormal number, returns the
/// distance at the smallest normal number.
fn ulp(value: f64, dtype: Dtype) -> f64 {
    let least: i32 = if dtype == Dtype::Float16 { -14 } else { -126 };
    let exponent = if value == 0.0 { least } else { value.abs().log2().floor() as i32 };
    epsilon(dtype) * 2f64.powi(exponent.max(least))
}
