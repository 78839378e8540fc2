//! Faults that a test inserts (plants) into this thread's dispatches, to verify that other checks
//! notice them.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use metal_sim::Library;

/// A fault in the kernels or in the data of a dispatch.
#[derive(Clone)]
pub enum Planted {
    /// Kernels of this library run instead of the embedded kernels of the same names.
    Kernels(Library),
    /// The dispatch with this number, counted from 0, gets the change.
    Dispatch(usize, Change),
}

/// A fault in the data of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Changes the size of the grid: the axis, and the number to add.
    Grid(usize, i32),
    /// Changes the size of the threadgroup: the axis, and the number to add.
    Group(usize, i32),
    /// Changes the size of a threadgroup memory: the index, and the number of bytes to add.
    Memory(u32, i32),
    /// Exchanges the buffers with these two indices.
    Swapped(u32, u32),
    /// Changes a 32-bit word of parameters: the buffer index, the word's index, and the number to
    /// add.
    Word(u32, usize, i32),
    /// Moves the start of a buffer: the buffer index, and the number of bytes.
    Offset(u32, usize),
}

/// A planted fault, and the number of dispatches so far.
pub(super) struct Plant {
    planted: Planted,
    dispatches: AtomicUsize,
}

thread_local! {
    static PLANT: RefCell<Option<Arc<Plant>>> = const { RefCell::new(None) };
}

/// Runs `f`, and plants a fault in the simulated dispatches of this thread. `f` must evaluate the
/// arrays that it computes.
pub fn with_planted<R>(planted: Planted, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<Arc<Plant>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            PLANT.set(self.0.take());
        }
    }
    let plant = Plant { planted, dispatches: AtomicUsize::new(0) };
    let _restore = Restore(PLANT.replace(Some(Arc::new(plant))));
    f()
}

/// Returns the fault for the next dispatch that this thread encodes, if it gets a fault.
pub(super) fn next() -> Option<Planted> {
    let plant = PLANT.try_with(|plant| plant.borrow().clone()).ok()??;
    let number = plant.dispatches.fetch_add(1, Ordering::Relaxed);
    match plant.planted {
        Planted::Dispatch(chosen, _) if chosen != number => None,
        ref planted => Some(planted.clone()),
    }
}
