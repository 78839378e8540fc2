//! Worker processes that run jobs for this process. A job that crashes or never ends does not
//! affect the others.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// The prefix of an answer, which distinguishes it from the output of libraries.
const ANSWER: &str = "answer: ";

/// Answers each line of stdin with one line.
pub fn serve(mut answer: impl FnMut(&str) -> String) {
    for line in io::stdin().lines().map_while(Result::ok) {
        // If the other process does not listen, nobody can be informed.
        let _ = writeln!(io::stdout(), "\n{ANSWER}{}", answer(&line).replace('\n', " "));
    }
}

/// An answer, or the failure of the worker: "hang" or "crash".
pub type Answer = Result<String, &'static str>;

pub struct Worker {
    child: Child,
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Worker {
    /// Starts a program that calls [`serve`].
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

    /// Closes the worker's stdin and returns the status with which it ends.
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

/// Runs the jobs on one worker per core, and returns the answers in the order of the jobs. `seen`
/// receives each answer when it arrives.
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
