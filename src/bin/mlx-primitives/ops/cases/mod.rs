//! What is compared: which op, on what shape and type, called how. A file for each primitive.

mod activation;
mod attention;
mod cross_entropy;
mod layer_norm;
mod linear;
mod logsumexp;
mod lora;
mod masked_softmax;
mod quantize;
mod quantized_matmul;
mod reduce;
mod residual_norm;
mod rms_norm;
mod rope;
mod rope_append;
mod softmax;

use std::fmt;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use half::{bf16, f16};
use mlx_primitives::yardstick::Product;
use mlx_primitives::{Array, Dtype};

/// Every workload, an op's together and in the order of the tables.
pub fn all() -> Vec<Workload> {
    [
        rms_norm::workloads(),
        layer_norm::workloads(),
        residual_norm::workloads(),
        softmax::workloads(),
        masked_softmax::workloads(),
        logsumexp::workloads(),
        cross_entropy::workloads(),
        rope::workloads(),
        rope_append::workloads(),
        quantize::workloads(),
        attention::workloads(),
        linear::workloads(),
        quantized_matmul::workloads(),
        lora::workloads(),
        activation::workloads(),
        reduce::workloads(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The names of the ops.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = all().iter().map(|workload| workload.op).collect();
    names.dedup();
    names
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Type {
    Float32,
    Float16,
    Bfloat16,
}

impl Type {
    pub fn dtype(self) -> Dtype {
        match self {
            Self::Float32 => Dtype::Float32,
            Self::Float16 => Dtype::Float16,
            Self::Bfloat16 => Dtype::Bfloat16,
        }
    }
}

/// How an op is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One op built, evaluated and waited for.
    Single,
    /// Up to [`CHAIN`] ops in one graph, each fed by the last; the time is that of one of them.
    Chain,
}

/// Ops in a chain, at most.
pub const CHAIN: usize = 64;

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Chain => "chain",
        }
    }

    pub fn calls(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Chain => CHAIN,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// One token.
    Decode,
    /// A prompt.
    Prefill,
    /// A prompt where a chain of the built-ins would take many seconds, or an op whose result
    /// cannot be its next input.
    Wide,
    /// Beyond the caches.
    Large,
}

/// An op on a shape.
pub struct Workload {
    /// The function's name in `ops`.
    pub op: &'static str,
    pub shape: Vec<i32>,
    /// What else tells it from the op's other workloads; empty for nothing.
    pub variant: &'static str,
    pub size: Size,
    /// What keeps the op from the machine's limit; empty if nothing much does.
    pub why: &'static str,
    /// The inputs for an element type.
    pub inputs: Box<dyn Fn(Dtype) -> Result<Inputs>>,
}

/// Why ops with an exponential for each element stay below what memory allows in 16-bit types.
const EXPONENTIALS: &str = "an exponential for each element takes longer than moving it";
/// Why norms do, and rotations: steps that are rounded as MLX's composition rounds them.
const ROUNDINGS: &str = "each step is rounded to the type, which takes longer than moving it";

impl Workload {
    fn new(
        op: &'static str,
        shape: &[i32],
        variant: &'static str,
        size: Size,
        inputs: impl Fn(Dtype) -> Result<Inputs> + 'static,
    ) -> Self {
        Self { op, shape: shape.to_vec(), variant, size, why: "", inputs: Box::new(inputs) }
    }

    /// Said under the table where the op stays far below the limit.
    fn because(self, why: &'static str) -> Self {
        Self { why, ..self }
    }

    pub fn shape_label(&self) -> String {
        let dims: Vec<_> = self.shape.iter().map(i32::to_string).collect();
        let space = if self.variant.is_empty() { "" } else { " " };
        format!("[{}]{space}{}", dims.join(","), self.variant)
    }
}

pub type Function = Box<dyn Fn(&Array) -> mlx_primitives::Result<Array>>;

/// The evaluated arrays that a workload is called with, held by the functions but for `x`.
pub struct Inputs {
    pub x: Array,
    pub ours: Function,
    /// MLX's built-in, or the best composition of its built-ins; none where that takes too long.
    pub builtin: Option<Function>,
    /// Bytes that any implementation has to read at least,
    pub read: usize,
    /// and to write.
    pub written: usize,
    /// Floating-point operations of products of matrices, and of what numbers; none for other ops.
    pub products: Option<(f64, Product)>,
}

impl Inputs {
    pub fn new(workload: &Workload, dtype: Dtype) -> Result<Self> {
        let inputs = (workload.inputs)(dtype)?;
        // A call must be one node over data: whatever else the graph held would be timed with it.
        let data = inputs.x.is_scheduled() && inputs.x.primitive().is_none();
        ensure!(data && inputs.x.is_row_contiguous(), "the input is not evaluated and contiguous");
        Ok(inputs)
    }
}

/// A workload with a type, called one way.
pub struct Case<'a> {
    pub workload: &'a Workload,
    pub dtype: Dtype,
    pub kind: Kind,
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shape, kind) = (self.workload.shape_label(), self.kind.name());
        write!(f, "{} {shape} {} {kind}", self.workload.op, self.dtype)
    }
}

/// The cases of the ops and types, or of all where none is named; ordered by op, shape, kind.
pub fn select<'a>(
    workloads: &'a [Workload],
    ops: &[String],
    types: &[Type],
    quick: bool,
    large: bool,
) -> Vec<Case<'a>> {
    let types = if types.is_empty() { Type::value_variants() } else { types };
    let mut cases = Vec::new();
    for workload in workloads {
        if !ops.is_empty() && !ops.iter().any(|op| op == workload.op) {
            continue;
        }
        if large && workload.size != Size::Large {
            continue;
        }
        for kind in [Kind::Single, Kind::Chain] {
            for (index, dtype) in types.iter().enumerate() {
                let wanted = match (kind, workload.size) {
                    (Kind::Single, Size::Wide | Size::Large) => !quick || index == 0,
                    (Kind::Single, _) | (Kind::Chain, Size::Decode) => true,
                    (Kind::Chain, Size::Prefill) => !quick,
                    (Kind::Chain, Size::Wide | Size::Large) => false,
                };
                if wanted {
                    cases.push(Case { workload, dtype: dtype.dtype(), kind });
                }
            }
        }
    }
    cases
}

const EPS: f32 = 1e-5;

/// What a product of numbers of this type is made of at best.
fn product_of(dtype: Dtype) -> Product {
    if dtype == Dtype::Bfloat16 { Product::Bfloat16 } else { Product::Float32 }
}

/// An evaluated array of numbers spread over the range, in no order.
fn ready(
    shape: &[i32],
    dtype: Dtype,
    range: std::ops::Range<f32>,
) -> mlx_primitives::Result<Array> {
    let count: usize = shape.iter().map(|&dim| dim as usize).product();
    let mut state = 1u32;
    let numbers = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        range.start + (range.end - range.start) * (state >> 8) as f32 / (1 << 24) as f32
    })
    .take(count);
    // Converted here: MLX's own conversion would leave them in small pages.
    let array = match dtype {
        Dtype::Float16 => {
            Array::from_slice(&numbers.map(f16::from_f32).collect::<Vec<_>>(), shape)?
        }
        Dtype::Bfloat16 => {
            Array::from_slice(&numbers.map(bf16::from_f32).collect::<Vec<_>>(), shape)?
        }
        _ => Array::from_slice(&numbers.collect::<Vec<_>>(), shape)?,
    };
    array.eval()?;
    Ok(array)
}
