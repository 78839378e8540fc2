//! The dispatches that are planned for lazy results cover all work exactly once, stay within
//! Metal's limits, and name existing kernels.

use std::collections::BTreeSet;
use std::fs;

use mlx_primitives::graph::{Dispatch, MAX_THREADS, dispatches};
use mlx_primitives::ops::{Attention, CrossEntropy, MaskedSoftmax, QuantizedRows};
use mlx_primitives::{Array, Dtype, Result, ops, transforms};

use crate::support::input::FLOATS;
use crate::support::{Checked, message};
use crate::table::ops::OPS;

const SIMD: u32 = 32;
/// Each thread reads this many consecutive elements at a time.
const READS: u64 = 4;
const LIMITS: [u32; 9] = [32, 64, 96, 100, 256, 448, 1000, 1024, 4096];
const AXES: [i32; 19] = [
    1, 2, 31, 32, 33, 127, 128, 129, 1000, 1024, 1025, 4096, 4097, 8192, 8193, 16384, 16385,
    100_000, 16_777_216,
];
const ROWS: [i32; 8] = [0, 1, 3, 7, 8, 9, 67, 1 << 20];
/// The largest arrays in these tests have this many elements. They are never computed. Planning a
/// result that is larger than the memory would return an error.
const MOST: i64 = 1 << 30;

/// Whether these tests reach every kernel of the primitive in `metal/<stem>.metal`. The tests in
/// `simulated` run the kernels of all primitives.
fn is_reached(stem: &str) -> bool {
    let of_rows = OPS.iter().any(|op| op.scratch > 0 && op.stem == stem);
    of_rows || ["attention", "masked_softmax_grad", "rope"].contains(&stem)
}

/// A broadcast array of any size, which takes no memory until it is computed.
fn lazy(shape: &[i32], dtype: Dtype) -> Result<Array> {
    Array::scalar(0.0f32)?.astype(dtype)?.broadcast_to(shape)
}

/// The single dispatch of a result, or `None` if the result has no elements.
fn one(y: &Array, max_threads: u32) -> Result<Option<Dispatch>> {
    let mut all = dispatches(y, max_threads)?;
    assert!(all.len() <= 1, "{all:?}");
    assert_eq!(all.is_empty(), y.size() == 0);
    Ok(all.pop())
}

/// The gradient of `f` with respect to x, as a lazy node of this crate.
fn gradient(x: &Array, f: impl Fn(&[Array]) -> Result<Vec<Array>>) -> Result<Array> {
    let y = &f(std::slice::from_ref(x))?[0];
    let cotangent = lazy(y.shape(), y.dtype())?;
    Ok(transforms::vjp(|p| f(&p), &[x], &[&cotangent])?.1.remove(0))
}

fn softmax_gradient(x: &Array) -> Result<Array> {
    gradient(x, |x| Ok(vec![ops::masked_softmax(&x[0], MaskedSoftmax::default())?]))
}

fn cross_entropy_gradient(x: &Array) -> Result<Array> {
    let targets = lazy(&x.shape()[..x.ndim() - 1], Dtype::Int32)?;
    gradient(x, |x| Ok(vec![ops::cross_entropy(&x[0], &targets, CrossEntropy::default())?]))
}

/// The ops that reduce rows. The number says how many floats of threadgroup memory each SIMD group
/// of the op's kernel uses.
fn of_rows(rows: i32, axis: i32, dtype: Dtype) -> Result<Vec<(Array, u64)>> {
    let mut all = vec![(softmax_gradient(&lazy(&[rows, axis], dtype)?)?, 2)];
    for op in OPS.iter().filter(|op| op.scratch > 0) {
        let inputs = op.shapes(rows, axis).iter().map(|shape| lazy(shape, dtype)).collect();
        let outputs: Result<Vec<Array>> = inputs;
        all.extend((op.run)(&outputs?)?.pop().map(|y| (y, op.scratch)));
    }
    Ok(all)
}

fn threads(plan: &Dispatch) -> u64 {
    plan.group.iter().map(|&n| u64::from(n)).product()
}

/// Every kernel name that the macros in metal/*.metal instantiate.
fn instantiated() -> anyhow::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(crate::support::root().join("metal"))? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        if path.extension().is_none_or(|e| e != "metal") || !is_reached(&stem) {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        // The names contain parts such as NAME and KIND. These are arguments of macro calls such as
        // KERNELS(DTYPE, T, "…", …).
        let calls = |start| text.split(start).skip(1).filter_map(|call| call.split('"').next());
        let parts: Vec<&str> = calls("KERNELS(DTYPE, T, \"").chain(calls("KERNELS(\"")).collect();
        for call in text.split("MLXP_KERNEL(\"").skip(1) {
            let (stem, rest) = call.split_once('"').expect("a closed string");
            let middle = rest.split(',').next().unwrap_or_default().trim();
            let known = ["DTYPE", "NAME DTYPE", "KIND DTYPE"].contains(&middle);
            assert!(known, "{middle} after {stem}");
            for dtype in FLOATS {
                for part in if middle == "DTYPE" { &[""][..] } else { &parts[..] } {
                    assert!(names.insert(format!("{stem}{part}{dtype}")), "{stem} twice");
                }
            }
        }
    }
    Ok(names)
}

/// Checks the plan of a kernel that reduces rows. `slots` is the number of floats of threadgroup
/// memory for each SIMD group.
fn check_rows(plan: &Dispatch, rows: u64, axis: u32, slots: u64, max_threads: u32) {
    let what = format!("{rows}x{axis} within {max_threads}: {plan:?}");
    let threads = threads(plan);
    assert!(threads <= u64::from(max_threads.min(MAX_THREADS)), "{what}");
    assert!(threads > 0 && threads.is_multiple_of(SIMD.into()), "{what}");
    assert_eq!((plan.group[1], plan.group[2], plan.grid[1], plan.grid[2]), (1, 1, 1, 1), "{what}");
    let simds = threads / u64::from(SIMD);
    let forms = ["simd", "row", "row2", "row4", "looped"];
    let form = plan.kernel.split('_').find(|part| forms.contains(part)).unwrap_or_default();
    let groups = u64::from(plan.grid[0]);
    if form == "simd" {
        // Each SIMD group has one row. There are enough groups, and only the last threadgroup has
        // idle SIMD groups.
        assert!(u64::from(axis) <= u64::from(SIMD) * READS, "{what}");
        assert!(groups * simds >= rows && (groups * simds < rows + simds), "{what}");
        assert_eq!(plan.threadgroup_bytes, 0, "{what}");
        return;
    }
    assert_eq!(groups, rows, "{what}");
    let quads = match form {
        "row" => 1,
        "row2" => 2,
        "row4" => 4,
        "looped" => u64::MAX / (threads * READS),
        other => panic!("form {other} of {what}"),
    };
    assert!(threads * READS * quads >= axis.into(), "{what}");
    if form == "row" {
        // No SIMD group is idle.
        assert!((threads - u64::from(SIMD)) * READS < axis.into(), "{what}");
    }
    assert!(u64::from(plan.threadgroup_bytes) >= slots * simds * 4, "{what}");
    assert!(plan.threadgroup_bytes.is_multiple_of(16), "{what}");
    assert!(plan.threadgroup_bytes <= 32 << 10, "{what}");
}

#[test(simulated = never)]
fn rows() -> Checked {
    for axis in AXES {
        for rows in ROWS.into_iter().filter(|&rows| i64::from(rows) * i64::from(axis) <= MOST) {
            for dtype in FLOATS {
                for (y, slots) in of_rows(rows, axis, dtype)? {
                    for max_threads in LIMITS {
                        if let Some(plan) = one(&y, max_threads)? {
                            check_rows(&plan, rows as u64, axis as u32, slots, max_threads);
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

#[test(simulated = never)]
fn gradients_of_cross_entropy_cover_each_class_once() -> Checked {
    for classes in AXES {
        let y = cross_entropy_gradient(&lazy(&[3, classes], FLOATS[0])?)?;
        for max_threads in LIMITS {
            let plan = one(&y, max_threads)?.expect("elements");
            let what = format!("{classes} within {max_threads}: {plan:?}");
            let threads = threads(&plan);
            assert!(threads <= u64::from(max_threads.min(256)) && threads > 0, "{what}");
            assert!(threads.is_multiple_of(SIMD.into()), "{what}");
            if plan.kernel.contains("_simd_") {
                check_rows(&plan, 3, classes as u32, 0, max_threads);
                continue;
            }
            // Several threadgroups share a row, and the last threadgroup still has elements.
            let each = threads * READS * 4;
            let (parts, classes) = (u64::from(plan.grid[1]), classes as u64);
            assert!(parts * each >= classes, "{what}");
            assert!((parts - 1) * each < classes, "{what}");
            assert_eq!((plan.grid[0], plan.grid[2], plan.threadgroup_bytes), (3, 1, 0), "{what}");
        }
    }
    Ok(())
}

#[test(simulated = never)]
fn dispatches_that_cannot_be_planned() -> Checked {
    // The kernels count rows in 32 bits, so 2^32 rows are refused even if they fit in memory.
    let x = lazy(&[1 << 16, 1 << 16, 1], Dtype::Float16)?;
    for y in [ops::rms_norm(&x, None, 1e-5), ops::softmax(&x), rope(&x, 0)] {
        let refused = message(y.and_then(|y| dispatches(&y, 1024)));
        let why = ["4294967296 rows", "an array of at most", "dims to be even"];
        assert!(why.iter().any(|why| refused.contains(why)), "{refused}");
    }
    let x = lazy(&[1, 4096], Dtype::Float32)?;
    for max_threads in [0, 1, 31] {
        assert!(dispatches(&ops::rms_norm(&x, None, 1e-5)?, max_threads).is_err(), "{max_threads}");
        assert!(dispatches(&ops::softmax(&x)?, max_threads).is_err(), "{max_threads}");
    }
    let evaluated = ops::softmax(&Array::zeros::<f32>(&[2, 3])?)?;
    evaluated.eval()?;
    for other in [evaluated, x.exp()?] {
        assert!(message(dispatches(&other, 1024)).contains("a lazy result of one of our ops"));
    }
    Ok(())
}

/// Rotates x. Bit 0 of `bits` selects `traditional`, which rotates adjacent features. Bit 1 selects
/// explicit frequencies.
fn rope(x: &Array, bits: u32) -> Result<Array> {
    rope_of(x, x.dim(-1)?, bits)
}

fn rope_of(x: &Array, dims: i32, bits: u32) -> Result<Array> {
    let freqs = (bits & 2 != 0).then(|| lazy(&[dims / 2], Dtype::Float32)).transpose()?;
    let base = freqs.is_none().then_some(10_000.0);
    ops::rope(
        x,
        ops::Rope {
            dims,
            traditional: bits & 1 != 0,
            base,
            freqs: freqs.as_ref(),
            ..ops::Rope::default()
        },
    )
}

#[test(simulated = never)]
fn rotations() -> Checked {
    for (batch, heads, seq) in [
        (1, 1, 1),
        (1, 32, 1),
        (4, 8, 1),
        (1, 32, 512),
        (3, 5, 7),
        (2, 1, 100),
        (1, 4, 2),
        (0, 3, 5),
        (1, 7, 131_072),
    ] {
        for (head_dim, dims) in [(2, 2), (64, 64), (80, 32), (33, 30), (128, 128), (512, 512)] {
            for bits in 0..4 {
                let x = lazy(&[batch, heads, seq, head_dim], FLOATS[bits as usize % 3])?;
                let y = rope_of(&x, dims, bits)?;
                for max_threads in LIMITS.into_iter().chain([1, 7]) {
                    if let Some(plan) = one(&y, max_threads)? {
                        check_rotation(&plan, [batch, heads, seq, dims], max_threads);
                    }
                }
            }
        }
    }
    Ok(())
}

/// Checks that `plan` covers `[batch, heads, seq, dims]`. The result reuses x's buffer, so no
/// thread has to copy the features that are not rotated.
fn check_rotation(plan: &Dispatch, [batch, heads, seq, dims]: [i32; 4], max_threads: u32) {
    let what = format!("{batch} {heads} {seq} {dims} within {max_threads}: {plan:?}");
    assert!(threads(plan) <= u64::from(max_threads.min(MAX_THREADS)), "{what}");
    assert_eq!(plan.threadgroup_bytes, 0, "{what}");
    let alone = seq == 1 || heads == 1;
    assert_eq!(plan.kernel.contains("_one_head_"), alone, "{what}");
    // Each thread rotates one pair of features in up to four heads.
    let groups = (heads as u32).div_ceil(if alone { 1 } else { 4 });
    for (axis, wanted) in
        [dims as u32 / 2, seq as u32, batch as u32 * groups].into_iter().enumerate()
    {
        let (groups, width) = (plan.grid[axis], plan.group[axis]);
        // The threads cover all work, and the number of idle threads is less than the number of
        // groups.
        let covered = groups * width;
        assert!(covered >= wanted && covered < wanted + groups.max(1), "{what} axis {axis}");
    }
}

/// Attention with these sizes: `[batch, kv_heads, group, queries, keys, dim]`. `group` is the
/// number of query heads per key/value head. If `bits` is 0, keys and values are not quantized.
fn attention(extents: [i32; 6], bits: i32, dtype: Dtype) -> Result<Array> {
    let [batch, kv_heads, group, queries, keys, dim] = extents;
    let q = lazy(&[batch, kv_heads * group, queries, dim], dtype)?;
    let options = Attention::default();
    let rows = |last, dtype| lazy(&[batch, kv_heads, keys, last], dtype);
    if bits == 0 {
        let k = rows(dim, dtype)?;
        return ops::attention(&q, &k, &k, options);
    }
    let (packed, scales) = (rows(dim * bits / 32, Dtype::Uint32)?, rows(dim / 32, dtype)?);
    let k = QuantizedRows { packed: &packed, scales: &scales, biases: &scales };
    ops::attention_quantized(&q, k, k, bits, 32, options)
}

fn attention_kernels() -> anyhow::Result<BTreeSet<String>> {
    let mut used = BTreeSet::new();
    let mut reach = |y: Array| -> Result<()> {
        used.extend(dispatches(&y, MAX_THREADS)?.into_iter().map(|plan| plan.kernel));
        Ok(())
    };
    for dtype in FLOATS {
        for dim in [64, 80, 96, 128, 256] {
            // These numbers of rows reach each of the vector kernels, and a matrix kernel.
            for (group, queries) in [(1, 1), (4, 1), (4, 2), (4, 512)] {
                for bits in [0, 4, 8].into_iter().filter(|&bits| bits == 0 || dim % 64 == 0) {
                    for keys in [512, 4096] {
                        reach(attention([1, 8, group, queries, keys, dim], bits, dtype)?)?;
                    }
                }
            }
            let x = lazy(&[1, 8, 512, dim], dtype)?;
            let mask = lazy(&[512, 512], Dtype::Bool)?;
            let options = Attention { mask: Some(&mask), ..Attention::default() };
            reach(ops::attention(&x, &x, &x, options)?)?;
        }
    }
    Ok(used)
}

#[test(simulated = never)]
fn attention_within_limits() -> Checked {
    for (batch, kv_heads) in [(1, 1), (1, 8), (4, 32)] {
        for (group, queries) in [(1, 1), (4, 1), (7, 1), (1, 5), (71, 1), (4, 100)] {
            for keys in [1, 33, 255, 256, 512, 1025, 4096, 131_072] {
                for dim in [1, 64, 80, 128, 256] {
                    let extents = [batch, kv_heads, group, queries, keys, dim];
                    let y = attention(extents, 0, FLOATS[0])?;
                    for max_threads in LIMITS {
                        let plans = dispatches(&y, max_threads)?;
                        let what = format!("{extents:?} within {max_threads}: {plans:?}");
                        for plan in &plans {
                            assert!(threads(plan) <= max_threads.min(MAX_THREADS).into(), "{what}");
                            assert!(threads(plan).is_multiple_of(SIMD.into()), "{what}");
                            assert!(plan.threadgroup_bytes <= 32 << 10, "{what}");
                            assert!(plan.threadgroup_bytes.is_multiple_of(16), "{what}");
                        }
                        let groups: u64 = plans[0].grid.iter().map(|&n| u64::from(n)).product();
                        // The kernel may split the query rows of a key/value head, and also its
                        // keys if there are many. It splits every head in the same way.
                        let heads = (batch * kv_heads) as u64;
                        assert!(groups >= heads, "{what}");
                        // If keys are split, many threadgroups run, so each threadgroup is small.
                        assert!(plans.len() == 1 || threads(&plans[0]) <= 256, "{what}");
                        if group * queries > 8 {
                            let may_split = keys > 1024 && groups <= 1024 * heads;
                            assert!(plans.len() == 1 || may_split, "{what}");
                        } else {
                            let splits = if keys < 256 { 1 } else { (keys / 256).clamp(8, 128) };
                            assert_eq!(groups, heads * splits as u64, "{what}");
                            assert_eq!(plans.len() > 1, splits > 1, "{what}");
                        }
                        assert!(keys < 4096 || groups >= 16, "{what}");
                    }
                }
            }
        }
    }
    for max_threads in [0, 31] {
        let y = attention([1, 8, 4, 1, 512, 64], 0, FLOATS[0])?;
        assert!(dispatches(&y, max_threads).is_err());
    }
    Ok(())
}

#[test(simulated = never)]
fn kernels_are_those_that_exist_and_all_are_used() -> Checked {
    let exist = instantiated()?;
    let mut used = attention_kernels()?;
    for dtype in FLOATS {
        for axis in AXES {
            let x = lazy(&[3, axis], dtype)?;
            let all = of_rows(3, axis, dtype)?.into_iter().map(|(y, _)| y).chain([
                cross_entropy_gradient(&x)?,
                gradient(&x, |x| Ok(vec![ops::log_softmax(&x[0])?]))?,
                gradient(&x, |x| Ok(vec![ops::logsumexp(&x[0])?]))?,
            ]);
            for y in all {
                used.extend(one(&y, MAX_THREADS)?.map(|plan| plan.kernel));
            }
        }
        for (heads, seq) in [(4, 1), (1, 4), (4, 4)] {
            for bits in 0..4 {
                let y = rope(&lazy(&[2, heads, seq, 64], dtype)?, bits)?;
                used.extend(one(&y, MAX_THREADS)?.map(|plan| plan.kernel));
            }
        }
    }
    assert!(exist.len() >= 60, "{exist:?}");
    assert_eq!(used, exist);
    Ok(())
}
