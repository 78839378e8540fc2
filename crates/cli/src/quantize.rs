//! `mlx-primitives quantize`: converts a float checkpoint to MLX's packed layout.

use std::path::PathBuf;

use anyhow::Result;
use mlx_primitives_llama::{ModelFiles, Quantization};
use serde_json::json;

use crate::model::{Float, Packing, bytes, packing_name, progress};
use crate::{interrupt, output};

const EXAMPLES: &str = "\
Writes the same tensors as `mlx_lm.convert -q`, bit for bit, in files that mlx-lm and --model of every \
command here load. \
Matrices whose rows are not whole groups stay as they are, and config.json says so.

Examples:
  mlx-primitives quantize --model Llama-3.2-1B --output Llama-3.2-1B-4bit
  mlx-primitives quantize --model Llama-3.2-1B --output Llama-3.2-1B-8bit --bits 8 --group-size 32
  mlx-primitives quantize --model Llama-3.2-1B --output Llama-3.2-1B-mxfp4 --mode mxfp4";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The directory of a float checkpoint, a .gguf file with float weights, or a name on the hub.
    #[arg(long, value_name = "MODEL")]
    pub model: PathBuf,
    /// The directory to write, which must not exist.
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    packing: Packing,
    /// Convert the floats to this type first [default: torch_dtype of config.json, as
    /// mlx_lm.convert does].
    #[arg(long, value_enum)]
    dtype: Option<Float>,
    /// Print one JSON object: weight_bytes, parameters, bits_per_weight, unquantized (paths).
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let to = args.packing.quantization()?.unwrap_or(Quantization::affine(64, 4));
    anyhow::ensure!(!args.output.exists(), "{} exists already", args.output.display());
    interrupt::end_at_once()?;
    ModelFiles::check_path(&args.output)?; // fail before the work, not after it
    let files = ModelFiles::open(&args.model)?;
    let dtype = args.dtype.map(Into::into).or_else(|| files.dtype());
    let bar = progress(0)?.with_message("tensors");
    let packed = files.quantized(to, dtype, |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    })?;
    bar.set_message("writing");
    let (weight_bytes, parameters) = (packed.nbytes(), packed.parameters()?);
    let unquantized: Vec<String> = packed.unquantized().into_iter().map(str::to_owned).collect();
    packed.save(&args.output)?;
    bar.finish_and_clear();

    let bits_per_weight = weight_bytes as f64 * 8.0 / parameters.max(1) as f64;
    if args.json {
        let object = json!({
            "weight_bytes": weight_bytes,
            "parameters": parameters,
            "bits_per_weight": bits_per_weight,
            "unquantized": unquantized,
        });
        return Ok(output::println(object)?);
    }
    output::println(format_args!(
        "{}: {}, {} ({bits_per_weight:.3} bits a weight)",
        args.output.display(),
        packing_name(to),
        bytes(weight_bytes)
    ))?;
    if !unquantized.is_empty() {
        let names = unquantized.join(", ");
        output::eprintln(format_args!("not quantized, rows of no whole groups: {names}"));
    }
    Ok(())
}
