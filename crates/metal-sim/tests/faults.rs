//! Small kernels provoke each type of fault. If a fault belongs to a line of the kernel, the
//! report must name this line.
#![cfg(target_os = "linux")]

mod common;

use std::collections::BTreeSet;

use common::{HEAD_LINES, kernel};
use metal_sim::{Access, Buffer, Dispatch, FaultKind, Kernel, Report, Schedule};

/// Runs a kernel on one threadgroup of 64 threads. x is an input with the numbers 1 to 64, and y is
/// an output of 64 floats.
fn run(kernel: &Kernel, schedule: Schedule) -> Report {
    let x: [f32; 64] = std::array::from_fn(|i| 1.0 + i as f32);
    let mut y = [0.0f32; 64];
    Dispatch::new(kernel)
        .buffer(0, Buffer::input(&x))
        .buffer(1, Buffer::output(&mut y))
        .grid_groups([1, 1, 1], [64, 1, 1])
        .schedule(schedule)
        .run()
        .unwrap()
}

const ARGUMENTS: &str = "kernel void f(const device float* x [[buffer(0)]], \
     device float* y [[buffer(1)]], uint i [[thread_position_in_grid]], \
     uint lane [[thread_index_in_simdgroup]]) {\n";

/// Checks that the kernel has exactly this fault in every schedule, on a line marked `// !`.
fn faulty(kind: FaultKind, body: &str) {
    let kernel = kernel(&format!("{ARGUMENTS}{body}\n}}"));
    let numbered = body.lines().zip(HEAD_LINES + 2..);
    let marked: Vec<u32> =
        numbered.filter(|(line, _)| line.contains("// !")).map(|(_, number)| number).collect();
    for schedule in [Schedule::Forward, Schedule::Reversed, Schedule::Shuffled(3)] {
        let report = run(&kernel, schedule);
        let fault = report.faults.iter().find(|fault| fault.kind == kind);
        let fault = fault.unwrap_or_else(|| panic!("{kind:?} {schedule:?}: {:?}", report.faults));
        // If a barrier is missing, some schedules also read a value before another thread writes
        // it.
        let expected = |other: FaultKind| {
            other == kind || (kind, other) == (FaultKind::DataRace, FaultKind::UninitializedRead)
        };
        let others: Vec<_> = report.faults.iter().filter(|other| !expected(other.kind)).collect();
        assert!(others.is_empty(), "{kind:?} {schedule:?}: {others:#?}");
        if !marked.is_empty() {
            let place = &fault.places[0];
            assert!(marked.contains(&place.line), "{kind:?}: {place:?}, not {marked:?}");
            assert!(place.file.ends_with("test.metal"));
        }
        if kind == FaultKind::DataRace {
            let line = fault.earlier[0].line;
            assert!(marked.contains(&line) && fault.to_string().contains(&format!(":{line} (")));
        }
    }
}

fn clean(body: &str) -> Report {
    let kernel = kernel(&format!("{ARGUMENTS}{body}\n}}"));
    for schedule in [Schedule::Reversed, Schedule::Shuffled(3), Schedule::Forward] {
        let report = run(&kernel, schedule);
        assert!(report.faults.is_empty(), "{:#?}", report.faults);
        assert!(report.notes.is_empty(), "{:#?}", report.notes);
        if schedule == Schedule::Forward {
            return report;
        }
    }
    unreachable!()
}

#[test]
fn out_of_bounds() {
    faulty(FaultKind::OutOfBounds, "y[i] = x[i];\nif (i == 63) y[i + 1] = 0; // !");
    faulty(FaultKind::OutOfBounds, "y[i] = x[i - 1]; // !");
    faulty(FaultKind::OutOfBounds, "y[i] = *(const device float*)(x + (1ul << 50)); // !");
    faulty(FaultKind::OutOfBounds, "device float* n = nullptr;\ny[i] = n[i]; // !");
    faulty(
        FaultKind::OutOfBounds,
        "threadgroup float t[64];\nthreadgroup float* p = t;\np[i] = x[i];\n\
         threadgroup_barrier(mem_flags::mem_threadgroup);\ny[i] = p[i + 1]; // !",
    );
}

#[test]
fn out_of_bounds_of_a_copied_struct() {
    faulty(
        FaultKind::OutOfBounds,
        "struct S { float a[5]; };\nif (i < 13) {\n((device S*)y)[i] = ((const device S*)x)[i]; // !\n}",
    );
}

#[test]
fn array_bounds() {
    faulty(
        FaultKind::ArrayBounds,
        "threadgroup float t[4];\ny[i] = x[i];\nif (i > 62) t[i] = 0; // !",
    );
    faulty(FaultKind::ArrayBounds, "float a[4] = {};\ny[i] = a[i / 8]; // !");
}

#[test]
fn division_by_zero() {
    faulty(FaultKind::DivisionByZero, "y[i] = x[i];\nif (i == 63) y[i] = 7 % (63 - i); // !");
    faulty(FaultKind::DivisionByZero, "int by = int(x[i]) - 1;\ny[i] = int(i) / by; // !");
}

#[test]
fn races() {
    faulty(FaultKind::DataRace, "y[i] = x[i]; // !\ny[i ^ 1] = x[i]; // !");
    faulty(
        FaultKind::DataRace,
        "threadgroup float t[64];\nt[i] = x[i]; // !\nt[i ^ 33] = 0; // !\ny[i] = x[i];",
    );
    faulty(
        FaultKind::DataRace,
        "threadgroup float t[64];\nt[i] = x[i]; // !\nthreadgroup_barrier(mem_flags::mem_device);\n\
         y[i] = t[63 - i]; // !",
    );
    faulty(
        FaultKind::DataRace,
        "threadgroup float t[64];\nt[i] = x[i]; // !\nsimdgroup_barrier(mem_flags::mem_threadgroup);\n\
         y[i] = t[63 - i]; // !",
    );
}

/// The compiler merges the two stores into one. That store must still have a source line.
#[test]
fn stores_in_both_arms_of_a_branch() {
    faulty(
        FaultKind::DataRace,
        "threadgroup float t[1];\nif (i < 40)\nt[0] = x[i]; // !\nelse\nt[0] = 7; // !\n\
         threadgroup_barrier(mem_flags::mem_threadgroup);\ny[i] = t[0];",
    );
}

/// A race names the lines of both accesses, even if a loop repeats them.
#[test]
fn both_lines_of_a_race() {
    let kernel = kernel(&format!(
        "{ARGUMENTS}threadgroup float t[1];\nfloat sum = 0;\nfor (uint k = 0; k < 4; k++) {{\n\
         if (i == 0) t[0] = x[k];\nthreadgroup_barrier(mem_flags::mem_threadgroup);\n\
         sum += t[0];\n}}\ny[i] = sum;\n}}"
    ));
    let [stores, loads] = [4, 6].map(|line| HEAD_LINES + 1 + line);
    let report = run(&kernel, Schedule::Forward);
    let lines = report.faults.iter().map(|fault| (fault.places[0].line, fault.earlier[0].line));
    let lines: BTreeSet<_> = lines.collect(); // a loop may be unrolled
    assert_eq!(lines, BTreeSet::from([(loads, stores)]), "{:#?}", report.faults);
    assert!(report.faults[0].message.contains("races with the store of thread 0 "));
}

/// The rows of a view with negative strides lie before its first element.
#[test]
fn views_reach_back() {
    let kernel = kernel(
        "kernel void f(const device float* x [[buffer(0)]], device float* y [[buffer(1)]],\n\
         uint i [[thread_position_in_grid]]) {\ny[i] = x[-int(i)];\n}",
    );
    let x: Vec<f32> = (0..8).map(|i| i as f32).collect();
    let turned = |threads: u32| {
        let mut y = vec![0.0f32; threads as usize];
        let dispatch = Dispatch::new(&kernel).buffer(0, Buffer::input(&x).from_offset(7 * 4));
        let dispatch = dispatch.buffer(1, Buffer::output(&mut y));
        let report = dispatch.threads([threads, 1, 1], [threads, 1, 1]).run().unwrap();
        (y, report)
    };
    let (y, report) = turned(8);
    assert!(report.faults.is_empty() && y.iter().eq(x.iter().rev()), "{y:?}: {:#?}", report.faults);
    let (_, report) = turned(9);
    assert_eq!(report.faults[0].kind, FaultKind::OutOfBounds);
}

#[test]
fn races_between_threadgroups() {
    let kernel = kernel(&format!("{ARGUMENTS}y[i % 32] = x[i]; // !\n}}"));
    let x: [f32; 64] = std::array::from_fn(|i| i as f32);
    let mut y = [0.0f32; 32];
    let report = Dispatch::new(&kernel)
        .buffer(0, Buffer::input(&x))
        .buffer(1, Buffer::output(&mut y))
        .threads([64, 1, 1], [32, 1, 1])
        .run()
        .unwrap();
    assert_eq!(report.faults[0].kind, FaultKind::DataRace);
    assert_eq!(report.faults[0].places[0].line, HEAD_LINES + 2);
    assert_eq!(report.faults[0].times, 32);
    assert_eq!(report.faults[0].thread.unwrap().threadgroup, [1, 0, 0]);
}

#[test]
fn barriers_order_accesses() {
    let report = clean(
        "threadgroup float t[64];\nt[i] = x[i];\nthreadgroup_barrier(mem_flags::mem_threadgroup);\n\
         y[i] = t[63 - i];",
    );
    assert_eq!(report.threadgroup_barriers, 1);
    assert_eq!(report.threadgroup_bytes, 256);
    let report = clean(
        "threadgroup float t[64];\nt[i] = x[i];\nsimdgroup_barrier(mem_flags::mem_threadgroup);\n\
         y[i] = t[i ^ 31];",
    );
    assert_eq!(report.simdgroup_barriers, 2);
    clean("y[i] = x[i];\nthreadgroup_barrier(mem_flags::mem_device);\ny[i ^ 1] = x[i];");
}

#[test]
fn atomics_do_not_race() {
    clean(
        "threadgroup atomic_uint t[1];\n\
         if (i == 0) atomic_store_explicit(&t[0], 0, memory_order_relaxed);\n\
         threadgroup_barrier(mem_flags::mem_threadgroup);\n\
         atomic_fetch_add_explicit(&t[0], 1, memory_order_relaxed);\n\
         threadgroup_barrier(mem_flags::mem_threadgroup);\n\
         y[i] = atomic_load_explicit(&t[0], memory_order_relaxed) == 64 ? x[i] : NAN;",
    );
    faulty(
        FaultKind::DataRace,
        "threadgroup atomic_uint t[1];\nif (i == 0) *(threadgroup uint*)t = 0; // !\n\
         atomic_fetch_add_explicit(&t[0], 1, memory_order_relaxed); // !\ny[i] = x[i];",
    );
}

#[test]
fn uninitialized() {
    faulty(FaultKind::UninitializedRead, "threadgroup float t[64];\ny[i] = t[i]; // !");
    faulty(FaultKind::UninitializedRead, "y[i] += x[i]; // !");
}

#[test]
fn uninitialized_in_the_second_threadgroup() {
    let kernel = kernel(
        "kernel void f(device float* y [[buffer(0)]], uint g [[threadgroup_position_in_grid]]) {\n\
         threadgroup float t[1];\nif (g == 0) t[0] = 1;\ny[g] = t[0];\n}",
    );
    let mut y = [0.0f32; 2];
    let report = Dispatch::new(&kernel)
        .buffer(0, Buffer::output(&mut y))
        .grid_groups([2, 1, 1], [1, 1, 1])
        .run()
        .unwrap();
    assert_eq!(report.faults.len(), 1);
    assert_eq!(report.faults[0].kind, FaultKind::UninitializedRead);
    assert_eq!(report.faults[0].thread.unwrap().threadgroup, [1, 0, 0]);
}

#[test]
fn unwritten() {
    faulty(FaultKind::UnwrittenOutput, "if (i != 7) y[i] = x[i];");
}

#[test]
fn read_only() {
    faulty(FaultKind::ReadOnlyWrite, "y[i] = 0;\n*(device float*)(x + i) = 0; // !");
}

#[test]
fn misaligned() {
    faulty(
        FaultKind::Misaligned,
        "y[i] = x[i];\nif (i < 10) y[i] = ((const device float4*)(x + 1))[i].x; // !",
    );
    clean("y[i] = x[i];\nif (i < 10) y[i] = ((const device packed_float4*)(x + 1))[i].x;");
    faulty(
        FaultKind::Misaligned,
        "const device char* c = (const device char*)x;\ny[i] = x[i];\n\
         if (i < 10) y[i] = ((const device packed_float4*)(c + 2))[i].x; // !",
    );
}

#[test]
fn divergent_barrier() {
    faulty(
        FaultKind::DivergentBarrier,
        "if (i < 32) {\nthreadgroup_barrier(mem_flags::mem_none); // !\n}\ny[i] = x[i];",
    );
    faulty(
        FaultKind::DivergentBarrier,
        "if (i < 32) {\nthreadgroup_barrier(mem_flags::mem_none); // !\n} else {\n\
         threadgroup_barrier(mem_flags::mem_none); // !\n}\ny[i] = x[i];",
    );
}

#[test]
fn divergent_simd() {
    faulty(
        FaultKind::DivergentSimd,
        "y[i] = x[i];\nif (lane < 5) {\ny[i] = simd_sum(x[i]); // !\n}",
    );
    faulty(
        FaultKind::DivergentSimd,
        "y[i] = lane < 5\n? simd_sum(x[i]) // !\n: simd_max(x[i]); // !",
    );
}

#[test]
fn inactive_lane() {
    let kernel = kernel(&format!("{ARGUMENTS}y[i] = simd_shuffle_xor(x[i], 1); // !\n}}"));
    let x = [1.0f32; 35];
    let mut y = [0.0f32; 35];
    let report = Dispatch::new(&kernel)
        .buffer(0, Buffer::input(&x))
        .buffer(1, Buffer::output(&mut y))
        .threads([35, 1, 1], [64, 1, 1])
        .run()
        .unwrap();
    assert_eq!(report.faults.len(), 1);
    assert_eq!(report.faults[0].kind, FaultKind::InactiveLane);
    assert_eq!(report.faults[0].places[0].line, HEAD_LINES + 2);
    let thread = report.faults[0].thread.unwrap();
    assert_eq!((thread.thread, thread.simdgroup, thread.lane), (34, 1, 2));
}

fn kinds(dispatch: Dispatch<'_>) -> Vec<FaultKind> {
    dispatch.run().unwrap().faults.iter().map(|fault| fault.kind).collect()
}

#[test]
fn arguments() {
    let kernel = kernel(
        "struct Params { uint a; uint b; };\n\
         kernel void f(device float* y [[buffer(0)]], constant Params& p [[buffer(1)]],\n\
         threadgroup float* t [[threadgroup(0)]], uint i [[thread_position_in_grid]]) {\n\
         t[0] = 1;\ny[i] = p.a;\n}",
    );
    let mut y = [0.0f32; 1];
    let good = || {
        let y = Buffer::with(vec![0; 4], Access::Write);
        Dispatch::new(&kernel).buffer(0, y).value(1, [1u32, 2]).threadgroup(0, 16)
    };
    assert_eq!(kinds(good()), []);
    let unbound = Dispatch::new(&kernel).buffer(0, Buffer::output(&mut y)).threadgroup(0, 16);
    assert_eq!(kinds(unbound), [FaultKind::Argument]);
    assert_eq!(kinds(good().value(1, 1u32)), [FaultKind::Argument]);
    assert_eq!(kinds(good().value(2, 1u32)), [FaultKind::Argument]);
    assert_eq!(kinds(good().threadgroup(0, 20)), [FaultKind::ThreadgroupMemory]);
    assert_eq!(kinds(good().threadgroup(0, 40 << 10)), [FaultKind::ThreadgroupMemory]);
    assert_eq!(kinds(good().threadgroup(1, 16)), [FaultKind::ThreadgroupMemory]);
    let without = Dispatch::new(&kernel).buffer(0, Buffer::zeroed(4)).value(1, [1u32, 2]);
    assert_eq!(kinds(without), [FaultKind::ThreadgroupMemory]);
    assert_eq!(kinds(good().grid_groups([1, 1, 1], [1025, 1, 1])), [FaultKind::GridSize]);
    assert_eq!(kinds(good().grid_groups([0, 1, 1], [32, 1, 1])), [FaultKind::GridSize]);
}
