//! `mlx-primitives info`: shows the build, the memory that a model needs, and the cost of a token.

mod args;
mod builtins;
mod ranks;
mod summary;
mod token;

use anyhow::Result;
use mlx_primitives::device::{self, Device};
use mlx_primitives::tune::Choices;
use serde_json::Value;

use crate::output;
pub use args::Args;

pub fn run(args: &Args) -> Result<()> {
    if args.graph {
        return token::run(args);
    }
    if args.source.model.is_some() {
        return summary::run(args);
    }
    facts(args)
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

/// Returns the facts that results depend on: versions, devices and kernels.
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

/// Returns the path of the MLX library that this program uses.
fn mlx_library() -> String {
    let path = device::mlx_library();
    path.map_or("a part of this program".to_owned(), |path| path.display().to_string())
}

/// Describes the rule or the measurements that decide whether an op runs our kernel or MLX's ops.
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
