//! Tests `generate` and `chat` with all their options.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::Command;

use mlx_primitives::Dtype;
use mlx_primitives_llama::{ChatOptions, ChatTemplate, Checkpoint, Options, message};
use serde_json::{Value, json};

use crate::command::{command, piped, run, stderr, stdout, text_of};
use crate::support::Checked;
use crate::support::models::variant;

const PROMPT: &str = "Once upon a time";
const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
    {% if add_generation_prompt %}{{ opening or 'One day' }}{% endif %}";

pub fn json_of(arguments: &[&str]) -> Value {
    let output = run(&[&["generate", "--json", "-m", "10"], arguments].concat());
    serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)))
}

/// Writes a copy of the demo model with a chat template.
pub fn with_template() -> tempfile::TempDir {
    let directory = variant(Dtype::Float32, |_, _| {});
    let config = json!({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "chat_template": TEMPLATE});
    fs::write(directory.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    directory
}

#[test(simulated = once)]
fn prompts_are_accepted_as_argument_option_and_stdin() {
    let plain = json_of(&[PROMPT]);
    for arguments in [&["-p", PROMPT][..], &["--prompt", PROMPT]] {
        assert_eq!(json_of(arguments)["token_ids"], plain["token_ids"]);
    }
    let output = piped(&["generate", "--json", "-m", "10", "-p", "-"], PROMPT);
    let object: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(object["token_ids"], plain["token_ids"]);
    assert_eq!(run(&["generate", PROMPT, "-p", PROMPT]).status.code(), Some(2));
}

#[test(simulated = once)]
fn caches_and_drafts_change_no_token() -> Checked {
    let plain = json_of(&[PROMPT]);
    let directory = variant(Dtype::Float32, |_, _| {});
    let model = text_of(directory.path());
    for arguments in [
        &["--max-kv-size", "64"][..],
        &["--kv-bits", "8", "--kv-group-size", "32"],
        &["--prefill-step-size", "1"],
        &["--draft-model", model, "--num-draft-tokens", "4"],
        &["--prompt-lookup", "--num-draft-tokens", "8"],
    ] {
        let object = json_of(&[&[PROMPT][..], arguments].concat());
        assert_eq!(object["token_ids"], plain["token_ids"], "{arguments:?}");
        let accepted = object["accepted_tokens"].as_u64().unwrap();
        assert_eq!(accepted > 0, arguments[0] == "--draft-model");
        assert_eq!(object["drafts_change_text"], false);
    }
    let file = directory.path().join("prompt.safetensors");
    let cache = ["--prompt-cache-file", text_of(&file)];
    for cached in [0, 3] {
        let object = json_of(&[&[PROMPT][..], &cache].concat());
        assert_eq!(
            (&object["token_ids"], &object["cached_tokens"]),
            (&plain["token_ids"], &json!(cached))
        );
    }
    let output =
        run(&[&["generate", PROMPT, "-m", "3", "--max-kv-size", "64"][..], &cache].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("prompt.safetensors: expected a cache as the options ask for")
    );
    Ok(())
}

#[test(simulated = once)]
fn sampling_flags_reach_the_sampler() {
    let greedy = json_of(&[PROMPT]);
    let hot = ["--temp", "3", "--seed", "1"];
    for arguments in [&["--top-k", "1"][..], &["--top-p", "0.000001"], &["--min-p", "1"]] {
        let object = json_of(&[&[PROMPT][..], &hot, arguments].concat());
        assert_eq!(object["token_ids"], greedy["token_ids"], "{arguments:?}");
    }
    let first = greedy["token_ids"][0].as_u64().unwrap();
    for arguments in [
        &hot[..],
        &["--xtc-probability", "1", "--xtc-threshold", "0.001", "--temp", "0.01"],
        &["--min-p", "1", "--min-tokens-to-keep", "500", "--temp", "9"],
        &["--repetition-penalty", "9", "--repetition-context-size", "9"],
        &["--presence-penalty", "50", "--presence-context-size", "99"],
        &["--frequency-penalty", "50", "--frequency-context-size", "99"],
        &["--logit-bias", &format!("{first}:-100")],
    ] {
        let object = json_of(&[&[PROMPT][..], arguments].concat());
        assert_ne!(object["token_ids"], greedy["token_ids"], "{arguments:?}");
    }
    for (arguments, code) in [
        (&["--logit-bias", "x:1"][..], 2),
        (&["--logit-bias", "9999:1"], 1),
        (&["--xtc-threshold", "0.9", "--temp", "1"], 1),
        (&["--kv-bits", "4", "--max-kv-size", "8"], 2),
        (&["--kv-bits", "4"], 1),
        (&["--extra-eos-token", "<nowhere>"], 1),
        (&["--num-draft-tokens", "two"], 2),
        (&["--system-prompt", "Be brief."], 1),
        (&["--prefill-step-size", "0"], 1),
        (&["--stop", ""], 1),
        (&["--logprobs", "2"], 2),
    ] {
        let output = run(&[&["generate", PROMPT], arguments].concat());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
}

#[test(simulated = once)]
fn texts_stop_as_requested() {
    let plain = json_of(&[PROMPT]);
    let text = plain["text"].as_str().unwrap();
    let object = json_of(&[PROMPT, "--stop", "nowhere", "--stop", &text[4..9]]);
    assert_eq!(
        (object["text"].as_str(), object["finish_reason"].as_str()),
        (Some(&text[..4]), Some("stop_string"))
    );
    let tokenizer = Checkpoint::demo().unwrap().tokenizer;
    let second = tokenizer.token(plain["token_ids"][1].as_u64().unwrap() as u32).unwrap();
    let object = json_of(&[PROMPT, "--extra-eos-token", &second]);
    assert_eq!(
        (&object["generated_tokens"], object["finish_reason"].as_str()),
        (&json!(1), Some("stop"))
    );
    let quiet = run(&["generate", PROMPT, "-m", "3", "--verbose", "false"]);
    assert!(quiet.status.success() && quiet.stderr.is_empty(), "{}", stderr(&quiet));
    let object = json_of(&[PROMPT, "--logprobs", "2"]);
    for (id, logprobs) in
        plain["token_ids"].as_array().unwrap().iter().zip(object["logprobs"].as_array().unwrap())
    {
        assert_eq!((&logprobs["id"], &logprobs["top"][0]["id"]), (id, id));
        assert!(logprobs["logprob"].as_f64().unwrap() <= 0.0);
        assert_eq!(logprobs["top"].as_array().unwrap().len(), 2);
    }
}

#[test(simulated = once)]
fn prompts_become_messages_with_a_chat_template() -> Checked {
    let directory = with_template();
    let model = text_of(directory.path());
    let checkpoint = Checkpoint::load(directory.path())?;
    let template = ChatTemplate::load(directory.path())?.expect("a template");
    let expected = |messages: &[Value], chat: &ChatOptions| -> anyhow::Result<Value> {
        let prompt = checkpoint.tokenizer.encode_verbatim(&template.render(messages, chat)?)?;
        assert_eq!(prompt.iter().filter(|token| **token == 0).count(), 1, "one beginning");
        let options = Options { max_tokens: 10, ..Options::default() };
        let tokens = checkpoint.generate(&prompt, &options)?.collect::<Result<Vec<u32>, _>>()?;
        Ok(json!([prompt.len(), tokens]))
    };
    let got = |arguments: &[&str]| {
        let object = json_of(&[&["--model", model, PROMPT], arguments].concat());
        json!([object["prompt_tokens"], object["token_ids"]])
    };
    let (user, system) = (message("user", PROMPT), message("system", "Be brief."));
    let plain = ChatOptions::default();
    assert_eq!(got(&[]), expected(std::slice::from_ref(&user), &plain)?);
    assert_eq!(got(&["--system-prompt", "Be brief."]), expected(&[system, user.clone()], &plain)?);
    let mut other = plain.clone();
    other.variables.insert("opening".to_owned(), json!("The"));
    let config = ["--chat-template-config", r#"{"opening": "The"}"#];
    assert_eq!(got(&config), expected(&[user], &other)?);
    assert_eq!(got(&["--ignore-chat-template"])[1], json_of(&[PROMPT])["token_ids"]);
    let output = run(&["generate", "x", "--model", model, "--chat-template-config", "[1]"]);
    assert!(stderr(&output).contains("an object for --chat-template-config"));
    Ok(())
}

#[test(simulated = once)]
fn chats_keep_the_conversation() -> Checked {
    let directory = with_template();
    let model = text_of(directory.path());
    let arguments = ["chat", "--model", model, "-m", "6", "--verbose"];
    let output = piped(&arguments, "Hello\n\nAnd then?\n/reset\nHello\n/exit\nnever read\n");
    assert!(output.status.success(), "{}", stderr(&output));
    let answers = stdout(&output);
    let lines: Vec<&str> = answers.lines().collect();
    assert_eq!(lines.len(), 3, "{answers:?}");
    // After /reset, the command gives the same answer as at first.
    assert_eq!(lines[0], lines[2]);
    // The second turn uses the cached keys and values of the common prefix.
    let figures = stderr(&output);
    let cached: Vec<bool> = figures
        .lines()
        .filter(|l| l.starts_with("Prompt:"))
        .map(|l| l.contains("cached"))
        .collect();
    assert_eq!(cached, [false, true, false], "{figures}");

    // One call with the complete conversation must give the same answer.
    let checkpoint = Checkpoint::load(directory.path())?;
    let template = ChatTemplate::load(directory.path())?.expect("a template");
    let messages =
        [message("user", "Hello"), message("assistant", lines[0]), message("user", "And then?")];
    let prompt = template.render(&messages, &ChatOptions::default())?;
    let prompt = checkpoint.tokenizer.encode_verbatim(&prompt)?;
    let options = Options { max_tokens: 6, ..Options::default() };
    let tokens = checkpoint.generate(&prompt, &options)?.collect::<Result<Vec<u32>, _>>()?;
    assert_eq!(lines[1], checkpoint.tokenizer.decode(&tokens)?);
    Ok(())
}

#[test(simulated = once)]
fn chats_without_a_template_go_on_with_the_text() -> Checked {
    let output = piped(&["chat", "-m", "8"], &format!("{PROMPT}\n/help\n One day\n"));
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("/reset"));
    let answers = stdout(&output);
    let (first, second) = answers.trim_end_matches('\n').split_once('\n').unwrap();
    let both = |prompt: &str| run(&["generate", prompt, "-m", "8"]);
    assert_eq!(format!("{first}\n"), stdout(&both(PROMPT)));
    assert_eq!(format!("{second}\n"), stdout(&both(&format!("{PROMPT}{first} One day"))));
    // If stdin is a pipe and a prompt is too long, the command ends with an error.
    let output = piped(&["chat"], &"word ".repeat(400));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("a prompt of 1 to 256 tokens"));
    Ok(())
}

/// Ctrl-C stops the generation, and the command still prints its report.
#[cfg(unix)]
#[test(simulated = once)]
fn interrupted_texts_end_with_figures() -> Checked {
    // The model accepts long sequences, and never samples the end token.
    let directory = variant(Dtype::Float32, |name, json| {
        if name == "config.json" {
            json["max_position_embeddings"] = json!(1 << 20);
        }
        if name != "tokenizer.json" {
            json["eos_token_id"] = json!(511);
        }
    });
    let model = text_of(directory.path());
    let arguments =
        ["generate", PROMPT, "--model", model, "-m", "1000000", "--logit-bias", "511:-inf"];
    let mut child = command(&arguments).spawn()?;
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut begun = vec![0; 40];
    output.read_exact(&mut begun)?;
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status()?;
    assert!(killed.success());
    let mut rest = Vec::new();
    output.read_until(0, &mut rest)?;
    let mut figures = String::new();
    child.stderr.take().unwrap().read_to_string(&mut figures)?;
    assert_eq!(child.wait()?.code(), Some(0), "{figures}");
    assert!(figures.contains("tokens-per-sec (interrupted)"), "{figures}");
    assert!(rest.ends_with(b"\n"));
    Ok(())
}

#[test(simulated = once)]
fn help_names_every_flag() {
    for (name, flags) in [
        (
            "generate",
            &["--prompt-cache-file <FILE>", "--json", "--logprobs <N>", "-p, --prompt", "[PROMPT]"]
                [..],
        ),
        ("chat", &["/reset", "/exit"]),
    ] {
        let help = run(&[name, "--help"]);
        assert!(help.status.success() && help.stderr.is_empty());
        let help = stdout(&help);
        let shared = [
            "--model <MODEL>",
            "--system-prompt",
            "-m, --max-tokens",
            "--temp",
            "--top-p",
            "--min-p",
            "--top-k",
            "--xtc-probability",
            "--xtc-threshold",
            "--repetition-penalty",
            "--seed",
            "--extra-eos-token",
            "--ignore-chat-template",
            "--max-kv-size",
            "--kv-bits",
            "--kv-group-size",
            "--draft-model",
            "--num-draft-tokens",
            "--prompt-lookup",
            "--stop",
            "--logit-bias",
        ];
        for flag in shared.iter().chain(flags) {
            assert!(help.contains(flag), "{name}: {flag}\n{help}");
        }
        assert!(help.lines().all(|line| line.chars().count() <= 122), "{help}");
    }
}
