//! The choices of this process between our kernels and MLX's ops, with a fast look-up for ops.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{OnceLock, PoisonError, RwLock};

use super::file::{Key, path};
use super::{Call, Choice, Choices, Class, Rows};
use crate::device::Device;
use crate::dtype::Dtype;
use crate::environment::{self, TUNE, Tune};
use crate::error::{Error, Result};
use crate::simulator;

/// The choices for one device, and a cache of look-ups.
pub(super) struct Process {
    choices: Choices,
    /// The cache of look-ups. Its key is a hash of the op, the type, the range of rows and the
    /// range of sizes. A hash is faster to look up than the name of a class.
    known: RwLock<HashMap<u64, Choice>>,
}

impl Choices {
    /// The choices of this process for a device: the choices that `MLX_PRIMITIVES_TUNE` selects, or
    /// else the built-in choices.
    ///
    /// # Errors
    ///
    /// Returns an error if the variable has an unknown value. Returns an error if it is `file`, and
    /// [`read`](Self::read) finds no usable file.
    pub fn of_process(device: Device) -> Result<Self> {
        Ok(Process::of(device)?.choices().clone())
    }
}

/// A formatter target that hashes the text instead of storing it.
struct Hashed(DefaultHasher);

impl fmt::Write for Hashed {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

impl Process {
    /// The choices for a device. The first call reads them; later calls return the same value.
    pub(super) fn of(device: Device) -> Result<&'static Self> {
        static ALL: [OnceLock<std::result::Result<Process, String>>; 3] =
            [const { OnceLock::new() }; 3];
        let place = match device {
            Device::Gpu => 0,
            Device::Cpu => 1 + usize::from(simulator::is_on()),
        };
        let opened = ALL[place].get_or_init(|| {
            let choices = Self::open(device).map_err(|error| error.to_string())?;
            Ok(Self { choices, known: RwLock::default() })
        });
        opened.as_ref().map_err(|text| Error::from(text.as_str()))
    }

    fn open(device: Device) -> Result<Choices> {
        match environment::tune()? {
            Tune::Off => Ok(Choices::ours()),
            Tune::File => {
                let path = path(device).ok_or_else(|| {
                    Error::argument(TUNE, "a folder in XDG_CACHE_HOME or HOME with the file")
                })?;
                let read = Choices::read(&path, &Key::here(device)?);
                let unusable = |why| {
                    let run = "run `mlx-primitives tune`, or unset the variable";
                    Error::from(format!("[{TUNE}=file] {why}: {run}"))
                };
                let none = || unusable(format!("{}: there is no such file", path.display()));
                read.map_err(|error| unusable(error.to_string()))?.ok_or_else(none)
            }
            // The built-in rule does not use the hash of the kernels, which takes time to compute.
            Tune::Rule => Ok(Choices::built_in(&Key::with(device, String::new())?)),
        }
    }

    pub(super) fn choices(&self) -> &Choices {
        &self.choices
    }

    /// The choice for a call of `op` whose result has the type `dtype`.
    pub(super) fn choice(
        &self,
        op: &impl fmt::Display,
        dtype: Dtype,
        call: impl Fn() -> Call,
    ) -> Choice {
        if self.choices.is_all_ours() {
            return Choice::Ours;
        }
        let of = call();
        let mut call = Hashed(DefaultHasher::new());
        // Writing to a hash does not fail.
        let _ = write!(call, "{op}");
        (dtype, Rows::of(of.rows), of.size).hash(&mut call.0);
        let call = call.0.finish();
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&call).copied();
        known.unwrap_or_else(|| {
            let choice = self.choices.choice(&Class::new(op, dtype, of));
            self.known.write().unwrap_or_else(PoisonError::into_inner).insert(call, choice);
            choice
        })
    }
}
