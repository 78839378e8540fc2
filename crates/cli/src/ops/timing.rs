//! Times competitors in turns, so that a slowdown of the machine affects all of them.

use std::time::{Duration, Instant};

use anyhow::Result;

/// Times of one call, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    pub lower_quartile: f64,
    pub median: f64,
    pub upper_quartile: f64,
    pub samples: usize,
}

impl Timing {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let [lower_quartile, median, upper_quartile] = [0.25, 0.5, 0.75].map(|fraction| {
            let place = fraction * (times.len() - 1) as f64;
            let (low, high) = (times[place.floor() as usize], times[place.ceil() as usize]);
            low + (high - low) * place.fract()
        });
        Self { lower_quartile, median, upper_quartile, samples: times.len() }
    }

    /// Half the interquartile range.
    pub fn spread(&self) -> f64 {
        (self.upper_quartile - self.lower_quartile) / 2.0
    }
}

/// A function to time. Each run makes `calls` calls of an op.
pub struct Competitor<'a> {
    pub calls: usize,
    pub run: Box<dyn FnMut() -> Result<()> + 'a>,
}

impl<'a> Competitor<'a> {
    pub fn new(calls: usize, run: impl FnMut() -> Result<()> + 'a) -> Self {
        Self { calls, run: Box::new(run) }
    }

    pub fn time(&mut self) -> Result<f64> {
        let start = Instant::now();
        (self.run)()?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// The effort that a measurement may take.
#[derive(Clone, Copy)]
pub struct Effort {
    pub budget: Duration,
    pub least_rounds: usize,
    /// The longest run, in seconds, of a competitor that takes turns. A slower competitor is
    /// measured only once: by its first run, or by its second run if the first took less than four
    /// times this time.
    pub patience: f64,
}

impl Effort {
    pub const FULL: Self = Self::new(400, 3, 2.0);
    pub const LARGE: Self = Self::new(250, 3, 2.0);
    pub const QUICK: Self = Self::new(60, 1, 0.1);

    const fn new(budget_millis: u64, least_rounds: usize, patience: f64) -> Self {
        Self { budget: Duration::from_millis(budget_millis), least_rounds, patience }
    }
}

const MOST_ROUNDS: usize = 200;
/// In each turn, a competitor runs for this number of seconds, or for this fraction of the slowest
/// competitor's run if that is longer. A turn takes at most [`TURN_SAMPLES`] samples.
const TURN: f64 = 1e-3;
const TURN_PART: f64 = 0.25;
const TURN_SAMPLES: f64 = 16.0;

/// Returns a timing for each competitor, or `None` if `stopped` returned true.
pub fn interleave(
    competitors: &mut [Competitor],
    effort: &Effort,
    stopped: &dyn Fn() -> bool,
) -> Result<Option<Vec<Timing>>> {
    // If a run is short, a turn begins with an uncounted run, because the caches hold the other
    // competitor's data and the threads sleep.
    let warms_up = |estimate: f64| estimate < 2.0 * TURN;
    let mut times = vec![Vec::new(); competitors.len()];
    let mut estimates = Vec::new();
    for (competitor, times) in competitors.iter_mut().zip(&mut times) {
        // The first run warms up. If it is short, a second run gives a better estimate. The second
        // run counts, unless it is so short that the end of the first run affects it. A first run
        // that exceeds the patience may have waited for the system to clear memory, so it is
        // repeated too.
        let first = competitor.time()?;
        let patience = effort.patience;
        let again = first < 0.05 || (patience..4.0 * patience).contains(&first);
        let estimate = if again { competitor.time()? } else { first };
        if again && !warms_up(estimate) || estimate > effort.patience {
            times.push(estimate / competitor.calls as f64);
        }
        if stopped() {
            return Ok(None);
        }
        estimates.push(estimate.max(1e-8));
    }
    let mut order: Vec<_> =
        (0..competitors.len()).filter(|&it| estimates[it] <= effort.patience).collect();
    let slowest = order.iter().map(|&it| estimates[it]).fold(0.0, f64::max);
    let samples =
        |estimate: f64| (TURN.max(TURN_PART * slowest) / estimate).clamp(1.0, TURN_SAMPLES).floor();
    let cost = |it: f64| it * (samples(it) + f64::from(u8::from(warms_up(it))));
    let round: f64 = order.iter().map(|&it| cost(estimates[it])).sum();
    let rounds = (effort.budget.as_secs_f64() / round) as usize;
    for _ in 0..rounds.clamp(effort.least_rounds, MOST_ROUNDS) {
        for &index in &order {
            let (competitor, estimate) = (&mut competitors[index], estimates[index]);
            if warms_up(estimate) {
                competitor.time()?;
            }
            for _ in 0..samples(estimate) as usize {
                times[index].push(competitor.time()? / competitor.calls as f64);
            }
        }
        if stopped() {
            return Ok(None);
        }
        order.reverse(); // so that no competitor always follows the same competitor
    }
    Ok(Some(times.into_iter().map(Timing::of).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_of_few_samples() {
        let timing = Timing::of(vec![4.0, 1.0, 3.0, 2.0, 5.0]);
        assert_eq!((timing.median, timing.lower_quartile, timing.spread()), (3.0, 2.0, 1.0));
        assert_eq!(Timing::of(vec![1.0, 2.0]).median, 1.5);
        assert_eq!(Timing::of(vec![7.0]).upper_quartile, 7.0);
    }

    #[test]
    fn competitors_take_turns() {
        let order = std::cell::RefCell::new(Vec::new());
        let competitor = |name| {
            let order = &order;
            Competitor::new(1, move || {
                std::thread::sleep(Duration::from_millis(60));
                order.borrow_mut().push(name);
                Ok(())
            })
        };
        let effort = |patience| Effort { budget: Duration::ZERO, least_rounds: 2, patience };
        let run = |patience, stopped: &dyn Fn() -> bool| {
            let mut both = [competitor('a'), competitor('b')];
            let timings = interleave(&mut both, &effort(patience), stopped).unwrap();
            (timings, order.take())
        };
        let (timings, order) = run(100.0, &|| false);
        let timings = timings.unwrap();
        assert!(timings.iter().all(|timing| timing.samples == 2 && timing.median >= 0.06));
        assert_eq!(order, ['a', 'b', 'a', 'b', 'b', 'a']);
        // If the first run takes at least four times the patience, there is no other run.
        let (timings, order) = run(0.01, &|| false);
        assert!(timings.unwrap().iter().all(|it| it.samples == 1 && it.median >= 0.06));
        assert_eq!(order, ['a', 'b']);
        let (timings, order) = run(100.0, &|| true);
        assert!(timings.is_none() && order == ['a']);
    }
}
