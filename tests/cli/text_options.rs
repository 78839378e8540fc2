//! Tests options that `generate` and `chat` have in common with mlx-lm. Also tests signals.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mlx_primitives::Dtype;
use mlx_primitives_llama::Checkpoint;
use serde_json::{Value, json};

use crate::command::{command, piped, run, stderr, stdout, text_of};
use crate::support::Checked;
use crate::support::models::variant;
use crate::text_cli::with_template;

/// A signal must end the command even while it runs code that does not check for signals. In this
/// test the command tokenizes a prompt of 24 MB, which the model has enough positions for.
#[cfg(unix)]
#[test]
fn a_signal_ends_any_phase() -> Checked {
    let folder = tempfile::tempdir()?;
    let prompt = folder.path().join("prompt");
    fs::write(&prompt, "a".repeat(24 << 20))?;
    let long = variant(Dtype::Float32, |name, json| {
        if name == "config.json" {
            json["max_position_embeddings"] = json!(1 << 24);
        }
    });
    let model = long.path().to_str().expect("a path of UTF-8");
    for (signal, name) in [("-TERM", "generate"), ("-INT", "generate"), ("-TERM", "chat")] {
        let arguments = [name, "--model", model, "-p", "-"];
        let mut child = command(&arguments[..if name == "chat" { 3 } else { 5 }])
            .stdin(fs::File::open(&prompt)?)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        std::thread::sleep(Duration::from_secs(2));
        let early = child.try_wait()?;
        assert!(early.is_none(), "{name} ended by itself: {early:?}");
        let killed = Command::new("kill").args([signal, &child.id().to_string()]).status()?;
        assert!(killed.success());
        let sent = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if sent.elapsed() > Duration::from_secs(10) {
                child.kill()?;
                child.wait()?;
                panic!("{name} goes on after {signal}");
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        // If the signal comes before the command installs its handler, the system ends the process.
        assert!(matches!(status.code(), None | Some(0 | 130)), "{name} {signal}: {status}");
    }
    Ok(())
}

fn json_of(arguments: &[&str]) -> Value {
    let output = run(arguments);
    serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)))
}

#[test]
fn options_are_read_as_by_mlx_lm() -> Checked {
    let text =
        |arguments: &[&str]| json_of(arguments)["text"].as_str().unwrap_or_default().to_owned();
    // The command converts `\n` in an argument to a line break, but not in a prompt from stdin.
    let typed = json_of(&["generate", r"Once\n\tupon", "-m", "1", "--json"]);
    let real = json_of(&["generate", "Once\n\tupon", "-m", "1", "--json"]);
    assert_eq!((&typed["text"], &typed["prompt_tokens"]), (&real["text"], &real["prompt_tokens"]));
    let verbatim = stdout(&piped(&["generate", "-p", "-", "-m", "1", "--json"], r"Once\n\tupon"));
    let verbatim: Value = serde_json::from_str(&verbatim)?;
    assert_ne!(verbatim["prompt_tokens"], real["prompt_tokens"]);
    // Token 14 is a period.
    let story = ["generate", "Once upon a time", "-m", "12", "--json"];
    let plain = text(&story);
    let (sentence, _) = plain.split_once('.').expect("a sentence");
    for token in ["14", "."] {
        assert_eq!(
            text(&[&story[..], &["--extra-eos-token", token]].concat()),
            sentence,
            "{token}"
        );
    }
    let output = run(&[&story[..], &["--extra-eos-token", "99999"]].concat());
    assert!(stderr(&output).contains("expected a token of the vocabulary"), "{}", stderr(&output));
    // With `-m -1` there is no limit: the generation continues to an end token or the last
    // position.
    let whole = json_of(&["generate", "She held the ball very tight.", "-m", "-1", "--json"]);
    assert_eq!(whole["finish_reason"], "stop", "{whole}");
    assert!(whole["generated_tokens"].as_u64() > Some(2), "{whole}");
    let output = run(&["generate", "a", "-m", "-2"]);
    assert_eq!(output.status.code(), Some(2));
    // Runs without a seed sample different tokens. Runs with the same seed sample the same tokens.
    let drawn = ["generate", "Once upon a time", "-m", "12", "--temp", "1.5", "--json"];
    assert_ne!(text(&drawn), text(&drawn));
    let seeded = [&drawn[..], &["--seed", "7"]].concat();
    assert_eq!(text(&seeded), text(&seeded));
    Ok(())
}

#[test]
fn templates_know_whether_the_model_thinks() -> Checked {
    let folder = with_template();
    let template = "{{ enable_thinking }}";
    fs::write(folder.path().join("chat_template.jinja"), template)?;
    let count = |arguments: &[&str]| {
        let model = ["generate", "a", "-m", "1", "--json", "--model", text_of(folder.path())];
        json_of(&[&model[..], arguments].concat())["prompt_tokens"].clone()
    };
    let tokens = |text: &str| -> anyhow::Result<Value> {
        Ok(json!(Checkpoint::demo()?.tokenizer.encode(text)?.len()))
    };
    assert_eq!(count(&[]), tokens("False")?);
    assert_eq!(
        count(&["--chat-template-config", r#"{"enable_thinking": "abcdefgh"}"#]),
        tokens("abcdefgh")?
    );
    let thoughts = json!({"extra_special_tokens": ["<think>", "</think>"]});
    fs::write(folder.path().join("tokenizer_config.json"), thoughts.to_string())?;
    assert_eq!(count(&[]), tokens("True")?);
    Ok(())
}
