//! Interleaved timing: contestants take turns, so that a machine that slows down slows all.

use std::time::{Duration, Instant};

use anyhow::Result;

/// Times are of one call, in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    pub median: f64,
    pub lower_quartile: f64,
    pub upper_quartile: f64,
    pub samples: usize,
}

impl Timing {
    fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |fraction: f64| {
            let place = fraction * (samples.len() - 1) as f64;
            let (low, high) = (samples[place.floor() as usize], samples[place.ceil() as usize]);
            low + (high - low) * place.fract()
        };
        Self {
            median: at(0.5),
            lower_quartile: at(0.25),
            upper_quartile: at(0.75),
            samples: samples.len(),
        }
    }

    /// Half the interquartile range.
    pub fn spread(&self) -> f64 {
        (self.upper_quartile - self.lower_quartile) / 2.0
    }
}

/// Something to time. A run is `calls` calls.
pub struct Contestant<'a> {
    pub calls: usize,
    pub run: Box<dyn FnMut() -> Result<()> + 'a>,
}

impl Contestant<'_> {
    pub fn time(&mut self) -> Result<f64> {
        let start = Instant::now();
        (self.run)()?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// How long to go on.
pub struct Effort {
    pub budget: Duration,
    pub least_rounds: usize,
}

const MOST_ROUNDS: usize = 200;
/// Seconds of a contestant's run beyond which one round is enough.
const PATIENCE: f64 = 2.0;
/// A turn is filled with samples up to this time, in seconds, or this part of the slowest
/// contestant's run, and this many.
const TURN: f64 = 1e-3;
const TURN_PART: f64 = 0.25;
const TURN_SAMPLES: f64 = 16.0;

/// A timing for each contestant.
pub fn interleave(contestants: &mut [Contestant], effort: &Effort) -> Result<Vec<Timing>> {
    let mut estimates = Vec::new();
    for contestant in &mut *contestants {
        // The first run warms up; where a second is cheap it tells the time better.
        let mut estimate = contestant.time()?;
        if estimate < 0.05 {
            estimate = contestant.time()?;
        }
        estimates.push(estimate.max(1e-8));
    }
    let slowest = estimates.iter().copied().fold(0.0, f64::max);
    let turns: Vec<_> = estimates.into_iter().map(|e| Turn::new(e, slowest)).collect();
    let round: f64 = turns.iter().map(|turn| turn.cost).sum();
    let rounds = (effort.budget.as_secs_f64() / round) as usize;
    let least_rounds = if slowest > PATIENCE { 1 } else { effort.least_rounds };
    let mut samples = vec![Vec::new(); contestants.len()];
    for round in 0..rounds.clamp(least_rounds, MOST_ROUNDS) {
        for position in 0..contestants.len() {
            // Back and forth: nobody always follows the same one.
            let forth = round % 2 == 0;
            let index = if forth { position } else { contestants.len() - 1 - position };
            let (contestant, turn) = (&mut contestants[index], &turns[index]);
            if turn.warms_up {
                contestant.time()?;
            }
            for _ in 0..turn.samples {
                samples[index].push(contestant.time()? / contestant.calls as f64);
            }
        }
    }
    Ok(samples.into_iter().map(Timing::of).collect())
}

/// What a contestant does each round.
struct Turn {
    /// A short run starts with one that is not counted: it finds the other's data in the caches
    /// and the threads asleep.
    warms_up: bool,
    samples: usize,
    cost: f64,
}

impl Turn {
    fn new(estimate: f64, slowest: f64) -> Self {
        let warms_up = estimate < 2.0 * TURN;
        let length = TURN.max(TURN_PART * slowest);
        let samples = (length / estimate).clamp(1.0, TURN_SAMPLES).floor();
        Self {
            warms_up,
            samples: samples as usize,
            cost: estimate * (samples + f64::from(u8::from(warms_up))),
        }
    }
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
    fn contestants_take_turns() {
        let order = std::cell::RefCell::new(Vec::new());
        let contestant = |name| {
            let order = &order;
            let run = move || {
                std::thread::sleep(Duration::from_millis(60));
                order.borrow_mut().push(name);
                Ok(())
            };
            Contestant { calls: 1, run: Box::new(run) }
        };
        let effort = Effort { budget: Duration::ZERO, least_rounds: 2 };
        let timings = interleave(&mut [contestant('a'), contestant('b')], &effort).unwrap();
        assert!(timings.iter().all(|timing| timing.samples == 2 && timing.median >= 0.06));
        assert_eq!(order.into_inner(), ['a', 'b', 'a', 'b', 'b', 'a']);
    }
}
