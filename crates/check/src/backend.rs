//! The properties that are checked, and the devices that run the op.

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
    /// Compares values for zeros, subnormals, the largest numbers, infinities and NaN. Each number
    /// occurs alone: among ordinary numbers in each input, and everywhere in the first input. All
    /// numbers also occur together, and each is paired with each number of the other inputs.
    Extremes,
    /// Compares `vjp` with finite differences of the reference, in the inputs that are
    /// [`Input::Float`](crate::Input::Float): in all of them together and in each alone.
    Vjp,
    /// Compares `jvp` with finite differences of the reference, in the inputs that are
    /// [`Input::Float`](crate::Input::Float): in all of them together and in each alone.
    Jvp,
    /// Compares `vmap` with a loop: over an additional axis at each place of each input, over an
    /// additional axis of every set of inputs, and over the short axes that a case has.
    Vmap,
    /// Compares values inside `compile` with values outside it, bit for bit.
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
    /// The Metal kernels in the simulator, which runs the threads in this order.
    SimulatedMetal(Schedule),
    /// The Metal kernels on a GPU.
    Gpu,
}

impl Backend {
    /// Every backend that this build supports and this machine has.
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
