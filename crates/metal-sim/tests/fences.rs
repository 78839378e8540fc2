//! Tests fences around atomic operations, which order the accesses of different threadgroups. In
//! most of these kernels, the last threadgroup adds the values that all threadgroups stored.
#![cfg(target_os = "linux")]

mod common;

use common::kernel;
use metal_sim::{Buffer, Dispatch, FaultKind, Schedule};

const RELEASE: &str = "atomic_thread_fence(mem_flags::mem_device, memory_order_release);";
const ACQUIRE: &str = "atomic_thread_fence(mem_flags::mem_device, memory_order_acquire);";
const BARRIER: &str = "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);";

/// A kernel in which each of four threadgroups of 64 threads stores a part, and the last
/// threadgroup adds the parts. `before` and `after` are the code around the increment of the
/// counter by a group's first thread. All threads of the last threadgroup then run `together`.
fn reduction([before, after, together]: [&str; 3]) -> String {
    format!(
        "kernel void total(const device float* x [[buffer(0)]], device float* parts [[buffer(1)]],\n\
         device atomic_uint* count [[buffer(2)]], device float* y [[buffer(3)]],\n\
         uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]],\n\
         uint g [[threadgroup_position_in_grid]], uint groups [[threadgroups_per_grid]]) {{\n\
         threadgroup bool last;\nthreadgroup float sums[2];\nfloat sum = simd_sum(x[i]);\n\
         if (t % 32 == 0) sums[t / 32] = sum;\nthreadgroup_barrier(mem_flags::mem_threadgroup);\n\
         if (t == 0) {{\nparts[g] = sums[0] + sums[1];\n{before}\n\
         last = atomic_fetch_add_explicit(count, 1, memory_order_relaxed) == groups - 1;\n{after}\n}}\n\
         threadgroup_barrier(mem_flags::mem_threadgroup);\nif (!last) return;\n{together}\n\
         float all = simd_sum(t < groups ? parts[t] : 0);\nif (t == 0) y[0] = all;\n}}"
    )
}

/// Runs a kernel in the three orders of threads, and returns its faults. The result must be right.
fn faults(source: &str) -> Vec<FaultKind> {
    let kernel = kernel(source);
    let x: Vec<f32> = (0..256).map(|i| i as f32).collect();
    let mut found = Vec::new();
    for schedule in Schedule::ALL {
        let (mut parts, mut count, mut y) = ([0.0f32; 4], [0u32], [0.0f32]);
        let dispatch = Dispatch::new(&kernel).schedule(schedule).buffer(0, Buffer::input(&x));
        let dispatch = dispatch.buffer(1, Buffer::in_out(&mut parts));
        let dispatch = dispatch.buffer(2, Buffer::in_out(&mut count));
        let dispatch = dispatch.buffer(3, Buffer::output(&mut y));
        let report = dispatch.threads([256, 1, 1], [64, 1, 1]).run().unwrap();
        found.extend(report.faults.iter().map(|fault| fault.kind));
        assert_eq!(y, [255.0 * 128.0]);
    }
    found
}

#[test]
fn fences_around_an_atomic_order_threadgroups() {
    let full =
        "atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);";
    let both = format!("{ACQUIRE}\n{BARRIER}");
    // Either the first thread has an acquire fence and a barrier follows, or every thread has a
    // fence.
    for parts in [
        [RELEASE, ACQUIRE, BARRIER],
        [RELEASE, "", ACQUIRE],
        [full, "", full],
        [full, full, BARRIER],
        [RELEASE, "", &both],
    ] {
        assert_eq!(faults(&reduction(parts)), [], "{parts:?}");
    }
}

#[test]
fn an_order_that_is_not_whole_is_a_race() {
    let threadgroup = "atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, \
                       thread_scope_threadgroup);";
    let shared = "atomic_thread_fence(mem_flags::mem_threadgroup, memory_order_seq_cst);";
    let relaxed = "atomic_thread_fence(mem_flags::mem_device, memory_order_relaxed);";
    let again = format!("{ACQUIRE}\nparts[g] = sums[0] + sums[1];");
    let late = format!("{RELEASE}\nparts[g] = sums[0] + sums[1] + 0.0f * float(t);");
    for parts in [
        ["", "", ""],
        ["", ACQUIRE, BARRIER],
        [RELEASE, "", BARRIER],
        [RELEASE, ACQUIRE, ""],
        ["", RELEASE, ACQUIRE],
        [ACQUIRE, "", RELEASE],
        [threadgroup, "", threadgroup],
        [shared, "", shared],
        [relaxed, "", relaxed],
        // The store comes after the release fence, or after the increment.
        [&late, "", ACQUIRE],
        [RELEASE, &again, ACQUIRE],
    ] {
        let found = faults(&reduction(parts));
        assert!(!found.is_empty(), "{parts:?}");
        assert!(found.iter().all(|kind| *kind == FaultKind::DataRace), "{parts:?}: {found:?}");
    }
}

/// The second threadgroup passes on the values that the first one stored, through another flag.
#[test]
fn releases_are_passed_on() {
    let chain = |acquire: &str| {
        let fence = "atomic_thread_fence(mem_flags::mem_device, memory_order_release);";
        format!(
            "kernel void chain(device uint* x [[buffer(0)]], device atomic_uint* flags [[buffer(1)]],\n\
             device uint* y [[buffer(2)]], uint g [[thread_position_in_grid]]) {{\n\
             if (g == 0) {{\nx[0] = 7;\n{fence}\n\
             atomic_store_explicit(flags, 1, memory_order_relaxed);\n}}\n\
             if (g > 0 && atomic_load_explicit(flags + g - 1, memory_order_relaxed)) {{\n{acquire}\n\
             {fence}\natomic_store_explicit(flags + g, 1, memory_order_relaxed);\n\
             if (g == 2) {{\n{ACQUIRE}\ny[0] = x[0];\n}}\n}}\n}}"
        )
    };
    for (acquire, races) in [(ACQUIRE, false), ("", true)] {
        let kernel = kernel(&chain(acquire));
        let (mut x, mut flags, mut y) = ([0u32], [0u32; 3], [0u32]);
        let dispatch = Dispatch::new(&kernel).buffer(0, Buffer::in_out(&mut x));
        let dispatch = dispatch.buffer(1, Buffer::in_out(&mut flags));
        let dispatch = dispatch.buffer(2, Buffer::in_out(&mut y));
        let report = dispatch.threads([3, 1, 1], [1, 1, 1]).run().unwrap();
        assert_eq!(
            report.faults.iter().any(|it| it.kind == FaultKind::DataRace),
            races,
            "{acquire}"
        );
        assert_eq!(y, [7]);
    }
}

/// Each threadgroup reads the flags of the two threadgroups before it, so the number of paths to
/// the first threadgroup grows like the Fibonacci numbers. The first threadgroup stores to `x`
/// after its release fence, and nothing orders that store.
#[test]
fn many_ways_to_a_release_are_read_once() {
    let source = format!(
        "kernel void chain(device uint* x [[buffer(0)]], device atomic_uint* flags [[buffer(1)]],\n\
         device uint* y [[buffer(2)]], uint g [[thread_position_in_grid]]) {{\n\
         uint sum = 0;\n\
         for (uint k = 1; k <= min(g, 2u); k++)\n\
         sum += atomic_load_explicit(flags + g - k, memory_order_relaxed);\n\
         {ACQUIRE}\n{RELEASE}\n\
         if (g == 0) x[0] = 7;\n\
         atomic_store_explicit(flags + g, 1 + sum - sum, memory_order_relaxed);\n\
         if (g == 99) y[0] = x[0];\n}}"
    );
    let kernel = kernel(&source);
    let (mut x, mut flags, mut y) = ([0u32], [0u32; 100], [0u32]);
    let dispatch = Dispatch::new(&kernel).buffer(0, Buffer::in_out(&mut x));
    let dispatch = dispatch.buffer(1, Buffer::in_out(&mut flags));
    let dispatch = dispatch.buffer(2, Buffer::in_out(&mut y));
    let report = dispatch.threads([100, 1, 1], [1, 1, 1]).run().unwrap();
    let kinds: Vec<_> = report.faults.iter().map(|it| it.kind).collect();
    assert_eq!(kinds, [FaultKind::DataRace]);
}
