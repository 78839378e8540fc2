//! Chooses an implementation for each op: this crate's kernel ("our kernel"), or a composition of
//! MLX's own ops. The faster implementation depends on the machine.
//!
//! By default a built-in rule decides ([`Choices::built_in`]): all calls run our kernels, except on
//! GPUs where MLX's ops are known to be faster for some calls. The command `mlx-primitives tune`
//! times both implementations. It writes the times for each op, type and number of rows to a file
//! in the user's cache folder. A program can load the file for a thread with [`with_choices`]. The
//! environment variable `MLX_PRIMITIVES_TUNE` can select the file for a process:
//!
//! | `MLX_PRIMITIVES_TUNE` | the choices of the process |
//! |---|---|
//! | not set, or empty | the built-in rule |
//! | `off` | our kernels everywhere |
//! | `file` | the measurements of the file, and the built-in rule for other calls |
//!
//! Ops that are built with [`RowOrder::Tokens`](crate::ops::RowOrder) run our kernels unless
//! [`with_choices`] selects other choices, because the order of sums in MLX's ops depends on the
//! number of rows.
//!
//! With any other value of `MLX_PRIMITIVES_TUNE`, every op that has a choice returns an error. With
//! `file`, it also returns an error if there is no file for this machine, this MLX and these
//! kernels.
//!
//! ```
//! use std::rc::Rc;
//! use mlx_primitives::{Array, device, ops, tune::{self, Choices, Key, with_choices}};
//!
//! let device = device::default_device()?;
//! let key = Key::here(device)?;
//! let file = tune::path(device).map(|path| Choices::read(&path, &key)).transpose();
//! let choices = file.ok().flatten().flatten().unwrap_or_else(|| Choices::built_in(&key));
//! let y = with_choices(Rc::new(choices), || ops::softmax(&Array::ones::<f32>(&[2, 8])?))?;
//! assert_eq!(y.shape(), [2, 8]);
//! # Ok::<(), mlx_primitives::Error>(())
//! ```

mod file;
mod neural;
mod process;
mod scope;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::array::Array;
use crate::dtype::Dtype;

pub use file::{Key, path};
#[doc(hidden)]
pub use neural::has_kernels as has_neural_kernels;
pub(crate) use scope::chosen;
#[doc(hidden)]
pub use scope::only_ours;
pub use scope::{classes_of, with_choices};

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

/// A range of the number of rows of an op. For attention, it is the number of queries of each head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rows {
    One,
    /// Two to eight rows. The kernels for few rows take at most eight.
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

/// A range of sizes. The faster implementation may depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Size {
    Any,
    /// At least 2048 rows of at least 2048 elements.
    WideRows,
}

/// The properties of a call on which a choice depends, in addition to the op and the type.
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
    /// The properties of a call that normalizes the rows of `x`.
    pub(crate) fn of_rows(x: &Array) -> Self {
        const MANY: usize = 2048;
        const WIDE: usize = 2048;
        let rows = rows(x);
        let wide = rows >= MANY && x.size() / rows >= WIDE;
        Self { rows, size: if wide { Size::WideRows } else { Size::Any } }
    }
}

/// A class of calls that share a choice. They have the same op, type, range of rows and range of
/// sizes.
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
            Size::WideRows => " that are wide",
        };
        write!(f, "{}, {}, {rows}{size}", self.op, self.dtype)
    }
}

/// The measurements from which a choice is made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The time of our kernel, in seconds.
    pub ours: f64,
    /// The time of MLX's ops, in seconds.
    pub mlx: f64,
    /// True if the result of our kernel agrees with the result of MLX's ops.
    pub agrees: bool,
}

impl Measured {
    /// Returns [`Choice::Mlx`] if MLX's ops take over 3 % less time, or if the results differ.
    /// A smaller difference in time may be noise.
    pub fn choice(&self) -> Choice {
        if self.mlx < 0.97 * self.ours || !self.agrees { Choice::Mlx } else { Choice::Ours }
    }
}

/// The choices for all classes of calls: measurements of some classes, and a rule for the others.
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
    /// MLX's ops run matrix products, and attention with heads of 64 or 128 features, if the calls
    /// have more than eight rows of 16-bit numbers. Our kernels run all other calls.
    MatricesMlx,
    /// Our kernels run most products of up to eight rows with packed weights. They also run
    /// attention of up to eight queries of 16-bit types, with heads of 64, 128 or 256 features.
    /// MLX's ops run all other products, all other attention over plain keys and values, and
    /// `rms_norm` of [`Size::WideRows`]. Our kernels run all other ops.
    Nvidia,
}

impl Choices {
    /// Choices that make all ops run our kernels.
    pub fn ours() -> Self {
        Self::default()
    }

    /// Choices that make all ops run MLX's ops, if MLX has ops for them.
    pub fn mlx() -> Self {
        Self { rule: Rule::AllMlx, ..Self::default() }
    }

    /// Adds a measurement to a class. The times of all measurements of a class are added, so longer
    /// calls count for more. The results of a class agree only if they agree in all its
    /// measurements.
    pub fn add(&mut self, class: &Class, new: Measured) {
        let nothing = Measured { ours: 0.0, mlx: 0.0, agrees: true };
        let all = self.measured.entry(class.to_string()).or_insert(nothing);
        *all = Measured {
            ours: all.ours + new.ours,
            mlx: all.mlx + new.mlx,
            agrees: all.agrees && new.agrees,
        };
    }

    /// Adds the measurements of `other`. They replace measurements of the same classes.
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
        const FEW_QUERIES: [&str; 3] = ["attention of 64", "attention of 128", "attention of 256"];
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
            // On NVIDIA GPUs, our kernels for few rows take 16-bit types only.
            let short = class.dtype != Dtype::Float32;
            let packed = ["quantized_", "lora_linear, "].iter().any(|op| class.op.starts_with(op));
            let attention = short && FEW_QUERIES.contains(&&*class.op);
            let ours = match class.rows {
                Rows::One => packed || attention,
                // MLX has no K-quants, so it would unpack the full matrix even for few rows.
                Rows::Few if class.op.contains(", k_quant") => true,
                Rows::Few => attention || short && class.op.starts_with("quantized_"),
                Rows::Many => false,
            };
            // Quantized attention is not in the list: MLX's product of a batch of packed matrices
            // refuses views, and key heads that several query heads share.
            let known = class.op.starts_with("attention of ")
                || MATRICES.iter().any(|name| class.op.starts_with(name));
            let wide = class.op == "rms_norm" && class.size == Size::WideRows;
            wide || known && !ours
        };
        match self.rule {
            Rule::AllMlx => Choice::Mlx,
            Rule::MatricesMlx if matrices() => Choice::Mlx,
            Rule::Nvidia if of_mlx() => Choice::Mlx,
            _ => Choice::Ours,
        }
    }

    fn is_all_ours(&self) -> bool {
        self.rule == Rule::AllOurs && self.measured.is_empty()
    }
}

impl fmt::Display for Choices {
    /// Describes the measurements and the rule from which choices are made.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.measured.len();
        if all > 0 {
            let mlx = self.measured.values().filter(|it| it.choice() == Choice::Mlx).count();
            write!(f, "{all} measured, {mlx} of them MLX's; otherwise ")?;
        }
        f.write_str(match self.rule {
            Rule::AllOurs => "our kernels",
            Rule::AllMlx => "MLX's ops",
            Rule::MatricesMlx => {
                "our kernels, but MLX's for 16-bit products and attention of more than eight rows"
            }
            Rule::Nvidia => {
                "our kernels, but MLX's for attention except that of one to eight queries, rms_norm \
                 of many wide rows, and products except those of one to eight rows with packed \
                 weights"
            }
        })
    }
}

/// The number of rows of an array. A row consists of the elements along the last axis.
pub(crate) fn rows(x: &Array) -> usize {
    let last = x.shape().last().map_or(1, |&dim| dim.unsigned_abs() as usize);
    x.size() / last.max(1)
}
