//! Handles Ctrl-C and SIGTERM. In a command that calls [`handle`], the first signal ends the
//! command in an orderly way, or at once if there are several ranks. A second signal ends it at
//! once. While a command loads a model or splits a long prompt into tokens, it may not notice the
//! first signal. Then this module ends the command after almost two seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;

use mlx_primitives::files;

use crate::{joined, output};

/// The exit status that shells expect from an interrupted command.
pub const INTERRUPTED: i32 = 130;

/// Handles Ctrl-C from this call on. The returned flag becomes true at the first Ctrl-C.
pub fn handle() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    on_ctrl_c(move || {
        end_with_ranks();
        if flag.load(Ordering::Relaxed) {
            end(INTERRUPTED);
        }
        interrupt(&flag);
    })?;
    Ok(interrupted)
}

/// If the command runs on several ranks, ends it after Ctrl-C, because the other ranks cannot
/// continue without this rank.
pub fn end_with_ranks() {
    if joined::group().is_some() {
        joined::fail("interrupted");
        output::error("interrupted");
        end(INTERRUPTED);
    }
}

/// From this call on, lets the first Ctrl-C end the process, even while it writes output.
pub fn end_at_once() -> Result<()> {
    on_ctrl_c(|| end(INTERRUPTED))
}

/// Runs `handler` on a separate thread at each Ctrl-C, SIGTERM or SIGHUP.
pub fn on_ctrl_c(handler: impl FnMut() + 'static + Send) -> Result<()> {
    ctrlc::set_handler(handler).map_err(|error| match error {
        ctrlc::Error::System(cause) if cause.kind() == std::io::ErrorKind::WouldBlock => {
            anyhow::anyhow!(
                "handling Ctrl-C: the system refuses this process another thread ({cause}): raise the limit \
                 of processes (ulimit -u, or the container's), or end other programs"
            )
        }
        ctrlc::Error::System(cause) => anyhow::anyhow!("handling Ctrl-C: {cause}"),
        other => anyhow::anyhow!("handling Ctrl-C: {other}"),
    })
}

/// Makes SIGTERM end the process at once. `chat` calls this after [`on_ctrl_c`]: during an answer,
/// Ctrl-C ends only the answer, but SIGTERM ends the command.
pub fn end_when_terminated() {
    #[cfg(unix)]
    {
        extern "C" fn terminated(_: libc::c_int) {
            // SAFETY: `_exit` only ends the process, and a signal handler may call it.
            unsafe { libc::_exit(INTERRUPTED) }
        }
        let handler: extern "C" fn(libc::c_int) = terminated;
        // SAFETY: the handler only calls `_exit`, which is safe in a signal handler.
        unsafe {
            libc::signal(libc::SIGTERM, handler as libc::sighandler_t);
        }
    }
}

/// The time in which the command must notice an interruption.
const PATIENCE: Duration = Duration::from_millis(1_800);

/// Whether the command has noticed the last interruption.
static SEEN: AtomicBool = AtomicBool::new(false);

/// Records that the command has noticed an interruption.
pub fn seen() {
    SEEN.store(true, Ordering::SeqCst);
}

/// Sets the flag that the command checks. If the command does not notice the flag soon, ends the
/// process.
pub fn interrupt(flag: &AtomicBool) {
    SEEN.store(false, Ordering::SeqCst);
    flag.store(true, Ordering::SeqCst);
    let waiting = thread::Builder::new().name("interrupted".to_owned()).spawn(|| {
        thread::sleep(PATIENCE);
        if !SEEN.load(Ordering::SeqCst) {
            end(INTERRUPTED);
        }
    });
    if waiting.is_err() {
        end(INTERRUPTED);
    }
}

/// Ends the process at once, without destructors. Destructors would free data, such as that of
/// CUDA's driver, which threads of MLX may still use. All printed output has already been flushed.
pub fn end(status: i32) -> ! {
    files::abandon();
    #[cfg(unix)]
    // SAFETY: `_exit` only ends the process, and has no preconditions.
    unsafe {
        libc::_exit(status)
    }
    #[cfg(not(unix))]
    std::process::exit(status)
}
