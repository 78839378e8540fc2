//! What is compared: which op, on what shape and type, called how.

use std::fmt;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use mlx_primitives::{Array, Dtype, builtin, ops};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Op {
    RmsNorm,
    Softmax,
    Rope,
}

impl Op {
    pub fn name(self) -> &'static str {
        match self {
            Self::RmsNorm => "rms_norm",
            Self::Softmax => "softmax",
            Self::Rope => "rope",
        }
    }

    /// The graph node that ours is.
    fn primitive(self) -> &'static str {
        match self {
            Self::RmsNorm => "RmsNorm",
            Self::Softmax => "Softmax",
            Self::Rope => "Rope",
        }
    }
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
    /// [`CHAIN`] ops in one graph, each fed by the last; the time is that of one of them.
    Chain,
}

/// Ops in a chain.
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
enum Size {
    /// One token.
    Decode,
    /// A prompt.
    Prefill,
    /// A prompt where a chain of some built-in would take many seconds.
    Wide,
    /// Beyond the caches.
    Large,
}

/// An op on a shape.
pub struct Workload {
    pub op: Op,
    pub shape: &'static [i32],
    /// Rope's pairs are neighbours.
    pub traditional: bool,
    size: Size,
}

const fn on(op: Op, shape: &'static [i32], size: Size) -> Workload {
    Workload { op, shape, traditional: false, size }
}

static WORKLOADS: [Workload; 14] = [
    on(Op::RmsNorm, &[1, 1, 4096], Size::Decode),
    on(Op::RmsNorm, &[8, 128, 768], Size::Prefill),
    on(Op::RmsNorm, &[1, 512, 2048], Size::Prefill),
    on(Op::RmsNorm, &[4, 2048, 4096], Size::Large),
    on(Op::Softmax, &[1, 1, 4096], Size::Decode),
    on(Op::Softmax, &[1, 32, 1, 512], Size::Decode),
    on(Op::Softmax, &[8, 128, 768], Size::Prefill),
    on(Op::Softmax, &[1, 512, 2048], Size::Wide),
    on(Op::Softmax, &[1, 32, 512, 512], Size::Wide),
    on(Op::Softmax, &[4, 2048, 4096], Size::Large),
    on(Op::Rope, &[1, 32, 1, 64], Size::Decode),
    on(Op::Rope, &[1, 32, 512, 64], Size::Prefill),
    Workload { op: Op::Rope, shape: &[1, 32, 512, 64], traditional: true, size: Size::Prefill },
    on(Op::Rope, &[4, 32, 2048, 128], Size::Large),
];

impl Workload {
    pub fn shape_label(&self) -> String {
        let dims: Vec<_> = self.shape.iter().map(i32::to_string).collect();
        let suffix = if self.traditional { " traditional" } else { "" };
        format!("[{}]{suffix}", dims.join(","))
    }
}

/// A workload with a type, called one way.
pub struct Case {
    pub workload: &'static Workload,
    pub dtype: Dtype,
    pub kind: Kind,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Workload { op, .. } = self.workload;
        let (shape, kind) = (self.workload.shape_label(), self.kind.name());
        write!(f, "{} {shape} {} {kind}", op.name(), self.dtype)
    }
}

/// The cases of the ops and types, or of all where none is named; ordered by op, shape, kind.
pub fn select(ops: &[Op], types: &[Type], quick: bool) -> Vec<Case> {
    let types = if types.is_empty() { Type::value_variants() } else { types };
    let mut cases = Vec::new();
    for workload in &WORKLOADS {
        if !ops.is_empty() && !ops.contains(&workload.op) {
            continue;
        }
        for kind in [Kind::Single, Kind::Chain] {
            for (index, dtype) in types.iter().enumerate() {
                let wanted = match (kind, workload.size) {
                    (Kind::Single, Size::Large) => !quick || index == 0,
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

/// The evaluated arrays that a workload is called with.
pub struct Inputs {
    workload: &'static Workload,
    pub x: Array,
    weight: Option<Array>,
    offset: Array,
}

impl Inputs {
    pub fn new(workload: &'static Workload, dtype: Dtype) -> Result<Self> {
        let &axis = workload.shape.last().expect("every shape has an axis");
        let weight = match workload.op {
            Op::RmsNorm => Some(ready(&[axis], dtype, 0.8..1.2)?),
            Op::Softmax | Op::Rope => None,
        };
        let x = ready(workload.shape, dtype, -4.0..4.0)?;
        let offset = Array::scalar(100i32)?;
        let inputs = Self { workload, x, weight, offset };
        inputs.require_one_node()?;
        Ok(inputs)
    }

    /// A call must be one node over data: whatever else the graph held would be timed with it.
    fn require_one_node(&self) -> Result<()> {
        for input in [Some(&self.x), self.weight.as_ref(), Some(&self.offset)].into_iter().flatten()
        {
            let data = input.is_scheduled() && input.primitive().is_none();
            ensure!(data && input.is_row_contiguous(), "an input is not evaluated and contiguous");
        }
        let node = self.ours(&self.x)?.primitive().unwrap_or_default();
        ensure!(node == self.workload.op.primitive(), "expected one node of ours, got {node}");
        Ok(())
    }

    pub fn ours(&self, x: &Array) -> mlx_primitives::Result<Array> {
        let Workload { op, shape, traditional, .. } = *self.workload;
        match op {
            Op::RmsNorm => ops::rms_norm(x, self.weight.as_ref(), EPS),
            Op::Softmax => ops::softmax(x),
            Op::Rope => {
                let dims = shape[shape.len() - 1];
                ops::rope(x, dims, traditional, Some(BASE), 1.0, &self.offset, None)
            }
        }
    }

    pub fn builtin(&self, x: &Array) -> mlx_primitives::Result<Array> {
        let Workload { op, shape, traditional, .. } = *self.workload;
        match op {
            Op::RmsNorm => builtin::rms_norm(x, self.weight.as_ref(), EPS),
            Op::Softmax => builtin::softmax(x),
            Op::Rope => {
                let dims = shape[shape.len() - 1];
                builtin::rope(x, dims, traditional, Some(BASE), 1.0, &self.offset, None)
            }
        }
    }

    /// What any implementation has to read and write at least.
    pub fn ideal_bytes(&self) -> usize {
        2 * self.x.nbytes() + self.weight.as_ref().map_or(0, Array::nbytes)
    }
}

const EPS: f32 = 1e-5;
const BASE: f32 = 10_000.0;

/// An evaluated array of numbers spread over the range, in no order.
fn ready(
    shape: &[i32],
    dtype: Dtype,
    range: std::ops::Range<f32>,
) -> mlx_primitives::Result<Array> {
    let count: usize = shape.iter().map(|&dim| dim as usize).product();
    let mut state = 1u32;
    let numbers: Vec<f32> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        range.start + (range.end - range.start) * (state >> 8) as f32 / (1 << 24) as f32
    })
    .take(count)
    .collect();
    let array = Array::from_slice(&numbers, shape)?.astype(dtype)?;
    array.eval()?;
    Ok(array)
}
