//! The memory traffic of ops that take one dispatch, which the simulator counts.

use mlx_primitives::ops;
use mlx_primitives::{Array, Result, eval};

use crate::support::input::{FLOATS, random, random32};
use crate::support::{Checked, EPS, moved, report_traffic};
use crate::table::ops::of_elements;

/// Bytes of an array: read requests, writes, and distinct bytes that are read.
type Moved = [u64; 3];

/// The traffic of an array whose bytes are each read once.
fn read(bytes: u64) -> Moved {
    [bytes, 0, bytes]
}

fn written(bytes: u64) -> Moved {
    [0, bytes, 0]
}

/// Checks how many bytes of each array one dispatch moves. With a name, also reports the bytes for
/// the table in the book.
fn check(
    name: Option<&str>,
    op: impl FnOnce(&[Array]) -> Result<Array>,
    inputs: &[Array],
    want: &[Moved],
) -> Checked {
    eval(inputs)?;
    let moved = moved(|| op(inputs))?;
    assert_eq!(moved.len(), 1);
    assert_eq!(moved[0].arrays, want, "{}", moved[0].kernel);
    let ideal: u64 = want.iter().map(|array| array[0] + array[1]).sum();
    name.map_or(Ok(()), |name| report_traffic(name, &moved, ideal as usize))
}

#[test]
#[ignore = "run by simulated::kernel_traffic"]
fn moves_rows_once() -> Checked {
    let (x, long) = (random32(&[8, 1024], 1)?, random32(&[8, 5000], 1)?);
    let (all, of_long) = (x.nbytes() as u64, long.nbytes() as u64);
    let (x, long) = ([x], [long]);
    let softmax = |x: &[Array]| ops::softmax(&x[0]);
    check(Some("softmax"), softmax, &x, &[read(all), written(all)])?;
    let op = |x: &[Array]| ops::logsumexp_keepdims(&x[0]);
    check(Some("logsumexp"), op, &long, &[read(of_long), written(32)])?;
    let op = |x: &[Array]| ops::log_softmax(&x[0]);
    check(Some("log_softmax"), op, &long, &[read(of_long), written(of_long)])?;
    for (dtype, shape) in
        FLOATS.iter().flat_map(|d| [[20, 300], [4, 1024], [3, 16384]].map(|s| (d, s)))
    {
        let x = [random(&shape, *dtype, 1)?];
        let out = dtype.size() as u64 * shape[0] as u64;
        for op in [ops::sum, ops::mean, ops::max, ops::sum_of_squares, ops::norm] {
            let want = [read(x[0].nbytes() as u64), written(out)];
            check(None, |x| op(&x[0], -1), &x, &want)?;
        }
    }
    Ok(())
}

/// For each row, the kernel reads the weight and the bias. Caches serve all these reads except the
/// first. If a row does not fit in registers, the kernel reads it twice.
#[test]
#[ignore = "run by simulated::kernel_traffic"]
fn moves_only_the_bytes_that_norms_need() -> Checked {
    for (rows, axis) in [(8, 100), (4, 1024), (2, 16384), (1, 20_000)] {
        let (x, r) = (random32(&[rows, axis], 1)?, random32(&[rows, axis], 2)?);
        let (w, b) = (random32(&[axis], 3)?, random32(&[axis], 4)?);
        let (row, all) = (4 * axis as u64, 4 * (rows * axis) as u64);
        let (again, vector) = (if axis == 20_000 { all } else { 0 }, [all, 0, row]);
        let name = |name| (axis == 1024).then_some(name);
        let once = [x.clone(), w.clone(), b.clone()];
        let want = [[all + again, 0, all], vector, vector, written(all)];
        let op = |x: &[Array]| ops::layer_norm(&x[0], Some(&x[1]), Some(&x[2]), EPS);
        check(name("layer_norm"), op, &once, &want)?;
        let both = [x, r, w, b];
        let sums = [[again, all, again], written(all)];
        let want = [&[read(all), read(all), vector, vector][..], &sums].concat();
        let op = |x: &[Array]| {
            Ok(ops::layer_norm_residual(&x[0], &x[1], Some(&x[2]), Some(&x[3]), EPS)?.1)
        };
        check(name("layer_norm_residual"), op, &both, &want)?;
        let want = [&[read(all), read(all), vector, [0; 3]][..], &sums].concat();
        let op = |x: &[Array]| Ok(ops::rms_norm_residual(&x[0], &x[1], Some(&x[2]), EPS)?.1);
        check(name("rms_norm_residual"), op, &both, &want)?;
    }
    let (x, w) = (random32(&[8, 1024], 1)?, random32(&[1024], 2)?);
    let all = x.nbytes() as u64;
    let op = |x: &[Array]| ops::rms_norm(&x[0], Some(&x[1]), EPS);
    check(Some("rms_norm"), op, &[x, w], &[read(all), [all, 0, 4096], written(all)])
}

#[test]
#[ignore = "run by simulated::kernel_traffic"]
fn moves_elements_once() -> Checked {
    let inputs = [random32(&[8, 1031], 50)?, random32(&[8, 1031], 51)?];
    let bytes = inputs[0].nbytes() as u64;
    for count in [1, 2] {
        for op in of_elements(count) {
            let want = [vec![read(bytes); count], vec![written(bytes)]].concat();
            let run = |x: &[Array]| Ok((op.run)(x)?.swap_remove(0));
            check(Some(op.name), run, &inputs[..count], &want)?;
        }
    }
    Ok(())
}
