//! Small calls of every op. Together they launch every float32 kernel in every variant. They also
//! cover every length of a remainder: a last part that is shorter than a block.

mod inputs;
mod products;
mod rotations;
mod rows;

use mlx_primitives::{Array, Result};

/// A call of an op. Its kernels are in `metal/<stem>.metal`.
pub struct Case {
    pub stem: &'static str,
    pub name: String,
    call: Box<dyn Fn() -> Result<Vec<Array>>>,
}

impl Case {
    /// The lazy results.
    pub fn results(&self) -> Result<Vec<Array>> {
        (self.call)()
    }
}

/// A list of cases for one stem.
struct Cases {
    stem: &'static str,
    all: Vec<Case>,
}

impl Cases {
    fn of(stem: &'static str) -> Self {
        Self { stem, all: Vec::new() }
    }

    fn add(
        &mut self,
        name: impl std::fmt::Display,
        call: impl Fn() -> Result<Vec<Array>> + 'static,
    ) {
        let name = format!("{} {name}", self.stem);
        self.all.push(Case { stem: self.stem, name, call: Box::new(call) });
    }
}

/// All cases. Every process has the same list, so a number identifies a case.
pub fn all() -> Vec<Case> {
    [rows::all(), products::all(), rotations::all()].into_iter().flatten().collect()
}
