//! The trace of a dispatch as one number, to tell whether another dispatch takes the same steps.

/// The accesses of all threads and the places where they waited, in order, as a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trace {
    steps: u64,
    /// The hash, in a trace that is compared with another.
    digest: Option<u64>,
    /// The most steps that are allowed.
    most: u64,
}

impl Trace {
    /// A trace that only counts its steps.
    pub(super) fn counted() -> Self {
        Trace { steps: 0, digest: None, most: u64::MAX }
    }

    /// A trace with a hash, which may be as long as this one.
    pub(super) fn beside(&self) -> Self {
        Trace { steps: 0, digest: Some(0), most: self.steps }
    }

    /// Adds a step of a thread: its return address and its address in memory. Returns whether there
    /// are too many steps.
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
