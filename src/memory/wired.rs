//! How much memory stays resident for the GPU, as the sum of what its users ask for.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device::{self, Device};
use crate::error::Result;
use crate::ffi::bridge as ffi;

/// A GPU's limits of resident memory; tests stand in for MLX.
#[doc(hidden)]
pub trait Limits {
    /// The bytes that should be resident at most, or `None` where nothing can be kept resident.
    ///
    /// # Errors
    ///
    /// Returns an error if the system cannot be asked for its GPU.
    fn recommended(&self) -> Result<Option<usize>>;

    /// Sets the bytes that stay resident, and returns the previous number.
    ///
    /// # Errors
    ///
    /// Returns an error if `bytes` is more than the system allows.
    fn set(&self, bytes: usize) -> Result<usize>;
}

/// The limits of MLX's allocator.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Mlx;

impl Limits for Mlx {
    fn recommended(&self) -> Result<Option<usize>> {
        if device::current()? == Device::Cpu {
            return Ok(None);
        }
        Ok(Some(ffi::recommended_working_set()?).filter(|&bytes| bytes > 0))
    }

    fn set(&self, bytes: usize) -> Result<usize> {
        Ok(ffi::set_wired_limit(bytes)?)
    }
}

/// The sum that the users of one GPU ask for.
#[doc(hidden)]
pub struct Ledger<L> {
    limits: L,
    asked: Mutex<Asked>,
}

#[derive(Default)]
struct Asked {
    users: usize,
    bytes: usize,
    recommended: usize,
    /// The limit before the first user, which the last one leaves.
    before: usize,
}

impl Asked {
    /// Never less than before, nor more than is recommended otherwise.
    fn limit(&self) -> usize {
        self.before.saturating_add(self.bytes).min(self.recommended).max(self.before)
    }
}

impl<L: Limits> Ledger<L> {
    /// A ledger without users.
    pub const fn new(limits: L) -> Self {
        let asked = Asked { users: 0, bytes: 0, recommended: 0, before: 0 };
        Self { limits, asked: Mutex::new(asked) }
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for this many bytes more, until the result is dropped.
    ///
    /// # Errors
    ///
    /// Returns an error if the limits cannot be read or set. Nothing has changed then.
    pub fn wire(&self, bytes: usize) -> Result<Wired<'_, L>> {
        let Some(recommended) = self.limits.recommended()? else {
            return Ok(Wired { ledger: None, bytes: 0 });
        };
        let mut asked = self.asked();
        if asked.users == 0 {
            // The only way to ask for the limit is to set it.
            asked.before = self.limits.set(0)?;
        }
        let (users, before) = (asked.users, asked.bytes);
        asked.bytes = before.saturating_add(bytes);
        asked.recommended = recommended;
        // Less than it asks for where the sum has reached its end.
        let added = asked.bytes - before;
        match self.limits.set(asked.limit()) {
            Ok(_) => {
                asked.users = users + 1;
                Ok(Wired { ledger: Some(self), bytes: added })
            }
            Err(error) => {
                asked.bytes = before;
                self.limits.set(asked.limit())?;
                Err(error)
            }
        }
    }
}

/// Memory that stays resident for the GPU until this value is dropped, also by an error or a panic.
#[must_use = "the memory stays resident only until this is dropped"]
pub struct Wired<'a, L: Limits = Mlx> {
    ledger: Option<&'a Ledger<L>>,
    bytes: usize,
}

impl<L: Limits> Wired<'_, L> {
    /// The most bytes that stay resident, for all users together; 0 where there is no limit.
    pub fn limit(&self) -> usize {
        self.ledger.map_or(0, |ledger| ledger.asked().limit())
    }
}

impl<L: Limits> Drop for Wired<'_, L> {
    fn drop(&mut self) {
        let Some(ledger) = self.ledger else { return };
        let mut asked = ledger.asked();
        asked.users -= 1;
        asked.bytes -= self.bytes;
        // A lower limit is never refused, and there would be nobody to tell.
        let _ = ledger.limits.set(asked.limit());
    }
}

/// Lets the memory of a model, or of anything else that is read again and again, stay resident for
/// the GPU: at most `bytes` in addition to what others asked for by this function, and in all at
/// most what the system recommends for the GPU ([`recommended_working_set`]).
///
/// This is of use on macOS 15 and later, which may otherwise page out weights between tokens; MLX
/// wires nothing by itself. On a CPU or another GPU the call changes nothing. While a result lives,
/// [`set_wired_limit`](super::set_wired_limit) should not be called.
///
/// # Errors
///
/// Returns an error if the system cannot be asked for its GPU, or MLX cannot set its limit. Nothing
/// has changed then.
///
/// ```
/// use mlx_primitives::{Array, memory};
///
/// let weights = Array::ones::<f32>(&[1024])?;
/// let wired = memory::wire(weights.nbytes())?;
/// assert!(wired.limit() <= memory::recommended_working_set()?.unwrap_or(0));
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn wire(bytes: usize) -> Result<Wired<'static>> {
    static LEDGER: Ledger<Mlx> = Ledger::new(Mlx);
    LEDGER.wire(bytes)
}

/// The bytes that the system recommends to keep resident for the GPU at most; `None` on a CPU, and
/// on a GPU that is not Apple's.
///
/// # Errors
///
/// Returns an error if the system cannot be asked for its GPU.
pub fn recommended_working_set() -> Result<Option<usize>> {
    Mlx.recommended()
}
