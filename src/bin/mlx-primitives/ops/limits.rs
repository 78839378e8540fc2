//! What no implementation can go below on this machine, measured beside the op: the time to move its bytes
//! and the time to do its multiplications.

use std::hint::black_box;

use mlx_primitives::yardstick::{self, Product};

use super::timing::Contestant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Memory,
    Compute,
}

impl Limit {
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Compute => "compute",
        }
    }
}

/// Seconds of a call.
#[derive(Clone, Copy)]
pub struct Limits {
    pub memory: f64,
    /// 0 for an op that is no product of matrices.
    pub compute: f64,
}

impl Limits {
    /// The one that binds.
    pub fn nearest(&self) -> (Limit, f64) {
        if self.compute > self.memory {
            (Limit::Compute, self.compute)
        } else {
            (Limit::Memory, self.memory)
        }
    }
}

/// Reads and writes as many bytes between buffers that stay: copies what is both read and written, and
/// reads or fills the rest.
pub fn memory(read: usize, written: usize) -> Contestant<'static> {
    // Small buffers take less than the clock's resolution on some machines.
    let calls = (1 << 22 >> read.max(written).max(1).ilog2()).clamp(1, 256);
    let (from, mut to) = (yardstick::buffer(read), yardstick::buffer(written));
    let both = read.min(written);
    let run = move || {
        for _ in 0..calls {
            let (copied, filled) = to.split_at_mut(both);
            yardstick::copy(&from[..both], copied)?;
            yardstick::read(&from[both..]);
            yardstick::fill(filled);
        }
        Ok(())
    };
    Contestant { calls, run: Box::new(run) }
}

/// Multiplies in registers for about a millisecond; also how many operations that is.
pub fn compute(product: Product) -> (Contestant<'static>, f64) {
    const ROUNDS: usize = 100;
    let flops = yardstick::multiply(product, ROUNDS);
    let run = move || {
        black_box(yardstick::multiply(product, ROUNDS));
        Ok(())
    };
    (Contestant { calls: 1, run: Box::new(run) }, flops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_limit_binds() {
        let limits = |memory, compute| Limits { memory, compute }.nearest();
        assert_eq!(limits(1.0, 0.0), (Limit::Memory, 1.0));
        assert_eq!(limits(1.0, 2.0), (Limit::Compute, 2.0));
    }
}
