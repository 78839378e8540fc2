//! `sum`, `mean`, `max`, `sum_of_squares` and `norm`: extreme numbers, gradients, costs, traffic.
//! The conformance table (`tests/catalog`) tests their values.

use mlx_primitives::transforms::{grad, vjp};
use mlx_primitives::{Array, Dtype, Result, builtin, graph, ops};

use crate::support::compare::{assert_close, numbers};
use crate::support::input::{FLOATS, data, random, random32};
use crate::support::{self, Checked, each_device, simulated};

type Op = fn(&Array, Option<i32>) -> Result<Array>;

const OPS: [(&str, Op); 5] = [
    ("sum", ops::sum),
    ("mean", ops::mean),
    ("max", ops::max),
    ("sum_of_squares", ops::sum_of_squares),
    ("norm", ops::norm),
];

/// One element of a row is special: NaN, an infinity, -0, or a number whose square overflows
/// float16.
#[test]
fn extremes_are_those_of_mlx() -> Checked {
    const INF: f32 = f32::INFINITY;
    each_device(|_| {
        for dtype in FLOATS {
            for axis in [1, 5, 40, 600, 20_000] {
                for special in [f32::NAN, INF, -INF, -0.0, 1e4] {
                    for at in [0, axis / 2, axis - 1] {
                        let mut x = vec![0.5f32; 2 * axis];
                        x[axis + at] = special;
                        let x = data(&x, &[2, axis as i32], dtype)?;
                        for (name, op) in OPS {
                            let y = op(&x, Some(-1))?;
                            let theirs = builtin::composition(&y)?.swap_remove(0);
                            let (ours, theirs) = (numbers(&y)?, numbers(&theirs)?);
                            let what = format!("{name} {dtype} {axis} {special} at {at}");
                            if special.is_finite() {
                                // Our ops and MLX's add up in different orders, and MLX adds 16-bit
                                // numbers in 16 bits. So only maxima must be equal.
                                if name == "max" {
                                    assert_eq!(ours, theirs, "{what}");
                                }
                                continue;
                            }
                            assert!(ours[0].is_finite(), "{what}");
                            let same =
                                ours[1] == theirs[1] || ours[1].is_nan() && theirs[1].is_nan();
                            assert!(same, "{what}: {} for {}", ours[1], theirs[1]);
                        }
                    }
                }
            }
            let lowest = data(&[-INF; 40], &[1, 40], dtype)?;
            let max = numbers(&ops::max(&lowest, -1)?)?;
            assert_eq!(max, [f64::NEG_INFINITY]);
            let opposed = data(&[INF, 1.0, -INF], &[3], dtype)?;
            assert!(numbers(&ops::sum(&opposed, ..)?)?[0].is_nan());
        }
        // Our ops add up in float32, so only the result must fit in 16 bits.
        let mut x = vec![60_000.0f32; 100];
        x.extend(vec![-60_000.0; 99]);
        let x = data(&x, &[199], Dtype::Float16)?;
        assert_eq!(numbers(&ops::sum(&x, ..)?)?, [60_000.0]);
        assert_eq!(numbers(&ops::norm(&x, ..)?)?, [f64::INFINITY]);
        let x = data(&[300.0; 100], &[100], Dtype::Float16)?;
        assert_eq!(numbers(&ops::norm(&x, ..)?)?, [3000.0]);
        Ok(())
    })
}

/// On a CPU, one node computes the gradient of a maximum, a sum of squares, or a norm.
#[test]
fn gradients_are_one_node() -> Checked {
    for dtype in FLOATS {
        let x = random(&[3, 40], dtype, 1)?;
        for (name, op) in &OPS[2..] {
            for (axis, count) in [(Some(-1), 3), (None, 1)] {
                let g = random(&[count], dtype, 2)?;
                let of = |x: Array| op(&x, axis)?.reshape(count);
                let of_x = vjp(of, &x, &g)?.1;
                let node = of_x.primitive();
                assert_eq!(node.as_deref() == Some("ReductionGrad"), !simulated(), "{name}");
                if !simulated() {
                    let theirs = builtin::composition(&of_x)?.swap_remove(0);
                    let near = if dtype == Dtype::Float32 { 1e-6 } else { 0.05 };
                    assert_close(&numbers(&of_x)?, &numbers(&theirs)?, near, name);
                }
            }
        }
    }
    // Equal maxima share the gradient. If the maximum is NaN, the whole row's gradient is NaN.
    let x = Array::from_slice(&[-0.0f32, 0.0, -1.0, f32::NAN, 2.0, 1.0], (2, 3))?;
    let g = Array::from_slice(&[3.0f32, 5.0], 2)?;
    let of_x = numbers(&vjp(|x: Array| ops::max(&x, -1), &x, &g)?.1)?;
    assert_eq!(of_x[..3], [1.5, 1.5, 0.0]);
    assert!(of_x[3..].iter().all(|of_x| of_x.is_nan()), "{of_x:?}");
    // The norm's gradient is x / |x|. The derivative of (x / |x|) · t is (t - x (x · t) / |x|²) /
    // |x|.
    let x = Array::from_slice(&[3.0f32, 4.0], 2)?;
    let of_x = |x: Array| grad(|x: Array| ops::norm(&x, ..), &x);
    let t = Array::from_slice(&[1.0f32, 0.0], 2)?;
    let second = vjp(of_x, &x, &t)?.1;
    assert_close(&numbers(&second)?, &[(1.0 - 9.0 / 25.0) / 5.0, -12.0 / 125.0], 1e-6, "second");
    Ok(())
}

#[test]
fn costs_count_a_second_dispatch_for_split_rows() -> Checked {
    let x = random32(&[2, 20_000], 1)?;
    let cost = graph::total(&graph::nodes([&ops::sum(&x, -1)?])?);
    // Each row has three pieces. The first dispatch writes one float per piece, and the second
    // reads it.
    assert_eq!((cost.dispatches, cost.device_bytes), (2, 4 * (40_000 + 2 + 2 * 6)));
    let cost = graph::total(&graph::nodes([&ops::sum(&x.t()?.contiguous()?, -1)?])?);
    assert_eq!((cost.dispatches, cost.device_bytes), (1, 4 * (40_000 + 20_000)));
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::kernel_traffic"]
fn moves_pieces_between_two_dispatches() -> Checked {
    for dtype in FLOATS {
        let x = random(&[200, 517], dtype, 1)?;
        x.eval()?;
        let (all, out) = (x.nbytes() as u64, dtype.size() as u64);
        for (name, op) in OPS {
            let moved = support::moved(|| op(&x, None))?;
            // 103,400 elements are 13 pieces of up to 8,192. The first dispatch writes 13 floats,
            // and the second reads them.
            assert_eq!(moved.len(), 2, "{name} {dtype}");
            assert_eq!(moved[0].arrays, [[all, 0, all], [0, 4 * 13, 0]], "{name} {dtype}");
            let last = [[4 * 13, 0, 4 * 13], [0, out, 0]];
            assert_eq!(moved[1].arrays, last, "{name} {dtype}");
            if dtype == Dtype::Float32 {
                support::report_traffic(name, &moved, (all + out) as usize)?;
            }
        }
    }
    Ok(())
}
