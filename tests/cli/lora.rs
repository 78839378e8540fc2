//! Tests fine-tuning with the command: its reports and files, and killed and resumed runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use harness::roles::rounds;
use mlx_primitives_llama::train::{
    Adam, Dataset, Kind, Optimizer, Schedule, Settings, Trainable, Trainer, evaluate,
};
use mlx_primitives_llama::{Checkpoint, ModelFiles, Quantization};
use serde_json::Value;
use tempfile::TempDir;

use crate::command::{command, run, stderr, stdout, text_of};
use crate::support::Checked;
use crate::support::models::DEMO;

/// Makes a folder of data sets for training, validation and testing.
pub fn texts() -> Checked<TempDir> {
    let folder = TempDir::new()?;
    let line = |number: usize| {
        let sea = ["calm", "rough", "heavy"][number % 3];
        format!(
            "{{\"text\": \"Log of the ship {number}. The wind is north and the sea {sea}.\"}}\n"
        )
    };
    for (name, lines) in [("train", 0..12), ("valid", 12..16), ("test", 16..24)] {
        let path = folder.path().join(format!("{name}.jsonl"));
        fs::write(path, lines.map(line).collect::<String>())?;
    }
    Ok(folder)
}

fn adapters(folder: &Path) -> Checked<Vec<u8>> {
    Ok(fs::read(folder.join("adapters.safetensors"))?)
}

#[test(simulated = never)]
fn reports_are_the_librarys_losses_and_adapters_load() -> Checked {
    let data = texts()?;
    let at = |name: &str| data.path().join(name);
    let [saved, curve, fused] = ["adapters", "curve.svg", "fused"].map(at);
    let config = at("config.yaml");
    fs::write(
        &config,
        "# as mlx-lm writes it\ntrain: true\niters: 99\nnum_layers: 2\nresume_adapter_file: null\n\
         lora_parameters:\n  keys: [\"self_attn.q_proj\", \"mlp.down_proj\"]\n  rank: 4\n  \
         scale: 10.0\n  dropout: 0.0\noptimizer: adamw\noptimizer_config:\n  adamw:\n    \
         betas:\n    - 0.9\n    - 0.99\nlr_schedule:\n  name: cosine_decay\n  warmup: 1\n  \
         arguments: [1e-2, 6, 1e-3]\n",
    )?;
    let arguments = [
        "lora",
        "-c",
        text_of(&config),
        "--test",
        "--model",
        DEMO,
        "--data",
        text_of(data.path()),
        "--iters",
        "6",
        "--steps-per-report",
        "2",
        "--steps-per-eval",
        "4",
        "--save-every",
        "4",
        "--seed",
        "3",
        "--adapter-path",
        text_of(&saved),
        "--plot",
        text_of(&curve),
        "--json",
    ];
    let output = run(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("Trainable parameters: ") && said.contains("Iter 4: Saved"), "{said}");
    let lines: Vec<Value> =
        stdout(&output).lines().map(serde_json::from_str).collect::<Result<_, _>>()?;

    // Compute the expected losses with calls of the library.
    let demo = Checkpoint::load(DEMO)?;
    let load = |name: &str| Dataset::load(&at(name), &demo, None, false);
    let (train, valid, test) = (load("train.jsonl")?, load("valid.jsonl")?, load("test.jsonl")?);
    let keys = Some(["self_attn.q_proj", "mlp.down_proj"].map(str::to_owned).to_vec());
    let adamw = Adam { weight_decay: 0.01, betas: [0.9, 0.99], ..Adam::default() };
    let settings = Settings {
        optimizer: Optimizer::Adam(adamw),
        schedule: Schedule::Cosine { from: 1e-2, to: 1e-3, steps: 6 }.after_warmup(0.0, 1),
        batch_size: 4,
        accumulation: 1,
        max_length: 2048,
        max_norm: None,
        recompute: false,
        seed: 3,
    };
    let kind = Kind::Lora { rank: 4, scale: 10.0, keys, dropout: 0.0, dora: false };
    let trainable = Trainable::new(&demo.llama, kind, 2)?;
    let mut trainer = Trainer::new(&demo.llama, &train, trainable, settings)?;
    let mut expected = Vec::new();
    for step in 1..=6 {
        if [1, 4, 6].contains(&step) {
            let loss = evaluate(&trainer.model()?, &valid, 4, 2048, None, || {})?;
            expected.push(("val_loss", step - 1, loss));
        }
        trainer.step()?;
        if step % 2 == 0 {
            expected.push(("train_loss", step, trainer.report().unwrap()));
        }
    }
    let tested = evaluate(&trainer.model()?, &test, 4, 2048, None, || {})?;
    assert_eq!(lines.len(), expected.len() + 1);
    // serde_json may change the last bit of a number that it reads. So the test passes the expected
    // numbers through serde_json too.
    let read = |loss: f64| serde_json::from_str::<f64>(&loss.to_string()).ok();
    for (line, (name, step, loss)) in lines.iter().zip(&expected) {
        assert_eq!((line["iteration"].as_u64(), line[name].as_f64()), (Some(*step), read(*loss)));
    }
    assert!(expected[5].2 < expected[1].2 - 0.2, "{expected:?}");
    assert_eq!(lines[6]["test_loss"].as_f64(), read(tested));
    for key in ["learning_rate", "iterations_per_second", "tokens_per_second", "peak_memory"] {
        assert!(lines[1][key].as_f64() > Some(0.0) || key == "learning_rate", "{lines:?}");
    }
    assert_eq!(lines[5]["trained_tokens"].as_u64(), Some(trainer.trained_tokens()));
    let drawn = fs::read_to_string(&curve)?;
    assert!(drawn.starts_with("<svg") && drawn.contains("validation"), "{drawn:.200}");
    assert!(saved.join("0000004_adapters.safetensors").exists());

    // The saved adapters can be loaded together with the model, and can be merged into its weights.
    let again = ["--test", "--data", text_of(data.path()), "--adapter-path", text_of(&saved)];
    let again = run(&[&["lora", "--model", DEMO, "--json"], &again[..]].concat());
    let object: Value = serde_json::from_slice(&again.stdout)?;
    assert_eq!(object["test_loss"].as_f64(), Some(tested), "{}", stderr(&again));
    let fuse = ["fuse", "--model", DEMO, "--adapter-path", text_of(&saved), "--save-path"];
    assert!(run(&[&fuse[..], &[text_of(&fused)]].concat()).status.success());
    let merged = Checkpoint::load(&fused)?;
    let loss = evaluate(&merged.llama, &test, 4, 2048, None, || {})?;
    assert!((loss - tested).abs() < 1e-4, "{loss} {tested}");
    Ok(())
}

/// Kills or interrupts runs at random times and resumes them. They must write the same bytes as a
/// run without interruption. The base model is quantized.
#[test(simulated = never)]
fn killed_runs_end_with_the_bytes_of_whole_ones() -> Checked {
    let data = texts()?;
    let packed = data.path().join("packed");
    let four_bits = Quantization::affine(32, 4);
    ModelFiles::open(DEMO)?.quantized(four_bits, None, |_, _| {})?.save(&packed)?;
    let arguments = |folder: &Path| {
        let folder = text_of(folder).to_owned();
        let all = [
            "lora",
            "--train",
            "--model",
            text_of(&packed),
            "--data",
            text_of(data.path()),
            "--iters",
            "12",
            "--save-every",
            "1",
            "--batch-size",
            "2",
            "--num-layers",
            "1",
            "--grad-accumulation-steps",
            "2",
            "--learning-rate",
            "1e-3",
            "--resume",
            "--adapter-path",
            &folder,
        ];
        all.map(str::to_owned)
    };
    let whole = data.path().join("whole");
    let mine = arguments(&whole);
    let start = Instant::now();
    let output = run(&mine.each_ref().map(String::as_str));
    let takes = start.elapsed();
    assert!(output.status.success(), "{}", stderr(&output));
    let mut ended = [0; 2];
    for round in 0..rounds(3) {
        let folder = data.path().join(format!("killed {round}"));
        let mine = arguments(&folder);
        let mine = mine.each_ref().map(String::as_str);
        for attempt in 0.. {
            let mut child = command(&mine);
            let child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
            std::thread::sleep(
                takes.mul_f32((0.1 + 0.7 * fastrand::f32()) * (attempt + 1) as f32 / 2.0),
            );
            let signal = [libc::SIGKILL, libc::SIGINT][attempt % 2];
            // SAFETY: `kill` accesses no memory. The child's id is still valid, because nothing has
            // waited for the child yet.
            unsafe { libc::kill(child.id() as i32, signal) };
            let output = child.wait_with_output()?;
            let said = stderr(&output);
            if output.status.success() {
                break;
            }
            ended[attempt % 2] += 1;
            if output.status.code() == Some(130) {
                assert!(said.contains("--resume continues"), "{said}");
            } else {
                assert_eq!(output.status.code(), None, "{said}");
            }
        }
        assert_eq!(adapters(&folder)?, adapters(&whole)?, "round {round}");
        assert_eq!(
            fs::read(folder.join("training_state.safetensors"))?,
            fs::read(whole.join("training_state.safetensors"))?
        );
        let names = fs::read_dir(&folder)?.map(|entry| Ok(entry?.file_name()));
        let names: Vec<_> = names.collect::<Checked<_>>()?;
        let partial = |name: &&std::ffi::OsString| name.to_string_lossy().starts_with(".partial");
        assert_eq!(names.iter().filter(partial).count(), 0, "{names:?}");
    }
    assert!(ended[0] > 0, "no run was killed: {ended:?}");
    Ok(())
}

#[test(simulated = never)]
fn whole_layers_are_trained_fused_and_tested() -> Checked {
    let data = texts()?;
    let [saved, fused] = ["tuned", "fused"].map(|name| data.path().join(name));
    let common =
        ["--model", DEMO, "--data", text_of(data.path()), "--adapter-path", text_of(&saved)];
    let train = [
        "lora",
        "--train",
        "--test",
        "--fine-tune-type",
        "full",
        "--num-layers",
        "1",
        "--iters",
        "3",
        "--learning-rate",
        "1e-3",
        "--optimizer",
        "adafactor",
        "--grad-checkpoint",
        "--max-grad-norm",
        "1",
        "--json",
    ];
    let loss = |arguments: &[&str]| -> Checked<f64> {
        let output = run(&[arguments, &common].concat());
        let last = stdout(&output).lines().last().unwrap_or_default().to_owned();
        let object: Value =
            serde_json::from_str(&last).map_err(|_| anyhow::anyhow!(stderr(&output)))?;
        Ok(object["test_loss"].as_f64().unwrap())
    };
    let trained = loss(&train)?;
    assert_eq!(loss(&["lora", "--test", "--json"])?, trained);
    let fuse = ["fuse", "--model", DEMO, "--adapter-path", text_of(&saved), "--save-path"];
    let output = run(&[&fuse[..], &[text_of(&fused)]].concat());
    assert!(stdout(&output).contains(": 9 weights replaced, "), "{}", stderr(&output));
    let merged = Checkpoint::load(&fused)?;
    let test = Dataset::load(&data.path().join("test.jsonl"), &merged, None, false)?;
    assert_eq!(evaluate(&merged.llama, &test, 4, 2048, None, || {})?, trained);
    let generate = ["generate", "Log", "--model", DEMO, "--adapter-path", text_of(&saved)];
    let said = stderr(&run(&generate));
    assert!(said.contains("mlx-primitives fuse writes a whole model"), "{said}");
    Ok(())
}

#[test(simulated = never)]
fn magnitudes_are_trained_tested_and_fused() -> Checked {
    let data = texts()?;
    let [saved, fused, config] = ["dora", "fused", "c.yaml"].map(|name| data.path().join(name));
    fs::write(&config, "lora_parameters:\n  rank: 4\n  scale: 10.0\n  dropout: 0.1\n")?;
    let common = ["--test", "--json", "--data", text_of(data.path()), "--adapter-path"];
    let common = [&common[..], &[text_of(&saved), "--model", DEMO]].concat();
    let train = ["lora", "--train", "-c", text_of(&config), "--fine-tune-type", "dora"];
    let rest = ["--num-layers", "1", "--iters", "3", "--learning-rate", "1e-3"];
    let loss = |arguments: &[&str]| -> Checked<f64> {
        let output = run(&[arguments, &common].concat());
        let last = stdout(&output).lines().last().unwrap_or_default().to_owned();
        let object: Value =
            serde_json::from_str(&last).map_err(|_| anyhow::anyhow!(stderr(&output)))?;
        Ok(object["test_loss"].as_f64().unwrap())
    };
    let trained = loss(&[&train[..], &rest].concat())?;
    assert_eq!(loss(&["lora"])?, trained);
    let config: Value = serde_json::from_slice(&fs::read(saved.join("adapter_config.json"))?)?;
    assert_eq!(config["fine_tune_type"], "dora");
    let fuse = ["fuse", "--model", DEMO, "--adapter-path", text_of(&saved), "--save-path"];
    let output = run(&[&fuse[..], &[text_of(&fused)]].concat());
    assert!(stdout(&output).contains(": 7 projections fused, "), "{}", stderr(&output));
    let merged = Checkpoint::load(&fused)?;
    let test = Dataset::load(&data.path().join("test.jsonl"), &merged, None, false)?;
    let loss = evaluate(&merged.llama, &test, 4, 2048, None, || {})?;
    assert!((loss - trained).abs() < 1e-4, "{loss} {trained}");
    Ok(())
}

#[test(simulated = never)]
fn what_cannot_be_run_is_refused() -> Checked {
    let data = texts()?;
    let here = text_of(data.path());
    let train = ["lora", "--train", "--data", here, "--adapter-path", "/nowhere/at/all"];
    let config = |text: &str| -> Checked<PathBuf> {
        let path = data.path().join(format!("{}.yaml", fastrand::u64(..)));
        fs::write(&path, text)?;
        Ok(path)
    };
    for (arguments, part) in [
        (&["lora"][..], "--train or --test"),
        (&["lora", "--train"], "--data"),
        (&[&train[..], &["--optimizer", "muon"]].concat(), "--optimizer"),
        (&[&train[..], &["--batch-size", "0"]].concat(), "--batch-size of 1 to 65536, got 0"),
        (&[&train[..], &["--iters", "0"]].concat(), "--iters"),
        (&[&train[..], &["--max-seq-length", "1"]].concat(), "--max-seq-length"),
        (&[&train[..], &["--val-batches", "-2"]].concat(), "--val-batches"),
        (&[&train[..], &["--learning-rate", "nan"]].concat(), "learning rates"),
        (&[&train[..], &["--max-grad-norm", "0"]].concat(), "--max-grad-norm"),
    ] {
        let output = run(arguments);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(part) && output.stdout.is_empty(), "{arguments:?}: {said}");
    }
    for (text, status, part) in [
        ("iters: 3\n  - x\n", 1, "line 2: expected "),
        ("iters 3\n", 1, "line 1: expected a key and a colon, got iters 3"),
        ("a: 1\na: 2\n", 1, "line 2: expected each key once"),
        ("iterations: 3\n", 1, "iterations"),
        ("iters: many\n", 1, "many"),
        ("{\"iters\": ", 1, "expected a JSON object"),
        ("x: &anchor 3\n", 1, "line 1: expected a plain value"),
        (&format!("a: {}\n", "[".repeat(5000)), 1, "lists and mappings in JSON"),
        (&(0..20).map(|at| " ".repeat(at) + "a:\n").collect::<String>(), 1, "less deep"),
        ("lora_parameters: {rank: 8}\n", 1, "line 1: expected lists and"),
        ("lora_parameters: {\"rank\": 8}\n", 1, "missing field `scale`"),
        ("lora_parameters:\n  rank: 8\n  scale: 1.0\n  dropout: 1\n", 2, "dropout of 0 to"),
        ("lr_schedule:\n  name: step_decay\n  arguments: [1, 2, 3]\n", 2, "got step_decay"),
        ("optimizer_config:\n  adam:\n    beta: 1\n", 2, "options of adam"),
    ] {
        let path = config(text)?;
        let output = run(&[&train[..], &["-c", text_of(&path)]].concat());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{text:.80}: {said}");
        assert!(said.contains(part), "{text:.80}: {said}");
    }
    let empty = TempDir::new()?;
    let output = run(&["lora", "--test", "--data", text_of(empty.path())]);
    assert!(stderr(&output).contains("there are no texts in test.jsonl"), "{}", stderr(&output));
    fs::write(empty.path().join("train.jsonl"), "{\"text\": \"a\"}\n{\"txt\": 1}\n")?;
    let folder = text_of(empty.path());
    let output = run(&["lora", "--train", "--data", folder, "--adapter-path", folder]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("train.jsonl: line 2: "), "{}", stderr(&output));
    Ok(())
}
