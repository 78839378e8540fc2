//! `mlx-primitives lora`: fine-tunes a model with low-rank updates, or all weights of its last
//! layers.

mod plot;
mod settings;
mod yaml;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use indicatif::ProgressBar;
use mlx_primitives::memory;
use mlx_primitives_llama::train::{Dataset, Trainable, Trainer, TrainingEstimate, evaluate};
use mlx_primitives_llama::{Adapters, ChatTemplate, Checkpoint, ModelFiles};
use serde_json::{Value, json};

use crate::model::{bytes, progress};
use crate::wired::Resident;
use crate::{interrupt, output};
pub use settings::Args;
use settings::Run;

pub fn run(args: Args) -> Result<()> {
    let run = args.into_run()?;
    if let Some(path) = &run.plot {
        crate::ops::check_plot(path)?; // fail before the work, not after it
    }
    if run.train {
        Trainer::check_path(&run.adapter_path)?;
    }
    let (checkpoint, template) = match &run.model {
        Some(path) => {
            (crate::loading::load(path, &|_, weights| Ok(weights))?, ChatTemplate::load(path)?)
        }
        None => (Checkpoint::demo()?, None),
    };
    let _resident = Resident::new(checkpoint.llama.nbytes());
    let read = |name: &str| -> Result<Option<Dataset>> {
        let path = run.data.join(name);
        if !path.exists() {
            return Ok(None);
        }
        let data = Dataset::load(&path, &checkpoint, template.as_ref(), run.mask_prompt)?;
        Ok((!data.is_empty()).then_some(data))
    };
    let missing = |name: &str| format!("{}: there are no texts in {name}", run.data.display());
    let test = match run.test {
        true => Some(read("test.jsonl")?.with_context(|| missing("test.jsonl"))?),
        false => None,
    };
    let Checkpoint { llama, .. } = &checkpoint;
    let tested = if run.train {
        let data = read("train.jsonl")?.with_context(|| missing("train.jsonl"))?;
        let valid = read("valid.jsonl")?;
        if valid.is_none() {
            output::eprintln(format_args!("note: {}", missing("valid.jsonl")));
        }
        let layers = run.layers(llama.config().num_hidden_layers);
        let trainable = Trainable::new(llama, run.kind.clone(), layers)?;
        let length = data.columns(run.settings.batch_size, run.settings.max_length);
        let peak = trainable.estimate(llama, &run.settings, length)?;
        output::eprintln(fits(&peak, memory::memory_limit() as u64, run.settings.recompute)?);
        // Let MLX cache enough memory that each step reuses the memory of the previous step.
        // Otherwise the system would have to clear new pages. On GPUs, MLX's default limit is
        // larger and stays.
        let step = usize::try_from(peak.step)?;
        let before = memory::set_cache_limit(step)?;
        memory::set_cache_limit(before.max(step))?;
        let mut trainer = Trainer::new(llama, &data, trainable, run.settings.clone())?;
        if let Some(path) = &run.resume_adapter_file {
            trainer.load_adapters(path)?;
        }
        if run.resume && trainer.resume(&run.adapter_path)? {
            output::eprintln(format_args!("continuing after step {}", trainer.steps()));
        }
        let trained: usize = trainer.parameters().values().map(|array| array.size()).sum();
        let (trained, all) = (trained as f64 / 1e6, llama.parameters() as f64 / 1e6);
        let share = 100.0 * trained / all;
        output::eprintln(format_args!(
            "Trainable parameters: {share:.3}% ({trained:.3}M/{all:.3}M)"
        ));
        train(&run, &mut trainer, valid.as_ref())?;
        trainer.model()?
    } else if !run.adapter_path.join("adapter_config.json").exists() {
        checkpoint.llama
    } else {
        let mut files = run.model.as_ref().map(ModelFiles::open).transpose()?;
        let tuned = files.as_mut().map(|files| files.tuned(&run.adapter_path)).transpose()?;
        match files.filter(|_| tuned.flatten().is_some()) {
            Some(files) => files.llama()?,
            None => {
                let adapters = Adapters::load(&run.adapter_path, llama)?;
                checkpoint.llama.adapted(&adapters)?
            }
        }
    };
    let Some(test) = test else { return Ok(()) };
    let (loss, _) = run.evaluate(&tested, &test, run.test_batches, &progress(0)?)?;
    let text = format!("Test loss {loss:.3}, Test ppl {:.3}.", loss.exp());
    run.report(None, &text, json!({"test_loss": loss, "test_ppl": loss.exp()}))
}

/// Returns a line about the memory of a run, or an error if the run needs more memory than the
/// machine can give to arrays.
fn fits(peak: &TrainingEstimate, limit: u64, recompute: bool) -> Result<String> {
    let total = bytes(peak.total());
    let more = if recompute { "" } else { "--grad-checkpoint, " };
    ensure!(
        peak.total() <= limit,
        "training takes about {total}, of which this machine has {}: {more}a smaller --batch-size, \
         --max-seq-length or --num-layers takes less",
        bytes(limit)
    );
    let [weights, state, step] = [peak.weights, peak.state, peak.step].map(bytes);
    Ok(format!("Peak memory: about {total} (weights {weights}, state {state}, step {step})"))
}

/// Trains until the last step or Ctrl-C. Meanwhile, writes reports and saves the state.
fn train(run: &Run, trainer: &mut Trainer, valid: Option<&Dataset>) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    interrupt::on_ctrl_c(move || {
        if stopped.swap(true, Ordering::SeqCst) {
            interrupt::end(interrupt::INTERRUPTED);
        }
    })?;
    let bar = progress(run.iters)?;
    let mut judged = Vec::new();
    let (mut spent, mut steps, mut tokens) = (Duration::ZERO, 0u32, 0);
    while trainer.steps() < run.iters && !stop.load(Ordering::SeqCst) {
        let step = trainer.steps() + 1;
        bar.set_position(step);
        let last = step == run.iters;
        if let Some(valid) = valid
            && (step == 1 || step.is_multiple_of(run.steps_per_eval) || last)
        {
            let model = trainer.model()?;
            let (loss, took) = run.evaluate(&model, valid, run.val_batches, &bar)?;
            judged.push((step - 1, loss));
            let text = format!("Iter {step}: Val loss {loss:.3}, Val took {took:.3}s");
            let object = json!({"iteration": step - 1, "val_loss": loss, "val_time": took});
            run.report(Some(&bar), &text, object)?;
        }
        let start = Instant::now();
        let done = trainer.step()?;
        spent += start.elapsed();
        steps += 1;
        tokens += done.tokens;
        if (step.is_multiple_of(run.steps_per_report) || last)
            && let Some(loss) = trainer.report()
        {
            let seconds = spent.as_secs_f64().max(1e-9);
            let speeds = [f64::from(steps) / seconds, tokens as f64 / seconds];
            let ([steps_sec, tokens_sec], all) = (speeds, trainer.trained_tokens());
            let peak = memory::peak_memory() as f64 / 1e9;
            let text = format!(
                "Iter {step}: Train loss {loss:.3}, Learning Rate {:.3e}, It/sec {steps_sec:.3}, \
                 Tokens/sec {tokens_sec:.3}, Trained Tokens {all}, Peak mem {peak:.3} GB",
                done.rate
            );
            let object = json!({
                "iteration": step,
                "train_loss": loss,
                "learning_rate": done.rate,
                "iterations_per_second": steps_sec,
                "tokens_per_second": tokens_sec,
                "trained_tokens": all,
                "peak_memory": peak,
            });
            run.report(Some(&bar), &text, object)?;
            (spent, steps, tokens) = (Duration::ZERO, 0, 0);
        }
        if step.is_multiple_of(run.save_every) {
            trainer.save(&run.adapter_path, true)?;
            let folder = run.adapter_path.display();
            let said = format!("Iter {step}: Saved adapter weights to {folder}.");
            bar.suspend(|| output::eprintln(said));
        }
    }
    trainer.save(&run.adapter_path, false)?;
    bar.finish_and_clear();
    if let Some(path) = &run.plot {
        let svg = plot::svg(trainer.curve(), &judged)?;
        std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if stop.load(Ordering::SeqCst) {
        let (done, all) = (trainer.steps(), run.iters);
        output::eprintln(format_args!(
            "interrupted after step {done} of {all}; --resume continues"
        ));
        interrupt::end(interrupt::INTERRUPTED);
    }
    Ok(())
}

impl Run {
    /// Returns the mean loss of a dataset, and the seconds that computing it took.
    fn evaluate(
        &self,
        llama: &mlx_primitives_llama::Llama,
        data: &Dataset,
        batches: Option<usize>,
        bar: &ProgressBar,
    ) -> Result<(f64, f64)> {
        let start = Instant::now();
        let settings = &self.settings;
        let (rows, longest) = (settings.batch_size, settings.max_length);
        bar.set_message("evaluating");
        let loss = evaluate(llama, data, rows, longest, batches, || bar.tick())?;
        bar.set_message("");
        Ok((loss, start.elapsed().as_secs_f64()))
    }

    /// Prints a line or, with --json, a JSON object.
    fn report(&self, bar: Option<&ProgressBar>, text: &str, object: Value) -> Result<()> {
        let print = || match self.json {
            true => output::println(&object),
            false => output::println(text),
        };
        Ok(bar.map_or_else(print, |bar| bar.suspend(print))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_do_not_fit_are_refused_with_a_cure() -> Result<()> {
        let peak = TrainingEstimate { weights: 1_000_000, state: 2_000, step: 3_000_000 };
        let line = fits(&peak, peak.total(), false)?;
        assert!(line.contains("4.00 MB (weights 1.00 MB, state 2.00 kB, step 3.00 MB)"), "{line}");
        for (recompute, cure) in [(false, ": --grad-checkpoint, a"), (true, "4.00 MB: a smaller")] {
            let said = fits(&peak, peak.total() - 1, recompute).unwrap_err().to_string();
            assert!(said.contains("about 4.00 MB, of which") && said.contains(cure), "{said}");
        }
        Ok(())
    }
}
