//! Runs this test binary as child processes. An environment variable names the role of a child: the
//! code that it runs.

use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use tempfile::NamedTempFile;

use crate::support::Checked;

/// The environment variable with the role of a child process.
pub const ROLE: &str = "MLX_PRIMITIVES_TEST_ROLE";
/// The environment variable that overrides how many times each case runs.
const ROUNDS: &str = "MLX_PRIMITIVES_TEST_ROUNDS";
/// The time limit of a child. When it exits, a child waits up to a second for running work. The
/// limit is long because a busy machine may start the child slowly.
pub const LIMIT: Duration = Duration::from_secs(250);

/// If the environment names a role, runs it.
pub(crate) fn role(play: fn(&str) -> Checked<u8>) -> Option<ExitCode> {
    let role = env::var(ROLE).ok()?;
    Some(match play(&role) {
        Ok(status) => status.into(),
        Err(error) => {
            eprintln!("{role}: {error:?}");
            ExitCode::FAILURE
        }
    })
}

/// A child process that runs a role, and the file that receives its output.
pub struct Player {
    role: String,
    pub child: Child,
    said: NamedTempFile,
}

/// Makes signals end the child. Without this, the child would ignore the signals that this process
/// ignores because of `nohup` or a shell's `&`.
#[cfg(unix)]
fn default_signals(command: &mut Command) {
    use std::os::unix::process::CommandExt;

    // SAFETY: between fork and exec, the closure calls only `signal`, which is async-signal-safe.
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
    pub fn start(role: &str) -> io::Result<Self> {
        Self::run(role, Command::new(env::current_exe()?).env(ROLE, role))
    }

    pub fn run(role: &str, command: &mut Command) -> io::Result<Self> {
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
    pub fn signal(&self, signal: i32) -> Checked {
        let id = i32::try_from(self.child.id())?;
        // SAFETY: the signal goes to a child that nobody has waited for yet, so its ID is valid.
        anyhow::ensure!(unsafe { libc::kill(id, signal) } == 0, "no signal reached {}", self.role);
        Ok(())
    }

    /// Waits for the child. Kills it if it takes longer than [`LIMIT`].
    pub fn finish(mut self) -> anyhow::Result<(ExitStatus, String)> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok((status, std::fs::read_to_string(self.said.path())?));
            }
            if start.elapsed() > LIMIT {
                self.child.kill()?;
                anyhow::bail!("{}: still running after {LIMIT:?}", self.role);
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The number of times that a case runs: the value of the environment variable, or `default`.
pub fn rounds(default: u32) -> u32 {
    env::var(ROUNDS).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Runs a role in a child process. Returns the child's status and output.
pub fn ended(role: &str) -> anyhow::Result<(ExitStatus, String)> {
    Player::start(role)?.finish()
}

/// Runs a role `rounds` times, each time in a new child process. Checks the status of each child.
pub fn ends(role: &str, status: i32, rounds: u32) -> Checked {
    for round in 0..rounds {
        let (ended, said) = Player::start(role)?.finish()?;
        anyhow::ensure!(ended.code() == Some(status), "{role}, round {round}: {ended}, {said}");
    }
    Ok(())
}
