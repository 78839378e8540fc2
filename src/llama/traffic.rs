use crate::array::Array;
use crate::error::Result;

use super::cuts::{Axis, Cuts, length};
use super::model::Llama;
use super::split::Scheme;

impl Llama {
    /// The exchanges of one decoded token without the rest of the model, for measuring them; `None`
    /// for a model on one rank. Every rank evaluates them together.
    ///
    /// # Errors
    ///
    /// Returns an error if MLX cannot build them.
    pub fn exchanges_of_a_token(&self) -> Result<Option<Array>> {
        let Some(cuts) = self.parts.cuts() else { return Ok(None) };
        let hidden = self.config().hidden_size;
        let h = Array::zeros_of([1, 1, hidden], self.dtype())?;
        let token = Array::from_slice(&[0u32], [1, 1])?;
        let mut last = match cuts.scheme {
            Scheme::Pipeline => {
                let h = self.parts.entered(&token, hidden, || Ok(h))?;
                self.parts.left(h, [])?
            }
            _ => self.parts.embedded(&token, |_| Ok(h))?,
        };
        let wide =
            |last: &Array, features: i32| last.i((.., .., ..1))?.broadcast_to([1, 1, features]);
        let gather = |last: &Array, axis: Axis| {
            let (ranges, features) = cuts.of(axis);
            let own = wide(last, length(&cuts.own(ranges)) * features)?;
            self.parts.gather(own, axis)
        };
        for _ in 0..self.layers.len() {
            match cuts.scheme {
                Scheme::Gather => {
                    for axis in [Axis::Heads, Axis::Hidden, Axis::Inner, Axis::Hidden] {
                        last = gather(&last, axis)?;
                    }
                }
                Scheme::Reduce => {
                    for _ in 0..2 {
                        let own = wide(&last, hidden)?;
                        last = self.parts.sum_onto(&own, &own)?;
                    }
                }
                Scheme::Pipeline => {}
            }
        }
        Ok(Some(gather(&last, Axis::Vocab)?))
    }

    /// The number of exchanges of a decoded token, one after the other, and the bytes that this rank
    /// sends in them; `(0, 0)` for a model on one rank.
    pub fn traffic(&self) -> (u64, u64) {
        let Some(cuts) = self.parts.cuts() else { return (0, 0) };
        let (exchanges, elements) = traffic(cuts, self.layers.len(), self.config().hidden_size);
        (exchanges, elements * self.dtype().size() as u64)
    }
}

/// The exchanges of a token, and the elements that this rank sends in them.
fn traffic(cuts: &Cuts, layers: usize, hidden: i32) -> (u64, u64) {
    let own = |axis: Axis| {
        let (ranges, features) = cuts.of(axis);
        u64::from((length(&cuts.own(ranges)) * features).unsigned_abs())
    };
    let (layers, hidden) = (layers as u64, u64::from(hidden.unsigned_abs()));
    let others = cuts.layers.len() as u64 - 1;
    match cuts.scheme {
        Scheme::Gather => {
            let layer = own(Axis::Heads) + 2 * own(Axis::Hidden) + own(Axis::Inner);
            (4 * layers + 2, (layers * layer + hidden + own(Axis::Vocab)) * others)
        }
        Scheme::Reduce => {
            (2 * layers + 2, (layers * 2 * hidden + hidden + own(Axis::Vocab)) * others)
        }
        Scheme::Pipeline => {
            // To the next rank, from the last one to all, and the logits to all.
            let sent = if cuts.rank as u64 == others { hidden * others } else { hidden + others };
            (others + 2, sent + own(Axis::Vocab) * others)
        }
    }
}
