//! The crate's own kernels over a few shapes: no faults, right results, ideal traffic.

mod common;

use half::{bf16, f16};
use metal_sim::{Access, Buffer, Constants, Dispatch, Kernel, Library, Report, Schedule, Source};

const SCHEDULES: [Schedule; 3] = [Schedule::Forward, Schedule::Reversed, Schedule::Shuffled(7)];

#[derive(Clone, Copy, PartialEq)]
enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Dtype {
    const ALL: [(Dtype, &str); 3] =
        [(Dtype::F32, "float32"), (Dtype::F16, "float16"), (Dtype::Bf16, "bfloat16")];

    fn encode(self, values: &[f32]) -> Vec<u8> {
        let bytes = |v: &f32| match self {
            Dtype::F32 => v.to_le_bytes().to_vec(),
            Dtype::F16 => f16::from_f32(*v).to_le_bytes().to_vec(),
            Dtype::Bf16 => bf16::from_f32(*v).to_le_bytes().to_vec(),
        };
        values.iter().flat_map(bytes).collect()
    }

    fn decode(self, bytes: &[u8]) -> Vec<f64> {
        match self {
            Dtype::F32 => bytes
                .chunks(4)
                .map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
                .collect(),
            Dtype::F16 => {
                bytes.chunks(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f64()).collect()
            }
            Dtype::Bf16 => {
                bytes.chunks(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f64()).collect()
            }
        }
    }

    fn tolerance(self) -> f64 {
        match self {
            Dtype::F32 => 2e-5,
            Dtype::F16 => 4e-3,
            Dtype::Bf16 => 3e-2,
        }
    }
}

fn library(name: &str) -> Library {
    let source = Source::new(common::metal(name));
    Library::compile(&source, common::compiler(), common::cache()).unwrap()
}

fn get(library: &Library, name: &str) -> Kernel {
    library.kernel(name, &Constants::new()).unwrap()
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + 13) % 1009) as f32 / 252.0 - 2.0).collect()
}

fn words(list: &[u32]) -> Vec<u8> {
    list.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Form, threads of a group, groups and scratch bytes for rows of `axis`: the launch plan.
fn plan(rows: usize, axis: usize, slots: usize) -> (&'static str, u32, u32, usize) {
    let threads = axis.div_ceil(4).next_multiple_of(32);
    let scratch = |threads: usize| (slots * threads / 32 * 4).next_multiple_of(16);
    if axis <= 128 {
        let together = rows.clamp(1, 8);
        return ("simd", 32 * together as u32, rows.div_ceil(together) as u32, 0);
    }
    let form = match threads {
        0..=1024 => "row",
        1025..=2048 => "row2",
        2049..=4096 => "row4",
        _ => "looped",
    };
    let threads = threads.min(1024);
    (form, threads as u32, rows as u32, scratch(threads))
}

const SHAPES: [(usize, usize); 10] = [
    (1, 1),
    (9, 31),
    (3, 128),
    (7, 129),
    (3, 1000),
    (2, 4096),
    (2, 4097),
    (1, 8193),
    (1, 16384),
    (2, 17001),
];

fn check(report: &Report, name: &str) {
    assert!(report.faults.is_empty(), "{name}: {:#?}", report.faults);
}

fn close(got: &[f64], expected: &[f64], tolerance: f64, name: &str) {
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let bound = tolerance * expected.abs().max(1.0);
        assert!((got - expected).abs() <= bound, "{name}[{i}]: {got}, not {expected}");
    }
}

#[test]
fn rms_norm() {
    let library = library("rms_norm");
    for (dtype, suffix) in Dtype::ALL {
        for (rows, axis) in SHAPES {
            let (x, w) = (dtype.encode(&values(rows * axis)), dtype.encode(&values(axis)));
            let (form, threads, groups, scratch) = plan(rows, axis, 1);
            for weighted in [false, true] {
                let infix = if weighted { "_weighted" } else { "" };
                let name = format!("mlxp_rms_norm_{form}{infix}_{suffix}");
                let kernel = get(&library, &name);
                let mut params = words(&[rows as u32, axis as u32]);
                params.extend(1e-5f32.to_le_bytes());
                for schedule in SCHEDULES {
                    let mut out = vec![0u8; x.len()];
                    let mut dispatch = Dispatch::new(&kernel)
                        .buffer(0, Buffer::input(&x))
                        .buffer(1, Buffer::input(if weighted { &w } else { &x }))
                        .buffer(2, Buffer::output(&mut out))
                        .bytes(3, &params)
                        .grid_groups([groups, 1, 1], [threads, 1, 1])
                        .schedule(schedule);
                    if scratch > 0 {
                        dispatch = dispatch.threadgroup(0, scratch);
                    }
                    let report = dispatch.run().unwrap();
                    check(&report, &name);
                    let passes = if form == "looped" { 2 } else { 1 };
                    let read = |i: u32| report.buffers[&i].read_bytes;
                    assert_eq!(read(0), (x.len() * passes) as u64, "{name} {rows}x{axis}");
                    assert_eq!(read(1), if weighted { x.len() as u64 } else { 0 });
                    assert_eq!(report.buffers[&2].written_bytes, x.len() as u64);
                    assert_eq!(
                        report.threadgroup_barriers,
                        if form == "simd" { 0 } else { rows as u64 }
                    );
                    let weights = dtype.decode(&w);
                    let mut expected = Vec::new();
                    for row in dtype.decode(&x).chunks(axis) {
                        let square: f64 = row.iter().map(|v| v * v).sum();
                        let scale = 1.0 / (square / axis as f64 + 1e-5).sqrt();
                        let weight = |i: usize| if weighted { weights[i] } else { 1.0 };
                        expected.extend(row.iter().enumerate().map(|(i, v)| v * scale * weight(i)));
                    }
                    close(&dtype.decode(&out), &expected, dtype.tolerance(), &name);
                }
            }
        }
    }
}

#[test]
fn softmax() {
    let library = library("softmax");
    for (dtype, suffix) in Dtype::ALL {
        for (rows, axis) in SHAPES {
            let x = dtype.encode(&values(rows * axis));
            let (form, threads, groups, scratch) = plan(rows, axis, 2);
            let name = format!("mlxp_softmax_{form}_{suffix}");
            let kernel = get(&library, &name);
            for schedule in SCHEDULES {
                let mut out = x.clone();
                let pointer = out.as_mut_ptr();
                // SAFETY: `out` is not used until the dispatch has run.
                let in_place = |access| unsafe { Buffer::raw(pointer, x.len(), access) };
                let mut dispatch = Dispatch::new(&kernel)
                    .buffer(0, in_place(Access::Read))
                    .buffer(1, in_place(Access::Write))
                    .bytes(2, &words(&[rows as u32, axis as u32]))
                    .grid_groups([groups, 1, 1], [threads, 1, 1])
                    .schedule(schedule);
                if scratch > 0 {
                    dispatch = dispatch.threadgroup(0, scratch);
                }
                let report = dispatch.run().unwrap();
                check(&report, &name);
                let passes = if form == "looped" { 2 } else { 1 };
                assert_eq!(report.buffers[&0].read_bytes, (x.len() * passes) as u64);
                assert_eq!(report.buffers[&1].written_bytes, x.len() as u64);
                let mut expected = Vec::new();
                for row in dtype.decode(&x).chunks(axis) {
                    let most = row.iter().copied().fold(f64::MIN, f64::max);
                    let sum: f64 = row.iter().map(|v| (v - most).exp()).sum();
                    expected.extend(row.iter().map(|v| (v - most).exp() / sum));
                }
                close(&dtype.decode(&out), &expected, dtype.tolerance(), &name);
            }
        }
    }
}

#[test]
fn rope() {
    let library = library("rope");
    let (batch, length) = (2usize, 3usize);
    for (dtype, suffix) in Dtype::ALL {
        for (heads, features, pairs) in [(4usize, 64usize, 32usize), (5, 33, 10), (1, 6, 3)] {
            for form in ["half_base", "half_freqs", "interleaved_base", "interleaved_freqs"] {
                for one_head in [false, true] {
                    let infix = if one_head { "one_head_" } else { "" };
                    let name = format!("mlxp_rope_{form}_{infix}{suffix}");
                    let kernel = get(&library, &name);
                    let count = batch * heads * length * features;
                    let x = dtype.encode(&values(count));
                    let freqs: Vec<f32> = (0..pairs).map(|i| 1.5f32.powi(i as i32)).collect();
                    let columns = pairs + (features - 2 * pairs).div_ceil(2);
                    let shape = [batch, heads, length, features, pairs, columns, 1];
                    let mut params = words(&shape.map(|n| n as u32));
                    for value in [1.0f32, 13.0, 1.0] {
                        params.extend(value.to_le_bytes());
                    }
                    let group_heads = if one_head { 1 } else { 4 };
                    let depth = (batch * heads.div_ceil(group_heads)) as u32;
                    for schedule in SCHEDULES {
                        let mut out = vec![0u8; x.len()];
                        let report = Dispatch::new(&kernel)
                            .buffer(0, Buffer::input(&x))
                            .buffer(1, Buffer::owned(&[5i32, 9]))
                            .buffer(2, Buffer::input(&freqs))
                            .buffer(3, Buffer::output(&mut out))
                            .bytes(4, &params)
                            .grid_groups([columns as u32, 1, depth], [1, length as u32, 1])
                            .schedule(schedule)
                            .run()
                            .unwrap();
                        check(&report, &name);
                        assert_eq!(report.buffers[&0].read_bytes, x.len() as u64, "{name}");
                        assert_eq!(report.buffers[&3].written_bytes, x.len() as u64, "{name}");
                        rotated(&dtype.decode(&x), &dtype.decode(&out), dtype, &name, &shape);
                    }
                }
            }
        }
    }
}

fn rotated(x: &[f64], out: &[f64], dtype: Dtype, name: &str, shape: &[usize; 7]) {
    let [_, heads, length, features, pairs, ..] = *shape;
    for (r, (x, out)) in x.chunks(features).zip(out.chunks(features)).enumerate() {
        let position = (r % length + [5, 9][r / length / heads]) as f64;
        let mut expected = x.to_vec();
        for i in 0..pairs {
            let frequency = if name.contains("freqs") {
                1.0 / 1.5f64.powi(i as i32)
            } else {
                (-(i as f64) / pairs as f64 * 13.0).exp2()
            };
            let (sin, cos) = (position * frequency).sin_cos();
            let (a, b) = if name.contains("half") { (i, pairs + i) } else { (2 * i, 2 * i + 1) };
            expected[a] = x[a] * cos - x[b] * sin;
            expected[b] = x[a] * sin + x[b] * cos;
        }
        close(out, &expected, dtype.tolerance(), name);
    }
}
