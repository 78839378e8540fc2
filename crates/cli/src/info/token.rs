//! The cost of one decoded token.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use mlx_primitives::graph::{self, Cost, Node};
use mlx_primitives::io::KQuants;
use serde_json::json;

use super::args::Args;
use super::builtins::{nodes_of_a_token, unpacks_k_quants};
use crate::output;

/// The number of positions in the cache if no flag names one.
pub const CONTEXT: u32 = 128;
/// The largest number of positions in a cache that the command makes.
const MOST_CONTEXT: u32 = 65_535;

pub fn run(args: &Args) -> Result<()> {
    let (llama, affine) = (args.model(None)?, KQuants::Affine.with(|| args.model(None))?);
    ensure!(
        !unpacks_k_quants(&llama),
        "expected --dtype float32 with --graph: GPUs unpack K-quants for 16-bit activations"
    );
    let context = match args.context[..] {
        [] => CONTEXT,
        [context] => context,
        _ => anyhow::bail!("--graph takes one --context"),
    };
    let limit = llama.config().max_position_embeddings.unwrap_or(i32::MAX).unsigned_abs();
    ensure!(context < limit, "the model was made for {limit} positions");
    ensure!(context <= MOST_CONTEXT, "expected at most {MOST_CONTEXT} positions, got {context}");
    let graphs = nodes_of_a_token(&llama, &affine, context.try_into()?)?;
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
            json!({"layers": layers, "context": context, "ours": ours, "builtins": theirs});
        return Ok(output::println(object)?);
    }
    for (title, nodes, total) in
        [("ours", &graphs[0], totals[0]), ("MLX's built-ins", &graphs[1], totals[1])]
    {
        output::println(format_args!(
            "{title}: {} dispatches, {} device bytes a token",
            total.dispatches,
            grouped(total.device_bytes)
        ))?;
        for (name, cost) in by_name(nodes) {
            let (dispatches, moved) = (cost.dispatches, grouped(cost.device_bytes));
            output::println(format_args!("  {name:<28}{dispatches:>5}{moved:>16}"))?;
        }
    }
    output::eprintln(format_args!(
        "{layers} layers, {context} positions in the cache. Counted from the graphs: a node of MLX's is the one \
         dispatch that its Metal backend makes of it, views are none."
    ));
    Ok(())
}

/// Returns the cost of the nodes that dispatch kernels, by the name of their primitive.
fn by_name(nodes: &[Node]) -> BTreeMap<String, Cost> {
    let mut costs = BTreeMap::new();
    for node in nodes.iter().filter(|node| node.dispatches > 0) {
        let cost: &mut Cost = costs.entry(node.name.clone()).or_default();
        cost.dispatches += node.dispatches;
        cost.device_bytes += node.device_bytes;
    }
    costs
}

/// Formats 1234567 as 1,234,567.
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
