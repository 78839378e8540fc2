//! Holds an op to a reference in `f64`: values in every type and layout, extreme values,
//! derivatives, vmap and `compile`, on the CPU, on the GPU where there is one, and on simulated
//! Metal where the build has the simulator.
//!
//! For ops of floating outputs, custom or not. Their inputs are of one floating type unless
//! [`inputs`](Conformance::inputs) says otherwise. Cases of one op may differ in the number of their
//! inputs: the closures see as many as the case has shapes.
//!
//! ```
//! use mlx_primitives::conformance::{Conformance, Tensor};
//!
//! let report = Conformance::new(
//!     "square",
//!     |x| Ok(vec![x[0].square()?]),
//!     |x| vec![x[0].map(|x| x * x)],
//! )
//! .shapes(&[&[2, 3]])
//! .run();
//! println!("{report}");
//! report.check()?; // all failures as one error
//! # Ok::<(), mlx_primitives::Error>(())
//! ```

mod bounds;
mod checks;
mod compare;
mod inputs;
mod mapped;
mod report;

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::array::Array;
use crate::device::{Device, with_device};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::simulator::{self, Schedule, with_metal, without_metal};

pub use bounds::{Bound, Compared};
use bounds::{Errors, Limit, Tolerance};
pub use inputs::{Input, Tensor};
pub use report::{Outcome, Report};

/// A thing to be held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Check {
    /// Values of all types in all layouts, and that nothing is computed before it is asked for.
    Values,
    /// Zeros, subnormals, the largest numbers, infinities and NaN, one at a time among others in each
    /// input and everywhere in the first, and all of them, each beside each of the other inputs.
    Extremes,
    /// `vjp` against differences of the reference, in the inputs that are [`Input::Float`].
    Vjp,
    /// `jvp` against differences of the reference, in the same inputs.
    Jvp,
    /// `vmap` against a loop: over one more axis at each place of each input, over one of every set of
    /// inputs, and over the short axes of a case as they are.
    Vmap,
    /// The same values from inside `compile`.
    Compile,
}

impl Check {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Values, Self::Extremes, Self::Vjp, Self::Jvp, Self::Vmap, Self::Compile];
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Values => "values",
            Self::Extremes => "extremes",
            Self::Vjp => "vjp",
            Self::Jvp => "jvp",
            Self::Vmap => "vmap",
            Self::Compile => "compile",
        })
    }
}

/// What runs the op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// `eval_cpu`.
    Cpu,
    /// The Metal kernels in the simulator.
    SimulatedMetal(Schedule),
    /// The Metal kernels on a GPU.
    Gpu,
}

impl Backend {
    /// All that this build has on this machine.
    pub fn available() -> Vec<Self> {
        let mut all = vec![Self::Cpu];
        if simulator::is_available() {
            all.extend(Schedule::ALL.map(Self::SimulatedMetal));
        }
        if Device::Gpu.is_available().unwrap_or(false) {
            all.push(Self::Gpu);
        }
        all
    }

    /// Whether it runs Metal kernels.
    pub fn is_metal(self) -> bool {
        self != Self::Cpu
    }

    fn run<R>(self, f: impl FnOnce() -> Result<R>) -> Result<R> {
        match self {
            Self::Cpu => with_device(Device::Cpu, || without_metal(f)),
            Self::SimulatedMetal(schedule) => with_device(Device::Cpu, || with_metal(schedule, f))?,
            Self::Gpu => with_device(Device::Gpu, f),
        }
    }
}

impl std::fmt::Display for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cpu => f.pad("cpu"),
            Self::SimulatedMetal(schedule) => f.pad(&format!("simulated metal, {schedule}")),
            Self::Gpu => f.pad("gpu"),
        }
    }
}

type Op = dyn Fn(&[Array]) -> Result<Vec<Array>>;
type Reference = dyn Fn(&[Tensor]) -> Vec<Tensor>;

/// An op, its reference, and what to run them on; see the [module](self).
pub struct Conformance {
    name: String,
    op: Rc<Op>,
    reference: Box<Reference>,
    backends: Vec<Backend>,
    cases: Vec<Vec<Vec<i32>>>,
    sizes: Vec<Vec<Vec<i32>>>,
    dtypes: Vec<Dtype>,
    range: (f64, f64),
    inputs: Vec<Input>,
    extremes: Vec<f64>,
    extremes_as_peer: bool,
    tolerance: Tolerance,
    errors: Option<Box<Errors>>,
    peer: Option<(Rc<Op>, Tolerance)>,
    vmap_tolerance: Option<Tolerance>,
    derivative_tolerance: Tolerance,
    left_out: BTreeMap<Check, String>,
}

impl Conformance {
    /// An op of arrays of one floating type, and the same in `f64`: outputs of the same shapes.
    pub fn new(
        name: impl Into<String>,
        op: impl Fn(&[Array]) -> Result<Vec<Array>> + 'static,
        reference: impl Fn(&[Tensor]) -> Vec<Tensor> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            op: Rc::new(op),
            reference: Box::new(reference),
            backends: Backend::available(),
            cases: Vec::new(),
            sizes: Vec::new(),
            dtypes: vec![Dtype::Float32, Dtype::Float16, Dtype::Bfloat16],
            range: (-3.0, 3.0),
            inputs: Vec::new(),
            extremes: Vec::new(),
            extremes_as_peer: false,
            tolerance: Tolerance::Epsilons(4.0),
            errors: None,
            peer: None,
            vmap_tolerance: None,
            derivative_tolerance: Tolerance::Epsilons(16.0),
            left_out: BTreeMap::new(),
        }
    }

    /// Adds a case: a shape for each input.
    pub fn shapes(mut self, inputs: &[&[i32]]) -> Self {
        self.cases.push(inputs.iter().map(|shape| shape.to_vec()).collect());
        self
    }

    /// Adds a case for values alone, of row-contiguous inputs: for large shapes, which take long.
    pub fn sizes(mut self, inputs: &[&[i32]]) -> Self {
        self.sizes.push(inputs.iter().map(|shape| shape.to_vec()).collect());
        self
    }

    /// What runs the op; all that this machine has unless set.
    pub fn backends(self, backends: &[Backend]) -> Self {
        Self { backends: backends.to_vec(), ..self }
    }

    /// The types of the inputs; float32, float16 and bfloat16 unless set.
    pub fn dtypes(self, dtypes: &[Dtype]) -> Self {
        Self { dtypes: dtypes.to_vec(), ..self }
    }

    /// Where ordinary values lie; from -3 to 3 unless set.
    pub fn range(self, low: f64, high: f64) -> Self {
        Self { range: (low, high), ..self }
    }

    /// What the inputs are, in their order. Those beyond the list are [`Input::Float`] in the
    /// [`range`](Self::range), as all are unless set.
    pub fn inputs(self, inputs: &[Input]) -> Self {
        Self { inputs: inputs.to_vec(), ..self }
    }

    /// Numbers that are extreme for this op beside those that are for any; they are rounded to the
    /// type.
    pub fn extremes(self, numbers: &[f64]) -> Self {
        Self { extremes: numbers.to_vec(), ..self }
    }

    /// Holds extreme numbers to the peer alone, not to the reference: for ops that overflow on the
    /// way, where `f64` does not.
    pub fn extremes_as_peer(self) -> Self {
        Self { extremes_as_peer: true, ..self }
    }

    /// How far a value may be from the reference: this multiple of the type's epsilon, of the larger
    /// of 1 and the value itself. 4 unless set.
    pub fn tolerance(self, epsilons: f64) -> Self {
        Self { tolerance: Tolerance::Epsilons(epsilons), ..self }
    }

    /// In place of [`tolerance`](Self::tolerance): how far a value may be from the reference, in
    /// units in the last place of the reference's value.
    pub fn ulps(self, ulps: impl Fn(Dtype) -> f64 + 'static) -> Self {
        self.bounds(move |compared| Bound::ulps(ulps(compared.dtype)))
    }

    /// In place of [`tolerance`](Self::tolerance): a bound for each comparison, which may depend on
    /// the backend, the type and the inputs.
    pub fn bounds(self, bound: impl Fn(&Compared<'_>) -> Bound + 'static) -> Self {
        Self { tolerance: Tolerance::Bounds(Box::new(bound)), ..self }
    }

    /// An error for each value of each output, beside what [`bounds`](Self::bounds) and the like
    /// allow: for sums whose terms may be larger than they are. Where an error is infinite or NaN, the
    /// value has to be the same.
    pub fn errors(self, errors: impl Fn(&Compared<'_>) -> Vec<Tensor> + 'static) -> Self {
        Self { errors: Some(Box::new(errors)), ..self }
    }

    /// How far a value of `vmap` may be from that of the op on a slice; as far as from the reference
    /// unless set. The default [`Bound`] allows no difference.
    pub fn vmap_bounds(self, bound: impl Fn(&Compared<'_>) -> Bound + 'static) -> Self {
        Self { vmap_tolerance: Some(Tolerance::Bounds(Box::new(bound))), ..self }
    }

    /// Holds the values to another implementation too, such as MLX's own op, which may round where
    /// the op does and the reference does not. Of empty inputs, which it may refuse, the shapes and
    /// types of its outputs count alone.
    pub fn peer(
        self,
        peer: impl Fn(&[Array]) -> Result<Vec<Array>> + 'static,
        bound: impl Fn(&Compared<'_>) -> Bound + 'static,
    ) -> Self {
        Self { peer: Some((Rc::new(peer), Tolerance::Bounds(Box::new(bound)))), ..self }
    }

    /// How far a derivative may be from the reference's: this multiple of the type's epsilon, of the
    /// larger of 1 and the derivative. 16 unless set.
    pub fn derivative_tolerance(self, epsilons: f64) -> Self {
        Self { derivative_tolerance: Tolerance::Epsilons(epsilons), ..self }
    }

    /// In place of [`derivative_tolerance`](Self::derivative_tolerance): a bound for each comparison.
    pub fn derivative_bounds(self, bound: impl Fn(&Compared<'_>) -> Bound + 'static) -> Self {
        Self { derivative_tolerance: Tolerance::Bounds(Box::new(bound)), ..self }
    }

    /// Leaves a check out; the report says so, and why.
    pub fn without(mut self, check: Check, why: impl Into<String>) -> Self {
        self.left_out.insert(check, why.into());
        self
    }

    fn limit(&self, tolerance: &Tolerance, compared: &Compared<'_>) -> Limit {
        tolerance.limit(self.errors.as_deref(), compared)
    }

    fn vmap_limit(&self, compared: &Compared<'_>) -> Limit {
        match &self.vmap_tolerance {
            Some(tolerance) => tolerance.limit(None, compared),
            None => self.limit(&self.tolerance, compared),
        }
    }

    /// Runs everything. Whatever the op does, panics included, ends in the report.
    pub fn run(&self) -> Report {
        let mut report = Report::new(&self.name);
        if !self.backends.iter().any(|backend| backend.is_metal()) {
            report.leave_out(
                "Metal: it was not asked for, or there is neither a GPU nor the simulator",
            );
        }
        for (check, why) in &self.left_out {
            report.leave_out(format_args!("{check}: {why}"));
        }
        if self.cases.is_empty() && self.sizes.is_empty() {
            report.leave_out("everything: no shapes were given");
        }
        for &backend in &self.backends {
            for check in Check::ALL {
                if !self.left_out.contains_key(&check) {
                    self.run_check(backend, check, &mut report);
                }
            }
        }
        report
    }
}
