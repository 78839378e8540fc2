//! Faults that a test plants in this thread's dispatches, to see that other checks notice them.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use metal_sim::Library;

use super::{Bound, SimulatedDispatch, failed};
use crate::error::Result;

/// A fault in the kernels or in the data of a dispatch.
#[derive(Clone)]
pub enum Planted {
    /// The kernels of this library replace the kernels of the same names in the embedded source.
    Kernels(Library),
    /// The dispatch with this number, counted from 0, is encoded with one wrong number.
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

/// The data of a dispatch, as it was encoded.
#[derive(Clone, Debug, Default)]
pub struct Encoded {
    /// The number of threadgroups, or of threads, along each axis.
    pub grid: [u32; 3],
    /// The number of threads of a threadgroup along each axis.
    pub group: [u32; 3],
    /// The index and the bytes of each threadgroup memory.
    pub memory: Vec<(u32, usize)>,
    /// The index and the bytes of each array, and whether it is written.
    pub arrays: Vec<(u32, usize, bool)>,
    /// The index and the words of each block of parameters.
    pub parameters: Vec<(u32, Vec<u32>)>,
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

impl Encoded {
    /// # Safety
    /// The parameters bound to `dispatch` must be valid to read.
    pub(super) unsafe fn of(dispatch: &SimulatedDispatch) -> Self {
        let mut encoded = Self {
            grid: dispatch.grid,
            group: dispatch.group,
            memory: dispatch.threadgroup.clone(),
            ..Self::default()
        };
        for bound in &dispatch.buffers {
            if bound.constant {
                // SAFETY: the caller promises this.
                let words = unsafe { words(bound) };
                encoded.parameters.push((bound.index, words));
            } else {
                encoded.arrays.push((bound.index, bound.bytes, bound.writable));
            }
        }
        encoded.memory.sort_unstable();
        encoded.arrays.sort_unstable();
        encoded.parameters.sort_unstable();
        encoded
    }
}

/// # Safety
/// The memory that is bound must be valid to read.
unsafe fn words(bound: &Bound) -> Vec<u32> {
    let at = std::ptr::with_exposed_provenance::<u8>(bound.at);
    // SAFETY: the caller promises this. The encoder copied these bytes for this dispatch.
    let bytes = unsafe { std::slice::from_raw_parts(at, bound.bytes) };
    bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect()
}

/// A word of parameters with `by` added: as a float if it looks like one, otherwise as an integer.
fn moved(word: u32, by: i32) -> u32 {
    let float = f32::from_bits(word);
    if float.is_normal() && (1e-9..1e9).contains(&float.abs()) {
        (float + by as f32).to_bits()
    } else {
        word.wrapping_add_signed(by)
    }
}

/// The dispatch with the change. Changed parameters are stored in `kept`.
///
/// # Safety
/// The memory that is bound to `dispatch` must be valid to read.
pub(super) unsafe fn changed(
    dispatch: &SimulatedDispatch,
    change: Change,
    kept: &mut Vec<u32>,
) -> Result<SimulatedDispatch> {
    let mut wrong = dispatch.clone();
    match change {
        Change::Grid(axis, by) => wrong.grid[axis] = wrong.grid[axis].wrapping_add_signed(by),
        Change::Group(axis, by) => wrong.group[axis] = wrong.group[axis].saturating_add_signed(by),
        Change::Memory(index, by) => {
            let memory = wrong.threadgroup.iter_mut().find(|(at, _)| *at == index);
            let (_, bytes) = memory.ok_or_else(|| missing(change))?;
            *bytes = bytes.saturating_add_signed(by as isize);
        }
        Change::Swapped(a, b) => {
            for bound in wrong.buffers.iter_mut().filter(|bound| [a, b].contains(&bound.index)) {
                bound.index = a + b - bound.index;
            }
        }
        Change::Word(index, word, by) => {
            let bound = wrong.bound(index).ok_or_else(|| missing(change))?;
            // SAFETY: the caller promises this.
            *kept = unsafe { words(bound) };
            let number = kept.get_mut(word).ok_or_else(|| missing(change))?;
            *number = moved(*number, by);
            bound.at = kept.as_ptr().expose_provenance();
        }
        Change::Offset(index, bytes) => {
            let bound = wrong.bound(index).ok_or_else(|| missing(change))?;
            (bound.at, bound.bytes) = (bound.at + bytes, bound.bytes.saturating_sub(bytes));
        }
    }
    // The encoder refuses such dispatches before they are run.
    let threads: u64 = wrong.group.iter().map(|extent| u64::from(*extent)).product();
    if threads > 1024 || wrong.grid.iter().chain(&wrong.group).any(|extent| *extent == 0) {
        return Err(failed(format_args!("{:?} groups of {:?}", wrong.grid, wrong.group)));
    }
    Ok(wrong)
}

fn missing(change: Change) -> crate::error::Error {
    failed(format_args!("a dispatch has nothing that {change:?} could change"))
}
