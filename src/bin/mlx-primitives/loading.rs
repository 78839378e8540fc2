//! Loads a checkpoint, with a progress bar if it takes long.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use mlx_primitives::llama::Checkpoint;

/// The time before the bar appears.
const PATIENCE: Duration = Duration::from_millis(500);

/// Loads a directory or a `.gguf` file. The bar appears on stderr, if that is a terminal.
pub fn load(path: &Path) -> Result<Checkpoint> {
    let style =
        ProgressStyle::with_template("loading {bar:30} {bytes}/{total_bytes} {bytes_per_sec}")?;
    let (start, mut bar) = (Instant::now(), None);
    let checkpoint = Checkpoint::load_with(path, |progress| {
        if start.elapsed() < PATIENCE {
            return;
        }
        let bar = bar.get_or_insert_with(|| {
            ProgressBar::new(progress.total).with_style(style.clone()).with_elapsed(start.elapsed())
        });
        bar.set_position(progress.done);
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(checkpoint?)
}
