//! `mlx-primitives info`: the build, the memory of a model, and the cost of a token.

mod builtins;
mod ranks;
mod summary;
mod token;

use anyhow::Result;
use clap::ArgGroup;
use mlx_primitives::device::{self, Device};
use mlx_primitives::tune::Choices;
use mlx_primitives_llama::Llama;
use mlx_primitives_ranks::Scheme;
use serde_json::Value;

use crate::model::{KvArgs, Packing, Source};
use crate::output;
use ranks::Link;

const EXAMPLES: &str = "\
Without flags: MLX's version, the devices, the origin of the kernels. With --model: the architecture, \
and the memory that weights and cache take at each --context, without reading the weights.

Examples:
  mlx-primitives info --json
  mlx-primitives info --model ~/models/Llama-3.2-1B --bits 4 --context 4096,131072
  mlx-primitives info --model ~/models/Llama-3.2-1B-4bit --kv-bits 8 --json
  mlx-primitives info --graph --bits 4";

#[derive(clap::Args)]
#[command(
    after_help = EXAMPLES,
    group = ArgGroup::new("subject").args(["model", "graph"]).multiple(true),
    group = ArgGroup::new("of_subject")
        .args(["context", "bits", "group_size", "mode", "kv_bits", "adapter_path"])
        .multiple(true)
        .requires("subject"),
)]
pub struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Count the dispatches and device bytes of one decoded token on a GPU, beside those of a graph
    /// of MLX's built-ins.
    #[arg(long)]
    graph: bool,
    #[command(flatten)]
    pub source: Source,
    /// Positions in the cache, one number or several [default: several up to the model's limit].
    #[arg(long, value_name = "N", value_delimiter = ',')]
    context: Vec<u32>,
    #[command(flatten)]
    packing: Packing,
    #[command(flatten)]
    kv: KvArgs,
    /// Numbers of machines to plan for, such as 2,4.
    #[arg(long, value_name = "N", value_delimiter = ',', requires = "model", value_parser = clap::value_parser!(u32).range(2..=256))]
    ranks: Vec<u32>,
    /// How they share the model: gather or pipeline.
    #[arg(long, value_name = "SCHEME", default_value = "gather", requires = "ranks", value_parser = crate::ranks::scheme(), hide_possible_values = true)]
    split: Scheme,
    /// The link between them: loopback, 1GbE, 10GbE, 25GbE, thunderbolt, rdma, or as in
    /// 80us,10Gbit.
    #[arg(long, value_name = "LINK", default_value = "10GbE", requires = "ranks")]
    link: Link,
    /// Tokens a second of one machine, as `bench` measures them, to predict those of several.
    #[arg(long, value_name = "X", requires = "ranks")]
    tokens_per_second: Option<f64>,
}

pub fn run(args: &Args) -> Result<()> {
    if args.graph {
        return token::run(args);
    }
    if args.source.model.is_some() {
        return summary::run(args);
    }
    facts(args)
}

/// The model, with only the headers of its files read.
fn model(args: &Args) -> Result<Llama> {
    let llama = args.source.load_lazily()?;
    Ok(match args.packing.quantization()? {
        Some(to) => llama.quantized(to)?,
        None => llama,
    })
}

fn facts(args: &Args) -> Result<()> {
    let facts = build()?;
    if args.json {
        return Ok(output::println(build_json(&facts))?);
    }
    for (name, value) in facts {
        output::println(format_args!("{name:<18}{value}"))?;
    }
    Ok(())
}

/// The facts that results depend on: versions, devices, kernels.
pub fn build() -> Result<Vec<(&'static str, String)>> {
    let (built_with, version) = device::mlx_versions();
    let default = match device::default_device()? {
        Device::Gpu => "gpu",
        Device::Cpu => "cpu",
    };
    let mut facts = vec![
        ("mlx-primitives", env!("CARGO_PKG_VERSION").to_owned()),
        ("MLX", version),
        ("MLX library", mlx_library()),
        ("built with MLX", built_with),
        ("built with MLX of", device::mlx_prefix().to_owned()),
        ("system", device::system()),
        ("default device", default.to_owned()),
        ("CPU", Device::Cpu.name()?),
        ("CPU kernels", format!("{}, {} threads", device::cpu_kernels(), device::cpu_threads())),
        ("Metal kernels", device::kernels_origin()?),
        ("kernels hash", device::kernels_hash().to_owned()),
        ("choices", choices(device::default_device()?)?),
    ];
    if Device::Gpu.is_available()? {
        facts.insert(7, ("GPU", Device::Gpu.name()?));
    }
    Ok(facts)
}

/// The file that MLX runs from.
fn mlx_library() -> String {
    let path = device::mlx_library();
    path.map_or("a part of this program".to_owned(), |path| path.display().to_string())
}

/// The rule or the measurements by which an op runs our kernel or MLX's ops.
fn choices(device: Device) -> Result<String> {
    let choices = Choices::of_process(device)?;
    let asked = std::env::var("MLX_PRIMITIVES_TUNE").unwrap_or_default();
    Ok(match &*asked {
        "" => format!("built-in rule: {choices}"),
        _ => format!("MLX_PRIMITIVES_TUNE={asked}: {choices}"),
    })
}

pub fn build_json(facts: &[(&str, String)]) -> Value {
    let named = facts.iter().map(|(name, value)| {
        (name.to_lowercase().replace([' ', '-'], "_"), Value::from(value.as_str()))
    });
    Value::Object(named.collect())
}
