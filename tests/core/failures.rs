//! Causes failed evaluations of all kinds on several threads. Afterwards no call waits too long, no
//! caller gets the error of an unrelated failure, and correct results stay correct.

use std::fs::File;
use std::thread;

use mlx_primitives::custom::{CustomPrimitive, Spec, View, ViewMut, apply_one};
use mlx_primitives::device::{Device, Stream, active_tasks, with_stream};
use mlx_primitives::transforms::{compile, vjp, vmap};
use mlx_primitives::{Array, Dtype, Error, Result, async_eval, eval, io};

use crate::support::input::random32;
use crate::support::{Checked, message, on_cpu};
use harness::roles::{ends, rounds};

/// A primitive whose CPU kernel panics or returns an error. With `in_transform`, its derivative and
/// `vmap` return errors too.
#[derive(Clone)]
struct Fails {
    panics: bool,
    in_transform: bool,
}

impl CustomPrimitive for Fails {
    fn name(&self) -> &str {
        "fails"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(inputs.to_vec())
    }

    fn eval_cpu(&self, _: &[View<'_>], _: &mut [ViewMut<'_>]) -> Result<()> {
        assert!(!self.panics, "a panic on purpose");
        Err(Error::from("an error on purpose"))
    }

    fn vjp(&self, _: &[Array], g: &[Array], _: &[usize], _: &[Array]) -> Result<Vec<Array>> {
        match self.in_transform {
            true => Err(Error::from("no derivative on purpose")),
            false => Ok(vec![apply_one(self.clone(), &[&g[0]])?]),
        }
    }

    fn vmap(&self, x: &[Array], axes: &[Option<usize>]) -> Result<(Vec<Array>, Vec<usize>)> {
        match self.in_transform {
            true => Err(Error::from("no vmap on purpose")),
            false => Ok((vec![apply_one(self.clone(), &[&x[0]])?], vec![axes[0].unwrap_or(0)])),
        }
    }
}

fn fails(x: &Array, panics: bool) -> Result<Array> {
    apply_one(Fails { panics, in_transform: false }, &[x])
}

/// A lazy array of a file that is truncated after it was opened.
fn truncated(x: &Array) -> anyhow::Result<Array> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("short.safetensors");
    io::save_safetensors(&path, [("x", x)], [])?;
    let loaded = io::load_safetensors(&path)?.arrays.remove("x").expect("x");
    let file = File::options().write(true).open(&path)?;
    file.set_len(file.metadata()?.len() - 4)?;
    Ok(loaded)
}

/// The number of kinds of failure that `fail` can cause. After each, the affected arrays report the
/// error.
const KINDS: u32 = 12;

fn fail(kind: u32, x: &Array) -> Checked {
    let mut chain = fails(x, kind % 2 == 1)?;
    let mut expected = "on purpose";
    let failure = match kind % KINDS {
        0 | 1 => chain.eval(),
        2 | 3 => {
            for step in 0..30 {
                chain = chain.add(step as f32)?;
            }
            chain.to_vec::<f32>().map(drop)
        }
        4 | 5 => {
            // Evaluate two arrays that fail and one that does not.
            let (other, good) = (fails(&x.add(1.0)?, true)?.exp()?, x.multiply(2.0)?);
            let failure = eval([&other, &good, &chain.add(1.0)?]);
            assert_eq!(good.to_vec::<f32>()?.len(), x.size());
            assert!(other.to_vec::<f32>().is_err());
            failure
        }
        6 => {
            async_eval([&chain])?;
            chain.add(1.0)?.to_vec::<f32>().map(drop)
        }
        7 => {
            let (a, b) = (Stream::new(Device::Cpu)?, Stream::new(Device::Cpu)?);
            let y = with_stream(&a, || fails(x, true)?.add(1.0))?;
            let z = with_stream(&b, || y.multiply(2.0))?;
            async_eval([&z])?;
            z.to_vec::<f32>().map(drop)
        }
        8 => {
            let y = vjp(|p| Ok(vec![fails(&p[0], false)?]), &[x], &[x])?.1;
            y[0].eval()
        }
        9 => {
            let refused = Fails { panics: false, in_transform: true };
            let f = move |p: &[Array]| Ok(vec![apply_one(refused.clone(), &[&p[0]])?]);
            message(vjp(|p| f.clone()(&p), &[x], &[x]));
            vmap(|p| f(&p), &[x], [Some(0)], 0).map(drop)
        }
        10 => {
            let f = compile(|p| Ok(vec![fails(&p[0], false)?.add(1.0)?]), false)?;
            f.call(&[x])?[0].eval()
        }
        _ => {
            expected = "short.safetensors: x: expected";
            let y = truncated(x)?.add(1.0)?;
            async_eval([&y])?;
            y.eval()
        }
    };
    let said = message(failure);
    assert!(said.contains(expected), "{kind}: {said}");
    Ok(())
}

/// Evaluates an unrelated array after a failure.
fn good(x: &Array, want: &[f32]) -> Checked {
    assert_eq!(x.add(1.0)?.to_vec::<f32>()?, want);
    Ok(())
}

/// Causes every kind of failure, with a correct evaluation after each. Then evaluates only correct
/// arrays.
fn fail_and_go_on(rounds: u32) -> Checked {
    let x = random32(&[2, 8], 1)?;
    let want = x.add(1.0)?.to_vec::<f32>()?;
    for round in 0..rounds {
        fail(round, &x)?;
        good(&x, &want)?;
        // Start an evaluation that fails, and do not wait for it.
        async_eval([&fails(&x, round % 2 == 0)?.add(1.0)?])?;
        good(&x, &want)?;
    }
    for _ in 0..rounds {
        good(&x, &want)?;
    }
    Ok(())
}

/// Runs the failures on the main thread of a child process, and then on other threads.
pub fn on_the_main_thread() -> Checked {
    on_cpu(|| {
        fail_and_go_on(rounds(40) * KINDS)?;
        for thread in 0..3 {
            let run = move || on_cpu(|| fail_and_go_on(KINDS + thread));
            thread::spawn(run).join().expect("no panic")?;
        }
        assert_eq!(active_tasks()?, 0);
        Ok(())
    })
}

#[test(simulated = never)]
fn the_main_thread_goes_on() -> Checked {
    ends("failures", 0, 1)
}

#[test(simulated = never)]
fn threads_go_on() -> Checked {
    let many: Vec<_> =
        (0..4).map(|_| thread::spawn(|| on_cpu(|| fail_and_go_on(rounds(5) * KINDS)))).collect();
    for thread in many {
        thread.join().expect("no panic")?;
    }
    Ok(())
}

/// Other evaluations may already use an array when it fails. Their arrays get the error too.
#[test(simulated = never)]
fn failures_follow_what_is_computed_from_them() -> Checked {
    on_cpu(|| {
        let x = random32(&[2, 8], 2)?;
        let slow = x.add(0.0)?;
        let first = fails(&slow, false)?;
        async_eval([&first])?;
        let second = first.add(1.0)?;
        let third = second.multiply(2.0)?;
        // These evaluations may start before or after the evaluation of `first` has failed.
        let started = [async_eval([&second]), async_eval([&third])];
        for array in [&third, &second, &first, &third.reshape([16])?] {
            assert!(message(array.to_vec::<f32>()).contains("an error on purpose"));
        }
        for failure in started.into_iter().filter_map(std::result::Result::err) {
            assert!(failure.to_string().contains("an error on purpose"), "{failure}");
        }
        assert_eq!(slow.to_vec::<f32>()?, x.to_vec::<f32>()?);
        Ok(())
    })
}

/// If a file becomes shorter, only the arrays that are read from the file get an error.
#[test(simulated = never)]
fn a_file_that_becomes_shorter() -> Checked {
    let x = random32(&[64, 64], 3)?;
    let y = truncated(&x)?;
    assert_eq!((y.shape(), y.dtype()), (&[64, 64][..], Dtype::Float32));
    async_eval([&y])?;
    assert_eq!(x.add(1.0)?.to_vec::<f32>()?.len(), 64 * 64);
    for _ in 0..2 {
        let said = message(y.to_vec::<f32>());
        assert!(said.contains("short.safetensors: x: expected 16384 bytes, got fewer"), "{said}");
    }
    Ok(())
}
