//! Handles Ctrl-C and SIGTERM. The first signal lets the command end in order, and the second ends
//! it at once. While a command loads a model or splits a long prompt into tokens, it may not see
//! the first signal. It is then ended after two seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;

use mlx_primitives::files;

use crate::{joined, output};

/// The exit status that a shell reports for an interrupted command.
pub const INTERRUPTED: i32 = 130;

/// Handles interruptions from this call on. The flag tells whether there was one.
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

/// Ends the command after Ctrl-C if it runs on several ranks, since the other ranks cannot go on
/// without this one.
pub fn end_with_ranks() {
    if joined::group().is_some() {
        joined::fail("interrupted");
        output::error("interrupted");
        end(INTERRUPTED);
    }
}

/// Lets the first interruption after this call end the process, without the output that it was
/// writing.
pub fn end_at_once() -> Result<()> {
    on_ctrl_c(|| end(INTERRUPTED))
}

/// Runs `handler` at each Ctrl-C, on a separate thread.
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

/// Lets SIGTERM end the process at once. In a conversation, Ctrl-C ends only an answer, but SIGTERM
/// ends the command.
pub fn end_when_terminated() {
    #[cfg(unix)]
    {
        extern "C" fn terminated(_: libc::c_int) {
            // SAFETY: the call ends the process, and may be made in a signal handler.
            unsafe { libc::_exit(INTERRUPTED) }
        }
        let handler: extern "C" fn(libc::c_int) = terminated;
        // SAFETY: the handler makes no call that is not safe in a signal handler.
        unsafe {
            libc::signal(libc::SIGTERM, handler as libc::sighandler_t);
        }
    }
}

/// The time that the command has to see an interruption.
const PATIENCE: Duration = Duration::from_millis(1_800);

/// Whether the command has seen the last interruption, and is ending in order.
static SEEN: AtomicBool = AtomicBool::new(false);

/// Records that the command has seen an interruption.
pub fn seen() {
    SEEN.store(true, Ordering::SeqCst);
}

/// Sets the flag that the command checks, and ends the process soon unless the command sees it.
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

/// Ends the process at once, without destructors: threads of MLX may still use what destructors
/// free, such as CUDA's driver. All printed output has been flushed.
pub fn end(status: i32) -> ! {
    files::abandon();
    #[cfg(unix)]
    // SAFETY: the call ends the process and has no conditions.
    unsafe {
        libc::_exit(status)
    }
    #[cfg(not(unix))]
    std::process::exit(status)
}
