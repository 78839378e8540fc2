//! The options of `lora`. They come from the command line and from an mlx-lm configuration file.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;
use clap::error::ErrorKind;
use mlx_primitives::files;
use mlx_primitives_llama::train::{Adafactor, Adam, Kind, Optimizer, Schedule, Settings, Sgd};
use serde::Deserialize;
use serde_json::Value;

use super::yaml;
use crate::kernels::Threads;

const EXAMPLES: &str = "\
--data names a folder of train.jsonl, valid.jsonl and test.jsonl, with an object in each line: \
{\"text\": …}, {\"prompt\": …, \"completion\": …} or {\"messages\": […]}. The adapters are files of mlx_lm.lora: \
`generate --adapter-path` runs them, `fuse` adds them to the weights, and mlx-lm loads them. Beside them lies \
training_state.safetensors, from which --resume continues. Ctrl-C saves and ends, with the exit status 130; a second \
one ends at once.

Examples:
  mlx-primitives lora --model Llama-3.2-1B-4bit --train --data texts --iters 600
  mlx-primitives lora --model Llama-3.2-1B-4bit --train --data texts --iters 1200 --resume
  mlx-primitives lora --model Llama-3.2-1B-4bit --test --data texts
  mlx-primitives lora --model Llama-3.2-1B --train --data texts --fine-tune-type full --num-layers 4";

/// The defaults are the same as in mlx_lm.lora.
#[derive(clap::Args, Deserialize)]
#[command(after_help = EXAMPLES)]
#[serde(deny_unknown_fields)]
pub struct Args {
    /// A directory, .gguf file or name on the Hugging Face hub [default: the demo model].
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Train on train.jsonl.
    #[arg(long)]
    #[serde(default)]
    train: bool,
    /// Print the loss on test.jsonl, after training or of the saved adapters.
    #[arg(long)]
    #[serde(default)]
    test: bool,
    /// The folder of the texts.
    #[arg(long, value_name = "DIR", help_heading = "Texts")]
    data: Option<PathBuf>,
    /// Learn only completions, or the last messages.
    #[arg(long, help_heading = "Texts")]
    #[serde(default)]
    mask_prompt: bool,
    /// Tokens at which texts are cut [default: 2048].
    #[arg(long, value_name = "N", help_heading = "Texts")]
    max_seq_length: Option<u64>,
    /// Texts in a batch [default: 4].
    #[arg(long, value_name = "N", help_heading = "Texts")]
    batch_size: Option<u64>,
    /// Train low-rank updates (lora), also norms of rows (dora), or whole layers [default: lora].
    #[arg(long, value_enum, value_name = "TYPE")]
    fine_tune_type: Option<FineTune>,
    /// Train this many last layers; -1 for all [default: 16, or all of fewer].
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    num_layers: Option<i32>,
    /// Batches to train on [default: 1000].
    #[arg(long, value_name = "N")]
    iters: Option<u64>,
    /// adam, adamw, sgd or adafactor [default: adam].
    #[arg(long, value_enum, value_name = "NAME", hide_possible_values = true)]
    optimizer: Option<Named>,
    /// The learning rate [default: 1e-5].
    #[arg(long, value_name = "RATE")]
    learning_rate: Option<f64>,
    /// Batches whose mean gradient makes an update [default: 1].
    #[arg(long, value_name = "N")]
    grad_accumulation_steps: Option<u64>,
    /// Reduce longer gradients to this norm.
    #[arg(long, value_name = "NORM")]
    max_grad_norm: Option<f64>,
    /// Run each layer again in the backward pass: less memory, more time.
    #[arg(long)]
    #[serde(default)]
    grad_checkpoint: bool,
    /// The seed of the updates and of the order of the batches [default: 0].
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The folder of the adapters and of the run's state [default: adapters].
    #[arg(long, value_name = "DIR", help_heading = "Files")]
    adapter_path: Option<PathBuf>,
    /// Begin with the adapters in this file.
    #[arg(long, value_name = "FILE", help_heading = "Files")]
    resume_adapter_file: Option<PathBuf>,
    /// Continue the run whose state lies in --adapter-path, if there is one: the same steps as
    /// without an end in between, bit for bit.
    #[arg(long, help_heading = "Files")]
    #[serde(skip)]
    resume: bool,
    /// Save after each N batches [default: 100].
    #[arg(long, value_name = "N", help_heading = "Files")]
    save_every: Option<u64>,
    /// A configuration of mlx_lm.lora in YAML or JSON; options of the command line come first.
    #[arg(long, short, value_name = "FILE", help_heading = "Files")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Batches between reports of the loss [default: 10].
    #[arg(long, value_name = "N", help_heading = "Reports")]
    steps_per_report: Option<u64>,
    /// Batches between losses on valid.jsonl [default: 200].
    #[arg(long, value_name = "N", help_heading = "Reports")]
    steps_per_eval: Option<u64>,
    /// Batches of valid.jsonl; -1 for all [default: 25].
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Reports")]
    val_batches: Option<i64>,
    /// Batches of test.jsonl; -1 for all [default: 500].
    #[arg(long, value_name = "N", allow_negative_numbers = true, help_heading = "Reports")]
    test_batches: Option<i64>,
    /// Print one JSON object a report, with mlx-lm's names.
    #[arg(long, help_heading = "Reports")]
    #[serde(skip)]
    json: bool,
    /// Draw the losses into this SVG file.
    #[arg(long, value_name = "FILE", help_heading = "Reports")]
    #[serde(skip)]
    plot: Option<PathBuf>,
    #[command(flatten)]
    #[serde(skip)]
    threads: Threads,
    #[arg(skip)]
    lora_parameters: Option<LoraParameters>,
    #[arg(skip)]
    lr_schedule: Option<LrSchedule>,
    #[arg(skip)]
    #[serde(default)]
    optimizer_config: serde_json::Map<String, Value>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
enum FineTune {
    Lora,
    Dora,
    Full,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Named {
    Adam,
    Adamw,
    Sgd,
    Adafactor,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LoraParameters {
    rank: i32,
    scale: f32,
    #[serde(default)]
    dropout: f32,
    keys: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LrSchedule {
    name: String,
    arguments: Vec<f64>,
    #[serde(default)]
    warmup: u64,
    #[serde(default)]
    warmup_init: f64,
}

/// The options of a run after all checks, with defaults filled in.
pub struct Run {
    pub model: Option<PathBuf>,
    pub train: bool,
    pub test: bool,
    pub data: PathBuf,
    pub mask_prompt: bool,
    pub kind: Kind,
    layers: Option<i32>,
    pub iters: u64,
    pub settings: Settings,
    pub adapter_path: PathBuf,
    pub resume_adapter_file: Option<PathBuf>,
    pub resume: bool,
    pub save_every: u64,
    pub steps_per_report: u64,
    pub steps_per_eval: u64,
    pub val_batches: Option<usize>,
    pub test_batches: Option<usize>,
    pub json: bool,
    pub plot: Option<PathBuf>,
}

fn usage<T>(said: impl Display) -> Result<T> {
    Err(clap::Error::raw(ErrorKind::InvalidValue, format_args!("{said}\n")).into())
}

impl Args {
    /// Adds the options of the configuration file that `--config` names, and checks all options.
    pub fn into_run(mut self) -> Result<Run> {
        if let Some(path) = &self.config {
            let path = path.clone();
            self.add(&path)?;
        }
        self.threads.set()?;
        if !self.train && !self.test {
            return usage("expected --train or --test");
        }
        let Some(data) = self.data.take() else {
            return usage("expected --data, the folder of the texts");
        };
        let within =
            |name: &str, given: Option<u64>, default: u64, least: u64, most: u64| match given
                .unwrap_or(default)
            {
                value if (least..=most).contains(&value) => Ok(value),
                value => usage(format_args!("expected --{name} of {least} to {most}, got {value}")),
            };
        let steps = |name: &str, given, default| within(name, given, default, 1, 1 << 40);
        let batches = |name: &str, given: Option<i64>, default| match given.unwrap_or(default) {
            -1 => Ok(None),
            count @ 1.. => Ok(Some(count as usize)),
            count => usage(format_args!("expected --{name} above 0, or -1, got {count}")),
        };
        let max_norm = self.max_grad_norm;
        if max_norm.is_some_and(|norm| norm.is_nan() || norm <= 0.0) {
            return usage("expected --max-grad-norm above 0");
        }
        let settings = Settings {
            optimizer: self.optimizer()?,
            schedule: self.schedule()?,
            batch_size: within("batch-size", self.batch_size, 4, 1, 1 << 16)? as usize,
            accumulation: within(
                "grad-accumulation-steps",
                self.grad_accumulation_steps,
                1,
                1,
                1 << 20,
            )?,
            max_length: within("max-seq-length", self.max_seq_length, 2048, 2, 1 << 20)? as usize,
            max_norm,
            recompute: self.grad_checkpoint,
            seed: self.seed.unwrap_or(0),
        };
        let mut model = self.model.clone();
        if let Some(model) = &mut model {
            crate::loading::find(model)?;
        }
        Ok(Run {
            kind: self.kind()?,
            layers: self.num_layers,
            iters: steps("iters", self.iters, 1000)?,
            save_every: steps("save-every", self.save_every, 100)?,
            steps_per_report: steps("steps-per-report", self.steps_per_report, 10)?,
            steps_per_eval: steps("steps-per-eval", self.steps_per_eval, 200)?,
            val_batches: batches("val-batches", self.val_batches, 25)?,
            test_batches: batches("test-batches", self.test_batches, 500)?,
            model,
            train: self.train,
            test: self.test,
            data,
            mask_prompt: self.mask_prompt,
            settings,
            adapter_path: self.adapter_path.unwrap_or_else(|| "adapters".into()),
            resume_adapter_file: self.resume_adapter_file,
            resume: self.resume,
            json: self.json,
            plot: self.plot,
        })
    }

    /// Takes options that the command line lacks from a configuration file.
    fn add(&mut self, path: &Path) -> Result<()> {
        let text = files::read_to_string(path)?;
        let name = || path.display().to_string();
        let map = yaml::parse(&text).map_err(anyhow::Error::msg).with_context(name)?;
        // As in mlx-lm, null means the default, so ignore it.
        let map = map.into_iter().filter(|(_, value)| !value.is_null()).collect();
        let other: Self = serde_json::from_value(Value::Object(map)).with_context(name)?;
        macro_rules! take {
            ($($field:ident)*) => { $(self.$field = self.$field.take().or(other.$field);)* };
        }
        take!(model data max_seq_length batch_size fine_tune_type num_layers iters optimizer
            learning_rate grad_accumulation_steps max_grad_norm seed adapter_path
            resume_adapter_file save_every steps_per_report steps_per_eval val_batches
            test_batches lora_parameters lr_schedule);
        self.train |= other.train;
        self.test |= other.test;
        self.mask_prompt |= other.mask_prompt;
        self.grad_checkpoint |= other.grad_checkpoint;
        self.optimizer_config = other.optimizer_config;
        Ok(())
    }

    fn kind(&self) -> Result<Kind> {
        if self.fine_tune_type == Some(FineTune::Full) {
            return Ok(Kind::Full);
        }
        let dora = self.fine_tune_type == Some(FineTune::Dora);
        let Some(LoraParameters { rank, scale, dropout, keys }) = &self.lora_parameters else {
            return Ok(Kind::Lora { rank: 8, scale: 20.0, keys: None, dropout: 0.0, dora });
        };
        if !(0.0..1.0).contains(dropout) {
            return usage(format_args!("expected a dropout of 0 to below 1, got {dropout}"));
        }
        Ok(Kind::Lora { rank: *rank, scale: *scale, keys: keys.clone(), dropout: *dropout, dora })
    }

    fn schedule(&self) -> Result<Schedule> {
        let rate = self.learning_rate.unwrap_or(1e-5);
        let rates =
            self.lr_schedule.iter().flat_map(|it| it.arguments.iter().chain([&it.warmup_init]));
        if let Some(rate) =
            [&rate].into_iter().chain(rates).find(|it| !it.is_finite() || **it < 0.0)
        {
            return usage(format_args!("expected learning rates of at least 0, got {rate}"));
        }
        let Some(LrSchedule { name, arguments, warmup, warmup_init }) = &self.lr_schedule else {
            return Ok(Schedule::Constant(rate));
        };
        let schedule = match (name.as_str(), &arguments[..]) {
            ("cosine_decay", &[from, steps]) => {
                Schedule::Cosine { from, to: 0.0, steps: steps as u64 }
            }
            ("cosine_decay", &[from, steps, to]) => {
                Schedule::Cosine { from, to, steps: steps as u64 }
            }
            ("linear_schedule", &[from, to, steps]) => {
                Schedule::Linear { from, to, steps: steps as u64 }
            }
            _ => {
                return usage(format_args!(
                    "expected lr_schedule cosine_decay [init, steps, end] or linear_schedule [init, end, steps], \
                     got {name:.40} {arguments:?}"
                ));
            }
        };
        Ok(match warmup {
            0 => schedule,
            steps => schedule.after_warmup(*warmup_init, *steps),
        })
    }

    fn optimizer(&self) -> Result<Optimizer> {
        let named = self.optimizer.unwrap_or(Named::Adam);
        let name =
            named.to_possible_value().map_or_else(String::new, |it| it.get_name().to_owned());
        let mut options = self.optimizer_config.get(&name).cloned().unwrap_or(Value::Null);
        if options.is_null() {
            options = Value::Object(Default::default());
        }
        if let (Named::Adamw, Value::Object(options)) = (named, &mut options) {
            options.entry("weight_decay").or_insert(0.01.into());
        }
        let parsed = match named {
            Named::Adam | Named::Adamw => {
                serde_json::from_value::<Adam>(options).map(Optimizer::Adam)
            }
            Named::Sgd => serde_json::from_value::<Sgd>(options).map(Optimizer::Sgd),
            Named::Adafactor => {
                serde_json::from_value::<Adafactor>(options).map(Optimizer::Adafactor)
            }
        };
        match parsed {
            Ok(optimizer) => Ok(optimizer),
            Err(error) => usage(format_args!("expected options of {name}, got {error}")),
        }
    }
}

impl Run {
    /// Returns how many of the last layers to train if the model has `all` layers; 0 means all.
    pub fn layers(&self, all: i32) -> i32 {
        self.layers.unwrap_or(16.min(all))
    }
}
