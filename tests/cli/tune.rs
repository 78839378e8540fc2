//! `mlx-primitives tune`, and programs that use the file that it writes.

use std::fs;
use std::path::Path;

use mlx_primitives::device::default_device;
use mlx_primitives::tune::{Choices, Key, Measured};
use mlx_primitives::{Dtype, Result, ops};
use serde_json::Value;

use crate::command::{command, stderr, stdout};
use crate::support::input::random;
use crate::support::tune::{choices_file, class, linear};
use crate::support::{Checked, simulated};

/// A measurement in which MLX's op is faster.
fn slower() -> Measured {
    Measured { ours: 2.0, mlx: 1.0, agrees: true }
}

/// Runs a command with this value of `MLX_PRIMITIVES_TUNE`, and returns its output.
fn tuned(cache: &Path, arguments: &[&str], variable: &str) -> anyhow::Result<std::process::Output> {
    let mut command = command(arguments);
    Ok(command.env("XDG_CACHE_HOME", cache).env("MLX_PRIMITIVES_TUNE", variable).output()?)
}

#[test(simulated = never)]
fn the_command_measures_and_others_use_it_where_they_ask() -> Checked {
    let folder = tempfile::tempdir()?;
    let cache = folder.path();
    let run = |arguments: &[&str], variable: &str| -> anyhow::Result<String> {
        let output = tuned(cache, arguments, variable)?;
        anyhow::ensure!(output.status.success(), "{}", stderr(&output));
        assert!(!stderr(&output).contains("not used"), "{}", stderr(&output));
        Ok(stdout(&output))
    };
    let choices = |variable: &str| -> anyhow::Result<String> {
        let said: Value = serde_json::from_str(&run(&["info", "--json"], variable)?)?;
        Ok(said["choices"].as_str().unwrap_or_default().to_owned())
    };
    let rule = Choices::built_in(&Key::here(default_device()?)?).to_string();
    let [default, off] = [format!("built-in rule: {rule}"), "our kernels".to_owned()];
    assert_eq!(choices("")?, default);
    assert_eq!(choices("off")?, format!("MLX_PRIMITIVES_TUNE=off: {off}"));

    let said = run(&["tune", "--quick", "--op", "relu", "--json"], "")?;
    let object: Value = serde_json::from_str(&said)?;
    let rows = object["choices"].as_array().expect("choices");
    assert_eq!(rows.len(), 3, "{object}"); // one for each type
    for row in rows {
        assert!(row["ours_us"].as_f64() > Some(0.0) && row["agrees"] == true, "{row}");
    }
    let file = cache.join("mlx-primitives").join(choices_file()?);
    assert_eq!(object["file"].as_str(), file.to_str());
    let key = Key::here(default_device()?)?;
    let mut read = Choices::read(&file, &key)?.expect("a file");
    let x = random(&[1, 1, 64], Dtype::Float32, 1)?;
    let mut of_relu = Choices::ours();
    of_relu.add(&class(|| ops::relu(&x))?, slower());
    read.replace(of_relu);
    read.add(&linear(1, Dtype::Float32)?, slower());
    read.write(&file, &key)?;
    // Programs use the file only if `MLX_PRIMITIVES_TUNE` is `file`.
    assert_eq!(choices("")?, default);
    assert!(choices("file")?.starts_with("MLX_PRIMITIVES_TUNE=file: 4 measured, "));
    if !simulated() {
        // In the simulator this would take a minute. The command `ops` prints which implementation
        // was chosen, but always measures our kernel.
        let quick = ["ops", "--quick", "--op", "relu", "--dtype", "float32"];
        for (variable, choice, cell) in [("file", "mlx", "MLX's"), ("", "ours", "ours")] {
            let json = run(&[&quick[..], &["--json"]].concat(), variable)?;
            let shown: Vec<Value> = serde_json::from_str(&json)?;
            let one = shown.iter().find(|row| row["shape"] == serde_json::json!([1, 1, 8192]));
            assert_eq!(one.expect("a row")["choice"], choice, "{shown:?}");
            let table = run(&quick, variable)?;
            assert!(table.contains("choice") && table.contains(cell), "{table}");
        }
    }
    // A new measurement of an op replaces the old one, and the other ops' entries stay.
    assert!(run(&["tune", "--quick", "--op", "relu"], "")?.contains("relu, float32, 1 row"));
    assert!(choices("file")?.starts_with("MLX_PRIMITIVES_TUNE=file: 4 measured, "));
    assert_eq!(fs::read_dir(cache.join("mlx-primitives"))?.count(), 1);
    Ok(())
}

/// `MLX_PRIMITIVES_TUNE=file` tells a program to use the file. If the file cannot be used, the
/// program ends with an error. With other values, programs do not read the file.
#[test(simulated = never)]
fn a_file_that_cannot_be_used_is_an_error_where_it_is_asked_for() -> Checked {
    let folder = tempfile::tempdir()?;
    let cache = folder.path();
    let file = cache.join("mlx-primitives").join(choices_file()?);
    let here = Key::here(default_device()?)?;
    let stale = Key { mlx: "0.1".into(), ..here.clone() };
    let generate = ["generate", "Once upon a time", "-m", "3"];
    let text = stdout(&tuned(cache, &generate, "off")?);
    for (write, part) in [
        (&(|| Ok(())) as &dyn Fn() -> Checked, "there is no such file"),
        (&|| Ok(Choices::ours().write(&file, &stale)?), "MLX is "),
        (&|| Ok(fs::write(&file, "{")?), "EOF"),
    ] {
        write()?;
        for arguments in [&generate[..], &["info"]] {
            let output = tuned(cache, arguments, "file")?;
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.starts_with("error: [MLX_PRIMITIVES_TUNE=file] "), "{said}");
            assert!(said.contains(part) && said.contains("run `mlx-primitives tune`"), "{said}");
            assert_eq!(said.lines().count(), 1, "{said}");
            assert!(output.stdout.is_empty());
        }
        for variable in ["", "off"] {
            let output = tuned(cache, &generate, variable)?;
            assert!(output.status.success() && stdout(&output) == text, "{}", stderr(&output));
        }
    }
    Choices::ours().write(&file, &here)?;
    assert_eq!(stdout(&tuned(cache, &generate, "file")?), text);
    Ok(())
}

/// Without the command `tune`, ops measure nothing and write nothing into the cache folder.
#[test(simulated = never)]
fn nothing_is_measured_or_written_unasked() -> Checked {
    let folder = tempfile::tempdir()?;
    let output = tuned(folder.path(), &["generate", "Once upon a time", "-m", "4"], "")?;
    assert!(output.status.success(), "{}", stderr(&output));
    let left: Vec<_> = fs::read_dir(folder.path())?.collect::<Result<_, _>>()?;
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error() -> Checked {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("file");
    fs::write(&file, "")?;
    let mut command = command(&["tune", "--op", "relu"]);
    command.env("XDG_CACHE_HOME", &file).env_remove("MLX_PRIMITIVES_SIMULATE_METAL");
    let output = command.output()?;
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("error: cannot write to "), "{}", stderr(&output));
    Ok(())
}
