//! Flags that several commands share. They select the model, the packing of weights, and the
//! key/value cache.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use indicatif::{ProgressBar, ProgressStyle};
use mlx_primitives::Dtype;
use mlx_primitives::ops::QuantizedMode;
use mlx_primitives_llama::base::Weights;
use mlx_primitives_llama::{Adapters, CacheKind, Checkpoint, Config, Llama, Quantization};
use mlx_primitives_ranks::Split;

use crate::joined;
use crate::loading::Hold;
use crate::output;

/// A checkpoint and its adapters, if any.
#[derive(clap::Args)]
pub struct Source {
    /// A directory, .gguf file or name on the Hugging Face hub [default: the demo model].
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Low-rank adapters of mlx_lm.lora or PEFT beside the weights: a directory or name.
    #[arg(long, value_name = "MODEL")]
    pub adapter_path: Option<PathBuf>,
    /// Convert floats of the model to float32, float16 or bfloat16 [default: as stored].
    #[arg(long, value_enum, value_name = "TYPE", hide_possible_values = true)]
    pub dtype: Option<Float>,
}

impl Source {
    pub fn models(&mut self) -> Vec<&mut PathBuf> {
        self.model.iter_mut().chain(&mut self.adapter_path).collect()
    }

    pub fn load(&self) -> Result<Checkpoint> {
        let hold: &Hold = &|config, weights| self.hold(joined::split(), config, weights);
        let checkpoint = match &self.model {
            Some(path) => crate::loading::load(path, hold)?,
            None => Checkpoint::demo_part(hold)?,
        };
        Ok(Checkpoint { llama: self.adapted(checkpoint.llama)?, ..checkpoint })
    }

    /// Loads the model, or its part in the split, without its tokenizer. Reads only the headers of
    /// its files.
    pub fn load_lazily(&self, split: Option<&Split>) -> Result<Llama> {
        let hold: &Hold = &|config, weights| self.hold(split, config, weights);
        let llama = match &self.model {
            Some(path) => Llama::load_part_lazily(path, hold)?,
            None => Checkpoint::demo_part(hold)?.llama,
        };
        self.adapted(llama)
    }

    /// Converts weights as `--dtype` says, and restricts them to a part of the split.
    pub fn hold(
        &self,
        split: Option<&Split>,
        config: &Config,
        weights: Weights,
    ) -> mlx_primitives::Result<Weights> {
        let weights = match self.dtype {
            Some(dtype) => weights.converted_to(dtype.into())?,
            None => weights,
        };
        match split {
            Some(split) => split.hold(config, weights),
            None => Ok(weights),
        }
    }

    fn adapted(&self, llama: Llama) -> Result<Llama> {
        let Some(directory) = &self.adapter_path else { return Ok(llama) };
        let adapters = Adapters::load(directory, &llama)?;
        Ok(llama.adapted(&adapters)?)
    }
}

/// How matrices are packed.
#[derive(clap::Args)]
pub struct Packing {
    /// Bits of a weight: 2, 3, 4, 5, 6 or 8.
    #[arg(long, value_name = "BITS", value_parser = kv_bits(), hide_possible_values = true, allow_negative_numbers = true)]
    pub bits: Option<i32>,
    /// Weights that share a scale: 32, 64 or 128 [default: 64; 32 for mxfp4 and mxfp8, 16 for
    /// nvfp4].
    #[arg(long, value_name = "N")]
    pub group_size: Option<i32>,
    /// Format of packed weights [default: affine].
    #[arg(long, value_enum)]
    pub mode: Option<Mode>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// A scale and a bias for each group of integers.
    Affine,
    /// 4-bit floats; the scale of a group is a power of two.
    Mxfp4,
    /// 8-bit floats; the scale of a group is a power of two.
    Mxfp8,
    /// 4-bit floats; the scale of 16 of them is an 8-bit float.
    Nvfp4,
}

impl Packing {
    /// Returns the weight format that the flags select, or `None` if no flag was given.
    ///
    /// # Errors
    ///
    /// Returns a usage error if MLX does not support the format.
    pub fn quantization(&self) -> Result<Option<Quantization>> {
        if self.bits.is_none() && self.group_size.is_none() && self.mode.is_none() {
            return Ok(None);
        }
        let mode = match self.mode {
            Some(Mode::Mxfp4) => QuantizedMode::Mxfp4,
            Some(Mode::Mxfp8) => QuantizedMode::Mxfp8,
            Some(Mode::Nvfp4) => QuantizedMode::Nvfp4,
            _ => QuantizedMode::Affine,
        };
        let (group_size, bits) = mode.only_layout().unwrap_or((64, 4));
        let to = Quantization {
            group_size: self.group_size.unwrap_or(group_size),
            bits: self.bits.unwrap_or(bits),
            mode,
        };
        let (name, bits, group_size) = (mode.name(), to.bits, to.group_size);
        let expected = match mode.only_layout() {
            Some(only) if only != (group_size, bits) => {
                format!("--bits {} and --group-size {} with --mode {name}", only.1, only.0)
            }
            None if ![32, 64, 128].contains(&group_size) => {
                format!("--group-size 32, 64 or 128 with --mode {name}")
            }
            _ => return Ok(Some(to)),
        };
        let got = format!("got --bits {bits} and --group-size {group_size}");
        let said = format!("expected {expected}, {got}\n");
        Err(clap::Error::raw(ErrorKind::InvalidValue, said).into())
    }
}

/// The format in which keys and values are kept.
#[derive(clap::Args)]
pub struct KvArgs {
    /// Keep keys and values in this many bits (2, 3, 4, 5, 6 or 8) instead of the model's type.
    #[arg(long, value_name = "BITS", value_parser = kv_bits(), hide_possible_values = true, allow_negative_numbers = true)]
    pub kv_bits: Option<i32>,
    /// Elements of a key or value that share a scale: 32, 64 or 128.
    #[arg(long, value_name = "N", default_value = "64", requires = "kv_bits", value_parser = kv_group_size(), hide_possible_values = true, allow_negative_numbers = true)]
    pub kv_group_size: i32,
}

/// Returns a parser for the number of bits of packed weights, and of keys and values.
pub fn kv_bits() -> impl TypedValueParser<Value = i32> {
    PossibleValuesParser::new(["2", "3", "4", "5", "6", "8"]).try_map(|text| text.parse())
}

/// Returns a parser for the group sizes of keys and values.
pub fn kv_group_size() -> impl TypedValueParser<Value = i32> {
    PossibleValuesParser::new(["32", "64", "128"]).try_map(|text| text.parse())
}

/// Checks that the group size divides the number of features of the model's heads.
pub fn check_kv(kind: CacheKind, llama: &Llama) -> Result<()> {
    if let CacheKind::Quantized { group_size, .. } = kind {
        let features = llama.config().head_dim();
        ensure!(
            features % group_size == 0,
            "expected a --kv-group-size that divides the {features} features of this model's heads, \
             got {group_size}"
        );
    }
    Ok(())
}

impl KvArgs {
    pub fn kind(&self) -> CacheKind {
        match self.kv_bits {
            Some(bits) => CacheKind::Quantized { group_size: self.kv_group_size, bits },
            None => CacheKind::Plain,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Float {
    Float32,
    Float16,
    Bfloat16,
}

impl From<Float> for Dtype {
    fn from(float: Float) -> Self {
        match float {
            Float::Float32 => Self::Float32,
            Float::Float16 => Self::Float16,
            Float::Bfloat16 => Self::Bfloat16,
        }
    }
}

/// Returns a progress bar for the steps of a long command. It appears on stderr if that is a
/// terminal.
pub fn progress(steps: u64) -> Result<ProgressBar> {
    if !joined::is_first() || output::is_quiet() {
        return Ok(ProgressBar::hidden());
    }
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")?;
    Ok(ProgressBar::new(steps).with_style(style))
}

/// Formats 1_234_567 as "1.23 MB".
pub fn bytes(number: u64) -> String {
    let mut value = number as f64;
    let mut unit = "B";
    for larger in ["kB", "MB", "GB", "TB"] {
        if value < 1000.0 {
            break;
        }
        (value, unit) = (value / 1000.0, larger);
    }
    if unit == "B" { format!("{number} B") } else { format!("{value:.2} {unit}") }
}

/// Formats a quantization, for example as "4 bits, affine, groups of 64".
pub fn packing_name(to: Quantization) -> String {
    match to.mode {
        QuantizedMode::Affine => format!("{} bits, affine, groups of {}", to.bits, to.group_size),
        QuantizedMode::KQuant => format!("{} bits, k_quant", to.bits),
        mode => mode.name().to_owned(),
    }
}
