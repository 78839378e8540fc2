//! The types of the comparison: a workload is an op on a shape, a case is a workload in one element
//! type, called in one way.

use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use anyhow::ensure;
use half::vec::HalfFloatVecExt;
use half::{bf16, f16};
use mlx_primitives::transforms::vjp;
use mlx_primitives::{Array, Dtype, Result, builtin, eval};

pub const TYPES: [Dtype; 3] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];

/// The way in which an op is called. For `Single` and `Chain`, the discriminant is the largest
/// number of ops in a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Builds one op, evaluates it and waits.
    Single = 1,
    /// Several ops in one graph, each of which takes the previous result. The time is per op.
    Chain = 64,
    /// Evaluates the gradients of the arrays that are trained, given the gradient of the result.
    Backward = 0,
}

impl Kind {
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// One token.
    Decode,
    /// A prompt.
    Prefill,
    /// A prompt that runs without a chain: the op's result cannot be its next input, or MLX's
    /// built-ins would take many seconds in a chain.
    Wide,
    /// Larger than the caches.
    Large,
}

pub type MakeInputs = dyn Fn(&Case) -> Result<Inputs>;

/// An op on a shape.
pub struct Workload {
    /// The function's name in `ops`.
    pub op: &'static str,
    pub shape: &'static [i32],
    /// Distinguishes workloads with the same op and shape, and selects their inputs; may be empty.
    pub variant: &'static str,
    pub size: Size,
    /// The reason why the op is slower than the machine's limit; empty if it comes close.
    pub why: &'static str,
    pub inputs: Rc<MakeInputs>,
}

impl Workload {
    pub fn shape_label(&self) -> String {
        let dims: Vec<_> = self.shape.iter().map(i32::to_string).collect();
        format!("[{}] {}", dims.join(","), self.variant).trim_end().to_owned()
    }
}

pub type Function = Rc<dyn Fn(&Array, &[Array]) -> Result<Array>>;

/// The evaluated arrays that an op is called with, and the implementations to call.
pub struct Inputs {
    pub x: Array,
    pub others: Vec<Array>,
    pub ours: Function,
    /// MLX's built-in, or the best composition of its built-ins; `None` if that takes too long.
    pub builtin: Option<Function>,
    /// The number of bytes that every implementation has to read.
    pub read: usize,
    /// The number of bytes that every implementation has to write.
    pub written: usize,
    /// The floating-point operations of matrix products, and the type of their factors; `None` for
    /// other ops.
    pub products: Option<(f64, Dtype)>,
    /// The number of last arrays in `others` that are not trained. Arrays of integers are never
    /// trained, and do not count.
    pub frozen: usize,
}

impl Inputs {
    /// An op that reads `x` and `others`, writes as many bytes as `x` has, and is compared with its
    /// composition.
    pub fn new(
        x: Array,
        others: impl Into<Vec<Array>>,
        ours: impl Fn(&Array, &[Array]) -> Result<Array> + 'static,
    ) -> Self {
        let (others, ours): (_, Function) = (others.into(), Rc::new(ours));
        let (written, peer) = (x.nbytes(), ours.clone());
        let read = written + others.iter().map(Array::nbytes).sum::<usize>();
        let inputs =
            Self { x, others, ours, builtin: None, read, written, products: None, frozen: 0 };
        // The peer first builds our op, which takes about a microsecond, and then asks for its
        // composition.
        inputs.against(move |x, others| Ok(builtin::composition(&peer(x, others)?)?.swap_remove(0)))
    }

    /// The gradients of x and of the arrays in `others` that are trained.
    fn backward(self) -> Result<Self> {
        let trained = &self.others[..self.others.len() - self.frozen];
        let places: Vec<_> =
            (0..trained.len()).filter(|&i| trained[i].dtype().is_floating()).collect();
        let g = (self.ours)(&self.x, &self.others)?;
        g.eval()?;
        let written = self.x.nbytes() + places.iter().map(|&i| trained[i].nbytes()).sum::<usize>();
        let read = self.read + g.nbytes();
        // The gradient of x takes one product, and the gradient of each trained matrix takes
        // another one. An array counts as a matrix if it has at least as many elements as x.
        let matrices = places.iter().filter(|&&i| trained[i].size() >= self.x.size()).count();
        let products = self.products.map(|(flops, dtype)| (flops * (1 + matrices) as f64, dtype));
        let of = |f: Function| -> Function {
            let (g, places) = (g.clone(), places.clone());
            Rc::new(move |x, others| {
                let function = |p: Vec<Array>| {
                    let mut all = others.to_vec();
                    for (&place, array) in places.iter().zip(&p[1..]) {
                        all[place] = array.clone();
                    }
                    Ok(vec![f(&p[0], &all)?])
                };
                let primals: Vec<_> =
                    std::iter::once(x).chain(places.iter().map(|&i| &others[i])).collect();
                let mut gradients = vjp(function, &primals[..], &[&g])?.1;
                eval(&gradients)?;
                Ok(gradients.swap_remove(0))
            })
        };
        let (ours, builtin) = (of(self.ours.clone()), self.builtin.clone().map(of));
        Ok(Self { ours, builtin, read, written, products, ..self })
    }

    pub fn against(self, builtin: impl Fn(&Array, &[Array]) -> Result<Array> + 'static) -> Self {
        Self { builtin: Some(Rc::new(builtin)), ..self }
    }
}

/// A workload with a type and a way to call it.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    pub workload: &'a Workload,
    pub dtype: Dtype,
    pub kind: Kind,
}

impl Case<'_> {
    pub fn inputs(&self) -> anyhow::Result<Inputs> {
        let mut inputs = (self.workload.inputs)(self)?;
        // A call must build a single node on top of data, since the time of any other node would
        // count too.
        let data = inputs.x.is_scheduled() && inputs.x.primitive().is_none();
        ensure!(data && inputs.x.is_row_contiguous(), "the input is not evaluated and contiguous");
        if self.workload.size == Size::Large && inputs.products.is_some() {
            inputs.builtin = None; // MLX's takes seconds
        }
        if self.kind == Kind::Backward {
            return Ok(inputs.backward()?);
        }
        Ok(inputs)
    }

    /// A length in the shape; a negative axis counts from the last one.
    pub fn dim(&self, axis: i32) -> i32 {
        let rank = self.workload.shape.len() as i32;
        self.workload.shape[axis.rem_euclid(rank) as usize]
    }

    /// An input of the workload's shape.
    pub fn x(&self) -> Result<Array> {
        self.ready(self.workload.shape, -4.0..4.0)
    }

    /// A factor for each element of the last axis.
    pub fn weight(&self) -> Result<Array> {
        self.ready(&[self.dim(-1)], 0.8..1.2)
    }

    /// A term for each element of the last axis.
    pub fn bias(&self) -> Result<Array> {
        self.ready(&[self.dim(-1)], -0.2..0.2)
    }

    /// An evaluated array of pseudorandom numbers in the range.
    pub fn ready(&self, shape: &[i32], range: Range<f32>) -> Result<Array> {
        let count: usize = shape.iter().map(|&dim| dim as usize).product();
        let mut state = 1u32;
        let numbers = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            range.start + (range.end - range.start) * (state >> 8) as f32 / (1 << 24) as f32
        });
        let numbers: Vec<f32> = numbers.take(count).collect();
        // Rust converts the numbers, because MLX's conversion would leave them in small pages.
        let array = match self.dtype {
            Dtype::Float16 => Array::from_slice(&Vec::<f16>::from_f32_slice(&numbers), shape),
            Dtype::Bfloat16 => Array::from_slice(&Vec::<bf16>::from_f32_slice(&numbers), shape),
            _ => Array::from_slice(&numbers, shape),
        }?;
        array.eval()?;
        Ok(array)
    }
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shape, kind) = (self.workload.shape_label(), self.kind.name());
        write!(f, "{} {shape} {} {kind}", self.workload.op, self.dtype)
    }
}

/// The cases of these ops and types; an empty list stands for all. They are ordered by op, shape
/// and kind.
pub fn select<'a>(
    workloads: &'a [Workload],
    ops: &[String],
    types: &[Dtype],
    quick: bool,
    large: bool,
) -> Vec<Case<'a>> {
    let types = if types.is_empty() { &TYPES } else { types };
    let mut cases = Vec::new();
    for workload in workloads {
        let named = ops.is_empty() || ops.iter().any(|op| op == workload.op);
        if !named || large && workload.size != Size::Large {
            continue;
        }
        let wide = matches!(workload.size, Size::Wide | Size::Large);
        for kind in [Kind::Single, Kind::Chain] {
            for (index, &dtype) in types.iter().enumerate() {
                let wanted = match kind {
                    Kind::Single => !quick || !wide || index == 0,
                    Kind::Backward => false,
                    Kind::Chain => !wide && (!quick || workload.size == Size::Decode),
                };
                cases.extend(wanted.then_some(Case { workload, dtype, kind }));
            }
        }
    }
    cases
}

/// Ops whose gradients are not compared: a result is packed, or is a gradient already.
const NO_GRADIENTS: [&str; 2] = ["quantize", "cross_entropy"];

/// The cases of prompts, each followed by the case of its gradients.
pub fn with_gradients<'a>(cases: Vec<Case<'a>>) -> Vec<Case<'a>> {
    let prompt = |case: &Case| {
        let Workload { op, size, .. } = case.workload;
        let differs = !NO_GRADIENTS.contains(op);
        case.kind == Kind::Single && differs && matches!(size, Size::Prefill | Size::Wide)
    };
    let both = |case: Case<'a>| [case, Case { kind: Kind::Backward, ..case }];
    cases.into_iter().filter(prompt).flat_map(both).collect()
}
