//! Tests downloads that a signal interrupts.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::server::Fault;
use super::{Place, demo, expected, succeeds};
use crate::support::Checked;

/// Interrupts or kills the command during a download. The next run must continue the download.
#[test]
fn a_download_that_was_interrupted_goes_on() -> Checked {
    for name in ["-INT", "-TERM", "-KILL"] {
        let place = Place::new(demo()?)?;
        place.server.fail(Fault::Slow);
        let mut command = place.generate("org/model");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: between fork and exec, the closure calls only a function that is
        // async-signal-safe.
        unsafe {
            // If a shell runs the tests in the background, they ignore SIGINT, and so would the
            // child.
            command.pre_exec(|| match libc::signal(libc::SIGINT, libc::SIG_DFL) {
                libc::SIG_ERR => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        let mut child = command.spawn()?;
        let start = Instant::now();
        while place.bytes() < 60_000 {
            ensure!(start.elapsed() < Duration::from_secs(100), "no bytes come");
            ensure!(child.try_wait()?.is_none(), "it ended by itself");
            sleep(Duration::from_millis(5));
        }
        let killed = Command::new("kill").args([name, &child.id().to_string()]).status()?;
        ensure!(killed.success(), "kill failed");
        let start = Instant::now();
        assert!(!child.wait()?.success());
        assert!(start.elapsed() < Duration::from_secs(20));
        let before = place.bytes();
        assert!(!place.path("models--org--model/refs/main").exists());
        place.server.requests();
        place.server.fail(Fault::None);
        assert_eq!(succeeds(&mut place.generate("org/model"))?, expected(), "after {name}");
        let requests = place.server.requests();
        let rest = format!("/blob/model.safetensors bytes={before}-");
        assert!(requests.contains(&rest), "{rest}: {requests:?}");
        assert!(!requests.iter().any(|request| request.contains("tokenizer.json bytes=0-0")));
    }
    Ok(())
}
