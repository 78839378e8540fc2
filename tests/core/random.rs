//! Random arrays are reproducible and have the right distributions.

use mlx_primitives::{Array, Dtype, random};

use crate::support::compare::{assert_same, numbers};
use crate::support::input::FLOATS;
use crate::support::{Checked, message};

const COUNT: i32 = 100_000;

fn moments(x: &Array) -> anyhow::Result<(f64, f64)> {
    let v = numbers(x)?;
    let mean = v.iter().sum::<f64>() / v.len() as f64;
    Ok((mean, v.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / v.len() as f64))
}

#[test]
fn a_key_decides_everything() -> Checked {
    for dtype in FLOATS {
        let draw = |seed| random::normal_of([100], dtype, Some(&random::key(seed)?));
        assert_same(&draw(7)?, &draw(7)?, "one key")?;
        assert_ne!(numbers(&draw(7)?)?, numbers(&draw(8)?)?);
    }
    let keys = random::split(&random::key(7)?, 3)?;
    assert_eq!((keys.shape(), keys.dtype()), (&[3, 2][..], Dtype::Uint32));
    let row = |i: i32| keys.i(i..i + 1)?.squeeze([0]);
    let a = random::uniform::<f32>(0.0, 1.0, &[9], Some(&row(0)?))?;
    let b = random::uniform::<f32>(0.0, 1.0, &[9], Some(&row(1)?))?;
    assert_ne!(a.to_vec::<f32>()?, b.to_vec::<f32>()?);
    Ok(())
}

#[test]
fn a_seed_restarts_the_threads_sequence() -> Checked {
    let draw = || random::randint(0, 1000, [20], None)?.to_vec::<i32>();
    random::seed(1)?;
    let (a, b) = (draw()?, draw()?);
    random::seed(1)?;
    assert_eq!((draw()?, draw()?), (a.clone(), b.clone()));
    assert_ne!(a, b);
    // Each thread has a separate sequence of random numbers.
    random::seed(1)?;
    let other = std::thread::spawn(move || -> mlx_primitives::Result<Vec<i32>> {
        random::seed(1)?;
        random::randint(0, 1000, [20], None)?.to_vec::<i32>()
    });
    assert_eq!(other.join().expect("no panic")?, a);
    assert_eq!(draw()?, a);
    Ok(())
}

/// The tolerance is five standard errors, so one random run in two million would fail. The keys are
/// fixed, so the runs are always equal.
#[test]
fn moments_of_each_distribution() -> Checked {
    let error = |sd: f64| 5.0 * sd / f64::from(COUNT).sqrt();
    for dtype in FLOATS {
        let (mean, var) = moments(&random::normal_of([COUNT], dtype, Some(&random::key(1)?))?)?;
        assert!(mean.abs() < error(1.0), "{dtype} mean {mean}");
        // The standard error of the variance contains the factor sqrt(2). Rounding to bfloat16 adds
        // an error.
        let rounding = if dtype == Dtype::Bfloat16 { 2e-3 } else { 0.0 };
        assert!((var - 1.0).abs() < error(2f64.sqrt()) + rounding, "{dtype} variance {var}");
    }
    let x = random::uniform::<f32>(-2.0, 4.0, &[COUNT], Some(&random::key(2)?))?;
    let (mean, var) = moments(&x)?;
    assert!((mean - 1.0).abs() < error(3f64.sqrt()), "mean {mean}");
    assert!((var - 3.0).abs() < error(3.0), "variance {var}");
    let v = x.to_vec::<f32>()?;
    assert!(v.iter().all(|v| (-2.0..4.0).contains(v)));

    let v = random::randint(-3, 5, [COUNT], Some(&random::key(3)?))?.to_vec::<i32>()?;
    for value in -3..5 {
        let share = v.iter().filter(|&&v| v == value).count() as f64 / f64::from(COUNT);
        assert!((share - 0.125).abs() < error(0.33), "{value}: {share}");
    }
    assert!(v.iter().all(|v| (-3..5).contains(v)));
    Ok(())
}

#[test]
fn categories_follow_their_logits() -> Checked {
    let shares = [0.5f32, 0.3, 0.2, 0.0];
    let logits = Array::from_slice(&shares.map(f32::ln), [4])?;
    let drawn = random::categorical(&logits.broadcast_to([COUNT, 4])?, -1, Some(&random::key(4)?))?;
    assert_eq!((drawn.shape(), drawn.dtype()), (&[COUNT][..], Dtype::Uint32));
    let drawn = drawn.to_vec::<u32>()?;
    for (category, share) in shares.into_iter().enumerate() {
        let got = drawn.iter().filter(|&&v| v as usize == category).count() as f64;
        let got = got / f64::from(COUNT);
        assert!((got - f64::from(share)).abs() < 5.0 * 0.5 / 316.0, "{category}: {got}");
    }
    assert!(drawn.iter().all(|&v| v < 3), "a category of no probability");
    Ok(())
}

#[test]
fn distributions_refuse_integer_types() {
    message(random::normal::<i32>(&[2], None));
    message(random::uniform::<u8>(0.0, 1.0, &[2], None));
}
