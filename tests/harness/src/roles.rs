//! Child processes. A child is this binary again, with the name of its role in the environment.

use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use std::{env, io, thread};

use tempfile::NamedTempFile;

use crate::support::Checked;

/// The variable with the role of a child process.
pub const ROLE: &str = "MLX_PRIMITIVES_TEST_ROLE";
/// The variable with the number of times that each case runs.
const ROUNDS: &str = "MLX_PRIMITIVES_TEST_ROUNDS";
/// At its exit a child waits a second for running work. The rest is for its startup under load.
pub const LIMIT: Duration = Duration::from_secs(250);

/// Runs the role that the environment names, if it names one.
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

/// A child that runs a role, and the file with its output.
pub struct Player {
    role: String,
    pub child: Child,
    said: NamedTempFile,
}

/// Resets the child's signals, so that signals end it even if this process ignores them because of
/// `nohup` or a shell's `&`.
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
        // SAFETY: the signal goes to a child that has not been waited for.
        anyhow::ensure!(unsafe { libc::kill(id, signal) } == 0, "no signal reached {}", self.role);
        Ok(())
    }

    /// Waits for the child, and kills it if it takes longer than [`LIMIT`].
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

/// The number of times that a case runs.
pub fn rounds(default: u32) -> u32 {
    env::var(ROUNDS).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The status and the output of a child that runs the role.
pub fn ended(role: &str) -> anyhow::Result<(ExitStatus, String)> {
    Player::start(role)?.finish()
}

/// Checks that a child with this role ends with this status, in each round.
pub fn ends(role: &str, status: i32, rounds: u32) -> Checked {
    for round in 0..rounds {
        let (ended, said) = Player::start(role)?.finish()?;
        anyhow::ensure!(ended.code() == Some(status), "{role}, round {round}: {ended}, {said}");
    }
    Ok(())
}
