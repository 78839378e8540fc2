//! Formats the rows as tables or as JSON, one row at a time.

use std::collections::HashMap;
use std::fmt::Write as _;

use mlx_primitives::device::Device;
use serde_json::{Value, json};

use super::cases::{Case, Size, Workload};
use super::measure::{Builtin, Row};
use super::timing::Timing;

/// The output format of the rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A table for each op.
    Tables,
    /// A JSON array with one object per line. The text is valid JSON once the last row has been
    /// written.
    Json,
}

/// Formats each row as soon as it is measured. All rows of an op must come one after another.
pub struct Writer {
    form: Form,
    /// For each op, the number of characters of its longest shape.
    widths: HashMap<&'static str, usize>,
    rows: usize,
    op: Option<&'static str>,
    reasons: Vec<&'static str>,
}

impl Writer {
    /// Returns a writer for the rows of these cases.
    pub fn new(form: Form, cases: &[Case]) -> Self {
        let mut widths = HashMap::new();
        for Case { workload, .. } in cases {
            let width: &mut usize = widths.entry(workload.op).or_default();
            *width = workload.shape_label().chars().count().max(*width);
        }
        Self { form, widths, rows: 0, op: None, reasons: Vec::new() }
    }

    /// The text of the next row.
    pub fn row(&mut self, row: &Row) -> String {
        self.rows += 1;
        let Workload { op, .. } = *row.workload;
        if self.form == Form::Json {
            let before = if self.rows == 1 { "[\n" } else { ",\n" };
            return format!("{before}  {}", object(row));
        }
        let mut text = String::new();
        let width = self.widths.get(op).copied().unwrap_or(0);
        if self.op != Some(op) {
            text += &self.reasons();
            let space = if self.op.is_some() { "\n" } else { "" };
            let _ = writeln!(text, "{space}{op}\n{}", line(&HEADER.map(str::to_owned), width));
            self.op = Some(op);
        }
        let why = why(row).filter(|why| !self.reasons.contains(why));
        self.reasons.extend(why);
        text + &line(&cells(row), width) + "\n"
    }

    /// The text after the last row.
    pub fn end(&mut self) -> String {
        match (self.form, self.rows) {
            (Form::Json, 0) => "[]\n".to_owned(),
            (Form::Json, _) => "\n]\n".to_owned(),
            (Form::Tables, _) => self.reasons(),
        }
    }

    fn reasons(&mut self) -> String {
        self.reasons.drain(..).map(|why| format!("below the limit: {why}\n")).collect()
    }
}

const HEADER: [&str; 11] = [
    "shape",
    "dtype",
    "call",
    "ours µs",
    "built-in µs",
    "speedup",
    "choice",
    "GB/s",
    "% of limit",
    "limit",
    "GFLOP/s",
];
/// The widths of all columns except the first. [`Writer`] knows the width of the first column.
const WIDTHS: [usize; 10] = [8, 6, 16, 16, 8, 6, 6, 10, 7, 7];

fn line(cells: &[String; 11], width: usize) -> String {
    let mut text = format!("{:<width$}", cells[0]);
    for (index, (cell, width)) in cells[1..].iter().zip(WIDTHS).enumerate() {
        let numbers = index >= 2;
        let _ = match numbers {
            true => write!(text, "  {cell:>width$}"),
            false => write!(text, "  {cell:<width$}"),
        };
    }
    text.truncate(text.trim_end().len());
    text
}

fn cells(row: &Row) -> [String; 11] {
    let none = || "—".to_owned();
    [
        row.workload.shape_label(),
        row.dtype.to_string(),
        row.kind.name(),
        with_spread(&row.ours),
        match &row.builtin {
            Builtin::Timed(timing) => with_spread(timing),
            Builtin::LeftOut(seconds) => format!("about {} s", digits(*seconds)),
            Builtin::None => none(),
        },
        row.speedup().map_or_else(none, |speedup| format!("{}×", digits(speedup))),
        row.choice.map_or_else(none, |choice| choice.to_string()),
        digits(row.gbps()),
        match 100.0 * row.limit_fraction() {
            percent if percent < 0.5 => "<1".to_owned(),
            percent => format!("{percent:.0}"),
        },
        row.limit.0.to_owned(),
        row.gflops().map(digits).unwrap_or_default(),
    ]
}

pub fn object(row: &Row) -> Value {
    let Workload { op, shape, variant, .. } = row.workload;
    let quartiles = |t: &Timing| [micros(t.lower_quartile), micros(t.upper_quartile)];
    let builtin = row.builtin.timing();
    let mut object = json!({
        "op": op,
        "shape": shape,
        "dtype": row.dtype.name(),
        "device": match row.device { Device::Cpu => "cpu", Device::Gpu => "gpu" },
        "kind": row.kind.name(),
        "ours_us": micros(row.ours.median),
        "ours_quartiles_us": quartiles(&row.ours),
        "ours_samples": row.ours.samples,
        "gbps": row.gbps(),
        "limit": row.limit.0,
        "limit_us": micros(row.limit.1),
        "limit_fraction": row.limit_fraction(),
        "builtin_us": builtin.map(|builtin| micros(builtin.median)),
        "builtin_quartiles_us": builtin.map(quartiles),
        "builtin_samples": builtin.map(|builtin| builtin.samples),
        "builtin_left_out_us": match row.builtin {
            Builtin::LeftOut(seconds) => Some(micros(seconds)),
            _ => None,
        },
        "speedup": row.speedup(),
        "choice": row.choice,
        "why": why(row),
        "variant": (!variant.is_empty()).then_some(variant),
        "gflops": row.gflops(),
    });
    object.as_object_mut().into_iter().for_each(|all| all.retain(|_, value| !value.is_null()));
    object
}

/// Returns the reason why a large op is slower than the machine's limit, if it is much slower.
fn why(row: &Row) -> Option<&'static str> {
    const FAR: f64 = 0.7;
    let Workload { why, size, .. } = row.workload;
    (*size == Size::Large && row.limit_fraction() < FAR && !why.is_empty()).then_some(*why)
}

/// Formats the median and half the interquartile range. After a single run, formats the median and
/// `once`.
fn with_spread(timing: &Timing) -> String {
    let median = digits(micros(timing.median));
    match timing.samples {
        1 => format!("{median} once"),
        _ => format!("{median} ±{}", digits(micros(timing.spread()))),
    }
}

fn micros(seconds: f64) -> f64 {
    seconds * 1e6
}

/// Formats a number with at least three digits.
fn digits(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn three_digits() {
        let texts = [0.0, 1.234, 9.999, 12.34, 99.96, 12345.6].map(super::digits);
        assert_eq!(texts, ["0.00", "1.23", "10.0", "12.3", "100", "12346"]);
    }
}
