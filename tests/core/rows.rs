//! Makes a test from each function of the conformance table in `tests/catalog`.

use std::rc::Rc;

use harness::{DEFAULT_SECONDS, SAMPLE, Simulated, Test};
use mlx_primitives::tune::{Choices, with_choices};
use mlx_primitives_check::{Check, Conformance};

use crate::support::Checked;
use crate::table::{ROWS, Rows, backends};

pub fn tests() -> Vec<Test> {
    let test = |rows: &Rows| Test {
        path: format!("core::table::{}", rows.name).leak(),
        seconds: DEFAULT_SECONDS,
        ignored: false,
        alone: false,
        simulated: Simulated::Always,
        run: |test| {
            let rows =
                ROWS.iter().find(|rows| test.path.ends_with(&format!("table::{}", rows.name)));
            rows.map_or(Err("no such rows".into()), |rows| {
                (rows.each)(&hold).map_err(|error| format!("{error:?}"))
            })
        },
    };
    ROWS.iter().map(test).collect()
}

/// Runs a row of the table on every backend with our kernels, even if the built-in rule of `tune`
/// would choose MLX's ops on this machine. Every check must run, unless the row gives a reason.
fn hold(row: Conformance) -> Checked {
    let sample = std::env::var(SAMPLE).ok().and_then(|text| text.parse().ok());
    let row = row.backends(&backends()?).sample(sample.unwrap_or(1));
    let report = with_choices(Rc::new(Choices::ours()), || row.run());
    report.check()?;
    let ran = |check: Check| report.outcomes().iter().any(|outcome| outcome.check == check);
    let reasons = report.not_run().join("; ");
    for check in Check::ALL {
        assert!(ran(check) || reasons.contains(&format!("{check}: ")), "{check}: {reasons}");
    }
    Ok(())
}
