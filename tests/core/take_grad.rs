//! Tests the gradient of taking rows of a matrix. Compares it with MLX's gradient and with sums in
//! f32. The tests of the CPU kernels compare it with sums in f32 for every instruction set and for
//! any number of threads.

use mlx_primitives::graph::dispatches;
use mlx_primitives::transforms::{grad, jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, builtin};

use crate::support::Checked;
use crate::support::compare::{assert_close, assert_same, numbers};
use crate::support::input::{FLOATS, random, random32};

/// The gradient of a matrix whose rows `ids` are taken, and the name of its node.
fn gradient(matrix: &Array, ids: &Array, g: &Array) -> Result<(Option<String>, Array)> {
    let of = vjp(|x: Array| x.take(ids, 0), matrix, g)?.1;
    Ok((of.primitive(), of))
}

/// A row's gradient is the sum of the gradients of all its copies. Some rows are taken several
/// times, others never. The indices have several integer types, and some count from the end.
#[test]
fn gradients_are_sums_of_copies() -> Checked {
    for dtype in FLOATS {
        let (matrix, g) = (random(&[9, 33], dtype, 1)?, random(&[2, 4, 33], dtype, 2)?);
        let ids = Array::from_slice(&[3i32, 0, -1, 3, 8, 5, 3, -9], [2, 4])?;
        let mut want = vec![0.0; 9 * 33];
        for (row, g) in [3, 0, 8, 3, 8, 5, 3, 0].into_iter().zip(numbers(&g)?.chunks(33)) {
            for (sum, g) in want[row * 33..][..33].iter_mut().zip(g) {
                *sum += g;
            }
        }
        let (node, of_matrix) = gradient(&matrix, &ids, &g)?;
        assert_eq!(node.as_deref(), Some("TakeGrad"));
        let near = if dtype == Dtype::Float32 { 1e-6 } else { 0.05 };
        assert_close(&numbers(&of_matrix)?, &want, near, dtype.name());
        let ids = Array::from_slice(&[3u32, 0, 8, 3, 8, 5, 3, 0], [2, 4])?;
        for of_type in [Dtype::Uint32, Dtype::Int64, Dtype::Uint8] {
            let (_, same) = gradient(&matrix, &ids.astype(of_type)?, &g)?;
            assert_same(&same, &of_matrix, of_type.name())?;
        }
        let theirs = builtin::composition(&gradient(&matrix, &ids, &g)?.1)?.swap_remove(0);
        assert_close(&numbers(&of_matrix)?, &numbers(&theirs)?, 2.0 * near, "MLX");
    }
    Ok(())
}

/// Every device adds up the copies of a row in order. So the result equals sums in f32 in every
/// bit.
#[test]
fn devices_agree_on_every_bit() -> Checked {
    for [rows, axis, count] in [[1, 1, 1], [40, 5, 70], [17, 1100, 9], [33, 64, 256]] {
        let (matrix, g) = (random32(&[rows, axis], 1)?, random32(&[count, axis], 2)?);
        // Every third index is the middle row. The other indices are spread over the rows, and the
        // last index is the last row.
        let row = |i: i32| if i % 3 == 1 { rows / 2 } else { i * 7919 % rows };
        let ids: Vec<i32> = (1..count).map(row).chain([rows - 1]).collect();
        let mut want = vec![0.0f32; (rows * axis) as usize];
        let (axis, taken) = (axis as usize, g.to_vec::<f32>()?);
        for (&id, g) in ids.iter().zip(taken.chunks(axis)) {
            want[id as usize * axis..][..axis].iter_mut().zip(g).for_each(|(sum, g)| *sum += g);
        }
        let want = Array::from_slice(&want, matrix.shape())?;
        let (_, got) = gradient(&matrix, &Array::from_slice(&ids, count)?, &g)?;
        assert_same(&got, &want, &format!("{count} of {rows}"))?;
    }
    Ok(())
}

/// An index outside the matrix selects the nearest row, which then gets the gradient.
#[test]
fn rows_outside_the_matrix_are_its_nearest() -> Checked {
    let (matrix, g) = (random32(&[5, 9], 1)?, random32(&[4, 9], 2)?);
    let of = |ids: &[i32; 4]| gradient(&matrix, &Array::from_slice(ids, 4)?, &g);
    assert_same(&of(&[4, 5, -9, 900])?.1, &of(&[4, 4, 0, 4])?.1, "rows outside the matrix")?;
    Ok(())
}

/// The first kernel has a SIMD group for each index. The second has a threadgroup for every sixteen
/// rows of the matrix, and covers every column once.
#[test(simulated = never)]
fn dispatches_cover_the_matrix_once() -> Checked {
    let lazy = |shape: &[i32]| Array::scalar(0.0f32)?.broadcast_to(shape);
    for [count, rows, axis] in [[1, 1, 1], [9, 16, 129], [512, 32_000, 4097], [8192, 128_256, 64]] {
        let ids = lazy(&[count])?.astype(Dtype::Int32)?;
        let (_, of) = gradient(&lazy(&[rows, axis])?, &ids, &lazy(&[count, axis])?)?;
        for max_threads in [32, 100, 256, 1024, 4096] {
            let plans = dispatches(&of, max_threads)?;
            let what = format!("{count} of {rows}x{axis} within {max_threads}: {plans:?}");
            let [order, sum] = &plans[..] else { panic!("{what}") };
            let simds = order.group[0] / 32;
            assert!(order.group[0] <= max_threads.min(256) && simds > 0, "{what}");
            assert_eq!(order.grid, [(count as u32).div_ceil(simds), 1, 1], "{what}");
            let threads = sum.group[0];
            assert!(threads <= max_threads.min(256) && threads.is_multiple_of(32), "{what}");
            let columns = (axis as u32).div_ceil(4 * threads);
            assert_eq!(sum.grid, [(rows as u32).div_ceil(16), columns, 1], "{what}");
        }
    }
    Ok(())
}

/// Negative indices count from the end, even if their type is too narrow for the number of rows.
#[test]
fn narrow_numbers_count_from_the_end() -> Checked {
    let (matrix, g) = (random32(&[300, 5], 1)?, random32(&[3, 5], 2)?);
    let ids = Array::from_slice(&[-1i32, -128, 7], 3)?;
    let (_, want) = gradient(&matrix, &ids, &g)?;
    assert_same(
        &want.slice_axis(0, 172..173)?,
        &g.slice_axis(0, 1..2)?,
        "the row 128 from the end",
    )?;
    for of_type in [Dtype::Int8, Dtype::Int16, Dtype::Int64] {
        let (_, same) = gradient(&matrix, &ids.astype(of_type)?, &g)?;
        assert_same(&same, &want, of_type.name())?;
    }
    Ok(())
}

/// Forward derivatives and `vmap` of taking rows, and derivatives of its gradient.
#[test]
fn taken_rows_transform() -> Checked {
    let (matrix, along) = (random32(&[6, 17], 1)?, random32(&[6, 17], 2)?);
    let (ids, g) = (Array::from_slice(&[1i32, 4, 1], 3)?, random32(&[3, 17], 3)?);
    let take = |x: Array| x.take(&ids, 0);
    let (_, tangent) = jvp(take, &matrix, &along)?;
    assert_same(&tangent, &along.take(&ids, 0)?, "along a direction")?;
    let of_matrix = |g: Array| Ok(vjp(take, &matrix, &g)?.1);
    let second = vjp(of_matrix, &g, &along)?.1;
    assert_same(&second, &along.take(&ids, 0)?, "second derivatives")?;

    // Each entry of the batch takes other rows of the matrix, or has another cotangent.
    let many = Array::from_slice(&[1i32, 4, 1, 0, 0, 5], (2, 3))?;
    let square = |ids: Array| grad(|x: Array| x.take(&ids, 0)?.square()?.sum(..), &matrix);
    let all = |p: Vec<Array>| Ok(vec![square(p[0].clone())?]);
    let mapped = vmap(all, &[&many], [Some(0)], 0)?.swap_remove(0);
    for (entry, ids) in [[1i32, 4, 1], [0, 0, 5]].into_iter().enumerate() {
        let alone = square(Array::from_slice(&ids, 3)?)?;
        let entry = entry as i32;
        let own = mapped.slice_axis(0, entry..entry + 1)?.squeeze(0)?;
        assert_close(&numbers(&own)?, &numbers(&alone)?, 1e-6, "mapped rows");
    }
    Ok(())
}
