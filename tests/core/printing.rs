//! Arrays print as in MLX for Python, which printed the expected strings.

use half::{bf16, f16};
use mlx_primitives::transforms::vmap;
use mlx_primitives::{Array, ops};

use crate::support::Checked;

#[test]
fn as_in_python() -> Checked {
    let ints = |count: i32| Array::arange::<i32>(0.0, count.into(), 1.0);
    let all = [
        (Array::from_slice(&[1i32, 2, 3], [3])?, "array([1, 2, 3], dtype=int32)"),
        (ints(5)?.i(1..)?.reshape([2, 2])?, "array([[1, 2],\n       [3, 4]], dtype=int32)"),
        (
            ints(5)?.i(1..)?.reshape([2, 2, 1])?,
            "array([[[1],\n        [2]],\n       [[3],\n        [4]]], dtype=int32)",
        ),
        (
            ints(10)?.reshape([2, 5])?.t()?,
            "array([[0, 5],\n       [1, 6],\n       [2, 7],\n       [3, 8],\n       [4, 9]], dtype=int32)",
        ),
        (Array::scalar(5i32)?, "array(5, dtype=int32)"),
        (Array::scalar(2.5f32)?, "array(2.5, dtype=float32)"),
        (
            Array::from_slice(
                &[0.1f32, 1.0, -2.5e-8, 1e20, f32::NAN, f32::INFINITY, f32::NEG_INFINITY],
                [7],
            )?,
            "array([0.1, 1, -2.5e-08, ..., nan, inf, -inf], dtype=float32)",
        ),
        (Array::from_slice(&[true, false], [2])?, "array([True, False], dtype=bool)"),
        (Array::scalar(true)?, "array(True, dtype=bool)"),
        (Array::from_slice::<f32>(&[], &[0])?, "array([], dtype=float32)"),
        (Array::zeros::<f32>(&[2, 0])?, "array([[],\n       []], dtype=float32)"),
        (Array::zeros::<i32>(&[0, 3])?, "array([], dtype=int32)"),
        (
            Array::from_slice(&[f16::from_f32(1.5), f16::from_f32(2.0)], [2])?,
            "array([1.5, 2], dtype=float16)",
        ),
        (
            Array::from_slice(&[bf16::from_f32(1.5), bf16::from_f32(2.71)], [2])?,
            "array([1.5, 2.70312], dtype=bfloat16)",
        ),
        (ints(2000)?, "array([0, 1, 2, ..., 1997, 1998, 1999], dtype=int32)"),
        (
            Array::zeros::<f32>(&[100, 2])?,
            "array([[0, 0],\n       [0, 0],\n       [0, 0],\n       ...,\n       [0, 0],\n       \
             [0, 0],\n       [0, 0]], dtype=float32)",
        ),
        (Array::from_slice(&[1u8, 255], [2])?, "array([1, 255], dtype=uint8)"),
        (Array::from_slice(&[-1i8, 127], [2])?, "array([-1, 127], dtype=int8)"),
        (Array::from_slice(&[i64::MAX], [1])?, "array([9223372036854775807], dtype=int64)"),
    ];
    for (x, text) in all {
        assert_eq!(x.to_string(), text);
    }
    Ok(())
}

#[test]
fn printing_evaluates() -> Checked {
    let x = ops::softmax(&Array::zeros::<f32>(&[2])?)?;
    assert!(!x.is_scheduled());
    assert_eq!(x.to_string(), "array([0.5, 0.5], dtype=float32)");
    assert!(x.is_scheduled());
    Ok(())
}

#[test]
fn debug_shows_the_state_and_evaluates_nothing() -> Checked {
    let x = Array::from_slice(&[f16::ONE; 16], (2, 8))?;
    assert_eq!(format!("{x:?}"), "Array([2, 8] float16, evaluated)");
    let y = ops::rms_norm(&x, None, 1e-5)?;
    for _ in 0..2 {
        assert_eq!(format!("{y:?}"), "Array([2, 8] float16, lazy RmsNorm)");
        assert!(!y.is_scheduled());
    }
    assert_eq!(format!("{:?}", [&y]), "[Array([2, 8] float16, lazy RmsNorm)]");
    y.eval()?;
    assert_eq!(format!("{y:?}"), "Array([2, 8] float16, evaluated)");
    assert_eq!(format!("{:?}", Array::scalar(1i64)?), "Array([] int64, evaluated)");
    let mut traced = String::new();
    let trace = |x: Array| {
        traced = format!("{x:?}");
        x.exp()
    };
    vmap(trace, &x, 0, 0)?.eval()?;
    assert_eq!(traced, "Array([8] float16, traced)");
    Ok(())
}
