//! Tests counters, schedules, arguments and the cache with kernels that are small enough to count
//! by hand.
#![cfg(target_os = "linux")]

mod common;

use common::{cache, compiler, kernel, library};
use metal_sim::{Access, Buffer, Constants, Dispatch, Library, Schedule, Source, Traffic};

#[test]
fn every_byte_is_counted() {
    let kernel = kernel(
        "kernel void f(const device float4* x [[buffer(0)]], device half* y [[buffer(1)]],\n\
         constant uint& n [[buffer(2)]], uint i [[thread_position_in_grid]]) {\n\
         threadgroup float t[4];\nfloat4 v = x[i];\nt[i] = v.x;\n\
         threadgroup_barrier(mem_flags::mem_threadgroup);\n\
         y[i] = half(simd_sum(t[3 - i]) + float(n) + x[0].y);\n}",
    );
    let x = [[1.0f32, 2.0, 3.0, 4.0]; 4];
    let mut y = [0u16; 4];
    let report = Dispatch::new(&kernel)
        .buffer(0, Buffer::input(&x))
        .buffer(1, Buffer::output(&mut y))
        .value(2, 10u32)
        .grid_groups([1, 1, 1], [4, 1, 1])
        .run()
        .unwrap()
        .check()
        .unwrap();
    assert_eq!(y.map(|bits| half::f16::from_bits(bits).to_f32()), [16.0; 4]);
    let x_traffic = Traffic {
        loads: 8,
        read_bytes: report.buffers[&0].read_bytes, // the second load may be of x[0].y alone
        // The lanes load x[0] together.
        fetched_bytes: 64 + (report.buffers[&0].read_bytes - 64) / 4,
        distinct_read: 64,
        ..Traffic::default()
    };
    assert_eq!(report.buffers[&0], x_traffic);
    assert!([80, 128].contains(&x_traffic.read_bytes));
    let expected =
        Traffic { stores: 4, written_bytes: 8, distinct_written: 8, ..Traffic::default() };
    assert_eq!(report.buffers[&1], expected);
    let expected = Traffic {
        loads: 4,
        read_bytes: 16,
        fetched_bytes: 4,
        distinct_read: 4,
        ..Traffic::default()
    };
    assert_eq!(report.buffers[&2], expected);
    assert_eq!((report.threadgroup.loads, report.threadgroup.stores), (4, 4));
    assert_eq!((report.threads, report.threadgroups), (4, 1));
    assert_eq!((report.threadgroup_barriers, report.simd_operations), (1, 1));
    assert_eq!(report.threadgroup_bytes, 16);
}

const ORDER: &str = "kernel void f(device atomic_uint* next [[buffer(0)]], \
    device uint* turn [[buffer(1)]], uint i [[thread_position_in_grid]]) {\n\
    turn[i] = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);\n}";

fn turns(schedule: Schedule) -> Vec<u32> {
    let kernel = kernel(ORDER);
    let mut next = [0u32];
    let mut turn = vec![0u32; 64];
    Dispatch::new(&kernel)
        .buffer(0, Buffer::in_out(&mut next))
        .buffer(1, Buffer::output(&mut turn))
        .grid_groups([2, 1, 1], [32, 1, 1])
        .schedule(schedule)
        .run()
        .unwrap()
        .check()
        .unwrap();
    assert_eq!(next, [64]);
    turn
}

#[test]
fn schedules() {
    let forward: Vec<u32> = (0..64).collect();
    assert_eq!(turns(Schedule::Forward), forward);
    assert_eq!(turns(Schedule::Reversed), forward.iter().rev().copied().collect::<Vec<_>>());
    let mut shuffled = turns(Schedule::Shuffled(1));
    assert_eq!(shuffled, turns(Schedule::Shuffled(1)));
    assert_ne!(shuffled, turns(Schedule::Shuffled(2)));
    shuffled.sort_unstable();
    assert_eq!(shuffled, forward);
}

/// Each dispatch reserves terabytes of address space. A process has enough for about thirty
/// dispatches at a time.
#[test]
fn more_dispatches_at_once_than_there_are_addresses_for() {
    let kernel = kernel(ORDER);
    let start = std::sync::Barrier::new(48);
    std::thread::scope(|scope| {
        for _ in 0..48 {
            scope.spawn(|| {
                let (mut next, mut turn) = ([0u32], vec![0u32; 1 << 14]);
                start.wait();
                Dispatch::new(&kernel)
                    .buffer(0, Buffer::in_out(&mut next))
                    .buffer(1, Buffer::output(&mut turn))
                    .grid_groups([512, 1, 1], [32, 1, 1])
                    .run()
                    .unwrap();
                assert_eq!(next, [1 << 14]);
            });
        }
    });
}

#[test]
fn kernels_are_shared_between_threads() {
    let kernel = kernel(ORDER);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let report = Dispatch::new(&kernel)
                        .buffer(0, Buffer::with(vec![0; 4], Access::ReadWrite))
                        .buffer(1, Buffer::zeroed(256))
                        .grid_groups([2, 1, 1], [32, 1, 1])
                        .run()
                        .unwrap()
                        .check()
                        .unwrap();
                    assert_eq!(report.contents(0), Some(&64u32.to_le_bytes()[..]));
                }
            });
        }
    });
}

#[test]
fn unrolled_and_copied_calls_are_one_place() {
    let kernel = kernel(
        "kernel void f(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]],\n\
         constant uint& n [[buffer(1)]]) {\nfloat v = i;\n\
         for (uint k = 0; k < 4; k++) {\nif (k < n || i % 2 == 0) v += 1;\n\
         v = simd_max(v) - 1;\nthreadgroup_barrier(mem_flags::mem_none);\n}\ny[i] = v;\n}",
    );
    for schedule in [Schedule::Forward, Schedule::Reversed, Schedule::Shuffled(9)] {
        Dispatch::new(&kernel)
            .buffer(0, Buffer::zeroed(256))
            .value(1, 2u32)
            .grid_groups([1, 1, 1], [64, 1, 1])
            .schedule(schedule)
            .run()
            .unwrap()
            .check()
            .unwrap();
    }
}

#[test]
fn in_place() {
    let kernel = kernel(
        "kernel void f(const device float* x [[buffer(0)]], device float* y [[buffer(1)]],\n\
         uint i [[thread_position_in_grid]]) { y[i] = x[i] + 1; }",
    );
    let mut data = [1.0f32, 2.0, 3.0];
    let pointer = data.as_mut_ptr().cast::<u8>();
    // SAFETY: `data` is not used until the dispatch has run.
    let (x, y) = unsafe {
        (Buffer::raw(pointer, 12, Access::Read), Buffer::raw(pointer, 12, Access::Write))
    };
    let dispatch = Dispatch::new(&kernel).buffer(0, x).buffer(1, y).threads([3, 1, 1], [3, 1, 1]);
    let report = dispatch.run().unwrap().check().unwrap();
    assert_eq!(data, [2.0, 3.0, 4.0]);
    assert_eq!(report.buffers[&0].distinct_read, 12);
    assert_eq!(report.buffers[&1].distinct_written, 12);
    assert_eq!(report.buffers[&1].distinct_read, 0);
}

#[test]
fn function_constants() {
    let library = library(
        "constant bool has [[function_constant(0)]];\nconstant float k [[function_constant(1)]];\n\
         constant float scale = is_function_constant_defined(k) ? k : 3.0;\n\
         kernel void f(device float* y [[buffer(0)]],\n\
         const device float* x [[buffer(1), function_constant(has)]]) {\n\
         y[0] = scale * (has ? x[0] : 1.0);\n}",
    );
    let constants = library.function_constants();
    assert_eq!((constants[0].index, constants[0].optional), (0, false));
    assert_eq!((constants[1].index, constants[1].optional), (1, true));
    assert!(library.kernel("f", &Constants::new()).is_err());
    let without = library.kernel("f", &Constants::new().with(0, false)).unwrap();
    let report =
        Dispatch::new(&without).buffer(0, Buffer::zeroed(4)).run().unwrap().check().unwrap();
    assert_eq!(report.contents(0), Some(&3.0f32.to_le_bytes()[..]));
    let with = library.kernel("f", &Constants::new().with(0, true).with(1, 0.5f32)).unwrap();
    let dispatch = Dispatch::new(&with).buffer(0, Buffer::zeroed(4)).value(1, 8.0f32);
    let report = dispatch.run().unwrap().check().unwrap();
    assert_eq!(report.contents(0), Some(&4.0f32.to_le_bytes()[..]));
    assert!(!Dispatch::new(&with).buffer(0, Buffer::zeroed(4)).run().unwrap().faults.is_empty());
}

#[test]
fn builtin_values() {
    let names = [
        "thread_position_in_grid",
        "threadgroup_position_in_grid",
        "thread_position_in_threadgroup",
        "threads_per_threadgroup",
        "threads_per_grid",
        "threadgroups_per_grid",
    ];
    let mut text = String::from("kernel void f(device uint* y [[buffer(0)]], ");
    for (i, name) in names.iter().enumerate() {
        text.push_str(&format!("uint3 v{i} [[{name}]],\n"));
    }
    text.push_str(
        "ushort s [[simdgroups_per_threadgroup]], uint t [[thread_index_in_threadgroup]]) {\n\
         device uint* row = y + 20 * ((v0.z * 3 + v0.y) * 5 + v0.x);\n",
    );
    for i in 0..names.len() {
        text.push_str(&format!("for (int k = 0; k < 3; k++) row[{i} * 3 + k] = v{i}[k];\n"));
    }
    text.push_str("row[18] = s; row[19] = t;\n}");
    let kernel = kernel(&text);
    let mut y = vec![0u32; 20 * 5 * 3 * 2];
    Dispatch::new(&kernel)
        .buffer(0, Buffer::output(&mut y))
        .threads([5, 3, 2], [4, 2, 2])
        .run()
        .unwrap()
        .check()
        .unwrap();
    let last = &y[20 * 29..];
    assert_eq!(last[..3], [4, 2, 1]);
    assert_eq!(last[3..6], [1, 1, 0]);
    assert_eq!(last[6..9], [0, 0, 1]);
    assert_eq!(last[9..12], [1, 1, 2]);
    assert_eq!(last[12..15], [5, 3, 2]);
    assert_eq!(last[15..18], [2, 2, 1]);
    assert_eq!(last[18..], [1, 1]);
}

#[test]
fn second_compilation_is_found_in_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("k.metal");
    std::fs::write(
        &path,
        "#include <metal_stdlib>\nkernel void f(device int* x [[buffer(0)]]) { x[0] = 1; }",
    )
    .unwrap();
    let cache = folder.path().join("cache");
    let count = || {
        let files = std::fs::read_dir(&cache).unwrap().flatten();
        files.filter(|file| file.path().extension().is_some_and(|e| e == "so")).count()
    };
    let compile = |source: &Source| Library::compile(source, compiler(), &cache).unwrap();
    compile(&Source::new(&path));
    assert_eq!(count(), 1);
    compile(&Source::new(&path));
    assert_eq!(count(), 1);
    compile(&Source::new(&path).define("UNUSED=1"));
    assert_eq!(count(), 1);
    std::fs::write(
        &path,
        "#include <metal_stdlib>\nkernel void f(device int* x [[buffer(0)]]) { x[0] = 2; }",
    )
    .unwrap();
    compile(&Source::new(&path));
    assert_eq!(count(), 2);
}

#[test]
fn errors_say_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("k.metal");
    std::fs::write(&path, "kernel void f(device int* x [[buffer(0)]]) {\n  x[0] = y;\n}").unwrap();
    let error = Library::compile(&Source::new(&path), compiler(), cache()).err().unwrap();
    assert!(error.to_string().contains("k.metal:2:"), "{error}");
    let library = library("kernel void g(device int* x [[buffer(0)]]) { x[0] = 1; }");
    let error = library.kernel("h", &Constants::new()).err().unwrap();
    assert!(error.to_string().contains("only g"), "{error}");
    assert!(library.kernel("g", &Constants::new().with(4, true)).is_err());
    assert!(metal_sim::Compiler::at("/nowhere").is_err());
}
