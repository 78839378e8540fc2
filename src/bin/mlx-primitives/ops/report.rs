//! The rows as tables or as JSON, on stdout.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write};

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use mlx_primitives::device::Device;
use serde_json::{Value, json};

use super::measure::Row;
use super::timing::Timing;

pub fn json(rows: &[Row]) -> Result<()> {
    let objects: Vec<_> = rows.iter().map(|row| format!("  {}", object(row))).collect();
    print(&format!("[\n{}\n]\n", objects.join(",\n")))
}

fn object(row: &Row) -> Value {
    let quartiles = |t: &Timing| json!([micros(t.lower_quartile), micros(t.upper_quartile)]);
    let mut object = json!({
        "op": row.workload.op,
        "shape": row.workload.shape,
        "dtype": row.dtype.name(),
        "device": match row.device { Device::Cpu => "cpu", Device::Gpu => "gpu" },
        "kind": row.kind.name(),
        "ours_us": micros(row.ours.median),
        "ours_quartiles_us": quartiles(&row.ours),
        "ours_samples": row.ours.samples,
        "builtin_us": micros(row.builtin.median),
        "builtin_quartiles_us": quartiles(&row.builtin),
        "builtin_samples": row.builtin.samples,
        "copy_us": micros(row.copy.median),
        "copy_quartiles_us": quartiles(&row.copy),
        "speedup": row.speedup(),
        "gbps": row.gbps(),
        "copy_fraction": row.copy_fraction(),
    });
    if !row.workload.variant.is_empty() {
        object["variant"] = json!(row.workload.variant);
    }
    if let Some(gflops) = row.gflops() {
        object["gflops"] = json!(gflops);
    }
    object
}

/// A table for each op; `±` is half the interquartile range.
pub fn tables(rows: &[Row]) -> Result<()> {
    let preset = if std::io::stdout().is_terminal() {
        presets::UTF8_FULL_CONDENSED
    } else {
        presets::NOTHING
    };
    let mut text = String::new();
    for rows in rows.chunk_by(|a, b| a.workload.op == b.workload.op) {
        let mut table = Table::new();
        let mut header = vec![
            "shape",
            "dtype",
            "call",
            "ours µs",
            "built-in µs",
            "speedup",
            "GB/s",
            "% of copy",
        ];
        let flops = rows.iter().any(|row| row.gflops().is_some());
        header.extend(flops.then_some("GFLOP/s"));
        table.load_preset(preset).set_header(header);
        for row in rows {
            let mut cells = vec![
                row.workload.shape_label(),
                row.dtype.to_string(),
                row.kind.name().to_owned(),
                with_spread(&row.ours),
                with_spread(&row.builtin),
                format!("{}×", digits(row.speedup())),
                digits(row.gbps()),
                percent(row.copy_fraction()),
            ];
            cells.extend(row.gflops().map(digits));
            table.add_row(cells);
        }
        table.column_iter_mut().skip(3).for_each(|c| c.set_cell_alignment(CellAlignment::Right));
        writeln!(text, "{}", rows[0].workload.op)?;
        for line in table.lines() {
            writeln!(text, "{}", line.trim_end())?;
        }
        text.push('\n');
    }
    print(text.trim_end_matches('\n'))?;
    print("\n")
}

fn with_spread(timing: &Timing) -> String {
    format!("{} ±{}", digits(micros(timing.median)), digits(micros(timing.spread())))
}

fn percent(fraction: f64) -> String {
    match 100.0 * fraction {
        v if v < 0.5 => "<1".to_owned(),
        v => format!("{v:.0}"),
    }
}

fn micros(seconds: f64) -> f64 {
    seconds * 1e6
}

/// Three significant digits or more.
fn digits(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

fn print(text: &str) -> Result<()> {
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    #[test]
    fn three_digits() {
        let texts = [0.0, 1.234, 9.999, 12.34, 99.96, 12345.6].map(super::digits);
        assert_eq!(texts, ["0.00", "1.23", "10.0", "12.3", "100", "12346"]);
    }
}
