//! Hashes the steps of a dispatch, to find out whether another dispatch takes the same steps.

/// A hash of the memory accesses of all threads and of the places where they waited, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trace {
    steps: u64,
    /// The hash; `None` if the trace only counts the steps.
    digest: Option<u64>,
    /// The maximum number of steps.
    most: u64,
}

impl Trace {
    /// Creates a trace that only counts its steps.
    pub(super) fn counted() -> Self {
        Trace { steps: 0, digest: None, most: u64::MAX }
    }

    /// Creates a trace with a hash, for at most as many steps as this trace has.
    pub(super) fn beside(&self) -> Self {
        Trace { steps: 0, digest: Some(0), most: self.steps }
    }

    /// Adds a step of a thread: its return address `site` and the memory address `at`. Returns
    /// whether the trace exceeds its maximum number of steps.
    pub(super) fn step(&mut self, thread: usize, site: usize, at: usize) -> bool {
        self.steps += 1;
        if let Some(digest) = &mut self.digest {
            let step = (thread as u64) << 48 ^ (site as u64).rotate_left(24) ^ at as u64;
            *digest = (digest.rotate_left(23) ^ step).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        self.steps > self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn courses_differ_by_thread_place_and_order() {
        let course = |steps: &[(usize, usize, usize)]| {
            let mut trace = Trace::counted().beside();
            steps.iter().for_each(|&(thread, site, at)| _ = trace.step(thread, site, at));
            trace
        };
        let (one, other) = ((1, 0x7f00_1000, 64), (2, 0x7f00_1000, 68));
        let first = course(&[one, other]);
        assert_eq!(first, course(&[one, other]));
        let changed = [(3, other.1, other.2), (2, other.1 + 4, other.2), (2, other.1, other.2 + 4)];
        let others = [vec![one], vec![other, one], vec![one, other, other]];
        for steps in others.into_iter().chain(changed.map(|changed| vec![one, changed])) {
            assert_ne!(first, course(&steps), "{steps:?}");
        }
    }

    #[test]
    fn a_longer_course_is_noticed_while_it_runs() {
        let mut short = Trace::counted();
        assert!(!short.step(0, 1, 2));
        let mut long = short.beside();
        assert!(!long.step(0, 1, 2));
        assert!(long.step(0, 1, 2));
    }
}
