//! The bits of a row do not depend on how many rows are computed together.

use harness::table::widths;
use mlx_primitives::ops::RowOrder;

use crate::support::{Checked, simulated};

#[test(simulated = once)]
fn rows_have_the_same_bits_at_any_width() -> Checked {
    let mut failures = Vec::new();
    let all = if simulated() { widths::few()? } else { widths::all(false)? };
    for rows in all {
        for order in [RowOrder::Tokens, RowOrder::Prompt] {
            let width = rows.compare(order)?;
            failures.extend((!width.differ.is_empty()).then(|| width.to_string()));
        }
    }
    assert!(failures.is_empty(), "{} of them differ: {failures:#?}", failures.len());
    Ok(())
}
