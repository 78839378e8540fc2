//! Writes the table of the ops for the book, in Markdown. Every entry is measured, counted, or
//! found by trying.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use mlx_primitives::{Array, Dtype, files, transforms};

use super::cases::{Case, Inputs, Kind, Size, TYPES, Workload};
use super::measure::Row;

/// Returns a line for each op, in the order of the workloads. `traffic` contains the ratios that
/// [`read_traffic`] returned.
pub fn markdown(
    workloads: &[Workload],
    rows: &[Row],
    traffic: &HashMap<String, f64>,
) -> Result<String> {
    let mut text = String::from(
        "| op | transforms | types | one token: times MLX's speed | a prompt: times MLX's speed | beyond the caches: % of the limit | bytes moved ÷ least |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for group in workloads.chunk_by(|a, b| a.op == b.op) {
        let op = group[0].op;
        let rows: Vec<&Row> = rows.iter().filter(|row| row.workload.op == op).collect();
        let decode = |row: &Row| row.kind == Kind::Chain && row.workload.size == Size::Decode;
        let prompt = |row: &Row| row.kind == Kind::Single && row.workload.size != Size::Decode;
        let has = |dtype| rows.iter().any(|row| row.dtype == dtype);
        let types: Vec<_> = TYPES.into_iter().filter(|&dtype| has(dtype)).map(short).collect();
        let ratio = traffic.get(op).map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
        writeln!(
            text,
            "| `{op}` | {} | {} | {} | {} | {} | {ratio} |",
            transforms_of(&group[0])?,
            types.join(" "),
            speedups(&rows, decode),
            speedups(&rows, prompt),
            fractions(&rows),
        )?;
    }
    Ok(text)
}

/// Returns the speedups of one workload for each type. Chooses the largest workload that fits the
/// caches among the `wanted` rows. If several have this size, chooses the first.
fn speedups(rows: &[&Row], wanted: impl Fn(&Row) -> bool) -> String {
    let rows = rows.iter().filter(|row| wanted(row) && row.workload.size != Size::Large);
    let elements = |row: &Row| row.workload.shape.iter().map(|&n| i64::from(n)).product::<i64>();
    let Some(chosen) = rows.clone().rev().max_by_key(|row| elements(row)) else {
        return "–".to_owned();
    };
    let same = rows.filter(|row| std::ptr::eq(row.workload, chosen.workload));
    let number = |v| format!("{v:.*}", usize::from(v < 10.0));
    let numbers = same.map(|row| row.speedup().map_or("—".to_owned(), number));
    format!("{}: {}", chosen.workload.shape_label(), numbers.collect::<Vec<_>>().join(" / "))
}

/// Returns the smallest fraction of the machine's limit among shapes larger than the caches, and
/// the largest fraction if it differs.
fn fractions(rows: &[&Row]) -> String {
    let large = rows.iter().filter(|row| row.workload.size == Size::Large);
    let mut percents: Vec<_> = large.map(|row| (100.0 * row.limit_fraction()).round()).collect();
    percents.sort_by(f64::total_cmp);
    match percents[..] {
        [] => "–".to_owned(),
        [least, .., most] if most > least => format!("{least:.0}–{most:.0}"),
        [least, ..] => format!("{least:.0}"),
    }
}

/// Returns the transforms that the op supports. Tries each transform to find out.
fn transforms_of(workload: &Workload) -> Result<String> {
    let case = Case { workload, dtype: Dtype::Float32, kind: Kind::Single };
    let Inputs { x, others, ours, .. } = case.inputs()?;
    let call = |inputs: &[Array]| Ok(vec![ours(&inputs[0], &others)?]);
    let y = ours(&x, &others)?;
    let ones = |like: &Array| Array::ones::<f32>(like.shape())?.astype(like.dtype());
    let batch = x.expand_dims([0])?;
    let found = [
        ("vjp", transforms::vjp(|p| call(&p), &[&x], &[&ones(&y)?]).is_ok()),
        ("jvp", transforms::jvp(|p| call(&p), &[&x], &[&ones(&x)?]).is_ok()),
        ("vmap", transforms::vmap(|p| call(&p), &[&batch], [Some(0)], 0).is_ok()),
    ];
    let names: Vec<_> = found.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
    Ok(if names.is_empty() { "none".to_owned() } else { names.join(" ") })
}

/// Reads, for each op, the bytes that it moves on the device, divided by the smallest possible
/// number. A line of the file contains an op, the bytes that its kernels moved in the simulator,
/// and the smallest possible number.
pub fn read_traffic(path: &Path) -> Result<HashMap<String, f64>> {
    let text = files::read_to_string(path)?;
    let mut ratios = HashMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.rsplitn(3, ' ').collect();
        let [least, moved, op] = words[..] else {
            bail!("expected an op and two numbers, got {line}");
        };
        let [moved, least] = [moved, least].map(str::parse::<f64>);
        ratios.insert(op.to_owned(), moved.context(line.to_owned())? / least?);
    }
    Ok(ratios)
}

fn short(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Float32 => "f32",
        Dtype::Float16 => "f16",
        _ => "bf16",
    }
}
