//! The options of `info`.

use std::str::FromStr;

use anyhow::Result;
use clap::ArgGroup;
use mlx_primitives_llama::Llama;
use mlx_primitives_ranks::{Scheme, Split};

use crate::model::{KvArgs, Packing, Source};

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
        .args(["context", "bits", "group_size", "mode", "kv_bits", "adapter_path", "dtype"])
        .multiple(true)
        .requires("subject"),
)]
pub struct Args {
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
    /// Count the GPU dispatches of one decoded token, and the bytes that they read and write in
    /// device memory, with our kernels and with MLX's built-ins.
    #[arg(long)]
    pub graph: bool,
    #[command(flatten)]
    pub source: Source,
    /// Positions in the cache, one number or several [default: several up to the model's limit].
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub context: Vec<u32>,
    #[command(flatten)]
    pub packing: Packing,
    #[command(flatten)]
    pub kv: KvArgs,
    /// Numbers of machines to plan for, such as 2,4.
    #[arg(long, value_name = "N", value_delimiter = ',', requires = "model", value_parser = clap::value_parser!(u32).range(2..=256))]
    pub ranks: Vec<u32>,
    /// Split of the model: gather or pipeline.
    #[arg(long, value_name = "SCHEME", default_value = "gather", requires = "ranks", value_parser = crate::ranks::scheme(), hide_possible_values = true)]
    pub split: Scheme,
    /// The machines' link: loopback, 1GbE, 10GbE, 25GbE, thunderbolt, rdma, nvlink, or as in
    /// 80us,10Gbit.
    #[arg(long, value_name = "LINK", default_value = "10GbE", requires = "ranks")]
    pub link: Link,
    /// Tokens a second of one machine, as `bench` measures them, to predict those of several.
    #[arg(long, value_name = "X", requires = "ranks")]
    pub tokens_per_second: Option<f64>,
}

impl Args {
    /// Loads the model, or its part in the split, but reads only the headers of its files.
    pub fn model(&self, split: Option<&Split>) -> Result<Llama> {
        let llama = self.source.load_lazily(split)?;
        Ok(match self.packing.quantization()? {
            Some(to) => llama.quantized(to)?,
            None => llama,
        })
    }
}

/// A connection between two machines.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// The seconds that a small message takes from one machine to the other.
    pub latency: f64,
    /// Bytes a second.
    pub bandwidth: f64,
}

/// The links with a name. The numbers are the microseconds that a message between two programs
/// takes one way, and the gigabits per second. The figures are round and typical of such links.
/// Only loopback and the latency of NCCL's exchanges over NVLink were measured.
const LINKS: [(&str, f64, f64); 7] = [
    ("loopback", 20.0, 40.0),
    ("1GbE", 120.0, 1.0),
    ("10GbE", 50.0, 10.0),
    ("25GbE", 20.0, 25.0),
    ("thunderbolt", 100.0, 20.0),
    ("rdma", 30.0, 50.0),
    ("nvlink", 14.0, 1000.0),
];

impl FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let of =
            |us: f64, gigabits: f64| Self { latency: us / 1e6, bandwidth: gigabits * 1e9 / 8.0 };
        if let Some((_, us, gigabits)) =
            LINKS.into_iter().find(|(name, ..)| name.eq_ignore_ascii_case(text))
        {
            return Ok(of(us, gigabits));
        }
        let parsed = text.split_once("us,").and_then(|(us, gigabits)| {
            let gigabits = gigabits.strip_suffix("Gbit")?;
            Some(of(us.parse().ok()?, gigabits.parse().ok()?))
        });
        parsed.filter(|link| link.latency >= 0.0 && link.bandwidth > 0.0).ok_or_else(|| {
            let names = LINKS.map(|(name, ..)| name).join(", ");
            format!("expected {names}, or a latency and a speed such as 80us,10Gbit")
        })
    }
}
