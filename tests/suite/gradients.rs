//! vjp, jvp and second derivatives of the primitives against f64 and against MLX's.

use mlx_primitives::transforms::{grad, jvp, vjp};
use mlx_primitives::{Array, Dtype, Result, builtin, ops};

use crate::support::compare::{assert_close, assert_same, numbers, ulp};
use crate::support::input::{FLOATS, LAYOUTS, random, random32};
use crate::support::{Checked, EPS, OPS, each_device, reference};

const ROWS: i32 = 3;
const AXIS: i32 = 7;
/// Sums of 21 products of numbers up to 9, in f32: some 20 half ulps of 10, and as much again
/// for the roundings of the formula.
const TOLERANCE: f64 = 2e-5;
/// The step in f64: its square and 1e-16 over it are both far below the tolerance.
const STEP: f64 = 1e-5;

fn eps() -> f64 {
    f64::from(EPS)
}

struct Inputs {
    x: Array,
    weight: Array,
    g: Array,
    /// Directions in x and in the weight.
    tx: Array,
    tw: Array,
}

impl Inputs {
    fn new(dtype: Dtype) -> Result<Self> {
        Ok(Self {
            x: random(&[ROWS, AXIS], dtype, 1)?,
            weight: random(&[AXIS], dtype, 2)?,
            g: random(&[ROWS, AXIS], dtype, 3)?,
            tx: random(&[ROWS, AXIS], dtype, 4)?,
            tw: random(&[AXIS], dtype, 5)?,
        })
    }
}

fn rms_norm(p: &[Array]) -> Result<Vec<Array>> {
    Ok(vec![ops::rms_norm(&p[0], p.get(1), EPS)?])
}

fn rms_norm_of_mlx(p: &[Array]) -> Result<Vec<Array>> {
    Ok(vec![builtin::rms_norm(&p[0], p.get(1), EPS)?])
}

fn softmax(p: &[Array]) -> Result<Vec<Array>> {
    Ok(vec![ops::softmax(&p[0])?])
}

/// The reference gradients agree with its own differences, so they may stand for them below.
#[test]
fn the_references_gradients_are_right() -> Checked {
    let i = Inputs::new(Dtype::Float32)?;
    let (x, w, g) = (&numbers(&i.x)?, &numbers(&i.weight)?, &numbers(&i.g)?);
    let axis = AXIS as usize;
    let norm =
        |x: &[f64], w: &[f64]| reference::dot(g, &reference::rms_norm(x, Some(w), axis, eps()));
    let (of_x, of_w) = reference::rms_norm_gradients(x, w, g, axis, eps());
    assert_close(&of_x, &reference::gradient(x, STEP, |x| norm(x, w)), 1e-8, "x");
    assert_close(&of_w, &reference::gradient(w, STEP, |w| norm(x, w)), 1e-8, "weight");
    let loss = |x: &[f64]| reference::dot(g, &reference::softmax(x, axis));
    let of_x = reference::softmax_gradient(x, g, axis);
    assert_close(&of_x, &reference::gradient(x, STEP, loss), 1e-8, "softmax");
    Ok(())
}

#[test]
fn vjp_of_rms_norm() -> Checked {
    each_device(|_| {
        let i = Inputs::new(Dtype::Float32)?;
        let (x, w, g) = (&numbers(&i.x)?, &numbers(&i.weight)?, &numbers(&i.g)?);
        let axis = AXIS as usize;
        let (y, both) = vjp(rms_norm, &[&i.x, &i.weight], &[&i.g])?;
        assert_same(&y[0], &ops::rms_norm(&i.x, Some(&i.weight), EPS)?, "value")?;
        let (of_x, of_w) = reference::rms_norm_gradients(x, w, g, axis, eps());
        assert_close(&numbers(&both[0])?, &of_x, TOLERANCE, "x");
        assert_close(&numbers(&both[1])?, &of_w, TOLERANCE, "weight");

        let bare = vjp(rms_norm, &[&i.x], &[&i.g])?.1;
        let ones = vec![1.0; axis];
        let (of_x, _) = reference::rms_norm_gradients(x, &ones, g, axis, eps());
        assert_close(&numbers(&bare[0])?, &of_x, TOLERANCE, "x without a weight");

        let theirs = vjp(rms_norm_of_mlx, &[&i.x, &i.weight], &[&i.g])?.1;
        for (ours, theirs) in both.iter().zip(&theirs) {
            assert_close(&numbers(ours)?, &numbers(theirs)?, 2.0 * TOLERANCE, "MLX's");
        }
        Ok(())
    })
}

#[test]
fn gradient_in_either_argument_alone() -> Checked {
    let i = Inputs::new(Dtype::Float32)?;
    let loss = |p: &[Array]| ops::rms_norm(&p[0], Some(&p[1]), EPS)?.multiply(&i.g)?.sum(.., false);
    let both = grad(loss, &[0, 1], &[&i.x, &i.weight])?;
    let exchanged = grad(loss, &[1, 0], &[&i.x, &i.weight]);
    for argnum in [0, 1] {
        let alone = grad(loss, &[argnum], &[&i.x, &i.weight])?;
        assert_same(&alone[0], &both[argnum as usize], "alone")?;
    }
    // MLX wants argument numbers in order; either way they are not mixed up.
    if let Ok(exchanged) = exchanged {
        assert_same(&exchanged[0], &both[1], "exchanged")?;
        assert_same(&exchanged[1], &both[0], "exchanged")?;
    }
    Ok(())
}

#[test]
fn vjp_of_softmax() -> Checked {
    each_device(|_| {
        let i = Inputs::new(Dtype::Float32)?;
        let ours = vjp(softmax, &[&i.x], &[&i.g])?.1;
        let want = reference::softmax_gradient(&numbers(&i.x)?, &numbers(&i.g)?, AXIS as usize);
        assert_close(&numbers(&ours[0])?, &want, TOLERANCE, "f64");
        let theirs = vjp(|p| Ok(vec![builtin::softmax(&p[0])?]), &[&i.x], &[&i.g])?.1;
        assert_close(&numbers(&ours[0])?, &numbers(&theirs[0])?, TOLERANCE, "MLX's");
        Ok(())
    })
}

#[test]
fn jvp_of_rms_norm() -> Checked {
    each_device(|_| {
        let i = Inputs::new(Dtype::Float32)?;
        let (x, w) = (&numbers(&i.x)?, &numbers(&i.weight)?);
        let (tx, tw) = (&numbers(&i.tx)?, &numbers(&i.tw)?);
        let f = |x: &[f64], w: &[f64]| reference::rms_norm(x, Some(w), AXIS as usize, eps());
        let of_x = reference::along(x, tx, STEP, |x| f(x, w));
        let of_w = reference::along(w, tw, STEP, |w| f(x, w));
        let of_both: Vec<f64> = of_x.iter().zip(&of_w).map(|(a, b)| a + b).collect();

        let (y, both) = jvp(rms_norm, &[&i.x, &i.weight], &[&i.tx, &i.tw])?;
        assert_same(&y[0], &ops::rms_norm(&i.x, Some(&i.weight), EPS)?, "value")?;
        assert_close(&numbers(&both[0])?, &of_both, TOLERANCE, "both");
        let x_alone = |p: &[Array]| rms_norm(&[p[0].clone(), i.weight.clone()]);
        let alone = jvp(x_alone, &[&i.x], &[&i.tx])?.1;
        assert_close(&numbers(&alone[0])?, &of_x, TOLERANCE, "x alone");
        let weight_alone = |p: &[Array]| rms_norm(&[i.x.clone(), p[0].clone()]);
        let alone = jvp(weight_alone, &[&i.weight], &[&i.tw])?.1;
        assert_close(&numbers(&alone[0])?, &of_w, TOLERANCE, "weight alone");

        let bare = reference::along(x, tx, STEP, |x| f(x, &[1.0; AXIS as usize]));
        let ours = jvp(rms_norm, &[&i.x], &[&i.tx])?.1;
        assert_close(&numbers(&ours[0])?, &bare, TOLERANCE, "without a weight");
        Ok(())
    })
}

#[test]
fn jvp_of_softmax_and_rope() -> Checked {
    each_device(|_| {
        let i = Inputs::new(Dtype::Float32)?;
        let (x, tx) = (&numbers(&i.x)?, &numbers(&i.tx)?);
        let want = reference::along(x, tx, STEP, |x| reference::softmax(x, AXIS as usize));
        let ours = jvp(softmax, &[&i.x], &[&i.tx])?.1;
        assert_close(&numbers(&ours[0])?, &want, TOLERANCE, "softmax");

        // A rotation is linear: its derivative along t is t rotated.
        let (x, t) = (random32(&[2, 3, 4, 8], 6)?, random32(&[2, 3, 4, 8], 7)?);
        let (_, rope, _) = OPS[2];
        let ours = jvp(|p| Ok(vec![rope(&p[0])?]), &[&x], &[&t])?.1;
        assert_same(&ours[0], &rope(&t)?, "rope")?;
        Ok(())
    })
}

/// Derivatives of the gradients along a direction: reverse over reverse, forward over reverse.
#[test]
fn second_derivatives_of_rms_norm() -> Checked {
    let i = Inputs::new(Dtype::Float32)?;
    let axis = AXIS as usize;
    let (x, w, g) = (&numbers(&i.x)?, &numbers(&i.weight)?, &numbers(&i.g)?);
    let (tx, tw) = (&numbers(&i.tx)?, &numbers(&i.tw)?);
    let directed = |x: &[f64], w: &[f64]| {
        let (of_x, of_w) = reference::rms_norm_gradients(x, w, g, axis, eps());
        reference::dot(tx, &of_x) + reference::dot(tw, &of_w)
    };
    let of_x = reference::gradient(x, STEP, |x| directed(x, w));
    let of_w = reference::gradient(w, STEP, |w| directed(x, w));

    let inner = |p: &[Array]| Ok(vjp(rms_norm, &[&p[0], &p[1]], &[&i.g])?.1);
    let along = |p: &[Array]| {
        let d = inner(p)?;
        d[0].multiply(&i.tx)?.sum(.., false)?.add(d[1].multiply(&i.tw)?.sum(.., false)?)
    };
    let reverse = grad(along, &[0, 1], &[&i.x, &i.weight])?;
    // Products of up to three such numbers are summed: an order above the first derivative.
    let tolerance = 10.0 * TOLERANCE;
    assert_close(&numbers(&reverse[0])?, &of_x, tolerance, "grad of grad, x");
    assert_close(&numbers(&reverse[1])?, &of_w, tolerance, "grad of grad, weight");
    let forward = jvp(inner, &[&i.x, &i.weight], &[&i.tx, &i.tw])?.1;
    assert_close(&numbers(&forward[0])?, &of_x, tolerance, "jvp of grad, x");
    assert_close(&numbers(&forward[1])?, &of_w, tolerance, "jvp of grad, weight");
    Ok(())
}

#[test]
fn second_derivatives_of_softmax() -> Checked {
    let i = Inputs::new(Dtype::Float32)?;
    let axis = AXIS as usize;
    let (x, g, tx) = (&numbers(&i.x)?, &numbers(&i.g)?, &numbers(&i.tx)?);
    let want = reference::gradient(x, STEP, |x| {
        reference::dot(tx, &reference::softmax_gradient(x, g, axis))
    });
    let inner = |p: &[Array]| Ok(vjp(softmax, &[&p[0]], &[&i.g])?.1);
    let along = |p: &[Array]| inner(p)?[0].multiply(&i.tx)?.sum(.., false);
    let reverse = grad(along, &[0], &[&i.x])?;
    assert_close(&numbers(&reverse[0])?, &want, TOLERANCE, "grad of grad");
    let forward = jvp(inner, &[&i.x], &[&i.tx])?.1;
    assert_close(&numbers(&forward[0])?, &want, TOLERANCE, "jvp of grad");
    Ok(())
}

#[test]
fn sixteen_bits_against_f32() -> Checked {
    each_device(|_| {
        for dtype in [Dtype::Float16, Dtype::Bfloat16] {
            let i = Inputs::new(dtype)?;
            let wide = |x: &Array| x.astype(Dtype::Float32);
            let ours = vjp(rms_norm, &[&i.x, &i.weight], &[&i.g])?.1;
            let (x, w, g) = (wide(&i.x)?, wide(&i.weight)?, wide(&i.g)?);
            let want = vjp(rms_norm, &[&x, &w], &[&g])?.1;
            for (ours, want) in ours.iter().zip(&want) {
                assert_eq!(ours.dtype(), dtype);
                for (got, want) in numbers(ours)?.into_iter().zip(numbers(want)?) {
                    // The formula runs in f32; only its result is rounded.
                    let allowed = ulp(want, dtype) / 2.0 + TOLERANCE * (1.0 + want.abs());
                    assert!((got - want).abs() <= allowed, "rms_norm {dtype}: {got} for {want}");
                }
            }
            let ours = vjp(softmax, &[&i.x], &[&i.g])?.1;
            let want = vjp(softmax, &[&x], &[&g])?.1;
            assert_eq!(ours[0].dtype(), dtype);
            // The result y is rounded first: half an ulp of 1 in each term, |g| <= 3, and twice.
            let tolerance = 3.0 * ulp(1.0, dtype);
            assert_close(&numbers(&ours[0])?, &numbers(&want[0])?, tolerance, dtype.name());
        }
        Ok(())
    })
}

#[test]
fn layouts_of_inputs_and_cotangents() -> Checked {
    for dtype in FLOATS {
        for (name, op, _) in OPS {
            let f = |p: &[Array]| Ok(vec![op(&p[0])?]);
            for layout in LAYOUTS {
                let shape = &[2, 3, 4];
                let (x, g) = (layout.make(shape, dtype, 8)?, layout.make(shape, dtype, 9)?);
                let (cx, cg) = (x.contiguous()?, g.contiguous()?);
                let what = format!("{name} {dtype} {layout:?}");
                let want = vjp(f, &[&cx], &[&cg])?.1;
                // Sums over strided memory may be added in another order.
                let tolerance = TOLERANCE + ulp(1.0, dtype);
                let ours = vjp(f, &[&x], &[&g])?.1;
                assert_close(&numbers(&ours[0])?, &numbers(&want[0])?, tolerance, &what);
                let want = jvp(f, &[&cx], &[&cg])?.1;
                let ours = jvp(f, &[&x], &[&g])?.1;
                assert_close(&numbers(&ours[0])?, &numbers(&want[0])?, tolerance, &what);
            }
        }
    }
    Ok(())
}

#[test]
fn gradients_of_promoted_types_keep_each_arguments_type() -> Checked {
    let x = random(&[3, 7], Dtype::Float16, 10)?;
    let weight = random32(&[7], 11)?;
    let g = random32(&[3, 7], 12)?;
    let ours = vjp(rms_norm, &[&x, &weight], &[&g])?.1;
    assert_eq!((ours[0].dtype(), ours[1].dtype()), (Dtype::Float16, Dtype::Float32));
    Ok(())
}
