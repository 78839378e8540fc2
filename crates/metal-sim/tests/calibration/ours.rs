//! Compares the kernels of `mlx-primitives` with MLX's kernels as Apple compiled them. Results must
//! be equal bit for bit if both kernels are meant to add in the same order.

use std::collections::BTreeMap;

use metal_sim::{Constants, Kernel, Library, Schedule, Source};

use crate::launch::{self, Dtype, EPS, LOG2_BASE, Launch, OFFSET, RopeShape, bytes};
use crate::{apple_kernels, common, result};

pub fn library(name: &str) -> Library {
    let source = Source::new(common::metal(name));
    Library::compile(&source, common::compiler(), common::cache()).unwrap()
}

pub fn get(library: &Library, launch: &Launch) -> Kernel {
    library.kernel(&launch.kernel, &Constants::new()).unwrap()
}

/// Plans a launch as `plan_rows` in cpp/runtime/dispatch.cpp does.
fn rows(launch: &mut Launch, rows: usize, axis: usize, slots: usize) -> &'static str {
    let threads = axis.div_ceil(4).next_multiple_of(32);
    if axis <= 128 {
        let together = rows.clamp(1, 8);
        let groups = rows.div_ceil(together);
        launch.group = [32 * together as u32, 1, 1];
        launch.threads = [groups as u32 * launch.group[0], 1, 1];
        return "simd";
    }
    let form = match threads {
        0..=1024 => "row",
        1025..=2048 => "row2",
        2049..=4096 => "row4",
        _ => "looped",
    };
    let threads = threads.min(1024);
    launch.scratch = (slots * threads / 32 * 4).next_multiple_of(16);
    launch.group = [threads as u32, 1, 1];
    launch.threads = [(rows * threads) as u32, 1, 1];
    form
}

pub fn softmax(dtype: Dtype, count: usize, axis: usize) -> Launch {
    let x = dtype.values(count * axis);
    let mut launch = Launch {
        out: (1, x.len()),
        inputs: vec![(0, x), (2, bytes(&[count as u32, axis as u32]))],
        tensors: vec![0, 1],
        ..Launch::default()
    };
    let form = rows(&mut launch, count, axis, 2);
    launch.kernel = format!("mlxp_softmax_{form}_{}", dtype.name());
    launch
}

pub fn rms_norm(dtype: Dtype, count: usize, axis: usize) -> Launch {
    let x = dtype.values(count * axis);
    let params = bytes(&[count as u32, axis as u32, EPS.to_bits()]);
    let mut launch = Launch {
        out: (2, x.len()),
        inputs: vec![(0, x), (1, dtype.values(axis)), (3, params)],
        tensors: vec![0, 1, 2],
        ..Launch::default()
    };
    let form = rows(&mut launch, count, axis, 1);
    launch.kernel = format!("mlxp_rms_norm_{form}_weighted_{}", dtype.name());
    launch
}

pub fn rope(dtype: Dtype, shape: RopeShape, traditional: bool) -> Launch {
    let [batch, heads, length, features] = shape.0;
    let x = dtype.values(batch * heads * length * features);
    let pairs = features / 2;
    let one_head = length == 1 || heads == 1;
    let depth = batch * heads.div_ceil(if one_head { 1 } else { 4 });
    let counts = [batch, heads, length, features, pairs, pairs, 0].map(|count| count as u32);
    let numbers = [1.0, LOG2_BASE, 1.0].map(f32::to_bits);
    let offset = bytes(&[OFFSET]);
    let layout = if traditional { "interleaved" } else { "half" };
    let (mut threads, mut group, mut left) = ([0; 3], [0; 3], 256);
    for (i, size) in [pairs, length, depth].into_iter().enumerate() {
        let groups = size.div_ceil(left);
        let width = size.div_ceil(groups);
        (threads[i], group[i]) = ((groups * width) as u32, width as u32);
        left /= width;
    }
    Launch {
        kernel: format!(
            "mlxp_rope_{layout}_base_{}{}",
            if one_head { "one_head_" } else { "" },
            dtype.name()
        ),
        out: (3, x.len()),
        inputs: vec![
            (0, x),
            (1, offset.clone()),
            (2, offset),
            (4, bytes(&[counts.as_slice(), &numbers].concat())),
        ],
        tensors: vec![0, 3],
        threads,
        group,
        ..Launch::default()
    }
}

/// Runs both kernels, and compares their results bit for bit.
fn same(kernels: &BTreeMap<String, Kernel>, library: &Library, theirs: &Launch, ours: &Launch) {
    let (expected, _) = theirs.run(&kernels[&theirs.kernel], Schedule::Shuffled(3));
    let (got, _) = ours.run(&get(library, ours), Schedule::Shuffled(4));
    let differ = got.iter().zip(&expected).position(|(got, expected)| got != expected);
    assert_eq!(differ, None, "{} and {}", ours.kernel, theirs.kernel);
}

const AXES: [usize; 6] = [1, 33, 128, 129, 1000, 4096];

#[test]
fn rms_norm_is_apples() {
    let library = library("rms_norm");
    let cases: Vec<_> = Dtype::ALL
        .into_iter()
        .flat_map(|dtype| {
            AXES.into_iter().chain([4097, 8192, 17001]).map(move |axis| (dtype, axis))
        })
        .map(|(dtype, axis)| (launch::mlx_rms_norm(dtype, 3, axis), rms_norm(dtype, 3, axis)))
        .collect();
    compare("rms_norm", &library, &cases, &Constants::new());
}

/// Checks that the comparison can fail: another epsilon gives another result.
#[test]
fn a_difference_shows() {
    let library = library("rms_norm");
    let theirs = launch::mlx_rms_norm(Dtype::F32, 2, 1000);
    let apple = apple_kernels(&[&theirs.kernel], &Constants::new());
    let (expected, _) = theirs.run(&apple[&theirs.kernel], Schedule::Forward);
    let right = rms_norm(Dtype::F32, 2, 1000);
    let mut wrong = right.clone();
    wrong.inputs[2].1 = bytes(&[2, 1000, (2.0 * EPS).to_bits()]);
    let kernel = get(&library, &right);
    assert_eq!(right.run(&kernel, Schedule::Forward).0, expected);
    assert_ne!(wrong.run(&kernel, Schedule::Forward).0, expected);
}

#[test]
fn softmax_is_apples() {
    let library = library("softmax");
    let cases: Vec<_> = Dtype::ALL
        .into_iter()
        .flat_map(|dtype| AXES.map(|axis| (dtype, axis)))
        .map(|(dtype, axis)| (launch::mlx_softmax(dtype, 3, axis), softmax(dtype, 3, axis)))
        .collect();
    compare("softmax", &library, &cases, &Constants::new());
}

#[test]
fn rope_is_apples() {
    let library = library("rope");
    for traditional in [false, true] {
        let shapes = [[1, 8, 1, 64], [2, 5, 6, 64], [1, 1, 33, 128], [2, 3, 4, 6]].map(RopeShape);
        let cases: Vec<_> = Dtype::ALL
            .into_iter()
            .flat_map(|dtype| shapes.map(|shape| (dtype, shape)))
            .map(|(dtype, shape)| (launch::mlx_rope(dtype, shape), rope(dtype, shape, traditional)))
            .collect();
        let layout = if traditional { "rope, interleaved" } else { "rope, halves" };
        compare(layout, &library, &cases, &rope_constants(traditional));
    }
}

/// The function constants of the rope kernel: forward, traditional, and whether heads and positions
/// are transposed. The last constant is always false.
pub fn rope_constants(traditional: bool) -> Constants {
    Constants::new().with(1, true).with(2, traditional).with(3, false)
}

fn compare(op: &str, library: &Library, cases: &[(Launch, Launch)], constants: &Constants) {
    let mut names: Vec<&str> = cases.iter().map(|(theirs, _)| theirs.kernel.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let kernels = apple_kernels(&names, constants);
    for (theirs, ours) in cases {
        same(&kernels, library, theirs, ours);
    }
    let count = cases.len();
    let text =
        format!("{op}: {count} dispatches of ours are bit-equal to {} of Apple's", names.len());
    result("dispatches", count, &text);
}
