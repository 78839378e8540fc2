//! What a Metal dispatch of each primitive looks like: the plans that `eval_gpu` makes, in plain
//! integers and without a GPU.

use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ffi;

/// One dispatch of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchPlan {
    /// The kernel's name in the metallib.
    pub kernel: String,
    /// Threadgroups in each dimension.
    pub grid: [u32; 3],
    /// Threads of a threadgroup in each dimension.
    pub group: [u32; 3],
    /// Threadgroup memory, in bytes.
    pub threadgroup_bytes: u32,
}

impl From<ffi::bridge::LaunchPlan> for LaunchPlan {
    fn from(plan: ffi::bridge::LaunchPlan) -> Self {
        let ffi::bridge::LaunchPlan { kernel, grid, group, threadgroup_bytes } = plan;
        Self { kernel, grid, group, threadgroup_bytes }
    }
}

/// The largest threadgroup of every Apple GPU, in threads.
pub const MAX_THREADS: u32 = 1024;

/// Plans `layer_norm` over `rows` rows of `axis` elements.
pub fn layer_norm(rows: u64, axis: u32, dtype: Dtype, max_threads: u32) -> Result<LaunchPlan> {
    let dtype = kernel_dtype(dtype)?;
    Ok(ffi::layer_norm::bridge::layer_norm_plan(rows, axis, dtype, max_threads)?.into())
}

/// Plans `rms_norm_residual`, or `layer_norm_residual` if `centered`.
pub fn residual_norm(
    rows: u64,
    axis: u32,
    dtype: Dtype,
    centered: bool,
    max_threads: u32,
) -> Result<LaunchPlan> {
    let dtype = kernel_dtype(dtype)?;
    Ok(ffi::residual_norm::bridge::residual_norm_plan(rows, axis, dtype, centered, max_threads)?
        .into())
}

/// Plans `rms_norm` over `rows` rows of `axis` elements.
///
/// ```
/// use mlx_primitives::{Dtype, plan};
///
/// let launch = plan::rms_norm(8, 4096, Dtype::Float16, true, plan::MAX_THREADS)?;
/// assert_eq!(launch.kernel, "mlxp_rms_norm_row_weighted_float16");
/// assert_eq!((launch.grid, launch.group), ([8, 1, 1], [1024, 1, 1]));
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn rms_norm(
    rows: u64,
    axis: u32,
    dtype: Dtype,
    weighted: bool,
    max_threads: u32,
) -> Result<LaunchPlan> {
    Ok(ffi::rms_norm::bridge::rms_norm_plan(
        rows,
        axis,
        kernel_dtype(dtype)?,
        weighted,
        max_threads,
    )?
    .into())
}

/// Plans `softmax` over `rows` rows of `axis` elements.
pub fn softmax(rows: u64, axis: u32, dtype: Dtype, max_threads: u32) -> Result<LaunchPlan> {
    Ok(ffi::softmax::bridge::softmax_plan(rows, axis, kernel_dtype(dtype)?, max_threads)?.into())
}

/// Plans `masked_softmax`, or its gradient, over `rows` rows of `keys` scores.
pub fn masked_softmax(
    rows: u64,
    keys: u32,
    dtype: Dtype,
    gradient: bool,
    max_threads: u32,
) -> Result<LaunchPlan> {
    let dtype = kernel_dtype(dtype)?;
    let plan = ffi::masked_softmax::bridge::masked_softmax_plan;
    Ok(plan(rows, keys, dtype, gradient, max_threads)?.into())
}

/// Plans `logsumexp`, or with `subtract` `log_softmax`, over `rows` rows of `axis` elements.
pub fn logsumexp(
    rows: u64,
    axis: u32,
    dtype: Dtype,
    subtract: bool,
    max_threads: u32,
) -> Result<LaunchPlan> {
    let dtype = kernel_dtype(dtype)?;
    let plan = ffi::logsumexp::bridge::logsumexp_plan;
    Ok(plan(rows, axis, dtype, subtract, max_threads)?.into())
}

/// Plans `cross_entropy`, or its gradient, over `rows` rows of `classes` logits.
pub fn cross_entropy(
    rows: u64,
    classes: u32,
    dtype: Dtype,
    gradient: bool,
    max_threads: u32,
) -> Result<LaunchPlan> {
    let dtype = kernel_dtype(dtype)?;
    let plan = ffi::cross_entropy::bridge::cross_entropy_plan;
    Ok(plan(rows, classes, dtype, gradient, max_threads)?.into())
}

/// The extents of a `rope` call, `x` being `[batch, heads, seq, head_dim]`.
#[derive(Clone, Copy, Debug)]
pub struct Rope {
    /// Batch entries.
    pub batch: usize,
    /// All dimensions between batch and time together.
    pub heads: usize,
    /// Positions.
    pub seq: usize,
    /// Features.
    pub head_dim: usize,
    /// Features that are rotated.
    pub dims: usize,
    /// Pairs of neighbours rather than of halves.
    pub traditional: bool,
    /// Frequencies given rather than made of a base.
    pub explicit_freqs: bool,
    /// The output takes the input's buffer.
    pub in_place: bool,
}

/// Plans `rope`.
pub fn rope(rope: Rope, dtype: Dtype, max_threads: u32) -> Result<LaunchPlan> {
    let call = ffi::rope::bridge::RopeCall {
        batch: rope.batch,
        heads: rope.heads,
        seq: rope.seq,
        head_dim: rope.head_dim,
        dims: rope.dims,
        traditional: rope.traditional,
        forward: true,
        base: 1.0,
        scale: 1.0,
    };
    Ok(ffi::rope::bridge::rope_plan(
        &call,
        kernel_dtype(dtype)?,
        rope.explicit_freqs,
        rope.in_place,
        max_threads,
    )?
    .into())
}

/// The extents of an `attention` call.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Batch entries.
    pub batch: u32,
    /// Key-value heads.
    pub kv_heads: u32,
    /// Query heads of each of them.
    pub group: u32,
    /// Queries.
    pub queries: u32,
    /// Keys.
    pub keys: u32,
    /// Features.
    pub dim: u32,
    /// Of a quantized key; 0 for plain ones.
    pub bits: u32,
}

/// Plans `attention`: one dispatch, or one over splits of the keys and one that joins them.
pub fn attention(call: Attention, dtype: Dtype, max_threads: u32) -> Result<Vec<LaunchPlan>> {
    let Attention { batch, kv_heads, group, queries, keys, dim, bits } = call;
    let shape =
        ffi::attention::bridge::AttentionShape { batch, kv_heads, group, queries, keys, dim };
    let dtype = kernel_dtype(dtype)?;
    let plan = |joining| -> Result<LaunchPlan> {
        let plan =
            ffi::attention::bridge::attention_plan(&shape, joining, bits, dtype, max_threads)?;
        Ok(plan.into())
    };
    let mut plans = vec![plan(false)?, plan(true)?];
    plans.retain(|plan| plan.grid[0] > 0);
    Ok(plans)
}

/// The types that kernels are instantiated for, as their names spell them.
fn kernel_dtype(dtype: Dtype) -> Result<&'static str> {
    match dtype {
        Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16 => Ok(dtype.name()),
        other => {
            Err(Error::argument("plan", format_args!("float32, float16 or bfloat16, got {other}")))
        }
    }
}
