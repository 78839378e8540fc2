//! Small graphs on one CPU stream. The stream's thread receives several kernels at a time. The
//! results must equal the results of evaluating each array alone, and the results of MLX's
//! evaluation.

use std::thread;
use std::time::Duration;

use mlx_primitives::custom::{CustomPrimitive, View, ViewMut, apply_one};
use mlx_primitives::device::{Device, Stream, with_device, with_stream};
use mlx_primitives::ops::{self, KvLayout, Rope};
use mlx_primitives::{Array, Dtype, Error, Result, async_eval, eval, step as every};

use crate::support::Checked;
use crate::support::compare::{assert_same, eval_by_mlx};
use crate::support::custom::{Computed, same};
use crate::support::input::random32;

/// A primitive that computes y = 2 x, or fails.
fn doubles(fails: bool) -> impl CustomPrimitive {
    Computed("doubles", move |x: &[View<'_>], y: &mut [ViewMut<'_>]| {
        if fails {
            return Err(Error::from("an error on purpose"));
        }
        let pairs = y[0].as_mut_slice::<f32>()?.iter_mut().zip(x[0].as_slice::<f32>()?);
        pairs.for_each(|(y, x)| *y = 2.0 * x);
        Ok(())
    })
}

/// The number of kinds of steps in a chain: our ops, MLX's ops, views, views that copy, and a
/// user's primitive.
const STEPS: u64 = 9;

fn step(kind: u64, x: &Array) -> Result<Array> {
    match kind {
        0 => ops::rms_norm(x, None, 1e-5),
        1 => ops::softmax(&x.multiply(3.0)?),
        2 => Ok(ops::rms_norm_residual(x, &ops::softmax(x)?, None, 1e-5)?.1), // one of two outputs
        3 => x.t()?.reshape((8, 16)),
        4 => x.reshape((2, 4, 16))?.i((1, .., ..))?.broadcast_to((2, 4, 16))?.reshape((8, 16)),
        5 => x.expand_dims(0)?.squeeze(0)?.add(x),
        6 => apply_one(doubles(false), &[x]),
        7 => ops::silu(x),
        _ => x.exp()?.minimum(4.0)?.subtract(1.0),
    }
}

/// Draws a chain of ops from a seed. If `alone`, evaluates after each op, and otherwise once at the
/// end.
fn chain(seed: u64, alone: bool) -> Result<Vec<Array>> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut x = random32(&[8, 16], seed)?;
    let mut kept = Vec::new();
    for _ in 0..40 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        x = step((state >> 33) % STEPS, &x)?;
        if alone {
            x.eval()?;
        }
        if (state >> 50).is_multiple_of(4) {
            kept.push(x.clone());
        }
    }
    kept.push(x.clone());
    async_eval([&x])?;
    Ok(kept)
}

fn chains_agree(seeds: std::ops::Range<u64>) -> Result<()> {
    with_device(Device::Cpu, || {
        for seed in seeds {
            let (at_once, alone) = (chain(seed, false)?, chain(seed, true)?);
            drop(chain(seed + 1, false)?); // nobody waits for this one
            for (a, b) in at_once.iter().zip(&alone) {
                assert_same(a, b, "an array of the chain")?;
            }
        }
        Ok(())
    })
}

#[test(simulated = never)]
fn mixed_graphs_on_many_threads() -> Checked {
    chains_agree(0..20)?;
    thread::scope(|scope| {
        let threads: Vec<_> =
            (1..6).map(|t| scope.spawn(move || chains_agree(100 * t..100 * t + 10))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    Ok(())
}

#[test(simulated = never)]
fn a_failure_between_kernels_belongs_to_its_dependents() -> Checked {
    with_device(Device::Cpu, || {
        let x = random32(&[8, 16], 3)?;
        let norm = ops::rms_norm(&x, None, 1e-5)?;
        let failed = apply_one(doubles(true), &[&norm])?;
        let bad = ops::softmax(&ops::rms_norm(&failed, None, 1e-5)?)?;
        let good = ops::softmax(&norm)?;
        let error = eval([&bad, &good]).map_err(|error| error.to_string());
        assert!(error.is_err_and(|error| error.contains("on purpose")));
        let want = ops::softmax(&ops::rms_norm(&x, None, 1e-5)?)?;
        assert_same(&good, &want, "what does not depend on the failure")?;
        assert!(bad.to_vec::<f32>().is_err() && ops::silu(&bad)?.eval().is_err());
        assert_same(&ops::softmax(&norm)?, &want, "a later result")?;
        Ok(())
    })
}

/// A primitive that computes y = x after a delay.
fn late() -> impl CustomPrimitive {
    Computed("late", |x: &[View<'_>], y: &mut [ViewMut<'_>]| {
        thread::sleep(Duration::from_millis(5));
        same(x, y)
    })
}

const LAYOUT: KvLayout = KvLayout { heads: 2, kv_heads: 1, head_dim: 16, capacity: 24 };

/// A decoding step whose projection is slow. Returns the new state of the key/value cache, and the
/// result of attention over this state.
fn late_step(state: &Array, position: i32) -> Result<[Array; 2]> {
    let qkv = apply_one(late(), &[&random32(&[1, 1, 64], 7 + position as u64)?])?;
    let rope = Rope { dims: 16, offset: position.into(), ..Rope::default() };
    let state = ops::rope_append(state, &qkv, LAYOUT, rope.into())?;
    let (queries, len) = (LAYOUT.queries(&state, 1)?, position + 1);
    let (keys, values) = (LAYOUT.keys(&state, len)?, LAYOUT.values(&state, len)?);
    let attended = ops::attention(&queries, &keys, &values, ops::Attention::default())?;
    Ok([state, attended])
}

#[test(simulated = never)]
fn a_state_is_updated_in_place_while_queued_calls_read_it() -> Checked {
    with_device(Device::Cpu, || {
        let state = || random32(&[1, LAYOUT.rows(), 16], 3);
        let (mut ours, mut theirs) = (state()?, state()?);
        let place = ours.address()?;
        theirs.eval()?;
        let (mut queued, mut alone) = (Vec::new(), Vec::new());
        for position in 0..12 {
            let [state, attended] = late_step(&ours, position)?;
            ours = state;
            async_eval([&attended])?; // the step before has not run yet
            queued.push(attended);
            let [state, attended] = late_step(&theirs.multiply(1.0)?, position)?;
            theirs = state;
            alone.push(attended);
        }
        assert_eq!(ours.address()?, place);
        for (a, b) in queued.iter().zip(&alone) {
            b.eval()?;
            assert_same(a, b, "the attention of a step")?;
        }
        assert_same(&ours, &theirs, "the state")?;

        // The program holds a view of the state. Later steps must not change the view's numbers.
        let held = LAYOUT.keys(&ours, 20)?;
        held.eval()?;
        let before = held.to_vec::<f32>()?;
        for position in 12..16 {
            let [state, attended] = late_step(&ours, position)?;
            ours = state;
            async_eval([&attended])?;
        }
        assert_ne!(ours.address()?, place);
        assert_eq!(held.to_vec::<f32>()?, before);

        // The program holds a state. The next step must not change its numbers.
        let want = late_step(&ours.multiply(1.0)?, 16)?[0].clone();
        want.eval()?;
        let [state, attended] = late_step(&ours, 16)?;
        drop(ours);
        async_eval([&attended])?;
        let held = state.clone();
        let [next, attended] = late_step(&state, 17)?;
        drop(state);
        async_eval([&attended, &next])?;
        assert_same(&held, &want, "a state that is held")?;

        // A view has not been evaluated yet. The next step must not change its numbers either.
        for view_first in [true, false] {
            let start = LAYOUT.zeros(1, Dtype::Float32)?;
            let [state, _] = late_step(&start.multiply(1.0)?, 3)?;
            let want = LAYOUT.keys(&state, 20)?.multiply(1.0)?;
            want.eval()?;
            let [state, attended] = late_step(&start, 3)?;
            drop(start);
            async_eval([&attended])?;
            let view = LAYOUT.keys(&state, 20)?;
            let [next, attended] = late_step(&state, 4)?;
            drop(state);
            if view_first {
                async_eval([&view])?;
            }
            eval([&attended, &next])?; // which a view in the same memory would show
            assert_same(&view, &want, "a view of a state that calls use")?;
        }
        Ok(())
    })
}

#[test(simulated = never)]
fn streams_wait_for_one_another() -> Checked {
    with_device(Device::Cpu, || {
        let (first, second) = (Stream::new(Device::Cpu)?, Stream::new(Device::Cpu)?);
        for round in 0..12 {
            let x = random32(&[8, 16], 100 + round)?;
            let y = with_stream(&first, || apply_one(late(), &[&x]))?;
            if round % 2 == 1 {
                async_eval([&y])?; // queued before the op that reads it is built
            }
            let z = with_stream(&second, || ops::softmax(&y))?;
            assert_same(&z, &ops::softmax(&x)?, &format!("round {round}"))?;
        }
        Ok(())
    })
}

/// MLX's matrix product copies factors whose rows are not contiguous. Only MLX's queued task holds
/// these copies.
#[test(simulated = never)]
fn temporaries_of_mlx_are_kept_until_its_tasks_have_run() -> Checked {
    with_device(Device::Cpu, || {
        let x = random32(&[64, 128], 9)?;
        let product = |x: &Array| {
            let gaps = x.i((.., every(.., 2)))?;
            gaps.matmul(&gaps)
        };
        let want = product(&x)?;
        want.eval()?;
        let late = product(&apply_one(late(), &[&x])?)?;
        async_eval([&late])?;
        // Allocate arrays of the same size as the copies, and write to them while the tasks wait.
        let others = (0..32).map(|i| Array::from_slice(&[i as f32; 64 * 64], 64 * 64));
        let others = others.collect::<Result<Vec<_>>>()?;
        assert_same(&late, &want, "the product")?;
        for (i, other) in others.iter().enumerate() {
            assert!(other.to_vec::<f32>()?.iter().all(|x| *x == i as f32), "array {i} was changed");
        }
        Ok(())
    })
}

/// A contiguous copy of one row does not keep the whole matrix in memory.
#[test(simulated = never)]
fn contiguous_parts_leave_large_arrays() -> Checked {
    with_device(Device::Cpu, || {
        let whole = random32(&[64, 4096], 11)?;
        whole.eval()?;
        assert_eq!(whole.contiguous()?.address()?, whole.address()?);
        let row = whole.i(0..1)?;
        let elsewhere = Stream::new(Device::Cpu)?;
        let (ours, theirs) = (row.contiguous()?, row.contiguous()?);
        ours.eval()?;
        eval_by_mlx(&[&theirs], &elsewhere)?;
        for copy in [ours, theirs] {
            assert_ne!(copy.address()?, row.address()?);
            assert_same(&copy, &row, "the row")?;
        }
        Ok(())
    })
}
