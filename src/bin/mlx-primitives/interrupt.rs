//! Ctrl-C and SIGTERM: the first lets what runs come to its end, the second ends the command at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

/// What a shell reports of a command that was interrupted.
const INTERRUPTED: i32 = 130;

/// Handles interruptions from now on; the flag says whether there was one.
pub fn handle() -> Result<Arc<AtomicBool>> {
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(INTERRUPTED);
        }
    })
    .context("handling Ctrl-C")?;
    Ok(interrupted)
}
