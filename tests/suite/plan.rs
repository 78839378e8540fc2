//! Launch plans: all work covered once, within Metal's limits, by kernels that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use mlx_primitives::Dtype;
use mlx_primitives::plan::{LaunchPlan, MAX_THREADS, Rope, rms_norm, rope, softmax};

use crate::support::input::FLOATS;
use crate::support::{Checked, message};

const SIMD: u32 = 32;
/// Consecutive elements a thread takes at a time.
const READS: u64 = 4;
const LIMITS: [u32; 9] = [32, 64, 96, 100, 256, 448, 1000, 1024, 4096];
const AXES: [u32; 20] = [
    1,
    2,
    31,
    32,
    33,
    127,
    128,
    129,
    1000,
    1024,
    1025,
    4096,
    4097,
    8192,
    8193,
    16384,
    16385,
    100_000,
    1 << 24,
    u32::MAX,
];
const ROWS: [u64; 9] = [0, 1, 3, 7, 8, 9, 67, 1 << 20, u32::MAX as u64];

/// The primitives whose plans `plan` shows; `simulated` counts the kernels of all.
const PLANNED: [&str; 3] = ["rms_norm", "rope", "softmax"];

fn threads(plan: &LaunchPlan) -> u64 {
    plan.group.iter().map(|&n| u64::from(n)).product()
}

/// Every name that the instantiation macros of metal/*.metal make.
fn instantiated() -> anyhow::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("metal"))? {
        let path = entry?.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        if path.extension().is_none_or(|e| e != "metal") || !PLANNED.contains(&&*stem) {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        // NAME stands for what the calls ROPE_HEAD_KERNELS(DTYPE, T, "…", …) pass.
        let parts: Vec<&str> = text
            .split("KERNELS(DTYPE, T, \"")
            .skip(1)
            .filter_map(|call| call.split('"').next())
            .collect();
        for call in text.split("MLXP_KERNEL(\"").skip(1) {
            let (stem, rest) = call.split_once('"').expect("a closed string");
            let middle = rest.split(',').next().unwrap_or_default().trim();
            assert!(middle == "DTYPE" || middle == "NAME DTYPE", "{middle} after {stem}");
            for dtype in FLOATS {
                for part in if middle == "DTYPE" { &[""][..] } else { &parts[..] } {
                    assert!(names.insert(format!("{stem}{part}{dtype}")), "{stem} twice");
                }
            }
        }
    }
    Ok(names)
}

/// What both row-wise primitives promise; `slots` floats of scratch for each SIMD group.
fn check_rows(plan: &LaunchPlan, rows: u64, axis: u32, slots: u64, max_threads: u32) {
    let what = format!("{rows}x{axis} within {max_threads}: {plan:?}");
    let threads = threads(plan);
    assert!(threads <= u64::from(max_threads.min(MAX_THREADS)), "{what}");
    assert!(threads > 0 && threads.is_multiple_of(SIMD.into()), "{what}");
    assert_eq!((plan.group[1], plan.group[2], plan.grid[1], plan.grid[2]), (1, 1, 1, 1), "{what}");
    let simds = threads / u64::from(SIMD);
    let form = plan.kernel.trim_start_matches("mlxp_rms_norm_").trim_start_matches("mlxp_softmax_");
    let form = form.split('_').next().unwrap_or_default();
    let groups = u64::from(plan.grid[0]);
    if form == "simd" {
        // A row for each SIMD group: enough of them, and none without a row but in the last group.
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
        // No SIMD group without work.
        assert!((threads - u64::from(SIMD)) * READS < axis.into(), "{what}");
    }
    assert!(u64::from(plan.threadgroup_bytes) >= slots * simds * 4, "{what}");
    assert!(plan.threadgroup_bytes.is_multiple_of(16), "{what}");
    assert!(plan.threadgroup_bytes <= 32 << 10, "{what}");
}

#[test]
fn rows() -> Checked {
    for max_threads in LIMITS {
        for axis in AXES {
            for rows in ROWS {
                for dtype in FLOATS {
                    for weighted in [false, true] {
                        let plan = rms_norm(rows, axis, dtype, weighted, max_threads)?;
                        check_rows(&plan, rows, axis, 1, max_threads);
                        assert_eq!(plan.kernel.contains("_weighted_"), weighted);
                    }
                    let plan = softmax(rows, axis, dtype, max_threads)?;
                    check_rows(&plan, rows, axis, 2, max_threads);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn what_cannot_be_counted_or_run() -> Checked {
    let dtype = FLOATS[0];
    for rows in [u64::from(u32::MAX) + 1, u64::MAX] {
        assert!(message(rms_norm(rows, 4096, dtype, true, 1024)).contains(&rows.to_string()));
        assert!(message(softmax(rows, 4, dtype, 1024)).contains(&rows.to_string()));
    }
    for max_threads in [0, 1, 31] {
        assert!(rms_norm(1, 4096, dtype, true, max_threads).is_err(), "{max_threads}");
        assert!(softmax(1, 4096, dtype, max_threads).is_err(), "{max_threads}");
    }
    let whole = Rope { batch: 1 << 21, heads: 1 << 13, ..PLAIN };
    assert!(rope(whole, dtype, 1024).is_err(), "2^32 groups of four heads");
    for large in [1usize << 32, usize::MAX] {
        for shape in [
            Rope { batch: large, ..PLAIN },
            Rope { heads: large, ..PLAIN },
            Rope { seq: large, ..PLAIN },
            Rope { head_dim: large, ..PLAIN },
        ] {
            assert!(rope(shape, dtype, 1024).is_err(), "{shape:?}");
        }
    }
    assert!(rope(Rope { dims: 66, ..PLAIN }, dtype, 1024).is_err(), "dims beyond the features");
    Ok(())
}

const PLAIN: Rope = Rope {
    batch: 2,
    heads: 8,
    seq: 5,
    head_dim: 64,
    dims: 64,
    traditional: false,
    explicit_freqs: false,
    in_place: false,
};

#[test]
fn rotations() -> Checked {
    for max_threads in LIMITS.into_iter().chain([1, 7]) {
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
            for (head_dim, dims) in [(2, 2), (64, 64), (80, 32), (33, 30), (128, 128), (4096, 4096)]
            {
                for bits in 0..8 {
                    let (traditional, explicit_freqs) = (bits & 1 != 0, bits & 2 != 0);
                    let in_place = bits & 4 != 0;
                    let shape = Rope {
                        batch,
                        heads,
                        seq,
                        head_dim,
                        dims,
                        traditional,
                        explicit_freqs,
                        in_place,
                    };
                    let plan = rope(shape, FLOATS[bits % 3], max_threads)?;
                    check_rotation(&plan, shape, max_threads);
                }
            }
        }
    }
    Ok(())
}

fn check_rotation(plan: &LaunchPlan, shape: Rope, max_threads: u32) {
    let what = format!("{shape:?} within {max_threads}: {plan:?}");
    assert!(threads(plan) <= u64::from(max_threads.min(MAX_THREADS)), "{what}");
    assert_eq!(plan.threadgroup_bytes, 0, "{what}");
    let alone = shape.seq == 1 || shape.heads == 1;
    assert_eq!(plan.kernel.contains("_one_head_"), alone, "{what}");
    // A thread a pair, or two features that are copied; a thread takes up to four heads.
    let copied = if shape.in_place { 0 } else { (shape.head_dim - shape.dims).div_ceil(2) };
    let wanted = [
        shape.dims / 2 + copied,
        shape.seq,
        shape.batch * shape.heads.div_ceil(if alone { 1 } else { 4 }),
    ];
    for (axis, wanted) in wanted.into_iter().enumerate() {
        let (groups, width) = (plan.grid[axis] as usize, plan.group[axis] as usize);
        // All covered, and less than one thread a group left over.
        let covered = groups * width;
        assert!(covered >= wanted && covered < wanted + groups.max(1), "{what} axis {axis}");
    }
}

#[test]
fn kernels_are_those_that_exist_and_all_are_used() -> Checked {
    let exist = instantiated()?;
    let mut used = BTreeSet::new();
    for dtype in FLOATS {
        for axis in AXES {
            used.insert(rms_norm(3, axis, dtype, false, MAX_THREADS)?.kernel);
            used.insert(rms_norm(3, axis, dtype, true, MAX_THREADS)?.kernel);
            used.insert(softmax(3, axis, dtype, MAX_THREADS)?.kernel);
        }
        for (seq, heads) in [(1, 4), (4, 1), (4, 4)] {
            for (traditional, explicit_freqs) in
                [(false, false), (false, true), (true, false), (true, true)]
            {
                let shape = Rope { seq, heads, traditional, explicit_freqs, ..PLAIN };
                used.insert(rope(shape, dtype, MAX_THREADS)?.kernel);
            }
        }
    }
    assert!(exist.len() >= 60, "{exist:?}");
    assert_eq!(used, exist);
    Ok(())
}

#[test]
fn types_without_kernels_are_refused() {
    for dtype in [Dtype::Int32, Dtype::Float64, Dtype::Bool] {
        let refused =
            [rms_norm(1, 8, dtype, true, 1024).map(drop), softmax(1, 8, dtype, 1024).map(drop)];
        for result in refused {
            assert!(result.unwrap_err().to_string().starts_with("[plan] expected float32"));
        }
    }
}
