//! Reads and writes the file of choices between our kernels and MLX's ops. The file has a key,
//! which identifies the machine and the kernels that were measured.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

use super::{Choices, Measured, Rule, neural};
use crate::device::{self, Device};
use crate::error::{Error, Result};
use crate::{files, simulator};

/// Identifies the machine, the MLX version and the kernels of measurements. A process with another
/// key does not use the measurements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The name of the processor. For a CPU it includes the instruction set and the number of
    /// threads.
    pub chip: String,
    /// The operating system: the result of [`device::system`].
    pub system: String,
    /// The version of the loaded MLX.
    pub mlx: String,
    /// The hash of the kernels: the result of [`device::kernels_hash`].
    pub kernels: String,
}

impl Key {
    /// The key of this process for a device.
    ///
    /// # Errors
    ///
    /// Returns an error if the name of the device or of the system is not available.
    pub fn here(device: Device) -> Result<Self> {
        Self::with(device, device::kernels_hash().to_owned())
    }

    pub(super) fn with(device: Device, kernels: String) -> Result<Self> {
        let mut chip = device.name()?;
        if device == Device::Cpu {
            chip += &format!(", {}, {} threads", device::cpu_kernels(), device::cpu_threads());
            if simulator::is_on() {
                chip += ", simulated Metal";
            }
        }
        let (_, mlx) = device::mlx_versions();
        Ok(Self { chip, system: device::system(), mlx, kernels })
    }

    /// Returns true if the device is an NVIDIA GPU. Our matrix kernels use the tensor cores of
    /// these GPUs only in part.
    pub(super) fn is_nvidia(&self) -> bool {
        self.chip.starts_with("NVIDIA ")
    }

    /// Returns true if MLX's matrix products run on the neural accelerators of the GPU's cores.
    /// This requires an M5 or later, macOS 26.2 (Darwin 25.2) or later, and a loaded MLX with
    /// kernels for the accelerators. Our kernels do not use the neural accelerators.
    pub(super) fn has_neural_accelerators(&self) -> bool {
        if self.chip.contains(" threads") {
            return false; // only the key of a CPU has threads
        }
        let number = |text: &str| -> Option<u32> {
            let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
            text[..digits].parse().ok()
        };
        let generation = self.chip.strip_prefix("Apple M").and_then(number);
        let mut release = self.system.strip_prefix("Darwin ").unwrap_or("").split('.').map(number);
        let release = (release.next().flatten(), release.next().flatten());
        generation >= Some(5) && release >= (Some(25), Some(2)) && neural::in_mlx().unwrap_or(true)
    }
}

/// The contents of the file.
#[derive(Serialize, Deserialize)]
struct Stored {
    format: String,
    key: Key,
    measured: BTreeMap<String, Measured>,
}

const FORMAT: &str = "mlx-primitives tune 1";

impl Choices {
    /// The choices that apply without measurements: one rule for each kind of device.
    pub fn built_in(key: &Key) -> Self {
        let rule = match key {
            _ if key.has_neural_accelerators() => Rule::MatricesMlx,
            _ if key.is_nvidia() => Rule::Nvidia,
            _ => Rule::AllOurs,
        };
        Self { rule, ..Self::default() }
    }

    /// Reads choices from a file. Returns `None` if there is no file.
    ///
    /// # Errors
    ///
    /// Returns an error if the file is incomplete, or has another key.
    pub fn read(path: &Path, key: &Key) -> Result<Option<Self>> {
        if !path.exists() {
            return Ok(None);
        }
        let unusable = |why: &dyn fmt::Display| {
            Error::file(path, format_args!("these choices of kernels are not used: {why}"))
        };
        let text = files::read_to_string(path)?;
        let stored: Stored = serde_json::from_str(&text).map_err(|error| unusable(&error))?;
        let Key { chip, system, mlx, kernels } = &stored.key;
        for (what, stored, here) in [
            ("the format", &*stored.format, FORMAT),
            ("the chip", chip, &key.chip),
            ("the system", system, &key.system),
            ("MLX", mlx, &key.mlx),
            ("the hash of the kernels", kernels, &key.kernels),
        ] {
            if stored != here {
                return Err(unusable(&format_args!("{what} is {here:?}, and was {stored:?}")));
            }
        }
        Ok(Some(Self { measured: stored.measured, ..Self::built_in(key) }))
    }

    /// Writes a file for [`read`](Self::read), and creates its parent folders. The file is replaced
    /// atomically: another program reads either the previous file or the new file.
    ///
    /// # Errors
    ///
    /// Returns an error if the folders or the file cannot be written.
    pub fn write(&self, path: &Path, key: &Key) -> Result<()> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (format, measured) = (FORMAT.to_owned(), self.measured.clone());
        let text = serde_json::to_string_pretty(&Stored { format, key: key.clone(), measured })
            .map_err(|error| Error::file(path, error))?;
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let partial = path.with_extension(format!("partial-{}-{number}", std::process::id()));
        let folder = path.parent().unwrap_or(Path::new("."));
        files::check_replaceable(path)?;
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&partial, text))
            .and_then(|()| std::fs::rename(&partial, path))
            .map_err(|error| {
                let _ = std::fs::remove_file(&partial); // a failure to remove it is not reported
                Error::file(path, format_args!("cannot be written: {error}"))
            })
    }
}

/// The path of the user's file of choices. Returns `None` if neither `XDG_CACHE_HOME` nor `HOME` is
/// an absolute path.
pub fn path(device: Device) -> Option<PathBuf> {
    let name = match device {
        Device::Gpu => "tune-gpu.json",
        Device::Cpu if simulator::is_on() => "tune-simulated.json",
        Device::Cpu => "tune-cpu.json",
    };
    Some(files::user_cache()?.join(name))
}
