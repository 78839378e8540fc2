//! Tests `+`, `-`, `*` and `/` on every pair of operands.

use half::f16;
use mlx_primitives::{Array, Dtype, Error, Result};

use crate::support::Checked;

fn pair() -> Result<(Array, Array)> {
    Ok((Array::from_slice(&[8.0f32, 6.0], 2)?, Array::from_slice(&[2.0f32, 3.0], 2)?))
}

fn values(x: Result<Array>) -> Result<Vec<f32>> {
    x?.to_vec()
}

/// Applies each operator to `$a` and `$b`. The first operand is [8, 6], and the second is [2, 3].
macro_rules! check {
    ($($a:expr, $b:expr;)*) => {$(
        assert_eq!(values($a + $b)?, [10.0, 9.0]);
        assert_eq!(values($a - $b)?, [6.0, 3.0]);
        assert_eq!(values($a * $b)?, [16.0, 18.0]);
        assert_eq!(values($a / $b)?, [4.0, 2.0]);
    )*};
}

#[test]
fn arrays_and_results_of_arrays() -> Checked {
    let (a, b) = pair()?;
    let (ok_a, ok_b) = (|| Ok::<_, Error>(a.clone()), || Ok::<_, Error>(b.clone()));
    check! {
        &a, &b;
        a.clone(), &b;
        &a, b.clone();
        a.clone(), b.clone();
        &a, ok_b();
        a.clone(), ok_b();
        ok_a(), &b;
        ok_a(), b.clone();
    }
    assert_eq!(values(-&a)?, [-8.0, -6.0]);
    assert_eq!(values(-a)?, [-8.0, -6.0]);
    Ok(())
}

#[test]
fn numbers_on_either_side() -> Checked {
    let (a, _) = pair()?;
    assert_eq!(values(&a + 1.5)?, [9.5, 7.5]);
    assert_eq!(values(&a - 1)?, [7.0, 5.0]);
    assert_eq!(values(a.clone() * 0.5)?, [4.0, 3.0]);
    assert_eq!(values(a.clone() / 2)?, [4.0, 3.0]);
    assert_eq!(values(1.5 + &a)?, [9.5, 7.5]);
    assert_eq!(values(1 - &a)?, [-7.0, -5.0]);
    assert_eq!(values(0.5 * a.clone())?, [4.0, 3.0]);
    assert_eq!(values(24 / a.clone())?, [3.0, 4.0]);
    Ok(())
}

#[test]
fn numbers_take_the_type_of_the_array() -> Checked {
    let half = Array::from_slice(&[f16::ONE], 1)?;
    let int = Array::ones::<i32>(1)?;
    for (x, dtype) in [
        ((&half + 2.0)?, Dtype::Float16),
        ((2.0 / &half)?, Dtype::Float16),
        ((3 - &half)?, Dtype::Float16),
        ((&int * 2)?, Dtype::Int32),
        ((2 * &int)?, Dtype::Int32),
        ((&int * 0.5)?, Dtype::Float32),
        ((0.5 * &int)?, Dtype::Float32),
        ((&int / 2)?, Dtype::Float32),
    ] {
        assert_eq!(x.dtype(), dtype, "{x}");
    }
    Ok(())
}

#[test]
fn chains_broadcast_and_stay_lazy() -> Checked {
    let x = Array::from_slice(&[1.0f32, 3.0, 5.0, 9.0], (2, 2))?;
    let (mean, scale) = (x.mean_keepdims(-1)?, Array::scalar(2.0f32)?);
    let y = ((&x - &mean)? * &scale)?;
    assert!(!y.is_scheduled());
    assert_eq!(y.to_vec::<f32>()?, [-2.0, 2.0, -4.0, 4.0]);
    assert_eq!(values((&x - &mean) * &scale + &x)?, [-1.0, 5.0, 1.0, 13.0]);
    assert_eq!(values(&x / (&mean * &scale))?, [0.25, 0.75, 5.0 / 14.0, 9.0 / 14.0]);
    Ok(())
}

#[test]
fn the_first_error_is_the_result() -> Checked {
    let (a, b) = pair()?;
    let other = Array::ones::<f32>(3)?;
    let refused = |result: Result<Array>| match result {
        Err(Error::Mlx { message, .. }) => assert!(message.contains("broadcast"), "{message}"),
        other => panic!("{other:?}"),
    };
    refused(&a + &other);
    refused((&a + &other) * &b);
    refused(&b * (&a + &other));
    let no: Result<Array> = Err(Error::argument("test", "another array"));
    assert_eq!(
        (no + &other).err().map(|e| e.to_string()).as_deref(),
        Some("[test] expected another array")
    );
    Ok(())
}
