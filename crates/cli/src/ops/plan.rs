//! Divides the time of `--quick` among the cases.

use std::time::{Duration, Instant};

use mlx_primitives::Dtype;

use super::cases::{Case, Size};
use super::timing::Effort;

/// The time that `--quick` may take. The last case may exceed it by a few seconds.
const TIME: Duration = Duration::from_secs(80);

pub struct Plan {
    start: Instant,
    /// The time for all cases, or `None` without a limit.
    time: Option<Duration>,
    effort: Effort,
    /// `begun` is the total weight of the cases that have begun, and `all` the total weight of all
    /// cases.
    begun: f64,
    all: f64,
    /// The element type of the first case.
    first: Option<Dtype>,
    /// The number of cases that were left out because there was no time.
    pub left_out: usize,
}

/// The limits of a case.
pub struct Limits {
    pub effort: Effort,
    /// The longest time in seconds that a built-in may take. The smaller cases of its op give an
    /// estimate of its time.
    pub builtin: f64,
}

impl Plan {
    pub fn new(quick: bool, effort: Effort, cases: &[Case]) -> Self {
        let all = cases.iter().map(weight).sum();
        let time = quick.then_some(TIME);
        let first = cases.first().map(|case| case.dtype);
        Self { start: Instant::now(), time, effort, begun: 0.0, all, first, left_out: 0 }
    }

    /// Returns the limits of the next case, or `None` if there is no time for it.
    pub fn next(&mut self, case: &Case) -> Option<Limits> {
        let limits = self.limits(case, self.start.elapsed());
        self.begun += weight(case);
        self.left_out += usize::from(limits.is_none());
        limits
    }

    /// Returns `None` if all time has passed. If the earlier cases took longer than planned, also
    /// returns `None` for large cases and for all types except the first, and gives other cases
    /// less time. So every op gets some time.
    fn limits(&self, case: &Case, spent: Duration) -> Option<Limits> {
        let effort = self.effort;
        let Some(time) = self.time else {
            return Some(Limits { effort, builtin: f64::INFINITY });
        };
        let (time, spent) = (time.as_secs_f64(), spent.as_secs_f64());
        let late = spent > time * self.begun / self.all + time / 16.0;
        let spared = case.workload.size == Size::Large || Some(case.dtype) != self.first;
        if spent > time || late && spared {
            return None;
        }
        // Take only a part of the remaining time, because making the inputs and the uncounted first
        // runs also take time.
        let share = (time - spent) / (self.all - self.begun);
        let budget = effort.budget.min(Duration::from_secs_f64(0.4 * share));
        Some(Limits { effort: Effort { budget, ..effort }, builtin: (10.0 * share).min(2.0) })
    }
}

/// Estimates the time of a case relative to other cases. Making large inputs takes long.
fn weight(case: &Case) -> f64 {
    if case.workload.size == Size::Large { 6.0 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::super::{cases, workloads};
    use super::*;

    #[test]
    fn late_cases_get_less_and_large_ones_nothing() {
        let workloads = workloads::all();
        let cases = cases::select(&workloads, &[], &[], true, false);
        let of = |large: bool| {
            let mut cases = cases.iter();
            cases.find(|case| (case.workload.size == Size::Large) == large).unwrap()
        };
        let (small, large) = (of(false), of(true));
        let plan = Plan::new(true, Effort::QUICK, &cases);
        let at = |case, part: f64| plan.limits(case, TIME.mul_f64(part));
        let early = at(small, 0.0).unwrap();
        let late = at(small, 0.9).unwrap();
        assert!(early.effort.budget > 5 * late.effort.budget && early.builtin > late.builtin);
        assert!(early.effort.budget <= Effort::QUICK.budget && early.builtin <= 2.0);
        assert!(at(large, 0.05).is_some() && at(large, 0.1).is_none());
        let other = Case { dtype: Dtype::Bfloat16, ..*small };
        assert!(at(&other, 0.05).is_some() && at(&other, 0.1).is_none());
        assert!(at(small, 1.01).is_none());
        let mut plan = Plan::new(true, Effort::QUICK, &cases);
        plan.time = Some(Duration::ZERO);
        assert!(cases.iter().all(|case| plan.next(case).is_none()));
        assert_eq!(plan.left_out, cases.len());
        // Without --quick, the time is not limited.
        let plan = Plan::new(false, Effort::FULL, &cases);
        let limits = plan.limits(large, 100 * TIME).unwrap();
        assert_eq!((limits.effort.budget, limits.builtin), (Effort::FULL.budget, f64::INFINITY));
    }
}
