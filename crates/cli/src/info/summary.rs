//! Describes a model: its architecture, and the memory that it needs.

use anyhow::Result;
use mlx_primitives::graph;
use mlx_primitives::io::{self, GgufType, KQuants};
use mlx_primitives_llama::estimate;
use serde_json::{Value, json};

use super::args::Args;
use super::builtins::{nodes_of_a_token, unpacks_k_quants};
use super::ranks;
use super::token::CONTEXT;
use crate::model::{bytes, check_kv, packing_name};
use crate::output;

/// The context lengths to show if no flag names any. If the model has a limit, lengths beyond it
/// are left out, and the limit is shown too.
const CONTEXTS: [u32; 4] = [2048, 8192, 32768, 131_072];

pub fn run(args: &Args) -> Result<()> {
    let llama = args.model(None)?;
    check_kv(args.kv.kind(), &llama)?;
    let config = llama.config();
    let limit = config.max_position_embeddings.map(i32::unsigned_abs);
    let weights = llama.nbytes() as u64;
    let (types, k_quants) = (tensor_types(args)?, KQuants::of_models());
    let packed = match args.packing.quantization()? {
        Some(to) => Some(to),
        None => config.quantization_of("")?,
    };
    let memory = contexts(args, limit).into_iter().map(|context| {
        let sizes = estimate(config, llama.dtype(), packed, args.kv.kind(), 1, context)?;
        Ok((context, sizes.cache, weights.saturating_add(sizes.cache)))
    });
    let memory: Vec<(u32, u64, u64)> = memory.collect::<Result<_>>()?;
    let at = CONTEXT.min(limit.unwrap_or(u32::MAX).saturating_sub(1));
    let affine = KQuants::Affine.with(|| args.model(None))?;
    let dispatches = match unpacks_k_quants(&llama) {
        true => None,
        false => Some(
            nodes_of_a_token(&llama, &affine, at.try_into()?)?
                .map(|nodes| graph::total(&nodes).dispatches),
        ),
    };

    let plans = ranks::plans(args, &llama)?;
    if args.json {
        let memory: Vec<_> = memory
            .iter()
            .map(|(context, cache, total)| {
                json!({"context": context, "cache_bytes": cache, "total_bytes": total})
            })
            .collect();
        let object = json!({
            "model_type": config.model_type,
            "num_hidden_layers": config.num_hidden_layers,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_attention_heads": config.num_attention_heads,
            "num_key_value_heads": config.kv_heads(),
            "head_dim": config.head_dim(),
            "vocab_size": config.vocab_size,
            "tie_word_embeddings": config.tie_word_embeddings,
            "max_position_embeddings": config.max_position_embeddings,
            "dtype": llama.dtype().name(),
            "quantization": packed.map(|to| to.to_json()),
            "parameters": llama.parameters(),
            "weight_bytes": weights,
            "dispatches_per_token": dispatches.map(|[ours, _]| ours),
            "builtin_dispatches_per_token": dispatches.map(|[_, builtins]| builtins),
            "gguf_types": types.iter().map(|kind| type_json(kind, k_quants)).collect::<Vec<_>>(),
            "memory": memory,
            "ranks": ranks::to_json(&plans),
        });
        return Ok(output::println(object)?);
    }
    let heads = format!(
        "{} heads of {}, {} of keys and values",
        config.num_attention_heads,
        config.head_dim(),
        config.kv_heads()
    );
    let embedding = if config.tie_word_embeddings == Some(true) { "tied" } else { "untied" };
    let format = packed.map_or_else(|| llama.dtype().name().to_owned(), packing_name);
    for (name, value) in [
        ("architecture", format!("{}, {} layers", config.model_type, config.num_hidden_layers)),
        (
            "hidden size",
            format!("{}, feed-forward {}", config.hidden_size, config.intermediate_size),
        ),
        ("attention", heads),
        ("vocabulary", format!("{}, {embedding} output projection", config.vocab_size)),
        ("positions", limit.map_or("not stated".to_owned(), |limit| limit.to_string())),
        ("parameters", format!("{:.2} M", llama.parameters() as f64 / 1e6)),
        ("weights", format!("{} ({format})", bytes(weights))),
        (
            "dispatches",
            dispatches.map_or_else(
                || "not counted: GPUs unpack K-quants for 16-bit activations".to_owned(),
                |[ours, builtins]| {
                    format!("{ours} a token on a GPU, {builtins} of MLX's built-ins")
                },
            ),
        ),
    ] {
        output::println(format_args!("{name:<16}{value}"))?;
    }
    for kind in &types {
        output::println(format_args!("{:<16}{}", kind.name, type_text(kind, k_quants)))?;
    }
    output::println(format_args!("\n{:>10}{:>14}{:>14}", "context", "cache", "with weights"))?;
    for (context, cache, total) in memory {
        let (cache, total) = (bytes(cache), bytes(total));
        output::println(format_args!("{context:>10}{cache:>14}{total:>14}"))?;
    }
    Ok(ranks::print(&plans, args)?)
}

/// Returns the tensor types of a GGUF file; empty for other models.
fn tensor_types(args: &Args) -> Result<Vec<GgufType>> {
    match &args.source.model {
        Some(path) if path.extension().is_some_and(|it| it.eq_ignore_ascii_case("gguf")) => {
            Ok(io::gguf_types(path)?)
        }
        _ => Ok(Vec::new()),
    }
}

/// Returns the bits of a weight in memory (`None` if it stays a float), the number of weights in a
/// group, and the largest rounding error (`None` if no number changes).
fn becomes(kind: &GgufType, k_quants: KQuants) -> (Option<i32>, i32, Option<&'static str>) {
    match kind.own_bits.filter(|_| k_quants == KQuants::Own) {
        Some(bits) => (Some(bits), if bits == 6 { 16 } else { 32 }, None),
        None => (kind.bits, 32, kind.rounding),
    }
}

fn type_text(kind: &GgufType, k_quants: KQuants) -> String {
    let plural = if kind.tensors == 1 { "" } else { "s" };
    let becomes = match becomes(kind, k_quants) {
        (None, ..) => "as they are".to_owned(),
        (Some(bits), group, None) => {
            format!("{bits} bits in groups of {group}, the same numbers")
        }
        (Some(bits), group, Some(most)) => {
            format!("{bits} bits in groups of {group}, rounded by at most {most}")
        }
    };
    format!("{} tensor{plural}, {} in the file: {becomes}", kind.tensors, bytes(kind.bytes))
}

fn type_json(kind: &GgufType, k_quants: KQuants) -> Value {
    let (bits, _, rounding) = becomes(kind, k_quants);
    json!({
        "name": kind.name,
        "tensors": kind.tensors,
        "bytes": kind.bytes,
        "bits": bits,
        "rounding": rounding,
    })
}

fn contexts(args: &Args, limit: Option<u32>) -> Vec<u32> {
    if !args.context.is_empty() {
        return args.context.clone();
    }
    let Some(limit) = limit else { return CONTEXTS.to_vec() };
    CONTEXTS.into_iter().filter(|&context| context < limit).chain([limit]).collect()
}
