//! The choices between our kernels and MLX's ops: how they are made, where they are stored, and how
//! ops use them.

use std::fs;
use std::rc::Rc;

use mlx_primitives::ops::{self, Attention, Linear, MaskedSoftmax};
use mlx_primitives::transforms::grad;
use mlx_primitives::tune::{Choice, Choices, Key, Measured, with_choices};
use mlx_primitives::{Array, Dtype, Result};
use serde_json::Value;

use crate::support::Checked;
use crate::support::compare::{assert_close, numbers};
use crate::support::input::random;
use crate::support::tune::{class, key, linear};

fn measured(ours: f64, mlx: f64) -> Measured {
    Measured { ours, mlx, agrees: true }
}

/// If our kernel and MLX's op take the same time within the noise, our kernel is chosen. If the
/// result of our kernel is wrong, MLX's op is chosen.
#[test]
fn the_faster_one_is_chosen() {
    for (mlx, choice) in [(100.0, Choice::Ours), (98.0, Choice::Ours), (96.0, Choice::Mlx)] {
        assert_eq!(measured(100.0, mlx).choice(), choice, "{mlx}");
    }
    assert_eq!(Measured { agrees: false, ..measured(1.0, 100.0) }.choice(), Choice::Mlx);
}

/// A choice is valid for a class: an op, a type and a range of row counts. It depends on all
/// measurements of the class.
#[test]
fn choices_are_of_classes() -> Checked {
    let [one, few, many] = [1, 8, 9].map(|rows| linear(rows, Dtype::Float16));
    let (one, few, many) = (one?, few?, many?);
    assert_eq!(many.to_string(), "linear, float16, more rows");
    assert_eq!(
        (linear(2, Dtype::Float16)?, linear(700, Dtype::Float16)?),
        (few.clone(), many.clone())
    );
    let mut choices = Choices::ours();
    choices.add(&many, measured(10.0, 5.0));
    choices.add(&few, measured(5.0, 10.0));
    assert_eq!(
        [&one, &few, &many].map(|it| choices.choice(it)),
        [Choice::Ours, Choice::Ours, Choice::Mlx]
    );
    choices.add(&many, measured(10.0, 25.0));
    assert_eq!(choices.choice(&many), Choice::Ours);
    choices.add(&many, Measured { agrees: false, ..measured(0.0, 0.0) });
    assert_eq!(choices.choice(&many), Choice::Mlx);
    assert_eq!(choices.choice(&linear(9, Dtype::Bfloat16)?), Choice::Ours);
    let mut new = Choices::ours();
    new.add(&many, measured(1.0, 2.0));
    choices.replace(new);
    assert_eq!((choices.choice(&many), choices.measured().count()), (Choice::Ours, 2));
    Ok(())
}

/// Without measurements, on an M5 or later with macOS 26.2 (Darwin 25.2) or later, MLX's ops
/// compute 16-bit matrix products of many rows, because they use the GPU's neural accelerators.
#[test]
fn the_built_in_rule() -> Checked {
    let x = random(&[1, 2, 16, 64], Dtype::Float16, 1)?;
    let attention = class(|| ops::attention(&x, &x, &x, Attention::default()))?;
    let softmax = class(|| ops::softmax(&x))?;
    for (chip, system, mlx) in [
        ("Apple M5", "Darwin 25.2.0 arm64", true),
        ("Apple M5 Pro", "Darwin 26.0.1 arm64", true),
        ("Apple M10", "Darwin 27.1.0 arm64", true),
        ("Apple M5", "Darwin 25.1.0 arm64", false),
        ("Apple M5", "Darwin 24.6.0 arm64", false),
        ("Apple M4 Max", "Darwin 25.2.0 arm64", false),
        ("AMD EPYC", "Linux 99.0.0 x86_64", false),
        ("", "", false),
    ] {
        let (chip, system) = (chip.to_owned(), system.to_owned());
        let choices = Choices::built_in(&Key { chip, system, ..key() });
        let expected = if mlx { Choice::Mlx } else { Choice::Ours };
        for class in [&linear(9, Dtype::Float16)?, &linear(512, Dtype::Bfloat16)?, &attention] {
            assert_eq!(choices.choice(class), expected, "{class}");
        }
        for class in [&linear(8, Dtype::Float16)?, &linear(9, Dtype::Float32)?, &softmax] {
            assert_eq!(choices.choice(class), Choice::Ours, "{class}");
        }
        let mut measurement = choices.clone();
        measurement.add(&attention, measured(1.0, 2.0));
        assert_eq!(measurement.choice(&attention), Choice::Ours, "measured");
    }
    Ok(())
}

/// Measurements of three classes. All times have this value.
fn some(value: f64) -> anyhow::Result<Choices> {
    let mut choices = Choices::built_in(&key());
    for rows in [1, 4, 100] {
        choices.add(&linear(rows, Dtype::Float32)?, measured(value, value));
    }
    Ok(choices)
}

#[test]
fn stale_and_broken_files_are_refused() -> Checked {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("new/folder/tune.json");
    assert_eq!(Choices::read(&path, &key())?, None);
    let choices = some(0.1 + 0.2)?; // the file must keep every bit
    choices.write(&path, &key())?;
    assert_eq!(Choices::read(&path, &key())?, Some(choices));
    let said = |key: &Key| match Choices::read(&path, key) {
        Ok(read) => panic!("read {read:?}"),
        Err(error) => error.to_string(),
    };
    let other = || "other".to_owned();
    for (key, part) in [
        (Key { chip: other(), ..key() }, "the chip is \"other\", and was \"Apple M3 Max\""),
        (Key { system: other(), ..key() }, "the system is \"other\", and was \"Darwin 25.2.0"),
        (Key { mlx: other(), ..key() }, "MLX is \"other\", and was \"0.32.4\""),
        (Key { kernels: other(), ..key() }, "the hash of the kernels is \"other\", and was \"0123"),
    ] {
        let said = said(&key);
        assert!(said.contains(part) && said.contains("tune.json"), "{said}");
    }
    let text = fs::read_to_string(&path)?;
    let whole: Value = serde_json::from_str(&text)?;
    let with = |name: &str, value: Value| {
        let mut changed = whole.clone();
        changed[name] = value;
        changed.to_string()
    };
    for (text, part) in [
        (String::new(), "EOF"),
        (text[..text.len() / 2].to_owned(), "EOF"),
        ("\u{0}".repeat(100), "expected value"),
        ("[]".to_owned(), "invalid length"),
        (with("format", "mlx-primitives tune 2".into()), "the format is"),
        (with("measured", 3.into()), "invalid type"),
        (with("key", Value::Null), "invalid type"),
    ] {
        fs::write(&path, &text)?;
        let said = said(&key());
        assert!(said.contains("are not used: ") && said.contains(part), "{part}: {said}");
    }
    fs::write(&path, [0xff, 0xfe])?;
    assert!(said(&key()).contains("UTF-8"));
    fs::remove_file(&path)?;
    fs::create_dir(&path)?;
    assert!(said(&key()).contains("a regular file, got a directory"));
    assert!(some(1.0)?.write(&path, &key()).is_err());
    Ok(())
}

/// Several threads write the file while others read it. A reader always finds a complete file.
#[test]
fn writers_at_the_same_time_leave_a_whole_file() -> Checked {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tune.json");
    some(0.5)?.write(&path, &key())?;
    std::thread::scope(|scope| {
        let writers: Vec<_> = (1..5)
            .map(|writer| {
                let path = &path;
                scope.spawn(move || -> Checked {
                    let choices = some(f64::from(writer))?;
                    (0..50).try_for_each(|_| Ok(choices.write(path, &key())?))
                })
            })
            .collect();
        let mut reads = 0;
        while reads < 100 || !writers.iter().all(|writer| writer.is_finished()) {
            let read = Choices::read(&path, &key())?.expect("there always is a file");
            let mut values = read.measured().map(|(_, it)| it.ours);
            let first = values.next().expect("three classes");
            assert!(values.all(|value| value == first), "{read:?}");
            reads += 1;
        }
        writers.into_iter().try_for_each(|writer| writer.join().expect("no panic"))
    })?;
    assert_eq!(fs::read_dir(folder.path())?.count(), 1, "nothing else is left");
    Ok(())
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error() -> Checked {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("file");
    fs::write(&file, "")?;
    let said = some(1.0)?.write(&file.join("tune.json"), &key());
    assert!(said.is_err_and(|error| error.to_string().contains("cannot be written")));
    Ok(())
}

/// Ops build the chosen implementation. Shapes, types and derivatives do not depend on the choice.
#[test]
fn ops_build_the_chosen_implementation() -> Checked {
    let (ours, mlx) = (Rc::new(Choices::ours()), Rc::new(Choices::mlx()));
    let mut softmax = Choices::ours();
    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
        let x = random(&[2, 12, 64], dtype, 3)?;
        let w = random(&[64, 64], dtype, 4)?;
        softmax.add(&class(|| ops::softmax(&x))?, measured(2.0, 1.0));
        type Op<'a> = &'a dyn Fn(&Array) -> Result<Array>;
        let all: [(&str, &str, Op); 5] = [
            ("RmsNorm", "RMSNorm", &|x| ops::rms_norm(x, None, 1e-5)),
            ("Linear", "Matmul", &|x| ops::linear(x, &w, Linear::default())),
            ("Activation", "Multiply", &|x| ops::silu(x)),
            ("Reduction", "Divide", &|x| ops::mean(x, -1)),
            ("Rope", "RoPE", &|x| ops::rope(x, ops::Rope { dims: 64, ..ops::Rope::default() })),
        ];
        for (name, of_mlx, op) in all {
            let [one, other] =
                [&ours, &mlx].map(|choices| with_choices(choices.clone(), || op(&x)));
            let (one, other) = (one?, other?);
            assert_eq!(one.primitive().as_deref(), Some(name));
            assert!(other.primitive().is_some_and(|it| it != name), "{name}: {of_mlx}");
            assert_eq!((one.shape(), one.dtype()), (other.shape(), other.dtype()), "{name}");
            let tolerance = if dtype == Dtype::Float32 { 1e-4 } else { 0.1 };
            assert_close(&numbers(&one)?, &numbers(&other)?, tolerance, name);
            let gradient = |choices: &Rc<Choices>| {
                let sum = |x: &[Array]| op(&x[0])?.astype(Dtype::Float32)?.square()?.sum(..);
                with_choices(choices.clone(), || grad(|p| sum(&p), &[&x]))
            };
            let (one, other) = (gradient(&ours)?, gradient(&mlx)?);
            assert_eq!(one[0].dtype(), other[0].dtype(), "{name}");
            if dtype == Dtype::Float32 {
                assert_close(&numbers(&one[0])?, &numbers(&other[0])?, 2e-3, name);
            }
        }
        // A choice for softmax does not affect other ops.
        let softmax = Rc::new(softmax.clone());
        with_choices(softmax, || -> Checked {
            assert_eq!(ops::rms_norm(&x, None, 1e-5)?.primitive().as_deref(), Some("RmsNorm"));
            mlx_primitives::builtin::composition(&ops::softmax(&x)?)
                .map_or(Ok(()), |_| anyhow::bail!("softmax is ours"))
        })?;
    }
    // If an op reshapes the result of our kernel, here because x is a vector, it always uses our
    // kernel.
    let x = random(&[100], Dtype::Float32, 5)?;
    let options = MaskedSoftmax { window: Some(3), ..Default::default() };
    let y = with_choices(mlx, || ops::masked_softmax(&x, options))?;
    assert_eq!(y.primitive().as_deref(), Some("Squeeze"));
    assert_eq!(numbers(&y)?, numbers(&ops::masked_softmax(&x, options)?)?);
    Ok(())
}
