//! The primitive that joins the ranks' parts of an array along the last axis, on a CPU.

use std::sync::Arc;

use super::group::Group;
use super::joined::Joined;
use mlx_primitives::custom::{self, CustomPrimitive, Spec, View, ViewMut};
use mlx_primitives::device::{self, Device};
use mlx_primitives::{Array, concatenate};
use mlx_primitives::{Dtype, Element};
use mlx_primitives::{Error, Result};

/// The types of the elements that ranks exchange.
pub(super) const EXCHANGED: [Dtype; 4] =
    [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16, Dtype::Uint32];

/// Computes `y[..., start + i] = x[..., i]` for the part `x` of each rank, where `start` is the sum
/// of the lengths of the lower ranks' parts.
struct Gather {
    joined: Arc<Joined>,
    /// The length of each rank's part of the last axis.
    lengths: Vec<i32>,
}

/// Joins the parts of all ranks along the last axis. `x` is this rank's part.
fn gather(joined: &Arc<Joined>, x: &Array, lengths: &[i32]) -> Result<Array> {
    let gather = Gather { joined: Arc::clone(joined), lengths: lengths.to_vec() };
    custom::apply_one(gather, &[x])
}

impl Group {
    /// Joins the ranks' parts of an array along the last axis, where rank `r` has `lengths[r]`
    /// elements. All other lengths, and the type, are the same on all ranks.
    ///
    /// In a ring on CPUs, each rank sends its part directly to each other rank, and a waiting rank
    /// sleeps. Otherwise [`all_gather`](Self::all_gather) joins the parts, and its `vmap` is right
    /// only if the mapped axis is not the first one. The cotangent of a rank's part is the matching
    /// part of the output's cotangent on this rank.
    ///
    /// # Errors
    ///
    /// Returns an error for the causes that [`Group::all_sum`] lists, if `lengths` does not have
    /// one entry above 0 for each rank, or if this rank's entry is not the length of the last axis
    /// of `x`. In a ring on CPUs, also returns an error for a type other than float32, float16,
    /// bfloat16 and uint32.
    ///
    /// ```
    /// # use mlx_primitives_ranks::{Group, Options};
    /// # use mlx_primitives::Array;
    /// let group = Group::join(Options::default())?;
    /// let x = Array::ones::<f32>((2, 3))?;
    /// let lengths = vec![3; group.size()];
    /// assert_eq!(group.gather_last(&x, &lengths)?.shape(), [2, 3 * group.size() as i32]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn gather_last(&self, x: &Array, lengths: &[i32]) -> Result<Array> {
        let own = lengths.get(self.rank()).copied();
        if lengths.len() != self.size() || lengths.contains(&0) || x.shape().last().copied() != own
        {
            return Err(Error::argument(
                "gather_last",
                format_args!(
                    "a length above 0 for each rank, that of {:?} for this one, got {lengths:?}",
                    x.shape()
                ),
            ));
        }
        let Some(joined) = &self.joined else { return Ok(x.clone()) };
        self.usable("gather_last")?;
        if joined.mesh.is_some() && device::current()? == Device::Cpu {
            return gather(joined, x, lengths);
        }
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if x.size() == longest as usize && lengths.iter().all(|length| *length == longest) {
            // With a single row, the parts are already contiguous in the result.
            let mut whole = x.shape().to_vec();
            if let Some(last) = whole.last_mut() {
                *last = lengths.iter().sum();
            }
            return self.all_gather(&x.expand_dims(0)?)?.reshape(&whole);
        }
        let mut missing = x.shape().to_vec();
        if let Some(last) = missing.last_mut() {
            *last = longest - *last;
        }
        let padded = match missing.last() {
            Some(0) => x.clone(),
            _ => concatenate(&[x, &Array::zeros_of(&missing, x.dtype())?], -1)?,
        };
        let all = self.all_gather(&padded.expand_dims(0)?)?;
        let part = |(rank, length): (usize, &i32)| {
            let rank = rank as i32;
            all.slice_axis(0, rank..rank + 1)?.squeeze(0)?.slice_axis(-1, ..*length)
        };
        let parts = lengths.iter().enumerate().map(part).collect::<Result<Vec<_>>>()?;
        concatenate(&parts.iter().collect::<Vec<_>>(), -1)
    }
}

impl Gather {
    /// The indices at which this rank's part begins and ends.
    fn own(&self) -> (i32, i32) {
        let before = self.lengths.iter().take(self.joined.rank).sum();
        (before, before + self.lengths.get(self.joined.rank).copied().unwrap_or(0))
    }

    fn exchange<T: Element>(&self, x: &View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        let x = x.as_slice::<T>()?;
        let y = y.as_mut_slice::<T>()?;
        let whole: usize = self.lengths.iter().map(|length| *length as usize).sum();
        let rows = y.len().checked_div(whole).unwrap_or(0);
        let mut parts = Vec::new();
        if rows == 1 {
            let mut rest = y;
            for length in &self.lengths {
                let (part, after) = rest.split_at_mut(*length as usize);
                parts.push(part);
                rest = after;
            }
            if let Some(own) = parts.get_mut(self.joined.rank) {
                own.copy_from_slice(x);
            }
            let mut parts: Vec<_> = parts.into_iter().map(bytes_mut).collect();
            return self.joined.mesh()?.exchange(bytes(x), &mut parts);
        }
        let zero = T::from_f64(0.0);
        let mut received: Vec<Vec<T>> =
            self.lengths.iter().map(|length| vec![zero; rows * *length as usize]).collect();
        let mut parts: Vec<_> = received.iter_mut().map(|part| bytes_mut(part)).collect();
        self.joined.mesh()?.exchange(bytes(x), &mut parts)?;
        let mut start = 0;
        for (rank, (part, length)) in received.iter().zip(&self.lengths).enumerate() {
            let part = if rank == self.joined.rank { x } else { part };
            let length = *length as usize;
            for (row, part) in part.chunks_exact(length.max(1)).enumerate() {
                let to = row * whole + start;
                y[to..to + length].copy_from_slice(part);
            }
            start += length;
        }
        Ok(())
    }
}

pub(super) fn bytes<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: elements are numbers, and all their bytes are initialized.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

pub(super) fn bytes_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    // SAFETY: as in `bytes`, and all bit patterns of these types are valid.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), size_of_val(elements)) }
}

impl CustomPrimitive for Gather {
    fn name(&self) -> &str {
        "gather"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let (start, end) = self.own();
        let mut outputs = inputs.to_vec();
        if let Some(spec) = inputs.iter().find(|spec| !EXCHANGED.contains(&spec.dtype)) {
            let got = spec.dtype;
            return Err(Error::argument("gather", format_args!("a float or uint32, got {got}")));
        }
        let last = outputs.first_mut().and_then(|spec| spec.shape.last_mut());
        match last {
            Some(last) if *last == end - start => *last = self.lengths.iter().sum(),
            _ => {
                let expected = format_args!("a last axis of {}, got {inputs:?}", end - start);
                return Err(Error::argument("gather", expected));
            }
        }
        Ok(outputs)
    }

    fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let ([x], [y]) = (inputs, outputs) else {
            return Err(Error::argument("gather", "one input and one output"));
        };
        match x.dtype() {
            Dtype::Float32 => self.exchange::<f32>(x, y),
            Dtype::Float16 => self.exchange::<half::f16>(x, y),
            Dtype::Bfloat16 => self.exchange::<half::bf16>(x, y),
            _ => self.exchange::<u32>(x, y),
        }
    }

    fn vjp(
        &self,
        _: &[Array],
        cotangents: &[Array],
        _: &[usize],
        _: &[Array],
    ) -> Result<Vec<Array>> {
        let (start, end) = self.own();
        cotangents.iter().map(|cotangent| cotangent.slice_axis(-1, start..end)).collect()
    }

    fn vmap(&self, inputs: &[Array], axes: &[Option<usize>]) -> Result<(Vec<Array>, Vec<usize>)> {
        let ([x], [Some(axis)]) = (inputs, axes) else {
            return Err(Error::argument("gather", "one mapped input"));
        };
        // The other axes keep their order, so the parts stay on the last axis.
        let others = (0..x.ndim()).filter(|other| other != axis);
        let order: Vec<i32> = [*axis].into_iter().chain(others).map(|axis| axis as i32).collect();
        let mapped = gather(&self.joined, &x.transpose(&order)?, &self.lengths)?;
        Ok((vec![mapped], vec![0]))
    }

    fn jvp(&self, _: &[Array], tangents: &[Array], _: &[usize]) -> Result<Vec<Array>> {
        tangents.iter().map(|tangent| gather(&self.joined, tangent, &self.lengths)).collect()
    }
}
