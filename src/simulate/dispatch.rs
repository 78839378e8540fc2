//! Two forms of a dispatch: its description before it runs in the simulator, and the record that is
//! kept afterwards.

use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

use super::planted::{self, Change, Planted};
use crate::error::{Error, Result};
use crate::simulator::{Schedule, chosen_schedule};

#[derive(Clone)]
pub(super) struct Bound {
    pub index: u32,
    pub at: usize,
    /// The number of bytes of a view that lie before its first element. It is not 0 if strides are
    /// negative.
    pub before: usize,
    pub bytes: usize,
    pub writable: bool,
    pub constant: bool,
}

/// The record of one dispatch, with the traffic to and from the bound arrays. The traffic excludes
/// parameters.
#[derive(Clone, Debug)]
pub struct Dispatched {
    /// The name of the kernel.
    pub kernel: String,
    /// For each array, in the order of buffer indices: the number of loaded bytes, of stored bytes,
    /// and of distinct loaded bytes. If several lanes of a SIMD group load a byte with the same
    /// instruction, the byte counts once among the loaded bytes.
    pub arrays: Vec<[u64; 3]>,
    /// The simulator's counts: loads and stores of each buffer, barriers, and exchanges between
    /// lanes.
    pub report: metal_sim::Report,
    /// The data that the kernel was dispatched with.
    pub encoded: Encoded,
}

impl Dispatched {
    /// The bytes of all loads.
    pub fn read(&self) -> u64 {
        self.arrays.iter().map(|array| array[0]).sum()
    }

    /// The bytes of all stores.
    pub fn written(&self) -> u64 {
        self.arrays.iter().map(|array| array[1]).sum()
    }
}

type Journal = Arc<Mutex<Vec<Dispatched>>>;

thread_local! {
    // The log of the dispatches of a thread. A stream's tasks run on another thread and append to
    // it.
    static JOURNAL: Journal = Journal::default();
}

/// Returns the dispatches of this thread's evaluations since the last call.
pub fn dispatched() -> Vec<Dispatched> {
    JOURNAL.with(|journal| {
        std::mem::take(&mut *journal.lock().unwrap_or_else(PoisonError::into_inner))
    })
}

/// A dispatch before it runs.
#[derive(Clone)]
pub(crate) struct SimulatedDispatch {
    pub(super) grid: [u32; 3],
    pub(super) group: [u32; 3],
    pub(super) grid_is_threads: bool,
    pub(super) buffers: Vec<Bound>,
    pub(super) threadgroup: Vec<(u32, usize)>,
    pub(super) journal: Journal,
    pub(super) chosen: Option<Schedule>,
    pub(super) planted: Option<Planted>,
}

pub(crate) fn simulated_dispatch(grid: [u32; 3], group: [u32; 3]) -> Box<SimulatedDispatch> {
    Box::new(SimulatedDispatch {
        grid,
        group,
        grid_is_threads: false,
        buffers: Vec::new(),
        threadgroup: Vec::new(),
        // While a thread ends, its journal may already be dropped. Then no code can read the
        // journal, and an empty one takes its place.
        journal: JOURNAL.try_with(Arc::clone).unwrap_or_default(),
        chosen: chosen_schedule(),
        planted: planted::next(),
    })
}

impl SimulatedDispatch {
    /// States that the grid is a number of threads instead of threadgroups.
    pub(crate) fn count_threads(&mut self) {
        self.grid_is_threads = true;
    }

    /// Binds memory to `[[buffer(index)]]`. If an address is bound both for reading and for
    /// writing, the kernel updates it in place.
    pub(crate) fn bind(
        &mut self,
        index: u32,
        at: usize,
        before: usize,
        bytes: usize,
        writable: bool,
    ) {
        self.buffers.push(Bound { index, at, before, bytes, writable, constant: false });
    }

    /// Binds parameters. The encoder has copied them, so they stay valid until the kernel runs.
    pub(crate) fn bind_constant(&mut self, index: u32, at: usize, bytes: usize) {
        self.buffers.push(Bound { index, at, before: 0, bytes, writable: false, constant: true });
    }

    /// Sets the size of `[[threadgroup(index)]]`.
    pub(crate) fn reserve(&mut self, index: u32, bytes: usize) {
        self.threadgroup.push((index, bytes));
    }

    fn bound(&mut self, index: u32) -> Option<&mut Bound> {
        self.buffers.iter_mut().find(|bound| bound.index == index)
    }
}

pub(super) fn failed(error: impl Display) -> Error {
    Error::mlx(&format!("[simulate] {error}"))
}

/// The encoded data of a dispatch.
#[derive(Clone, Debug, Default)]
pub struct Encoded {
    /// The number of threadgroups, or of threads, along each axis.
    pub grid: [u32; 3],
    /// The number of threads of a threadgroup along each axis.
    pub group: [u32; 3],
    /// The index and the number of bytes of each threadgroup memory.
    pub memory: Vec<(u32, usize)>,
    /// The index and the number of bytes of each array, and true if the kernel writes it.
    pub arrays: Vec<(u32, usize, bool)>,
    /// The index and the 32-bit words of each block of parameters.
    pub parameters: Vec<(u32, Vec<u32>)>,
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
                // SAFETY: the caller promises that the bound memory is valid.
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
/// The memory of `bound` must be valid to read.
unsafe fn words(bound: &Bound) -> Vec<u32> {
    let at = std::ptr::with_exposed_provenance::<u8>(bound.at);
    // SAFETY: the caller promises that the memory, which the encoder copied, is valid to read.
    let bytes = unsafe { std::slice::from_raw_parts(at, bound.bytes) };
    bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect()
}

/// Adds `by` to a word of parameters. The word counts as a float if its bits are a float of usual
/// size, and otherwise as an integer.
fn moved(word: u32, by: i32) -> u32 {
    let float = f32::from_bits(word);
    if float.is_normal() && (1e-9..1e9).contains(&float.abs()) {
        (float + by as f32).to_bits()
    } else {
        word.wrapping_add_signed(by)
    }
}

/// Returns a copy of the dispatch with the change. A changed copy of the parameters is stored in
/// `kept`.
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
            // SAFETY: the caller promises that the bound memory is valid.
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
    // The encoder refuses groups of more than 1024 threads and extents of 0 before the dispatch
    // runs, so the change counts as noticed.
    let threads: u64 = wrong.group.iter().map(|extent| u64::from(*extent)).product();
    if threads > 1024 || wrong.grid.iter().chain(&wrong.group).any(|extent| *extent == 0) {
        return Err(failed(format_args!("{:?} groups of {:?}", wrong.grid, wrong.group)));
    }
    Ok(wrong)
}

fn missing(change: Change) -> Error {
    failed(format_args!("a dispatch has nothing that {change:?} could change"))
}
