//! The memory traffic of the attention kernels, which the simulator counts.

#![cfg(target_os = "linux")]

use mlx_primitives::ops::{self, Attention};
use mlx_primitives::{Array, Dispatched, Dtype, Result};

use crate::support::input::random;
use crate::support::{self, Checked};

/// The bytes that a dispatch reads from a buffer.
fn read(dispatched: &Dispatched, buffer: usize) -> u64 {
    dispatched.arrays[buffer][0]
}

const KEYS: usize = 1;
const VALUES: usize = 4;

/// Decodes one token with keys and values that are parts of larger caches: [1, kv_heads, keys, dim]
/// of [1, kv_heads, keys + 32, dim]. Returns the dispatches, and the bytes of the keys.
fn decode(
    heads: i32,
    kv_heads: i32,
    keys: i32,
    dim: i32,
) -> anyhow::Result<(Vec<Dispatched>, u64)> {
    let q = random(&[1, heads, 1, dim], Dtype::Float16, 1)?;
    let cache = |seed| -> Result<Array> {
        let cache = random(&[1, kv_heads, keys + 32, dim], Dtype::Float16, seed)?;
        cache.eval()?;
        let part = cache.slice_axis(2, 0..keys)?;
        part.eval()?;
        Ok(part)
    };
    let (k, v) = (cache(2)?, cache(3)?);
    q.eval()?;
    let options = Attention { causal: true, ..Default::default() };
    let moved = support::moved(|| ops::attention(&q, &k, &v, options))?;
    Ok((moved, (kv_heads * keys * dim * 2) as u64))
}

/// With 4096 keys and four query heads for each key/value head, the kernel reads keys and values
/// once, not once for each query head.
#[test]
#[ignore = "run by simulated::kernel_traffic"]
fn moves_keys_and_values_once_in_decode() -> Checked {
    let (moved, bytes) = decode(8, 2, 4096, 64)?;
    let kernels: Vec<_> = moved.iter().map(|d| d.kernel.as_str()).collect();
    assert_eq!(kernels, ["mlxp_attention_vector_64_4_float16", "mlxp_attention_combine_float16"]);
    assert_eq!(read(&moved[0], KEYS), bytes);
    assert_eq!(read(&moved[0], VALUES), bytes);
    // The second kernel reads each partial result once. Partial results are a small part of the
    // traffic.
    let partials = moved[0].written();
    assert_eq!(read(&moved[1], 0), partials);
    assert!(2 * partials < bytes / 10, "{partials} bytes of partial results for {bytes} of keys");
    let ideal = 2 * bytes as usize + 2 * 8 * 64 * 2;
    let all: u64 = moved.iter().map(|d| d.read() + d.written()).sum();
    assert!(all as f64 <= 1.1 * ideal as f64, "{all} bytes for {ideal}");
    support::report_traffic("attention", &moved, ideal)
}

/// A cache of fewer than 256 keys takes one dispatch.
#[test]
#[ignore = "run by simulated::kernel_traffic"]
fn moves_a_short_cache_once_in_one_dispatch() -> Checked {
    let (moved, bytes) = decode(4, 1, 255, 128)?;
    assert_eq!(moved.len(), 1);
    assert_eq!((read(&moved[0], KEYS), read(&moved[0], VALUES)), (bytes, bytes));
    assert_eq!(moved[0].written(), 4 * 128 * 2);
    Ok(())
}

/// With 256 keys, eight threadgroups split the keys of each key/value head, whatever the number of
/// heads is.
#[test]
#[ignore = "run by simulated::kernel_traffic"]
fn moves_the_keys_of_eight_splits_once() -> Checked {
    for kv_heads in [1, 2] {
        let (moved, bytes) = decode(4 * kv_heads, kv_heads, 256, 64)?;
        assert_eq!(moved.len(), 2);
        assert_eq!((read(&moved[0], KEYS), read(&moved[0], VALUES)), (bytes, bytes));
        // For each row, each split writes 64 weighted sums, the maximum score and the total weight.
        let partials = 8 * 4 * kv_heads as u64 * (64 + 2) * 4;
        assert_eq!((moved[0].written(), read(&moved[1], 0)), (partials, partials));
    }
    Ok(())
}

/// Each threadgroup computes a block of 32 rows. It reads the keys once, and writes no scores.
#[test]
#[ignore = "run by simulated::kernel_traffic"]
fn moves_keys_once_for_each_block_of_rows_in_prefill() -> Checked {
    let bytes_of = |queries: i32, keys: i32, causal: bool| -> anyhow::Result<[u64; 4]> {
        let q = random(&[1, 1, queries, 32], Dtype::Float16, 1)?;
        let k = random(&[1, 1, keys, 32], Dtype::Float16, 2)?;
        let v = random(&[1, 1, keys, 32], Dtype::Float16, 3)?;
        for x in [&q, &k, &v] {
            x.eval()?;
        }
        let options = Attention { causal, ..Default::default() };
        let moved = support::moved(|| ops::attention(&q, &k, &v, options))?;
        assert_eq!(moved.len(), 1, "no scores between dispatches");
        Ok([read(&moved[0], 0), read(&moved[0], KEYS), read(&moved[0], VALUES), moved[0].written()])
    };
    let row = 64; // bytes
    for (queries, keys) in [(32, 64), (32, 128), (32, 256), (64, 128), (96, 128)] {
        let blocks = u64::from(queries as u32).div_ceil(32);
        let [q, k, v, out] = bytes_of(queries, keys, false)?;
        assert_eq!([q, out], [queries as u64 * row; 2], "{queries}x{keys}");
        assert_eq!([k, v], [blocks * keys as u64 * row; 2], "{queries}x{keys}");
    }
    // With the causal mask, block i of the four blocks of rows reads the first i + 1 quarters of
    // the keys.
    let [_, k, v, _] = bytes_of(128, 128, true)?;
    assert_eq!([k, v], [(1 + 2 + 3 + 4) * 32 * row; 2]);
    Ok(())
}

/// The kernel reads codes, scales and biases once if all query rows that share them fit in one
/// tile.
#[test]
#[ignore = "run by simulated::kernel_traffic"]
fn moves_quantized_keys_once_in_decode() -> Checked {
    let shape = |last: i32| [1, 2, 1024, last];
    let words = |seed: u32| -> Result<Array> {
        let words: Vec<u32> =
            (0..2 * 1024 * 8).map(|i: u32| (i + seed).wrapping_mul(2_654_435_761)).collect();
        Array::from_slice(&words, shape(8))
    };
    let affine = |seed| random(&shape(1), Dtype::Float16, seed);
    let q = random(&[1, 8, 1, 64], Dtype::Float16, 1)?;
    let parts = [words(1)?, affine(2)?, affine(3)?, words(4)?, affine(5)?, affine(6)?];
    for x in parts.iter().chain([&q]) {
        x.eval()?;
    }
    let rows = |at: usize| ops::QuantizedRows {
        packed: &parts[at],
        scales: &parts[at + 1],
        biases: &parts[at + 2],
    };
    let options = Attention::default();
    let moved = support::moved(|| ops::attention_quantized(&q, rows(0), rows(3), 4, 64, options))?;
    assert_eq!(moved.len(), 2);
    let all: u64 = (1..7).map(|buffer| read(&moved[0], buffer)).sum();
    let ideal: usize = parts.iter().map(Array::nbytes).sum();
    assert_eq!(all, ideal as u64);
    support::report_traffic("attention_quantized", &moved, ideal + 2 * q.nbytes())
}
