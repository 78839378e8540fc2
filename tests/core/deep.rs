//! Transforms of long chains of ops return the right result or an error, on a stack of any size.
//! They never overflow the stack.

use std::thread;

use mlx_primitives::transforms::{
    BYTES_PER_COMPILED_OP, BYTES_PER_OP, checkpoint, compile, grad, jvp, vjp, vmap,
};
use mlx_primitives::{Array, Result, ops};

use crate::support::{Checked, each_device};

/// A chain of `depth` ops that alternates between this crate's ops and MLX's.
fn chain(x: &Array, depth: usize) -> Result<Array> {
    let mut y = x.clone();
    for i in 0..depth {
        y = if i % 8 == 0 { ops::relu(&y)? } else { y.add(1.0)? };
    }
    Ok(y)
}

type Transform = fn(&Array, usize) -> Result<Array>;
type Row = (&'static str, Transform, fn(usize) -> f32);

/// Transforms of the chain: a name, a function that evaluates the transformed chain at ones, and
/// the expected value for a chain of this depth.
const TRANSFORMS: [Row; 9] = [
    ("vjp", |x, depth| Ok(vjp(|x| chain(&x, depth), x, x)?.1), |_| 1.0),
    ("jvp", |x, depth| Ok(jvp(|x| chain(&x, depth), x, x)?.1), |_| 1.0),
    ("grad", |x, depth| grad(|x| chain(&x, depth)?.sum(..), x), |_| 1.0),
    ("vmap", |x, depth| vmap(|x| chain(&x, depth), x, 0, 0), value),
    ("compile", |x, depth| compile(move |x| chain(&x[0], depth), false)?.call(x), value),
    ("shapeless", |x, depth| compile(move |x| chain(&x[0], depth), true)?.call(x), value),
    ("checkpoint", |x, depth| checkpoint(move |x| chain(&x, depth), x), value),
    (
        "its gradient",
        |x, depth| grad(|x| checkpoint(move |x| chain(&x, depth), &x)?.sum(..), x),
        |_| 1.0,
    ),
    (
        "second derivative",
        |x, depth| grad(|x| grad(|x| chain(&x, depth)?.square()?.sum(..), &x)?.sum(..), x),
        |_| 2.0,
    ),
];

fn value(depth: usize) -> f32 {
    1.0 + (depth - depth.div_ceil(8)) as f32
}

/// Runs a transform on a thread with a stack of this size. Returns false if it was refused.
fn runs(name: &'static str, stack: usize, depth: usize) -> Checked<bool> {
    let run = move || -> Checked<bool> {
        let (_, transform, want) = TRANSFORMS.iter().find(|row| row.0 == name).expect("a row");
        match transform(&Array::ones::<f32>(2)?, depth) {
            Ok(y) => {
                anyhow::ensure!(y.to_vec::<f32>()? == [want(depth); 2], "{name} {depth}: {y}");
                Ok(true)
            }
            Err(error) => {
                let said = error.to_string();
                anyhow::ensure!(said.contains("larger stack"), "{name} {depth}: {said}");
                Ok(false)
            }
        }
    };
    thread::Builder::new().stack_size(stack).spawn(run)?.join().expect("no panic")
}

/// The number of ops that fit on this stack according to the documentation. 256 KiB are reserved
/// for other calls.
fn documented(name: &str, stack: usize) -> usize {
    let bytes = match name {
        // For each addition, MLX adds an op that broadcasts the number 1.0. For each relu, which is
        // every eighth op of `chain`, the graph has a conversion.
        "shapeless" => BYTES_PER_COMPILED_OP * 5 / 2,
        "compile" => BYTES_PER_COMPILED_OP * 5 / 4,
        // The graph of a first derivative has about three times as many ops as the chain.
        "second derivative" => 3 * BYTES_PER_OP,
        _ => BYTES_PER_OP * 5 / 4,
    };
    (stack - (256 << 10)) / bytes
}

#[test]
fn chains_of_any_length() -> Checked {
    each_device(|_| {
        for (name, ..) in TRANSFORMS {
            for stack in [512 << 10, 2 << 20] {
                let within = documented(name, stack);
                anyhow::ensure!(runs(name, stack, within)?, "{name}: {within} are refused");
            }
            anyhow::ensure!(!runs(name, 2 << 20, 60_000)?, "{name}: 60,000 ops");
        }
        Ok(())
    })
}

/// If a function captures a lazy array, the array's graph counts too, until the array is evaluated.
#[test]
fn captured_chains() -> Checked {
    let run = || -> Checked {
        let x = Array::ones::<f32>(2)?;
        let long = chain(&x, 60_000)?;
        let said = grad(|x| (x * &long)?.sum(..), &x).expect_err("no error").to_string();
        anyhow::ensure!(said.contains("larger stack"), "{said}");
        long.eval()?;
        anyhow::ensure!(grad(|x| (x * &long)?.sum(..), &x)?.to_vec::<f32>()? == [value(60_000); 2]);
        Ok(())
    };
    thread::spawn(run).join().expect("no panic")
}
