//! Ctrl-C and SIGTERM. The first one lets the command end in order, the second one ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

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
            std::process::exit(INTERRUPTED);
        }
    })
    .context("handling Ctrl-C")?;
    Ok(interrupted)
}
