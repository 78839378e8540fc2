//! Command-line options of the commands that run the CPU kernels.

use anyhow::{Result, ensure};
use clap::ValueEnum;
use mlx_primitives::device::{self, Device};
use mlx_primitives::ops::CpuActivations;
use mlx_primitives_llama::Llama;

#[derive(clap::Args, Default)]
#[command(next_help_heading = "Speed and memory")]
pub struct Threads {
    /// Threads of the CPU kernels [default: the number of cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

impl Threads {
    pub fn set(&self) -> Result<()> {
        Ok(self.threads.map_or(Ok(()), |threads| device::set_cpu_threads(threads.into()))?)
    }
}

/// The options of the commands that run a model.
#[derive(clap::Args)]
#[command(next_help_heading = "Speed and memory")]
pub struct Kernels {
    #[command(flatten)]
    threads: Threads,
    /// Activations in products with packed weights: exact, or int8 (faster).
    #[arg(
        long,
        value_enum,
        value_name = "KIND",
        default_value_t = Activations::Exact,
        hide_possible_values = true
    )]
    activations: Activations,
}

#[derive(Clone, Copy, ValueEnum)]
enum Activations {
    Exact,
    Int8,
}

impl Kernels {
    pub fn set(&self) -> Result<()> {
        if matches!(self.activations, Activations::Int8) {
            let gpu = device::default_device()? == Device::Gpu;
            let kernels = if gpu { "a GPU's" } else { device::cpu_kernels() };
            ensure!(
                !gpu && device::cpu_multiplies_bytes(),
                "--activations int8 needs CPU kernels for AVX2 or later, or for NEON with dotprod; \
                 here they are {kernels}"
            );
        }
        self.threads.set()
    }

    /// Returns how the model rounds activations.
    pub fn activations(&self, llama: &Llama) -> Result<CpuActivations> {
        match self.activations {
            Activations::Exact => Ok(CpuActivations::Exact),
            Activations::Int8 => {
                ensure!(
                    llama.can_round_activations(),
                    "--activations int8 would round no activations: with the CPU kernels {}, they \
                     stay exact for all weights of this model",
                    device::cpu_kernels()
                );
                Ok(CpuActivations::Int8)
            }
        }
    }
}

/// Returns whether primitives run in the Metal simulator.
pub fn simulates() -> bool {
    mlx_primitives_catalog::inputs::simulated() && mlx_primitives::simulator::is_available()
}
