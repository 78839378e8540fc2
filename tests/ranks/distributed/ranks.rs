//! Starts ranks as child processes. A rank is this test binary. An environment variable names its
//! role: the code that it runs.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::{NamedTempFile, TempDir};

use crate::support::Checked;
pub use crate::support::ranks::{free_port, hosts};

/// The environment variable with the role of a rank.
pub const ROLE: &str = "MLX_PRIMITIVES_TEST_RANK";
/// The environment variables with a group's secret, and with the path of a file that contains it.
pub const SECRET: &str = "MLX_PRIMITIVES_RANK_SECRET";
pub const FILE: &str = "MLX_PRIMITIVES_RANK_SECRET_FILE";
/// The environment variables of ranks that NCCL connects. The last one lists their GPUs.
pub const NCCL: [&str; 4] = ["NCCL_HOST_IP", "NCCL_PORT", "MLX_WORLD_SIZE", "CUDA_VISIBLE_DEVICES"];
/// The environment variable with the group's timeout in milliseconds.
pub const TIMEOUT: &str = "MLX_PRIMITIVES_TEST_TIMEOUT";
/// A rank must end within this time, even on a busy machine.
pub const LIMIT: Duration = Duration::from_secs(100);

/// A folder and ports for the ranks of one test.
pub struct Place {
    folder: Arc<TempDir>,
    pub ports: Vec<u16>,
}

impl Place {
    pub fn new(size: usize) -> anyhow::Result<Self> {
        let ports = (0..size).map(|_| free_port()).collect();
        Ok(Self { folder: Arc::new(tempfile::tempdir()?), ports })
    }

    /// Prepares a rank.
    pub fn rank(&self, role: &str, rank: usize) -> anyhow::Result<Starting> {
        self.rank_with(role, rank, &hosts(&self.ports))
    }

    /// Prepares a rank with this content of its host file.
    pub fn rank_with(&self, role: &str, rank: usize, hosts: &str) -> anyhow::Result<Starting> {
        let path = self.folder.path().join(format!("{rank}-{}.json", fastrand::u64(..)));
        fs::write(&path, hosts)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.env(ROLE, role).env("MLX_RANK", rank.to_string()).env("MLX_HOSTFILE", path);
        command.env("RUST_BACKTRACE", "0").env("MLX_PRIMITIVES_THREADS", "1").stdin(Stdio::null());
        let others = ["MLX_IBV_DEVICES", "MLX_JACCL_COORDINATOR", "MLX_RING_VERBOSE", SECRET, FILE];
        for name in others.iter().chain(&NCCL) {
            command.env_remove(name);
        }
        Ok(Starting { command, folder: self.folder.clone() })
    }

    /// Starts all ranks.
    pub fn start(&self, role: &str, timeout: Duration) -> anyhow::Result<Vec<Process>> {
        (0..self.ports.len()).map(|rank| self.rank(role, rank)?.timeout(timeout).start()).collect()
    }
}

pub struct Starting {
    command: Command,
    folder: Arc<TempDir>,
}

impl Starting {
    pub fn timeout(self, timeout: Duration) -> Self {
        self.env(TIMEOUT, &timeout.as_millis().to_string())
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Removes an environment variable.
    pub fn without(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    pub fn start(mut self) -> anyhow::Result<Process> {
        let said = NamedTempFile::new()?;
        let output = said.reopen()?;
        let errors = output.try_clone()?; // with the same position in the file
        let child = self.command.stdout(output).stderr(errors).spawn()?;
        Ok(Process { child, said, _folder: self.folder })
    }
}

/// A running rank. Dropping this value kills it.
pub struct Process {
    child: Child,
    said: NamedTempFile,
    /// The folder with the host file, which must exist while the rank runs.
    _folder: Arc<TempDir>,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status and the output of a rank that has ended.
#[derive(Debug)]
pub struct Ended {
    pub status: Option<i32>,
    pub signal: Option<i32>,
    pub said: String,
}

impl Ended {
    /// Checks the status, and that the output contains this text.
    pub fn check(&self, status: i32, text: &str) -> Checked {
        let right = self.status == Some(status) && self.said.contains(text);
        anyhow::ensure!(right, "expected status {status} and {text:?}: {self:#?}");
        Ok(())
    }
}

impl Process {
    pub fn said(&self) -> String {
        fs::read_to_string(self.said.path()).unwrap_or_default()
    }

    pub fn signal(&self, signal: i32) -> Checked {
        let id = i32::try_from(self.child.id())?;
        // SAFETY: the signal goes to a child that nobody has waited for yet, so its ID is valid.
        anyhow::ensure!(unsafe { libc::kill(id, signal) } == 0, "no signal reached the rank");
        Ok(())
    }

    /// Waits until the rank has printed this text.
    pub fn wait_for(&mut self, text: &str) -> Checked {
        let start = Instant::now();
        while !self.said().contains(text) {
            let ended = self.child.try_wait()?;
            anyhow::ensure!(ended.is_none(), "it ended without {text:?}: {}", self.said());
            anyhow::ensure!(start.elapsed() < LIMIT, "{text:?} does not come: {}", self.said());
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Waits for the end of the rank.
    pub fn finish(mut self) -> anyhow::Result<Ended> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                let (status, signal) = (status.code(), status.signal());
                return Ok(Ended { status, signal, said: self.said() });
            }
            anyhow::ensure!(start.elapsed() < LIMIT, "still running: {}", self.said());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Waits for all ranks. Checks that each has ended with this status and printed this text.
pub fn all_end(ranks: Vec<Process>, status: i32, text: &str) -> Checked {
    // Wait for all ranks before the check, so that a failure shows the output of every rank.
    let ended = ranks.into_iter().map(Process::finish).collect::<anyhow::Result<Vec<_>>>()?;
    let right = |end: &Ended| end.check(status, text).is_ok();
    anyhow::ensure!(ended.iter().all(right), "expected status {status}, {text:?}: {ended:#?}");
    Ok(())
}

/// In a rank: ends the process after a time limit, in case the test has crashed and does not wait.
pub fn limit_this_rank() {
    thread::spawn(|| {
        thread::sleep(LIMIT + Duration::from_secs(20));
        let _ = std::io::stderr().write_all(b"the rank's time is over\n");
        // SAFETY: `_exit` ends the process at once and accesses no memory.
        unsafe { libc::_exit(97) }
    });
}
