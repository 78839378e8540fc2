use cxx::UniquePtr;

use super::Array;
use crate::error::Result;
use crate::ffi::bridge as ffi;

/// An evaluated array on its way to another thread.
///
/// An [`Array`] stays on its thread, since the op that computes it belongs to a stream of that
/// thread. Computed elements do not belong to a stream, so an evaluated array can move:
///
/// ```
/// use std::thread;
///
/// use mlx_primitives::Array;
///
/// let sent = Array::ones::<f32>(&[3])?.add(1.0)?.into_send()?;
/// let sum = thread::spawn(move || sent.into_array().sum(..)?.item::<f32>());
/// assert_eq!(sum.join().unwrap()?, 6.0);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
///
/// Code that serves requests from many threads keeps its model on one thread, which loads the model
/// and runs it, and sends requests to that thread:
///
/// ```
/// use std::sync::mpsc;
/// use std::thread;
///
/// use mlx_primitives::{Array, Result, SendArray};
///
/// type Request = (SendArray, mpsc::Sender<Result<SendArray>>);
/// let (requests, inbox) = mpsc::channel::<Request>();
/// let engine = thread::spawn(move || {
///     let weights = Array::ones::<f32>(&[2, 2])?;
///     for (x, reply) in inbox {
///         let y = x.into_array().matmul(&weights).and_then(Array::into_send);
///         let _ = reply.send(y);
///     }
///     Ok::<_, mlx_primitives::Error>(())
/// });
///
/// let (reply, answer) = mpsc::channel();
/// requests.send((Array::ones::<f32>(&[1, 2])?.into_send()?, reply)).unwrap();
/// assert_eq!(answer.recv().unwrap()?.into_array().to_vec::<f32>()?, [2.0, 2.0]);
/// drop(requests);
/// engine.join().unwrap()?;
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
#[must_use = "an array that is not sent was evaluated for nothing"]
pub struct SendArray {
    /// An evaluated array without a graph. No other handle refers to it, and no other array uses
    /// its memory.
    handle: UniquePtr<ffi::MlxArray>,
}

// SAFETY: `bridge::detached` promises that nothing on the thread that made the array can reach it
// or its memory, and MLX's allocator takes memory back from any thread.
unsafe impl Send for SendArray {}

impl SendArray {
    /// Returns the array as an [`Array`] of this thread.
    pub fn into_array(self) -> Array {
        Array::new(self.handle)
    }
}

impl From<SendArray> for Array {
    fn from(sent: SendArray) -> Self {
        sent.into_array()
    }
}

impl Array {
    /// Evaluates the array and makes it ready for another thread; [`SendArray`] has examples.
    ///
    /// The elements stay where they are if this is the only array that uses their memory and they
    /// lie in row-major order; otherwise they are copied.
    ///
    /// # Errors
    ///
    /// Returns an error if the evaluation fails, or if there is no memory for a copy.
    pub fn into_send(self) -> Result<SendArray> {
        Ok(SendArray { handle: ffi::detached(self.handle)? })
    }
}
