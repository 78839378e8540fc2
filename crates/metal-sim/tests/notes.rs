//! Tests notes: a finding that cannot change a result is a note. A small change to the kernel makes
//! it a fault.
#![cfg(target_os = "linux")]

mod common;

use common::library;
use metal_sim::FaultKind::{DataRace, UninitializedRead};
use metal_sim::{Buffer, Constants, Dispatch, Fault, FaultKind, Kernel, Report, Schedule};

/// Returns the numbers of the lines of a body that end with `// !`.
fn marked(body: &str) -> Vec<u32> {
    let numbered = body.lines().zip(2..); // the first is the kernel's
    numbered.filter(|(line, _)| line.ends_with("// !")).map(|(_, number)| number).collect()
}

/// Runs a kernel with 64 threads in each order. x holds 64 different numbers.
fn reports(kernel: &Kernel) -> Vec<(Report, [f32; 64])> {
    let run = |schedule| {
        let x: [f32; 64] = std::array::from_fn(|i| 1.0 + i as f32);
        let mut y = [0.0; 64];
        let dispatch = Dispatch::new(kernel).buffer(0, Buffer::input(&x)).schedule(schedule);
        let dispatch = dispatch.buffer(1, Buffer::output(&mut y)).grid_groups([1; 3], [64, 1, 1]);
        (dispatch.run().unwrap(), y)
    };
    Schedule::ALL.map(run).into()
}

/// Compiles kernels with these bodies, runs them, and passes each body and its reports to `judge`.
fn each(bodies: &[String], judge: impl Fn(&str, Vec<(Report, [f32; 64])>)) {
    let mut text = "struct S { float a[5]; };\n".to_owned();
    for (number, body) in bodies.iter().enumerate() {
        text += &format!(
            "#line 1\nkernel void f{number}(const device float* x [[buffer(0)]], \
             device float* y [[buffer(1)]], uint i [[thread_position_in_grid]], \
             uint lane [[thread_index_in_simdgroup]]) {{\n{body}\n}}\n"
        );
    }
    let library = library(&text);
    for (number, body) in bodies.iter().enumerate() {
        let kernel = library.kernel(&format!("f{number}"), &Constants::new()).unwrap();
        judge(body, reports(&kernel));
    }
}

/// Checks that every schedule reports no fault, and only notes about the marked lines.
fn noted(kind: FaultKind, bodies: &[String]) {
    each(bodies, |body, reports| {
        for (report, y) in reports {
            assert!(report.faults.is_empty(), "{body}: {:#?}", report.faults);
            assert!(!report.notes.is_empty(), "{body}");
            for note in &report.notes {
                assert_eq!(note.kind, kind, "{note:#?}");
                let mut lines = note.places[..1].iter().chain(note.earlier.first());
                assert!(lines.all(|at| marked(body).contains(&at.line)), "{note:#?}");
                assert_eq!(note.earlier.is_empty(), kind == UninitializedRead, "{note:#?}");
            }
            assert!(y.iter().all(|y| *y > 0.0), "{body}: {y:?}"); // the results of the last run
        }
    });
}

/// Checks that at least one schedule reports a fault of this kind in a marked line.
fn faulty(kind: FaultKind, bodies: &[String]) {
    each(bodies, |body, reports| {
        let in_line =
            |fault: &Fault| fault.places.first().is_some_and(|at| marked(body).contains(&at.line));
        let mut all = reports.iter().flat_map(|(report, _)| &report.faults);
        let found = all.any(|fault| fault.kind == kind && in_line(fault));
        assert!(found, "{body}: {:#?}", reports.iter().map(|it| &it.0.faults).collect::<Vec<_>>());
    });
}

const BARRIER: &str = "threadgroup_barrier(mem_flags::mem_threadgroup);";

#[test]
fn equal_stores() {
    let after = format!("\n{BARRIER}\ny[i] = t[0];");
    noted(
        DataRace,
        &[
            format!("threadgroup float t[1];\nt[0] = 7; // !{after}"),
            format!(
                "threadgroup float t[1];\nif (i < 32)\nt[0] = x[5]; // !\nelse\n\
                 t[0] = x[4] + 1; // !{after}"
            ),
            format!(
                "threadgroup S t[1];\nt[0] = ((const device S*)x)[2]; // !\n{BARRIER}\ny[i] = t[0].a[3];"
            ),
            "y[i] = 2;\nthreadgroup_barrier(mem_flags::mem_device);\ny[9] = 5; // !".to_owned(),
        ],
    );
}

#[test]
fn different_stores() {
    let after = format!("\n{BARRIER}\ny[i] = t[0];");
    let values = ["i", "i == 40 ? 8 : 7", "i < 32", "i == 0", "i == 63"];
    let store = |value| format!("threadgroup float t[1];\nt[0] = {value}; // !{after}");
    faulty(DataRace, &values.map(store));
    let last_byte = format!(
        "threadgroup S t[1];\nS s = {{{{1, 2, 3, 4, 5}}}};\nif (i == 50) s.a[4] = -5;\n\
         t[0] = s; // !\n{BARRIER}\ny[i] = t[0].a[3];"
    );
    let first_of_two = format!(
        "threadgroup float t[1];\nthreadgroup volatile float* v = t;\n\
         if (i == 20) v[0] = 1; // !\nv[0] = 2; // !{after}"
    );
    faulty(DataRace, &[last_byte, first_of_two]);
}

#[test]
fn loads_beside_equal_stores() {
    let one = "threadgroup float t[1];\nthreadgroup volatile float* v = t;\n\
               v[0] = 7; // !\ny[i] = v[0]; // !";
    let other = |reader: u32| {
        let load = format!("if (i == {reader}) y[i] = t[0]; // !\nelse t[0] = 7; // !");
        format!("threadgroup float t[1];\ny[i] = 1;\nt[0] = 7;\n{BARRIER}\n{load}")
    };
    let atomic = "threadgroup atomic_uint t[1];\nif (i != 40) *(threadgroup uint*)t = 7; // !\n\
                  else y[0] = atomic_exchange_explicit(t, 7, memory_order_relaxed); // !";
    faulty(DataRace, &[one.into(), other(0), other(31), other(63), atomic.into()]);
}

/// A kernel in which two SIMD groups share their sums. All lanes read 32 sums, of which only two
/// were written.
fn sums(after: &str) -> String {
    format!(
        "threadgroup float t[32];\nfloat sum = simd_sum(x[i]);\n\
         if (lane == 0) t[i / 32] = sum;\n{BARRIER}\nfloat v = t[lane]; // !\n{after}"
    )
}

#[test]
fn values_that_nothing_uses() {
    let prefix = "y[i] = 1 + simd_shuffle(simd_prefix_exclusive_sum(v), i / 32);";
    let stored = format!(
        "threadgroup float u[32];\nif (i < 32) u[lane] = 2 * v;\n{BARRIER}\ny[i] = u[i / 32];"
    );
    noted(UninitializedRead, &[sums(prefix), sums(&stored)]);
}

#[test]
fn values_that_something_uses() {
    let results = [
        "y[i] = simd_sum(v);",
        "y[i] = simd_max(v);",
        "y[i] = simd_min(v);",
        "y[i] = simd_product(v);",
        "y[i] = simd_sum(lane < 2 ? v : 0 * v);", // 0 * NaN is NaN
        "y[i] = simd_any(lane > 1 && v == 0);",
        "y[i] = as_type<uint>(v) >> 31;",
        "y[i] = min(max(v, 0.0f), 1.0f);",
        // The threads read different addresses, but the results are equal.
        "y[i] = 0 * x[v > 1e9f ? 1 : 0];",
        // After a read of unwritten memory, the simulator runs the kernel again with other junk
        // values. With one of these values, the loop would run for minutes if the limit on steps
        // did not end it.
        "device volatile float* z = y;\nz[i] = 1;\nfor (int k = 0; lane > 1 && k < as_type<int>(v); k++) z[i] = 2;",
        "y[i] = 4;\nif (v == 0) threadgroup_barrier(mem_flags::mem_none);",
    ];
    faulty(UninitializedRead, &results.map(sums));
    faulty(UninitializedRead, &["y[i] = 0 * y[i] + 1; // !".to_owned()]);
}
