//! The fingerprint of a model: a string that differs between models that are not equal. It combines
//! a hash of the configuration with sums over all elements of the tensors and the adapters.
//!
//! In a sum, each element is multiplied by a factor that depends on its column. The sum of each row
//! is multiplied by a factor that depends on the tensor and the row. All arithmetic is modulo 2^64.
//! All factors are odd, so a change of one element always changes the sum. The factors are
//! pseudorandom, so changes of several elements cancel out as rarely as two random 64-bit numbers
//! are equal. Each rank sums the elements of its part of the model, and the total of all ranks
//! equals the sum in a single process. An ordinary hash reads bytes in order, so the hashes of
//! parts of rows could not be combined.

use std::ops::Range;

use mlx_primitives::support::Fnv;
use mlx_primitives::{Array, Result};

use super::adapters::Adapters;
use super::linear::{Linear, Module};
use super::llama::Llama;
use crate::base::layer_of;

impl Llama {
    /// Returns a string that differs between models whose configurations, types, weights or
    /// adapters differ. The string does not depend on the number of ranks. Only the first call
    /// reads the weights of the model.
    pub(crate) fn fingerprint(&self) -> Result<String> {
        let config = self.config();
        let mut hash = Fnv::default();
        hash.add(format!("{config:?} {}", self.dtype()).as_bytes());
        let weights = match self.weights_sum.get() {
            Some(sum) => *sum,
            None => {
                let sum = self.exchange().sum(self.own_sum()?)?;
                *self.weights_sum.get_or_init(|| sum)
            }
        };
        let model = format!("{}-{:016x}{weights:016x}", config.model_type, hash.0);
        match self.adapters.is_empty() {
            true => Ok(model),
            false => Ok(format!("{model}+{:016x}", self.adapters.sum()?)),
        }
    }

    /// The sum over this process's elements, except elements that an earlier process has too.
    fn own_sum(&self) -> Result<u64> {
        let (exchange, all) = (self.exchange(), self.config().num_hidden_layers);
        let first = exchange.is_first();
        // In a pipeline, each process adds the norms of its layers. Without a pipeline, all
        // processes have the same norms, and only the first process adds them.
        let of_layers = first || exchange.layers(all) != (0..all);
        let (mut sum, mut norms) = (Sum::default(), 0);
        for module in self.modules() {
            match module {
                Module::Norm(norm) => {
                    match layer_of(&norm.path) {
                        Some(layer) if of_layers => {
                            sum.add_vector(&format!("{layer}.norm.{norms}"), &norm.weight, 0)?;
                        }
                        None if first => sum.add_vector("norm", &norm.weight, 0)?,
                        _ => {}
                    }
                    norms += 1;
                }
                Module::Linear(linear) => {
                    norms = 0;
                    let fresh = exchange.fresh_rows(&linear.path, linear.outputs);
                    sum.add_linear(linear, &fresh)?;
                }
            }
        }
        Ok(sum.0)
    }
}

impl Adapters {
    /// A sum that depends on the names, scales and elements of all updates.
    pub(crate) fn sum(&self) -> Result<u64> {
        let mut sum = Sum::default();
        for (name, update) in self.iter() {
            let name = format!("{name} {}", update.scale());
            sum.add(&format!("{name}.a"), update.a(), 0, 0)?;
            sum.add(&format!("{name}.b"), update.b(), 0, 0)?;
            if let Some(magnitude) = update.magnitude() {
                sum.add_vector(&format!("{name}.m"), magnitude, 0)?;
            }
        }
        Ok(sum.0)
    }
}

/// A sum over elements, as the documentation of this module describes.
#[derive(Default)]
struct Sum(u64);

impl Sum {
    /// Adds the rows `fresh` of a projection. This process must have these rows.
    fn add_linear(&mut self, linear: &Linear, fresh: &Range<i32>) -> Result<()> {
        let Linear { path, matrix, rows, bias, .. } = linear;
        if fresh.is_empty() {
            return Ok(());
        }
        let own = fresh.start - rows.start..fresh.end - rows.start;
        for (i, array) in matrix.arrays().enumerate() {
            self.add(&format!("{path}.{i}"), &array.slice_axis(0, own.clone())?, fresh.start, 0)?;
        }
        match bias {
            Some(bias) => {
                self.add_vector(&format!("{path}.bias"), &bias.slice_axis(0, own)?, fresh.start)
            }
            None => Ok(()),
        }
    }

    /// Adds a part of a vector. The part begins after the first `before` elements of the whole
    /// vector.
    fn add_vector(&mut self, name: &str, vector: &Array, before: i32) -> Result<()> {
        self.add(name, vector, 0, i64::from(before))
    }

    /// Adds a part of an array. The part begins after the first `first` rows and `before` columns
    /// of the whole array.
    fn add(&mut self, name: &str, array: &Array, first: i32, before: i64) -> Result<()> {
        let width = array.shape().last().map_or(1, |&width| width.unsigned_abs() as usize);
        let before = before.unsigned_abs();
        let of_columns: Vec<u64> = (0..width as u64).map(|i| odd(before + i)).collect();
        let mut hash = Fnv::default();
        hash.add(format!("{name} {}", array.dtype()).as_bytes());
        let tensor = hash.0;
        let size = array.dtype().size();
        let sum = array.with_bytes(|bytes| {
            let rows = bytes.chunks(width.saturating_mul(size).max(1));
            let numbers = (u64::from(first.unsigned_abs())..).map(|row| odd(tensor ^ odd(row)));
            rows.zip(numbers).fold(0, |sum: u64, (row, number)| {
                sum.wrapping_add(number.wrapping_mul(row_sum(row, size, &of_columns)))
            })
        })?;
        self.0 = self.0.wrapping_add(sum);
        Ok(())
    }
}

/// Multiplies each element of a row by the factor of its column, and returns the sum. An element
/// has `size` bytes.
fn row_sum(row: &[u8], size: usize, of_columns: &[u64]) -> u64 {
    fn of<const N: usize>(row: &[u8], of_columns: &[u64], number: fn([u8; N]) -> u64) -> u64 {
        let elements = row.as_chunks::<N>().0.iter().zip(of_columns);
        // 1 is added so that an element that is zero changes the sum too.
        let terms = elements.map(|(bytes, column)| (number(*bytes) + 1).wrapping_mul(*column));
        terms.fold(0, u64::wrapping_add)
    }
    match size {
        1 => of(row, of_columns, |[byte]| u64::from(byte)),
        2 => of(row, of_columns, |bytes| u64::from(u16::from_le_bytes(bytes))),
        4 => of(row, of_columns, |bytes| u64::from(u32::from_le_bytes(bytes))),
        _ => of::<8>(row, of_columns, |bytes| u64::from_le_bytes(bytes) >> 1),
    }
}

/// An odd pseudorandom number, computed by the finalizer of SplitMix64
/// ([Steele et al. 2014](https://doi.org/10.1145/2660193.2660195)).
fn odd(index: u64) -> u64 {
    let mut z = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) | 1
}
