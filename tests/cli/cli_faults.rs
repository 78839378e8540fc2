//! Tests the command in a faulty environment. It must always end soon, print one clear sentence,
//! and exit with the code 0, 1 or 2.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use mlx_primitives::Dtype;
use mlx_primitives::ops::Lora;
use mlx_primitives_llama::{Adapters, Checkpoint};
use tempfile::TempDir;

use crate::command::text_of;
use crate::support::Checked;
use crate::support::models::DEMO;
use crate::support::models::variant;

const COMMAND: &str = env!("CARGO_BIN_EXE_mlx-primitives");
/// If a command takes longer, the test fails. The slowest command in this file takes a second.
const LIMIT: Duration = Duration::from_secs(120);

/// The exit code and the output of a command.
#[derive(Debug)]
pub struct Ended {
    /// The exit code, or `None` if a signal ended the process.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Waits for a child process and collects its piped output. Kills the child after [`LIMIT`], and
/// then the test fails.
pub fn ended(mut child: Child) -> Ended {
    fn text(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            pipe.map(|mut pipe| pipe.read_to_end(&mut bytes).expect("a pipe"));
            String::from_utf8_lossy(&bytes).into_owned()
        })
    }
    let (stdout, stderr) = (text(child.stdout.take()), text(child.stderr.take()));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if start.elapsed() > LIMIT {
            child.kill().expect("a child");
            let said = stderr.join().expect("a reader");
            panic!("still running after {LIMIT:?}, stderr: {said}");
        }
        thread::sleep(Duration::from_millis(5));
    };
    let (stdout, stderr) = (stdout.join().expect("a reader"), stderr.join().expect("a reader"));
    Ended { code: status.code(), stdout, stderr }
}

fn start(command: &mut Command, input: &str) -> Child {
    let piped = command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("the command");
    // The command may end before it has read all its input, so errors are ignored.
    let _ = child.stdin.take().expect("its stdin").write_all(input.as_bytes());
    child
}

fn run(arguments: &[&str]) -> Ended {
    run_with(arguments, "", |_| {})
}

fn run_with(arguments: &[&str], input: &str, set: impl FnOnce(&mut Command)) -> Ended {
    let mut command = Command::new(COMMAND);
    set(command.args(arguments).stdout(Stdio::piped()));
    ended(start(&mut command, input))
}

/// Runs the command in a shell, after the shell code `shell`, which may close a stream or set a
/// limit.
pub fn run_after(shell: &str, arguments: &[&str], input: &str) -> Ended {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{shell} exec \"$0\" \"$@\""), COMMAND]).args(arguments);
    ended(start(command.stdout(Stdio::piped()), input))
}

/// Checks the exit code, and that the command printed an error with these parts on stderr and
/// nothing on stdout.
#[track_caller]
pub fn assert_refused(ended: &Ended, code: i32, parts: &[&str]) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert!(ended.stdout.is_empty(), "{ended:?}");
    assert!(ended.stderr.starts_with("error: "), "{ended:?}");
    for part in parts {
        assert!(ended.stderr.contains(part), "{part:?}: {ended:?}");
    }
}

/// Calls of the command that soon write to stdout: the arguments, and the input. `{}` stands for a
/// new directory.
const WRITERS: [(&[&str], &str); 18] = [
    (&["--help"], ""),
    (&["chat", "--help"], ""),
    (&["--version"], ""),
    (&["info"], ""),
    (&["info", "--json"], ""),
    (&["info", "--graph"], ""),
    (&["info", "--graph", "--json"], ""),
    (&["info", "--model", DEMO], ""),
    (&["info", "--model", DEMO, "--json"], ""),
    (&["generate", "One day", "-m", "3"], ""),
    (&["generate", "One day", "-m", "3", "--json"], ""),
    (&["chat", "-m", "3"], "One day\nTwo\n"),
    (&["perplexity", "--file", "-"], "Once upon a time there was a dog."),
    (&["bench", "-p", "2", "-g", "2", "-n", "1"], ""),
    (&["bench", "-p", "2", "-g", "2", "-n", "1", "--json"], ""),
    (&["bench", "-p", "2", "-g", "2", "-n", "1", "--texts", "3"], ""),
    (&["quantize", "--model", DEMO, "--output", "{}/new", "--group-size", "32"], ""),
    (&["verify", "--quick", "--only", "dequantize", "--output", "{}/report.md"], ""),
];

fn each_writer(check: impl Fn(&[&str], &str)) {
    for (arguments, input) in WRITERS {
        let folder = TempDir::new().expect("a folder");
        let filled: Vec<String> =
            arguments.iter().map(|text| text.replace("{}", text_of(folder.path()))).collect();
        check(&filled.iter().map(String::as_str).collect::<Vec<_>>(), input);
    }
}

#[cfg(target_os = "linux")] // other systems have no /dev/full
#[test(simulated = never)]
fn a_full_stdout_is_a_failure() {
    each_writer(|arguments, input| {
        let ended = run_after("exec >/dev/full;", arguments, input);
        assert_refused(
            &ended,
            1,
            &["cannot write the result to stdout: No space left", "free space"],
        );
    });
    each_writer(|arguments, input| {
        let ended = run_after("exec 2>/dev/full;", arguments, input);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        assert!(!ended.stdout.is_empty(), "{arguments:?}");
    });
}

#[test(simulated = never)]
fn a_closed_stdout_is_a_failure() {
    each_writer(|arguments, input| {
        let ended = run_after("exec >&-;", arguments, input);
        assert_refused(&ended, 1, &["stdout: it is closed", "a file, a pipe or a terminal"]);
    });
    each_writer(|arguments, input| {
        let ended = run_after("exec 2>&-;", arguments, input);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        assert!(!ended.stdout.is_empty(), "{arguments:?}");
    });
}

/// The reader closes the pipe before it reads anything, like `generate | true`.
#[test(simulated = never)]
fn a_reader_that_goes_away_ends_the_command_quietly() {
    each_writer(|arguments, input| {
        let mut command = Command::new(COMMAND);
        let mut child = start(command.args(arguments).stdout(Stdio::piped()), input);
        drop(child.stdout.take());
        let ended = ended(child);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        assert!(!ended.stderr.contains("error"), "{arguments:?}: {ended:?}");
        assert!(!ended.stderr.contains("pipe"), "{arguments:?}: {ended:?}");
    });
}

/// Makes a model's directory with every file that the command may open.
fn whole_model() -> anyhow::Result<TempDir> {
    let folder = variant(Dtype::Float32, |_, _| {});
    for (name, text) in [
        ("tokenizer_config.json", "{}"),
        ("chat_template.jinja", "{{ messages[0].content }}"),
        (
            "model.safetensors.index.json",
            r#"{"weight_map": {"model.norm.weight": "model.safetensors"}}"#,
        ),
    ] {
        fs::write(folder.path().join(name), text)?;
    }
    let llama = Checkpoint::demo()?.llama;
    let name = "model.layers.3.self_attn.v_proj".to_owned();
    let update = Lora::initial(llama.projection_shape(&name)?, 4, 2.0)?;
    let adapters: Adapters = [(name, update)].into_iter().collect();
    adapters.save(folder.path(), &llama)?;
    Ok(folder)
}

/// If the command read a named pipe, it would wait for a writer. If it read /dev/zero, it would
/// never end. So it must refuse special files.
#[test(simulated = never)]
fn special_files_are_refused_by_name() -> Checked {
    let folder = whole_model()?;
    let directory = text_of(folder.path());
    let generate = ["generate", "x", "-m", "2", "--model", directory, "--adapter-path", directory];
    let cache = folder.path().join("cache.safetensors");
    let with_cache = [&generate[..], &["--prompt-cache-file", text_of(&cache)]].concat();
    let made = run(&with_cache);
    assert_eq!(made.code, Some(0), "{made:?}");
    let gguf = folder.path().join("model.gguf");
    fs::write(&gguf, "GGUF")?;
    let with_gguf = ["generate", "x", "--model", text_of(&gguf)];
    let config = folder.path().join("other.json");
    fs::write(&config, "{}")?;
    let with_config = ["bench", "--config", text_of(&config)];
    let text = folder.path().join("text.txt");
    fs::write(&text, "One day")?;
    let with_text = ["perplexity", "--file", text_of(&text)];
    let (output, quantized) = (folder.path().join("new"), "--output");
    let quantize = ["quantize", "--model", directory, quantized, text_of(&output)];
    let fuse = [
        "fuse",
        "--model",
        directory,
        "--adapter-path",
        directory,
        "--save-path",
        text_of(&output),
    ];
    let cases: [(&str, &[&str]); 18] = [
        ("config.json", &generate),
        ("config.json", &["info", "--model", directory]),
        ("config.json", &quantize),
        ("tokenizer.json", &generate),
        ("tokenizer_config.json", &generate),
        ("generation_config.json", &generate),
        ("chat_template.jinja", &generate),
        ("model.safetensors.index.json", &generate),
        ("model.safetensors", &generate),
        ("model.safetensors", &["info", "--model", directory]),
        ("model.safetensors", &quantize),
        ("model.safetensors", &fuse),
        ("adapter_config.json", &generate),
        ("adapters.safetensors", &fuse),
        ("cache.safetensors", &with_cache),
        ("model.gguf", &with_gguf),
        ("other.json", &with_config),
        ("text.txt", &with_text),
    ];
    for (name, arguments) in cases {
        let (path, aside) = (folder.path().join(name), folder.path().join("aside"));
        fs::rename(&path, &aside)?;
        let made = Command::new("mkfifo").arg(&path).status()?;
        assert!(made.success(), "mkfifo {}", path.display());
        assert_refused(&run(arguments), 1, &[text_of(&path), "a regular file, got a named pipe"]);
        fs::remove_file(&path)?;
        std::os::unix::fs::symlink("/dev/zero", &path)?;
        assert_refused(&run(arguments), 1, &[text_of(&path), "a regular file, got a device"]);
        fs::remove_file(&path)?;
        fs::create_dir(&path)?;
        assert_refused(&run(arguments), 1, &[text_of(&path), "a regular file, got a directory"]);
        fs::remove_dir(&path)?;
        fs::rename(&aside, &path)?;
    }
    assert!(!output.exists());
    Ok(())
}

#[test(simulated = never)]
fn bits_and_groups_of_caches_are_checked_first() {
    for value in ["0", "1", "7", "-1", "9999999999", "x"] {
        for arguments in [
            &["generate", "x", "--kv-bits", value][..],
            &["chat", "--kv-bits", value],
            &["bench", "--kv-bits", value],
            &["info", "--model", DEMO, "--kv-bits", value],
        ] {
            assert_refused(
                &run(arguments),
                2,
                &["--kv-bits", "[possible values: 2, 3, 4, 5, 6, 8]"],
            );
        }
        let arguments = ["generate", "x", "--kv-bits", "8", "--kv-group-size", value];
        assert_refused(&run(&arguments), 2, &["--kv-group-size", "[possible values: 32, 64, 128]"]);
    }
    // The default of --kv-group-size is 64, which does not divide the 32 features of the demo
    // model's heads.
    for arguments in [
        &["generate", "x", "--kv-bits", "8"][..],
        &["chat", "--kv-bits", "8"],
        &["bench", "--kv-bits", "8", "-p", "1", "-g", "1"],
        &["info", "--model", DEMO, "--kv-bits", "8"],
    ] {
        let parts = ["a --kv-group-size that divides the 32 features", "got 64"];
        assert_refused(&run(arguments), 1, &parts);
    }
}

#[test(simulated = never)]
fn invalid_variables_are_bad_usage() {
    let said =
        |name: &str, value: &str| run_with(&["info"], "", |command| _ = command.env(name, value));
    for value in ["abc", "0", "-1", "1025", "4.5", "99999999999999999999"] {
        let parts = ["[MLX_PRIMITIVES_THREADS] expected 1 to 1024 threads, got", value];
        assert_refused(&said("MLX_PRIMITIVES_THREADS", value), 2, &parts);
    }
    let other = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    for value in ["abc", "sse9", other] {
        let parts =
            ["[MLX_PRIMITIVES_SIMD] expected an instruction set of this machine", "scalar)"];
        assert_refused(&said("MLX_PRIMITIVES_SIMD", value), 2, &parts);
    }
    for (name, value) in [
        ("MLX_PRIMITIVES_THREADS", "2"),
        ("MLX_PRIMITIVES_THREADS", ""),
        ("MLX_PRIMITIVES_SIMD", "Scalar"),
        ("MLX_PRIMITIVES_SIMD", ""),
    ] {
        let ended = said(name, value);
        assert_eq!(ended.code, Some(0), "{name}={value}: {ended:?}");
    }
}

/// If a line is too long, the command prints an error, and answers the next line.
#[test(simulated = never)]
fn a_chat_goes_on_after_a_line_that_is_too_long() {
    let long = "word ".repeat(400);
    let arguments = ["chat", "-m", "4"];
    let whole = run_with(&arguments, "One day\nThen\n", |_| {});
    let ended = run_with(&arguments, &format!("One day\n{long}\nThen\n"), |_| {});
    assert_eq!(ended.stdout, whole.stdout, "{ended:?}");
    assert_eq!((whole.code, ended.code), (Some(0), Some(1)), "{ended:?}");
    for part in ["1 to 256 tokens, got", "/reset", "1 of the lines had no answer"] {
        assert!(ended.stderr.contains(part), "{part}: {ended:?}");
    }
}
