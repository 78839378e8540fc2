//! Computes the cost of kernels in machine code for Apple's M1, with the tools in a checkout of
//! this repository.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::case::Case;

/// The checkout in which this program was built. The folder may not exist on other machines.
const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const SCRIPT: &str = "scripts/agx.sh";

/// The cost of one thread of a kernel.
#[derive(Deserialize, Serialize)]
pub struct Cost {
    /// The number of 16-bit registers.
    registers: u32,
    /// The maximum number of threads in a threadgroup for this number of registers.
    threads: u32,
    /// The bytes of registers that are spilled to memory.
    spilled: u32,
    /// The bytes of arrays that are kept in memory.
    arrays: u32,
    /// The cycles of the busiest pipeline if each instruction runs exactly once.
    #[serde(rename(deserialize = "alu"))]
    cycles: f64,
    /// The cycles of the integer pipeline.
    #[serde(rename(deserialize = "ic"))]
    integer_cycles: f64,
}

fn script() -> Result<PathBuf> {
    let named = std::env::var_os("METAL_CHECK_CHECKOUT");
    let script = Path::new(&named.unwrap_or_else(|| CHECKOUT.into())).join(SCRIPT);
    ensure!(
        script.is_file(),
        "--cost needs Mesa's compiler for Apple's GPUs, built from source: clone \
         https://github.com/mlx-primitives/mlx-primitives and name the folder in METAL_CHECK_CHECKOUT; \
         its {SCRIPT} builds the compiler the first time, on Debian or Ubuntu for x86-64"
    );
    Ok(script)
}

/// Computes the costs of all kernels in a file, or only of the kernel that the case names.
pub fn costs(path: &Path, case: &Case) -> Result<BTreeMap<String, Cost>> {
    let source = !metal_sim::air::is_compiled(path)? && path.extension() != Some("toml".as_ref());
    ensure!(source, "--cost is for Metal source, and {} is none", path.display());
    let whole = |path: &Path| path.canonicalize().with_context(|| path.display().to_string());
    let mut command = Command::new(script()?);
    command.arg("--file").arg(whole(path)?);
    for folder in &case.include {
        command.arg(whole(folder)?);
    }
    command.args(case.define.iter().map(|define| format!("-D{define}")));
    let output = command.stderr(Stdio::inherit()).output().context(SCRIPT)?;
    ensure!(output.status.success(), "{SCRIPT} failed");
    let mut costs: BTreeMap<String, Cost> = serde_json::from_slice(&output.stdout)?;
    if let Some(entry) = &case.entry {
        costs.retain(|name, _| name == entry);
        if costs.is_empty() {
            bail!("{} has no kernel '{entry}'", path.display());
        }
    }
    Ok(costs)
}

/// Formats the costs as a table with a line for each kernel.
pub fn text(costs: &BTreeMap<String, Cost>) -> String {
    let head = "registers  threads  spilled  arrays  cycles  integer  kernel".to_owned();
    let lines = costs.iter().map(|(name, cost)| {
        let Cost { registers, threads, spilled, arrays, cycles, integer_cycles } = cost;
        format!(
            "{registers:>9}  {threads:>7}  {spilled:>7}  {arrays:>6}  {cycles:>6}  \
             {integer_cycles:>7}  {name}"
        )
    });
    std::iter::once(head).chain(lines).collect::<Vec<_>>().join("\n")
}
