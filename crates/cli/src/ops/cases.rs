//! Defines workloads and cases. A workload is an op with an input shape. A case is a workload with
//! one element type and one way of calling the op.

use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use anyhow::ensure;
use half::vec::HalfFloatVecExt;
use half::{bf16, f16};
use mlx_primitives::transforms::vjp;
use mlx_primitives::{Array, Dtype, Result, builtin, eval};

pub const TYPES: [Dtype; 3] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];

/// The way in which a case calls the op. For `Single` and `Chain`, the discriminant is the maximum
/// number of ops in a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Builds one op, evaluates it, and waits for the result.
    Single = 1,
    /// Builds several ops in one graph. The input of an op is the result of the previous op. The
    /// measured time is divided by the number of ops.
    Chain = 64,
    /// Evaluates the gradients of `x` and of the trained arrays, given the gradient of the result.
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
    /// One token or a prompt, without a case for a chain. Either the op's result cannot be its next
    /// input, or MLX's built-ins would take many seconds in a chain.
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
    /// Distinguishes workloads with the same op and shape, and selects their inputs. May be empty.
    pub variant: &'static str,
    pub size: Size,
    /// The reason why the op does not reach the machine's limit; empty if it comes close.
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

/// The evaluated arrays that a case passes to the op, and the implementations to call.
pub struct Inputs {
    pub x: Array,
    pub others: Vec<Array>,
    pub ours: Function,
    /// MLX's built-in, or the best composition of its built-ins; `None` if calling it would take
    /// too long.
    pub builtin: Option<Function>,
    /// The bytes that every implementation has to read.
    pub read: usize,
    /// The bytes that every implementation has to write.
    pub written: usize,
    /// The number of floating-point operations in matrix products, and the type of the factors.
    /// `None` for ops without matrix products.
    pub products: Option<(f64, Dtype)>,
    /// The number of arrays at the end of `others` that are not trained. Integer arrays are never
    /// trained and need not be counted.
    pub frozen: usize,
}

impl Inputs {
    /// Makes inputs for an op that reads `x` and `others`, writes as many bytes as `x` has, and is
    /// compared with its composition of MLX's ops.
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
        // The peer builds our op and then asks for its composition. Building the op takes about a
        // microsecond.
        inputs.against(move |x, others| Ok(builtin::composition(&peer(x, others)?)?.swap_remove(0)))
    }

    /// Returns inputs whose implementations compute the gradients of `x` and of the trained arrays
    /// in `others`.
    fn backward(self) -> Result<Self> {
        let trained = &self.others[..self.others.len() - self.frozen];
        let places: Vec<_> =
            (0..trained.len()).filter(|&i| trained[i].dtype().is_floating()).collect();
        let g = (self.ours)(&self.x, &self.others)?;
        g.eval()?;
        let written = self.x.nbytes() + places.iter().map(|&i| trained[i].nbytes()).sum::<usize>();
        let read = self.read + g.nbytes();
        // Count one product for the gradient of x, and one for the gradient of each trained matrix.
        // An array with at least as many elements as x counts as a matrix.
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

/// A workload with an element type and a way of calling the op.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    pub workload: &'a Workload,
    pub dtype: Dtype,
    pub kind: Kind,
}

impl Case<'_> {
    pub fn inputs(&self) -> anyhow::Result<Inputs> {
        let mut inputs = (self.workload.inputs)(self)?;
        // The input must be data and not a lazy node. Otherwise the time of computing the input
        // would count too.
        let data = inputs.x.is_scheduled() && inputs.x.primitive().is_none();
        ensure!(data && inputs.x.is_row_contiguous(), "the input is not evaluated and contiguous");
        if self.workload.size == Size::Large && inputs.products.is_some() {
            inputs.builtin = None; // MLX's built-in takes seconds
        }
        if self.kind == Kind::Backward {
            return Ok(inputs.backward()?);
        }
        Ok(inputs)
    }

    /// Returns the length of an axis of the shape. Negative axes count from the end.
    pub fn dim(&self, axis: i32) -> i32 {
        let rank = self.workload.shape.len() as i32;
        self.workload.shape[axis.rem_euclid(rank) as usize]
    }

    /// Returns an input with the workload's shape.
    pub fn x(&self) -> Result<Array> {
        self.ready(self.workload.shape, -4.0..4.0)
    }

    /// Returns a factor for each element of the last axis.
    pub fn weight(&self) -> Result<Array> {
        self.ready(&[self.dim(-1)], 0.8..1.2)
    }

    /// Returns a bias for each element of the last axis.
    pub fn bias(&self) -> Result<Array> {
        self.ready(&[self.dim(-1)], -0.2..0.2)
    }

    /// Returns an evaluated array of pseudorandom numbers in the range.
    pub fn ready(&self, shape: &[i32], range: Range<f32>) -> Result<Array> {
        let count: usize = shape.iter().map(|&dim| dim as usize).product();
        let mut state = 1u32;
        let numbers = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            range.start + (range.end - range.start) * (state >> 8) as f32 / (1 << 24) as f32
        });
        let numbers: Vec<f32> = numbers.take(count).collect();
        // Rust converts the numbers. `from_slice` puts large arrays into large pages, but MLX's
        // conversion would put its result into small pages.
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

/// Returns the cases with these ops and types, by op, shape and kind. An empty list selects all.
/// `quick` leaves out some cases, and `large` keeps only shapes larger than the caches.
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

/// The ops without a comparison of gradients. The result of `quantize` is packed, and a variant of
/// `cross_entropy` computes a gradient itself.
const NO_GRADIENTS: [&str; 2] = ["quantize", "cross_entropy"];

/// Returns the single calls of the sizes `Prefill` and `Wide`. Each is followed by the case that
/// computes its gradients.
pub fn with_gradients<'a>(cases: Vec<Case<'a>>) -> Vec<Case<'a>> {
    let prompt = |case: &Case| {
        let Workload { op, size, .. } = case.workload;
        let differs = !NO_GRADIENTS.contains(op);
        case.kind == Kind::Single && differs && matches!(size, Size::Prefill | Size::Wide)
    };
    let both = |case: Case<'a>| [case, Case { kind: Kind::Backward, ..case }];
    cases.into_iter().filter(prompt).flat_map(both).collect()
}
