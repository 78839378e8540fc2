//! The types of the steps of `verify` and of their results.

use anyhow::Result;
use serde_json::Value;

/// A step of the command: its part (a kind of check, such as `latency`), its name, and the function
/// that runs it.
pub struct Step {
    pub part: &'static str,
    pub name: String,
    pub run: Box<dyn Fn() -> Result<Found>>,
}

/// The result of a step.
#[derive(Default)]
pub struct Found {
    /// A summary in one line.
    pub said: String,
    /// Details, as lines in columns.
    pub text: String,
    pub failures: Vec<String>,
    /// The details as JSON.
    pub json: Value,
}

/// A step that has run, and its result.
pub struct Done {
    pub part: &'static str,
    pub name: String,
    pub seconds: f64,
    pub found: Found,
}
