//! The choice between our kernel and a composition of MLX's own ops, whichever is faster on this
//! machine, for each op.
//!
//! `mlx-primitives tune` measures both and keeps the faster one, for each op, type and number of
//! rows, in a file in the user's cache folder. Ops look there when they are built:
//! [`Choices::of_machine`]. A GPU op that the file does not have is measured when it is first
//! built, in about 50 milliseconds, and added to the file; see [`Machine`]. Without measurements
//! for this chip, system, MLX and these kernels, a built-in rule decides.
//!
//! The environment variable `MLX_PRIMITIVES_TUNE` changes that: with `off` all ops run our kernels,
//! with `file` nothing is measured, and with `lazy` CPU ops are measured too.

mod file;
mod machine;
mod measure;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use cxx::{Exception, UniquePtr};
use serde::{Deserialize, Serialize};

use crate::array::{Array, from_list};
use crate::device::{self, Device};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::ffi::bridge::{self as ffi, MlxArray};

pub use file::{Key, path};
pub use machine::Machine;
pub use measure::{agree, measure};

/// The implementation that an op runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// Our kernel.
    Ours,
    /// A composition of MLX's own ops.
    Mlx,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ours => "ours",
            Self::Mlx => "MLX's",
        })
    }
}

/// The number of rows of an op; for attention, the number of queries of each head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rows {
    One,
    /// Up to eight, the most that the kernels for few rows take.
    Few,
    Many,
}

impl Rows {
    fn of(rows: usize) -> Self {
        match rows {
            0 | 1 => Self::One,
            2..=8 => Self::Few,
            _ => Self::Many,
        }
    }
}

/// A size at which another implementation may be the faster one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Size {
    Any,
    /// One row is multiplied by packed weights of few bytes, and nothing else is done to it.
    SmallWeights,
    /// Many rows of many elements.
    WideRows,
}

/// A call's number of rows and its size, on which a choice may depend besides the op and the type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    rows: usize,
    size: Size,
}

impl From<usize> for Call {
    fn from(rows: usize) -> Self {
        Self { rows, size: Size::Any }
    }
}

impl Call {
    /// A product of `rows` rows with packed weights that take `bytes` bytes, without another step.
    pub(crate) fn of_weights(rows: usize, bytes: usize) -> Self {
        // 4096 rows of 4096 weights of 4 bits take 9 MiB, and 14336 of them take 32 MiB.
        const SMALL: usize = 10 << 20;
        let small = rows == 1 && bytes <= SMALL;
        Self { rows, size: if small { Size::SmallWeights } else { Size::Any } }
    }

    /// The rows of an array that are normalized.
    pub(crate) fn of_rows(x: &Array) -> Self {
        const MANY: usize = 2048;
        const WIDE: usize = 2048;
        let rows = rows(x);
        let wide = rows >= MANY && x.size() / rows >= WIDE;
        Self { rows, size: if wide { Size::WideRows } else { Size::Any } }
    }
}

/// The calls that one choice is for: those of one op, type, range of rows and size.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    op: String,
    dtype: Dtype,
    rows: Rows,
    size: Size,
}

impl Class {
    fn new(op: impl fmt::Display, dtype: Dtype, call: Call) -> Self {
        Self { op: op.to_string(), dtype, rows: Rows::of(call.rows), size: call.size }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = match self.rows {
            Rows::One => "1 row",
            Rows::Few => "2 to 8 rows",
            Rows::Many => "more rows",
        };
        let size = match self.size {
            Size::Any => "",
            Size::SmallWeights => ", small weights",
            Size::WideRows => " that are wide",
        };
        write!(f, "{}, {}, {rows}{size}", self.op, self.dtype)
    }
}

/// The times that a choice was made from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The seconds of our kernel.
    pub ours: f64,
    /// The seconds of MLX's ops.
    pub mlx: f64,
    /// Whether our result agrees with that of MLX's ops.
    pub agrees: bool,
}

impl Measured {
    /// [`Choice::Mlx`] if MLX's ops take 3 % less time, which is more than noise, or if the results
    /// do not agree.
    pub fn choice(&self) -> Choice {
        if self.mlx < 0.97 * self.ours || !self.agrees { Choice::Mlx } else { Choice::Ours }
    }
}

/// A choice for each class of calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choices {
    measured: BTreeMap<String, Measured>,
    rule: Rule,
}

/// The rule for classes that were not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Rule {
    #[default]
    AllOurs,
    AllMlx,
    /// MLX's ops run products of many rows of 16-bit numbers, and our kernels all else.
    MatricesMlx,
    /// MLX's ops run attention over plain keys and values, normalizations by `rms_norm` of many wide
    /// rows, and all products except those of one row with packed weights that are not small.
    Nvidia,
}

impl Choices {
    /// Choices by which all ops run our kernels.
    pub fn ours() -> Self {
        Self::default()
    }

    /// Choices by which all ops run MLX's ops where they can.
    pub fn mlx() -> Self {
        Self { rule: Rule::AllMlx, ..Self::default() }
    }

    /// The choices without measurements.
    pub fn built_in(key: &Key) -> Self {
        let rule = match key {
            _ if key.has_neural_accelerators() => Rule::MatricesMlx,
            _ if key.is_nvidia() => Rule::Nvidia,
            _ => Rule::AllOurs,
        };
        Self { rule, ..Self::default() }
    }

    /// The current choices of this machine: those of its file, or the built-in ones if there is no
    /// usable file, and what this process measured. The first call prints on stderr why a file is
    /// not used.
    pub fn of_machine(device: Device) -> Self {
        Machine::of(device).choices()
    }

    /// Adds a measurement to the others of its class. Times add up, so longer calls count for more.
    /// The results of a class agree only if all do.
    pub fn add(&mut self, class: &Class, new: Measured) {
        let nothing = Measured { ours: 0.0, mlx: 0.0, agrees: true };
        let all = self.measured.entry(class.to_string()).or_insert(nothing);
        *all = Measured {
            ours: all.ours + new.ours,
            mlx: all.mlx + new.mlx,
            agrees: all.agrees && new.agrees,
        };
    }

    /// Adds the measurements of other choices, which replace those of the same classes.
    pub fn replace(&mut self, other: Self) {
        self.measured.extend(other.measured);
    }

    /// The measurements, by class.
    pub fn measured(&self) -> impl Iterator<Item = (&str, &Measured)> {
        self.measured.iter().map(|(class, measured)| (class.as_str(), measured))
    }

    /// The implementation that runs calls of a class.
    pub fn choice(&self, class: &Class) -> Choice {
        const MATRICES: [&str; 4] = ["linear", "matmul", "quantized_", "lora_linear"];
        const ATTENTION: [&str; 2] = ["attention of 64", "attention of 128"];
        if let Some(measured) = self.measured.get(&class.to_string()) {
            return measured.choice();
        }
        let matrices = || {
            let short = matches!(class.dtype, Dtype::Float16 | Dtype::Bfloat16);
            let known = MATRICES.iter().any(|name| class.op.starts_with(name))
                || ATTENTION.contains(&&*class.op);
            short && known && class.rows == Rows::Many
        };
        let of_mlx = || {
            let packed =
                class.op.starts_with("quantized_") || class.op.starts_with("lora_linear, ");
            // MLX's product of a batch of packed matrices refuses views and shared heads.
            let known = class.op.starts_with("attention of ")
                || MATRICES.iter().any(|name| class.op.starts_with(name));
            let wide = class.op == "rms_norm" && class.size == Size::WideRows;
            let ours = packed && class.rows == Rows::One && class.size != Size::SmallWeights;
            wide || known && !ours
        };
        match self.rule {
            Rule::AllMlx => Choice::Mlx,
            Rule::MatricesMlx if matrices() => Choice::Mlx,
            Rule::Nvidia if of_mlx() => Choice::Mlx,
            _ => Choice::Ours,
        }
    }

    fn has(&self, class: &Class) -> bool {
        self.measured.contains_key(&class.to_string())
    }

    fn is_all_ours(&self) -> bool {
        self.rule == Rule::AllOurs && self.measured.is_empty()
    }
}

/// The source of choices for ops of this thread, in place of [`Choices::of_machine`].
enum Scope {
    Chosen(Rc<Choices>),
    Machine(Arc<Machine>),
    /// All ops run our kernels, and the classes of the calls are kept.
    Asked(Vec<Class>),
}

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

fn with_scope<R>(scope: Scope, f: impl FnOnce() -> R) -> (R, Option<Scope>) {
    struct Restore(Option<Scope>);
    impl Drop for Restore {
        fn drop(&mut self) {
            SCOPE.replace(self.0.take());
        }
    }
    let restore = Restore(SCOPE.replace(Some(scope)));
    let result = f();
    let scope = SCOPE.take();
    drop(restore);
    (result, scope)
}

/// Runs `f` with these choices for the ops that it builds.
///
/// ```
/// use std::rc::Rc;
/// use mlx_primitives::{Array, ops, tune::{Choices, with_choices}};
///
/// let x = Array::ones::<f32>(&[2, 8])?;
/// let [ours, mlx] = [Choices::ours(), Choices::mlx()]
///     .map(|choices| with_choices(Rc::new(choices), || ops::rms_norm(&x, None, 1e-5)));
/// let (ours, mlx) = (ours?, mlx?);
/// assert!(ours.primitive() != mlx.primitive() && ours.shape() == mlx.shape());
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn with_choices<R>(choices: Rc<Choices>, f: impl FnOnce() -> R) -> R {
    with_scope(Scope::Chosen(choices), f).0
}

/// Runs `f` with the choices of this machine for the ops that it builds, some of which the machine
/// may measure.
pub fn with_machine<R>(machine: Arc<Machine>, f: impl FnOnce() -> R) -> R {
    with_scope(Scope::Machine(machine), f).0
}

/// Runs `f` with our kernels for all ops, and returns the classes of the ops that have a choice.
pub fn asked<R>(f: impl FnOnce() -> R) -> (R, Vec<Class>) {
    match with_scope(Scope::Asked(Vec::new()), f) {
        (result, Some(Scope::Asked(classes))) => (result, classes),
        (result, _) => (result, Vec::new()),
    }
}

/// The number of rows of an array: a row lies along the last axis.
pub(crate) fn rows(x: &Array) -> usize {
    let last = x.shape().last().map_or(1, |&dim| dim.unsigned_abs() as usize);
    x.size() / last.max(1)
}

/// Whether every op that is built now runs our kernel, so that nothing is left to choose.
pub(crate) fn only_ours() -> Result<bool> {
    let scope = SCOPE.with_borrow(|scope| match scope {
        Some(Scope::Chosen(choices)) => Err(choices.is_all_ours()),
        Some(Scope::Asked(_)) => Err(false),
        Some(Scope::Machine(machine)) => Ok(Some(machine.clone())),
        None => Ok(None),
    });
    match scope {
        Err(only) => Ok(only),
        Ok(Some(machine)) => Ok(machine.is_all_ours()),
        Ok(None) => Ok(Machine::of(device::current()?).is_all_ours()),
    }
}

/// Returns the lazy result of an op or, if that was chosen, the result of MLX's own ops for the
/// same inputs.
pub(crate) fn chosen<C: Into<Call>>(
    op: impl fmt::Display,
    call: impl Fn() -> C,
    built: std::result::Result<UniquePtr<MlxArray>, Exception>,
) -> Result<Array> {
    let ours = Array::from_bridge(built)?;
    let call = || -> Call { call().into() };
    let class = || Class::new(&op, ours.dtype(), call());
    let machine = SCOPE.with_borrow_mut(|scope| match scope {
        Some(Scope::Chosen(choices)) if choices.is_all_ours() => Err(Choice::Ours),
        Some(Scope::Chosen(choices)) => Err(choices.choice(&class())),
        Some(Scope::Asked(classes)) => {
            classes.push(class());
            Err(Choice::Ours)
        }
        Some(Scope::Machine(machine)) => Ok(Some(machine.clone())),
        None => Ok(None),
    });
    let choice = match machine {
        Err(choice) => choice,
        Ok(Some(machine)) => machine.choice(&op, call, &ours),
        Ok(None) => Machine::of(device::current()?).choice(&op, call, &ours),
    };
    // MLX's own ops refuse some inputs that our kernels take.
    let theirs = (choice == Choice::Mlx).then(|| ffi::composition(ours.raw()).ok()).flatten();
    Ok(theirs.and_then(|all| from_list(&all).into_iter().next()).unwrap_or(ours))
}
