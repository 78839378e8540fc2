use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use mlx_primitives::device::{self, Device};
use mlx_primitives::graph::{self, Cost, Node};
use mlx_primitives::llama::{Checkpoint, Llama, Quantization};
use serde_json::json;

#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Count what one decoded token takes on a GPU: dispatches and device bytes of this model's
    /// graph, beside one of MLX's built-ins.
    #[arg(long)]
    graph: bool,
    /// The checkpoint's directory; the demo model if absent.
    #[arg(long, value_name = "DIR", requires = "graph")]
    model: Option<PathBuf>,
    /// Positions in the cache before that token.
    #[arg(long, value_name = "N", default_value_t = 128, requires = "graph")]
    context: u16,
    /// Quantize the weights first, to so many bits.
    #[arg(long, value_name = "BITS", requires = "graph")]
    bits: Option<i32>,
    /// Weights that share a scale.
    #[arg(long, value_name = "N", default_value_t = 32, requires = "bits")]
    group_size: i32,
}

pub fn run(args: &Args) -> Result<()> {
    device::check_version()?;
    if args.graph { token(args) } else { facts(args) }
}

fn facts(args: &Args) -> Result<()> {
    let (_, version) = device::mlx_versions();
    let default = match device::default_device()? {
        Device::Gpu => "gpu",
        Device::Cpu => "cpu",
    };
    let mut facts = vec![
        ("mlx-primitives", env!("CARGO_PKG_VERSION").to_owned()),
        ("MLX", version),
        ("MLX prefix", device::mlx_prefix().to_owned()),
        ("default device", default.to_owned()),
        ("CPU", Device::Cpu.name()?),
        ("CPU kernels", format!("{}, {} threads", device::cpu_kernels(), device::cpu_threads())),
        ("Metal kernels", device::kernels_origin()?),
    ];
    if Device::Gpu.is_available()? {
        facts.insert(5, ("GPU", Device::Gpu.name()?));
    }
    if args.json {
        let object: serde_json::Map<_, _> = facts
            .into_iter()
            .map(|(name, value)| (name.to_lowercase().replace([' ', '-'], "_"), json!(value)))
            .collect();
        println!("{}", serde_json::Value::Object(object));
    } else {
        for (name, value) in facts {
            println!("{name:<16}{value}");
        }
    }
    Ok(())
}

fn token(args: &Args) -> Result<()> {
    let checkpoint = args.model.as_ref().map_or_else(Checkpoint::demo, Checkpoint::load)?;
    let mut llama: Llama = checkpoint.llama;
    if let Some(bits) = args.bits {
        llama = llama.quantized(Quantization::affine(args.group_size, bits))?;
    }
    let limit = llama.config().max_position_embeddings.unwrap_or(i32::MAX);
    ensure!(i32::from(args.context) < limit, "the model was made for {limit} positions");
    let graphs = llama.cost_of_a_token(args.context.into())?;
    let layers = llama.config().num_hidden_layers;
    let totals = graphs.each_ref().map(|nodes| graph::total(nodes));
    if args.json {
        let side = |nodes: &[Node], total: Cost| {
            let by_name: serde_json::Map<_, _> = by_name(nodes)
                .into_iter()
                .map(|(name, cost)| {
                    let cost =
                        json!({"dispatches": cost.dispatches, "device_bytes": cost.device_bytes});
                    (name, cost)
                })
                .collect();
            json!({"dispatches": total.dispatches, "device_bytes": total.device_bytes, "nodes": by_name})
        };
        let [ours, theirs] = [0, 1].map(|i| side(&graphs[i], totals[i]));
        let object =
            json!({"layers": layers, "context": args.context, "ours": ours, "builtins": theirs});
        println!("{object}");
        return Ok(());
    }
    for (title, nodes, total) in
        [("ours", &graphs[0], totals[0]), ("MLX's built-ins", &graphs[1], totals[1])]
    {
        println!(
            "{title}: {} dispatches, {} device bytes a token",
            total.dispatches,
            grouped(total.device_bytes)
        );
        for (name, cost) in by_name(nodes) {
            println!("  {:<28}{:>5}{:>16}", name, cost.dispatches, grouped(cost.device_bytes));
        }
    }
    eprintln!(
        "{layers} layers, {} positions in the cache. Counted from the graphs: a node of MLX's is the one \
         dispatch that its Metal backend makes of it, views are none.",
        args.context
    );
    Ok(())
}

/// What dispatches, by the primitive's name.
fn by_name(nodes: &[Node]) -> BTreeMap<String, Cost> {
    let mut costs = BTreeMap::new();
    for node in nodes.iter().filter(|node| node.dispatches > 0) {
        let cost: &mut Cost = costs.entry(node.name.clone()).or_default();
        cost.dispatches += node.dispatches;
        cost.device_bytes += node.device_bytes;
    }
    costs
}

/// 1234567 as 1,234,567.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
