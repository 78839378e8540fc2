//! Shapes and axes as arguments, and the variants of `Error`.

use mlx_primitives::{Array, Dtype, Error, Result, io, ops, random};

use crate::support::{Checked, message};

#[test]
fn shapes_of_every_kind() -> Checked {
    let x = Array::arange::<i32>(0.0, 12.0, 1.0)?;
    let dims = vec![3, 4];
    for y in [
        x.reshape([3, 4])?,
        x.reshape([3, 4])?,
        x.reshape((3, 4))?,
        x.reshape(&dims)?,
        x.reshape(&dims[..])?,
        x.reshape(&dims[..])?,
        x.reshape(dims.clone())?,
        x.reshape((-1, 4))?,
    ] {
        assert_eq!(y.dims2()?, (3, 4));
    }
    assert_eq!(x.reshape(12)?.dims1()?, 12);
    assert_eq!(x.reshape((1, 3, 4))?.dims3()?, (1, 3, 4));
    assert_eq!(x.reshape((1, 3, 2, 2))?.dims4()?, (1, 3, 2, 2));
    assert_eq!(x.reshape((1, 3, 1, 2, 2, 1))?.ndim(), 6);
    assert_eq!(Array::full((), 2i32)?.item::<i32>()?, 2);
    assert_eq!(Array::ones::<f32>((2,))?.broadcast_to((3, 2))?.shape(), [3, 2]);
    assert_eq!(random::normal::<f32>((2, 2), None)?.dims2()?, (2, 2));
    assert_eq!(Array::zeros_of([], Dtype::Int8)?.ndim(), 0);
    Ok(())
}

#[test]
fn axes_of_every_kind() -> Checked {
    let x = Array::ones::<f32>((2, 3, 4))?;
    let axes = vec![0, -1];
    for sum in [x.sum([0, 2])?, x.sum((0, 2))?, x.sum(&axes)?, x.sum(&axes[..])?, x.sum(axes)?] {
        assert_eq!(sum.to_vec::<f32>()?, [8.0; 3]);
    }
    assert_eq!(x.sum(..)?.item::<f32>()?, 24.0);
    assert_eq!(x.sum_keepdims(1)?.shape(), [2, 1, 4]);
    assert_eq!(x.argmax_keepdims(-1)?.shape(), [2, 3, 1]);
    assert_eq!(x.transpose((1, 2, 0))?.shape(), [3, 4, 2]);
    assert_eq!(x.expand_dims(0)?.squeeze(0)?.shape(), x.shape());
    assert!(x.sum(3).is_err() && x.sum((0, 0)).is_err() && x.squeeze(..).is_err());
    Ok(())
}

#[test]
fn dims_of_another_rank_are_errors() -> Checked {
    let x = Array::zeros::<f32>((2, 3))?;
    let text = message(x.dims3());
    assert_eq!(text, "[dims3] expected an array of rank 3, got shape [2, 3]");
    assert!(matches!(x.dims1(), Err(Error::Shape { got, .. }) if got == [2, 3]));
    assert!(matches!(x.dims4(), Err(Error::Shape { .. })));
    assert!(matches!(x.sum(..)?.dims1(), Err(Error::Shape { got, .. }) if got.is_empty()));
    Ok(())
}

#[test]
fn errors_say_their_kind() -> Checked {
    let x = Array::zeros::<f32>((2, 3))?;
    let kind = |error: &Error| match error {
        Error::Shape { op, .. } => format!("shape of {op}"),
        Error::Dtype { op, got, .. } => format!("dtype of {op}: {got}"),
        Error::OutOfRange { op, got, .. } => format!("range of {op}: {got}"),
        Error::Argument { op, .. } => format!("argument of {op:?}"),
        Error::Mlx { op, .. } => format!("mlx of {op:?}"),
        Error::Io { path, error } => format!("{:?} of {}", error.kind(), path.display()),
        Error::File { path, .. } => format!("file {}", path.display()),
        other => format!("{other:?}"),
    };
    type Case = (&'static str, &'static str, Result<Array>);
    let cases: [Case; 9] = [
        (
            "shape of item",
            "[item] expected an array of one element, got shape [2, 3]",
            x.item::<f32>().and_then(Array::scalar),
        ),
        (
            "dtype of to_vec: float32",
            "[to_vec] expected an array of int32, got float32",
            x.to_vec::<i32>().and_then(|_| x.exp()),
        ),
        (
            "range of dim: -3",
            "[dim] expected an axis within rank 2, got -3",
            x.dim(-3).and_then(Array::scalar),
        ),
        ("shape of t", "[t] expected rank 2 or more, got shape []", Array::scalar(1)?.t()),
        ("dtype of take: float32", "[take] expected integer indices, got float32", x.take(&x, 0)),
        (
            "argument of Some(\"from_slice\")",
            "[from_slice] expected as many elements as shape [3] holds, got 1",
            Array::from_slice(&[1.0f32], 3),
        ),
        (
            "shape of full",
            "[full] expected a shape that memory can hold, got shape [-1]",
            Array::ones::<f32>(-1),
        ),
        ("mlx of Some(\"reshape\")", "[reshape] ", x.reshape(5)),
        ("mlx of Some(\"rms_norm\")", "[rms_norm] expected ", ops::rms_norm(&x, Some(&x), 0.0)),
    ];
    for (want, text, result) in cases {
        let error = result.expect_err("an error");
        assert_eq!(kind(&error), want);
        assert!(error.to_string().starts_with(text), "{error} does not begin with {text}");
    }
    let absent = io::load_safetensors("absent.safetensors").err().expect("an error");
    assert_eq!(kind(&absent), "NotFound of absent.safetensors");
    assert!(absent.to_string().starts_with("absent.safetensors: "), "{absent}");
    assert!(std::error::Error::source(&absent).is_none(), "its text has the cause already");
    Ok(())
}

#[test]
fn texts_without_an_op_stay_as_they_are() {
    for text in ["[op] what", "no op", "[half", "[a] [b] c", ""] {
        assert_eq!(Error::from(text).to_string(), text);
    }
    assert!(matches!(Error::from("no op"), Error::Argument { op: None, .. }));
}
