//! Runs MLX's kernels twice in the same executor: as Apple compiled them, and compiled from source
//! with the shim (this crate's Metal headers). The results must agree in every bit. Both kernels
//! must read and write the same number of bytes of each tensor, and run the same number of barriers
//! and SIMD operations.

use std::collections::BTreeMap;

use metal_sim::{Constants, Library, Report, Schedule};

use crate::launch::{self, Dtype, EPS, LOG2_BASE, Launch, RopeShape, bytes, longs};
use crate::ours::rope_constants;
use crate::{apple_kernels, result, sources};

/// The bytes read and written, for each tensor.
fn traffic(launch: &Launch, report: &Report) -> Vec<(u64, u64)> {
    let tensors = launch.tensors.iter().map(|index| &report.buffers[index]);
    tensors.map(|traffic| (traffic.read_bytes, traffic.written_bytes)).collect()
}

/// Compares the kernels of `library` with Apple's kernels in all launches. Returns the number of
/// kernels.
fn compare(library: &Library, constants: &Constants, launches: &[Launch]) -> usize {
    let mut kernels = BTreeMap::new();
    for launch in launches {
        kernels.insert(launch.kernel.as_str(), library.kernel(&launch.kernel, constants).unwrap());
    }
    let names: Vec<&str> = kernels.keys().copied().collect();
    let apple = apple_kernels(&names, constants);
    for launch in launches {
        let name = launch.kernel.as_str();
        let (expected, theirs) = launch.run(&apple[name], Schedule::Shuffled(5));
        let (got, shim) = launch.run(&kernels[name], Schedule::Shuffled(6));
        let differ = got.iter().zip(&expected).position(|(got, expected)| got != expected);
        assert_eq!(differ, None, "{name}: a byte of the result");
        assert_eq!(traffic(launch, &shim), traffic(launch, &theirs), "{name}");
        let barriers = |report: &Report| (report.threadgroup_barriers, report.simd_operations);
        assert_eq!(barriers(&shim), barriers(&theirs), "{name}");
    }
    names.len()
}

/// Launches of a kernel that computes a row, or one number, for each row. The looped variant of a
/// kernel gets rows of more than 4096 elements, and the other variant gets shorter rows.
fn rows(kernel: &str, dtype: Dtype) -> Vec<Launch> {
    let looped = kernel.contains("looped");
    let axes = if looped { [4097, 5000, 9000] } else { [1, 33, 4096] };
    let launch = |axis: usize| {
        let (threads, group) = launch::mlx_rows(2, axis, 4, looped);
        let of_row = if kernel.contains("logsumexp") { 1 } else { axis };
        Launch {
            kernel: kernel.to_string(),
            inputs: vec![(0, dtype.values(2 * axis)), (2, bytes(&[axis as u32]))],
            out: (1, 2 * of_row * dtype.size()),
            tensors: vec![0, 1],
            threads,
            group,
            ..Launch::default()
        }
    };
    axes.map(launch).to_vec()
}

fn dtype_of(kernel: &str) -> Dtype {
    let named = |dtype: &Dtype| kernel.ends_with(dtype.name());
    let candidates = [Dtype::Bf16, Dtype::F16, Dtype::F32]; // "bfloat16" ends with "float16"
    candidates.into_iter().find(named).unwrap()
}

#[test]
fn kernels_of_headers() {
    let mut count = 0;
    for op in ["softmax", "logsumexp"] {
        let (library, names) = sources::header(op);
        let launches: Vec<Launch> =
            names.iter().flat_map(|name| rows(name, dtype_of(name))).collect();
        count += compare(&library, &Constants::new(), &launches);
    }
    assert_eq!(count, 16);
    result(
        "kernels",
        count,
        "softmax, logsumexp: 16 of 16 kernels of Apple's are bit-equal to the shim's",
    );
}

/// The inputs are x, weight and bias. In MLX's layer_norm, each thread takes 8 elements; for more
/// than 6656 elements, the kernel runs a loop. If the last threads of a group have no elements, the
/// kernel overruns a private array, so callers pass only lengths that fill whole threadgroups.
fn layer_norm(dtype: Dtype, axis: usize) -> Launch {
    let looped = axis > 6656;
    let (threads, group) = launch::mlx_rows(2, axis, 8, looped);
    let x = dtype.values(2 * axis);
    let numbers = [EPS.to_bits(), axis as u32, 1, 1].map(|word| bytes(&[word]));
    let mut inputs = vec![(1, dtype.values(axis)), (2, dtype.values(axis))];
    inputs.extend((4u32..).zip(numbers));
    Launch {
        kernel: format!("layer_norm{}{}", if looped { "_looped" } else { "" }, dtype.name()),
        out: (3, x.len()),
        inputs: [vec![(0, x)], inputs].concat(),
        tensors: vec![0, 1, 2, 3],
        threads,
        group,
        ..Launch::default()
    }
}

/// Launches of MLX's six rope kernels: for one position or several positions, with a base or with
/// frequencies, and with 64-bit indices.
fn ropes(dtype: Dtype) -> Vec<Launch> {
    let mut all = Vec::new();
    for shape in [[2, 5, 1, 64], [2, 5, 6, 64]].map(RopeShape) {
        let base = launch::mlx_rope(dtype, shape);
        let mut freqs = base.clone();
        freqs.inputs.retain(|(index, _)| *index != 10);
        let list: Vec<u32> =
            (0..32).map(|i| (LOG2_BASE * i as f32 / 32.0).exp2().to_bits()).collect();
        freqs.inputs.extend([(10, bytes(&list)), (11, longs(&[1]))]);
        let named = |launch: &Launch, from: &str, to: &str| {
            let kernel = launch.kernel.replacen(from, to, 1);
            Launch { kernel, ..launch.clone() }
        };
        let single = base.kernel.contains("single");
        let start = if single { "rope_single_" } else { "rope_" };
        all.push(named(&freqs, start, &format!("{start}freqs_")));
        if !single {
            all.push(named(&base, start, "rope_large_"));
            all.push(named(&freqs, start, "rope_freqs_large_"));
        }
        all.push(base);
    }
    all
}

#[test]
#[ignore = "needs METAL_SIM_MLX, a checkout of MLX"]
fn kernels_of_checkout() {
    let weighted = Constants::new().with(20, true);
    let each = |launches: fn(Dtype) -> Vec<Launch>| -> Vec<Launch> {
        Dtype::ALL.into_iter().flat_map(launches).collect()
    };
    let norms =
        each(|dtype| [1, 100, 4096, 5000].map(|axis| launch::mlx_rms_norm(dtype, 2, axis)).into());
    let mut count = compare(&sources::checkout("rms_norm"), &weighted, &norms);
    let norms = each(|dtype| [256, 4096, 8192].map(|axis| layer_norm(dtype, axis)).into());
    count += compare(&sources::checkout("layer_norm"), &weighted, &norms);
    let rope = sources::checkout("rope");
    let ropes = each(ropes);
    compare(&rope, &rope_constants(true), &ropes);
    count += compare(&rope, &rope_constants(false), &ropes);
    assert_eq!(count, 6 + 6 + 18);
    result(
        "kernels",
        count,
        "rms_norm, layer_norm, rope: 30 of 30 forward kernels of Apple's are bit-equal to the shim's",
    );
}
