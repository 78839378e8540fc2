//! Checks the environment variables of this crate, and those variables of MLX whose wrong values
//! make a program hang or have an undocumented effect.

use std::env;

use crate::error::{Error, Result};

/// The variables that this crate and other crates of the project read when a program runs.
const READ: [&str; 10] = [
    "MLX_PRIMITIVES_CUDA_CACHE",
    "MLX_PRIMITIVES_METALLIB",
    "MLX_PRIMITIVES_RANK_SECRET",
    "MLX_PRIMITIVES_RANK_SECRET_FILE",
    "MLX_PRIMITIVES_SIMD",
    "MLX_PRIMITIVES_SIMULATE_LOG",
    "MLX_PRIMITIVES_SIMULATE_METAL",
    "MLX_PRIMITIVES_SIMULATE_THREADS",
    "MLX_PRIMITIVES_THREADS",
    TUNE,
];
pub(crate) const TUNE: &str = "MLX_PRIMITIVES_TUNE";

/// The names, without the prefix `MLX_PRIMITIVES_`, of variables that builds, scripts and tests
/// read. A program may inherit them, so they are not mistakes. `cargo run` sets the two variables
/// that `build.rs` writes.
const INHERITED: &str = "\
    COMMAND COMMIT CORRUPT_CHILD CUDA_ARCHITECTURES CUDA_KERNELS CUDA_LOGS CUDA_RESULT \
    KERNELS_BENCH KERNELS_HASH LOAD_CHILD MLX_PREFIX NEED_NVRTC NVIDIA_BENCH OWN_TESTS SOURCES \
    SUITE TRAFFIC WERROR";
const OF_TESTS: [&str; 2] = ["MLX_PRIMITIVES_TEST_", "MLX_PRIMITIVES_SUITE_"];

const MOST: i64 = i32::MAX as i64;

/// MLX 0.32's variables with integer values, and the smallest and the largest value that have the
/// documented effect. MLX converts any other text to a number too, for example to 0. With 0 for
/// `MLX_BFS_MAX_WIDTH` it hangs.
const NUMBERS: [(&str, i64, i64); 16] = [
    ("MLX_BFS_MAX_WIDTH", 1, MOST),
    ("MLX_CUDA_CONV_CACHE_SIZE", 1, MOST),
    ("MLX_CUDA_FFT_CACHE_SIZE", 1, MOST),
    ("MLX_CUDA_GRAPH_CACHE_SIZE", 1, MOST),
    ("MLX_CUDA_SDPA_BACKWARD_CACHE_SIZE", 1, MOST),
    ("MLX_CUDA_SDPA_CACHE_SIZE", 1, MOST),
    ("MLX_CUDA_USE_CUDNN_SDPA", 0, 1),
    ("MLX_ENABLE_CACHE_THRASHING_CHECK", 0, 1),
    ("MLX_ENABLE_TF32", 0, 1),
    ("MLX_MAX_MB_PER_BUFFER", 1, MOST),
    ("MLX_MAX_OPS_PER_BUFFER", 1, MOST),
    ("MLX_METAL_FAST_SYNCH", 0, 1),
    ("MLX_NCCL_TIMEOUT", 1, MOST),
    ("MLX_RESIDENCY_DEBUG", 0, 1),
    ("MLX_RESIDENCY_SET_MAX_PCT", 0, 100),
    ("MLX_USE_CUDA_GRAPHS", 0, 1),
];

/// The meanings of `MLX_PRIMITIVES_TUNE`, which selects our kernels or MLX's own for each op: see
/// [`tune`](crate::tune).
pub(crate) enum Tune {
    /// The built-in rule decides.
    Rule,
    /// Our kernels run for all ops.
    Off,
    /// The file that `mlx-primitives tune` writes decides.
    File,
}

/// Returns the meaning of `MLX_PRIMITIVES_TUNE`, or an error that names the accepted values.
pub(crate) fn tune() -> Result<Tune> {
    let value = env::var_os(TUNE).unwrap_or_default();
    match value.to_str() {
        Some("") => Ok(Tune::Rule),
        Some("off") => Ok(Tune::Off),
        Some("file") => Ok(Tune::File),
        _ => refused(TUNE, "off (our kernels) or file (as tuned)", &value.to_string_lossy()),
    }
}

fn refused<T>(name: &str, expected: &str, got: &str) -> Result<T> {
    let got: String = got.chars().take(100).collect();
    Err(Error::argument(name, format_args!("{expected}, got {got:?}")))
}

/// Returns an error for the first variable that has an unusable value or an unknown name.
pub(crate) fn check() -> Result<()> {
    if let Some((name, expected, got)) = mlx_primitives_kernels::unusable_variable() {
        return refused(name, &expected, &got);
    }
    tune()?;
    for (name, least, most) in NUMBERS {
        let Some(value) = env::var_os(name) else { continue };
        let text = value.to_string_lossy();
        let number = text.trim().parse::<i64>();
        if !number.is_ok_and(|number| (least..=most).contains(&number)) {
            return refused(name, &format!("a whole number from {least} to {most}"), &text);
        }
    }
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        let Some(rest) = name.strip_prefix("MLX_PRIMITIVES_") else { continue };
        let known = READ.contains(&&*name)
            || INHERITED.split(' ').any(|it| it == rest)
            || OF_TESTS.iter().any(|start| name.starts_with(start));
        if !known {
            let names = READ.join(", ");
            let name: String = name.chars().take(100).collect();
            return Err(Error::argument(name, format_args!("one of the variables {names}")));
        }
    }
    Ok(())
}
