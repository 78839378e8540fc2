//! Calls of the ops: their inputs, and what they should give in double precision.

use super::dtype::Dtype;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Op {
    RmsNorm { weighted: bool },
    Softmax,
    Rope { dims: usize, interleaved: bool, freqs: bool, forward: bool, offsets: usize },
}

/// One call. Shapes are [rows, axis], or [batch, heads, length, features] for rope.
#[derive(Clone, Debug)]
pub struct Case {
    pub op: Op,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub in_place: bool,
    /// The largest threadgroup that the pipeline allows.
    pub limit: u32,
}

pub const EPS: f32 = 0.01;
pub const BASE: f32 = 10000.0;
pub const SCALE: f32 = 0.75;
const OFFSETS: [i32; 2] = [5, -9];

/// A number and how far off it may be.
pub type Bounded = (f64, f64);

impl Case {
    /// The `.metal` file.
    pub fn file(&self) -> &'static str {
        match self.op {
            Op::RmsNorm { .. } => "rms_norm",
            Op::Softmax => "softmax",
            Op::Rope { .. } => "rope",
        }
    }

    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The inputs in the order in which the op takes them, as bytes.
    pub fn inputs(&self) -> Vec<Vec<u8>> {
        let mut inputs = vec![self.dtype.encode(&self.x())];
        match self.op {
            Op::RmsNorm { weighted: true } => {
                let weight: Vec<f32> = (0..self.shape[1]).map(|i| 1.5 - wave(i + 5)).collect();
                inputs.push(self.dtype.encode(&weight));
            }
            Op::Rope { dims, freqs, offsets, .. } => {
                inputs.push(OFFSETS[..offsets].iter().flat_map(|o| o.to_le_bytes()).collect());
                if freqs {
                    inputs.push((0..dims / 2).flat_map(|i| freq(i).to_le_bytes()).collect());
                }
            }
            _ => {}
        }
        inputs
    }

    fn x(&self) -> Vec<f32> {
        let axis = self.shape[self.shape.len() - 1];
        let element = |at: usize| match self.op {
            Op::Softmax => logit(at / axis, at % axis, axis),
            _ => wave(at),
        };
        (0..self.count()).map(element).collect()
    }

    /// What the op should give for `inputs`.
    pub fn expected(&self, inputs: &[Vec<u8>]) -> Vec<Bounded> {
        let axis = self.shape[self.shape.len() - 1];
        let x = self.dtype.decode(&inputs[0]);
        let rows = x.chunks(axis);
        match self.op {
            Op::RmsNorm { weighted } => {
                let weight = if weighted { self.dtype.decode(&inputs[1]) } else { vec![1.0; axis] };
                rows.flat_map(|row| rms_norm(row, &weight, self.dtype)).collect()
            }
            Op::Softmax => rows.flat_map(|row| softmax(row, self.dtype)).collect(),
            Op::Rope { .. } => rows.enumerate().flat_map(|(r, row)| self.rope(r, row)).collect(),
        }
    }

    fn rope(&self, row_index: usize, row: &[f64]) -> Vec<Bounded> {
        let Op::Rope { dims, interleaved, freqs, forward, offsets } = self.op else {
            return Vec::new();
        };
        let (heads, length, pairs) = (self.shape[1], self.shape[2], dims / 2);
        let offset = OFFSETS[row_index / length / heads % offsets];
        let position = (row_index % length) as f64 + f64::from(offset);
        let mut expected: Vec<Bounded> = row.iter().map(|v| (*v, 0.0)).collect();
        let log2_base = f64::from(BASE).log2();
        for i in 0..pairs {
            let exponent = i as f64 / pairs as f64 * log2_base;
            let frequency = if freqs { 1.0 / f64::from(freq(i)) } else { (-exponent).exp2() };
            let angle = f64::from(SCALE) * position * frequency;
            let (sin, cos) = angle.sin_cos();
            let sin = if forward { sin } else { -sin };
            let (p, q) = if interleaved { (2 * i, 2 * i + 1) } else { (i, pairs + i) };
            let (a, b) = (row[p], row[q]);
            // A few roundings of the angle and of each product, and exp2's of its argument.
            let single = (angle.abs() * (4.0 + 2.0 * log2_base) + 6.0) * Dtype::F32.roundoff();
            let bound = (a.abs() + b.abs()) * single + self.dtype.underflow();
            for (at, value) in [(p, a * cos - b * sin), (q, a * sin + b * cos)] {
                expected[at] = (value, bound + value.abs() * self.dtype.roundoff());
            }
        }
        expected
    }
}

/// No two neighbours alike, between -2 and 2, none of them zero.
fn wave(i: usize) -> f32 {
    ((i * 7919 + 13) % 1009) as f32 / 252.0 - 2.001
}

fn freq(i: usize) -> f32 {
    1.25f32.powi(i as i32)
}

/// Rows of several kinds: all far below zero, a peak inside or at the end, masked here and there or at the
/// start, a wide range, and nothing but -inf.
fn logit(row: usize, i: usize, axis: usize) -> f32 {
    let masked = f32::NEG_INFINITY;
    match (row + axis) % 7 {
        0 => wave(i) - 200.0,
        1 if i == axis / 2 => 110.0,
        5 if i + 1 == axis => 110.0,
        1 | 5 => wave(i),
        2 if i % 3 == 1 => masked,
        2 => wave(i) + 20.0,
        3 if i < axis / 2 => masked,
        3 => wave(i),
        4 => wave(i) * 8.0 - if i % 4 == 3 { 150.0 } else { 0.0 },
        _ => masked,
    }
}

/// Sums of positive terms: a thread adds 20 of them at the most, then come 10 levels of a tree.
const SUM: f64 = 40.0;

fn rms_norm(row: &[f64], weight: &[f64], dtype: Dtype) -> Vec<Bounded> {
    let square: f64 = row.iter().map(|v| v * v).sum();
    let scale = 1.0 / (square / row.len() as f64 + f64::from(EPS)).sqrt();
    let roundings = if dtype == Dtype::F32 { 0.0 } else { 2.0 * dtype.roundoff() };
    let relative = 0.5 * SUM * Dtype::F32.roundoff() + roundings * 1.01;
    let one = |(v, w): (&f64, &f64)| {
        let y = v * scale * w;
        (y, y.abs() * relative + dtype.underflow() * (1.0 + w.abs()))
    };
    row.iter().zip(weight).map(one).collect()
}

fn softmax(row: &[f64], dtype: Dtype) -> Vec<Bounded> {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = row.iter().map(|v| (v - most).exp()).sum();
    let one = |v: &f64| {
        let y = (v - most).exp() / sum;
        // The argument of exp is rounded once, in proportion to its own size.
        let argument = if v.is_finite() { (v - most).abs() } else { 0.0 };
        let single = (SUM + 8.0 + argument) * Dtype::F32.roundoff();
        (y, y * (single + dtype.roundoff()) + dtype.underflow())
    };
    row.iter().map(one).collect()
}
