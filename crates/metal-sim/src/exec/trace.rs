//! The course of a dispatch in one number, to tell whether another one took it too.

/// The accesses of threads and the places where they waited, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trace {
    steps: u64,
    digest: u64,
    /// The most steps that there may be.
    most: u64,
}

impl Trace {
    /// A course that may be as long as `other`, or of any length.
    pub(super) fn as_long_as(other: Option<&Trace>) -> Self {
        Trace { steps: 0, digest: 0, most: other.map_or(u64::MAX, |other| other.steps) }
    }

    /// Adds a step of a thread: its return address, and the place in memory that it is for.
    /// Returns whether there may be no further one.
    pub(super) fn step(&mut self, thread: usize, site: usize, at: usize) -> bool {
        self.steps += 1;
        let step = (thread as u64) << 48 ^ (site as u64).rotate_left(24) ^ at as u64;
        self.digest = (self.digest.rotate_left(23) ^ step).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.steps > self.most
    }

    pub(super) fn is_same(&self, other: &Trace) -> bool {
        (self.steps, self.digest) == (other.steps, other.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn courses_differ_by_thread_place_and_order() {
        let course = |steps: &[(usize, usize, usize)]| {
            let mut trace = Trace::as_long_as(None);
            for &(thread, site, at) in steps {
                assert!(!trace.step(thread, site, at));
            }
            trace
        };
        let (one, other) = ((1, 0x7f00_1000, 64), (2, 0x7f00_1000, 68));
        let first = course(&[one, other]);
        assert!(first.is_same(&course(&[one, other])));
        let others = [vec![one], vec![other, one], vec![one, other, other]];
        for steps in others.into_iter().chain([vec![one, (3, other.1, other.2)]]) {
            assert!(!first.is_same(&course(&steps)), "{steps:?}");
        }
        for changed in [(2, other.1 + 4, other.2), (2, other.1, other.2 + 4)] {
            assert!(!first.is_same(&course(&[one, changed])), "{changed:?}");
        }
    }

    #[test]
    fn a_longer_course_is_noticed_while_it_runs() {
        let mut short = Trace::as_long_as(None);
        assert!(!short.step(0, 1, 2));
        let mut long = Trace::as_long_as(Some(&short));
        assert!(!long.step(0, 1, 2));
        assert!(long.step(0, 1, 2));
    }
}
