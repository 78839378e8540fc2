//! Times two implementations in turn, and compares their results.

use std::time::Duration;

use super::Measured;
use crate::array::Array;
use crate::dtype::Dtype;
use crate::error::Result;

impl Measured {
    /// Times two functions in turn until the budget is spent, by a clock that returns the time
    /// since a fixed moment: at least three rounds, or one if that takes five times the budget, and
    /// at most a thousand. The times are medians.
    ///
    /// # Errors
    ///
    /// Returns the first error of `ours` or `mlx`.
    pub fn race<E>(
        mut ours: impl FnMut() -> std::result::Result<(), E>,
        mut mlx: impl FnMut() -> std::result::Result<(), E>,
        clock: &dyn Fn() -> Duration,
        budget: Duration,
    ) -> std::result::Result<Self, E> {
        const MOST: usize = 1000;
        // The first run of each does not count, since it may do extra work.
        ours()?;
        mlx()?;
        let (start, mut times) = (clock(), [Vec::new(), Vec::new()]);
        loop {
            let (rounds, begin) = (times[0].len(), clock());
            let spent = begin.saturating_sub(start);
            if spent >= 5 * budget && rounds > 0 || spent >= budget && rounds >= 3 || rounds == MOST
            {
                break;
            }
            ours()?;
            let middle = clock();
            mlx()?;
            times[0].push(middle.saturating_sub(begin).as_secs_f64());
            times[1].push(clock().saturating_sub(middle).as_secs_f64());
        }
        let [ours, mlx] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        Ok(Self { ours, mlx, agrees: true })
    }
}

/// Whether two results have the same shape and type, and differ by no more than intermediate
/// roundings explain: by a fraction of the largest finite element, 0.005 in float32, 0.02 in
/// float16 and 0.1 in bfloat16. Infinities and NaN must be the same.
///
/// # Errors
///
/// Returns an error if one of the results cannot be evaluated.
pub fn agree(ours: &Array, mlx: &Array) -> Result<bool> {
    if (ours.dtype(), ours.shape()) != (mlx.dtype(), mlx.shape()) {
        return Ok(false);
    }
    let part = match ours.dtype() {
        Dtype::Float32 => 5e-3, // MLX's products may round to 11 bits
        Dtype::Float16 => 2e-2,
        _ => 1e-1,
    };
    let numbers = |x: &Array| x.astype(Dtype::Float32)?.to_vec::<f32>();
    let (ours, mlx) = (numbers(ours)?, numbers(mlx)?);
    let largest = mlx.iter().filter(|v| v.is_finite()).fold(0f32, |all, v| all.max(v.abs()));
    let near = |(a, b): (&f32, &f32)| {
        a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= part * largest
    };
    Ok(ours.iter().zip(&mlx).all(near))
}
