//! `mlx-primitives fuse`: adds low-rank adapters to the weights of a checkpoint, or replaces
//! weights with the result of a full fine-tune.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use mlx_primitives_llama::{Adapters, ModelFiles};
use serde_json::json;

use crate::model::{bytes, progress};
use crate::{interrupt, output};

const EXAMPLES: &str = "\
Writes the same tensors as `mlx_lm.fuse`, bit for bit (of DoRA in the checkpoint's type). Packed weights are packed again, which rounds the sum of \
weights and adapters. Of a full fine-tune, the weights take the place of the checkpoint's.

Examples:
  mlx-primitives fuse --model Llama-3.2-1B-4bit --adapter-path adapters --save-path fused
  mlx-primitives fuse --model Llama-3.2-1B-4bit --adapter-path adapters --save-path fused --dequantize";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The checkpoint's directory, a .gguf file, or a name on the Hugging Face hub.
    #[arg(long, value_name = "MODEL")]
    pub model: PathBuf,
    /// The directory of the adapters, as mlx_lm.lora or PEFT writes it, or their name on the hub.
    #[arg(long, value_name = "MODEL", default_value = "adapters")]
    pub adapter_path: PathBuf,
    /// The directory to write, which must not exist.
    #[arg(long, value_name = "DIR", default_value = "fused_model")]
    save_path: PathBuf,
    /// Write float weights where the checkpoint has packed ones.
    #[arg(long)]
    dequantize: bool,
    /// Print one JSON object: fused (projections, or weights of a full fine-tune), weight_bytes,
    /// parameters.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    ensure!(!args.save_path.exists(), "{} exists already", args.save_path.display());
    interrupt::end_at_once()?;
    ModelFiles::check_path(&args.save_path)?; // fail before the work, not after it
    let mut files = ModelFiles::open(&args.model)?;
    let (adapters, count, changed) = match files.tuned(&args.adapter_path)? {
        Some(weights) => (Adapters::default(), weights, "weights replaced"),
        None => {
            let adapters = Adapters::load(&args.adapter_path, &files.llama()?)?;
            let count = adapters.len();
            (adapters, count, "projections fused")
        }
    };
    let bar = progress(0)?.with_message("tensors");
    let fused = files.fused(&adapters, args.dequantize, |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    })?;
    bar.set_message("writing");
    let (weight_bytes, parameters) = (fused.nbytes(), fused.parameters()?);
    fused.save(&args.save_path)?;
    bar.finish_and_clear();
    if args.json {
        let object = json!({
            "fused": count, "weight_bytes": weight_bytes, "parameters": parameters,
        });
        output::println(object)?;
    } else {
        output::println(format_args!(
            "{}: {count} {changed}, {}",
            args.save_path.display(),
            bytes(weight_bytes)
        ))?;
    }
    Ok(())
}
