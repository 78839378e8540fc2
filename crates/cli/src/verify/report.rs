//! Formats the report in Markdown, as a JSON object, and as a summary.

use std::fmt::Write as _;
use std::path::Path;

use mlx_primitives::device::Device;
use serde_json::{Value, json};

use super::step::Done;
use crate::kernels::simulates;

pub struct Report {
    device: Device,
    quick: bool,
    steps: usize,
    pub done: Vec<Done>,
    /// The name of the step that is running; empty at the end.
    pub running: String,
}

impl Report {
    pub fn new(device: Device, quick: bool, steps: usize) -> Self {
        Self { device, quick, steps, done: Vec::new(), running: String::new() }
    }

    pub fn failed(&self) -> impl Iterator<Item = &Done> {
        self.done.iter().filter(|done| !done.found.failures.is_empty())
    }

    fn device(&self) -> &'static str {
        match self.device {
            _ if simulates() => "simulated metal",
            Device::Gpu => "gpu",
            Device::Cpu => "cpu",
        }
    }

    /// Returns the steps that have run, grouped by part. A part is a kind of check, such as
    /// `latency`.
    fn parts(&self) -> impl Iterator<Item = &[Done]> {
        self.done.chunk_by(|a, b| a.part == b.part)
    }

    /// Returns a table with a line for each part.
    pub fn summary(&self) -> String {
        let mut text = format!("{:<11}{:>8}{:>8}{:>10}\n", "part", "passed", "failed", "seconds");
        for part in self.parts() {
            let failed = part.iter().filter(|done| !done.found.failures.is_empty()).count();
            let (passed, seconds) =
                (part.len() - failed, part.iter().map(|it| it.seconds).sum::<f64>());
            let name = part[0].part;
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name:<11}{passed:>8}{failed:>8}{seconds:>10.1}");
        }
        text
    }

    pub fn json(&self, path: &Path) -> Value {
        let step = |done: &Done| {
            json!({
                "part": done.part,
                "name": done.name,
                "passed": done.found.failures.is_empty(),
                "seconds": done.seconds,
                "failures": done.found.failures,
                "found": done.found.json,
            })
        };
        let failed = self.failed().count();
        json!({
            "passed": failed == 0,
            "failed": failed,
            "report": path.to_string_lossy(),
            "device": self.device(),
            "quick": self.quick,
            "steps": self.done.iter().map(step).collect::<Vec<_>>(),
        })
    }

    pub fn markdown(&self) -> String {
        let failed = self.failed().count();
        let verdict = match (&*self.running, failed) {
            ("", 0) => format!("All {} steps passed.", self.steps),
            ("", _) => format!("{failed} of {} steps failed.", self.steps),
            (step, _) => format!(
                "The command has not ended, or it ended in the step `{step}`: {} of {} steps ran, {failed} failed.",
                self.done.len(),
                self.steps
            ),
        };
        let quick = if self.quick { ", quick" } else { "" };
        let mut text = format!(
            "# mlx-primitives verify\n\n{verdict}\nDevice: {}{quick}.\n\n```text\n{}```\n",
            self.device(),
            self.summary()
        );
        if failed > 0 {
            text.push_str("\n## Failures\n\n");
            for done in self.failed() {
                let _ = writeln!(text, "- {} {}", done.part, done.name);
                for failure in &done.found.failures {
                    let _ = writeln!(text, "  - `{}`", failure.replace(['`', '\n'], " "));
                }
            }
        }
        for part in self.parts() {
            let _ = write!(
                text,
                "\n## {}\n\n| step | result | what | seconds |\n|---|---|---|---:|\n",
                part[0].part
            );
            for Done { name, seconds, found, .. } in part {
                let result = if found.failures.is_empty() { "passed" } else { "**failed**" };
                let _ = writeln!(text, "| {name} | {result} | {} | {seconds:.2} |", found.said);
            }
            let texts: String = part.iter().map(|done| &*done.found.text).collect();
            if !texts.is_empty() {
                let _ = write!(text, "\n```text\n{}\n```\n", texts.trim_end());
            }
        }
        text
    }
}
