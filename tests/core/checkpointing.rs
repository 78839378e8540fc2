//! With `transforms::checkpoint`, gradients are the same as without it, and the backward pass runs
//! the function again. `memory::peaks` measures how much memory this saves.

use std::cell::Cell;
use std::rc::Rc;

use mlx_primitives::transforms::{checkpoint, compile, grad, jvp, value_and_grad, vjp, vmap};
use mlx_primitives::{Array, Dtype, Error, Result, graph, ops};

use crate::support::compare::{assert_close, assert_same, numbers};
use crate::support::input::{FLOATS, random, random32};
use crate::support::{Checked, EPS, each_device, message};

/// A layer with several intermediate results.
fn layer(x: &Array, w: &Array) -> Result<Array> {
    ops::silu(&ops::matmul_nt(&ops::rms_norm(x, None, EPS)?, w)?)?.add(x)
}

/// Applies three layers with one weight, each through `run`, and reduces the result to a scalar.
fn loss(x: &Array, w: &Array, run: impl Fn(&Array, &Array) -> Result<Array>) -> Result<Array> {
    let mut x = x.clone();
    for _ in 0..3 {
        x = run(&x, w)?;
    }
    x.square()?.mean(..)
}

fn recomputed(x: &Array, w: &Array) -> Result<Array> {
    checkpoint(|(x, w): (Array, Array)| layer(&x, &w), (x, w))
}

fn inputs(dtype: Dtype) -> Result<(Array, Array)> {
    let scale = Array::scalar(0.1f32)?.astype(dtype)?;
    Ok((random(&[5, 33], dtype, 1)?, random(&[33, 33], dtype, 2)?.multiply(scale)?))
}

#[test]
fn values_and_gradients_are_the_same_bit_for_bit() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            let (x, w) = inputs(dtype)?;
            let (value, (dx, dw)) = value_and_grad(|(x, w)| loss(&x, &w, layer), (&x, &w))?;
            let (value_again, (dx_again, dw_again)) =
                value_and_grad(|(x, w)| loss(&x, &w, recomputed), (&x, &w))?;
            assert_same(&value_again, &value, "value")?;
            assert_same(&dx_again, &dx, "gradient of x")?;
            assert_same(&dw_again, &dw, "gradient of the weight")?;
            // Call it outside any transform.
            assert_same(&recomputed(&x, &w)?, &layer(&x, &w)?, "outputs")?;
        }
        Ok(())
    })
}

#[test]
fn one_array_tuples_and_lists() -> Checked {
    let (x, w) = inputs(Dtype::Float32)?;
    let want = grad(|x| loss(&x, &w, layer), &x)?;
    let one = {
        let w = w.clone();
        grad(
            move |x| {
                loss(&x, &w.clone(), |x, w| {
                    let w = w.clone();
                    checkpoint(move |x: Array| layer(&x, &w), x)
                })
            },
            &x,
        )?
    };
    assert_same(&one, &want, "one array")?;
    let list = grad(
        |x| loss(&x, &w, |x, w| checkpoint(|p: Vec<Array>| layer(&p[0], &p[1]), &[x, w])),
        &x,
    )?;
    assert_same(&list, &want, "a list")?;
    let both = |(x, w): (Array, Array)| Ok((layer(&x, &w)?, x.sum(..)?));
    let (y, sum) = checkpoint(both, (&x, &w))?;
    assert_same(&y, &layer(&x, &w)?, "the first output")?;
    assert_same(&sum, &x.sum(..)?, "the second output")?;
    // The second output alone is used, so the first has no cotangent.
    let used = grad(|x| checkpoint(both, (&x, &w))?.1.multiply(3.0), &x)?;
    assert_eq!(used.to_vec::<f32>()?, vec![3.0; x.size()]);
    Ok(())
}

#[test]
fn the_backward_pass_runs_the_function_again() -> Checked {
    let (x, w) = inputs(Dtype::Float32)?;
    let calls = Rc::new(Cell::new(0));
    let counted = |x: &Array| {
        let (calls, w) = (calls.clone(), w.clone());
        checkpoint(
            move |x: Array| {
                calls.set(calls.get() + 1);
                layer(&x, &w)
            },
            x,
        )
    };
    counted(&x)?.eval()?;
    assert_eq!(calls.replace(0), 1, "without a gradient");
    grad(|x| counted(&x)?.sum(..), &x)?.eval()?;
    assert_eq!(calls.replace(0), 2, "with one");
    drop(grad(|x| counted(&counted(&x)?)?.sum(..), &x)?);
    assert_eq!(calls.replace(0), 4, "of two functions");
    assert_eq!(Rc::strong_count(&calls), 1, "closures of graphs that are gone are dropped");

    let norms = |gradient: &Array| -> Result<usize> {
        Ok(graph::nodes([gradient])?.iter().filter(|node| node.name == "RmsNorm").count())
    };
    let plain = norms(&grad(|x| loss(&x, &w, layer), &x)?)?;
    let again = norms(&grad(|x| loss(&x, &w, recomputed), &x)?)?;
    assert_eq!((plain, again), (3, 6), "forward passes in the graph of the gradient");
    Ok(())
}

#[test]
fn inside_and_around_other_transforms() -> Checked {
    let (x, w) = inputs(Dtype::Float32)?;
    let plain = |(x, w): (Array, Array)| loss(&x, &w, layer);
    let ours = |(x, w): (Array, Array)| loss(&x, &w, recomputed);

    let compiled = compile(
        |p| {
            let (value, (dx, dw)) =
                value_and_grad(|(x, w)| loss(&x, &w, recomputed), (&p[0], &p[1]))?;
            Ok([value, dx, dw])
        },
        false,
    )?;
    let (value, (dx, dw)) = value_and_grad(plain, (&x, &w))?;
    for _ in 0..2 {
        let got = compiled.call((&x, &w))?;
        for (got, want) in got.iter().zip([&value, &dx, &dw]) {
            // `compile` fuses ops, which then round less often.
            assert_close(&numbers(got)?, &numbers(want)?, 1e-5, "compiled");
        }
    }

    let (tx, tw) = (random32(&[5, 33], 3)?, random32(&[33, 33], 4)?);
    let (_, want) = jvp(plain, (&x, &w), (&tx, &tw))?;
    let (_, got) = jvp(ours, (&x, &w), (&tx, &tw))?;
    assert_close(&numbers(&got)?, &numbers(&want)?, 1e-5, "jvp");

    let batch = random32(&[4, 5, 33], 5)?;
    let want = vmap(plain, (&batch, &w), [Some(0), None], 0)?;
    let got = vmap(ours, (&batch, &w), [Some(0), None], 0)?;
    assert_close(&numbers(&got)?, &numbers(&want)?, 1e-5, "vmap");
    let of_each = |f: fn(&Array, &Array) -> Result<Array>| {
        let w = w.clone();
        vmap(move |x| grad(|x| loss(&x, &w, f), &x), &batch, 0, 0)
    };
    let (want, got) = (of_each(layer)?, of_each(recomputed)?);
    assert_close(&numbers(&got)?, &numbers(&want)?, 1e-5, "vmap of grad");

    // Compute second derivatives through a checkpoint inside a checkpoint.
    let cube = |x: Array| checkpoint(|x: Array| checkpoint(|x: Array| x.power(3), &x), &x);
    let point = Array::from_slice(&[2.0f32, -1.0], 2)?;
    let second = grad(|x| grad(|x| cube(x)?.sum(..), &x)?.sum(..), &point)?;
    assert_close(&numbers(&second)?, &[12.0, -6.0], 1e-6, "second derivative");
    Ok(())
}

#[test]
fn captured_arrays_are_constants() -> Checked {
    let (x, w) = (Array::full(3, 2.0f32)?, Array::full(3, 5.0f32)?);
    let captures = |(x, w): (Array, Array)| checkpoint(move |x: Array| x * &w, &x)?.sum(..);
    let (dx, dw) = grad(captures, (&x, &w))?;
    assert_eq!((dx.to_vec::<f32>()?, dw.to_vec::<f32>()?), (vec![5.0; 3], vec![0.0; 3]));
    Ok(())
}

#[test]
fn errors_and_panics_of_the_function_come_back() -> Checked {
    let x = random32(&[2, 4], 1)?;
    let outside = |x: Array| x.i(9)?.sum(..);
    assert!(matches!(checkpoint(outside, &x), Err(Error::OutOfRange { got: 9, .. })));
    let inside = |x: Array| checkpoint(outside, &x);
    assert!(matches!(grad(inside, &x), Err(Error::OutOfRange { got: 9, .. })));
    let panics = |_: Array| -> Result<Array> { panic!("on purpose") };
    assert!(matches!(checkpoint(panics, &x), Err(Error::Panic { .. })));
    assert!(message(grad(|x| checkpoint(panics, &x), &x)).contains("on purpose"));

    // The first call of this function works. The second call, in the backward pass, fails.
    let later = |panic: bool| {
        let calls = Cell::new(0);
        move |x: Array| {
            calls.set(calls.get() + 1);
            match calls.get() {
                1 => x.sum(..),
                _ if panic => panic!("the second time"),
                _ => x.i(7)?.sum(..),
            }
        }
    };
    assert!(matches!(
        grad(|x| checkpoint(later(false), &x), &x),
        Err(Error::OutOfRange { got: 7, .. })
    ));
    assert!(matches!(grad(|x| checkpoint(later(true), &x), &x), Err(Error::Panic { .. })));
    let compiled = compile(move |p| grad(|x| checkpoint(later(false), &x), &p[0]), false)?;
    assert!(matches!(compiled.call(&x), Err(Error::OutOfRange { got: 7, .. })));

    let none = |_: Array| -> Result<Vec<Array>> { Ok(Vec::new()) };
    assert!(message(checkpoint(none, &x)).starts_with("[checkpoint] expected "));
    // After these errors, the thread still works.
    let ones = Array::ones::<f32>(())?;
    let (_, dx) = vjp(|x| checkpoint(|x: Array| x.sum(..), &x), &x, &ones)?;
    assert_eq!(dx.to_vec::<f32>()?, [1.0; 8]);
    Ok(())
}
