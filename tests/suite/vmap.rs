//! vmap of the primitives, equal bit for bit to a loop over the mapped axes.

use mlx_primitives::transforms::{grad, jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, ops, stack};

use crate::support::compare::assert_same;
use crate::support::input::{FLOATS, LAYOUTS, random, random32};
use crate::support::{Checked, EPS, OPS, each_device, refs};

/// `vmap(f)` against `f` of each slice, stacked.
fn check(
    f: impl Fn(&[Array]) -> Result<Vec<Array>>,
    inputs: &[&Array],
    axes: &[Option<i32>],
    out_axis: i32,
    what: &str,
) -> anyhow::Result<()> {
    let outputs = vmap(&f, inputs, axes, &[out_axis])?;
    let mapped = axes.iter().position(Option::is_some).expect("a mapped input");
    let size = inputs[mapped].dim(axes[mapped].unwrap_or_default())?;
    let mut slices = Vec::new();
    for i in 0..size {
        let entry: Vec<Array> = inputs
            .iter()
            .zip(axes)
            .map(|(x, axis)| match *axis {
                Some(axis) => x.slice_axis(axis, i..i + 1)?.squeeze(&[axis]),
                None => Ok((*x).clone()),
            })
            .collect::<Result<_>>()?;
        slices.push(f(&entry)?.swap_remove(0));
    }
    assert_eq!(outputs.len(), 1, "{what}");
    assert_same(&outputs[0], &stack(&refs(&slices), out_axis)?, what)?;
    Ok(())
}

fn rms_norm(p: &[Array]) -> Result<Vec<Array>> {
    Ok(vec![ops::rms_norm(&p[0], p.get(1), EPS)?])
}

/// x, offset and, if given, freqs.
fn rope(p: &[Array]) -> Result<Vec<Array>> {
    let base = p.get(2).is_none().then_some(1e4);
    Ok(vec![ops::rope(&p[0], 4, false, base, 0.5, &p[1], p.get(2))?])
}

#[test]
fn each_axis_of_x() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for (name, op, _) in OPS {
                let f = |p: &[Array]| Ok(vec![op(&p[0])?]);
                for layout in LAYOUTS {
                    let x = layout.make(&[2, 4, 6, 8], dtype, 1)?;
                    for axis in -4..4 {
                        let what = format!("{name} {dtype} {layout:?} axis {axis}");
                        check(f, &[&x], &[Some(axis)], 0, &what)?;
                    }
                }
            }
        }
        Ok(())
    })
}

#[test]
fn each_axis_of_the_result() -> Checked {
    for (name, op, _) in OPS {
        let x = random32(&[2, 4, 6, 8], 2)?;
        for out_axis in -4..4 {
            let f = |p: &[Array]| Ok(vec![op(&p[0])?]);
            check(f, &[&x], &[Some(1)], out_axis, &format!("{name} to {out_axis}"))?;
        }
    }
    Ok(())
}

#[test]
fn rms_norm_with_x_weight_or_both_mapped() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for (x, x_axis) in [(&[3, 5, 8][..], Some(0)), (&[5, 3, 8], Some(1)), (&[5, 8], None)] {
                let x = random(x, dtype, 3)?;
                for (w, w_axis) in [(&[3, 8][..], Some(0)), (&[8, 3], Some(1)), (&[8], None)] {
                    if x_axis.is_none() && w_axis.is_none() {
                        continue;
                    }
                    let weight = random(w, dtype, 4)?;
                    let what = format!("{dtype} x {x_axis:?} weight {w_axis:?}");
                    check(rms_norm, &[&x, &weight], &[x_axis, w_axis], 0, &what)?;
                }
            }
            // x of one row.
            let (x, weight) = (random(&[3, 8], dtype, 5)?, random(&[3, 8], dtype, 6)?);
            check(rms_norm, &[&x, &weight], &[Some(0); 2], 0, "rows with weights")?;
        }
        Ok(())
    })
}

#[test]
fn rope_with_x_offset_or_freqs_mapped() -> Checked {
    let ints = |shape: &[i32]| {
        let count: i32 = shape.iter().product();
        let values: Vec<i32> = (0..count).map(|i| (i * 37) % 11 - 3).collect();
        Array::from_slice(&values, shape)
    };
    each_device(|_| {
        for dtype in FLOATS {
            for (x, x_axis) in [
                (&[3, 2, 2, 5, 8][..], Some(0)),
                (&[2, 3, 2, 5, 8], Some(1)),
                (&[2, 2, 5, 3, 8], Some(3)),
                (&[2, 2, 5, 8, 3], Some(4)),
                (&[3, 2, 5, 8], Some(0)),
                (&[2, 2, 5, 8], None),
                (&[2, 1, 8], None),
            ] {
                let x = random(x, dtype, 7)?;
                for (offset, o_axis) in [
                    (&[][..], None),
                    (&[1], None),
                    (&[2], None),
                    (&[3], Some(0)),
                    (&[3, 1], Some(0)),
                    (&[3, 2], Some(0)),
                    (&[2, 3], Some(1)),
                ] {
                    let offset = ints(offset)?;
                    let what = format!("{dtype} x {:?} {x_axis:?} offset {o_axis:?}", x.shape());
                    if x_axis.is_some() || o_axis.is_some() {
                        check(rope, &[&x, &offset], &[x_axis, o_axis], 0, &what)?;
                    }
                    for (freqs, f_axis) in
                        [(&[2][..], None), (&[3, 2], Some(0)), (&[2, 3], Some(1))]
                    {
                        let axes = [x_axis, o_axis, f_axis];
                        if axes.iter().any(Option::is_some) {
                            let freqs = random32(freqs, 8)?.abs()?.add(0.1)?;
                            let what = format!("{what} freqs {f_axis:?}");
                            check(rope, &[&x, &offset, &freqs], &axes, 0, &what)?;
                        }
                    }
                }
            }
        }
        Ok(())
    })
}

#[test]
fn strided_weights_offsets_and_freqs() -> Checked {
    let x = random32(&[3, 2, 4, 8], 9)?;
    let weight = random32(&[8, 6], 10)?.slice(&[&.., &(.., -2)])?;
    check(rms_norm, &[&x, &weight], &[Some(0), Some(1)], 0, "weight")?;
    let offset = Array::arange::<i32>(0.0, 12.0, 1.0)?.reshape(&[6, 2])?.slice(&[&(.., -2)])?;
    let freqs = random32(&[2, 6], 11)?.abs()?.add(0.1)?.slice(&[&.., &(.., 2)])?;
    check(rope, &[&x, &offset], &[Some(0), Some(0)], 0, "offset")?;
    check(rope, &[&x, &offset, &freqs], &[Some(0), Some(0), Some(1)], 1, "freqs")?;
    Ok(())
}

#[test]
fn nested() -> Checked {
    for (name, op, _) in OPS {
        let x = random32(&[2, 3, 4, 6, 8], 12)?;
        for inner in [0, 1, 3] {
            for outer in [0, 1, 4] {
                let f =
                    |p: &[Array]| vmap(|p| Ok(vec![op(&p[0])?]), &refs(p), &[Some(inner)], &[1]);
                check(f, &[&x], &[Some(outer)], 0, &format!("{name} {inner} in {outer}"))?;
            }
        }
    }
    // Weights mapped by the outer map, rows by the inner one.
    let (x, weight) = (random32(&[3, 5, 8], 13)?, random32(&[3, 8], 14)?);
    let f = |p: &[Array]| vmap(rms_norm, &refs(p), &[Some(0), None], &[0]);
    check(f, &[&x, &weight], &[Some(0), Some(0)], 0, "weights outside")?;
    Ok(())
}

#[test]
fn of_derivatives() -> Checked {
    for (name, op, _) in OPS {
        let (x, t) = (random32(&[3, 2, 4, 8], 15)?, random32(&[3, 2, 4, 8], 16)?);
        let loss = |p: &[Array]| op(&p[0])?.square()?.sum(.., false);
        let f = |p: &[Array]| grad(loss, &[0], &refs(p));
        check(f, &[&x], &[Some(0)], 0, &format!("grad of {name}"))?;
        let f = |p: &[Array]| Ok(vjp(|p| Ok(vec![op(&p[0])?]), &[&p[0]], &[&p[1]])?.1);
        check(f, &[&x, &t], &[Some(0); 2], 0, &format!("vjp of {name}"))?;
        check(f, &[&x, &t.slice(&[&(..1)])?.squeeze(&[0])?], &[Some(0), None], 0, name)?;
        let f = |p: &[Array]| Ok(jvp(|p| Ok(vec![op(&p[0])?]), &[&p[0]], &[&p[1]])?.1);
        check(f, &[&x, &t], &[Some(0); 2], 0, &format!("jvp of {name}"))?;
    }
    // A gradient for each weight: the sum over rows must not run over the mapped axis.
    let (x, weight) = (random32(&[3, 5, 8], 17)?, random32(&[3, 8], 18)?);
    let loss = |p: &[Array]| ops::rms_norm(&p[0], Some(&p[1]), EPS)?.square()?.sum(.., false);
    let f = |p: &[Array]| grad(loss, &[1], &refs(p));
    check(f, &[&x, &weight], &[Some(0), Some(0)], 0, "weights and rows")?;
    check(f, &[&x, &weight], &[Some(0), Some(0)], 1, "to axis 1")?;
    check(f, &[&x.slice(&[&(..1)])?.squeeze(&[0])?, &weight], &[None, Some(0)], 0, "weights")?;
    Ok(())
}

#[test]
fn gradients_through_a_vmap() -> Checked {
    // The derivative of a mapped function is that of the plain one on all rows.
    let x = random32(&[3, 2, 4, 8], 19)?;
    for (name, op, _) in OPS {
        let mapped = |p: &[Array]| {
            let y = vmap(|p| Ok(vec![op(&p[0])?]), &refs(p), &[Some(0)], &[])?;
            y[0].square()?.sum(.., false)
        };
        let plain = |p: &[Array]| op(&p[0])?.square()?.sum(.., false);
        let (mapped, plain) = (grad(mapped, &[0], &[&x])?, grad(plain, &[0], &[&x])?);
        assert_same(&mapped[0], &plain[0], name)?;
    }
    Ok(())
}

#[test]
fn an_axis_of_one_or_none() -> Checked {
    for (name, op, _) in OPS {
        let f = |p: &[Array]| Ok(vec![op(&p[0])?]);
        check(f, &[&random32(&[1, 2, 3, 4], 20)?], &[Some(0)], 0, name)?;
        let empty = Array::zeros_of(&[0, 2, 3, 4], Dtype::Float32)?;
        let y = vmap(f, &[&empty], &[Some(0)], &[])?;
        assert_eq!((y[0].shape(), y[0].to_vec::<f32>()?.len()), (&[0, 2, 3, 4][..], 0));
    }
    Ok(())
}
