//! Tests whether the bits of a row depend on which other rows are computed with it.

mod cases;

use std::fmt;

use mlx_primitives::ops::{RowOrder, with_row_order};
use mlx_primitives::{Array, Dtype, Result};

pub use cases::{all, few};

/// The numbers of tokens in the steps that read a prompt.
const STEPS: [usize; 5] = [1, 7, 64, 100, 512];

type Run = dyn Fn(&[i32]) -> Result<Array>;

/// The rows of an op. Any of them can be computed together.
pub struct Rows {
    pub name: String,
    pub dtype: Dtype,
    count: usize,
    /// Whether the rows are positions of a text. Then only adjacent rows are computed together.
    text: bool,
    /// Computes the results of the rows at these indices; rows are the first axis of the results.
    run: Box<Run>,
}

/// The numbers of rows that were computed together, and the numbers at which the bits of a row
/// differed from the bits of the row alone. In a prompt, the bits are compared with those of the
/// prompt in one step.
pub struct Width {
    pub name: String,
    pub dtype: Dtype,
    pub order: RowOrder,
    pub widths: usize,
    pub differ: Vec<usize>,
}

impl fmt::Display for Width {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, dtype, order, widths, differ } = self;
        write!(f, "{name}, {dtype}, {order:?}: ")?;
        let (Some(first), Some(last)) = (differ.first(), differ.last()) else {
            return write!(f, "equal at {widths} widths");
        };
        write!(f, "other bits at {} of {widths} widths, {first} to {last}", differ.len())
    }
}

impl Rows {
    fn new(
        name: impl Into<String>,
        dtype: Dtype,
        count: usize,
        run: impl Fn(&[i32]) -> Result<Array> + 'static,
    ) -> Self {
        Self { name: name.into(), dtype, count, text: false, run: Box::new(run) }
    }

    /// The bits of each of these rows.
    fn bits(&self, rows: &[i32]) -> Result<Vec<Vec<u32>>> {
        let all = (self.run)(rows)?.astype(Dtype::Float32)?.to_vec::<f32>()?;
        let each = all.len() / rows.len();
        let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect();
        Ok(all.chunks(each.max(1)).map(bits).collect())
    }

    /// The sets of rows that are computed together in one call.
    fn sets(&self, order: RowOrder) -> Vec<Vec<i32>> {
        let count = self.count;
        let part = |from: usize, to: usize| (from as i32..to as i32).collect::<Vec<_>>();
        let mut sets = Vec::new();
        if order == RowOrder::Prompt {
            for step in STEPS.into_iter().filter(|&step| step <= 2 * count) {
                // Cut at multiples of the step, and at the same distances after an odd first part.
                for begin in [0, 5] {
                    let cuts = (begin..count).step_by(step);
                    sets.extend(cuts.map(|from| part(from, count.min(from + step))));
                }
            }
        } else {
            for width in (1..=33).chain([64, 256]).filter(|&width| width <= count) {
                let from = 7 * width % (count - width + 1);
                sets.push(part(from, from + width));
            }
        }
        if !self.text {
            for width in [2, 8, 13, 33].into_iter().filter(|&width| width <= count) {
                let place = |i: usize| ((i * 29 + width) % count) as i32; // 29 divides no count
                sets.push((0..width).rev().map(place).collect());
            }
        }
        sets
    }

    /// Compares the bits of rows in sets of every width.
    ///
    /// # Errors
    ///
    /// The error of the op.
    pub fn compare(&self, order: RowOrder) -> Result<Width> {
        with_row_order(order, || {
            let all: Vec<i32> = (0..self.count as i32).collect();
            let expected: Vec<Vec<u32>> = match order {
                RowOrder::Prompt => self.bits(&all)?,
                _ => {
                    let alone = all.iter().map(|&row| Ok(self.bits(&[row])?.swap_remove(0)));
                    alone.collect::<Result<_>>()?
                }
            };
            let (mut widths, mut differ) = (Vec::new(), Vec::new());
            for set in self.sets(order) {
                let equal = self
                    .bits(&set)?
                    .iter()
                    .zip(&set)
                    .all(|(bits, &row)| *bits == expected[row as usize]);
                widths.push(set.len());
                differ.extend((!equal).then_some(set.len()));
            }
            for list in [&mut widths, &mut differ] {
                list.sort_unstable();
                list.dedup();
            }
            let (name, dtype) = (self.name.clone(), self.dtype);
            Ok(Width { name, dtype, order, widths: widths.len(), differ })
        })
    }
}
