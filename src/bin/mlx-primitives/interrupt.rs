//! Ctrl-C and SIGTERM. The first one lets the command end in order, the second one ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

use mlx_primitives::files;

use crate::ranks;

/// The exit status that a shell reports for an interrupted command.
pub const INTERRUPTED: i32 = 130;

/// Handles interruptions from now on. The flag tells whether there was one.
pub fn handle() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || {
        ranks::interrupted(INTERRUPTED);
        if flag.swap(true, Ordering::Relaxed) {
            end(INTERRUPTED);
        }
    })
    .context("handling Ctrl-C")?;
    Ok(interrupted)
}

/// Ends the process at the first interruption from now on, without what it was writing.
pub fn end_at_once() -> Result<()> {
    ctrlc::set_handler(|| end(INTERRUPTED)).context("handling Ctrl-C")
}

/// Ends the process at once. Threads of MLX may run, and destructors of what they use would fail under
/// them, as those of CUDA's driver do. All that was printed has been flushed.
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
