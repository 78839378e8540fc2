//! Plants faults in a kernel, one at a time. At least one order of threads must find each fault.
//! The kernel without planted faults must be clean in all orders.
#![cfg(target_os = "linux")]

mod common;

use metal_sim::FaultKind::{
    ArrayBounds, DataRace, DivergentBarrier, OutOfBounds, UninitializedRead, UnwrittenOutput,
};
use metal_sim::{Buffer, Constants, Dispatch, FaultKind, Library, Schedule};

/// Reverses rows and subtracts their sums, with four SIMD groups per row.
const KERNEL: &str = "\
kernel void NAME(const device float* x [[buffer(0)]], device float* y [[buffer(1)]],
    constant uint& n [[buffer(2)]], threadgroup float* row [[threadgroup(0)]],
    uint g [[threadgroup_position_in_grid]], uint t [[thread_index_in_threadgroup]],
    uint size [[threads_per_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simds [[simdgroups_per_threadgroup]]) {
  threadgroup float sums[4];
  float sum = 0;
  for (uint i = t; i < n; i += size) {
    row[i] = x[g * n + i];
    sum += row[i];
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    sums[simd] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sum = 0;
  for (uint k = 0; k < simds; k++) {
    sum += sums[k];
  }
  for (uint j = t; j < n; j += size) {
    y[g * n + j] = row[n - 1 - j] - sum;
  }
}
";
const N: usize = 100;
const BARRIER: &str = "threadgroup_barrier(mem_flags::mem_threadgroup);";

/// A part of the kernel's text, its replacement, and types of faults, one of which must be found.
const PLANTED: [(&str, &str, &[FaultKind]); 18] = [
    (BARRIER, ";", &[DataRace]),
    (BARRIER, "threadgroup_barrier(mem_flags::mem_none);", &[DataRace]),
    (BARRIER, "threadgroup_barrier(mem_flags::mem_device);", &[DataRace]),
    (BARRIER, "simdgroup_barrier(mem_flags::mem_threadgroup);", &[DataRace]),
    (
        BARRIER,
        "if (lane < 16) threadgroup_barrier(mem_flags::mem_threadgroup);",
        &[DivergentBarrier],
    ),
    (
        BARRIER,
        "if (t >= n) return; threadgroup_barrier(mem_flags::mem_threadgroup);",
        &[DivergentBarrier],
    ),
    ("sums[4]", "sums[3]", &[ArrayBounds]),
    ("i < n", "i <= n", &[OutOfBounds]),
    ("j < n", "j <= n", &[OutOfBounds]),
    ("i < n", "true", &[OutOfBounds]),
    ("k < simds", "k <= simds", &[ArrayBounds, OutOfBounds]),
    ("sums[simd]", "sums[simd + 1]", &[ArrayBounds]),
    ("row[i] = x[g * n + i]", "row[i] = x[g * n + i + 1]", &[OutOfBounds]),
    ("row[n - 1 - j]", "row[n - j]", &[OutOfBounds]),
    ("i = t", "i = t + 1", &[UninitializedRead]),
    ("j = t", "j = t + 1", &[UnwrittenOutput]),
    ("y[g * n + j]", "y[j]", &[DataRace]),
    ("sums[simd] = sum", "sums[0] = sum", &[DataRace]),
];

fn faults(library: &Library, name: &str, memory: usize, schedule: Schedule) -> Vec<FaultKind> {
    let kernel = library.kernel(name, &Constants::new()).unwrap();
    let x: Vec<f32> = (0..2 * N).map(|i| i as f32).collect();
    let mut y = vec![0.0f32; 2 * N];
    let dispatch = Dispatch::new(&kernel).buffer(0, Buffer::input(&x));
    let dispatch = dispatch.buffer(1, Buffer::output(&mut y)).value(2, N as u32);
    let dispatch = dispatch.threadgroup(0, memory).grid_groups([2, 1, 1], [128, 1, 1]);
    let report = dispatch.schedule(schedule).run().unwrap();
    report.faults.iter().map(|fault| fault.kind).collect()
}

#[test]
fn planted_faults_are_found() {
    let named = |name: &str, text: &str| text.replace("NAME", name);
    let mut text = named("clean", KERNEL);
    for (number, (from, to, _)) in PLANTED.iter().enumerate() {
        assert!(KERNEL.contains(from), "{from}");
        text += &named(&format!("planted{number}"), &KERNEL.replacen(from, to, 1));
    }
    let library = common::library(&text);
    let bytes = 4 * N;
    for schedule in Schedule::ALL {
        assert_eq!(faults(&library, "clean", bytes, schedule), [], "{schedule:?}");
        let short = faults(&library, "clean", bytes - 16, schedule);
        assert!(short.contains(&OutOfBounds), "{schedule:?}: {short:?}");
    }
    for (number, (from, to, kinds)) in PLANTED.iter().enumerate() {
        let found = |schedule| faults(&library, &format!("planted{number}"), bytes, schedule);
        let found: Vec<_> = Schedule::ALL.into_iter().flat_map(found).collect();
        let expected = found.iter().any(|kind| kinds.contains(kind));
        assert!(expected, "`{from}` became `{to}`: {found:?}");
    }
}
