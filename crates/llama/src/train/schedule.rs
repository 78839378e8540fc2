/// A learning rate for each update of an optimizer, with the formulas of
/// `mlx.optimizers.schedulers`.
#[derive(Clone, Debug, PartialEq)]
pub enum Schedule {
    /// One rate for all updates.
    Constant(f64),
    /// The rate changes from `from` to `to` in equal steps, as in a warm-up, and then stays at
    /// `to`.
    Linear {
        /// The rate of the first update.
        from: f64,
        /// The rate after `steps` updates.
        to: f64,
        /// The number of updates in which the rate changes.
        steps: u64,
    },
    /// The rate follows half a cosine from `from` to `to`, and then stays at `to`.
    Cosine {
        /// The rate of the first update.
        from: f64,
        /// The rate after `steps` updates.
        to: f64,
        /// The number of updates in which the rate changes.
        steps: u64,
    },
    /// The first schedule sets the rates of the updates before the given number. The second
    /// schedule sets the rates from this update on, which is update 0 for the second schedule.
    Joined(Box<Schedule>, u64, Box<Schedule>),
}

impl Schedule {
    /// Puts a warm-up before this schedule. In the warm-up, the rate changes linearly from `from`,
    /// and reaches the first rate of this schedule after `steps` updates. As in mlx-lm, one update
    /// of the warm-up has that rate, and the first update of this schedule repeats it.
    ///
    /// ```
    /// use mlx_primitives_llama::train::Schedule;
    ///
    /// let cosine = Schedule::Cosine { from: 1.0, to: 0.0, steps: 10 }.after_warmup(0.0, 4);
    /// let rates: Vec<f64> = [0, 2, 4, 5, 10, 15].map(|update| cosine.rate(update)).into();
    /// assert_eq!(rates, [0.0, 0.5, 1.0, 1.0, 0.5, 0.0]);
    /// ```
    #[must_use]
    pub fn after_warmup(self, from: f64, steps: u64) -> Self {
        let warmup = Self::Linear { from, to: self.rate(0), steps };
        Self::Joined(Box::new(warmup), steps.saturating_add(1), Box::new(self))
    }

    /// The rate of the update with the number `update`. Updates are counted from 0.
    pub fn rate(&self, update: u64) -> f64 {
        let part = |steps: u64| update.min(steps) as f64 / steps.max(1) as f64;
        match self {
            Self::Constant(rate) => *rate,
            Self::Linear { from, to, steps } => from + part(*steps) * (to - from),
            Self::Cosine { from, to, steps } => {
                let decay = 0.5 * (1.0 + (std::f64::consts::PI * part(*steps)).cos());
                to + decay * (from - to)
            }
            Self::Joined(first, boundary, second) => match update.checked_sub(*boundary) {
                None => first.rate(update),
                Some(update) => second.rate(update),
            },
        }
    }
}
