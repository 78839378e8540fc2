//! Permissions of the files that this crate writes, files that killed processes leave behind, and
//! headers of safetensors files that state a name or a byte twice.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use mlx_primitives::{Result, io};
use mlx_primitives_llama::{Adapters, Checkpoint, ModelFiles, Options, PromptCache};

use crate::support::models::DEMO;
use crate::support::{Checked, message, safetensors as file};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn cache(demo: &Checkpoint) -> anyhow::Result<PromptCache> {
    let mut generation =
        demo.llama.generate(&[1, 2, 3], &Options { max_tokens: 2, ..Options::default() })?;
    generation.by_ref().collect::<Result<Vec<_>>>()?;
    Ok(generation.into_prompt_cache()?)
}

fn partials(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    names.filter(|name| name.starts_with(".partial")).collect()
}

#[test]
fn conversations_are_private_and_modes_stay() -> Checked {
    let demo = Checkpoint::demo()?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("cache.safetensors");
    let cache = cache(&demo)?;
    cache.save(&path)?;
    assert_eq!(mode(&path), 0o600);
    for kept in [0o640, 0o644, 0o600] {
        set_mode(&path, kept);
        cache.save(&path)?;
        assert_eq!(mode(&path), kept);
    }
    // Writing to a link replaces the link, and the file that it points to stays.
    let (link, other) = (folder.path().join("link.safetensors"), folder.path().join("other"));
    fs::write(&other, "something else")?;
    symlink(&other, &link)?;
    cache.save(&link)?;
    assert_eq!(fs::read_to_string(&other)?, "something else");
    assert!(fs::symlink_metadata(&link)?.is_file() && mode(&link) == 0o600);

    // Adapters and models get the same permissions as any new file.
    let plain = folder.path().join("plain");
    fs::write(&plain, "")?;
    let adapters = Adapters::load(
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/adapters"),
        &demo.llama,
    )?;
    let saved = folder.path().join("adapters");
    adapters.save(&saved, &demo.llama)?;
    ModelFiles::open(DEMO)?.save(folder.path().join("model"))?;
    for file in
        ["adapters/adapters.safetensors", "adapters/adapter_config.json", "model/model.safetensors"]
    {
        assert_eq!(mode(&folder.path().join(file)), mode(&plain), "{file}");
    }
    set_mode(&saved.join("adapters.safetensors"), 0o600);
    adapters.save(&saved, &demo.llama)?;
    assert_eq!(mode(&saved.join("adapters.safetensors")), 0o600);
    assert!(partials(folder.path()).is_empty() && partials(&saved).is_empty());
    Ok(())
}

/// This test runs alone. If another test started a child process, the child would inherit this
/// process's file lock and hold it until it calls `exec`.
#[test(alone)]
fn leftovers_are_removed_and_living_files_are_not() -> Checked {
    let demo = Checkpoint::demo()?;
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name);
    let left = ".partial-mlx-primitives-";
    fs::write(at(&format!("{left}aaaaaa.safetensors")), "x")?;
    fs::create_dir(at(&format!("{left}bbbbbb")))?;
    fs::write(at(&format!("{left}bbbbbb/model.safetensors")), "x")?;
    // Make files that this crate did not write, and a file that a running process has locked.
    fs::write(at(".partial-of-others"), "x")?;
    symlink(at(".partial-of-others"), at(&format!("{left}link")))?;
    let living = fs::File::create(at(&format!("{left}living.safetensors")))?;
    living.lock()?;
    cache(&demo)?.save(at("cache.safetensors"))?;
    let mut kept = partials(folder.path());
    kept.sort();
    let all =
        [format!("{left}link"), format!("{left}living.safetensors"), ".partial-of-others".into()];
    assert_eq!(kept, all);
    drop(living);
    ModelFiles::open(DEMO)?.save(at("model"))?;
    assert_eq!(partials(folder.path()).len(), 2);
    Ok(())
}

/// If SIGINT or SIGTERM ends `quantize` at any moment, it removes its unfinished files itself. If
/// SIGKILL ends it, the next run removes them.
#[test]
fn killed_conversions_leave_nothing() -> Checked {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("out");
    let quantize = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mlx-primitives"));
        command.args([
            "quantize",
            "--bits",
            "4",
            "--group-size",
            "32",
            "--model",
            DEMO,
            "--output",
        ]);
        command.arg(&out).stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let mut stopped = 0;
    for round in 0u64..24 {
        let mut child = quantize().spawn()?;
        std::thread::sleep(Duration::from_millis(5 * round));
        let signal = [libc::SIGINT, libc::SIGTERM, libc::SIGKILL][round as usize % 3];
        // SAFETY: `kill` accesses no memory, and the child has not been waited for, so its id is
        // still valid.
        unsafe { libc::kill(child.id() as i32, signal) };
        let start = Instant::now();
        while child.try_wait()?.is_none() {
            assert!(start.elapsed() < Duration::from_secs(60), "round {round} does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
        if signal != libc::SIGKILL {
            assert!(partials(folder.path()).is_empty(), "signal {signal} in round {round}");
        }
        stopped += usize::from(!out.exists());
        let _ = fs::remove_dir_all(&out);
        if round % 6 == 5 {
            assert!(quantize().status()?.success());
            assert!(partials(folder.path()).is_empty(), "after round {round}");
            fs::remove_dir_all(&out)?;
        }
    }
    assert!(stopped > 0, "no run was stopped");
    Ok(())
}

#[test]
fn headers_state_each_name_and_byte_once() -> Checked {
    let entry = |name: &str, from: usize| {
        format!(r#""{name}":{{"dtype":"U8","shape":[4],"data_offsets":[{from},{}]}}"#, from + 4)
    };
    let load = |header: &str, data| io::load_safetensors_bytes(&file(header, data));
    let good = load(&format!("{{{},{}}}", entry("a", 0), entry("b", 4)), 8)?;
    assert_eq!(good.arrays.len(), 2);
    let twice = format!("{{{},{}}}", entry("a", 0), entry("a", 4));
    assert!(message(load(&twice, 8)).contains("a: expected each name once"));
    let escaped = format!("{{{},{}}}", entry("a", 0), entry(r"\u0061", 4));
    assert!(message(load(&escaped, 8)).contains("each name once"));
    let metadata = format!(r#"{{"__metadata__":{{}},"__metadata__":{{}},{}}}"#, entry("a", 0));
    assert!(message(load(&metadata, 4)).contains("each name once"));
    for (from, data) in [(0, 4), (2, 6), (5, 9)] {
        let overlapping = format!("{{{},{}}}", entry("a", 0), entry("b", from));
        assert!(load(&overlapping, data).is_err(), "from {from}");
    }
    // A file with more tensors than any checkpoint has is refused early.
    let many = 300_000;
    let empty = |i: usize| format!(r#""t{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
    let header = format!("{{{}}}", (0..many).map(empty).collect::<Vec<_>>().join(","));
    let start = Instant::now();
    assert!(message(load(&header, 0)).contains("more than"));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    Ok(())
}
