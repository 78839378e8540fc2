//! Tests an op against a reference in `f64`: values in every type and layout, extreme values,
//! derivatives, `vmap` and `compile`, on the CPU, on the GPU if there is one, and on simulated
//! Metal if the build contains the simulator.
//!
//! The op may be a custom op or any other op. Its outputs must be floats. Its inputs have one
//! floating type unless [`inputs`](Conformance::inputs) says otherwise. The cases of an op may have
//! different numbers of inputs: the closures get one input for each shape of the case.
//!
//! ```
//! use mlx_primitives_check::{Conformance, Tensor};
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
#![warn(missing_docs, clippy::missing_errors_doc, clippy::missing_panics_doc)]
#![deny(unsafe_op_in_unsafe_fn)]

mod backend;
mod bounds;
mod checks;
mod compare;
mod inputs;
mod mapped;
mod report;
mod share;
mod values;

use std::collections::BTreeMap;
use std::rc::Rc;

use mlx_primitives::Array;
use mlx_primitives::Dtype;
use mlx_primitives::Result;

pub use backend::{Backend, Check};
pub use bounds::{Bound, Compared};
use bounds::{Errors, Limit, Tolerance};
pub use inputs::{Input, Tensor};
pub use report::{Outcome, Report};
pub use share::Share;

type Op = dyn Fn(&[Array]) -> Result<Vec<Array>>;
type Reference = dyn Fn(&[Tensor]) -> Vec<Tensor>;

/// The test of an op: the op, its reference, and the inputs and backends to compare them on. The
/// [module](self) has an example.
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
    judges_peer: bool,
    vmap_tolerance: Option<Tolerance>,
    derivative_tolerance: Tolerance,
    left_out: BTreeMap<Check, String>,
    share: Option<Rc<Share>>,
    sample: usize,
}

impl Conformance {
    /// Returns a test of `op` against `reference`, which computes outputs of the same shapes in
    /// `f64`.
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
            judges_peer: false,
            vmap_tolerance: None,
            derivative_tolerance: Tolerance::Epsilons(16.0),
            left_out: BTreeMap::new(),
            share: None,
            sample: 1,
        }
    }

    /// Adds a case with a shape for each input.
    pub fn shapes(mut self, inputs: &[&[i32]]) -> Self {
        self.cases.push(inputs.iter().map(|shape| shape.to_vec()).collect());
        self
    }

    /// Adds a case that only [`Check::Values`] uses, with row-contiguous inputs. Use it for large
    /// shapes, which would take too long in all checks.
    pub fn sizes(mut self, inputs: &[&[i32]]) -> Self {
        self.sizes.push(inputs.iter().map(|shape| shape.to_vec()).collect());
        self
    }

    /// Sets the backends that run the op; [`Backend::available`] by default.
    pub fn backends(self, backends: &[Backend]) -> Self {
        Self { backends: backends.to_vec(), ..self }
    }

    /// Sets the types of the inputs; float32, float16 and bfloat16 by default.
    pub fn dtypes(self, dtypes: &[Dtype]) -> Self {
        Self { dtypes: dtypes.to_vec(), ..self }
    }

    /// Sets the range of ordinary values; from -3 to 3 by default.
    pub fn range(self, low: f64, high: f64) -> Self {
        Self { range: (low, high), ..self }
    }

    /// Sets the kinds of the inputs, in their order. Inputs beyond this list are [`Input::Float`]
    /// in the [`range`](Self::range). By default the list is empty.
    pub fn inputs(self, inputs: &[Input]) -> Self {
        Self { inputs: inputs.to_vec(), ..self }
    }

    /// Adds numbers that are extreme for this op to [`Check::Extremes`]. The check rounds them to
    /// the type.
    pub fn extremes(self, numbers: &[f64]) -> Self {
        Self { extremes: numbers.to_vec(), ..self }
    }

    /// Compares results for extreme numbers only with the [`peer`](Self::peer), not with the
    /// reference. Use this for ops whose intermediate results overflow although the reference's do
    /// not in `f64`.
    pub fn extremes_as_peer(self) -> Self {
        Self { extremes_as_peer: true, ..self }
    }

    /// Sets how far a value may be from the reference's value. The number is a multiple of the
    /// type's epsilon, times the larger of 1 and the magnitude of the reference's value. The
    /// default is 4.
    pub fn tolerance(self, epsilons: f64) -> Self {
        Self { tolerance: Tolerance::Epsilons(epsilons), ..self }
    }

    /// Replaces [`tolerance`](Self::tolerance). Sets how far a value may be from the reference's
    /// value, in units in the last place of that value.
    pub fn ulps(self, ulps: impl Fn(Dtype) -> f64 + 'static) -> Self {
        self.bounds(move |compared| Bound::ulps(ulps(compared.dtype)))
    }

    /// Replaces [`tolerance`](Self::tolerance) with a bound for each comparison, which may depend
    /// on the backend, the type and the inputs.
    pub fn bounds(self, bound: impl Fn(&Compared<'_>) -> Bound + 'static) -> Self {
        Self { tolerance: Tolerance::Bounds(Box::new(bound)), ..self }
    }

    /// Allows an error for each value of each output, in addition to the
    /// [`tolerance`](Self::tolerance) or the [`bounds`](Self::bounds). Use this for sums whose
    /// terms may be larger than the sums. If the error is infinite or NaN, the value must equal the
    /// reference's value.
    pub fn errors(self, errors: impl Fn(&Compared<'_>) -> Vec<Tensor> + 'static) -> Self {
        Self { errors: Some(Box::new(errors)), ..self }
    }

    /// Sets how far a value of `vmap` may be from the op's value on a slice. The default is the
    /// bound for the difference from the reference. [`Bound::default`] allows no difference.
    pub fn vmap_bounds(self, bound: impl Fn(&Compared<'_>) -> Bound + 'static) -> Self {
        Self { vmap_tolerance: Some(Tolerance::Bounds(Box::new(bound))), ..self }
    }

    /// Also compares the values with another implementation, the peer, such as MLX's own op. The
    /// peer may round its intermediate results like the op, while the reference does not round. For
    /// empty inputs, compares only the shapes and types of the outputs, and nothing if the peer
    /// refuses the inputs.
    pub fn peer(
        self,
        peer: impl Fn(&[Array]) -> Result<Vec<Array>> + 'static,
        bound: impl Fn(&Compared<'_>) -> Bound + 'static,
    ) -> Self {
        Self { peer: Some((Rc::new(peer), Tolerance::Bounds(Box::new(bound)))), ..self }
    }

    /// Leaves the [`peer`](Self::peer) out. It is still used for extreme numbers if they are
    /// compared only with the peer.
    pub fn without_peer(self) -> Self {
        let peer = self.peer.filter(|_| self.extremes_as_peer);
        Self { peer, ..self }
    }

    /// Also compares the [`peer`](Self::peer) with the reference. If the op's values agree with the
    /// reference and the peer's values do not, the op passes, and the report names the comparison.
    /// This is always on for an NVIDIA GPU: there, MLX's ops round in other places than on a Mac,
    /// and some have faults.
    pub fn judge_peer(self) -> Self {
        Self { judges_peer: true, ..self }
    }

    /// Sets how far a derivative may be from the reference's derivative. The number is a multiple
    /// of the type's epsilon, times the larger of 1 and the magnitude of the reference's
    /// derivative. The default is 16.
    pub fn derivative_tolerance(self, epsilons: f64) -> Self {
        Self { derivative_tolerance: Tolerance::Epsilons(epsilons), ..self }
    }

    /// Replaces [`derivative_tolerance`](Self::derivative_tolerance) with a bound for each
    /// comparison.
    pub fn derivative_bounds(self, bound: impl Fn(&Compared<'_>) -> Bound + 'static) -> Self {
        Self { derivative_tolerance: Tolerance::Bounds(Box::new(bound)), ..self }
    }

    /// Leaves a check out. The report mentions this with the reason `why`.
    pub fn without(mut self, check: Check, why: impl Into<String>) -> Self {
        self.left_out.insert(check, why.into());
        self
    }

    /// Runs the first comparison of each case, and only about one out of `of` other comparisons.
    /// The selection depends on the number of the case, so that every layout and number occurs in
    /// some case.
    pub fn sample(self, of: usize) -> Self {
        Self { sample: of.max(1), ..self }
    }

    /// Runs only the cases that belong to a share. Here, a case is a check of one type and one set
    /// of shapes on one backend.
    pub fn share(self, share: &Rc<Share>) -> Self {
        Self { share: Some(Rc::clone(share)), ..self }
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

    /// Runs all comparisons. Errors and panics of the op become failures in the report.
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
