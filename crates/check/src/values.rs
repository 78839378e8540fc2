//! Compares the op's values with the reference and with the peer, another implementation such as
//! MLX's own op.

use super::bounds::Compared;
use super::compare::{compare_outputs, hold_to_either, same_spec, wrong};
use super::inputs::Tensor;
use super::{Backend, Check, Conformance};
use mlx_primitives::Array;
use mlx_primitives::Dtype;
use mlx_primitives::Result;

/// The backend, check and type that a comparison is about.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) backend: Backend,
    pub(super) check: Check,
    pub(super) dtype: Dtype,
}

/// The difference of the peer's values from the op's values or from the reference, or the peer's
/// error, if the comparison passed in spite of it.
pub(super) type Peer = Option<String>;

impl Conformance {
    /// Whether the reference alone decides on this backend: values that agree with it pass, even
    /// if they differ from the peer.
    pub(super) fn judges(&self, backend: Backend) -> bool {
        self.judges_peer || backend.is_cuda()
    }

    pub(super) fn compare_values(&self, arrays: &[Array], place: Place) -> Result<Peer> {
        let got = (self.op)(arrays)?;
        if got.iter().any(Array::is_scheduled) {
            return wrong("computed when it was built");
        }
        let inputs: Vec<Tensor> = arrays.iter().map(Tensor::of).collect::<Result<_>>()?;
        let Place { backend, check, dtype } = place;
        let mut compared = Compared { backend, check, dtype, inputs: &inputs, peer: false };
        let by_peer = check == Check::Extremes && self.extremes_as_peer;
        let own = self.limit(&self.tolerance, &compared);
        let hold = |outputs: &[Array], what: &str| {
            compare_outputs(outputs, &(self.reference)(&inputs), &own, dtype, what)
        };
        if !by_peer {
            hold(&got, "output")?;
        }
        let Some((peer, bounds)) = &self.peer else {
            return match by_peer {
                true => wrong("extreme numbers are compared with a peer, and there is none"),
                false => Ok(None),
            };
        };
        let empty = inputs.iter().any(|input| input.values.is_empty());
        let peers = match peer(arrays) {
            // An error on empty inputs is no fault, because MLX's own ops refuse some empty arrays.
            Err(_) if empty => return Ok(None),
            peers => peers?,
        };
        for (index, (got, peer)) in got.iter().zip(&peers).enumerate() {
            same_spec(got, peer, &format!("output {index}, beside its peer,"))?;
        }
        if empty {
            return Ok(None);
        }
        let judges = self.judges(backend);
        let computed: Result<Vec<Tensor>> = peers.iter().map(Tensor::of).collect();
        let want = match computed {
            // Only the peer fails. The op's values agree with the reference, so the comparison
            // passes.
            Err(error) if judges && !by_peer => {
                return Ok(Some(format!("the peer fails: {error}")));
            }
            computed => computed?,
        };
        let of_peer = if judges { hold(&peers, "the peer's output").err() } else { None };
        compared.peer = true;
        let limit = self.limit(bounds, &compared);
        let beside = compare_outputs(&got, &want, &limit, dtype, "beside the peer's, output");
        let Err(beside) = beside else { return Ok(None) };
        if !judges {
            return Err(beside);
        }
        let exact = (self.reference)(&inputs);
        hold_to_either(&got, [(&exact, &own), (&want, &limit)], dtype)?;
        Ok(Some(of_peer.unwrap_or(beside).to_string()))
    }
}
