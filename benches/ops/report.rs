//! The rows as tables or as JSON.

use std::fmt::Write as _;
use std::io::IsTerminal;

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use mlx_primitives::device::Device;
use serde_json::{Value, json};

use super::cases::{Size, Workload};
use super::measure::Row;
use super::timing::Timing;

pub fn json(rows: &[Row]) -> String {
    let objects: Vec<_> = rows.iter().map(|row| format!("  {}", object(row))).collect();
    format!("[\n{}\n]\n", objects.join(",\n"))
}

pub fn object(row: &Row) -> Value {
    let Workload { op, shape, variant, .. } = row.workload;
    let quartiles = |t: &Timing| [micros(t.lower_quartile), micros(t.upper_quartile)];
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
        "builtin_us": row.builtin.map(|builtin| micros(builtin.median)),
        "builtin_quartiles_us": row.builtin.as_ref().map(quartiles),
        "builtin_samples": row.builtin.map(|builtin| builtin.samples),
        "speedup": row.speedup(),
        "choice": row.choice,
        "why": why(row),
        "variant": (!variant.is_empty()).then_some(variant),
        "gflops": row.gflops(),
    });
    object.as_object_mut().into_iter().for_each(|all| all.retain(|_, value| !value.is_null()));
    object
}

/// The reason why a call stays below the limit, if it is far below it.
fn why(row: &Row) -> Option<&'static str> {
    const FAR: f64 = 0.7;
    let Workload { why, size, .. } = row.workload;
    (*size == Size::Large && row.limit_fraction() < FAR && !why.is_empty()).then_some(*why)
}

/// The line style of tables on stdout.
pub fn preset() -> &'static str {
    match std::io::stdout().is_terminal() {
        true => presets::UTF8_FULL_CONDENSED,
        false => presets::NOTHING,
    }
}

/// A table for each op; `±` is half the interquartile range.
pub fn tables(rows: &[Row], preset: &str) -> Result<String> {
    let mut text = String::new();
    let none = || "—".to_owned();
    for rows in rows.chunk_by(|a, b| a.workload.op == b.workload.op) {
        let mut table = Table::new();
        let header =
            "shape,dtype,call,ours µs,built-in µs,speedup,choice,GB/s,% of limit,limit,GFLOP/s";
        let flops = rows.iter().any(|row| row.gflops().is_some());
        table.load_preset(preset).set_header(header.split(',').take(10 + usize::from(flops)));
        for row in rows {
            let mut cells = vec![
                row.workload.shape_label(),
                row.dtype.to_string(),
                row.kind.name(),
                with_spread(&row.ours),
                row.builtin.as_ref().map_or_else(none, with_spread),
                row.speedup().map_or_else(none, |speedup| format!("{}×", digits(speedup))),
                row.choice.map_or_else(none, |choice| choice.to_string()),
                digits(row.gbps()),
                match 100.0 * row.limit_fraction() {
                    percent if percent < 0.5 => "<1".to_owned(),
                    percent => format!("{percent:.0}"),
                },
                row.limit.0.to_owned(),
            ];
            cells.extend(row.gflops().map(digits));
            table.add_row(cells);
        }
        table.column_iter_mut().skip(3).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
        writeln!(text, "{}", rows[0].workload.op)?;
        for line in table.lines() {
            writeln!(text, "{}", line.trim_end())?;
        }
        let mut reasons: Vec<_> = rows.iter().filter_map(why).collect();
        reasons.dedup();
        for why in reasons {
            writeln!(text, "below the limit: {why}")?;
        }
        text.push('\n');
    }
    Ok(format!("{}\n", text.trim_end_matches('\n')))
}

fn with_spread(timing: &Timing) -> String {
    format!("{} ±{}", digits(micros(timing.median)), digits(micros(timing.spread())))
}

fn micros(seconds: f64) -> f64 {
    seconds * 1e6
}

/// At least three significant digits.
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
