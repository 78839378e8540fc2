//! Processes that run mutants, so that one that crashes or never ends does not affect the others.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Set in a worker.
const ROLE: &str = "METAL_SIM_WORKER";

/// A mutant that runs for longer never ends.
const PATIENCE: Duration = Duration::from_secs(60);

pub fn is_worker() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// Answers every line of stdin with a line.
pub fn serve(mut answer: impl FnMut(&str) -> String) {
    for line in std::io::stdin().lines().map_while(Result::ok) {
        println!("{ANSWER}{}", answer(&line).replace('\n', " "));
    }
}

/// The start of an answer, which tells it from the output of libraries.
const ANSWER: &str = "answer: ";

pub type Answer = Result<String, &'static str>;

struct Worker {
    child: Child,
    stdin: ChildStdin,
    answers: Receiver<String>,
}

impl Worker {
    fn start() -> Self {
        let program = std::env::current_exe().expect("a running test");
        let mut child = Command::new(program)
            .env(ROLE, "1")
            .env_remove("MLX_PRIMITIVES_SIMULATE_LOG")
            .env_remove("MLX_PRIMITIVES_SIMULATE_METAL")
            .env_remove("MLX_PRIMITIVES_SIMULATE_THREADS")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a worker");
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, answers) = channel();
        // Ends with the worker's stdout.
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some(answer) = line.strip_prefix(ANSWER) {
                    let _ = sender.send(answer.to_owned());
                }
            }
        });
        Self { child, stdin, answers }
    }

    fn ask(&mut self, job: &str) -> Answer {
        if writeln!(self.stdin, "{job}").is_err() {
            return Err("crash");
        }
        self.answers.recv_timeout(PATIENCE).map_err(|error| match error {
            RecvTimeoutError::Timeout => "hang",
            RecvTimeoutError::Disconnected => "crash",
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the jobs on one worker per core, and returns the answers in the order of the jobs. An error
/// tells how the worker ended. `seen` receives each answer when it arrives.
pub fn run(jobs: &[String], seen: impl Fn(usize, &Answer) + Sync) -> Vec<Answer> {
    let next = AtomicUsize::new(0);
    let answers = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers.min(jobs.len()) {
            scope.spawn(|| {
                let mut worker = Worker::start();
                while let Some(index) = Some(next.fetch_add(1, Ordering::Relaxed))
                    && let Some(job) = jobs.get(index)
                {
                    let answer = worker.ask(job);
                    if answer.is_err() {
                        worker = Worker::start();
                    }
                    seen(index, &answer);
                    answers.lock().unwrap().push((index, answer));
                }
            });
        }
    });
    let mut answers = answers.into_inner().unwrap();
    answers.sort_by_key(|(index, _)| *index);
    answers.into_iter().map(|(_, answer)| answer).collect()
}
