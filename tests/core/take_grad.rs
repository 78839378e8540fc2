//! The gradient of a matrix whose rows were taken, beside MLX's. The kernels' tests compare it with
//! sums in f32, on every level and for any number of threads.

use mlx_primitives::transforms::{grad, jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, builtin};

use crate::support::compare::{assert_close, assert_same, numbers};
use crate::support::input::{FLOATS, random, random32};
use crate::support::{Checked, simulated};

/// The node and the value of a gradient in a matrix.
fn gradient(matrix: &Array, ids: &Array, g: &Array) -> Result<(Option<String>, Array)> {
    let of = vjp(|x: Array| x.take(ids, 0), matrix, g)?.1;
    Ok((of.primitive(), of))
}

/// Rows that are taken twice or never, by numbers of every type, of which some count from the end.
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
        assert_eq!(node.as_deref(), Some(if simulated() { "Scatter Sum" } else { "TakeGrad" }));
        let near = if dtype == Dtype::Float32 { 1e-6 } else { 0.05 };
        assert_close(&numbers(&of_matrix)?, &want, near, dtype.name());
        let ids = Array::from_slice(&[3u32, 0, 8, 3, 8, 5, 3, 0], [2, 4])?;
        for of_type in [Dtype::Uint32, Dtype::Int64, Dtype::Uint8] {
            let (_, same) = gradient(&matrix, &ids.astype(of_type)?, &g)?;
            assert_same(&same, &of_matrix, of_type.name())?;
        }
        if !simulated() {
            let theirs = builtin::composition(&gradient(&matrix, &ids, &g)?.1)?.swap_remove(0);
            assert_close(&numbers(&of_matrix)?, &numbers(&theirs)?, 2.0 * near, "MLX");
        }
    }
    Ok(())
}

/// Numbers of rows that count from the end, in types that do not hold the number of all rows.
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

/// Other derivatives of taking rows, and of its gradient.
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

    // Each entry has other rows of the one matrix, or other gradients.
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
