//! Compares the derivatives of `rope_append` with the derivatives of MLX's ops. The conformance
//! table (`tests/catalog`) compares them with a float64 reference.

use mlx_primitives::graph::dispatches;
use mlx_primitives::ops::{Attention, KvLayout, Offset, Rope, RopeAppend};
use mlx_primitives::transforms::{vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, builtin, eval, ops, stack};

use super::{LAYOUT, state, step, turning};
use crate::support::compare::{assert_close, assert_same, numbers, ulp};
use crate::support::input::{FLOATS, random};
use crate::support::{Checked, each_device};

/// The inputs of a call, and the cotangent of its result.
struct Call {
    layout: KvLayout,
    state: Array,
    qkv: Array,
    cotangent: Array,
}

impl Call {
    fn new(layout: KvLayout, batch: i32, time: i32, dtype: Dtype) -> Result<Self> {
        Ok(Self {
            layout,
            state: state(&layout, batch, dtype, 1)?,
            qkv: step(&layout, batch, time, dtype, 2)?,
            cotangent: state(&layout, batch, dtype, 3)?,
        })
    }

    fn gradients(&self, options: RopeAppend<'_>, theirs: bool) -> Result<[Array; 2]> {
        let new = |(state, qkv): (Array, Array)| {
            let ours = ops::rope_append(&state, &qkv, self.layout, options)?;
            Ok(if theirs { builtin::composition(&ours)?.swap_remove(0) } else { ours })
        };
        let (_, (of_state, of_qkv)) = vjp(new, (&self.state, &self.qkv), &self.cotangent)?;
        Ok([of_state, of_qkv])
    }
}

/// The cases include steps whose queries are stored in the state, longer steps, positions outside
/// the state, and every kind of rotation.
#[test]
fn gradients_are_those_of_mlx() -> Checked {
    let freqs = Array::from_slice(&[1.0f32, 2.5, 7.0], [3])?;
    let places = Array::from_slice(&[70i32, 3], [2])?;
    let slots = Array::from_slice(&[-2i32, 20], [2])?;
    let last_axis = KvLayout { heads: 3, kv_heads: 1, head_dim: 7, capacity: 24 };
    each_device(|_| {
        for dtype in FLOATS {
            for (layout, time) in [(LAYOUT, 1), (LAYOUT, 3), (LAYOUT, 9), (last_axis, 5)] {
                let call = Call::new(layout, 2, time, dtype)?;
                for (number, traditional) in [false, true, false, true].into_iter().enumerate() {
                    let explicit = number / 2 == 1;
                    // Make the slots lazy. Their values are then unknown when the op is built, so
                    // it cannot refuse slots outside the state.
                    let slots = slots.maximum(i32::MIN)?;
                    let rope = Rope {
                        dims: 6,
                        traditional,
                        base: (!explicit).then_some(1e4),
                        freqs: explicit.then_some(&freqs),
                        offset: if explicit { Offset::Each(&places) } else { 5.into() },
                        ..Rope::default()
                    };
                    let (multiplier, slots) = match explicit {
                        true => (1.5, Some(Offset::Each(&slots))),
                        false => (1.0, None),
                    };
                    let options = RopeAppend { rope, multiplier, slots };
                    let what = format!("{dtype} {time} {layout:?} {number}");
                    let [of_state, of_qkv] = call.gradients(options, false)?;
                    assert_eq!(of_qkv.primitive().as_deref(), Some("RopeAppendGrad"), "{what}");
                    let [state, qkv] = call.gradients(options, true)?;
                    assert_same(&of_state, &state, &what)?;
                    // A few operations may round to the other one of two adjacent numbers.
                    let near = 8.0 * ulp(4.0, dtype);
                    assert_close(&numbers(&of_qkv)?, &numbers(&qkv)?, near, &what);
                }
            }
        }
        Ok(())
    })
}

#[test]
fn gradients_transform() -> Checked {
    each_device(|_| {
        let call = Call::new(LAYOUT, 2, 3, Dtype::Float32)?;
        let each = Array::from_slice(&[9i32, 0], [2])?;
        let options = turning(8, &each);
        // The gradients are linear in the cotangent. So the derivative of this function is
        // `rope_append` itself.
        let of = |g: Array| {
            Call { cotangent: g, ..Call::new(LAYOUT, 2, 3, Dtype::Float32)? }
                .gradients(options, false)
        };
        let gradients = |p: Vec<Array>| Ok(of(p[0].clone())?.to_vec());
        let second = vjp(gradients, &[&call.cotangent], &[&call.state, &call.qkv])?.1;
        let want = ops::rope_append(&call.state, &call.qkv, LAYOUT, options)?;
        // Rows of the state's query area that the step does not fill keep the state's values.
        assert_close(&numbers(&second[0])?, &numbers(&want)?, 1e-5, "second derivatives");

        let stacked = stack(&[&call.cotangent, &call.cotangent.multiply(0.5)?], 1)?;
        let mapped = vmap(gradients, &[&stacked], [Some(1)], 0)?;
        let half = of(call.cotangent.multiply(0.5)?)?;
        for (mapped, alone) in mapped.iter().zip(&half) {
            let mapped = mapped.slice_axis(0, 1..2)?.squeeze(0)?;
            assert_same(&mapped, alone, "mapped")?;
        }
        Ok(())
    })
}

/// The gradient of the state may overwrite the cotangent, unless something else still holds it.
#[test]
fn the_cotangent_is_reused_unless_held() -> Checked {
    each_device(|_| {
        let call = Call::new(LAYOUT, 1, 2, Dtype::Float32)?;
        let [of_state, of_qkv] = call.gradients(turning(8, 3), false)?;
        assert_eq!(dispatches(&of_state, 1024)?.len(), 1);
        let before = numbers(&call.cotangent)?;
        eval([&of_state, &of_qkv])?;
        assert_eq!(numbers(&call.cotangent)?, before, "a cotangent that is held");
        assert!(of_state.address()? != call.cotangent.address()?);
        Ok(())
    })
}

/// The derivatives of the joined op equal the derivatives of the two separate ops.
#[test]
fn gradients_of_the_step_and_its_attention() -> Checked {
    each_device(|_| {
        let call = Call::new(LAYOUT, 2, 3, Dtype::Float32)?;
        let g = random(&[2, 3, LAYOUT.heads * LAYOUT.head_dim], Dtype::Float32, 4)?;
        let rules = Attention { causal: true, ..Default::default() };
        let both = |theirs: bool| {
            let of = |p: Vec<Array>| {
                let options = turning(8, 6);
                let (state, attended) =
                    ops::rope_append_attention(&p[0], &p[1], LAYOUT, options, 9, rules)?;
                let ours = vec![state, attended];
                Ok(if theirs { builtin::composition(&ours[0])? } else { ours })
            };
            Ok::<_, mlx_primitives::Error>(
                vjp(of, &[&call.state, &call.qkv], &[&call.cotangent, &g])?.1,
            )
        };
        let (ours, theirs) = (both(false)?, both(true)?);
        assert_eq!(ours[1].primitive().as_deref(), Some("RopeAppendGrad"));
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_close(&numbers(ours)?, &numbers(theirs)?, 1e-4, "the step and its attention");
        }
        Ok(())
    })
}
