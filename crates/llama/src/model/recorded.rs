//! The decoder layers of a decoded token as one node.

use std::cell::RefCell;

use cxx::SharedPtr;

use mlx_primitives::device::{self, Device};
use mlx_primitives::support as ffi;
use mlx_primitives::support::{from_list, to_list};
use mlx_primitives::{Array, Dtype, Result, simulator, tune};

use crate::cache::Cache;

/// The most shapes of steps whose graphs are kept.
const MOST: usize = 4;

/// The graphs of the decoder layers for one position of each text, of several shapes. Such a graph is
/// built once, and afterwards it runs as one node for the next positions: building and scheduling
/// its nodes takes longer than the kernels of a small model.
///
/// Only graphs that consist of this crate's primitives on a CPU are recorded. All others are
/// built anew for each token.
#[derive(Default)]
pub(crate) struct Recorded(RefCell<Vec<Entry>>);

struct Entry {
    shape: Shape,
    /// The number of positions in the cache before the recorded step.
    len: i32,
    /// Null for a graph that cannot be recorded.
    recording: SharedPtr<ffi::Recording>,
}

/// The shapes and type of a step's hidden states and of a layer's buffer.
#[derive(PartialEq)]
struct Shape {
    hidden: Vec<i32>,
    buffer: Vec<i32>,
    dtype: Dtype,
}

impl Recorded {
    /// Runs the layers on `h`, `[batch, 1, hidden]`: by a recorded graph, or by `build`, whose graph is
    /// recorded if it can be. No graph is recorded before the weights are computed.
    pub fn step(
        &self,
        h: Array,
        cache: &mut Cache,
        build: impl FnOnce(&Array, &mut Cache) -> Result<Array>,
    ) -> Result<Array> {
        let Some(buffers) = cache.buffers().filter(|buffers| !buffers.is_empty()) else {
            return build(&h, cache);
        };
        let allowed = device::current()? == Device::Cpu
            && !simulator::is_on()
            && !ffi::is_tracer(h.raw())
            && tune::only_ours()?;
        if !allowed {
            return build(&h, cache);
        }
        let shape = Shape {
            hidden: h.shape().to_vec(),
            buffer: buffers[0].shape().to_vec(),
            dtype: h.dtype(),
        };
        let len = cache.len();
        let parameters = to_list(buffers.into_iter().chain([&h]));
        let known = self.0.borrow().iter().find(|entry| entry.shape == shape).map(|entry| {
            let recording = entry.recording.as_ref();
            recording.map(|recording| ffi::replay(recording, &parameters, len - entry.len))
        });
        match known {
            Some(Some(results)) => {
                let mut results = from_list(&*results?);
                if let Some(last) = results.pop() {
                    cache.step_to(results);
                    return Ok(last);
                }
                build(&h, cache) // on another stream
            }
            Some(None) => build(&h, cache),
            None => {
                let last = build(&h, cache)?;
                let after: Vec<&Array> = cache.arrays().chain([&last]).collect();
                let mut pending = false;
                let recording = ffi::record(&parameters, &to_list(after), &mut pending)?;
                if pending {
                    return Ok(last);
                }
                let mut entries = self.0.borrow_mut();
                if entries.len() >= MOST {
                    entries.remove(0);
                }
                entries.push(Entry { shape, len, recording });
                Ok(last)
            }
        }
    }
}
