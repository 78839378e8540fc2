//! Measures the roofline next to each op: the shortest time in which this machine can move the op's
//! bytes and do its multiplications.

use std::hint::black_box;

use mlx_primitives::{Dtype, memory};
use mlx_primitives_kernels::roofline;

use super::timing::Competitor;

/// Returns a buffer of this many bytes. All of it has been written to. It uses 2 MB pages if the
/// system grants them.
fn buffer(bytes: usize) -> Vec<u8> {
    let mut buffer: Vec<u8> = Vec::with_capacity(bytes);
    memory::advise_large_pages(buffer.as_ptr().expose_provenance(), bytes);
    buffer.resize(bytes, 1);
    buffer
}

/// Returns a competitor that moves this many bytes between fixed buffers. It copies `min(read,
/// written)` bytes. If one of the two numbers is larger, it only reads or only writes the rest.
pub fn bandwidth(read: usize, written: usize) -> Competitor<'static> {
    // Time several calls together, because moving a small buffer takes less time than the clock's
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

/// Returns a competitor that multiplies in registers at the type's best speed for about a
/// millisecond, and the number of its operations.
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
