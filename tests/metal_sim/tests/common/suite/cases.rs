//! Which calls the suite makes: all shapes, and the few that tell a mutant from the original.

use super::dtype::Dtype;
use super::op::{Case, Op};

const AXES: [usize; 21] = [
    1, 3, 31, 32, 33, 100, 127, 128, 129, 1000, 1024, 4095, 4096, 4097, 8192, 8193, 16383, 16384,
    16385, 16387, 20000,
];
const ROW_OPS: [Op; 3] =
    [Op::RmsNorm { weighted: false }, Op::RmsNorm { weighted: true }, Op::Softmax];

/// Rows of every length, rotations of every shape, and pipelines that allow fewer threads.
pub fn full() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in Dtype::ALL {
        for op in ROW_OPS {
            let mut rows_of = |axis: usize, rows: &[usize], limit: u32| {
                for rows in rows {
                    let in_place = (cases.len() / 2).is_multiple_of(2);
                    let shape = vec![*rows, axis];
                    cases.push(Case { op, dtype, shape, in_place, limit });
                }
            };
            for axis in AXES {
                rows_of(axis, if axis <= 128 { &[1, 3, 7, 8, 9] } else { &[1, 3, 7] }, 1024);
            }
            for (axis, limit) in [(100, 96), (129, 32), (1500, 416), (1700, 500), (5000, 896)] {
                rows_of(axis, &[1, 5], limit);
            }
        }
        rotations(dtype, &mut cases);
    }
    cases
}

fn rotations(dtype: Dtype, cases: &mut Vec<Case>) {
    for (features, dims) in [(64, 64), (33, 20), (6, 6), (8, 2), (5, 2), (80, 64), (514, 514)] {
        for heads in [1, 3, 4, 5, 9] {
            for (batch, length) in [(1, 1), (2, 1), (1, 3), (2, 3), (1, 33)] {
                if heads * length * features > 30000 {
                    continue;
                }
                for kind in 0..4 {
                    let number = cases.len() / 4 + kind * 3;
                    let (interleaved, freqs) = (kind % 2 == 1, kind / 2 == 1);
                    let forward = number.is_multiple_of(2);
                    let offsets = if number.is_multiple_of(3) { 1 } else { batch };
                    let op = Op::Rope { dims, interleaved, freqs, forward, offsets };
                    let shape = vec![batch, heads, length, features];
                    let limit = if number.is_multiple_of(5) { 100 } else { 1024 };
                    let in_place = number % 4 >= 2;
                    cases.push(Case { op, dtype, shape, in_place, limit });
                }
            }
        }
    }
}

/// Small calls that together use every form, every tail and every part of the grid. A
/// pipeline of 96 threads makes the longer forms short.
pub fn decisive(dtype: Dtype) -> Vec<Case> {
    let mut cases = Vec::new();
    for op in ROW_OPS {
        let mut add = |rows, axis, limit| {
            let in_place = cases.len() % 2 == 1;
            cases.push(Case { op, dtype, shape: vec![rows, axis], in_place, limit });
        };
        for axis in
            [31, 128, 1, 126, 383, 384, 767, 768, 1535, 1536, 1537, 1539, 2001, 3072, 129, 385]
        {
            add(7, axis, 96);
        }
        add(9, 33, 1024);
        add(3, 33, 1024); // a single group, of fewer rows than it could have
        add(3, 769, 96);
        add(1, 128, 1024);
        add(1, 4096, 1024); // the longest of the form row
    }
    for kind in 0..4 {
        let (interleaved, freqs) = (kind % 2 == 1, kind / 2 == 1);
        let mut add = |shape: [usize; 4], dims, forward, offsets, in_place| {
            let op = Op::Rope { dims, interleaved, freqs, forward, offsets };
            cases.push(Case { op, dtype, shape: shape.to_vec(), in_place, limit: 1024 });
        };
        add([2, 5, 3, 7], 4, true, 2, false);
        add([2, 5, 3, 8], 8, false, 1, true);
        add([5, 4, 3, 40], 40, true, 1, false); // a depth that its groups do not divide
        add([1, 2, 13, 40], 38, true, 1, false); // a length likewise
        add([1, 2, 3, 514], 514, true, 1, false); // columns likewise
        add([2, 3, 1, 7], 4, true, 2, false);
        add([2, 1, 3, 8], 8, false, 1, true);
        add([1, 13, 1, 40], 40, true, 1, false);
        add([1, 1, 13, 40], 38, true, 1, false);
        add([1, 1, 2, 514], 514, true, 1, true);
    }
    cases
}
