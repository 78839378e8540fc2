//! On every device, heads and columns that are computed separately have the same bits as if all are
//! computed together. The processes (ranks) that share a split model rely on this.

use std::ops::Range;

use mlx_primitives::ops::{
    self, Attention, Linear, QuantizedLinear, QuantizedMode, QuantizedWeight, Rope,
};
use mlx_primitives::{Array, Dtype};

use crate::support::Checked;
use crate::support::compare::assert_same;
use crate::support::input::random;

const TYPES: [Dtype; 3] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];

#[test(simulated = once)]
fn some_heads_of_attention() -> Checked {
    const GROUP: i32 = 2;
    // Test one query with keys that are not split, one query with keys that are split, and several
    // queries.
    for (queries, keys) in [(1, 300), (1, 1500), (20, 1100)] {
        for dtype in TYPES {
            let q = random(&[1, 4 * GROUP, queries, 64], dtype, 1)?;
            let [k, v] = [2, 3].map(|seed| random(&[1, 4, keys, 64], dtype, seed));
            let (k, v) = (k?, v?);
            let options = Attention { causal: true, ..Attention::default() };
            let whole = ops::attention(&q, &k, &v, options)?;
            for heads in [0..1, 1..4] {
                let what = format!("{queries} queries, {keys} keys, {dtype:?}, {heads:?}");
                let of_queries = heads.start * GROUP..heads.end * GROUP;
                let own = |x: &Array, heads: &Range<i32>| x.slice_axis(1, heads.clone());
                let [k, v] = [own(&k, &heads)?, own(&v, &heads)?];
                let part = ops::attention(&own(&q, &of_queries)?, &k, &v, options)?;
                assert_same(&part, &own(&whole, &of_queries)?, &what)?;
            }
        }
    }
    Ok(())
}

#[test(simulated = once)]
fn one_text_of_a_batch() -> Checked {
    for queries in [1, 9] {
        let q = random(&[2, 4, queries, 64], Dtype::Bfloat16, 1)?;
        let [k, v] = [2, 3].map(|seed| random(&[2, 2, 1500, 64], Dtype::Bfloat16, seed));
        let (k, v) = (k?, v?);
        let together = ops::attention(&q, &k, &v, Attention::default())?;
        for text in 0..2 {
            let one = |x: &Array| x.slice_axis(0, text..text + 1);
            let alone = ops::attention(&one(&q)?, &one(&k)?, &one(&v)?, Attention::default())?;
            assert_same(&alone, &one(&together)?, &format!("{queries} queries, text {text}"))?;
        }
    }
    Ok(())
}

#[test(simulated = once)]
fn some_heads_of_rotations() -> Checked {
    for dtype in TYPES {
        for time in [1, 9, 11, 40] {
            let x = random(&[1, 4, time, 32], dtype, 1)?;
            let of =
                |x: &Array| ops::rope(x, Rope { dims: 32, offset: 3.into(), ..Rope::default() });
            let whole = of(&x)?;
            for heads in [0..1, 1..4, 2..4] {
                let part = of(&x.slice_axis(1, heads.clone())?)?;
                let what = format!("{time} positions, {dtype:?}, {heads:?}");
                assert_same(&part, &whole.slice_axis(1, heads)?, &what)?;
            }
        }
    }
    Ok(())
}

/// In a small model, each rank has only a few columns.
#[test(simulated = once)]
fn few_columns_of_products() -> Checked {
    for dtype in TYPES {
        for (columns, depth) in [(64, 96), (96, 64), (128, 64), (352, 128)] {
            let w = random(&[columns, depth], dtype, 1)?;
            let x = random(&[11, depth], dtype, 2)?;
            let whole = ops::linear(&x, &w, Linear::default())?;
            for cut in [0..columns / 2, columns / 2..columns * 3 / 4, columns / 3..columns * 2 / 3]
            {
                let part = ops::linear(&x, &w.slice_axis(0, cut.clone())?, Linear::default())?;
                let what = format!("{columns} columns of {depth}, {dtype:?}, {cut:?}");
                assert_same(&part, &whole.slice_axis(-1, cut)?, &what)?;
            }
        }
    }
    Ok(())
}

/// Two ranks share this many columns. One has more columns, and the other fewer, than the size at
/// which a kernel's launch plan changes.
const COLUMNS: i32 = 2144;
const CUTS: [Range<i32>; 2] = [0..2112, 2112..COLUMNS];

#[test(simulated = once)]
fn some_columns_of_products() -> Checked {
    for dtype in TYPES {
        for (rows, depth) in [(1, 1024), (4, 128), (33, 128)] {
            let w = random(&[COLUMNS, depth], dtype, 1)?;
            let x = random(&[rows, depth], dtype, 2)?;
            let whole = ops::linear(&x, &w, Linear::default())?;
            for cut in CUTS {
                let part = ops::linear(&x, &w.slice_axis(0, cut.clone())?, Linear::default())?;
                let what = format!("{rows} rows, {dtype:?}, {cut:?}");
                assert_same(&part, &whole.slice_axis(-1, cut)?, &what)?;
            }
            let norm = random(&[depth], dtype, 3)?;
            let plain = QuantizedLinear::default();
            let normed = QuantizedLinear { norm: Some((&norm, 1e-5)), ..plain };
            for (bits, options) in [(4, plain), (4, normed), (8, plain)] {
                let pack =
                    |w: &Array| QuantizedWeight::quantize(w, 64, bits, QuantizedMode::Affine);
                let product = |w: &Array| ops::quantized_linear(&x, &pack(w)?, options);
                let whole = product(&w)?;
                for cut in CUTS {
                    let norm = options.norm.is_some();
                    let what = format!("{bits} bits, norm {norm}, {rows} rows, {dtype:?}, {cut:?}");
                    let part = product(&w.slice_axis(0, cut.clone())?)?;
                    assert_same(&part, &whole.slice_axis(-1, cut)?, &what)?;
                }
            }
        }
    }
    Ok(())
}
