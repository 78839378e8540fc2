//! The results of checking an op.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use super::{Backend, Check};
use mlx_primitives::Dtype;
use mlx_primitives::{Error, Result};

/// The result of one comparison.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The property that was checked.
    pub check: Check,
    /// The backend that ran the op.
    pub backend: Backend,
    /// The type of the inputs.
    pub dtype: Dtype,
    /// Describes the inputs, such as their shapes and layout.
    pub case: String,
    /// The reason for a failure, or `None` if the comparison passed.
    pub failure: Option<String>,
    /// The difference of the values of the [`peer`](crate::Conformance::peer) from the reference or
    /// from the op's values, or the peer's error. It is set if the comparison passed only because
    /// the op's values agree with the reference.
    pub peer_fault: Option<String>,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = self.failure.as_deref().unwrap_or("as it should be");
        write!(f, "{} on {}, {}, {}: {said}", self.check, self.backend, self.dtype, self.case)
    }
}

/// All comparisons of a run. `Display` prints a table, with the failures below it.
#[derive(Clone, Debug)]
pub struct Report {
    name: String,
    outcomes: Vec<Outcome>,
    not_run: Vec<String>,
}

impl Report {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), outcomes: Vec::new(), not_run: Vec::new() }
    }

    pub(super) fn leave_out(&mut self, what: impl fmt::Display) {
        self.not_run.push(what.to_string());
    }

    pub(super) fn add(&mut self, outcome: Outcome) {
        self.outcomes.push(outcome);
    }

    /// The name of the op.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The results of all comparisons, in the order in which they ran.
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// The results of the comparisons that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().filter(|outcome| outcome.failure.is_some())
    }

    /// Returns the first failure for each reason, and the number of later failures for the same
    /// reason. For example, a kernel that does not compile fails every comparison for one reason.
    fn distinct(&self) -> Vec<(&Outcome, usize)> {
        let mut distinct: Vec<(&Outcome, usize)> = Vec::new();
        let mut places = HashMap::new();
        for failure in self.failures() {
            let reason = failure.failure.as_deref().unwrap_or_default();
            match places.get(reason) {
                Some(&place) => {
                    let (_, more): &mut (_, usize) = &mut distinct[place];
                    *more += 1;
                }
                None => {
                    places.insert(reason, distinct.len());
                    distinct.push((failure, 0));
                }
            }
        }
        distinct
    }

    /// Returns a line for each distinct failure.
    fn said(&self) -> Vec<String> {
        let line = |(failure, more): (&Outcome, usize)| match more {
            0 => failure.to_string(),
            more => format!("{failure} (and the same in {more} more comparisons)"),
        };
        self.distinct().into_iter().map(line).collect()
    }

    /// The comparisons in which the op's values agree with the reference, but the peer's values
    /// differ or the peer fails.
    pub fn peer_faults(&self) -> impl Iterator<Item = &Outcome> {
        let passed = self.outcomes.iter().filter(|outcome| outcome.failure.is_none());
        passed.filter(|outcome| outcome.peer_fault.is_some())
    }

    /// The checks that were left out, with the reasons.
    pub fn not_run(&self) -> &[String] {
        &self.not_run
    }

    /// Whether any comparison ran Metal kernels.
    pub fn ran_metal(&self) -> bool {
        self.outcomes.iter().any(|outcome| outcome.backend.is_metal())
    }

    /// Checks that at least one comparison ran and that all passed.
    ///
    /// # Errors
    ///
    /// Returns an error if a comparison failed or none ran. The error lists the failures.
    pub fn check(&self) -> Result<()> {
        let failures: Vec<String> =
            self.said().iter().map(|failure| format!("\n  {failure}")).collect();
        if self.outcomes.is_empty() {
            let said = format!("a comparison, got none: {}", self.not_run.join("; "));
            return Err(Error::report(&self.name, said));
        }
        if failures.is_empty() {
            return Ok(());
        }
        let said = format_args!(
            "the reference's values, got {} failures in {} comparisons:{}",
            self.failures().count(),
            self.outcomes.len(),
            failures.concat()
        );
        Err(Error::report(&self.name, said))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: BTreeMap<String, BTreeMap<Check, (usize, usize)>> = BTreeMap::new();
        for outcome in &self.outcomes {
            let row = rows.entry(outcome.backend.to_string()).or_default();
            let (passed, all) = row.entry(outcome.check).or_default();
            *passed += usize::from(outcome.failure.is_none());
            *all += 1;
        }
        writeln!(f, "{}: passed / compared", self.name)?;
        for (backend, row) in rows {
            write!(f, "  {backend:<28}")?;
            for (check, (passed, all)) in row {
                write!(f, "  {check} {passed}/{all}")?;
            }
            writeln!(f)?;
        }
        for failure in self.said() {
            writeln!(f, "  failed: {failure}")?;
        }
        let mut faults = self.peer_faults();
        if let Some(first) = faults.next() {
            let said = first.peer_fault.as_deref().unwrap_or_default();
            let Outcome { check, backend, dtype, case, .. } = first;
            let more = faults.count();
            writeln!(f, "  the peer differs: {check} on {backend}, {dtype}, {case}: {said}")?;
            writeln!(f, "  and in {more} more comparisons")?;
        }
        for what in &self.not_run {
            writeln!(f, "  not run: {what}")?;
        }
        Ok(())
    }
}
