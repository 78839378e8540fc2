//! Divides the cases among several processes.

use std::cell::Cell;

/// A process's share of the cases of one or more ops. Consecutive cases belong to consecutive
/// shares, and the first share follows the last share. One process for each share number is needed
/// to run all cases.
#[derive(Debug)]
pub struct Share {
    number: usize,
    of: usize,
    met: Cell<usize>,
}

impl Share {
    /// Returns share `number` out of `of` shares. The first share has the number 1. A single share
    /// contains all cases.
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
