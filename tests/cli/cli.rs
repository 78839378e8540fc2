//! Tests the command's most important uses, by people and by programs.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

#[test(simulated = once)]
fn generate_writes_text_to_stdout_and_figures_to_stderr() {
    let output = run(&["generate", "Once upon a time", "--max-tokens", "12"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), ", there was a little girl named Lily. One day,\n");
    let figures = stderr(&output);
    for part in ["Prompt: 4 tokens", "Generation: 12 tokens", "tokens-per-sec", "Peak memory:"] {
        assert!(figures.contains(part), "{part:?} not in {figures:?}");
    }
}

#[test(simulated = once)]
fn generate_prints_one_object_for_programs() {
    let arguments = [
        "generate", "One day", "--json", "-m", "9", "--temp", "0.7", "--seed", "5", "--top-k", "40",
    ];
    let output = run(&arguments);
    let object: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(object["token_ids"].as_array().unwrap().len(), 9);
    assert_eq!(object["generated_tokens"], 9);
    assert_eq!(object["finish_reason"], "length");
    for key in ["prompt_tokens", "generation_tps", "peak_memory_bytes"] {
        assert!(object[key].as_f64().unwrap() > 0.0, "{key}");
    }
    let again: Value = serde_json::from_str(&stdout(&run(&arguments))).unwrap();
    assert_eq!(object["text"], again["text"]);
}

#[test(simulated = once)]
fn generate_reads_the_prompt_from_stdin() {
    let mut child = command(&["generate", "-", "--max-tokens", "3"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"Once upon a time").unwrap();
    let output = child.wait_with_output().unwrap();
    let direct = run(&["generate", "Once upon a time", "--max-tokens", "3"]);
    assert_eq!(stdout(&output), stdout(&direct));
}

#[test(simulated = once)]
fn failures_exit_with_1_and_bad_usage_with_2() {
    let long = "word ".repeat(400);
    for (arguments, part) in [
        (
            &["generate", "x", "--model", "no/such/directory"][..],
            "no/such/directory: there is no such folder",
        ),
        (&["generate", ""], "a prompt of at least one token"),
        (&["generate", &long], "a prompt of 1 to 256 tokens"),
        (&["generate", "x", "--temp=-1"], "temp"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
        let error = stderr(&output);
        assert!(error.starts_with("error: ") && error.contains(part), "{error}");
    }
    for arguments in [&["generate"][..], &["frobnicate"], &["generate", "x", "--top-p", "two"], &[]]
    {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    assert_eq!(run(&["--version"]).status.code(), Some(0));
}

#[test(simulated = once)]
fn info_shows_versions_and_kernels() {
    let output = run(&["info", "--json"]);
    let object: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(object["mlx"].as_str().unwrap().starts_with("0.32."));
    assert!(!object["metal_kernels"].as_str().unwrap().is_empty());
    assert!(stdout(&run(&["info"])).contains("CPU kernels"));
    let three = command(&["info"]).env("MLX_PRIMITIVES_THREADS", "3").output().unwrap();
    assert!(stdout(&three).contains(", 3 threads"));
    assert_eq!(run(&["bench", "--threads", "0"]).status.code(), Some(2));
}

/// If the version of MLX's library differs from the version of the headers, the program refuses the
/// library at its first use.
#[cfg(target_os = "linux")]
#[test(simulated = once)]
fn another_libmlx_at_load_is_refused_naming_both_versions() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("version.cpp");
    let library = directory.path().join("version.so");
    std::fs::write(
        &source,
        r#"namespace mlx::core { const char* version() { return "0.31.7"; } }"#,
    )
    .unwrap();
    let compiled = Command::new("c++")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status()
        .expect("the C++ compiler that built this crate");
    assert!(compiled.success());
    for arguments in [&["info"][..], &["generate", "Once upon a time"]] {
        let output = command(arguments).env("LD_PRELOAD", &library).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let error = stderr(&output);
        assert!(error.contains("0.31.7") && error.contains("headers of MLX 0.32."), "{error}");
    }
}
use crate::command::{command, run, stderr, stdout};
