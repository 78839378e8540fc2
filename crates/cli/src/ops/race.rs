//! Times two implementations alternately, and compares their results.

use std::time::Duration;

use mlx_primitives::tune::Measured;
use mlx_primitives::{Array, Dtype};

/// Runs two functions alternately until the budget is spent, and returns their median times. Stops
/// if a function returns an error. `clock` returns the time since a fixed moment. There are at most
/// a thousand rounds, and at least three, or fewer if these take five times the budget.
pub fn race<E>(
    mut ours: impl FnMut() -> Result<(), E>,
    mut mlx: impl FnMut() -> Result<(), E>,
    clock: &dyn Fn() -> Duration,
    budget: Duration,
) -> Result<Measured, E> {
    const MOST: usize = 1000;
    // The first run of each function is not counted, because it may do extra work.
    ours()?;
    mlx()?;
    let (start, mut times) = (clock(), [Vec::new(), Vec::new()]);
    loop {
        let (rounds, begin) = (times[0].len(), clock());
        let spent = begin.saturating_sub(start);
        if spent >= 5 * budget && rounds > 0 || spent >= budget && rounds >= 3 || rounds == MOST {
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
    Ok(Measured { ours, mlx, agrees: true })
}

/// Returns whether two results have the same shape and type, and differ no more than intermediate
/// rounding can explain. The allowed difference is a fraction of the largest finite element: 0.005
/// in float32, 0.02 in float16 and 0.1 in bfloat16. Infinities and NaN must be equal.
pub fn agree(ours: &Array, mlx: &Array) -> mlx_primitives::Result<bool> {
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

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use mlx_primitives::tune::Choice;

    use super::*;

    /// In this test, only the two functions advance the clock.
    #[test]
    fn times_are_medians() -> anyhow::Result<()> {
        let timed =
            |ours: &'static [u64], mlx: &'static [u64]| -> anyhow::Result<(Measured, usize)> {
                let (now, count) = (Cell::new(Duration::ZERO), Cell::new(0));
                let run = |times: &'static [u64]| {
                    let times = RefCell::new(times.iter().copied().cycle());
                    let (now, count) = (&now, &count);
                    move || {
                        let took = times.borrow_mut().next().unwrap_or_default();
                        now.set(now.get() + Duration::from_micros(took));
                        count.set(count.get() + 1);
                        anyhow::Ok(())
                    }
                };
                let budget = Duration::from_micros(1000);
                let measured = race(run(ours), run(mlx), &|| now.get(), budget)?;
                Ok((measured, count.get()))
            };
        let micros = |it: &Measured| [it.ours, it.mlx].map(|seconds| (seconds * 1e6).round());
        // Each function has one uncounted run, then as many runs as the budget allows.
        let (it, runs) = timed(&[60], &[40])?;
        assert_eq!((micros(&it), it.choice(), runs), ([60.0, 40.0], Choice::Mlx, 22));
        // Outliers and the first run do not affect the median.
        let (it, _) = timed(&[500, 40, 40, 900, 40, 40], &[1, 50, 50, 1, 50, 50])?;
        assert_eq!((micros(&it), it.choice()), ([40.0, 50.0], Choice::Ours));
        // There are at least three rounds, unless a round takes very long.
        assert_eq!((timed(&[500], &[500])?.1, timed(&[2500], &[2500])?.1), (8, 4));
        // A stopped clock also ends the race.
        let still = race(|| Ok::<_, ()>(()), || Ok(()), &Duration::default, Duration::MAX / 8);
        assert_eq!(still, Ok(Measured { ours: 0.0, mlx: 0.0, agrees: true }));
        let failed = race(|| Err("an error"), || Ok(()), &Duration::default, Duration::ZERO);
        assert_eq!(failed, Err("an error"));
        Ok(())
    }

    #[test]
    fn results_agree_up_to_rounding() -> anyhow::Result<()> {
        let array = |values: &[f32]| Array::from_slice(values, [values.len() as i32]);
        let theirs = array(&[1.0, f32::NAN, f32::INFINITY])?;
        assert!(agree(&array(&[1.004, f32::NAN, f32::INFINITY])?, &theirs)?);
        for wrong in
            [[1.006, f32::NAN, f32::INFINITY], [1.0, 1.0, f32::INFINITY], [1.0, f32::NAN, 1.0]]
        {
            assert!(!agree(&array(&wrong)?, &theirs)?, "{wrong:?}");
        }
        assert!(!agree(&theirs.astype(Dtype::Float16)?, &theirs)?);
        assert!(!agree(&array(&[1.0])?, &theirs)?);
        Ok(())
    }
}
