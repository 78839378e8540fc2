//! Worker processes that run jobs for this process. If a job crashes or never ends, the other jobs
//! still run.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// The prefix of an answer. It distinguishes answers from other output on stdout.
const ANSWER: &str = "answer: ";

/// In a worker: answers each line of stdin with one line.
pub fn serve(mut answer: impl FnMut(&str) -> String) {
    for line in io::stdin().lines().map_while(Result::ok) {
        // Ignore an error. If the parent has stopped reading, there is nobody to report it to.
        let _ = writeln!(io::stdout(), "\n{ANSWER}{}", answer(&line).replace('\n', " "));
    }
}

/// A worker's answer. The error is "hang" if the worker did not answer in time, and "crash" if it
/// ended.
pub type Answer = Result<String, &'static str>;

pub struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Worker {
    /// Starts a worker: a program that calls [`serve`].
    pub fn start(program: &mut Command) -> io::Result<Self> {
        let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, answers) = channel();
        // This thread ends when the worker's stdout ends.
        std::thread::spawn(move || {
            for line in stdout.split(b'\n').map_while(Result::ok) {
                if let Some(answer) = String::from_utf8_lossy(&line).strip_prefix(ANSWER) {
                    let _ = sender.send(answer.to_owned());
                }
            }
        });
        Ok(Self { child, stdin, answers })
    }

    pub fn ask(&mut self, job: &str, patience: Duration) -> Answer {
        let asked = self.stdin.as_mut().map(|stdin| writeln!(stdin, "{job}"));
        if !matches!(asked, Some(Ok(()))) {
            return Err("crash");
        }
        self.answers.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => "hang",
            RecvTimeoutError::Disconnected => "crash",
        })
    }

    /// Closes the worker's stdin, which ends it. Returns its exit status.
    pub fn end(&mut self) -> io::Result<ExitStatus> {
        drop(self.stdin.take());
        self.child.wait()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the jobs with one worker per core. Returns the answers in the order of the jobs. Calls
/// `seen` for each answer when it arrives.
pub fn run(
    jobs: &[String],
    start: impl Fn() -> Worker + Sync,
    patience: Duration,
    seen: impl Fn(usize, &Answer) + Sync,
) -> Vec<Answer> {
    let next = AtomicUsize::new(0);
    let answers = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers.min(jobs.len()) {
            scope.spawn(|| {
                let mut worker = start();
                while let Some(index) = Some(next.fetch_add(1, Ordering::Relaxed))
                    && let Some(job) = jobs.get(index)
                {
                    let answer = worker.ask(job, patience);
                    if answer.is_err() {
                        worker = start();
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
