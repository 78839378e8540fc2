//! Compares SIMD-group functions, matrices and atomics with plain references.
#![cfg(target_os = "linux")]

mod common;

use common::kernel;
use metal_sim::{Buffer, Dispatch};

type LaneReference = (&'static str, fn(&[i32], usize) -> i32);

#[test]
fn simd_functions() {
    let references: &[LaneReference] = &[
        ("simd_sum(x)", |x, _| x.iter().sum()),
        ("simd_product(x % 2 + 1)", |x, _| x.iter().map(|x| x % 2 + 1).product()),
        ("simd_max(x)", |x, _| x.iter().copied().max().unwrap_or(0)),
        ("simd_min(x)", |x, _| x.iter().copied().min().unwrap_or(0)),
        ("simd_and(x)", |x, _| x.iter().fold(-1, |a, b| a & b)),
        ("simd_or(x)", |x, _| x.iter().fold(0, |a, b| a | b)),
        ("simd_xor(x)", |x, _| x.iter().fold(0, |a, b| a ^ b)),
        ("simd_broadcast(x, 5)", |x, _| x[5]),
        ("simd_broadcast_first(x)", |x, _| x[0]),
        ("simd_shuffle(x, 31 - lane)", |x, i| x[31 - i]),
        ("simd_shuffle_xor(x, 9)", |x, i| x[i ^ 9]),
        ("simd_shuffle_down(x, 3)", |x, i| x[if i + 3 < 32 { i + 3 } else { i }]),
        ("simd_shuffle_up(x, 3)", |x, i| x[if i >= 3 { i - 3 } else { i }]),
        ("simd_shuffle_rotate_down(x, 3)", |x, i| x[(i + 3) % 32]),
        ("simd_shuffle_rotate_up(x, 3)", |x, i| x[(i + 29) % 32]),
        ("simd_shuffle_and_fill_down(x, 7, 3)", |x, i| if i + 3 < 32 { x[i + 3] } else { 7 }),
        ("simd_shuffle_and_fill_up(x, 7, 3)", |x, i| if i >= 3 { x[i - 3] } else { 7 }),
        ("simd_shuffle_and_fill_up(x, 7, 3, 8)", |x, i| if i % 8 >= 3 { x[i - 3] } else { 7 }),
        ("simd_prefix_inclusive_sum(x)", |x, i| x[..=i].iter().sum()),
        ("simd_prefix_exclusive_sum(x)", |x, i| x[..i].iter().sum()),
        ("simd_prefix_inclusive_product(x % 2 + 1)", |x, i| {
            x[..=i].iter().map(|x| x % 2 + 1).product()
        }),
        ("simd_prefix_exclusive_product(x % 2 + 1)", |x, i| {
            x[..i].iter().map(|x| x % 2 + 1).product()
        }),
        ("ulong(simd_ballot(x > 50)) == simd_sum(ulong_bit(x > 50, lane))", |_, _| 1),
        ("simd_any(x > 90) + 2 * simd_all(x > 90)", |_, _| 1),
        ("simd_is_first()", |_, i| i32::from(i == 0)),
        ("popcount(ulong(simd_active_threads_mask()))", |_, _| 32),
        ("simd_sum(int2(x, 1)).y", |_, _| 32),
        ("quad_sum(x)", |x, i| x[i & !3..][..4].iter().sum()),
        ("quad_max(x)", |x, i| x[i & !3..][..4].iter().copied().max().unwrap_or(0)),
        ("quad_broadcast(x, 2)", |x, i| x[(i & !3) + 2]),
        ("quad_shuffle_xor(x, 1)", |x, i| x[i ^ 1]),
        ("quad_shuffle_down(x, 1)", |x, i| x[if i % 4 < 3 { i + 1 } else { i }]),
        ("quad_shuffle_up(x, 1)", |x, i| x[if i % 4 > 0 { i - 1 } else { i }]),
    ];
    let x: Vec<i32> = (0..32).map(|i| (i * 37 + 11) % 97).collect();
    let body: String = references
        .iter()
        .enumerate()
        .map(|(row, (text, _))| format!("out[{row} * 32 + lane] = {text};\n"))
        .collect();
    let kernel = kernel(&format!(
        "uint ulong_bit(bool b, uint lane) {{ return b ? 1u << lane : 0u; }}\n\
         kernel void f(const device int* in [[buffer(0)]], device int* out [[buffer(1)]],\n\
         uint lane [[thread_index_in_simdgroup]]) {{\nint x = in[lane];\n{body}}}"
    ));
    let mut out = vec![0i32; 32 * references.len()];
    let report = Dispatch::new(&kernel)
        .buffer(0, Buffer::input(&x))
        .buffer(1, Buffer::output(&mut out))
        .threads([32, 1, 1], [32, 1, 1])
        .schedule(metal_sim::Schedule::Shuffled(1))
        .run()
        .unwrap()
        .check()
        .unwrap();
    assert!(report.simd_operations >= references.len() as u64);
    for ((text, reference), got) in references.iter().zip(out.chunks(32)) {
        for (lane, got) in got.iter().enumerate() {
            assert_eq!(*got, reference(&x, lane), "{text} in lane {lane}");
        }
    }
}

#[test]
fn simdgroup_matrices() {
    let kernel = kernel(
        "kernel void f(const device float* a [[buffer(0)]], const device float* b [[buffer(1)]],\n\
         device float* c [[buffer(2)]]) {\n\
         simdgroup_float8x8 ma, mb, mc = make_filled_simdgroup_matrix<float, 8, 8>(2.0f);\n\
         simdgroup_load(ma, a, 8);\nsimdgroup_load(mb, b, 8, ulong2(0, 0), true);\n\
         simdgroup_multiply_accumulate(mc, ma, mb, mc);\nsimdgroup_store(mc, c, 8);\n\
         simdgroup_float8x8 diagonal(3.0f), product;\n\
         simdgroup_multiply(product, ma, diagonal);\nsimdgroup_store(product, c + 64, 8);\n}",
    );
    let a: Vec<f32> = (0..64).map(|i| (i % 7) as f32).collect();
    let b: Vec<f32> = (0..64).map(|i| (i % 5) as f32).collect();
    let mut c = vec![0.0f32; 128];
    Dispatch::new(&kernel)
        .buffer(0, Buffer::input(&a))
        .buffer(1, Buffer::input(&b))
        .buffer(2, Buffer::output(&mut c))
        .grid_groups([1, 1, 1], [32, 1, 1])
        .run()
        .unwrap()
        .check()
        .unwrap();
    for row in 0..8 {
        for column in 0..8 {
            let dot: f32 = (0..8).map(|k| a[row * 8 + k] * b[column * 8 + k]).sum();
            assert_eq!(c[row * 8 + column], dot + 2.0);
            assert_eq!(c[64 + row * 8 + column], 3.0 * a[row * 8 + column]);
        }
    }
}

#[test]
fn atomics() {
    let kernel = kernel(
        "kernel void f(device atomic_int* v [[buffer(0)]], device atomic_float* s [[buffer(1)]],\n\
         uint i [[thread_position_in_grid]]) {\nint k = int(i);\n\
         atomic_fetch_add_explicit(v, k, memory_order_relaxed);\n\
         atomic_fetch_sub_explicit(v + 1, k, memory_order_relaxed);\n\
         atomic_fetch_max_explicit(v + 2, k, memory_order_relaxed);\n\
         atomic_fetch_min_explicit(v + 3, -k, memory_order_relaxed);\n\
         atomic_fetch_or_explicit(v + 4, 1 << (k % 32), memory_order_relaxed);\n\
         atomic_fetch_and_explicit(v + 5, ~(1 << (k % 32)), memory_order_relaxed);\n\
         atomic_fetch_xor_explicit(v + 6, k, memory_order_relaxed);\n\
         if (i == 9) atomic_store_explicit(v + 7, 5, memory_order_relaxed);\n\
         if (i == 9) atomic_exchange_explicit(v + 8, 6, memory_order_relaxed);\n\
         int old = atomic_load_explicit(v + 9, memory_order_relaxed);\n\
         while (!atomic_compare_exchange_weak_explicit(v + 9, &old, old + 2,\n\
         memory_order_relaxed, memory_order_relaxed)) {}\n\
         atomic_fetch_add_explicit(s, 0.5f, memory_order_relaxed);\n}",
    );
    let mut v = [0i32; 10];
    v[5] = -1;
    let mut s = [0.0f32];
    Dispatch::new(&kernel)
        .buffer(0, Buffer::in_out(&mut v))
        .buffer(1, Buffer::in_out(&mut s))
        .threads([100, 1, 1], [50, 1, 1])
        .run()
        .unwrap()
        .check()
        .unwrap();
    let xor = (0..100).fold(0, |a, b| a ^ b);
    assert_eq!(v, [4950, -4950, 99, -99, -1, 0, xor, 5, 6, 200]);
    assert_eq!(s, [50.0]);
}
