//! Tests whether the bits of a row's result depend on the other rows of the same call.

mod cases;

use std::fmt;

use mlx_primitives::ops::{RowOrder, with_row_order};
use mlx_primitives::{Array, Dtype, Result};

pub use cases::{all, few};

/// The step sizes with which a prompt is processed, in tokens.
const STEPS: [usize; 5] = [1, 7, 64, 100, 512];

type Run = dyn Fn(&[i32]) -> Result<Array>;

/// The rows of an op's input. A call of the op computes the results of some of the rows.
pub struct Rows {
    pub name: String,
    pub dtype: Dtype,
    count: usize,
    /// True if the rows are the positions of a sequence. Then a call computes only adjacent rows.
    text: bool,
    /// Computes the results of the rows with these indices in one call. The first axis of the
    /// result is the rows.
    run: Box<Run>,
}

/// The result of a comparison. A width is the number of rows that one call computes. `widths` is
/// the number of widths that were compared. `differ` lists the widths at which a row's bits
/// differed from the expected bits. The expected bits come from a call with the row alone or, in
/// the order of prompts, from a call with all rows.
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

    /// Returns the sets of rows. Each set is computed in one call.
    fn sets(&self, order: RowOrder) -> Vec<Vec<i32>> {
        let count = self.count;
        let part = |from: usize, to: usize| (from as i32..to as i32).collect::<Vec<_>>();
        let mut sets = Vec::new();
        if order == RowOrder::Prompt {
            for step in STEPS.into_iter().filter(|&step| step <= 2 * count) {
                // Cut the prompt at multiples of the step, or 5 rows after each multiple.
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

    /// Computes the rows in calls of all widths, and compares their bits.
    ///
    /// # Errors
    ///
    /// Returns the error of the op.
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
