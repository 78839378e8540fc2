//! Tests failures of files and of memory allocation while a model is read, run or written.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use mlx_primitives::ops::Lora;
use mlx_primitives::{Array, Dtype, memory, ops, step};
use mlx_primitives_llama::{
    Adapters, Cache, Checkpoint, Llama, ModelFiles, Options, PromptCache, Quantization,
};
use tempfile::TempDir;

use crate::cli_faults::{assert_refused, ended, run_after};
use crate::command::text_of;
use crate::support::models::DEMO;
use crate::support::models::variant;
use crate::support::{Checked, message};

const CHILD: &str = "MLX_PRIMITIVES_TEST_FAULTS";

/// Runs a test of this file in a child process. A shell first runs `shell`, which may set a limit,
/// and then starts the child.
fn in_child(shell: &str, test: &str, folder: &Path) -> Checked {
    let child = Command::new("sh")
        .args(["-c", &format!("{shell} exec \"$0\" \"$@\"")])
        .arg(std::env::current_exe()?)
        .args(["--exact", &format!("file_faults::{test}"), "--nocapture", "--test-threads=1"])
        .env(CHILD, folder)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()?;
    let ended = ended(child);
    let passed = ended.code == Some(0) && ended.stdout.contains("1 passed");
    assert!(passed, "{test}: {ended:#?}");
    Ok(())
}

/// Returns the names and contents of the files of a folder.
fn contents(folder: &Path) -> anyhow::Result<BTreeMap<String, Vec<u8>>> {
    let read = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry?.path();
        let bytes = if path.is_dir() { Vec::new() } else { fs::read(&path)? };
        Ok((path.display().to_string(), bytes))
    };
    fs::read_dir(folder)?.map(read).collect()
}

/// Makes adapters (low-rank updates) whose file has a few kilobytes.
fn adapters(llama: &Llama, rank: i32) -> anyhow::Result<Adapters> {
    let name = "model.layers.3.self_attn.v_proj".to_owned();
    let update = Lora::initial(llama.projection_shape(&name)?, rank, 2.0)?;
    Ok([(name, update)].into_iter().collect())
}

fn prompt_cache(checkpoint: &Checkpoint, tokens: usize) -> anyhow::Result<PromptCache> {
    let prompt: Vec<u32> = (0..tokens as u32).map(|i| i % 500 + 3).collect();
    let options = Options { max_tokens: 1, ..Options::default() };
    let mut generation = checkpoint.generate(&prompt, &options)?;
    generation.next_token()?;
    Ok(generation.into_prompt_cache()?)
}

/// Returns paths at which even root cannot write a file, with the reason for each.
fn unwritable(folder: &Path) -> anyhow::Result<Vec<(String, &'static str)>> {
    let file = folder.join("file");
    fs::write(&file, "")?;
    let mut paths = vec![
        (format!("{}/no/such/folder", folder.display()), "not found"),
        (file.display().to_string(), "not a directory"),
    ];
    if cfg!(target_os = "linux") {
        paths.push(("/sys".to_owned(), "permission denied"));
    }
    Ok(paths)
}

#[test(simulated = never)]
fn paths_that_cannot_be_written_are_found_before_the_work() -> Checked {
    let folder = TempDir::new()?;
    for (place, why) in unwritable(folder.path())? {
        let cache = format!("{place}/prompt.safetensors");
        let found = message(PromptCache::check_path(&cache));
        assert!(found.starts_with(&cache) && found.contains(why), "{why}: {found}");
        let arguments = ["generate", "One day", "--prompt-cache-file", &cache];
        assert_refused(&run_after("", &arguments, ""), 1, &[&cache, "cannot be written", why]);
        if why == "not found" {
            continue; // missing folders are created for a checkpoint
        }
        let output = format!("{place}/new");
        let found = message(ModelFiles::check_path(&output));
        assert!(found.starts_with(&output) && !found.contains(".partial"), "{found}");
        let arguments = ["quantize", "--model", DEMO, "--output", &output, "--group-size", "32"];
        assert_refused(&run_after("", &arguments, ""), 1, &[&output, "cannot be written"]);
    }
    let cache = folder.path().join("cache.bin");
    assert!(message(PromptCache::check_path(&cache)).contains("ends in .safetensors"));
    // A successful check must not create files or folders.
    ModelFiles::check_path(folder.path().join("a/b/c"))?;
    PromptCache::check_path(folder.path().join("x.safetensors"))?;
    assert_eq!(contents(folder.path())?.len(), 1);
    Ok(())
}

/// A limit for the size of files simulates a full disk, because a real full disk would need
/// a mount. A write fails if it goes beyond the limit, as on a full disk.
#[test(simulated = never)]
fn incomplete_writes_leave_the_old_files() -> Checked {
    if let Some(folder) = std::env::var_os(CHILD) {
        return saves_fail(Path::new(&folder));
    }
    let folder = TempDir::new()?;
    let checkpoint = Checkpoint::demo()?;
    prompt_cache(&checkpoint, 2)?.save(folder.path().join("prompt.safetensors"))?;
    adapters(&checkpoint.llama, 1)?.save(folder.path().join("adapters"), &checkpoint.llama)?;
    // `ulimit -f 16` is a limit of 8 or 16 kB: the size of a block depends on the shell.
    in_child(
        "trap '' XFSZ; ulimit -f 16;",
        "incomplete_writes_leave_the_old_files",
        folder.path(),
    )?;

    let before = contents(folder.path())?;
    let cache = folder.path().join("prompt.safetensors");
    let long = "word ".repeat(100);
    let arguments = ["generate", &long, "-m", "1", "--prompt-cache-file", text_of(&cache)];
    let ended = run_after("ulimit -f 16;", &arguments, "");
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let said = format!("error: {}: cannot be written: ", cache.display());
    assert!(ended.stderr.contains(&said) && ended.stderr.contains("disk full?"), "{ended:?}");
    let output = folder.path().join("new");
    let arguments =
        ["quantize", "--model", DEMO, "--output", text_of(&output), "--group-size", "32"];
    let ended = run_after("ulimit -f 16;", &arguments, "");
    assert_refused(&ended, 1, &[text_of(&output), "cannot be written"]);
    assert_eq!(contents(folder.path())?, before);
    Ok(())
}

fn saves_fail(folder: &Path) -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let (cache, own) = (folder.join("prompt.safetensors"), folder.join("adapters"));
    let (before, adapters_before) = (contents(folder)?, contents(&own)?);
    let refused = |result: mlx_primitives::Result<()>, path: &Path| {
        let said = message(result);
        assert!(said.starts_with(&format!("{}", path.display())), "{said}");
        assert!(said.contains("cannot be written") && !said.contains(".partial"), "{said}");
    };
    refused(prompt_cache(&checkpoint, 100)?.save(&cache), &cache);
    let large = adapters(&checkpoint.llama, 64)?;
    refused(large.save(&own, &checkpoint.llama), &own.join("adapters.safetensors"));
    let new = folder.join("new/folder");
    refused(large.save(&new, &checkpoint.llama), &new);
    let packed = ModelFiles::open(DEMO)?.quantized(Quantization::affine(32, 4), None, |_, _| {})?;
    refused(packed.save(&new), &new);
    assert_eq!((contents(folder)?, contents(&own)?), (before, adapters_before));
    // The earlier files are still readable.
    PromptCache::load(&cache, &checkpoint.llama)?;
    Adapters::load(&own, &checkpoint.llama)?;
    Ok(())
}

/// The loader reads weights with system calls instead of mapping the file. So if another process
/// truncates the file, the loader returns an error.
#[test(simulated = never)]
fn a_file_truncated_while_it_is_read_is_an_error() -> Checked {
    for lazily in [true, false] {
        let folder = variant(Dtype::Float32, |_, _| {});
        let file = folder.path().join("model.safetensors");
        let truncate = || fs::OpenOptions::new().write(true).open(&file)?.set_len(40_000);
        let run = |llama: &Llama, cache: &mut Cache| {
            llama.forward(&Array::from_slice(&[5u32, 6], [1, 2])?, cache)?.eval()
        };
        let said = match lazily {
            true => {
                let llama = Llama::load_lazily(folder.path())?;
                truncate()?;
                message(run(&llama, &mut llama.new_cache()))
            }
            false => message(Llama::load_with(folder.path(), |_| truncate().expect("a file"))),
        };
        let file = file.display().to_string();
        assert!(said.contains(&file) && said.contains("bytes, got fewer"), "{said}");
    }
    Ok(())
}

/// An op that converts an input to another type. Its arguments are arrays of 16 million float32,
/// int64 and float16 numbers.
type Converting = fn(&Array, &Array, &Array) -> mlx_primitives::Result<Array>;

fn conversions() -> [(&'static str, Converting); 15] {
    use ops::{Linear, MaskedSoftmax};
    [
        ("astype of integers", |_, i, _| i.astype(Dtype::Float32)),
        ("astype of halves", |_, _, n| n.astype(Dtype::Float32)),
        ("astype of columns", |_, _, n| n.t()?.astype(Dtype::Float32)),
        ("astype of every second", |_, i, _| i.i((.., step(.., 2)))?.astype(Dtype::Float32)),
        ("softmax", |_, i, _| ops::softmax(i)),
        ("log_softmax", |_, i, _| ops::log_softmax(i)),
        ("logsumexp", |_, i, _| ops::logsumexp(i)),
        ("silu", |_, i, _| ops::silu(i)),
        ("swiglu", |x, _, n| ops::swiglu(x, n)),
        ("masked_softmax", |x, _, n| {
            ops::masked_softmax(x, MaskedSoftmax { mask: Some(n), ..MaskedSoftmax::default() })
        }),
        ("linear", |x, _, n| ops::linear(n, &x.i(0..2)?, Linear::default())),
        ("linear of a bias", |x, _, n| {
            let bias = x.i((0, 0..2))?;
            ops::linear(n, &n.i(0..2)?, Linear { bias: Some(&bias), ..Linear::default() })
        }),
        ("lora_linear", |x, _, n| {
            let base = ops::LinearWeight::Plain(n.i(0..2)?);
            ops::lora_linear(n, &base, &x.i(0..2)?, &x.i((0..2, 0..2))?, 1.0)
        }),
        ("attention", |x, _, n| {
            let q = n.reshape((1, 256, 1 << 10, 64))?;
            let k = x.i(0)?.reshape((1, 1, 16, 64))?;
            ops::attention(&q, &k, &k, ops::Attention::default())
        }),
        ("cross_entropy", |x, i, _| {
            let classes = x.reshape((1 << 24, 1))?;
            ops::cross_entropy(&classes, &i.reshape(1 << 24)?, ops::CrossEntropy::default())
        }),
    ]
}

/// If an op gets no memory, its evaluation returns an error. Later evaluations succeed when there
/// is memory again.
#[cfg(target_os = "linux")] // other systems do not enforce the limit
#[test(simulated = never)]
fn memory_that_the_system_refuses_is_an_error() -> Checked {
    if std::env::var_os(CHILD).is_some() {
        let x = Array::ones::<f32>(&[1 << 14, 1 << 10])?; // 64 MB
        x.eval()?;
        let (integers, narrow) = (x.astype(Dtype::Int64)?, x.astype(Dtype::Float16)?);
        mlx_primitives::eval([&integers, &narrow])?;
        let mut kept = Vec::new();
        let said = loop {
            let y = ops::softmax(&x)?;
            match y.eval() {
                Ok(()) => kept.push(y),
                Err(error) => break error.to_string(),
            }
        };
        assert!(said.contains("no memory for "), "{said}");
        // If an op must copy an input that is not row-contiguous, and there is no memory for the
        // copy, the evaluation returns an error.
        let row = Array::ones::<f32>(&[1 << 10])?;
        let wide = row.broadcast_to([1 << 14, 1 << 10])?;
        let strided = [x.t()?, wide, x.i((.., step(.., 2)))?, x.i(1..)?.t()?];
        type Op = fn(&Array) -> mlx_primitives::Result<Array>;
        let calls: [Op; 9] = [
            Array::contiguous,
            ops::softmax,
            ops::relu,
            |x| ops::rms_norm(x, None, 1e-5),
            |x| ops::layer_norm(x, None, None, 1e-5),
            |x| ops::sum(x, -1),
            |x| ops::max(x, ..),
            ops::logsumexp,
            |x| ops::masked_softmax(x, ops::MaskedSoftmax::default()),
        ];
        // Allocates the remaining memory, except for less than a quarter of x's size.
        let quarter = x.i(0..1 << 12)?;
        let mut fill = || {
            for part in [&x, &quarter] {
                while let Ok(y) = ops::softmax(part).and_then(|y| y.eval().map(|()| y)) {
                    kept.push(y);
                }
            }
        };
        let refused = |what: &str, y: mlx_primitives::Result<Array>| {
            let said = y.and_then(|y| y.eval()).expect_err("memory").to_string();
            assert!(said.contains("no memory for "), "{what}: {said}");
        };
        for (number, op) in calls.iter().enumerate() {
            for (layout, input) in strided.iter().enumerate() {
                fill();
                refused(&format!("{number} {layout}"), op(input));
            }
        }
        for (name, op) in conversions() {
            fill();
            refused(name, op(&x, &integers, &narrow));
        }
        drop(kept);
        // After the memory is free again, a model can be loaded and run.
        let checkpoint = Checkpoint::load(DEMO)?;
        let tokens =
            checkpoint.generate(&[5, 6], &Options { max_tokens: 8, ..Options::default() })?;
        assert!(tokens.collect::<Result<Vec<u32>, _>>()?.len() <= 8);
        return Ok(());
    }
    let folder = TempDir::new()?;
    let limit = "ulimit -v 2500000;"; // in kilobytes: enough for the program and its threads
    in_child(limit, "memory_that_the_system_refuses_is_an_error", folder.path())?;

    // If a Rust collection cannot allocate memory, the command ends with an error message.
    let folder = variant(Dtype::Float32, |_, _| {});
    fs::File::create(folder.path().join("tokenizer.json"))?.set_len(8 << 30)?;
    let arguments = ["generate", "x", "--model", text_of(folder.path())];
    assert_refused(&run_after("ulimit -v 4000000;", &arguments, ""), 1, &["out of memory: "]);
    Ok(())
}

/// MLX's memory limit is only a guideline. If work exceeds the limit, MLX waits for memory to
/// become free, and still finishes the work.
#[test(simulated = never)]
fn a_low_memory_limit_changes_no_token() -> Checked {
    if std::env::var_os(CHILD).is_some() {
        let checkpoint = Checkpoint::demo()?;
        let prompt = checkpoint.tokenizer.encode("Once upon a time")?;
        let options = Options { max_tokens: 20, ..Options::default() };
        let story = || checkpoint.generate(&prompt, &options)?.collect::<Result<Vec<u32>, _>>();
        let expected = story()?;
        for limit in [0, 1, 1 << 20] {
            memory::set_memory_limit(limit)?;
            for _ in 0..5 {
                assert_eq!(story()?, expected, "{limit}");
            }
        }
        return Ok(());
    }
    let folder = TempDir::new()?;
    in_child("", "a_low_memory_limit_changes_no_token", folder.path())
}
