//! Starts processes on this machine as the ranks of a group. A rank is one of the processes that
//! share a split model.

use std::fs;
use std::net::TcpListener;
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::Checked;

/// The time limit for the ranks of a test. On idle cores they take far less.
pub const LIMIT: Duration = Duration::from_secs(240);

/// The number of ports in a block.
const BLOCK: u16 = 50;

/// Blocks of ports. A process claims a block by listening at its first port until the process ends.
/// It may give the other ports to ranks. So tests in different processes never share a port.
struct Blocks {
    claims: Vec<TcpListener>,
    left: Range<u16>,
}

/// Finds a free port that no other test process uses. It is below the ports that the system gives
/// to outgoing connections.
pub fn free_port() -> u16 {
    static BLOCKS: Mutex<Blocks> = Mutex::new(Blocks { claims: Vec::new(), left: 0..0 });
    let listen = |port| TcpListener::bind(("127.0.0.1", port));
    let mut blocks = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..10_000 {
        if let Some(port) = blocks.left.next() {
            if listen(port).is_ok() {
                return port;
            }
            continue;
        }
        let first = BLOCK * fastrand::u16(12_000 / BLOCK..32_000 / BLOCK);
        if let Ok(claim) = listen(first) {
            blocks.claims.push(claim);
            blocks.left = first + 1..first + BLOCK;
        }
    }
    panic!("nearly all ports between 12000 and 32000 are in use");
}

/// The host file that lists ranks on this machine at these ports.
pub fn hosts(ports: &[u16]) -> String {
    let entries: Vec<_> = ports.iter().map(|port| [format!("127.0.0.1:{port}")]).collect();
    serde_json::to_string(&entries).expect("text")
}

/// Processes that are killed when this value is dropped.
pub struct Ranks {
    pub children: Vec<Child>,
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
    /// Starts a command for each rank. Files receive the output.
    pub fn start(count: usize, command: impl Fn(usize) -> Command) -> Checked<Self> {
        let folder = tempfile::tempdir()?;
        let ports: Vec<u16> = (0..count).map(|_| free_port()).collect();
        let file = folder.path().join("hosts.json");
        fs::write(&file, hosts(&ports))?;
        let mut started = Self { children: Vec::new(), folder };
        for rank in 0..count {
            let output = |kind: &str| fs::File::create(started.output(rank, kind));
            let mut command = command(rank);
            command
                .env("MLX_HOSTFILE", &file)
                .env("MLX_RANK", rank.to_string())
                .env("MLX_PRIMITIVES_THREADS", "1")
                .stdin(Stdio::piped())
                .stdout(output("out")?)
                .stderr(output("err")?);
            let child = command.spawn()?;
            started.children.push(child);
        }
        Ok(started)
    }

    pub fn output(&self, rank: usize, kind: &str) -> PathBuf {
        self.folder.path().join(format!("{rank}.{kind}"))
    }

    /// Waits until all ranks have ended, for at most `limit`. Returns the status, stdout and stderr
    /// of each rank.
    pub fn ends(mut self, limit: Duration) -> Checked<Vec<(ExitStatus, String, String)>> {
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

    /// Waits for all ranks and returns the stdout of each. Every rank must succeed.
    pub fn results(self) -> Checked<Vec<String>> {
        let mut outputs = Vec::new();
        for (rank, (status, out, err)) in self.ends(LIMIT)?.into_iter().enumerate() {
            ensure!(status.success(), "rank {rank} ended with {status}: {err}");
            outputs.push(out);
        }
        Ok(outputs)
    }
}
