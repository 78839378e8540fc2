//! A model on several ranks, which are processes on this machine: the same bits as in one process.

mod choices;
mod command;
mod scenarios;
mod schemes;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use mlx_primitives::device::{Device, with_device};
use mlx_primitives_ranks::Scheme;
use mlx_primitives_ranks::{Group, Options};

use crate::distributed::ranks;
use crate::endings::ROLE;
use crate::support::Checked;
use scenarios::Results;

/// How long the ranks of a test may take, far longer than they do on idle cores.
const LIMIT: Duration = Duration::from_secs(240);

/// A fixture of each architecture and format.
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

/// Plays one rank: writes the results of a scenario to stdout. `role` is the scenario, the shares
/// (after the name of the scheme and a colon, unless it is gather) and a folder.
pub fn play(role: &str) -> Checked {
    let mut words = role.splitn(3, ' ');
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
    Ok(group.leave()?)
}

fn run(scenario: &str, folder: &Path, results: &mut Results) -> Checked {
    match scenario {
        "all-fixtures" => crate::checkpoints::names()?.iter().try_for_each(|n| results.fixture(n)),
        "layers" => crate::checkpoints::names()?.iter().try_for_each(|name| {
            if has_two_layers(name) { results.fixture(name) } else { results.one_layer(name) }
        }),
        "few-fixtures" => FEW.iter().try_for_each(|name| results.fixture(name)),
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

/// Whether a fixture has two layers, as all of GGUF have, and not one.
fn has_two_layers(name: &str) -> bool {
    let config = crate::checkpoints::root().join(name).join("config.json");
    let has = |json: String| json.contains("\"num_hidden_layers\": 2");
    name.starts_with("gguf") || fs::read_to_string(config).is_ok_and(has)
}

/// Processes that are ended with the test.
struct Ranks {
    children: Vec<Child>,
    folder: tempfile::TempDir,
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Ranks {
    /// Starts a command for each of the ranks. Their output goes to files.
    fn start(count: usize, command: impl Fn(usize) -> Command) -> Checked<Self> {
        let folder = tempfile::tempdir()?;
        let ports: Vec<u16> = (0..count).map(|_| ranks::free_port()).collect();
        let hosts = folder.path().join("hosts.json");
        fs::write(&hosts, ranks::hosts(&ports))?;
        let mut started = Self { children: Vec::new(), folder };
        for rank in 0..count {
            let file = |kind: &str| fs::File::create(started.output(rank, kind));
            let mut command = command(rank);
            command
                .env("MLX_HOSTFILE", &hosts)
                .env("MLX_RANK", rank.to_string())
                .env("MLX_PRIMITIVES_THREADS", "1")
                .stdin(Stdio::piped())
                .stdout(file("out")?)
                .stderr(file("err")?);
            let child = command.spawn()?;
            started.children.push(child);
        }
        Ok(started)
    }

    fn output(&self, rank: usize, kind: &str) -> PathBuf {
        self.folder.path().join(format!("{rank}.{kind}"))
    }

    /// How each rank ended, within the limit, and what it wrote to stdout and stderr.
    fn ends(mut self, limit: Duration) -> Checked<Vec<(ExitStatus, String, String)>> {
        let start = Instant::now();
        let mut ends = Vec::new();
        for rank in 0..self.children.len() {
            drop(self.children[rank].stdin.take());
            let status = loop {
                if let Some(status) = self.children[rank].try_wait()? {
                    break status;
                }
                ensure!(start.elapsed() < limit, "rank {rank} did not end within {limit:?}");
                sleep(Duration::from_millis(5));
            };
            let said = |kind: &str| fs::read_to_string(self.output(rank, kind));
            ends.push((status, said("out")?, said("err")?));
        }
        Ok(ends)
    }

    /// The text that each rank wrote to stdout. They must end well.
    fn results(self) -> Checked<Vec<String>> {
        let mut outputs = Vec::new();
        for (rank, (status, out, err)) in self.ends(LIMIT)?.into_iter().enumerate() {
            ensure!(status.success(), "rank {rank} ended with {status}: {err}");
            outputs.push(out);
        }
        Ok(outputs)
    }
}

/// A process of this suite that plays a role.
fn player(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a running test"));
    command.env(ROLE, role);
    command
}

/// Runs the scenario on ranks with these shares, and in this process, and compares the lines.
fn same(scenario: &str, shares: &str, folder: &Path) -> Checked {
    same_on(scenario, shares, folder, &[])
}

/// [`same`] with environment variables for the ranks.
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

#[test]
fn two_ranks_compute_the_bits_of_one() -> Checked {
    same("all-fixtures", "1,1", Path::new("-"))
}

#[test]
fn three_ranks_of_unequal_shares_compute_the_bits_of_one() -> Checked {
    same("all-fixtures", "2,1,1", Path::new("-"))
}

/// On a GPU, gathers take MLX's ring.
#[test]
fn ranks_of_a_ring_compute_the_bits_of_one() -> Checked {
    same_on("few-fixtures", "1,2", Path::new("-"), &[("MLX_PRIMITIVES_TEST_RING", "1")])
}

#[test]
fn adapters_batches_drafts_and_draws_are_those_of_one_process() -> Checked {
    same("demo", "3,1", Path::new("-"))?;
    same("demo", "1,1,1", Path::new("-"))
}

#[test]
fn rows_are_cut_at_blocks_of_wide_matrices() -> Checked {
    same("random", "1,2", Path::new("-"))?;
    same("random", "1,1,1", Path::new("-"))
}

#[test]
fn a_prompt_cache_crosses_to_other_numbers_of_ranks() -> Checked {
    let folder = tempfile::tempdir()?;
    // Saved by two ranks, which also checks that one process saves files of the same size.
    let role = |scenario: &str, shares: &str| same(scenario, shares, folder.path());
    role("save", "1,1")?; // this process has saved last
    role("load", "1,1")?;
    role("load", "2,1,1")?;
    let save = format!("split save 1,1,1 {}", folder.path().display());
    Ranks::start(3, |_| player(&save))?.results()?;
    role("load", "1,1") // saved by three ranks, read by two and by one
}

/// Linux counts the bytes that a process reads, and its peak memory.
#[cfg(target_os = "linux")]
#[test]
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
            // The configuration, and the first row of each tensor, which tells models apart.
            assert!(
                held <= read && read <= held + 200_000.0,
                "{shares}: {read} bytes read for {held}"
            );
            assert!(grown <= held + 150e6, "{shares}: {grown} bytes of memory for {held}");
        }
    }
    Ok(())
}
