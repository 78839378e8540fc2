//! Holds an op to a reference in `f64`: values in every type and layout, extreme values,
//! derivatives, vmap and `compile`, on the CPU, on the GPU where there is one, and on simulated
//! Metal where the build has the simulator.
//!
//! For ops of floating inputs, hosted or not. Inputs whose values the op does not differentiate in,
//! such as indices, belong into the closures.
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
mod inputs;
mod report;

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::array::Array;
use crate::device::{Device, with_device};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::simulator::{self, Schedule, with_metal, without_metal};

use bounds::Tolerance;
pub use bounds::{Bound, Compared};
pub use inputs::Tensor;
pub use report::{Outcome, Report};

/// A thing to be held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Check {
    /// Values of all types in all layouts, and that nothing is computed before it is asked for.
    Values,
    /// Zeros, subnormals, the largest numbers, infinities and NaN, one at a time among others and
    /// all together.
    Extremes,
    /// `vjp` against differences of the reference.
    Vjp,
    /// `jvp` against differences of the reference.
    Jvp,
    /// `vmap` over each axis of each input, and of all inputs together, against a loop.
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
    tolerance: Tolerance,
    peer: Option<(Rc<Op>, Tolerance)>,
    derivative_tolerance: f64,
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
            tolerance: Tolerance::Epsilons(4.0),
            peer: None,
            derivative_tolerance: 16.0,
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

    /// How far a value may be from the reference: so many times the type's epsilon, of the larger
    /// of 1 and the value itself. 4 unless set.
    pub fn tolerance(self, epsilons: f64) -> Self {
        Self { tolerance: Tolerance::Epsilons(epsilons), ..self }
    }

    /// In place of [`tolerance`](Self::tolerance): how far a value may be from the reference, in
    /// units in the last place of the reference's value.
    pub fn ulps(self, ulps: impl Fn(Dtype) -> f64 + 'static) -> Self {
        self.bounds(move |compared| Bound { ulps: ulps(compared.dtype), absolute: 0.0 })
    }

    /// In place of [`tolerance`](Self::tolerance): a bound for each comparison, which may depend on
    /// the backend, the type and the inputs.
    pub fn bounds(self, bound: impl Fn(&Compared<'_>) -> Bound + 'static) -> Self {
        Self { tolerance: Tolerance::Bounds(Box::new(bound)), ..self }
    }

    /// Holds the values to another implementation too, such as MLX's own op, which may round where
    /// the op does and the reference does not. Empty arrays are not compared with it.
    pub fn peer(
        self,
        peer: impl Fn(&[Array]) -> Result<Vec<Array>> + 'static,
        bound: impl Fn(&Compared<'_>) -> Bound + 'static,
    ) -> Self {
        Self { peer: Some((Rc::new(peer), Tolerance::Bounds(Box::new(bound)))), ..self }
    }

    /// The same for derivatives; 16 unless set.
    pub fn derivative_tolerance(self, epsilons: f64) -> Self {
        Self { derivative_tolerance: epsilons, ..self }
    }

    /// Leaves a check out; the report says so, and why.
    pub fn without(mut self, check: Check, why: impl Into<String>) -> Self {
        self.left_out.insert(check, why.into());
        self
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
