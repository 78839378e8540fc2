//! 200 damaged checkpoints. Each loads and runs, or is refused with an error that names the damaged
//! part. Loading never crashes, and takes at most about twice the memory of the files.

use std::fs;

use mlx_primitives::device::{Device, with_device};
use mlx_primitives_llama::Llama;

use super::damage::{KINDS, spoil};
use super::errors::copy;
use super::{load, tokens};
use crate::support::{Checked, in_another_process, simulated};

const CASES: usize = 200;
const CHILD: &str = "MLX_PRIMITIVES_CORRUPT_CHILD";
const FIXTURES: [&str; 6] = [
    "llama-f32-biases",
    "llama-q4-g32-biases",
    "llama-bf16-sharded",
    "qwen3-q8-g32",
    "llama-mxfp4",
    "gguf-q4_0",
];

/// A child process runs the cases, so that the test can measure its memory and detect a crash.
#[test(simulated = once)]
fn damaged_checkpoints_are_refused_by_name() -> Checked {
    if std::env::var_os(CHILD).is_some() {
        // On a GPU, loading kernels would take more memory than the files, so use the CPU.
        return with_device(Device::Cpu, all_cases);
    }
    let test = "checkpoints::corrupt::damaged_checkpoints_are_refused_by_name";
    let said = in_another_process(test, |child| child.env(CHILD, "1"))?;
    eprintln!("{}", said.lines().find(|line| line.contains(" refused")).unwrap_or_default());
    Ok(())
}

fn all_cases() -> Checked {
    // The first load starts MLX's runtime and its threads, so do it before memory is measured.
    let whole = load(FIXTURES[0])?;
    whole.forward(&tokens(&[1, 2, 3])?, &mut whole.new_cache())?.eval()?;
    let (mut refused, mut loaded, mut most) = (0, Vec::new(), 0.0f64);
    for case in 0..CASES {
        let fixture = FIXTURES[case / KINDS % FIXTURES.len()];
        let folder = copy(fixture)?;
        let mut draw = fastrand::Rng::with_seed(case as u64);
        let damage = spoil(folder.path(), case % KINDS, &mut draw);
        let what = format!("case {case}, {fixture}: {}", damage.what);
        let path = match fixture.starts_with("gguf") {
            true => folder.path().join("model.gguf"),
            false => folder.path().to_owned(),
        };
        let size: u64 =
            fs::read_dir(folder.path())?.map(|e| e.unwrap().metadata().unwrap().len()).sum();
        let before = memory("VmRSS:");
        reset_peak();
        match Llama::load(&path) {
            Err(error) => {
                let said = error.to_string();
                assert!(said.starts_with(&folder.path().display().to_string()), "{what}: {said}");
                // The message must name a file of the folder, and the damaged part of the file.
                let file = ["model", "config.json"].iter().any(|name| said.contains(name));
                assert!(file, "{what}: {said}");
                for name in &damage.names {
                    assert!(said.contains(name), "{what}: no {name} in: {said}");
                }
                refused += 1;
            }
            Ok(llama) => {
                assert!(damage.harmless, "{what}: loaded");
                if !simulated() {
                    // A flipped bit may turn a weight into any number, even NaN, so check only the
                    // number of logits.
                    let ids = tokens(&[1, 2, 3])?;
                    let logits = llama.forward(&ids, &mut llama.new_cache())?;
                    assert_eq!(
                        logits
                            .to_vec::<f32>()
                            .or_else(|_| {
                                logits.astype(mlx_primitives::Dtype::Float32)?.to_vec::<f32>()
                            })?
                            .len(),
                        3 * llama.config().vocab_size as usize,
                        "{what}"
                    );
                }
                loaded.push(damage.what);
            }
        }
        // In addition, the runtime and its threads' allocators may take a few megabytes.
        let taken = memory("VmHWM:").saturating_sub(before) as f64;
        assert!(taken < 2.0 * size as f64 + SLACK, "{what}: {taken} bytes for {size}");
        most = most.max(taken);
    }
    eprintln!("{refused} of {CASES} refused, the others loaded; at most {most} bytes: {loaded:#?}");
    assert!(refused >= CASES * 3 / 4, "{refused} refused, {loaded:#?}");
    Ok(())
}

const SLACK: f64 = (4 << 20) as f64;

/// The bytes in this line of /proc/self/status, or 0 if the system does not report them.
pub fn memory(key: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Resets VmHWM, the peak of resident memory.
pub fn reset_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}
