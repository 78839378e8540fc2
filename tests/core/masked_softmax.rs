//! `masked_softmax`: rows that see no keys, gradients of long rows, traffic. The conformance table
//! (`tests/catalog`) tests its values.

use mlx_primitives::ops::{MaskedSoftmax, masked_softmax};
use mlx_primitives::transforms::vjp;
use mlx_primitives::{Array, Dtype};

use crate::support::compare::{numbers, ulp};
use crate::support::input::{FLOATS, data, random, random32};
use crate::support::{self, Checked, each_device};

const PLAIN: MaskedSoftmax = MaskedSoftmax { scale: 1.0, mask: None, causal: false, window: None };

#[test]
fn rows_that_see_no_keys_equal_mlxs() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for keys in [6i32, 200] {
                let x = random(&[1, 2, keys], dtype, 12)?;
                let values = |options| numbers(&masked_softmax(&x, options)?);
                let even = 1.0 / f64::from(keys);
                let near = |v: &f64| (v - even).abs() <= ulp(even, dtype);
                // A boolean mask replaces each masked score by the lowest finite number. If it
                // masks all scores of a row, all keys get the same weight.
                let none = Array::zeros_of([keys], Dtype::Bool)?;
                let y = values(MaskedSoftmax { mask: Some(&none), ..PLAIN })?;
                assert!(y.iter().all(near), "{dtype} {keys}: {y:?}");
                // If a mask adds minus infinity to all scores, the result is NaN.
                let minus = data(&[f32::NEG_INFINITY], &[1], dtype)?;
                let y = values(MaskedSoftmax { mask: Some(&minus), ..PLAIN })?;
                assert!(y.iter().all(|v| v.is_nan()), "{dtype} {keys}: {y:?}");
                // With both masks, causally masked scores are the lowest finite number. They are
                // larger than the minus infinity of the scores that the query sees.
                let y = values(MaskedSoftmax { mask: Some(&minus), causal: true, ..PLAIN })?;
                let (first, second) = y.split_at(keys as usize);
                assert_eq!(first[..keys as usize - 1], vec![0.0; keys as usize - 1]);
                assert_eq!(first[keys as usize - 1], 1.0);
                assert!(second.iter().all(|v| v.is_nan()));
            }
            // There are more queries than keys, so the first queries see no key.
            let x = random(&[5, 3], dtype, 13)?;
            let y = numbers(&masked_softmax(&x, MaskedSoftmax { causal: true, ..PLAIN })?)?;
            assert!(y[..6].iter().all(|v| (v - 1.0 / 3.0).abs() <= ulp(0.33, dtype)));
            assert_eq!(y[6..9], [1.0, 0.0, 0.0]);
            let f = |p: &[Array]| {
                Ok(vec![masked_softmax(&p[0], MaskedSoftmax { causal: true, ..PLAIN })?])
            };
            let g = numbers(&vjp(|p| f(&p), &[&x], &[&x])?.1[0])?;
            assert_eq!(g[..9], [0.0; 9], "no gradient where nothing is seen, or one key");
        }
        Ok(())
    })
}

#[test]
fn gradients_in_every_type_and_size() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for shape in [[2, 9, 40], [1, 3, 300], [1, 2, 4100], [1, 2, 9000], [1, 2, 17000]] {
                let (x, g) = (random(&shape, dtype, 24)?, random(&shape, dtype, 25)?);
                let bools = random32(&shape[1..], 26)?.greater(-1.5)?;
                for mask in [None, Some(&bools)] {
                    let options = MaskedSoftmax { scale: 0.5, mask, causal: true, window: None };
                    let f = |p: &[Array]| Ok(vec![masked_softmax(&p[0], options)?]);
                    let ours = &vjp(|p| f(&p), &[&x], &[&g])?.1[0];
                    assert_eq!(ours.dtype(), dtype);
                    // Evaluate the formula of the gradient with the op's result, which the kernel
                    // uses too.
                    let (ys, gs) = (numbers(&masked_softmax(&x, options)?)?, numbers(&g)?);
                    let keys = shape[2] as usize;
                    let mut want = Vec::new();
                    for (y, g) in ys.chunks_exact(keys).zip(gs.chunks_exact(keys)) {
                        let (along, _) = crate::table::reference_loops::dot(y, g);
                        want.extend(y.iter().zip(g).map(|(y, g)| 0.5 * y * (g - along)));
                    }
                    for (got, want) in numbers(ours)?.into_iter().zip(want) {
                        let allowed = 0.51 * ulp(want, dtype) + 1e-6;
                        assert!((got - want).abs() <= allowed, "{dtype} {shape:?}: {got} {want}");
                    }
                }
            }
        }
        Ok(())
    })
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::kernel_traffic"]
fn moves_only_visible_scores() -> Checked {
    let x = random32(&[1, 64, 512], 1)?;
    let bools = random32(&[64, 512], 2)?.greater(-1.5)?;
    x.eval()?;
    bools.eval()?;
    let bytes = x.nbytes() as u64;
    let causal = MaskedSoftmax { scale: 0.5, causal: true, ..PLAIN };
    // Query q of 64 sees 449 + q of the 512 keys.
    let seen: u64 = (0..64).map(|q| 449 + q).sum();
    let moved = support::moved(|| masked_softmax(&x, causal))?;
    assert_eq!((moved[0].arrays[0], moved[0].arrays[2]), ([4 * seen, 0, 4 * seen], [0, bytes, 0]));
    let ideal = (4 * seen + bytes) as usize;
    support::report_traffic("masked_softmax causal", &moved, ideal)?;
    let moved =
        support::moved(|| masked_softmax(&x, MaskedSoftmax { mask: Some(&bools), ..causal }))?;
    assert_eq!(moved[0].arrays[..2], [[4 * seen, 0, 4 * seen], [seen, 0, seen]]);
    support::report_traffic("masked_softmax", &moved, ideal + seen as usize)?;
    let moved = support::moved(|| masked_softmax(&x, MaskedSoftmax { window: Some(16), ..PLAIN }))?;
    assert_eq!(moved[0].arrays[0], [4 * 64 * 16, 0, 4 * 64 * 16]);
    Ok(())
}
