//! The part of a model that each rank holds, as ranges on the model's axes.

use std::ops::Range;

use mlx_primitives::{Error, Result};
use mlx_primitives_llama::{Config, base::Axis};

use super::scheme::Scheme;

/// The kernels compute blocks of rows, which begin at multiples of this number. The ranks' parts
/// begin at such multiples too, if there are at least four times this number of rows per rank on
/// average.
const UNIT: i32 = 32;

/// The range of each axis that each rank holds. If the scheme does not divide an axis, every rank
/// holds the complete axis, except that in a pipeline only rank 0 holds the complete vocabulary.
pub(super) struct Cuts {
    pub scheme: Scheme,
    pub rank: usize,
    /// The query heads of each rank.
    pub heads: Vec<Range<i32>>,
    /// The key heads of each rank. If several ranks use one key head, each of them holds it.
    pub kv_heads: Vec<Range<i32>>,
    pub head_dim: i32,
    pub hidden: Vec<Range<i32>>,
    pub inner: Vec<Range<i32>>,
    pub vocab: Vec<Range<i32>>,
    pub layers: Vec<Range<i32>>,
}

impl Cuts {
    pub fn new(scheme: Scheme, rank: usize, shares: &[u32], config: &Config) -> Result<Self> {
        let (heads, keys) = (config.num_attention_heads, config.kv_heads());
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let (vocab, layers) = (config.vocab_size, config.num_hidden_layers);
        let ranks = shares.len() as i32;
        let whole = |extent: i32| vec![0..extent; shares.len()];
        let least = |name: &str, extent: i32| match ranks > extent {
            false => Ok(()),
            true => Err(Error::argument(
                "split",
                format_args!("at most a rank for each of {extent} {name}, got {ranks} ranks"),
            )),
        };
        let mut cuts = Self {
            scheme,
            rank,
            heads: whole(heads),
            kv_heads: whole(keys),
            head_dim: config.head_dim(),
            hidden: whole(hidden),
            inner: whole(inner),
            vocab: whole(vocab),
            layers: whole(layers),
        };
        match scheme {
            Scheme::Gather => {
                least("query heads", heads.min(hidden).min(inner).min(vocab))?;
                (cuts.heads, cuts.kv_heads) = cut_heads(heads, keys, shares);
                cuts.hidden = cut(hidden, shares);
                cuts.inner = cut(inner, shares);
                cuts.vocab = cut(vocab, shares);
            }
            Scheme::Pipeline => {
                least("layers", layers)?;
                cuts.layers = cut(layers, shares);
                // Rank 0 holds the embedding and the output projection. The other ranks hold one
                // row, only to know the type of the logits.
                cuts.vocab.iter_mut().skip(1).for_each(|row| *row = 0..1);
            }
        }
        Ok(cuts)
    }

    /// This rank's part of an axis.
    pub fn own(&self, ranges: &[Range<i32>]) -> Range<i32> {
        ranges.get(self.rank).cloned().unwrap_or(0..0)
    }

    /// Returns the range of each rank on an axis, and the number of features per element of the
    /// axis.
    pub fn of(&self, axis: Axis) -> (&[Range<i32>], i32) {
        match axis {
            Axis::Heads => (&self.heads, self.head_dim),
            Axis::Hidden => (&self.hidden, 1),
            Axis::Inner => (&self.inner, 1),
            Axis::Vocab => (&self.vocab, 1),
        }
    }

    /// Returns the rows of the matrix at `path`, of shape `[outputs, ...]`, that this rank holds.
    pub fn rows(&self, path: &str, outputs: i32) -> Range<i32> {
        let rows = self.rows_of_ranks(path);
        rows.map_or(0..outputs, |(ranges, features)| times(&self.own(ranges), features))
    }

    /// Returns the rows of this rank that no lower rank holds.
    pub fn fresh_rows(&self, path: &str, outputs: i32) -> Range<i32> {
        let own = self.rows(path, outputs);
        let of_own_layer = self.scheme == Scheme::Pipeline && path.starts_with("model.layers.");
        if of_own_layer || self.rank == 0 {
            return own;
        }
        let Some((ranges, features)) = self.rows_of_ranks(path) else { return 0..0 };
        let held = ranges.iter().take(self.rank).map(|range| range.end * features).max();
        own.start.max(held.unwrap_or(0)).min(own.end)..own.end
    }

    /// Returns the range of each rank, and the number of matrix rows per element of a range; `None`
    /// for a matrix that every rank holds completely.
    fn rows_of_ranks(&self, path: &str) -> Option<(&Vec<Range<i32>>, i32)> {
        Some(match path.rsplit('.').next().unwrap_or_default() {
            "q_proj" => (&self.heads, self.head_dim),
            "k_proj" | "v_proj" => (&self.kv_heads, self.head_dim),
            "o_proj" | "down_proj" => (&self.hidden, 1),
            "gate_proj" | "up_proj" => (&self.inner, 1),
            "embed_tokens" | "lm_head" => (&self.vocab, 1),
            _ => return None,
        })
    }

    /// Some of the query heads that share this rank's key head may be on other ranks. Returns how
    /// many are on lower ranks, and how many are on higher ranks; `None` if this rank holds all of
    /// them.
    pub fn absent_queries(&self) -> Option<(i32, i32)> {
        let (own, key) = (self.heads.get(self.rank)?, self.kv_heads.get(self.rank)?);
        let group = self.heads.last()?.end / self.kv_heads.last()?.end;
        let absent = (own.start - key.start * group, key.end * group - own.end);
        (absent != (0, 0)).then_some(absent)
    }
}

pub(super) fn length(range: &Range<i32>) -> i32 {
    range.end - range.start
}

fn times(range: &Range<i32>, features: i32) -> Range<i32> {
    range.start * features..range.end * features
}

/// Divides `0..count` into a part for each of `shares`, in their ratio. Each part has at least one
/// element.
fn cut(count: i32, shares: &[u32]) -> Vec<Range<i32>> {
    let ranks = shares.len() as i64;
    let unit = if i64::from(count) >= ranks * 4 * i64::from(UNIT) { UNIT } else { 1 };
    let units = i64::from((count + unit - 1) / unit);
    let total: i64 = shares.iter().map(|&share| i64::from(share)).sum();
    let (mut start, mut before) = (0, 0);
    let mut parts = Vec::new();
    for (rank, &share) in shares.iter().enumerate() {
        before += i64::from(share);
        let wanted = (2 * units * before + total) / (2 * total); // rounded to nearest
        let rank = rank as i64;
        let end = wanted.clamp(rank + 1, units - (ranks - 1 - rank)) * i64::from(unit);
        let end = (end as i32).min(count);
        parts.push(start..end);
        start = end;
    }
    parts
}

/// Divides query heads and key heads among the ranks. With at least one key head for each rank, a
/// rank holds all query heads of its key heads. With fewer key heads, a rank holds some of the
/// query heads of one key head.
fn cut_heads(heads: i32, kv_heads: i32, shares: &[u32]) -> (Vec<Range<i32>>, Vec<Range<i32>>) {
    let group = heads / kv_heads;
    let ranks = shares.len() as i32;
    if ranks <= kv_heads {
        let kv = cut(kv_heads, shares);
        return (kv.iter().map(|k| k.start * group..k.end * group).collect(), kv);
    }
    let (mut queries, mut keys) = (Vec::new(), Vec::new());
    for (head, holders) in cut(ranks, &vec![1; kv_heads as usize]).into_iter().enumerate() {
        let head = head as i32;
        let shares = &shares[holders.start as usize..holders.end as usize];
        for part in cut(group, shares) {
            queries.push(head * group + part.start..head * group + part.end);
            keys.push(head..head + 1);
        }
    }
    (queries, keys)
}
