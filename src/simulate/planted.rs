//! Faults that a test plants in this thread's dispatches, to see that other checks notice them.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use metal_sim::Library;

/// A fault in the kernels or in the data of a dispatch.
#[derive(Clone)]
pub enum Planted {
    /// The kernels of this library replace the kernels of the same names in the embedded source.
    Kernels(Library),
    /// The dispatch with this number, counted from 0, is encoded with one wrong value.
    Dispatch(usize, Change),
}

/// A fault in the data of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds a number to one extent of the grid: axis and number.
    Grid(usize, i32),
    /// Adds a number to one extent of the threadgroup: axis and number.
    Group(usize, i32),
    /// Adds a number to the bytes of threadgroup memory: index and number.
    Memory(u32, i32),
    /// Exchanges the buffers of these two indices.
    Swapped(u32, u32),
    /// Adds a number to a 32-bit word of parameters: buffer index, word and number.
    Word(u32, usize, i32),
    /// Moves the beginning of a buffer: index and bytes.
    Offset(u32, usize),
}

/// A fault and the number of dispatches so far.
pub(super) struct Plant {
    planted: Planted,
    dispatches: AtomicUsize,
}

thread_local! {
    static PLANT: RefCell<Option<Arc<Plant>>> = const { RefCell::new(None) };
}

/// Runs `f` with a fault in the dispatches of this thread's evaluations to the simulator. `f` must
/// evaluate the arrays that it computes.
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

/// The fault of the dispatch that this thread encodes next.
pub(super) fn next() -> Option<Planted> {
    let plant = PLANT.try_with(|plant| plant.borrow().clone()).ok()??;
    let number = plant.dispatches.fetch_add(1, Ordering::Relaxed);
    match plant.planted {
        Planted::Dispatch(chosen, _) if chosen != number => None,
        ref planted => Some(planted.clone()),
    }
}
