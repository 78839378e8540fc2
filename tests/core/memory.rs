//! Memory use does not grow over many rounds of work.
//!
//! MLX counts memory per process, so each measurement runs in a child process: this test binary,
//! with the name of one test and an environment variable.

mod peaks;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use mlx_primitives::device::default_device;
use mlx_primitives::ops::{KvLayout, Rope};
use mlx_primitives::transforms::{compile, grad, jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Error, async_eval, eval, memory, ops};

use crate::support::compare::is_nvidia;
use crate::support::input::random32;
use crate::support::memory::stays_flat;
use crate::support::{Checked, EPS, OPS};

#[test(simulated = once)]
fn of_chains() -> Checked {
    let x = random32(&[2, 4, 16], 1)?;
    let weight = random32(&[16], 2)?;
    stays_flat("of_chains", 100_000, |i| {
        let y = ops::softmax(&ops::rms_norm(&x, Some(&weight), EPS)?)?;
        ops::rope(&y, ops::Rope { dims: 16, offset: (i as i32).into(), ..ops::Rope::default() })?
            .eval()?;
        Ok(())
    })
}

#[test(simulated = once)]
fn of_graphs_never_evaluated() -> Checked {
    let x = random32(&[2, 4, 16], 1)?;
    stays_flat("of_graphs_never_evaluated", 20_000, |_| {
        for (_, op, _) in OPS {
            let _ = op(&op(&x)?)?;
        }
        Ok(())
    })
}

#[test(simulated = once)]
fn of_large_arrays_dropped_while_computed() -> Checked {
    let x = random32(&[64, 64, 64], 1)?;
    stays_flat("of_large_arrays_dropped_while_computed", 200, |_| {
        for (_, op, _) in OPS {
            async_eval([&op(&x.add(1.0)?)?])?;
        }
        mlx_primitives::device::synchronize()?;
        Ok(())
    })
}

#[test(simulated = once)]
fn of_transforms() -> Checked {
    let (x, t) = (random32(&[2, 4, 16], 1)?, random32(&[2, 4, 16], 2)?);
    stays_flat("of_transforms", 2_000, |_| {
        for (_, op, _) in OPS {
            let f = |p: &[Array]| Ok(vec![op(&p[0])?]);
            vjp(|p| f(&p), &[&x], &[&t])?.1[0].eval()?;
            jvp(|p| f(&p), &[&x], &[&t])?.1[0].eval()?;
            grad(|p| op(&p[0])?.square()?.sum(..), &[&x])?[0].eval()?;
        }
        let norm = |p: &[Array]| Ok(vec![ops::rms_norm(&p[0], None, EPS)?]);
        vmap(|p| norm(&p), &[&x], [Some(1)], [1])?[0].eval()?;
        Ok(())
    })
}

#[test(simulated = once)]
fn of_compiled_functions() -> Checked {
    let x = random32(&[2, 4, 16], 1)?;
    let kept = compile(|p| Ok(vec![ops::softmax(&p[0])?]), false)?;
    stays_flat("of_compiled_functions", 5_000, |_| {
        kept.call(&[&x])?[0].eval()?;
        // Each round creates, traces and drops a function that captures an array.
        let held = x.add(1.0)?;
        held.eval()?; // otherwise the graph would reach x itself, which MLX refuses
        let made = compile(move |p| Ok(vec![ops::rms_norm(&p[0], None, EPS)?.add(&held)?]), true)?;
        made.call(&[&x])?;
        Ok(())
    })
}

#[test(simulated = once)]
fn of_errors_and_panics() -> Checked {
    let x = random32(&[2, 4, 16], 1)?;
    stays_flat("of_errors_and_panics", 5_000, |i| {
        let fail = move |p: &[Array]| {
            let y = ops::softmax(&p[0])?;
            match i % 3 {
                0 => Err(Error::from("on purpose")),
                1 => panic!("on purpose"),
                _ => y.reshape([7]).map(|y| vec![y]),
            }
        };
        assert!(vjp(|p| fail(&p), &[&x], &[&x]).is_err());
        assert!(jvp(|p| fail(&p), &[&x], &[&x]).is_err());
        assert!(vmap(|p| fail(&p), &[&x], [Some(0)], 0).is_err());
        assert!(compile(fail, false)?.call(&[&x]).is_err());
        assert!(ops::rms_norm(&x, Some(&x), EPS).is_err());
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _y = ops::softmax(&x).expect("y");
            panic!("on purpose");
        }));
        assert!(panicked.is_err());
        Ok(())
    })
}

#[test(simulated = once)]
fn of_steps_into_a_state() -> Checked {
    let layout = KvLayout { heads: 4, kv_heads: 2, head_dim: 16, capacity: 2048 };
    let empty = layout.zeros(2, Dtype::Float32)?;
    let address = empty.address()?;
    let state = RefCell::new(empty);
    let (last, moved) = (Cell::new(address), Cell::new(0));
    let qkv = random32(&[2, 1, 8 * 16], 1)?;
    let flat = stays_flat("of_steps_into_a_state", 20_000, |i| {
        let position = (i % 2048) as i32;
        let held = memory::active_memory();
        memory::reset_peak_memory();
        let rope = Rope { dims: 16, offset: position.into(), ..Default::default() };
        let new = ops::rope_append(&state.borrow(), &qkv, layout, rope.into())?;
        let _ = state.replace(new);
        let seen = layout.keys(&state.borrow(), position + 1)?;
        eval([&*state.borrow(), &seen])?;
        if is_nvidia(default_device()?) {
            // MLX may still hold the state for an op that has already read it. In this case
            // `rope_append` copies the state.
            moved.set(moved.get() + u64::from(state.borrow().address()? != last.get()));
            last.set(state.borrow().address()?);
            return Ok(());
        }
        assert_eq!(state.borrow().address()?, address, "the buffer stays where it is");
        // A copy of the state would take 1.1 MB. The position and the handles take a few hundred
        // bytes.
        assert!(memory::peak_memory() < held + 4096, "{} more", memory::peak_memory() - held);
        Ok(())
    });
    eprintln!("the state was copied in {} steps", moved.get());
    flat
}

#[test(simulated = once)]
fn of_reading_and_printing() -> Checked {
    let x = random32(&[2, 4, 16], 1)?;
    stays_flat("of_reading_and_printing", 5_000, |_| {
        let y = ops::softmax(&x.t()?)?;
        assert_eq!(y.to_vec::<f32>()?.len(), 128);
        assert!(y.t()?.to_string().starts_with("array("));
        Ok(())
    })
}

#[test]
#[ignore = "reads past a buffer; scripts/sanitize.sh expects AddressSanitizer to find it"]
fn planted_overflow() -> Checked {
    let values = std::hint::black_box(vec![1.0f32; 5]);
    // SAFETY: this is unsound on purpose. It reads the element after the last one, for the
    // sanitizer to find.
    let past = unsafe { values.as_ptr().add(values.len()).read_volatile() };
    anyhow::bail!("read {past}, and nobody noticed")
}
