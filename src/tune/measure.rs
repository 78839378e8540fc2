//! Times one of our ops and its composition of MLX's own ops.

use std::time::Duration;

use super::Measured;
use crate::array::{Array, eval, from_list, to_list};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ffi::bridge as ffi;
use crate::random;

/// The most bytes of inputs and of results; more would take long to make and to compare.
const MOST_BYTES: usize = 256 << 20;
/// The most copies of the op that one evaluation computes, so that its start counts for less.
const MOST_CALLS: usize = 16;
/// The most bytes of the results of all copies, unless the result of one is larger.
const BATCH_BYTES: usize = 16 << 20;

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

/// Times the op whose lazy result is given and its composition of MLX's own ops, by a clock that
/// returns the time since a fixed moment, and compares their results. The times are those of one
/// call.
///
/// Inputs that are not computed yet, also those of a function that MLX is tracing, are replaced by
/// normally distributed random numbers or by integers of zero: the graph of the array is not
/// evaluated.
///
/// # Errors
///
/// Returns an error if the array is no lazy result of one of our ops with a single output, MLX's
/// own ops refuse its inputs, or inputs and results take more than 256 MiB.
///
/// ```
/// use std::time::{Duration, Instant};
/// use mlx_primitives::{Array, ops, tune};
///
/// let y = ops::rms_norm(&Array::ones::<f32>(&[4, 64])?, None, 1e-5)?;
/// let start = Instant::now();
/// let measured = tune::measure(&y, &|| start.elapsed(), Duration::from_millis(1))?;
/// assert!(measured.agrees && measured.ours > 0.0 && measured.mlx > 0.0);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn measure(y: &Array, clock: &dyn Fn() -> Duration, budget: Duration) -> Result<Measured> {
    let inputs = from_list(&*ffi::inputs(y.raw())?);
    let mut bytes = y.nbytes();
    for input in &inputs {
        bytes += if ffi::finished(input.raw())? { 0 } else { input.nbytes() };
    }
    if bytes > MOST_BYTES {
        let expected =
            format_args!("at most {MOST_BYTES} bytes of inputs and results, got {bytes}");
        return Err(Error::argument("measure", expected));
    }
    let inputs = inputs.iter().map(stand_in).collect::<Result<Vec<_>>>()?;
    eval(&inputs)?;
    let inputs = to_list(&inputs);
    let ours = || Array::from_bridge(ffi::rebuilt(y.raw(), &inputs));
    let mlx = || -> Result<Array> {
        let all = from_list(&*ffi::composition(ours()?.raw())?);
        all.into_iter().next().ok_or_else(|| Error::argument("measure", "a result, got none"))
    };
    let agrees = agree(&ours()?, &mlx()?)?;
    let calls = (BATCH_BYTES / y.nbytes().max(1)).clamp(1, MOST_CALLS);
    let run = |build: &dyn Fn() -> Result<Array>| -> Result<()> {
        eval(&(0..calls).map(|_| build()).collect::<Result<Vec<_>>>()?)
    };
    let measured = Measured::race(|| run(&ours), || run(&mlx), clock, budget)?;
    let each = |seconds: f64| seconds / calls as f64;
    Ok(Measured { ours: each(measured.ours), mlx: each(measured.mlx), agrees })
}

/// The input if it is computed, otherwise an array of its shape and type.
fn stand_in(input: &Array) -> Result<Array> {
    if ffi::finished(input.raw())? {
        return Ok(input.clone());
    }
    match input.dtype() {
        dtype @ (Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16) => {
            // The key keeps the thread's own sequence of random numbers as it is.
            random::normal_of(input.shape(), dtype, Some(&random::key(0)?))
        }
        dtype => Array::scalar(0i32)?.astype(dtype)?.broadcast_to(input.shape()),
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
