//! The bits of a row at any width.

use harness::table::widths;
use mlx_primitives::ops::RowOrder;

use crate::support::Checked;

#[test(simulated = never)]
fn rows_have_the_same_bits_at_any_width() -> Checked {
    let mut failures = Vec::new();
    for rows in widths::all(false)? {
        for order in [RowOrder::Tokens, RowOrder::Prompt] {
            let width = rows.compare(order)?;
            failures.extend((!width.differ.is_empty()).then(|| width.to_string()));
        }
    }
    assert!(failures.is_empty(), "{} of them differ: {failures:#?}", failures.len());
    Ok(())
}
