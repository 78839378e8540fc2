//! Code that tests share: inputs in every layout, comparisons, models and ranks.

pub mod build;
pub mod compare;
pub mod custom;
pub mod gguf;
pub mod input;
pub mod memory;
pub mod models;
#[cfg(unix)]
pub mod ranks;
pub mod tune;

use std::path::Path;
use std::process::Command;

use anyhow::ensure;
use mlx_primitives::device::{Device, with_device};
use mlx_primitives::simulator::without_metal;
use mlx_primitives::{Array, Result, builtin, ops};

pub use crate::table::inputs::{Checked, EPS, simulated};
pub use crate::table::reference;

/// The folder of the repository.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Runs a test of this binary in another process and returns its output. The test must pass.
pub fn in_another_process(
    test: &str,
    set: impl FnOnce(&mut Command) -> &mut Command,
) -> anyhow::Result<String> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", test, "--nocapture"]).env("RUST_BACKTRACE", "0");
    let output = set(&mut command).output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let passed = output.status.success() && said.contains("1 passed");
    ensure!(passed, "{test}: {}\n{said}", output.status);
    Ok(said)
}

/// The bytes of a safetensors file with this header and this many bytes of data.
pub fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 7);
    bytes
}

/// Runs an op in the simulator. Returns its dispatches and their memory traffic. The inputs must
/// already be evaluated.
#[cfg(target_os = "linux")]
pub fn moved(
    op: impl FnOnce() -> Result<Array>,
) -> anyhow::Result<Vec<mlx_primitives::Dispatched>> {
    ensure!(simulated(), "only the simulator counts bytes");
    mlx_primitives::dispatched();
    op()?.eval()?;
    let dispatched = mlx_primitives::dispatched();
    ensure!(!dispatched.is_empty(), "nothing was dispatched");
    Ok(dispatched)
}

/// Reports the device bytes that an op's dispatches moved, and the least possible number, for a
/// table in the book. Appends a line with `op`, `bytes` and `ideal` to the file that the
/// environment variable MLX_PRIMITIVES_TRAFFIC names.
#[cfg(target_os = "linux")]
pub fn report_traffic(
    op: &str,
    dispatched: &[mlx_primitives::Dispatched],
    ideal: usize,
) -> Checked {
    use std::io::Write;
    let bytes: u64 = dispatched.iter().map(|d| d.read() + d.written()).sum();
    let line = format!("{op} {bytes} {ideal}\n");
    eprint!("traffic: {line}");
    if let Some(path) = std::env::var_os("MLX_PRIMITIVES_TRAFFIC") {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(line.as_bytes())?;
    }
    Ok(())
}

/// Returns `rounds`, or in the simulator `rounds / part`, because each round takes much longer
/// there.
pub fn fewer_if_simulated(test: &str, rounds: u64, part: u64) -> u64 {
    if !simulated() {
        return rounds;
    }
    eprintln!("thinned for the simulator: {test}, {} of {rounds} rounds", rounds / part);
    rounds / part
}

/// Runs a test on the CPU, and on the GPU if there is one. In the simulator, `test` receives the
/// GPU, because Metal kernels run.
pub fn each_device(test: impl Fn(Device) -> Checked) -> Checked {
    for device in [Device::Cpu, Device::Gpu] {
        if device.is_available()? {
            let kernels = if simulated() { Device::Gpu } else { device };
            with_device(device, || test(kernels))?;
        }
    }
    Ok(())
}

/// Runs a test with the CPU kernels, even if the other tests run on another device or in the
/// simulator.
pub fn on_cpu(test: impl FnOnce() -> Checked) -> Checked {
    with_device(Device::Cpu, || without_metal(test))
}

/// Borrows the arrays for functions that take a list of references.
pub fn refs(arrays: &[Array]) -> Vec<&Array> {
    arrays.iter().collect()
}

/// The message of an expected error.
#[track_caller]
pub fn message<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(error) => error.to_string(),
    }
}

/// A primitive of this crate as a function of x alone. x has rank 3 or more, and its last axis has
/// even length.
pub type Op = fn(&Array) -> Result<Array>;

/// The name of each primitive, this crate's function and MLX's.
pub const OPS: [(&str, Op, Op); 3] = [
    ("RmsNorm", |x| ops::rms_norm(x, None, EPS), |x| builtin::rms_norm(x, None, EPS)),
    ("Softmax", ops::softmax, builtin::softmax),
    (
        "Rope",
        |x| ops::rope(x, ops::Rope { dims: x.dim(-1)?, offset: 3.into(), ..ops::Rope::default() }),
        |x| {
            builtin::rope(
                x,
                ops::Rope { dims: x.dim(-1)?, offset: 3.into(), ..ops::Rope::default() },
            )
        },
    ),
];
