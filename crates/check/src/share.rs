//! Shares of the cases, for several processes.

use std::cell::Cell;

/// Deals cases of one or more ops to several processes in turn. Processes whose shares have
/// different numbers run all cases together.
#[derive(Debug)]
pub struct Share {
    number: usize,
    of: usize,
    met: Cell<usize>,
}

impl Share {
    /// The share `number`, from 1, of `of` shares. A single share has all cases.
    pub fn new(number: usize, of: usize) -> Self {
        Self { number: number.saturating_sub(1), of: of.max(1), met: Cell::new(0) }
    }

    /// Returns whether the next case belongs to this share.
    pub(super) fn takes_next(&self) -> bool {
        let met = self.met.get();
        self.met.set(met + 1);
        met % self.of == self.number % self.of
    }
}
