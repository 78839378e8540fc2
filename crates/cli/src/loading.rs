//! Loads a checkpoint, and shows a progress bar if loading takes long.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use mlx_primitives_llama::base::{Progress, Weights};
use mlx_primitives_llama::{Checkpoint, Config, hub};

use crate::joined;
use crate::output;

/// The time after which the progress bar appears.
const PATIENCE: Duration = Duration::from_millis(500);

/// Replaces a name on the Hugging Face hub with the path of the model's files. Downloads files that
/// are missing, and shows a progress bar on stderr if that is a terminal.
pub fn find(model: &mut PathBuf) -> Result<()> {
    let style = ProgressStyle::with_template(
        "{msg} {bar:30} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}",
    )?;
    let bar = match output::is_quiet() {
        true => ProgressBar::hidden(),
        false => ProgressBar::no_length().with_style(style),
    };
    let mut file = String::new();
    let found = hub::find(&*model, |download| {
        if download.file != file {
            download.file.clone_into(&mut file);
            bar.reset();
            bar.set_message(file.clone());
            bar.set_length(download.total);
        }
        bar.set_position(download.done);
        ControlFlow::Continue(())
    });
    bar.finish_and_clear();
    *model = found?;
    Ok(())
}

/// A function that converts the weights of a model, or restricts them to a part.
pub type Hold<'a> = dyn Fn(&Config, Weights) -> mlx_primitives::Result<Weights> + 'a;

/// Loads a model from a directory or a `.gguf` file, with the weights that `hold` returns. Shows a
/// progress bar on stderr if that is a terminal.
pub fn load(path: &Path, hold: &Hold) -> Result<Checkpoint> {
    let style = ProgressStyle::with_template(
        "loading {bar:30} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec}",
    )?;
    let (start, mut bar) = (Instant::now(), None);
    let mut show = |progress: Progress| {
        if start.elapsed() < PATIENCE || !joined::is_first() || output::is_quiet() {
            return;
        }
        let bar = bar.get_or_insert_with(|| {
            ProgressBar::new(progress.total).with_style(style.clone()).with_elapsed(start.elapsed())
        });
        bar.set_position(progress.done);
    };
    let checkpoint = Checkpoint::load_part(path, hold, &mut show);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(checkpoint?)
}
