use anyhow::Result;
use mlx_primitives::device::{self, Device};
use serde_json::json;

#[derive(clap::Args)]
pub struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<()> {
    device::check_version()?;
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
