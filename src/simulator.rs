//! A simulator of Metal for tests on Linux. It compiles kernels for this machine and checks every
//! load and store for races, accesses outside a buffer and reads of memory that was never written.
//!
//! The simulator needs the feature `simulate-metal`. To compile kernels, it also needs clang 17 or
//! later, or zig. The crate `metal-sim` can run a single kernel and count its loaded and stored
//! bytes and its barriers.
//!
//! ```
//! use mlx_primitives::simulator::{self, Schedule};
//! use mlx_primitives::{Array, ops};
//!
//! # if !simulator::is_available() { return Ok(()); }
//! let x = Array::from_slice(&[0.0f32, 0.0], &[2])?;
//! // Arrays that are evaluated inside the closure run in the simulator, wherever they were built.
//! let y = simulator::with_metal(Schedule::Reversed, || ops::softmax(&x)?.to_vec::<f32>())??;
//! assert_eq!(y, [0.5, 0.5]);
//! # Ok::<(), mlx_primitives::Error>(())
//! ```

use std::cell::Cell;

use crate::error::{Error, Result};

/// The order in which the simulator runs threads, SIMD groups and threadgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// From the first to the last.
    Forward,
    /// From the last to the first.
    Reversed,
    /// In a random order. The number is the seed.
    Shuffled(u64),
}

impl Schedule {
    /// An order of each variant.
    pub const ALL: [Self; 3] = [Self::Forward, Self::Reversed, Self::Shuffled(1)];
}

impl std::fmt::Display for Schedule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Forward => f.write_str("forward"),
            Self::Reversed => f.write_str("reversed"),
            Self::Shuffled(seed) => write!(f, "shuffled:{seed}"),
        }
    }
}

/// A thread's choice between Metal in the simulator and the CPU kernels. With `Environment`, the
/// environment variable decides.
#[derive(Clone, Copy)]
enum Choice {
    Environment,
    Metal(Schedule),
    Cpu,
}

thread_local! {
    static CHOICE: Cell<Choice> = const { Cell::new(Choice::Environment) };
}

/// Returns true if this build can simulate Metal: it is for Linux and has the feature
/// `simulate-metal`.
pub const fn is_available() -> bool {
    cfg!(all(feature = "simulate-metal", target_os = "linux"))
}

/// Runs `f`. If `f` evaluates primitives on this thread, they run their Metal kernels in the
/// simulator, in place of their CPU kernels. If the simulator finds a fault in a kernel, the
/// evaluation returns an error.
///
/// # Errors
///
/// Returns an error if the simulator is not available: this is not Linux, or the feature
/// `simulate-metal` is off.
pub fn with_metal<R>(schedule: Schedule, f: impl FnOnce() -> R) -> Result<R> {
    if !is_available() {
        return Err(Error::argument(
            "simulator",
            "Linux and the feature simulate-metal, got neither or one",
        ));
    }
    Ok(with(Choice::Metal(schedule), f))
}

/// Runs `f`. If `f` evaluates primitives on this thread, they run their CPU kernels, even if
/// `MLX_PRIMITIVES_SIMULATE_METAL` is set.
pub fn without_metal<R>(f: impl FnOnce() -> R) -> R {
    with(Choice::Cpu, f)
}

fn with<R>(choice: Choice, f: impl FnOnce() -> R) -> R {
    struct Restore(Choice);
    impl Drop for Restore {
        fn drop(&mut self) {
            CHOICE.set(self.0);
        }
    }
    let _restore = Restore(CHOICE.replace(choice));
    f()
}

/// Returns true if primitives that this thread evaluates on the CPU run in the simulator.
#[doc(hidden)]
pub fn is_on() -> bool {
    let asked = || std::env::var_os("MLX_PRIMITIVES_SIMULATE_METAL").is_some();
    is_available()
        && match CHOICE.get() {
            Choice::Environment => asked(),
            Choice::Metal(_) => true,
            Choice::Cpu => false,
        }
}

/// The order that [`with_metal`] set for this thread, or `None` outside [`with_metal`].
#[doc(hidden)]
pub fn chosen_schedule() -> Option<Schedule> {
    match CHOICE.get() {
        Choice::Metal(schedule) => Some(schedule),
        _ => None,
    }
}

/// Returns 1 if this thread simulates Metal, 0 if not, and -1 if the environment decides.
#[doc(hidden)]
pub fn chosen_simulation() -> i8 {
    match CHOICE.get() {
        Choice::Environment => -1,
        _ => i8::from(chosen_schedule().is_some()),
    }
}
