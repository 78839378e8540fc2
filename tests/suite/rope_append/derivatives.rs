//! vjp, jvp and vmap.

use mlx_primitives::ops::{Offset, Rotation, StateLayout};
use mlx_primitives::transforms::{jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, ops, stack};

use super::{LAYOUT, state, step, turning, width};
use crate::support::compare::{assert_close, assert_same, numbers};
use crate::support::input::random32;
use crate::support::{Checked, each_device, reference};

fn appended(p: &[Array]) -> Result<Vec<Array>> {
    // One entry's last position has no room.
    let slots = Array::from_slice(&[3i32, 1], &[2])?.maximum(0)?;
    let by = Rotation { multiplier: 1.5, ..turning(4) };
    Ok(vec![ops::rope_append(&p[0], &p[1], &SMALL, &by, 2, Some(Offset::Each(&slots)))?])
}

const SMALL: StateLayout = StateLayout { heads: 1, kv_heads: 1, head_dim: 6, capacity: 4 };

#[test]
fn derivatives_are_those_of_differences() -> Checked {
    each_device(|_| {
        let (old, qkv) =
            (state(&SMALL, 2, Dtype::Float32, 1)?, step(&SMALL, 2, 2, Dtype::Float32, 2)?);
        let g = state(&SMALL, 2, Dtype::Float32, 3)?;
        let back = vjp(appended, &[&old, &qkv], &[&g])?.1;
        // Linear in both, so a difference over any distance is the derivative.
        let cotangent = numbers(&g)?;
        for (i, (x, got)) in [&old, &qkv].iter().zip(&back).enumerate() {
            let value = |x: &[f64]| -> f64 {
                let x: Vec<f32> = x.iter().map(|&v| v as f32).collect();
                let x = Array::from_slice(&x, if i == 0 { old.shape() } else { qkv.shape() });
                let x = x.expect("the shape's elements");
                let inputs = if i == 0 { [x, qkv.clone()] } else { [old.clone(), x] };
                let y = appended(&inputs).and_then(|y| numbers(&y[0])).expect("a state");
                reference::dot(&y, &cotangent)
            };
            let want = reference::gradient(&numbers(x)?, 1.0, value);
            // Sums of 100 products up to 9, in f32, over a distance of 2.
            assert_close(&numbers(got)?, &want, 1e-4, "vjp");
        }
        let (a, b) = (state(&SMALL, 2, Dtype::Float32, 4)?, step(&SMALL, 2, 2, Dtype::Float32, 5)?);
        let forward = jvp(appended, &[&old, &qkv], &[&a, &b])?.1;
        let left = reference::dot(&numbers(&forward[0])?, &cotangent);
        let right = reference::dot(&numbers(&a)?, &numbers(&back[0])?)
            + reference::dot(&numbers(&b)?, &numbers(&back[1])?);
        assert!((left - right).abs() < 1e-3 * (1.0 + left.abs()), "{left} {right}");
        Ok(())
    })
}

#[test]
fn vmap_over_every_input() -> Checked {
    each_device(|_| {
        let states = random32(&[3, 2, LAYOUT.rows(), 8], 1)?;
        let steps = random32(&[2, 3, 2, width(&LAYOUT)], 2)?; // mapped over axis 1
        let offsets = Array::from_slice(&[1i32, 9, 4, 0, 21, 7], &[3, 2])?;
        let freqs = random32(&[3, 4], 3)?.abs()?.add(0.5)?;
        let f = |p: &[Array]| {
            let by = Rotation { base: None, freqs: Some(&p[3]), ..turning(8) };
            Ok(vec![ops::rope_append(&p[0], &p[1], &LAYOUT, &by, &p[2], None)?])
        };
        let entry = |x: &Array, axis: i32, i: i32| x.slice_axis(axis, i..i + 1)?.squeeze(&[axis]);
        for mapped in 1..16 {
            let axes: Vec<Option<i32>> = [0, 1, 0, 0]
                .iter()
                .enumerate()
                .map(|(i, &a)| (mapped >> i & 1 == 1).then_some(a))
                .collect();
            let all = [&states, &steps, &offsets, &freqs];
            let at = |i: i32| -> Result<Vec<Array>> {
                all.iter()
                    .zip(&axes)
                    .zip([0, 1, 0, 0])
                    .map(|((x, axis), own)| entry(x, own, if axis.is_some() { i } else { 0 }))
                    .collect()
            };
            let first = at(0)?;
            let inputs: Vec<&Array> =
                (0..4).map(|i| if axes[i].is_some() { all[i] } else { &first[i] }).collect();
            let got = vmap(f, &inputs, &axes, &[0])?.remove(0);
            let want: Vec<Array> =
                (0..3).map(|i| Ok(f(&at(i)?)?.remove(0))).collect::<Result<_>>()?;
            let want = stack(&want.iter().collect::<Vec<_>>(), 0)?;
            // Frequencies of their own are composed of MLX's rope: an ulp of its angle at most.
            if axes[3].is_some() {
                assert_close(&numbers(&got)?, &numbers(&want)?, 1e-4, "mapped frequencies");
            } else {
                assert_same(&got, &want, &format!("{axes:?}"))?;
            }
        }
        Ok(())
    })
}
