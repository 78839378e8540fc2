//! The primitives as nodes of MLX's graph: they are lazy, are shared, and may reuse the buffers of
//! their inputs.

use mlx_primitives::transforms::grad;
use mlx_primitives::{Array, async_eval, builtin, eval, graph, memory, ops};

use crate::support::compare::assert_same;
use crate::support::input::{FLOATS, LAYOUTS, random, random32};
use crate::support::{Checked, EPS, OPS, each_device, fewer_if_simulated};

#[test]
fn building_schedules_nothing() -> Checked {
    for (name, op, _) in OPS {
        let x = random32(&[2, 3, 8], 1)?;
        let y = op(&op(&x)?)?;
        assert!(!y.is_scheduled(), "{name}");
        assert_eq!(y.primitive().as_deref(), Some(name));
        y.eval()?;
        assert!(y.is_scheduled(), "{name}");
        assert_eq!(y.primitive(), None, "{name} keeps its inputs after evaluation");
    }
    Ok(())
}

#[test]
fn the_built_ins_are_not_ours() -> Checked {
    for (name, ours, theirs) in OPS {
        let x = random32(&[2, 3, 8], 2)?;
        let same = theirs(&x)?.primitive() == ours(&x)?.primitive();
        // Our softmax and MLX's have the same name. Our other ops have different names than MLX's.
        assert_eq!(same, name == "Softmax", "{name}: {:?}", theirs(&x)?.primitive());
    }
    Ok(())
}

#[test]
fn outputs_are_row_contiguous() -> Checked {
    for (name, op, _) in OPS {
        for layout in LAYOUTS {
            let y = op(&layout.make(&[2, 3, 8], FLOATS[0], 3)?)?;
            y.eval()?;
            assert!(y.is_row_contiguous(), "{name} {layout:?}");
            assert_eq!(y.strides(), [24, 8, 1], "{name} {layout:?}");
        }
    }
    Ok(())
}

/// An op may overwrite its input's buffer, unless the input is still in use. The results are equal
/// in both cases.
#[test]
fn donated_buffers_change_nothing() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for (name, op, _) in OPS {
                for shape in [[2, 3, 8], [7, 33, 130], [1, 1, 6000]] {
                    let what = format!("{name} {dtype} {shape:?}");
                    let x = random(&shape, dtype, 4)?;
                    let before = x.add(0.0)?;
                    let first = op(&x)?;
                    first.eval()?;
                    let second = op(&first)?;
                    second.eval()?;
                    let third = op(&second)?;
                    third.eval()?;
                    // The chain begins with a temporary array, so each op may reuse its input's
                    // buffer.
                    let chain = op(&op(&op(&x.multiply(1.0)?)?)?)?;
                    assert_same(&chain, &third, &what)?;
                    assert_same(&first, &op(&before)?, &what)?;
                    assert_same(&x, &before, &format!("{what}: the input"))?;
                }
            }
        }
        Ok(())
    })
}

/// The rows are contiguous and begin at an odd element of the buffer.
#[test]
fn rows_begin_at_any_element() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for (name, op, _) in OPS {
                for axis in [8, 256, 4096] {
                    let x = random(&[1 + 3 * axis], dtype, 6)?.i(1..)?.reshape([1, 3, axis])?;
                    let apart = op(&x.multiply(1.0)?)?;
                    assert_same(&op(&x)?, &apart, &format!("{name} {dtype} {axis}"))?;
                }
            }
        }
        Ok(())
    })
}

#[test]
fn donation_keeps_weights_offsets_and_views() -> Checked {
    let x = random32(&[4, 6, 8], 5)?;
    let weight = random32(&[8], 6)?;
    let norm = |x: &Array| ops::rms_norm(x, Some(&weight), EPS);
    let chain = norm(&norm(&x.add(1.0)?)?)?;
    let step = norm(&x.add(1.0)?)?;
    step.eval()?;
    assert_same(&chain, &norm(&step)?, "weighted")?;
    // Here one array is both the input and the weight.
    let row = random32(&[8], 7)?.add(1.0)?;
    let own = ops::rms_norm(&row, Some(&row), EPS)?;
    let want = builtin::rms_norm(&row, Some(&row), EPS)?;
    let close = own.subtract(&want)?.abs()?.max(..)?.item::<f32>()?;
    assert!(close <= 4.0 * 3.0 * f32::EPSILON, "{close}"); // rms_norm's bound for |y| <= 4
    // The view's array is still in use, so its buffer must not be overwritten.
    let base = x.add(2.0)?;
    let view = base.i(1..3)?;
    let (y, kept) = (ops::softmax(&view)?, base.multiply(1.0)?);
    drop(view);
    eval([&y, &kept])?;
    assert_same(&kept, &x.add(2.0)?, "base")?;
    assert_same(&y, &ops::softmax(&x.add(2.0)?.i(1..3)?)?, "view")?;
    Ok(())
}

#[test]
fn one_input_for_many_outputs() -> Checked {
    let x = random32(&[2, 3, 8], 8)?.add(1.0)?;
    let all: Vec<Array> = OPS.iter().map(|(_, op, _)| op(&x)).collect::<Result<_, _>>()?;
    eval(&all)?;
    for ((name, op, _), y) in OPS.iter().zip(&all) {
        assert_same(y, &op(&random32(&[2, 3, 8], 8)?.add(1.0)?)?, name)?;
    }
    Ok(())
}

#[test(simulated = once)]
fn dropped_while_they_run() -> Checked {
    for round in 0..fewer_if_simulated("dropped_while_they_run", 50, 10) {
        for (_, op, _) in OPS {
            let x = random32(&[64, 64, 64], round)?;
            let y = op(&op(&x.add(1.0)?)?)?;
            let z = op(&y)?;
            async_eval([&y, &z])?;
            drop(x);
            drop(z);
            if round % 2 == 0 {
                drop(y);
            } else {
                assert_eq!(y.shape(), [64, 64, 64]);
            }
        }
    }
    mlx_primitives::device::synchronize()?;
    assert!(memory::peak_memory() >= memory::active_memory());
    Ok(())
}

#[test]
fn async_eval_gives_the_results_of_eval() -> Checked {
    for (name, op, _) in OPS {
        let x = random32(&[16, 32, 64], 9)?;
        let (a, b) = (op(&x)?, op(&x)?);
        async_eval([&a])?;
        assert!(a.is_scheduled());
        let c = op(&a)?; // may read a result that is not there yet
        async_eval([&c])?;
        b.eval()?;
        assert_same(&a, &b, name)?;
        assert_same(&c, &op(&b)?, name)?;
    }
    Ok(())
}

#[test]
fn long_chains_and_deep_graphs() -> Checked {
    let x = random32(&[2, 3, 8], 10)?;
    let mut y = x.clone();
    for i in 0..5000 {
        y = OPS[i % 3].1(&y)?;
    }
    assert!(y.to_vec::<f32>()?.iter().all(|v| v.is_finite()));
    Ok(())
}

/// Gradients report their cost, even if only CPUs have kernels for them.
#[test]
fn gradients_have_a_cost() -> Checked {
    let (x, w) = (random32(&[6, 32], 1)?, random32(&[6, 32], 2)?);
    let ids = Array::from_slice(&[2i32, 0, 2], 3)?;
    let of = |(x, w): (Array, Array)| -> mlx_primitives::Result<Array> {
        let rows = w.take(&ids, 0)?.sum(..)?;
        x.matmul(&w.t()?)?.sum(..)?.add(&ops::norm(&x, ..)?)?.add(&rows)
    };
    let (of_x, of_w) = grad(of, (&x, &w))?;
    for node in graph::nodes([&of_x, &of_w])?.iter().filter(|node| node.ours) {
        assert!(node.dispatches > 0 && node.device_bytes > 0, "{}", node.name);
    }
    Ok(())
}
