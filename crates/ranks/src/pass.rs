//! Sends arrays from one rank to another rank.

use std::sync::Arc;

use super::gather::{EXCHANGED, bytes, bytes_mut};
use super::group::Group;
use super::joined::Joined;
use mlx_primitives::Array;
use mlx_primitives::custom::{self, CustomPrimitive, Spec, View, ViewMut};
use mlx_primitives::device::{self, Device};
use mlx_primitives::{Dtype, Element};
use mlx_primitives::{Error, Result};

/// Sends its input to another rank, and returns the input as its output.
struct Send {
    joined: Arc<Joined>,
    to: usize,
}

/// Receives an array from another rank, after this primitive's input has been computed.
struct Receive {
    joined: Arc<Joined>,
    from: usize,
    spec: Spec,
}

impl Group {
    /// Whether a rank can send to a single other rank.
    pub(crate) fn sends(&self) -> bool {
        self.joined.as_ref().is_none_or(|joined| joined.sends)
    }

    /// Stacks the arrays of all ranks along a new first axis. Pipelines use this function if a rank
    /// cannot send to a single other rank.
    pub(crate) fn pass(&self, x: &Array) -> Result<Array> {
        self.all_gather(&x.expand_dims(0)?)
    }

    /// Sends `x` to the next rank when the result is evaluated. The result equals `x`.
    pub(crate) fn send_on(&self, x: &Array) -> Result<Array> {
        let to = self.rank() + 1;
        match &self.joined {
            Some(joined) if joined.mesh.is_some() && device::current()? == Device::Cpu => {
                self.usable("send")?;
                custom::apply_one(Send { joined: Arc::clone(joined), to }, &[x])
            }
            _ => self.send(x, to),
        }
    }

    /// Receives the array that the previous rank sends, after `after` has been computed.
    pub(crate) fn receive_after(&self, after: &Array, spec: Spec) -> Result<Array> {
        let from = self.rank().wrapping_sub(1);
        match &self.joined {
            Some(joined) if joined.mesh.is_some() && device::current()? == Device::Cpu => {
                self.usable("recv")?;
                custom::apply_one(Receive { joined: Arc::clone(joined), from, spec }, &[after])
            }
            _ => {
                after.eval()?; // MLX's operation has no input to wait for
                self.recv(spec.shape.as_slice(), spec.dtype, from)
            }
        }
    }
}

fn refuse<T>(expected: &str, got: &dyn std::fmt::Debug) -> Result<T> {
    Err(Error::argument("pass", format_args!("{expected}, got {got:?}")))
}

impl CustomPrimitive for Send {
    fn name(&self) -> &str {
        "send"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        match inputs {
            [x] if EXCHANGED.contains(&x.dtype) => Ok(vec![x.clone()]),
            _ => refuse("a float or uint32", &inputs),
        }
    }

    fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let ([x], [y]) = (inputs, outputs) else { return refuse("one input", &inputs.len()) };
        match x.dtype() {
            Dtype::Float32 => self.pass::<f32>(x, y),
            Dtype::Float16 => self.pass::<half::f16>(x, y),
            Dtype::Bfloat16 => self.pass::<half::bf16>(x, y),
            _ => self.pass::<u32>(x, y),
        }
    }
}

impl Send {
    fn pass<T: Element>(&self, x: &View<'_>, y: &mut ViewMut<'_>) -> Result<()> {
        let x = x.as_slice::<T>()?;
        self.joined.mesh()?.send(self.to, bytes(x))?;
        y.as_mut_slice::<T>()?.copy_from_slice(x);
        Ok(())
    }
}

impl CustomPrimitive for Receive {
    fn name(&self) -> &str {
        "receive"
    }

    fn outputs(&self, _: &[Spec]) -> Result<Vec<Spec>> {
        match EXCHANGED.contains(&self.spec.dtype) {
            true => Ok(vec![self.spec.clone()]),
            false => refuse("a float or uint32", &self.spec.dtype),
        }
    }

    fn eval_cpu(&self, _: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let [y] = outputs else { return refuse("one output", &outputs.len()) };
        let mesh = self.joined.mesh()?;
        match y.dtype() {
            Dtype::Float32 => mesh.receive(self.from, bytes_mut(y.as_mut_slice::<f32>()?)),
            Dtype::Float16 => mesh.receive(self.from, bytes_mut(y.as_mut_slice::<half::f16>()?)),
            Dtype::Bfloat16 => mesh.receive(self.from, bytes_mut(y.as_mut_slice::<half::bf16>()?)),
            _ => mesh.receive(self.from, bytes_mut(y.as_mut_slice::<u32>()?)),
        }
    }
}
