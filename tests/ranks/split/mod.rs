//! A model that is split among several ranks (processes on this machine) computes the same bits as
//! in one process.

mod scenarios;
mod schemes;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};
use harness::roles::ROLE;
use mlx_primitives::Dtype;
use mlx_primitives::device::{Device, with_device};
use mlx_primitives_ranks::Scheme;
use mlx_primitives_ranks::{Group, Options};

use crate::support::Checked;
use crate::support::models;
use crate::support::ranks::Ranks;
use scenarios::Results;

/// Small models of several architectures and formats.
const FEW: [&str; 9] = [
    "llama-f32-biases",
    "llama-f16-mha-untied",
    "llama-f32-sliding",
    "llama-nvfp4-mixed",
    "llama-q8-g64-sharded",
    "qwen2-q4-g32",
    "qwen3-q8-g32",
    "gemma-q4-g64",
    "gguf-q4_1",
];

/// Runs one rank, which prints the results of a scenario. `role` is the word `split`, the scenario,
/// the shares of the ranks and a folder. If the scheme (how the model is split) is not `gather`,
/// its name and a colon precede the shares.
pub fn play(role: &str) -> Checked<u8> {
    let mut words = role.splitn(4, ' ').skip(1);
    let mut word = || words.next().context("a scenario, shares and a folder");
    let (scenario, shares, folder) = (word()?, word()?, word()?);
    let (name, shares) = shares.split_once(':').unwrap_or(("gather", shares));
    let scheme = Scheme::ALL.into_iter().find(|scheme| scheme.name() == name);
    let shares = shares.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>()?;
    let group = Group::join(Options::default())?;
    ensure!(group.size() == shares.len(), "the group has {} ranks", group.size());
    let mut results = Results::new(Some(&group), &shares, scheme.context("a scheme")?)?;
    run(scenario, Path::new(folder), &mut results)?;
    for line in results.lines {
        println!("{line}");
    }
    group.leave()?;
    Ok(0)
}

fn run(scenario: &str, folder: &Path, results: &mut Results) -> Checked {
    match scenario {
        "all-fixtures" => models::names()?.iter().try_for_each(|n| results.fixture(n)),
        "layers" => models::names()?.iter().try_for_each(|name| {
            if has_two_layers(name) { results.fixture(name) } else { results.one_layer(name) }
        }),
        "few-fixtures" => FEW.iter().try_for_each(|name| results.fixture(name)),
        "converted" => {
            results.dtype = Some(Dtype::Bfloat16);
            FEW.iter().try_for_each(|name| results.fixture(name))
        }
        "demo" => results.demo_model(),
        "random" => results.random(),
        "save" => results.save_caches(folder),
        "load" => results.load_caches(folder),
        "derivatives" => results.derivatives(),
        "greedy" => results.greedy(),
        #[cfg(target_os = "linux")]
        "read" => with_device(Device::Cpu, || results.bytes_read(folder)),
        other => bail!("there is no scenario {other}"),
    }
}

/// Whether a fixture has at least two layers. All GGUF fixtures do, but some others have only one.
fn has_two_layers(name: &str) -> bool {
    let config = models::checkpoints().join(name).join("config.json");
    let has = |json: String| json.contains("\"num_hidden_layers\": 2");
    name.starts_with("gguf") || fs::read_to_string(config).is_ok_and(has)
}

/// The command that runs a role in a child process.
fn player(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a running test"));
    command.env(ROLE, role);
    command
}

/// Runs the scenario on ranks with these shares, and in this process. The results must be equal.
fn same(scenario: &str, shares: &str, folder: &Path) -> Checked {
    same_on(scenario, shares, folder, &[])
}

/// Like [`same`], with additional environment variables for the ranks.
fn same_on(scenario: &str, shares: &str, folder: &Path, variables: &[(&str, &str)]) -> Checked {
    let role = format!("split {scenario} {shares} {}", folder.display());
    let ranks = Ranks::start(shares.split(',').count(), |_| {
        let mut command = player(&role);
        command.envs(variables.iter().copied());
        command
    })?;
    let outputs = ranks.results()?;
    let mut alone = Results::new(None, &[], Scheme::Gather)?;
    run(scenario, folder, &mut alone)?;
    for (rank, output) in outputs.iter().enumerate() {
        let lines: Vec<&str> = output.lines().collect();
        assert_eq!(lines.len(), alone.lines.len(), "rank {rank} of {shares}");
        for (line, expected) in lines.iter().zip(&alone.lines) {
            assert_eq!(line, expected, "rank {rank} of {shares}");
        }
    }
    assert!(!alone.lines.is_empty());
    Ok(())
}

#[test(simulated = never)]
fn two_ranks_compute_the_bits_of_one() -> Checked {
    same("all-fixtures", "1,1", Path::new("-"))
}

#[test(simulated = never)]
fn three_ranks_of_unequal_shares_compute_the_bits_of_one() -> Checked {
    same("all-fixtures", "2,1,1", Path::new("-"))
}

/// The ranks gather arrays through MLX's ring, as on a GPU.
#[test(simulated = never)]
fn ranks_of_a_ring_compute_the_bits_of_one() -> Checked {
    same_on("few-fixtures", "1,2", Path::new("-"), &[("MLX_PRIMITIVES_TEST_RING", "1")])
}

#[test(simulated = never)]
fn ranks_of_converted_weights_compute_the_bits_of_one() -> Checked {
    same("converted", "1,2", Path::new("-"))
}

#[test(simulated = never)]
fn adapters_batches_drafts_and_draws_are_those_of_one_process() -> Checked {
    same("demo", "3,1", Path::new("-"))?;
    same("demo", "1,1,1", Path::new("-"))
}

#[test(simulated = never)]
fn rows_are_cut_at_blocks_of_wide_matrices() -> Checked {
    same("random", "1,2", Path::new("-"))?;
    same("random", "1,1,1", Path::new("-"))
}

#[test(simulated = never)]
fn a_prompt_cache_crosses_to_other_numbers_of_ranks() -> Checked {
    let folder = tempfile::tempdir()?;
    // Two ranks and then this process save the caches. Their files must be equal.
    let role = |scenario: &str, shares: &str| same(scenario, shares, folder.path());
    role("save", "1,1")?; // this process has saved last
    role("load", "1,1")?;
    role("load", "2,1,1")?;
    let save = format!("split save 1,1,1 {}", folder.path().display());
    Ranks::start(3, |_| player(&save))?.results()?;
    role("load", "1,1") // saved by three ranks, read by two and by one
}

/// Uses Linux's counts of the bytes that a process reads, and of its peak memory.
#[cfg(target_os = "linux")]
#[test(simulated = never)]
fn a_rank_reads_and_holds_its_part_of_the_files() -> Checked {
    let folder = tempfile::tempdir()?;
    scenarios::write_model(folder.path())?;
    let role = |shares: &str| format!("split read {shares} {}", folder.path().display());
    let cases = [("1,1", 0.505), ("1,1,1,1", 0.26), ("6,1,1", 0.76), ("pipeline:1,1", 0.58)];
    for (shares, most) in cases {
        let role = role(shares);
        let ranks = Ranks::start(shares.split(',').count(), |_| player(&role))?;
        for line in ranks.results()? {
            let figures = line.split(' ').map(|word| Ok(word.trim().parse::<f64>()?));
            let figures = figures.collect::<Checked<Vec<_>>>()?;
            let &[read, held, whole, grown] = &figures[..] else {
                bail!("four figures, got {line}")
            };
            assert!(held <= most * whole, "{shares}: {held} of {whole} bytes");
            // In addition to its part, a rank reads the configuration, and the first row of each
            // tensor, which identify the model.
            assert!(
                held <= read && read <= held + 200_000.0,
                "{shares}: {read} bytes read for {held}"
            );
            assert!(grown <= held + 150e6, "{shares}: {grown} bytes of memory for {held}");
        }
    }
    Ok(())
}
