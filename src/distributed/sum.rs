//! The primitive that adds the ranks' arrays to one that all ranks have, on a CPU.

use std::sync::Arc;

use super::gather::{EXCHANGED, bytes, bytes_mut};
use super::group::Group;
use super::joined::Joined;
use crate::array::Array;
use crate::custom::{self, CustomPrimitive, Spec, View, ViewMut};
use crate::device::{self, Device};
use crate::dtype::{Dtype, Element};
use crate::error::{Error, Result};

/// `y = to + x of rank 0 + x of rank 1 + ...`.
struct Sum(Arc<Joined>);

impl Group {
    /// `to`, which all ranks have, plus the sum of the ranks' `x`, of one shape and type. Every rank
    /// gets the same bits.
    ///
    /// On a CPU the sum is that of float32 in the order of the ranks, rounded once.
    pub(crate) fn sum_onto(&self, to: &Array, x: &Array) -> Result<Array> {
        let Some(joined) = &self.joined else { return to.add(x) };
        self.usable("sum")?;
        if to.dtype() != x.dtype() {
            return to.add(self.sum_onto(&Array::zeros_of(x.shape(), x.dtype())?, x)?);
        }
        if joined.mesh.is_some() && device::current()? == Device::Cpu {
            return custom::apply_one(Sum(Arc::clone(joined)), &[to, x]);
        }
        to.add(self.all_sum(x)?)
    }
}

impl Sum {
    fn exchange<T: Element>(
        &self,
        [to, x]: [&View<'_>; 2],
        y: &mut ViewMut<'_>,
        number: impl Fn(T) -> f32,
    ) -> Result<()> {
        let (to, x) = (to.as_slice::<T>()?, x.as_slice::<T>()?);
        let mut received = vec![vec![T::default(); x.len()]; self.0.size];
        if let Some(own) = received.get_mut(self.0.rank) {
            own.copy_from_slice(x);
        }
        let mut parts: Vec<_> = received.iter_mut().map(|part| bytes_mut(part)).collect();
        self.0.mesh()?.exchange(bytes(x), &mut parts)?;
        let mut sums = vec![0.0; x.len()];
        for part in &received {
            sums.iter_mut().zip(part).for_each(|(sum, element)| *sum += number(*element));
        }
        for ((y, to), sum) in y.as_mut_slice::<T>()?.iter_mut().zip(to).zip(sums) {
            *y = T::from_f64(f64::from(number(*to) + sum));
        }
        Ok(())
    }
}

impl CustomPrimitive for Sum {
    fn name(&self) -> &str {
        "sum"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        match inputs {
            [to, x] if to == x && EXCHANGED.contains(&x.dtype) && x.dtype != Dtype::Uint32 => {
                Ok(vec![x.clone()])
            }
            _ => {
                let expected = format_args!("two arrays of one shape and type, got {inputs:?}");
                Err(Error::argument("sum", expected))
            }
        }
    }

    fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let ([to, x], [y]) = (inputs, outputs) else {
            return Err(Error::argument("sum", "two inputs and one output"));
        };
        match x.dtype() {
            Dtype::Float16 => self.exchange([to, x], y, half::f16::to_f32),
            Dtype::Bfloat16 => self.exchange([to, x], y, half::bf16::to_f32),
            _ => self.exchange([to, x], y, |number: f32| number),
        }
    }
}
