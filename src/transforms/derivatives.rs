//! Tracks whether this thread differentiates a closure. Functions without a derivative can then
//! return an error.

use std::cell::Cell;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// While a value of this type exists, this thread differentiates the closures that it runs.
pub(super) struct Differentiation(());

impl Differentiation {
    pub(super) fn begin() -> Self {
        DEPTH.with(|depth| depth.set(depth.get() + 1));
        Self(())
    }
}

impl Drop for Differentiation {
    fn drop(&mut self) {
        DEPTH.with(|depth| depth.set(depth.get() - 1));
    }
}

/// Returns true if this thread runs a closure to differentiate it.
pub fn differentiates() -> bool {
    DEPTH.with(Cell::get) > 0
}
