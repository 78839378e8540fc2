//! Ops that are measured when they are first built.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mlx_primitives::tune::{self, Choice, Choices, Key, Machine, measure, with_machine};
use mlx_primitives::{Array, Dtype, Result, builtin, ops, random, transforms};

use crate::cli::{command, stderr, stdout};
use crate::support::compare::numbers;
use crate::support::input::random as random_input;
use crate::support::{Checked, message};
use crate::tune::choices_file;

fn key() -> Key {
    let [chip, system, mlx, kernels] = ["a chip", "a system", "1", "2"].map(str::to_owned);
    Key { chip, system, mlx, kernels }
}

/// A clock by which a round of ours takes `ours` microseconds and one of MLX's `mlx`, and the
/// number of times that it was read. A race reads it at its start and then three times per round.
fn clock(ours: u64, mlx: u64) -> (impl Fn() -> Duration + Send + Sync, Arc<AtomicU64>) {
    let asked = Arc::new(AtomicU64::new(0));
    let count = asked.clone();
    let now = move || {
        let asked = count.fetch_add(1, Ordering::Relaxed);
        // 0 is the start; in a round, 1 is the beginning, 2 comes after ours, 3 after MLX's.
        let rounds = asked / 3;
        let part = if asked % 3 == 2 { ours } else { 0 };
        Duration::from_micros(rounds * (ours + mlx) + part)
    };
    (now, asked)
}

fn machine(folder: &Path, mlx: u64) -> (Arc<Machine>, Arc<AtomicU64>) {
    let (clock, asked) = clock(16_000, mlx);
    let file = Some((folder.join("tune.json"), key()));
    (Arc::new(Machine::new(Choices::built_in(&key()), file).measuring(clock)), asked)
}

fn input(dtype: Dtype) -> Result<Array> {
    random_input(&[3, 64], dtype, 1)
}

/// Each class is measured once; the choice is built, stored in the file, and added to the choices
/// of others there.
#[test]
fn first_uses_are_measured_once_and_kept() -> Checked {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("tune.json");
    for (mlx, built, choice) in [(8_000, "Softmax", Choice::Mlx), (32_000, "Softmax", Choice::Ours)]
    {
        let (machine, asked) = machine(folder.path(), mlx);
        let before = Choices::read(&file, &key())?;
        let known = before.iter().flat_map(Choices::measured).count();
        let x = input(if known == 0 { Dtype::Float32 } else { Dtype::Float16 })?;
        let y = with_machine(machine.clone(), || ops::softmax(&x))?;
        assert_eq!(y.primitive().as_deref(), Some(built));
        assert_eq!(builtin::composition(&y).is_ok(), choice == Choice::Ours, "{mlx}");
        let first = asked.load(Ordering::Relaxed);
        assert!(first >= 7, "two rounds at least, asked {first} times");
        with_machine(machine.clone(), || (0..3).try_for_each(|_| ops::softmax(&x).map(drop)))?;
        assert_eq!(asked.load(Ordering::Relaxed), first, "measured again");
        let (_, it) =
            machine.choices().measured().next().map(|(n, it)| (n.to_owned(), *it)).expect("one");
        assert!((it.mlx / it.ours - mlx as f64 / 16_000.0).abs() < 1e-9 && it.agrees, "{it:?}");
        let kept = Choices::read(&file, &key())?.expect("a file");
        assert_eq!(kept.measured().count(), known + 1);
        // Another program finds it there and does not measure.
        let (clock, asked) = clock(1, 1);
        let again = Arc::new(Machine::new(kept, None).measuring(clock));
        let y = with_machine(again, || ops::softmax(&x))?;
        assert_eq!(builtin::composition(&y).is_ok(), choice == Choice::Ours);
        assert_eq!(asked.load(Ordering::Relaxed), 0);
    }
    Ok(())
}

/// The op's graph is not evaluated, and neither random numbers nor results change.
#[test]
fn measuring_changes_nothing_else() -> Checked {
    let folder = tempfile::tempdir()?;
    let (machine, asked) = machine(folder.path(), 8_000);
    let x = input(Dtype::Float32)?;
    random::seed(7)?;
    let expected: Vec<f32> = random::uniform::<f32>(0.0, 1.0, &[4], None)?.to_vec()?;
    random::seed(7)?;
    let lazy = x.exp()?;
    let y = with_machine(machine.clone(), || ops::softmax(&lazy))?;
    assert!(asked.load(Ordering::Relaxed) > 0);
    assert!(lazy.primitive().is_some(), "the input was evaluated");
    assert_eq!(random::uniform::<f32>(0.0, 1.0, &[4], None)?.to_vec::<f32>()?, expected);
    assert_eq!(numbers(&y)?, numbers(&builtin::softmax(&x.exp()?)?)?);
    Ok(())
}

/// Functions that are differentiated, compiled or mapped follow the choices, too.
#[test]
fn transformed_functions_are_measured() -> Checked {
    let folder = tempfile::tempdir()?;
    let x = input(Dtype::Float32)?;
    let softmax = |x: &[Array]| Ok(vec![ops::softmax(&x[0])?]);
    let expected = numbers(&builtin::softmax(&x)?)?;
    let near = |y: &Array| -> Checked {
        let y = numbers(y)?;
        assert!(y.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6), "{y:?}");
        Ok(())
    };
    let (differentiated, asked) = machine(folder.path(), 8_000);
    let y = with_machine(differentiated, || transforms::vjp(|p| softmax(&p), &[&x], &[&x]))?.0;
    near(&y[0])?;
    assert!(asked.load(Ordering::Relaxed) > 0);
    let (compiled, asked) = machine(folder.path(), 8_000);
    let y = with_machine(compiled, || transforms::compile(softmax, false)?.call(&[&x]))?;
    near(&y[0])?;
    assert!(asked.load(Ordering::Relaxed) > 0);
    let (mapped, asked) = machine(folder.path(), 8_000);
    let y = with_machine(mapped, || transforms::vmap(|p| softmax(&p), &[&x], [Some(0)], [0]))?;
    near(&y[0])?;
    assert!(asked.load(Ordering::Relaxed) > 0);
    Ok(())
}

/// An op that cannot be measured follows the built-in rule, without an error.
#[test]
fn ops_that_cannot_be_measured() -> Checked {
    let none = &|| Duration::ZERO;
    let x = input(Dtype::Float32)?;
    let evaluated = ops::softmax(&x)?;
    evaluated.eval()?;
    for other in [evaluated, x.exp()?] {
        assert!(measure(&other, none, Duration::ZERO).is_err());
    }
    // Inputs that would have to be generated first, of more than the allowed size.
    let large = ops::softmax(&Array::scalar(0.0f32)?.broadcast_to([1 << 14, 1 << 14])?)?;
    assert!(message(measure(&large, none, Duration::ZERO)).contains("at most 268435456 bytes"));
    let (clock, asked) = clock(1, 1);
    let machine = Arc::new(Machine::new(Choices::ours(), None).measuring(clock));
    let y = with_machine(machine, || {
        ops::softmax(&Array::scalar(0.0f32)?.broadcast_to([1 << 14, 1 << 14])?)
    })?;
    assert_eq!((y.shape(), asked.load(Ordering::Relaxed)), (&[1 << 14, 1 << 14][..], 0));
    Ok(())
}

/// Threads that meet a class at the same time, and machines that share a file.
#[test]
fn threads_measure_at_the_same_time() -> Checked {
    let folder = tempfile::tempdir()?;
    let machines = [8_000, 32_000].map(|mlx| machine(folder.path(), mlx).0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|thread| {
                let machine = machines[thread % 2].clone();
                scope.spawn(move || -> Checked {
                    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
                        let x = input(dtype)?;
                        let y = with_machine(machine.clone(), || ops::softmax(&x))?;
                        assert_eq!(y.sum(..)?.astype(Dtype::Float32)?.item::<f32>()?.round(), 3.0);
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    let kept = Choices::read(&folder.path().join("tune.json"), &key())?.expect("a file");
    assert!((1..=3).contains(&kept.measured().count()));
    assert_eq!(fs::read_dir(folder.path())?.count(), 1, "nothing else is left");
    Ok(())
}

/// A whole program: `lazy` measures, the next run finds the file, and a stale file is rewritten.
#[test]
fn a_program_measures_its_ops() -> Checked {
    let folder = tempfile::tempdir()?;
    let run = |mode: &str| -> anyhow::Result<[String; 2]> {
        let mut command = command(&["generate", "Once", "--max-tokens", "2"]);
        command.env("XDG_CACHE_HOME", folder.path()).env("MLX_PRIMITIVES_TUNE", mode);
        let output = command.output()?;
        anyhow::ensure!(output.status.success(), "{}", stderr(&output));
        Ok([stdout(&output), stderr(&output)])
    };
    let name = choices_file()?;
    let file = folder.path().join("mlx-primitives").join(name);
    let [text, _] = run("file")?;
    assert!(!file.exists(), "nothing is measured unless asked for on the CPU");
    assert_eq!(run("lazy")?[0], text, "either way gives the same tokens");
    let first = fs::read(&file)?;
    let classes = serde_json::from_slice::<serde_json::Value>(&first)?["measured"].clone();
    assert!(classes.as_object().is_some_and(|all| all.len() >= 3), "{classes}");
    assert_eq!(run("lazy")?[0], text);
    assert_eq!(fs::read(&file)?, first, "measured again");
    fs::write(&file, "{")?;
    let [again, said] = run("lazy")?;
    assert!(again == text && said.contains("are not used"), "{said}");
    assert!(fs::read(&file)?.len() > 100, "written anew");
    assert_eq!(run("off")?[0], text);
    Ok(())
}

#[test]
fn results_agree_up_to_rounding() -> Checked {
    let array = |values: &[f32]| Array::from_slice(values, [values.len() as i32]);
    let theirs = array(&[1.0, f32::NAN, f32::INFINITY])?;
    assert!(tune::agree(&array(&[1.004, f32::NAN, f32::INFINITY])?, &theirs)?);
    for wrong in [[1.006, f32::NAN, f32::INFINITY], [1.0, 1.0, f32::INFINITY], [1.0, f32::NAN, 1.0]]
    {
        assert!(!tune::agree(&array(&wrong)?, &theirs)?, "{wrong:?}");
    }
    assert!(!tune::agree(&theirs.astype(Dtype::Float16)?, &theirs)?);
    assert!(!tune::agree(&array(&[1.0])?, &theirs)?);
    Ok(())
}
