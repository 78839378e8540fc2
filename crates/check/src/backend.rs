//! The properties to check, and the devices that can run the op.

use mlx_primitives::Result;
use mlx_primitives::device::{Device, with_device};
use mlx_primitives::simulator::{self, Schedule, with_metal, without_metal};

/// A property of an op to check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Check {
    /// Compares values of all types in all layouts, and checks that building the op computes
    /// nothing.
    Values,
    /// Compares values for extreme numbers: zeros, subnormals, the largest numbers, infinities and
    /// NaN. For each extreme number, a comparison for each input puts the number among ordinary
    /// numbers of this input, and another comparison fills the first input with the number. Further
    /// comparisons combine each number with each number of the next input.
    Extremes,
    /// Compares `vjp` with finite differences of the reference. Differentiates in the inputs of
    /// kind [`Input::Float`](crate::Input::Float): in each input alone, and in all inputs together.
    Vjp,
    /// Compares `jvp` with finite differences of the reference. Differentiates in the inputs of
    /// kind [`Input::Float`](crate::Input::Float): in each input alone, and in all inputs together.
    Jvp,
    /// Compares `vmap` with a loop. The mapped axis is either an additional axis or a short axis of
    /// a case. An additional axis is inserted at each position of each input, and into several
    /// inputs together: into every set of inputs if the op has at most five, otherwise into all of
    /// them.
    Vmap,
    /// Compares the values of the compiled op with its values outside of `compile`, bit for bit.
    Compile,
}

impl Check {
    /// Every check.
    pub const ALL: [Self; 6] =
        [Self::Values, Self::Extremes, Self::Vjp, Self::Jvp, Self::Vmap, Self::Compile];
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Values => "values",
            Self::Extremes => "extremes",
            Self::Vjp => "vjp",
            Self::Jvp => "jvp",
            Self::Vmap => "vmap",
            Self::Compile => "compile",
        })
    }
}

/// A device, real or simulated, that runs the op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// The CPU kernels, which `eval_cpu` runs.
    Cpu,
    /// The Metal kernels in the simulator, which runs their threads in this order.
    SimulatedMetal(Schedule),
    /// The Metal kernels on a GPU.
    Gpu,
}

impl Backend {
    /// Returns every backend that this build supports and this machine has.
    pub fn available() -> Vec<Self> {
        let mut all = vec![Self::Cpu];
        if simulator::is_available() {
            all.extend(Schedule::ALL.map(Self::SimulatedMetal));
        }
        if Device::Gpu.is_available().unwrap_or(false) {
            all.push(Self::Gpu);
        }
        all
    }

    /// Returns whether this backend runs Metal kernels.
    pub fn is_metal(self) -> bool {
        self != Self::Cpu
    }

    /// Returns whether this backend runs the op on an NVIDIA GPU.
    pub fn is_cuda(self) -> bool {
        self == Self::Gpu && mlx_primitives::support::CUDA
    }

    pub(crate) fn run<R>(self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        match self {
            Self::Cpu => with_device(Device::Cpu, || without_metal(f)),
            Self::SimulatedMetal(schedule) => with_device(Device::Cpu, || with_metal(schedule, f))?,
            Self::Gpu => with_device(Device::Gpu, f),
        }
    }
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cpu => f.pad("cpu"),
            Self::SimulatedMetal(schedule) => f.pad(&format!("simulated metal, {schedule}")),
            Self::Gpu => f.pad("gpu"),
        }
    }
}
