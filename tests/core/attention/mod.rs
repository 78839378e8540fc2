//! `attention`: caches, queries that see no keys, extreme numbers, and refused inputs. The
//! conformance table (`tests/catalog`) tests its values.

mod gradients;
mod moves;
mod quantized;

use mlx_primitives::memory::{active_memory, peak_memory, reset_peak_memory};
use mlx_primitives::ops::{self, Attention};
use mlx_primitives::{Array, Dtype, Result, builtin};

use crate::support::compare::{assert_same, numbers, ulp};
use crate::support::input::{FLOATS, data, random, values};
use crate::support::{Checked, each_device, message, simulated};
use crate::table::attention_reference::Reference;
use crate::table::inputs::{TOLERANCE, tolerance_to_mlx};

#[track_caller]
fn assert_near(got: &Array, want: &[f64], tolerance: f64, what: &str) -> Checked {
    let got_numbers = numbers(got)?;
    assert_eq!(got_numbers.len(), want.len(), "{what}");
    for (i, (&got_number, &want)) in got_numbers.iter().zip(want).enumerate() {
        let allowed = tolerance * (1.0 + want.abs()) + 0.51 * ulp(want, got.dtype());
        let near = (got_number - want).abs() <= allowed;
        let same = near || got_number.is_nan() && want.is_nan();
        assert!(same, "{what}: {got_number:e} at {i}, expected {want:e} within {allowed:e}");
    }
    Ok(())
}

struct Inputs {
    q: Array,
    k: Array,
    v: Array,
}

impl Inputs {
    /// Random inputs of a call. `heads` is [batch, heads, kv_heads], and `extents` is [queries,
    /// keys, dim].
    fn new(heads: [i32; 3], extents: [i32; 3], dtype: Dtype) -> Result<Self> {
        let ([batch, heads, kv_heads], [queries, keys, dim]) = (heads, extents);
        Ok(Self {
            q: random(&[batch, heads, queries, dim], dtype, 1)?,
            k: random(&[batch, kv_heads, keys, dim], dtype, 2)?,
            v: random(&[batch, kv_heads, keys, dim], dtype, 3)?,
        })
    }

    /// Compares our result with a float64 reference and with the result of MLX's ops.
    fn check(&self, options: Attention<'_>, what: &str) -> Checked {
        let ours = ops::attention(&self.q, &self.k, &self.v, options)?;
        assert_eq!((ours.shape(), ours.dtype()), (self.q.shape(), self.q.dtype()), "{what}");
        let theirs = builtin::composition(&ours)?.swap_remove(0);
        assert_eq!((theirs.shape(), theirs.dtype()), (ours.shape(), ours.dtype()), "{what}");
        let want = Reference::new(&self.q, &self.k, &self.v, options)?.apply();
        assert_near(&ours, &want, TOLERANCE, what)?;
        let tolerance = tolerance_to_mlx(ours.dtype());
        assert_near(&ours, &numbers(&theirs)?, tolerance, &format!("{what}, MLX's"))
    }
}

/// The kernels read a part of a larger cache without a copy.
#[test(alone)]
fn views_of_a_cache_are_not_copied() -> Checked {
    let rows = if simulated() { 4096 } else { 65536 };
    let cache = |seed| -> Result<Array> {
        let cache = random(&[1, 2, rows, 64], Dtype::Float32, seed)?;
        cache.eval()?;
        Ok(cache)
    };
    let (keys, values) = (cache(1)?, cache(2)?);
    let q = random(&[1, 4, 1, 64], Dtype::Float32, 3)?;
    let part = |x: &Array| x.slice_axis(2, 3..103);
    reset_peak_memory();
    let before = active_memory();
    let inputs = Inputs { q, k: part(&keys)?, v: part(&values)? };
    ops::attention(&inputs.q, &inputs.k, &inputs.v, Attention::default())?.eval()?;
    let taken = peak_memory() - before;
    assert!(taken < 25_000, "{taken} bytes, and a copy of the keys takes 51 KB");
    inputs.check(Attention::default(), "a view")
}

/// If the mask hides all keys from a query, all keys get equal weights, as in MLX.
#[test]
fn a_query_that_sees_no_keys() -> Checked {
    each_device(|_| {
        for queries in [2, 6] {
            let inputs = Inputs::new([2, 4, 2], [queries, 37, 32], Dtype::Float32)?;
            let nothing = Array::arange::<i32>(0.0, f64::from(queries), 1.0)?;
            let nothing = nothing.not_equal(1)?.reshape([queries, 1])?;
            for causal in [false, true] {
                let mask = Some(&nothing);
                let options = Attention { mask, causal, ..Default::default() };
                inputs.check(options, &format!("{queries} {causal}"))?;
            }
        }
        Ok(())
    })
}

/// In memory, the heads of one position are adjacent, so joining the heads needs no copy.
#[test]
fn results_lie_position_by_position() -> Checked {
    each_device(|_| {
        for queries in [1, 2, 40] {
            let inputs = Inputs::new([2, 4, 2], [queries, 50, 32], Dtype::Float32)?;
            let y = ops::attention(&inputs.q, &inputs.k, &inputs.v, Attention::default())?;
            let joined = y.transpose([0, 2, 1, 3])?;
            joined.eval()?;
            assert!(joined.is_row_contiguous(), "{queries}");
            assert_eq!(y.is_row_contiguous(), queries == 1);
            // Softmax needs contiguous rows, so it gets a copy.
            let rows = ops::softmax(&y)?;
            assert_eq!(numbers(&rows)?, numbers(&ops::softmax(&y.contiguous()?)?)?, "{queries}");
        }
        Ok(())
    })
}

#[test]
fn extremes_are_those_of_mlx() -> Checked {
    each_device(|_| {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        for queries in [1, 12] {
            for dtype in FLOATS {
                for special in [nan, inf, -inf, 6e4] {
                    let mut inputs = Inputs::new([1, 1, 1], [queries, 20, 8], dtype)?;
                    let mut k = values(160, 2, 1.0);
                    k[8 * 5 + 3] = special;
                    inputs.k = data(&k, &[1, 1, 20, 8], dtype)?;
                    let ours = ops::attention(&inputs.q, &inputs.k, &inputs.v, Default::default())?;
                    let theirs = builtin::composition(&ours)?.swap_remove(0);
                    let what = format!("{dtype} {special} of {queries}");
                    let tolerance = tolerance_to_mlx(dtype);
                    assert_near(&ours, &numbers(&theirs)?, tolerance, &what)?;
                }
                let inputs = Inputs::new([1, 1, 1], [queries, 20, 8], dtype)?;
                let mask = data(&[-inf; 20], &[20], dtype)?;
                let options = Attention { mask: Some(&mask), ..Default::default() };
                let y = ops::attention(&inputs.q, &inputs.k, &inputs.v, options)?;
                assert!(numbers(&y)?.iter().all(|y| y.is_nan()), "{dtype}: all scores -inf");
            }
        }
        Ok(())
    })
}

#[test]
fn extents_of_zero() -> Checked {
    each_device(|_| {
        let empty = |heads, extents| -> Result<Array> {
            let Inputs { q, k, v } = Inputs::new(heads, extents, Dtype::Float32)?;
            ops::attention(&q, &k, &v, Attention::default())
        };
        assert_eq!(empty([0, 2, 1], [3, 4, 8])?.to_vec::<f32>()?, [0.0; 0]);
        assert_eq!(empty([1, 0, 0], [3, 4, 8])?.to_vec::<f32>()?, [0.0; 0]);
        assert_eq!(empty([1, 2, 1], [0, 4, 8])?.to_vec::<f32>()?, [0.0; 0]);
        assert_eq!(empty([1, 2, 1], [3, 4, 0])?.shape(), [1, 2, 3, 0]);
        assert_eq!(empty([1, 2, 1], [3, 0, 8])?.to_vec::<f32>()?, [0.0; 48]);
        // If the keys have no features, all values have the same weight.
        let Inputs { q, k, .. } = Inputs::new([1, 2, 1], [3, 4, 0], Dtype::Float32)?;
        let v = Array::arange::<f32>(0.0, 8.0, 1.0)?.reshape([1, 1, 4, 2])?;
        let y = ops::attention(&q, &k, &v, Attention::default())?;
        assert_eq!(y.to_vec::<f32>()?, [3.0, 4.0].repeat(6));
        Ok(())
    })
}

#[test]
fn bad_input_is_refused() -> Checked {
    let Inputs { q, k, v } = Inputs::new([1, 4, 2], [3, 5, 16], Dtype::Float32)?;
    let plain = Attention::default();
    let said = |q: &Array, k: &Array, v: &Array, options: Attention<'_>| {
        message(ops::attention(q, k, v, options))
    };
    let of = |shape: &[i32]| random(shape, Dtype::Float32, 9);
    let cases = [
        (said(&of(&[4, 3, 16])?, &k, &v, plain), "queries of rank 4"),
        (said(&q, &of(&[2, 5, 16])?, &v, plain), "keys of rank 4"),
        (said(&q, &k, &of(&[1, 2, 6, 16])?, plain), "as many values as keys, got (1,2,6,16)"),
        (said(&of(&[2, 4, 3, 16])?, &k, &v, plain), "keys of batch 2"),
        (said(&of(&[1, 4, 3, 8])?, &k, &v, plain), "dimension 8"),
        (said(&of(&[1, 3, 3, 16])?, &k, &v, plain), "a multiple of 2 heads, got 3"),
        (
            said(&of(&[1, 1, 1, 264])?, &of(&[1, 1, 1, 264])?, &of(&[1, 1, 1, 264])?, plain),
            "at most 256, got 264",
        ),
        (
            said(
                &q.astype(Dtype::Int32)?,
                &k.astype(Dtype::Int32)?,
                &v.astype(Dtype::Int32)?,
                plain,
            ),
            "float32, float16 or bfloat16, got int32",
        ),
        (said(&q, &k, &v, Attention { window: Some(0), ..plain }), "a window of at least"),
        (said(&q, &k, &v, Attention { window: Some(-4), ..plain }), "a window of at least"),
        (said(&q, &k, &v, Attention { soft_cap: Some(-1.0), ..plain }), "positive soft"),
        (said(&q, &k, &v, Attention { soft_cap: Some(f32::NAN), ..plain }), "positive soft"),
        (said(&q, &k, &v, Attention { scale: Some(f32::NAN), ..plain }), "finite scale"),
        (
            said(&q, &k, &v, Attention { mask: Some(&of(&[3, 6])?), ..plain }),
            "broadcasts to (1,4,3,5)",
        ),
        (
            said(&q, &k, &v, Attention { mask: Some(&of(&[1, 1, 1, 3, 5])?), ..plain }),
            "broadcasts to (1,4,3,5)",
        ),
        (said(&q, &k, &v, Attention { sinks: Some(&of(&[3])?), ..plain }), "sinks of shape (4)"),
    ];
    for (said, expected) in cases {
        assert!(said.starts_with("[attention] expected ") && said.contains(expected), "{said}");
    }
    let half = q.astype(Dtype::Float16)?;
    let (k, v) = (k.astype(Dtype::Float16)?, v.astype(Dtype::Float16)?);
    let wide = of(&[3, 5])?;
    let said = said(&half, &k, &v, Attention { mask: Some(&wide), ..plain });
    assert!(said.contains("promotes to float16, got float32"), "{said}");
    Ok(())
}

/// Our ops accept the result of `attention`, although its heads are not in row-major order in
/// memory.
#[test]
fn a_result_is_an_input_of_our_ops() -> Checked {
    each_device(|_| {
        let Inputs { q, k, v } = Inputs::new([2, 4, 2], [5, 7, 64], Dtype::Float32)?;
        let result = || ops::attention(&q, &k, &v, Attention::default());
        let want = ops::softmax(&result()?.multiply(1.0)?)?;
        assert_same(&ops::softmax(&result()?)?, &want, "a softmax of attention")?;
        Ok(())
    })
}
