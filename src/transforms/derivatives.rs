//! Whether this thread builds derivatives, so that functions without a derivative can refuse.

use std::cell::Cell;

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// While this value exists, the closures that this thread runs are differentiated.
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

/// Whether this thread runs a closure to differentiate it.
pub fn differentiates() -> bool {
    DEPTH.with(Cell::get) > 0
}
