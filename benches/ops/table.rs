//! README's table of the ops, in Markdown: what was measured, probed and counted, nothing typed.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use mlx_primitives::{Array, Dtype, files, transforms};

use super::cases::{Case, Inputs, Kind, Size, TYPES, Workload};
use super::measure::Row;

/// One line for each op, in the order of the workloads, with what [`read_traffic`] found.
pub fn markdown(
    workloads: &[Workload],
    rows: &[Row],
    traffic: &HashMap<String, f64>,
) -> Result<String> {
    let mut text = String::from(
        "| op | transforms | types | decode, chained: × built-in | prompt: × built-in | beyond the caches: % of the limit | device bytes / least |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for group in workloads.chunk_by(|a, b| a.op == b.op) {
        let op = group[0].op;
        let of_op = |row: &&Row| row.workload.op == op;
        let decode = |row: &Row| row.kind == Kind::Chain && row.workload.size == Size::Decode;
        let prompt = |row: &Row| row.kind == Kind::Single && row.workload.size != Size::Decode;
        let has = |dtype| rows.iter().any(|row| of_op(&row) && row.dtype == dtype);
        let types: Vec<_> = TYPES.into_iter().filter(|&dtype| has(dtype)).map(short).collect();
        let ratio = traffic.get(op).map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
        writeln!(
            text,
            "| `{op}` | {} | {} | {} | {} | {} | {ratio} |",
            transforms_of(&group[0])?,
            types.join(" "),
            speedups(rows.iter().filter(of_op).filter(|row| decode(row))),
            speedups(rows.iter().filter(of_op).filter(|row| prompt(row))),
            fractions(rows.iter().filter(of_op)),
        )?;
    }
    Ok(text)
}

/// The speedups, by type, of the first workload among the rows of the most elements that fit the
/// caches.
fn speedups<'a>(rows: impl Iterator<Item = &'a Row<'a>>) -> String {
    let rows: Vec<_> = rows.filter(|row| row.workload.size != Size::Large).collect();
    let elements = |row: &Row| row.workload.shape.iter().map(|&n| i64::from(n)).product::<i64>();
    let most = rows.iter().map(|row| elements(row)).max();
    let Some(chosen) = rows.iter().find(|row| Some(elements(row)) == most) else {
        return "–".to_owned();
    };
    let same = rows.iter().filter(|row| std::ptr::eq(row.workload, chosen.workload));
    let numbers: Vec<_> = same
        .map(|row| match row.speedup() {
            None => "—".to_owned(),
            Some(v) if v < 10.0 => format!("{v:.1}"),
            Some(v) => format!("{v:.0}"),
        })
        .collect();
    format!("{}: {}", chosen.workload.shape_label(), numbers.join(" / "))
}

/// The least fraction of the limit beyond the caches, and the greatest if there are several.
fn fractions<'a>(rows: impl Iterator<Item = &'a Row<'a>>) -> String {
    let large = rows.filter(|row| row.workload.size == Size::Large);
    let (least, most) = large.fold((f64::MAX, 0.0), |(least, most): (f64, f64), row| {
        let percent = (100.0 * row.limit_fraction()).round();
        (least.min(percent), most.max(percent))
    });
    match most {
        0.0 => "–".to_owned(),
        most if most > least => format!("{least:.0}–{most:.0}"),
        most => format!("{most:.0}"),
    }
}

/// Which transforms the op has, found out by asking for them.
fn transforms_of(workload: &Workload) -> Result<String> {
    let case = Case { workload, dtype: Dtype::Float32, kind: Kind::Single };
    let Inputs { x, others, ours, .. } = case.inputs()?;
    let call = |inputs: &[Array]| Ok(vec![ours(&inputs[0], &others)?]);
    let y = ours(&x, &others)?;
    let ones = |like: &Array| Array::ones::<f32>(like.shape())?.astype(like.dtype());
    let batch = x.expand_dims(&[0])?;
    let found = [
        ("vjp", transforms::vjp(call, &[&x], &[&ones(&y)?]).is_ok()),
        ("jvp", transforms::jvp(call, &[&x], &[&ones(&x)?]).is_ok()),
        ("vmap", transforms::vmap(call, &[&batch], &[Some(0)], &[]).is_ok()),
    ];
    let names: Vec<_> = found.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
    Ok(if names.is_empty() { "none".to_owned() } else { names.join(" ") })
}

/// Device bytes over the least possible, from lines of an op, the bytes that its kernels moved in the
/// simulator, and the least possible.
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
