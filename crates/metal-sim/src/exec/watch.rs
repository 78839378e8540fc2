//! Finds the source line of the earlier access of a race. The history of a byte does not hold
//! return addresses. A dispatch with races therefore runs a second time, in the same order, and
//! this module records the return addresses of the accesses to the bytes that raced.

use std::collections::HashMap;

use super::shadow::{Earlier, Stamp};

/// A byte of memory that buffers may share: the index of its `Storage`, and the offset in it.
pub(super) type Byte = (usize, usize);

/// The maximum number of loads, and of stores, that are kept for a byte.
const KEPT: usize = 4;

/// The last accesses of a byte, each with its return address.
#[derive(Default)]
struct Accesses {
    loads: Vec<(Stamp, usize)>,
    stores: Vec<(Stamp, usize)>,
}

/// The bytes that raced in the first run, and their accesses in this run.
#[derive(Default)]
pub(super) struct Watch(HashMap<Byte, Accesses>);

impl Watch {
    pub(super) fn new(bytes: Vec<Byte>) -> Self {
        Watch(bytes.into_iter().map(|byte| (byte, Accesses::default())).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Records an access to a byte, if the byte is watched.
    pub(super) fn keep(&mut self, byte: Byte, stamp: Stamp, wrote: bool, site: usize) {
        let Some(accesses) = self.0.get_mut(&byte) else { return };
        let kept = if wrote { &mut accesses.stores } else { &mut accesses.loads };
        kept.retain(|(other, _)| !other.is_at(stamp));
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push((stamp, site));
    }

    /// Returns the return address of an earlier access to a byte.
    pub(super) fn find(&self, byte: Byte, before: Earlier) -> Option<usize> {
        let accesses = self.0.get(&byte)?;
        let kept = if before.wrote { &accesses.stores } else { &accesses.loads };
        let found = kept.iter().rev().find(|(stamp, _)| stamp.is_at(before.stamp));
        found.map(|(_, site)| *site)
    }
}
