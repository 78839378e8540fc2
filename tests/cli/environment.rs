//! If an environment variable has an invalid value, the error names the variable and its valid
//! values.

use std::fs;

use mlx_primitives::{Dtype, ops};

use crate::command::{command, stderr, stdout};
use crate::support::compare::numbers;
use crate::support::input::random;
use crate::support::{Checked, root};

/// Runs the command with this variable, and returns its error message.
fn refused(name: &str, value: &str) -> Checked<String> {
    let output = command(&["generate", "Once upon a time", "-m", "2"]).env(name, value).output()?;
    assert_eq!(output.status.code(), Some(2), "{name}={value}: {}", stderr(&output));
    assert!(output.stdout.is_empty(), "{name}={value}");
    let said = stderr(&output);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.starts_with(&format!("error: [{name}] expected ")), "{said}");
    Ok(said)
}

#[test]
fn unusable_values_are_refused() -> Checked {
    for value in ["x", "lazy", "OFF", "/tmp/choices.json", "0"] {
        let said = refused("MLX_PRIMITIVES_TUNE", value)?;
        assert!(said.contains("off (") && said.contains("file ("), "{said}");
        assert!(said.contains(&format!("got {value:?}")), "{said}");
    }
    // MLX itself would read some of these values as 0, and then never end. It would read others as
    // a wrong number.
    for value in ["0", "-1", "x", "", "20x", "99999999999"] {
        let said = refused("MLX_BFS_MAX_WIDTH", value)?;
        assert!(said.contains("a whole number from 1 to 2147483647"), "{said}");
    }
    for (name, value, range) in [
        ("MLX_MAX_OPS_PER_BUFFER", "0", "from 1 to"),
        ("MLX_MAX_MB_PER_BUFFER", "many", "from 1 to"),
        ("MLX_ENABLE_TF32", "true", "from 0 to 1"),
        ("MLX_RESIDENCY_SET_MAX_PCT", "101", "from 0 to 100"),
        ("MLX_PRIMITIVES_THREADS", "0", "1 to 1024 threads"),
        ("MLX_PRIMITIVES_SIMD", "x", "an instruction set"),
    ] {
        let said = refused(name, value)?;
        assert!(said.contains(range) && said.contains(&format!("got {value:?}")), "{said}");
    }
    let long = refused("MLX_ENABLE_TF32", &"\u{1b}[31m1".repeat(10_000))?;
    assert!(long.len() < 1000 && !long.contains('\u{1b}'), "{long:?}");
    Ok(())
}

/// If a program does not check the variables itself, its ops return an error. They do not hang, and
/// do not silently choose other kernels.
#[test]
fn programs_get_errors_of_their_ops() -> Checked {
    for (name, value) in [("MLX_BFS_MAX_WIDTH", "0"), ("MLX_PRIMITIVES_TUNE", "x")] {
        let of_this_program = ["--exact", "environment::ops_of_this_process", "--ignored"];
        let mut program = std::process::Command::new(std::env::current_exe()?);
        let output = program.args(of_this_program).env(name, value).output()?;
        let said = stdout(&output) + &stderr(&output);
        assert!(!output.status.success(), "{name}={value}: {said}");
        assert!(said.contains(&format!("[{name}] expected ")), "{said}");
    }
    Ok(())
}

#[test]
fn unknown_names_are_refused() -> Checked {
    for name in ["MLX_PRIMITIVES_TUNES", "MLX_PRIMITIVES_", "MLX_PRIMITIVES_FOO"] {
        let said = refused(name, "1")?;
        assert!(said.contains("MLX_PRIMITIVES_TUNE") && said.contains("MLX_PRIMITIVES_SIMD"));
    }
    Ok(())
}

#[test]
fn usable_values_run() -> Checked {
    for (name, value) in [
        ("MLX_BFS_MAX_WIDTH", "1"),
        ("MLX_ENABLE_TF32", "0"),
        ("MLX_MAX_OPS_PER_BUFFER", "40"),
        ("MLX_PRIMITIVES_TUNE", ""),
        ("MLX_PRIMITIVES_TUNE", "off"),
        ("MLX_PRIMITIVES_WERROR", "1"),
        ("MLX_PRIMITIVES_TEST_ANY", "1"),
        ("MLX_SOMETHING_OF_OTHERS", "x"),
    ] {
        let output = command(&["generate", "Once", "-m", "2"]).env(name, value).output()?;
        assert!(output.status.success(), "{name}={value}: {}", stderr(&output));
    }
    Ok(())
}

/// The command must accept every environment variable that the sources read by name.
#[test(simulated = never)]
fn variables_of_the_sources_are_known() -> Checked {
    let root = root();
    let known = fs::read_to_string(root.join("src/environment.rs"))?;
    let read = regex::Regex::new(r#"(?:var|var_os|getenv|= )\(?"(MLX_PRIMITIVES_[A-Z_]+)""#)?;
    let mut found = 0;
    let mut folders = vec!["src", "cpp", "crates/kernels/src", "crates/cuda/src"]
        .into_iter()
        .map(|folder| root.join(folder))
        .collect::<Vec<_>>();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = fs::read_to_string(&path)?;
            for name in read.captures_iter(&text).map(|found| found[1].to_owned()) {
                found += 1;
                let of_tests = name.starts_with("MLX_PRIMITIVES_TEST_");
                let rest = name.trim_start_matches("MLX_PRIMITIVES_");
                let mut words = known.split([' ', '"', '\n']);
                let is_known = of_tests || words.any(|word| word == name || word == rest);
                assert!(is_known, "{}: {name}", path.display());
            }
        }
    }
    assert!(found >= 7, "{found} variables");
    Ok(())
}

/// Another test runs this test in a process with invalid variables, where it must fail.
#[test]
#[ignore = "run by programs_get_errors_of_their_ops"]
fn ops_of_this_process() -> Checked {
    let x = random(&[2, 8], Dtype::Float32, 1)?;
    assert_eq!(numbers(&ops::softmax(&x)?)?.len(), 16);
    Ok(())
}
