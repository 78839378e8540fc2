//! A panic in the destructor of a caller's closure or panic payload must not end the process.

use std::panic::panic_any;

use mlx_primitives::transforms::{checkpoint, compile, grad, jvp, value_and_grad, vjp, vmap};
use mlx_primitives::{Array, Error, Result, ops};
use mlx_primitives_check::Conformance;

use crate::support::Checked;

/// A value whose destructor panics. The payload of the panic is a value whose number is one less.
struct Dropped(u32);

impl Drop for Dropped {
    fn drop(&mut self) {
        if self.0 > 0 {
            panic_any(Self(self.0 - 1));
        }
    }
}

/// Checks that the transform reports a panic of its closure.
fn is_panic<T>(what: &str, result: Result<T>) {
    match result {
        Err(Error::Panic { message, .. }) => {
            assert!(message.contains("closure"), "{what}: {message}")
        }
        Err(error) => panic!("{what}: {error}"),
        Ok(_) => panic!("{what}: no error"),
    }
}

#[test]
fn payloads() -> Checked {
    let x = Array::ones::<f32>(3)?;
    let fail = |levels: u32| -> Result<Array> { panic_any(Dropped(levels)) };
    for levels in 0..4 {
        is_panic("grad", grad(|_| fail(levels), &x));
        is_panic("value_and_grad", value_and_grad(|_| fail(levels), &x));
        is_panic("vjp", vjp(|_| fail(levels), &x, &x));
        is_panic("jvp", jvp(|_| fail(levels), &x, &x));
        is_panic("vmap", vmap(|_| fail(levels), &x, 0, 0));
        for shapeless in [false, true] {
            let compiled =
                compile(move |_| -> Result<Array> { panic_any(Dropped(levels)) }, shapeless)?;
            is_panic("compile", compiled.call(&x));
            is_panic("compile, again", compiled.call(&x));
        }
        is_panic(
            "checkpoint",
            checkpoint(move |_| -> Result<Array> { panic_any(Dropped(levels)) }, &x),
        );
    }
    Ok(())
}

#[test]
fn captured_values() -> Checked {
    let x = Array::ones::<f32>(3)?;
    for levels in 1..4 {
        let held = || Dropped(levels);
        let (a, b, c, d) = (held(), held(), held(), held());
        is_panic("grad", grad(move |x| (&a, x.sum(..)).1, &x));
        is_panic("vjp", vjp(move |x| (&b, x.exp()).1, &x, &x));
        is_panic("jvp", jvp(move |x| (&c, x.exp()).1, &x, &x));
        is_panic("vmap", vmap(move |x| (&d, x.exp()).1, &x, 0, 0));
        // These closures are dropped together with a compiled function or a graph. At that time no
        // call can return an error.
        for shapeless in [false, true] {
            let held = held();
            let compiled = compile(move |x| (&held, x[0].exp()).1, shapeless)?;
            assert_eq!(compiled.call(&x)?.to_vec::<f32>()?, x.exp()?.to_vec::<f32>()?);
        }
        let held = held();
        let y = checkpoint(move |x| (&held, x.exp()).1, &x)?;
        assert_eq!(y.to_vec::<f32>()?, x.exp()?.to_vec::<f32>()?);
        drop(y);
    }
    // If the closure returns an error and its destructor panics, the caller gets the closure's
    // error.
    let held = Dropped(1);
    let both = grad(
        move |_| {
            let _ = &held;
            Err(Error::from("its own"))
        },
        &x,
    );
    assert_eq!(both.expect_err("no error").to_string(), "its own");
    assert_eq!(ops::softmax(&x)?.shape(), [3]);
    Ok(())
}

/// If an op panics in the conformance harness, the harness reports it, even if dropping the payload
/// panics too.
#[test]
fn of_an_op_under_test() {
    let op = |_: &[Array]| -> Result<Vec<Array>> { panic_any(Dropped(2)) };
    let report = Conformance::new("panics", op, |x| vec![x[0].clone()]).shapes(&[&[2]]).run();
    let said = report.check().expect_err("no failure").to_string();
    assert!(said.contains("panicked"), "{said}");
}
