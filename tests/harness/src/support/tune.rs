//! Keys and classes for the choices between our kernels and MLX's ops. A key identifies a machine.
//! A class is an op, a type and a range of row counts.

use mlx_primitives::device::{Device, default_device};
use mlx_primitives::ops::{self, Linear};
use mlx_primitives::tune::{Class, Key, classes_of};
use mlx_primitives::{Array, Dtype, Result};

use super::input::random;
use super::simulated;

/// The key of another machine.
pub fn key() -> Key {
    let [chip, system, mlx, kernels] =
        ["Apple M3 Max", "Darwin 25.2.0 arm64", "0.32.4", "0123456789abcdef"].map(str::to_owned);
    Key { chip, system, mlx, kernels }
}

/// The name of the file in which a program on this machine stores its choices.
pub fn choices_file() -> anyhow::Result<&'static str> {
    Ok(match default_device()? {
        Device::Gpu => "tune-gpu.json",
        Device::Cpu if simulated() => "tune-simulated.json",
        Device::Cpu => "tune-cpu.json",
    })
}

/// The class of the op that this closure calls.
pub fn class(op: impl FnOnce() -> Result<Array>) -> anyhow::Result<Class> {
    let (result, classes) = classes_of(op);
    let _ = result?;
    anyhow::ensure!(classes.len() == 1, "{classes:?}");
    Ok(classes[0].clone())
}

/// The class of a matrix product with this many rows.
pub fn linear(rows: i32, dtype: Dtype) -> anyhow::Result<Class> {
    let (x, w) = (random(&[1, rows, 64], dtype, 1)?, random(&[32, 64], dtype, 2)?);
    class(|| ops::linear(&x, &w, Linear::default()))
}
