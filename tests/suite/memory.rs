//! Memory stays flat over many rounds of work.
//!
//! MLX's counters are per process, so each measurement runs in a child process: this binary again,
//! with one test and an environment variable.

mod peaks;
mod wired;

use std::cell::{Cell, RefCell};
use std::env;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::thread;
use std::time::Duration;

use mlx_primitives::device::{default_device, synchronize};
use mlx_primitives::ops::{KvLayout, Rope};
use mlx_primitives::transforms::{compile, grad, jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Error, async_eval, eval, memory, ops};
use mlx_primitives_llama::{CacheKind, Checkpoint};

use crate::support::compare::is_nvidia;
use crate::support::input::random32;
use crate::support::{Checked, EPS, OPS, fewer_if_simulated};

const CHILD: &str = "MLX_PRIMITIVES_TEST_MEMORY";
/// Fragmentation and buffers of the allocator; one leaked array per round would be tens of times
/// this.
const SLACK: usize = 4 << 20;

/// The resident bytes of this process, or 0 if the system does not report them.
pub fn resident() -> usize {
    let pages = fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|statm| statm.split_whitespace().nth(1)?.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

/// Runs the test `memory::<test>` in another process: this binary again. Returns whether this is that
/// process, which then measures.
fn measures_here(test: &str) -> anyhow::Result<bool> {
    if env::var_os(CHILD).is_some() {
        return Ok(true);
    }
    let child = Command::new(env::current_exe()?)
        .args(["--exact", &format!("memory::{test}"), "--nocapture"])
        .env(CHILD, "1")
        .env("RUST_BACKTRACE", "0")
        .output()?;
    let text = String::from_utf8_lossy(&child.stdout);
    let errors = String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{test}: {}\n{text}\n{errors}", child.status);
    assert!(text.contains("1 passed"), "{test} is not a test:\n{text}");
    println!("{}", text.lines().find(|line| line.contains(" bytes")).unwrap_or_default());
    Ok(false)
}

/// The bytes of arrays that are held. A thread of MLX's gives the memory of an evaluation on an NVIDIA
/// GPU back, soon after its result is there.
fn held() -> mlx_primitives::Result<usize> {
    synchronize()?;
    memory::clear_cache()?;
    let mut least = memory::active_memory();
    if is_nvidia(default_device()?) {
        for _ in 0..50 {
            thread::sleep(Duration::from_millis(10));
            least = least.min(memory::active_memory());
        }
    }
    Ok(least)
}

/// Runs `round` many times in a child process, after a tenth as many rounds to warm up.
fn stays_flat(test: &str, rounds: u64, round: impl Fn(u64) -> anyhow::Result<()>) -> Checked {
    let rounds = fewer_if_simulated(test, rounds, 50);
    if !measures_here(test)? {
        return Ok(());
    }
    let round = |i: u64| {
        // The simulator keeps its record of a thread's dispatches until it is queried.
        #[cfg(target_os = "linux")]
        drop(mlx_primitives::dispatched());
        round(i)
    };
    for i in 0..(rounds / 10).max(2) {
        round(i)?;
    }
    let active = held()?;
    // Arenas and stacks of threads grow once on a busy machine; a leak grows each time.
    let mut grown = usize::MAX;
    for _ in 0..3 {
        let before = resident();
        for i in 0..rounds {
            round(i)?;
        }
        let now = held()?;
        grown = grown.min(resident().saturating_sub(before));
        println!("\n{rounds} rounds: {active} bytes active, then {now}; resident {grown} more");
        assert_eq!(now, active, "active memory");
        if grown < SLACK {
            return Ok(());
        }
    }
    panic!("resident memory grew by {grown} bytes or more each time");
}

#[test]
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

#[test]
fn of_graphs_never_evaluated() -> Checked {
    let x = random32(&[2, 4, 16], 1)?;
    stays_flat("of_graphs_never_evaluated", 20_000, |_| {
        for (_, op, _) in OPS {
            let _ = op(&op(&x)?)?;
        }
        Ok(())
    })
}

#[test]
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

#[test]
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

#[test]
fn of_compiled_functions() -> Checked {
    let x = random32(&[2, 4, 16], 1)?;
    let kept = compile(|p| Ok(vec![ops::softmax(&p[0])?]), false)?;
    stays_flat("of_compiled_functions", 5_000, |_| {
        kept.call(&[&x])?[0].eval()?;
        // Created, traced and dropped together with the array that its closure holds.
        let held = x.add(1.0)?;
        held.eval()?; // otherwise the graph would reach x itself, which MLX refuses
        let made = compile(move |p| Ok(vec![ops::rms_norm(&p[0], None, EPS)?.add(&held)?]), true)?;
        made.call(&[&x])?;
        Ok(())
    })
}

#[test]
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

#[test]
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
            // MLX may still hold the state for a reader that has ended, and then it is copied.
            moved.set(moved.get() + u64::from(state.borrow().address()? != last.get()));
            last.set(state.borrow().address()?);
            return Ok(());
        }
        assert_eq!(state.borrow().address()?, address, "the buffer stays where it is");
        // A copy would take 1.1 MB; a position and its handles take a few hundred bytes.
        assert!(memory::peak_memory() < held + 4096, "{} more", memory::peak_memory() - held);
        Ok(())
    });
    eprintln!("the state was copied in {} steps", moved.get());
    flat
}

#[test]
fn of_decoding() -> Checked {
    let llama = Checkpoint::demo()?.llama;
    let token = Array::from_slice(&[7u32], [1, 1])?;
    let rotating = CacheKind::Rotating { max_size: 32, keep: 4 };
    let cache = RefCell::new(llama.new_cache_of(rotating)?);
    stays_flat("of_decoding", 200, |_| {
        // Beyond the size, every step replaces a position.
        for _ in 0..8 {
            llama.forward(&token, &mut cache.borrow_mut())?.eval()?;
        }
        Ok(())
    })
}

#[test]
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
    // SAFETY: this is unsound on purpose. It reads a sixth of five elements, for the sanitizer to
    // find.
    let past = unsafe { values.as_ptr().add(values.len()).read_volatile() };
    anyhow::bail!("read {past}, and nobody noticed")
}
