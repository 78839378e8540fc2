//! Tests the options of the command. The help of a subcommand lists an option only if the option
//! has an effect there. If the value of an option is impossible, the error names the option.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use anyhow::Context;
use serde_json::Value;

use crate::command::{command, run, stderr, stdout};
use crate::support::Checked;

/// Runs a command with `input` on stdin.
fn with_input(arguments: &[&str], input: &str) -> Checked<Output> {
    let mut child = command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child.stdin.take().context("a pipe")?.write_all(input.as_bytes())?;
    Ok(child.wait_with_output()?)
}

#[test]
fn options_of_kernels_are_those_of_commands_that_run_them() {
    let model = ["generate", "chat", "perplexity", "bench"];
    let ops = ["ops", "lora", "tune", "verify"];
    let others = ["quantize", "fuse", "info", "completions", "man"];
    for name in model.iter().chain(&ops).chain(&others) {
        let help = stdout(&run(&[name, "--help"]));
        let has = |flag: &str| help.contains(flag);
        assert_eq!(has("--activations"), model.contains(name), "{name}: {help}");
        assert_eq!(has("--threads"), !others.contains(name), "{name}: {help}");
        assert!(has("--quiet"), "{name}: {help}");
    }
    for arguments in [["info", "--threads", "2"], ["quantize", "--activations", "int8"]] {
        let output = run(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(arguments[1]), "{}", stderr(&output));
    }
}

#[test]
fn formats_that_there_are_not_blame_the_options() -> Checked {
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("packed");
    let path = output.to_str().context("a path")?;
    let assets = crate::support::models::DEMO;
    let quantize = ["quantize", "--model", assets, "--output", path];
    for (options, part) in [
        (&["--bits", "7"][..], "'--bits <BITS>'"),
        (&["--bits", "-4"], "'--bits <BITS>'"),
        (&["--bits", "four"], "'--bits <BITS>'"),
        (&["--group-size", "48"], "--group-size 32, 64 or 128"),
        (&["--mode", "mxfp4", "--bits", "8"], "--bits 4 and --group-size 32 with --mode mxfp4"),
        (&["--mode", "nvfp4", "--group-size", "32"], "--bits 4 and --group-size 16"),
    ] {
        let refused = run(&[&quantize[..], options].concat());
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(2), "{options:?}: {said}");
        assert!(said.starts_with("error: ") && said.contains(part), "{options:?}: {said}");
        assert!(!said.contains("config.json") && !output.exists(), "{said}");
    }
    for arguments in [&["info", "--model", assets, "--bits", "7"][..], &["bench", "--bits", "7"]] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    Ok(())
}

#[test]
fn unknown_commands_of_a_chat_are_no_messages() -> Checked {
    let chat = ["chat", "-m", "3"];
    for line in ["/nope", "/reset now", "/HELP"] {
        let output = with_input(&chat, &format!("{line}\n"))?;
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        assert!(output.stdout.is_empty(), "{line}: {}", stdout(&output));
        assert!(said.starts_with("error: there is no command "), "{said}");
        assert!(said.contains(line) && said.contains("/reset, /exit, /quit or /help"), "{said}");
    }
    for line in ["/usr/bin is a folder", " /nope", "/ is a slash", "/1"] {
        let output = with_input(&chat, &format!("{line}\n"))?;
        assert!(output.status.success(), "{line}: {}", stderr(&output));
        assert_eq!(stdout(&output).lines().count(), 1, "{line}: {}", stdout(&output));
    }
    let output = with_input(&["chat", "-m", "3", "--quiet"], "/help\n")?;
    assert!(output.status.success() && stderr(&output).contains("/reset"), "{}", stderr(&output));
    Ok(())
}

/// The command reports a speed only if it measured enough tokens.
#[test]
fn speeds_are_those_of_enough_tokens() -> Checked {
    let generate = |tokens: &str, more: &[&str]| {
        let prompt = "Once upon a time there was a dog who had a big red ball";
        run(&[&["generate", prompt, "-m", tokens], more].concat())
    };
    let json = |tokens: &str| -> Checked<Value> {
        Ok(serde_json::from_slice(&generate(tokens, &["--json"]).stdout)?)
    };
    for tokens in ["1", "2", "7"] {
        let said = stderr(&generate(tokens, &[]));
        let line = said.lines().find(|line| line.starts_with("Generation: "));
        assert_eq!(line, Some(&*format!("Generation: {tokens} tokens (length)")), "{said}");
        assert_eq!(json(tokens)?["generation_tps"], Value::Null);
    }
    let said = stderr(&generate("8", &[]));
    assert_eq!(said.matches(" tokens-per-sec").count(), 2, "{said}");
    let object = json("8")?;
    assert!(object["generation_tps"].as_f64() > Some(0.0), "{object}");
    assert!(object["prompt_tps"].as_f64() > Some(0.0), "{object}");
    let short = stderr(&run(&["generate", "Once", "-m", "2"]));
    assert!(!short.contains("tokens-per-sec"), "{short}");
    Ok(())
}

#[test]
fn quiet_commands_write_errors_only() -> Checked {
    for flag in ["-q", "--quiet"] {
        let output = run(&["generate", "Once upon a time", "-m", "3", flag]);
        assert!(output.status.success());
        assert_eq!((stderr(&output).as_str(), stdout(&output).lines().count()), ("", 1));
        let output = run(&[flag, "generate", "x", "--model", "no/such/model"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).starts_with("error: "), "{}", stderr(&output));
        let output = run(&["quantize", "--model", "m", "--output", "n", "--bits", "3", flag]);
        assert!(stderr(&output).starts_with("error: "), "{}", stderr(&output));
    }
    Ok(())
}

#[test]
fn shells_complete_every_command() -> Checked {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success() && output.stderr.is_empty(), "{}", stderr(&output));
        let text = stdout(&output);
        for word in ["generate", "quantize", "--max-tokens", "completions"] {
            let word = if shell == "fish" { word.trim_start_matches('-') } else { word };
            assert!(text.contains(word), "{shell}: {word}");
        }
        if shell == "bash" && Command::new("bash").arg("--version").output().is_ok() {
            let script = "eval \"$(cat)\"; COMP_WORDS=(mlx-primitives gen) COMP_CWORD=1; \
                          _mlx__primitives mlx-primitives gen mlx-primitives; echo \"${COMPREPLY[*]}\"";
            let mut bash = Command::new("bash")
                .args(["-c", script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()?;
            bash.stdin.take().context("a pipe")?.write_all(text.as_bytes())?;
            let completed = String::from_utf8(bash.wait_with_output()?.stdout)?;
            assert_eq!(completed.trim(), "generate");
        }
    }
    assert_eq!(run(&["completions", "csh"]).status.code(), Some(2));
    Ok(())
}

#[test]
fn every_command_has_a_page() {
    let page = stdout(&run(&["man"]));
    assert!(page.contains(".TH mlx-primitives 1") && page.contains("generate"), "{page}");
    for name in
        ["generate", "chat", "ops", "perplexity", "bench", "quantize", "lora", "fuse", "tune"]
    {
        let output = run(&["man", name]);
        let page = stdout(&output);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(page.contains(&format!(".TH mlx-primitives-{name} 1")), "{page}");
        assert!(page.contains(".SH SYNOPSIS") && page.contains(".SH OPTIONS"), "{page}");
    }
    let refused = run(&["man", "frobnicate"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("generate") && refused.stdout.is_empty());
}

#[test]
fn info_says_which_mlx_is_loaded_and_what_decides() -> Checked {
    let object: Value = serde_json::from_slice(&run(&["info", "--json"]).stdout)?;
    let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
    let library = text("mlx_library");
    assert!(library.contains("libmlx.") && std::path::Path::new(&library).exists(), "{object}");
    assert!(text("choices").starts_with("built-in rule: "), "{object}");
    assert_eq!(text("built_with_mlx"), mlx_primitives::device::mlx_versions().0, "{object}");
    assert!(!text("built_with_mlx_of").is_empty(), "{object}");
    // If the dynamic loader finds MLX's library at another path first, the output names that path.
    #[cfg(target_os = "linux")]
    {
        let folder = tempfile::tempdir()?;
        let other = folder.path().join("lib");
        let libraries = std::path::Path::new(&library).parent().context("a folder")?;
        std::os::unix::fs::symlink(libraries, &other)?;
        let output = command(&["info", "--json"]).env("LD_LIBRARY_PATH", &other).output()?;
        let object: Value = serde_json::from_slice(&output.stdout)?;
        assert_eq!(object["mlx_library"].as_str(), other.join("libmlx.so").to_str(), "{object}");
    }
    Ok(())
}
