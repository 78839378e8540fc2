//! The choices of one device of this machine, as ops look them up.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::{Call, Choice, Choices, Class, Key, Rows, measure, path};
use crate::array::Array;
use crate::device::Device;
use crate::error::Result;
use crate::simulator;

/// How long the calls of one class are timed when the class is first met.
const BUDGET: Duration = Duration::from_millis(20);

type Clock = Box<dyn Fn() -> Duration + Send + Sync>;

/// Choices, the file that keeps them, and the clock by which missing ones are measured, if they
/// are.
///
/// An op is measured when it is built, on the thread that builds it: its computed inputs, and
/// random numbers in place of the others, go through our kernel and through MLX's ops. Where that
/// is not possible (see [`measure`]), the built-in rule chooses. If several threads or programs
/// measure the same class at the same time, the last measurement stays.
pub struct Machine {
    choices: RwLock<Choices>,
    /// Choices by a hash of op, type, number of rows and size, which is faster than the name of a class.
    known: RwLock<HashMap<u64, Choice>>,
    file: Option<(PathBuf, Key)>,
    clock: Option<Clock>,
    fixed: Option<Choice>,
}

/// Hashes the text that is written to it.
struct Hashed(DefaultHasher);

impl fmt::Write for Hashed {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// The value of `MLX_PRIMITIVES_TUNE`.
#[derive(PartialEq)]
enum Mode {
    Off,
    File,
    Lazy,
}

impl Machine {
    /// A machine that starts with these choices. Measurements are kept in the file, if there is
    /// one.
    pub fn new(choices: Choices, file: Option<(PathBuf, Key)>) -> Self {
        let fixed = choices.is_all_ours().then_some(Choice::Ours);
        let known = RwLock::default();
        Self { choices: RwLock::new(choices), known, file, clock: None, fixed }
    }

    /// Makes the machine measure classes that it has no choice for, by a clock that returns the
    /// time since a fixed moment.
    pub fn measuring(self, clock: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { clock: Some(Box::new(clock)), fixed: None, ..self }
    }

    /// The machine of this process for a device.
    pub(super) fn of(device: Device) -> &'static Self {
        static ALL: [std::sync::OnceLock<Machine>; 3] = [const { std::sync::OnceLock::new() }; 3];
        let place = match device {
            Device::Gpu => 0,
            Device::Cpu => 1 + usize::from(simulator::is_on()),
        };
        ALL[place].get_or_init(|| Self::open(device))
    }

    fn open(device: Device) -> Self {
        let mode = match std::env::var("MLX_PRIMITIVES_TUNE").as_deref() {
            Ok("off") => Mode::Off,
            Ok("lazy") => Mode::Lazy,
            Ok("file") => Mode::File,
            _ if device == Device::Gpu => Mode::Lazy,
            _ => Mode::File,
        };
        if mode == Mode::Off {
            return Self::new(Choices::ours(), None);
        }
        let path = path(device).filter(|path| mode == Mode::Lazy || path.exists());
        // Only the file needs the hash, which takes a while.
        let key = match &path {
            Some(_) => Key::here(device),
            None => Key::with(device, String::new()),
        };
        let Ok(key) = key else { return Self::new(Choices::ours(), None) };
        let read = path.as_deref().and_then(|path| Choices::read(path, &key).transpose());
        let choices = read.unwrap_or_else(|| Ok(Choices::built_in(&key))).unwrap_or_else(|error| {
            // If stderr cannot be written to, nobody can be told.
            let _ = std::io::Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("mlx-primitives: {error}; `mlx-primitives tune` writes it anew\n"),
            );
            Choices::built_in(&key)
        });
        let machine = Self::new(choices, path.map(|path| (path, key)));
        if mode == Mode::File {
            return machine;
        }
        let start = Instant::now();
        machine.measuring(move || start.elapsed())
    }

    /// A copy of the current choices.
    pub fn choices(&self) -> Choices {
        self.choices.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether all ops run our kernels and none is measured.
    pub(super) fn is_all_ours(&self) -> bool {
        self.fixed == Some(Choice::Ours)
    }

    /// The choice for the op whose lazy result is `ours`.
    pub(super) fn choice(
        &self,
        op: &impl fmt::Display,
        call: impl Fn() -> Call,
        ours: &Array,
    ) -> Choice {
        if let Some(choice) = self.fixed {
            return choice;
        }
        let (dtype, of) = (ours.dtype(), call());
        let mut call = Hashed(DefaultHasher::new());
        // Writing to a hash does not fail.
        let _ = write!(call, "{op}");
        (dtype, Rows::of(of.rows), of.size).hash(&mut call.0);
        let call = call.0.finish();
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner).get(&call).copied();
        known.unwrap_or_else(|| {
            let choice = self.first(&Class::new(op, dtype, of), ours);
            self.known.write().unwrap_or_else(PoisonError::into_inner).insert(call, choice);
            choice
        })
    }

    /// The choice for a class that this process meets for the first time.
    fn first(&self, class: &Class, ours: &Array) -> Choice {
        let choices = self.choices();
        let clock = self.clock.as_ref().filter(|_| !choices.has(class));
        let Some(measured) = clock.and_then(|clock| measure(ours, clock, BUDGET).ok()) else {
            return choices.choice(class);
        };
        let mut new = Choices::ours();
        new.add(class, measured);
        self.choices.write().unwrap_or_else(PoisonError::into_inner).replace(new.clone());
        // If the file cannot be written, the next process only has to measure again.
        let _ = self.keep(new);
        measured.choice()
    }

    /// Adds measurements to the file, to which other programs may have added meanwhile.
    fn keep(&self, new: Choices) -> Result<()> {
        let Some((path, key)) = &self.file else { return Ok(()) };
        let stored = Choices::read(path, key).ok().flatten();
        let mut all = stored.unwrap_or_else(|| Choices::built_in(key));
        all.replace(new);
        all.write(path, key)
    }
}
