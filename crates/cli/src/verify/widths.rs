//! `mlx-primitives verify --widths`: checks that a row has the same bits for any number of rows in
//! a call.

use std::collections::BTreeMap;
use std::rc::Rc;

use anyhow::{Result, ensure};
use mlx_primitives::device::{Device, with_device};
use mlx_primitives::ops::RowOrder;
use mlx_primitives::tune::{Choices, with_choices};
use mlx_primitives_catalog::widths;
use serde_json::json;

use crate::model::progress;
use crate::output;

const ORDERS: [RowOrder; 2] = [RowOrder::Tokens, RowOrder::Prompt];

/// Counts the comparisons of an op in one type. For each `RowOrder`, the first number counts all
/// comparisons, and the second counts the comparisons that failed or found different bits.
type Counts = [[usize; 2]; 2];

/// Compares our kernels of every op, even if the built-in rule prefers MLX's op. Prints a line for
/// each op with the number of cases in which all bits are equal.
pub fn run(
    device: Device,
    quick: bool,
    share: Option<(usize, usize)>,
    machine: bool,
) -> Result<()> {
    let mut rows = with_device(device, || widths::all(quick))?;
    if let Some((number, of)) = share {
        let mut index = 0..;
        rows.retain(|_| index.next().is_some_and(|index| index % of == number - 1));
    }
    let bar = progress(rows.len() as u64)?;
    let (mut table, mut differ) = (BTreeMap::<_, Counts>::new(), Vec::new());
    for rows in rows {
        let op = rows.name.split(',').next().unwrap_or_default().to_owned();
        bar.set_message(rows.name.clone());
        let counts = table.entry((op, rows.dtype.to_string())).or_default();
        for (order, counts) in ORDERS.into_iter().zip(counts) {
            counts[0] += 1;
            let compare = || with_device(device, || rows.compare(order));
            let line = match with_choices(Rc::new(Choices::ours()), compare) {
                Ok(width) if width.differ.is_empty() => continue,
                Ok(width) => width.to_string(),
                Err(error) => format!("{}, {}, {order:?}: {error}", rows.name, rows.dtype),
            };
            counts[1] += 1;
            differ.push(line);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if machine {
        let lines = table.iter().map(|((op, dtype), [tokens, prompts])| {
            json!({"op": op, "dtype": dtype, "tokens": tokens, "prompts": prompts})
        });
        output::println(json!({"ops": lines.collect::<Vec<_>>(), "differ": differ}))?;
    } else {
        let equal = |[all, differ]: [usize; 2]| format!("{} of {all}", all - differ);
        let mut text = format!("{:<26}{:<10}{:>12}{:>12}\n", "op", "type", "tokens", "prompts");
        for ((op, dtype), [tokens, prompts]) in &table {
            let [tokens, prompts] = [tokens, prompts].map(|counts| equal(*counts));
            text += &format!("{op:<26}{dtype:<10}{tokens:>12}{prompts:>12}\n");
        }
        differ.iter().for_each(|line| text += &format!("{line}\n"));
        output::println(text.trim_end())?;
    }
    ensure!(differ.is_empty(), "{} comparisons failed or found other bits", differ.len());
    Ok(())
}
