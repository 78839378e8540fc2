use mlx_primitives::{Array, Result};
use mlx_primitives_llama::{Config, Llama, base::Axis};

use super::cuts::{Cuts, length};
use super::group::Group;
use super::scheme::Scheme;
use super::split::Split;

impl Split {
    /// Runs the exchanges of one decoded token without the computation of the model, to measure
    /// them. `llama` is the part of the model that this rank has loaded. All ranks evaluate the
    /// result together.
    ///
    /// # Errors
    ///
    /// Returns an error if MLX cannot build the exchanges.
    pub fn exchanges_of_a_token(&self, llama: &Llama) -> Result<Array> {
        let (cuts, exchange) = (self.cuts(llama.config())?, llama.exchange());
        let hidden = llama.config().hidden_size;
        let h = Array::zeros_of([1, 1, hidden], llama.dtype())?;
        let token = Array::from_slice(&[0u32], [1, 1])?;
        let mut last = match cuts.scheme {
            Scheme::Pipeline => {
                let h = exchange.input(&token, hidden, &mut || Ok(h.clone()))?;
                exchange.output(h, &[])?
            }
            Scheme::Gather => exchange.embedding(&token, &mut |_| Ok(h.clone()))?,
        };
        let gather = |last: &Array, axis: Axis| {
            let (ranges, features) = cuts.of(axis);
            let own = length(&cuts.own(ranges)) * features;
            exchange.gather(last.i((.., .., ..1))?.broadcast_to([1, 1, own])?, axis)
        };
        if cuts.scheme == Scheme::Gather {
            for _ in 0..llama.config().num_hidden_layers {
                for axis in [Axis::Heads, Axis::Hidden, Axis::Inner, Axis::Hidden] {
                    last = gather(&last, axis)?;
                }
            }
        }
        gather(&last, Axis::Vocab)
    }

    /// Returns the number of exchanges for one decoded token, which run one after the other, and
    /// the number of bytes that this rank sends in them.
    ///
    /// # Errors
    ///
    /// Returns an error for a model that the ranks cannot share.
    pub fn traffic(&self, llama: &Llama) -> Result<(u64, u64)> {
        if self.shares.len() < 2 {
            return Ok((0, 0));
        }
        let cuts = self.cuts(llama.config())?;
        let sends = self.group.as_ref().is_none_or(Group::sends);
        let (exchanges, elements) = traffic(&cuts, llama.config(), sends);
        Ok((exchanges, elements * llama.dtype().size() as u64))
    }
}

/// Returns the number of exchanges for a token, and the number of elements that this rank sends in
/// them. In a pipeline whose ranks cannot send to a single other rank, every rank sends equally
/// much to all other ranks.
fn traffic(cuts: &Cuts, config: &Config, sends: bool) -> (u64, u64) {
    let own = |axis: Axis| {
        let (ranges, features) = cuts.of(axis);
        u64::from((length(&cuts.own(ranges)) * features).unsigned_abs())
    };
    let extent = |length: i32| u64::from(length.unsigned_abs());
    let (layers, hidden) = (extent(config.num_hidden_layers), extent(config.hidden_size));
    let others = cuts.layers.len() as u64 - 1;
    match cuts.scheme {
        Scheme::Gather => {
            let layer = own(Axis::Heads) + 2 * own(Axis::Hidden) + own(Axis::Inner);
            (4 * layers + 2, (layers * layer + hidden + own(Axis::Vocab)) * others)
        }
        Scheme::Pipeline if !sends => {
            let tokens = extent(config.vocab_size);
            (others + 2, ((others + 1) * hidden + tokens) * others)
        }
        Scheme::Pipeline => {
            // A rank sends hidden states to the next rank. The last rank sends them to all. The
            // logits go to all ranks.
            let sent = if cuts.rank as u64 == others { hidden * others } else { hidden + others };
            (others + 2, sent + own(Axis::Vocab) * others)
        }
    }
}
