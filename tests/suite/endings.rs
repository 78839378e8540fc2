//! However a program ends while work is running, it ends at once, with its own status, and without
//! a double free. Each case is a child process: this binary, told its role.

use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use mlx_primitives::custom::{CustomPrimitive, Spec, View, ViewMut, apply_one};
use mlx_primitives::device::{Device, Stream, with_stream};
use mlx_primitives::{Array, Result, async_eval, eval};
use mlx_primitives_llama::{Checkpoint, Options};
use tempfile::NamedTempFile;

use crate::support::{Checked, on_cpu};

/// The role of a child process.
pub const ROLE: &str = "MLX_PRIMITIVES_TEST_ROLE";
/// How often each case is tried.
const ROUNDS: &str = "MLX_PRIMITIVES_TEST_ROUNDS";
/// The exit waits a second for running work; the rest is startup time under load.
const LIMIT: Duration = Duration::from_secs(250);

/// A kernel that ends the process, or that never ends.
struct Odd {
    exits: bool,
}

impl CustomPrimitive for Odd {
    fn name(&self) -> &str {
        "odd"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(inputs.to_vec())
    }

    fn eval_cpu(&self, _: &[View<'_>], _: &mut [ViewMut<'_>]) -> Result<()> {
        if self.exits {
            std::process::exit(5);
        }
        loop {
            thread::sleep(Duration::from_secs(1));
        }
    }
}

/// A graph that takes a while and keeps returning memory of many sizes to MLX's cache.
fn long_graph(ops: usize) -> Result<Array> {
    let x = Array::ones::<f32>(&[64, 64])?;
    for _ in 0..20 {
        let many = (1..100).map(|i| x.i(0..1 + i % 64)?.multiply(0.01 * i as f32)?.exp());
        eval(&many.collect::<Result<Vec<_>>>()?)?;
    }
    let mut y = x.clone();
    for _ in 0..ops {
        y = y.multiply(1.01)?.add(&y.sum(0)?)?.tanh()?;
    }
    Ok(y)
}

/// Plays a role; the child then returns from main with this status.
fn play(role: &str) -> Checked<u8> {
    match role {
        "return" => async_eval([&long_graph(400)?])?,
        "exit" => {
            async_eval([&long_graph(400)?])?;
            std::process::exit(7);
        }
        "panic" => {
            async_eval([&long_graph(400)?])?;
            panic!("on purpose");
        }
        "streams" => {
            let (a, b) = (Stream::new(Device::Cpu)?, Stream::new(Device::Cpu)?);
            let x = long_graph(200)?;
            let y = with_stream(&a, || x.multiply(2.0))?;
            async_eval([&with_stream(&b, || y.add(&x))?, &y])?;
        }
        "dropped generation" => {
            let checkpoint = Checkpoint::demo()?;
            let prompt = checkpoint.tokenizer.encode("Once upon a time")?;
            let options = Options { max_tokens: 100_000, ..Options::default() };
            let mut generation = checkpoint.llama.generate(&prompt, &options)?;
            for _ in 0..5 {
                generation.next().transpose()?;
            }
        }
        "busy thread" => {
            let (started, wait) = std::sync::mpsc::channel();
            thread::spawn(move || -> Checked {
                loop {
                    long_graph(50)?.eval()?;
                    let _ = started.send(());
                }
            });
            wait.recv()?;
            thread::sleep(Duration::from_micros(u64::from(std::process::id()) % 20_000));
        }
        "thread that ends first" => {
            let thread = thread::spawn(|| async_eval([&long_graph(400)?]));
            thread.join().expect("no panic")?;
        }
        "exit in a kernel" => {
            let x = Array::ones::<f32>(&[16])?;
            on_cpu(|| Ok(apply_one(Odd { exits: true }, &[&x])?.eval()?))?;
        }
        "endless kernel" => {
            let x = Array::ones::<f32>(&[16])?;
            on_cpu(|| Ok(async_eval([&apply_one(Odd { exits: false }, &[&x])?])?))?;
        }
        "signal" => loop {
            async_eval([&long_graph(50)?])?;
        },
        #[cfg(target_os = "linux")]
        "short threads" => crate::threads::short_threads()?,
        "failures" => crate::failures::on_the_main_thread()?,
        other => match other.split_once(' ') {
            Some(("split", scenario)) => crate::split::play(scenario)?,
            #[cfg(unix)]
            Some(("late", role)) => crate::late::play(role)?,
            _ => anyhow::bail!("there is no role {other}"),
        },
    }
    Ok(0)
}

/// Plays the role that the environment names, if any.
pub fn role() -> Option<ExitCode> {
    let role = env::var(ROLE).ok()?;
    Some(match play(&role) {
        Ok(status) => status.into(),
        Err(error) => {
            eprintln!("{role}: {error:?}");
            ExitCode::FAILURE
        }
    })
}

/// A child that plays a role, and the file with its output.
struct Player {
    role: String,
    child: Child,
    said: NamedTempFile,
}

/// Signals end the child even if this process ignores them because of `nohup` or a shell's `&`.
#[cfg(unix)]
fn default_signals(command: &mut Command) {
    use std::os::unix::process::CommandExt;

    // SAFETY: between fork and exec only `signal` is called, which is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGINT, libc::SIGTERM] {
                if libc::signal(signal, libc::SIG_DFL) == libc::SIG_ERR {
                    return Err(io::Error::last_os_error());
                }
            }
            Ok(())
        });
    }
}

impl Player {
    fn start(role: &str) -> io::Result<Self> {
        Self::run(role, Command::new(env::current_exe()?).env(ROLE, role))
    }

    fn run(role: &str, command: &mut Command) -> io::Result<Self> {
        let said = NamedTempFile::new()?;
        #[cfg(unix)]
        default_signals(command);
        let child = command
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(said.reopen()?)
            .stderr(said.reopen()?)
            .spawn()?;
        Ok(Self { role: role.to_owned(), child, said })
    }

    #[cfg(unix)]
    fn signal(&self, signal: i32) -> Checked {
        let id = i32::try_from(self.child.id())?;
        // SAFETY: the signal goes to a child that has not been waited for.
        anyhow::ensure!(unsafe { libc::kill(id, signal) } == 0, "no signal reached {}", self.role);
        Ok(())
    }

    /// Waits for the child, and kills it if it takes longer than the limit.
    fn finish(mut self, limit: Duration) -> anyhow::Result<(ExitStatus, String)> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok((status, std::fs::read_to_string(self.said.path())?));
            }
            if start.elapsed() > limit {
                self.child.kill()?;
                anyhow::bail!("{}: still running after {limit:?}", self.role);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

pub fn rounds(default: u32) -> u32 {
    env::var(ROUNDS).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// How a child that plays the role ends, and what it says.
pub fn ended(role: &str) -> anyhow::Result<(ExitStatus, String)> {
    Player::start(role)?.finish(LIMIT)
}

/// Checks that the child's role ends with this status, in each round.
pub fn ends(role: &str, status: i32, rounds: u32) -> Checked {
    for round in 0..rounds {
        let (ended, said) = Player::start(role)?.finish(LIMIT)?;
        anyhow::ensure!(ended.code() == Some(status), "{role}, round {round}: {ended}, {said}");
    }
    Ok(())
}

#[test]
fn return_from_main() -> Checked {
    ends("return", 0, rounds(5))
}

#[test]
fn process_exit() -> Checked {
    ends("exit", 7, rounds(5))
}

#[test]
fn panic_in_main() -> Checked {
    ends("panic", 101, rounds(5))
}

#[test]
fn work_on_several_streams() -> Checked {
    ends("streams", 0, rounds(5))
}

#[test]
fn dropped_generation() -> Checked {
    ends("dropped generation", 0, rounds(5))
}

#[test]
fn another_thread_evaluates() -> Checked {
    ends("busy thread", 0, rounds(5))
}

#[test]
fn the_thread_that_evaluates_ends_first() -> Checked {
    ends("thread that ends first", 0, rounds(5))
}

#[test]
fn exit_in_a_kernel() -> Checked {
    ends("exit in a kernel", 5, rounds(5))
}

#[test]
fn a_kernel_that_never_ends() -> Checked {
    ends("endless kernel", 0, rounds(3))
}

#[test]
#[cfg(target_os = "linux")]
fn short_threads_leave_nothing() -> Checked {
    ends("short threads", 0, 1)
}

/// A signal that the program does not handle ends it.
#[test]
#[cfg(unix)]
fn signals() -> Checked {
    use std::os::unix::process::ExitStatusExt;

    for round in 0..rounds(5) {
        for signal in [libc::SIGINT, libc::SIGTERM] {
            let player = Player::start("signal")?;
            thread::sleep(Duration::from_millis(u64::from(round) * 37 % 400));
            player.signal(signal)?;
            let (ended, said) = player.finish(LIMIT)?;
            assert_eq!(ended.signal(), Some(signal), "round {round}: {ended}, {said}");
        }
    }
    Ok(())
}

/// Waits until a process handles SIGINT.
#[cfg(target_os = "linux")]
fn wait_for_handler(id: u32) -> Checked {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.unwrap_or_default().trim(), 16)?;
        if caught & (1 << (libc::SIGINT - 1)) != 0 {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
    anyhow::bail!("process {id} handles no SIGINT");
}

/// Interrupts while the model loads, the prompt is read, or tokens are generated.
#[test]
#[cfg(target_os = "linux")]
fn interrupted_generations() -> Checked {
    let long_prompt = "Once upon a time there was a little girl. ".repeat(15);
    for round in 0..rounds(6) {
        let prompt = if round % 3 == 0 { &long_prompt } else { "Once upon a time" };
        let player = Player::run(
            "generate",
            Command::new(env!("CARGO_BIN_EXE_mlx-primitives")).args([
                "generate",
                prompt,
                "--verbose",
                "--logit-bias",
                "0:-1000",
                "--max-tokens",
                "100000",
            ]),
        )?;
        wait_for_handler(player.child.id())?;
        thread::sleep(Duration::from_micros(fastrand::u64(0..600_000)));
        player.signal(if round % 2 == 0 { libc::SIGINT } else { libc::SIGTERM })?;
        let (ended, said) = player.finish(LIMIT)?;
        let stopped = said.contains("Generation: ") && said.contains("Peak memory: ");
        assert!(ended.success() && stopped, "round {round}: {ended}, {said}");
    }
    Ok(())
}
