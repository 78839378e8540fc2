//! What the latency comparison holds the kernels' bandwidth against.

use crate::cpu;
use crate::error::{Error, Result};

/// Copies `from` to `to` on the threads of the CPU kernels, split as they split a job: the most
/// that a kernel which reads its input once and writes its output once could reach.
///
/// The copy is always done, even if `to` is never read. An error unless both are equally long.
///
/// ```
/// let mut to = [0; 3];
/// mlx_primitives::yardstick::copy(&[1, 2, 3], &mut to)?;
/// assert_eq!(to, [1, 2, 3]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn copy(from: &[u8], to: &mut [u8]) -> Result<()> {
    if from.len() != to.len() {
        let expected = format_args!("{} bytes to write, got {}", from.len(), to.len());
        return Err(Error::argument("copy", expected));
    }
    // SAFETY: both slices have this length, and a unique borrow overlaps no other.
    unsafe { cpu::parallel_copy(from.as_ptr(), to.as_mut_ptr(), from.len()) };
    std::hint::black_box(to);
    Ok(())
}
