//! The roofline: the least time that this machine needs to move an op's bytes and to do its
//! multiplications. It is measured next to the op.

use std::hint::black_box;

use mlx_primitives::{Dtype, memory};
use mlx_primitives_kernels::roofline;

use super::timing::Competitor;

/// A buffer of this many bytes that has been written to, in 2 MB pages as far as the system grants
/// them.
fn buffer(bytes: usize) -> Vec<u8> {
    let mut buffer: Vec<u8> = Vec::with_capacity(bytes);
    memory::advise_large_pages(buffer.as_ptr().expose_provenance(), bytes);
    buffer.resize(bytes, 1);
    buffer
}

/// Moves this many bytes between fixed buffers: copies the bytes that are both read and written,
/// and reads or fills the rest.
pub fn bandwidth(read: usize, written: usize) -> Competitor<'static> {
    // Several calls are timed together, because a small buffer takes less time than the clock's
    // resolution on some machines.
    let calls = (1 << 22 >> read.max(written).max(1).ilog2()).clamp(1, 256);
    let (from, mut to) = (buffer(read), buffer(written));
    let both = read.min(written);
    Competitor::new(calls, move || {
        for _ in 0..calls {
            let (copied, filled) = to.split_at_mut(both);
            roofline::copy(&from[..both], copied);
            roofline::read(&from[both..]);
            roofline::fill(filled);
        }
        Ok(())
    })
}

/// Multiplies in registers for about a millisecond, at the type's best speed; also returns the
/// number of operations.
pub fn arithmetic(dtype: Dtype) -> (Competitor<'static>, f64) {
    let multiply = move || roofline::multiply(dtype == Dtype::Bfloat16, 100);
    let run = move || {
        black_box(multiply());
        Ok(())
    };
    (Competitor::new(1, run), multiply())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_moved_and_numbers_are_multiplied() {
        for bytes in [5, 33 << 20] {
            let mut to = buffer(bytes);
            roofline::copy(&vec![7; bytes], &mut to);
            assert!(to.iter().all(|&byte| byte == 7));
            roofline::fill(&mut to);
            assert_eq!(to, buffer(bytes));
            roofline::read(&to);
        }
        for (read, written) in [(0, 9), (9, 0), (5000, 9)] {
            (bandwidth(read, written).run)().unwrap();
        }
        assert!([Dtype::Float32, Dtype::Bfloat16].into_iter().all(|it| arithmetic(it).1 > 1e6));
    }
}
