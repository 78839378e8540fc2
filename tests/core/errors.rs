//! The errors that transforms return.

use std::cell::RefCell;
use std::rc::Rc;

use mlx_primitives::ops::{Rope, rope, softmax};
use mlx_primitives::transforms::{Compiled, compile, grad, jvp, value_and_grad, vjp, vmap};
use mlx_primitives::{Array, Dtype, Error, Result};

use crate::refusals::refused;
use crate::support::input::{random, random32};
use crate::support::{Checked, message};

#[test]
fn rope_has_derivatives_in_x_alone() -> Checked {
    let x = random32(&[2, 3, 8], 4)?;
    let freqs = Array::ones::<f32>(&[4])?;
    let in_freqs = |p: &[Array]| {
        Ok(vec![rope(&x, Rope { dims: 8, base: None, freqs: Some(&p[0]), ..Rope::default() })?])
    };
    let in_offset = |p: &[Array]| {
        Ok(vec![rope(&x, Rope { dims: 8, offset: (&p[0]).into(), ..Rope::default() })?])
    };
    refused("rope", vjp(|p| in_freqs(&p), &[&freqs], &[&x]), "freqs");
    refused("rope", jvp(|p| in_freqs(&p), &[&freqs], &[&freqs]), "freqs");
    let (offset, tangent) = (Array::scalar(1i32)?, Array::scalar(1i32)?);
    refused("rope", vjp(|p| in_offset(&p), &[&offset], &[&x]), "offset");
    refused("rope", jvp(|p| in_offset(&p), &[&offset], &[&tangent]), "offset");
    Ok(())
}

type Run = fn(&mut dyn FnMut(&[Array]) -> Result<Vec<Array>>) -> Result<()>;

/// Each transform, as a function that applies it to a closure with one argument of shape (2, 4).
fn transforms() -> [(&'static str, Run); 4] {
    fn x() -> Result<Array> {
        random32(&[2, 4], 5)
    }
    [
        ("vjp", |f| vjp(|p| f(&p), &[&x()?], &[&x()?]).map(|_| ())),
        ("jvp", |f| jvp(|p| f(&p), &[&x()?], &[&x()?]).map(|_| ())),
        ("vmap", |f| vmap(|p| f(&p), &[&x()?], [Some(0)], 0).map(|_| ())),
        ("grad", |f| grad(|p| Ok(f(&p)?.swap_remove(0)), &[&x()?]).map(|_| ())),
    ]
}

#[test]
fn errors_in_closures_are_returned() -> Checked {
    for (name, run) in transforms() {
        let text = message(run(&mut |_| Err(Error::from("my own words"))));
        assert!(text.contains("my own words"), "{name}: {text}");
        let text = message(run(&mut |p| Ok(vec![p[0].reshape([3, 3])?])));
        assert!(text.contains("reshape"), "{name}: {text}");
    }
    let f: Compiled = compile(|_| Err(Error::from("my own words")), false)?;
    for _ in 0..3 {
        let text = message(f.call(&[&random32(&[2], 6)?]));
        assert!(text.contains("my own words"), "compile: {text}");
    }
    Ok(())
}

#[test]
fn panics_in_closures_are_returned() -> Checked {
    for (name, run) in transforms() {
        let text = message(run(&mut |_| panic!("a panic of {name}")));
        assert!(text.contains(&format!("a panic of {name}")), "{text}");
        // Panic with a payload that is not a string.
        assert!(run(&mut |_| std::panic::panic_any(7)).is_err(), "{name}");
        run(&mut |p| Ok(vec![p[0].sum(..)?.broadcast_to(p[0].shape())?.sum(..)?]))
            .or_else(|e| if name == "grad" { Err(e) } else { Ok(()) })?;
    }
    let f: Compiled = compile(|_| panic!("a panic of compile"), true)?;
    for _ in 0..3 {
        let text = message(f.call(&[&random32(&[2], 7)?]));
        assert!(text.contains("a panic of compile"), "{text}");
    }
    Ok(())
}

#[test]
fn a_failed_trace_is_tried_again() -> Checked {
    let mut calls = 0;
    let f = compile(
        move |p| {
            calls += 1;
            match calls {
                1 => Err(Error::from("not yet")),
                2 => panic!("not yet either"),
                _ => Ok(vec![softmax(&p[0])?]),
            }
        },
        false,
    )?;
    let x = random32(&[2, 4], 8)?;
    assert!(message(f.call(&[&x])).contains("not yet"));
    assert!(message(f.call(&[&x])).contains("not yet either"));
    assert_eq!(f.call(&[&x])?[0].to_vec::<f32>()?, softmax(&x)?.to_vec::<f32>()?);
    Ok(())
}

#[test]
fn a_compiled_function_does_not_call_itself() -> Checked {
    let slot: Rc<RefCell<Option<Compiled>>> = Rc::default();
    let own = slot.clone();
    // The function calls itself, even with another shape. It gets an error each time, and
    // continues.
    let f = compile(
        move |p| {
            let compiled = own.borrow();
            if let Some(compiled) = &*compiled {
                for shape in [[2, 4], [1, 8]] {
                    let inner = compiled.call(&[&p[0].reshape(shape)?]);
                    assert!(message(inner).starts_with("[compile] expected "));
                }
            }
            Ok(vec![p[0].add(1.0)?])
        },
        false,
    )?;
    *slot.borrow_mut() = Some(f);
    let compiled = slot.borrow();
    let f = compiled.as_ref().expect("just stored");
    let x = Array::zeros::<f32>(&[2, 4])?;
    for _ in 0..2 {
        assert_eq!(f.call(&[&x])?[0].to_vec::<f32>()?, [1.0; 8]);
    }
    drop(compiled);
    slot.borrow_mut().take(); // the closure holds the slot: end the cycle
    Ok(())
}

#[test]
fn an_output_that_is_an_uncaptured_input() -> Checked {
    // The closure captures the array that is its argument. MLX refuses a graph that contains this
    // array, because the closure must use the placeholder that MLX passes for the argument.
    let x = random32(&[2, 4], 9)?;
    let y = Rc::new(x.clone());
    let f = compile(move |p| Ok(vec![y.add(&p[0])?]), false)?;
    assert!(message(f.call(&[&x])).contains("compile"));
    Ok(())
}

#[test]
fn cotangents_and_tangents_that_do_not_fit() -> Checked {
    let x = random32(&[2, 4], 10)?;
    let f = |p: &[Array]| Ok(vec![softmax(&p[0])?]);
    let wrong = [random32(&[4, 2], 11)?, random32(&[2, 4, 1], 11)?, random32(&[3], 11)?];
    let none: &[&Array] = &[];
    assert!(vjp(|p| f(&p), &[&x], none).is_err());
    assert!(vjp(|p| f(&p), &[&x], &[&x, &x]).is_err());
    assert!(jvp(|p| f(&p), &[&x], none).is_err());
    assert!(jvp(|p| f(&p), &[&x], &[&x, &x]).is_err());
    for wrong in &wrong {
        assert!(vjp(|p| f(&p), &[&x], &[wrong]).is_err(), "vjp {:?}", wrong.shape());
        assert!(jvp(|p| f(&p), &[&x], &[wrong]).is_err(), "jvp {:?}", wrong.shape());
    }
    // A cotangent or tangent of another type is refused, or converted to the right type.
    let half = random(&[2, 4], Dtype::Float16, 12)?;
    let either = [vjp(|p| f(&p), &[&x], &[&half]), jvp(|p| f(&p), &[&x], &[&half])];
    for (_, derivatives) in either.into_iter().flatten() {
        assert_eq!(derivatives[0].to_vec::<f32>()?.len(), 8);
    }
    Ok(())
}

#[test]
fn gradients_of_non_scalars_and_missing_arguments() -> Checked {
    let x = random32(&[2, 4], 13)?;
    let loss = |p: &[Array]| softmax(&p[0])?.sum(..);
    assert!(grad(|p| softmax(&p[0]), &[&x]).is_err());
    assert_eq!(grad(|p| loss(&p), &[&x])?[0].shape(), [2, 4]);
    let none: [&Array; 0] = [];
    assert!(grad(|p| loss(&p), &none).is_err() && value_and_grad(|p| loss(&p), &none).is_err());
    Ok(())
}

#[test]
fn axes_that_vmap_refuses() -> Checked {
    let x = random32(&[2, 4], 14)?;
    let f = |p: &[Array]| Ok(vec![softmax(&p[0])?]);
    for axis in [2, -3, i32::MAX, i32::MIN] {
        refused("vmap", vmap(|p| f(&p), &[&x], [Some(axis)], 0), &axis.to_string());
        refused("vmap", vmap(|p| f(&p), &[&x], [Some(0)], [axis]), &axis.to_string());
    }
    for (axes, out) in
        [(&[][..], &[][..]), (&[None], &[]), (&[Some(0), Some(0)], &[]), (&[Some(0)], &[0, 0])]
    {
        let text = message(vmap(|p| f(&p), &[&x], axes, out));
        assert!(text.starts_with("[vmap] expected "), "{text}");
    }
    let two = |p: &[Array]| Ok(vec![softmax(&p[0])?, p[0].clone(), Array::scalar(1.0f32)?]);
    assert!(vmap(|p| two(&p), &[&x], [Some(0)], [0]).is_err(), "too few out_axes");
    assert_eq!(vmap(|p| two(&p), &[&x], [Some(0)], [1, 0, 0])?[2].to_vec::<f32>()?, [1.0; 2]);
    let y = random32(&[3, 4], 15)?;
    let add = |p: &[Array]| Ok(vec![p[0].add(&p[1])?]);
    assert!(vmap(|p| add(&p), &[&x, &y], [Some(0); 2], 0).is_err(), "sizes 2 and 3");
    assert!(vmap(|p| f(&p), &[&Array::scalar(1.0f32)?], [Some(0)], 0).is_err(), "a scalar");
    Ok(())
}

#[test]
fn evaluation_inside_a_traced_closure_is_an_error_or_right() -> Checked {
    let x = random32(&[2, 4], 16)?;
    // In `vjp`, arguments have values, so they can be evaluated.
    let (y, _) = vjp(
        |p| {
            p[0].eval()?;
            Ok(vec![softmax(&p[0])?])
        },
        &[&x],
        &[&x],
    )?;
    assert_eq!(y[0].to_vec::<f32>()?, softmax(&x)?.to_vec::<f32>()?);
    // In `compile`, arguments have no values.
    let f = compile(|p| p[0].to_vec::<f32>().map(|_| vec![p[0].clone()]), false)?;
    assert!(f.call(&[&x]).is_err());
    Ok(())
}

#[test]
fn errors_of_closures_keep_their_kind() -> Checked {
    let x = random32(&[2, 4], 17)?;
    let outside = |x: Array| x.i(9)?.sum(..);
    assert!(matches!(grad(outside, &x), Err(Error::OutOfRange { got: 9, .. })));
    assert!(matches!(vjp(outside, &x, &x), Err(Error::OutOfRange { .. })));
    assert!(matches!(vmap(outside, &x, 0, 0), Err(Error::OutOfRange { .. })));
    let compiled = compile(|p| p[0].to_vec::<i32>().map(|_| p[0].clone()), false)?;
    for _ in 0..2 {
        assert!(matches!(compiled.call(&x), Err(Error::Dtype { got: Dtype::Float32, .. })));
    }
    let panics = |_: Array| -> Result<Array> { panic!("on purpose") };
    assert!(matches!(jvp(panics, &x, &x), Err(Error::Panic { .. })));
    // Run a transform inside a transform.
    let inner = |x: Array| grad(outside, &x)?.sum(..);
    assert!(matches!(grad(inner, &x), Err(Error::OutOfRange { .. })));
    // The closure ignores the first error, and then MLX reports another one.
    let kept = |x: Array| {
        assert!(outside(x.clone()).is_err());
        x.reshape((3, 3))?.sum(..)
    };
    assert!(matches!(grad(kept, &x), Err(Error::Mlx { .. })));
    Ok(())
}

#[test]
fn transforms_of_one_array_of_tuples_and_of_lists() -> Checked {
    let (x, w) = (Array::full(3, 2.0f32)?, Array::full(3, 5.0f32)?);
    let (one, ones) = (Array::ones::<f32>(())?, Array::ones::<f32>(3)?);
    let is = |array: &Array, want: f32| -> Result<()> {
        assert_eq!(array.to_vec::<f32>()?, vec![want; array.size()]);
        Ok(())
    };

    is(&grad(|x| (x * &w)?.sum(..), &x)?, 5.0)?;
    let (value, (dx, dw)) = value_and_grad(|(x, w)| (x.square()? * w)?.sum(..), (&x, &w))?;
    is(&value, 60.0)?;
    is(&dx, 20.0)?;
    is(&dw, 4.0)?;
    let list = vec![x.clone(), w.clone()];
    for gradients in [
        grad(|p| (&p[0] * &p[1])?.sum(..), &list)?,
        grad(|p| (&p[0] * &p[1])?.sum(..), &list[..])?,
        grad(|p| (&p[0] * &p[1])?.sum(..), &[&x, &w])?,
    ] {
        assert_eq!(gradients.len(), 2);
        is(&gradients[0], 5.0)?;
        is(&gradients[1], 2.0)?;
    }

    let ((sum, product), (dx, dw)) =
        vjp(|(x, w)| Ok(((&x + &w)?, (x * w)?)), (&x, &w), (&ones, &ones))?;
    is(&sum, 7.0)?;
    is(&product, 10.0)?;
    is(&dx, 6.0)?;
    is(&dw, 3.0)?;
    let ([square, cube], [two, twelve]) = jvp(|x| Ok([x.square()?, x.power(3)?]), &x, &ones)?;
    is(&square, 4.0)?;
    is(&cube, 8.0)?;
    is(&two, 4.0)?;
    is(&twelve, 12.0)?;
    let (total, moved) = vmap(
        |(x, s)| Ok((x.sum(..)?, (x * s)?)),
        (&x.reshape((3, 1))?, &one),
        [Some(0), None],
        [0, 1],
    )?;
    assert_eq!((total.shape(), moved.shape()), (&[3][..], &[1, 3][..]));
    let compiled = compile(|p| Ok(((&p[0] + &p[1])?, (-&p[0])?)), true)?;
    let (sum, opposite) = compiled.call((&x, &w))?;
    is(&sum, 7.0)?;
    is(&opposite, -2.0)?;
    Ok(())
}

#[test]
fn other_numbers_of_cotangents_and_tangents() -> Checked {
    let x = random32(&[3], 18)?;
    assert!(vjp(|x| x.sin(), &x, (&x, &x)).is_err());
    assert!(jvp(|(a, b)| a + b, (&x, &x), &x).is_err());
    assert!(vjp(|x| Ok((x.sin()?, x.cos()?)), &x, &x).is_err());
    assert!(vmap(|x| x.sin(), &x, [0, 0], 0).is_err());
    assert!(vmap(|x| x.sin(), &x, 0, [None]).is_err());
    Ok(())
}

/// If `main` returns an error, Rust prints it with `Debug`. `Debug` prints the same sentence as
/// `Display`.
#[test]
fn errors_read_the_same_in_both_ways() -> Checked {
    let x = Array::zeros::<f32>([2, 3])?;
    let missing = mlx_primitives::files::read_to_string(std::path::Path::new("no/such/file"));
    for text_of in [
        |error: &Error| error.to_string(),
        |error: &Error| format!("{error:#}"),
        |error: &Error| format!("{error:?}"),
        |error: &Error| format!("{error:#?}"),
    ] {
        let of = |error: Option<Error>| text_of(&error.expect("an error"));
        assert_eq!(of(x.to_vec::<i32>().err()), "[to_vec] expected an array of int32, got float32");
        let text = of(x.reshape([4, 4]).err());
        assert_eq!(text, "[reshape] Cannot reshape array of size 6 into shape (4,4).");
        assert_eq!(of(Some(Error::from("two\nlines"))), "two\nlines");
        let text = of(missing.as_ref().err().map(|error| Error::from(error.to_string())));
        assert!(text.starts_with("no/such/file: "), "{text}");
    }
    Ok(())
}
