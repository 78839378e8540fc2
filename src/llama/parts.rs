//! The rows of each matrix that a rank holds, and the gathers that join the ranks' activations.

use std::ops::Range;
use std::sync::Arc;

use crate::array::{Array, concatenate, select};
use crate::distributed::Group;
use crate::dtype::Dtype;
use crate::error::{Error, Result};

use super::cache::Heads;
use super::config::Config;
use super::split::Split;

/// Boundaries lie at multiples of this number of rows, at which kernels begin their blocks, where
/// each rank has four times as many rows.
const UNIT: i32 = 32;

/// An axis that is cut into a part for each rank.
#[derive(Clone, Copy)]
pub(super) enum Axis {
    /// The features of all query heads.
    Heads,
    /// The residual stream.
    Hidden,
    /// The features of the feed-forward layer.
    Inner,
    /// The tokens of the vocabulary.
    Vocab,
}

/// The parts of a model that the ranks hold. By default there is one rank, which holds all.
#[derive(Clone, Default)]
pub(super) struct Parts(Option<Arc<Cuts>>);

struct Cuts {
    /// `None` for a rank that is only planned.
    group: Option<Group>,
    rank: usize,
    /// The query heads of each rank.
    heads: Vec<Range<i32>>,
    /// The key heads of each rank. Ranks that share a key head both hold it.
    kv_heads: Vec<Range<i32>>,
    head_dim: i32,
    hidden: Vec<Range<i32>>,
    inner: Vec<Range<i32>>,
    vocab: Vec<Range<i32>>,
}

impl Parts {
    /// The parts of a model of that configuration.
    pub fn new(split: Option<&Split>, config: &Config) -> Result<Self> {
        let Some(Split { group, rank, shares }) = split.filter(|split| split.shares.len() > 1)
        else {
            return Ok(Self(None));
        };
        let (heads, ranks) = (config.num_attention_heads, shares.len() as i32);
        let extents = [config.hidden_size, config.intermediate_size, config.vocab_size];
        if ranks > heads || extents.iter().any(|&extent| ranks > extent) {
            return Err(Error::argument(
                "split",
                format_args!("at most a rank for each of {heads} query heads, got {ranks} ranks"),
            ));
        }
        let (heads, kv_heads) = cut_heads(heads, config.kv_heads(), shares);
        let [hidden, inner, vocab] = extents.map(|extent| cut(extent, shares));
        Ok(Self(Some(Arc::new(Cuts {
            group: group.clone(),
            rank: *rank,
            heads,
            kv_heads,
            head_dim: config.head_dim(),
            hidden,
            inner,
            vocab,
        }))))
    }

    /// The rows of the matrix `[outputs, ...]` of that path which this rank holds.
    pub fn rows(&self, path: &str, outputs: i32) -> Range<i32> {
        let Some(cuts) = &self.0 else { return 0..outputs };
        let of = |ranges: &[Range<i32>], features: i32| {
            let range = ranges.get(cuts.rank).cloned().unwrap_or(0..0);
            range.start * features..range.end * features
        };
        match path.rsplit('.').next().unwrap_or_default() {
            "q_proj" => of(&cuts.heads, cuts.head_dim),
            "k_proj" | "v_proj" => of(&cuts.kv_heads, cuts.head_dim),
            "o_proj" | "down_proj" => of(&cuts.hidden, 1),
            "gate_proj" | "up_proj" => of(&cuts.inner, 1),
            "embed_tokens" | "lm_head" => of(&cuts.vocab, 1),
            _ => 0..outputs,
        }
    }

    /// The heads that this rank holds, of a model with the heads `whole`.
    pub fn heads(&self, whole: Heads) -> Heads {
        let Some(cuts) = &self.0 else { return whole };
        let count = |ranges: &[Range<i32>]| ranges.get(cuts.rank).map_or(0, length);
        Heads { heads: count(&cuts.heads), kv_heads: count(&cuts.kv_heads), ..whole }
    }

    /// This rank's part of the features of `x`, which has the residual stream on its last axis.
    pub fn own(&self, x: &Array) -> Result<Array> {
        match &self.0 {
            None => Ok(x.clone()),
            Some(cuts) => match cuts.hidden.get(cuts.rank) {
                Some(own) => x.slice_axis(-1, own.clone()),
                None => Ok(x.clone()),
            },
        }
    }

    /// Whether this rank has all query heads of each of its key heads.
    pub fn has_whole_groups(&self) -> bool {
        self.0.as_deref().is_none_or(|cuts| cuts.absent_queries().is_none())
    }

    /// This rank's queries `[batch, heads, time, head_dim]` with zeros in the place of the query heads
    /// that other ranks have of its key head. Attention chooses the order of its sums by the number
    /// of query heads of a key head.
    pub fn whole_groups(&self, queries: Array) -> Result<Array> {
        let Some((before, after)) = self.0.as_deref().and_then(Cuts::absent_queries) else {
            return Ok(queries);
        };
        let (batch, _, time, features) = queries.dims4()?;
        let zeros = |heads: i32| Array::zeros_of([batch, heads, time, features], queries.dtype());
        concatenate(&[&zeros(before)?, &queries, &zeros(after)?], 1)
    }

    /// The results of this rank's queries, without those of [`whole_groups`](Self::whole_groups).
    pub fn own_queries(&self, attended: Array) -> Result<Array> {
        match self.0.as_deref().and_then(Cuts::absent_queries) {
            Some((before, after)) => attended.slice_axis(1, before..attended.dim(1)? - after),
            None => Ok(attended),
        }
    }

    /// The features of all ranks, of the last axis of which `x` has this rank's part.
    pub fn gather(&self, x: Array, axis: Axis) -> Result<Array> {
        let Some(cuts) = &self.0 else { return Ok(x) };
        let (ranges, features) = match axis {
            Axis::Heads => (&cuts.heads, cuts.head_dim),
            Axis::Hidden => (&cuts.hidden, 1),
            Axis::Inner => (&cuts.inner, 1),
            Axis::Vocab => (&cuts.vocab, 1),
        };
        let lengths: Vec<i32> = ranges.iter().map(|range| length(range) * features).collect();
        cuts.group()?.gather_last(&x, &lengths)
    }

    /// The rows of `tokens` in a table, in which `own` looks up this rank's rows, from 0.
    pub fn embedded(
        &self,
        tokens: &Array,
        own: impl FnOnce(&Array) -> Result<Array>,
    ) -> Result<Array> {
        let Some(cuts) = &self.0 else { return own(tokens) };
        let tokens = tokens.astype(Dtype::Int32)?;
        let range = cuts.vocab.get(cuts.rank).cloned().unwrap_or(0..1);
        let ids = tokens.subtract(range.start)?.maximum(0)?.minimum(length(&range) - 1)?;
        let h = own(&ids)?;
        let hidden = h.dim(-1)?;
        let all = cuts.group()?.gather_last(&h, &vec![hidden; cuts.vocab.len()])?;
        let of = |rank: usize| {
            let start = rank as i32 * hidden;
            all.slice_axis(-1, start..start + hidden)
        };
        let ids = tokens.expand_dims(-1)?;
        let mut h = of(0)?;
        for (rank, range) in cuts.vocab.iter().enumerate().skip(1) {
            h = select(&ids.less(range.start)?, &h, &of(rank)?)?;
        }
        Ok(h)
    }

    /// Keys or values of all heads, or both one after the other, of which `own`,
    /// `[1, n * own heads, ...]`, has those of this rank's heads.
    pub fn gather_heads(&self, own: &Array) -> Result<Array> {
        let Some(cuts) = &self.0 else { return Ok(own.clone()) };
        let lengths: Vec<i32> = cuts.kv_heads.iter().map(length).collect();
        let held = lengths.get(cuts.rank).copied().unwrap_or(1);
        let shape = by_heads(own, held)?;
        // [n, heads, time, features] with the heads last, [n, time, features, heads].
        let last = own.reshape(shape)?.transpose([0, 2, 3, 1])?;
        let all = cuts.group()?.gather_last(&last, &lengths)?.transpose([0, 3, 1, 2])?;
        let (mut parts, mut known) = (Vec::new(), 0);
        let mut start = 0;
        for range in &cuts.kv_heads {
            // A head that several ranks hold is taken of the first one.
            let new = range.start.max(known)..range.end;
            if !new.is_empty() {
                let at = start + new.start - range.start;
                parts.push(all.slice_axis(1, at..at + length(&new))?);
                known = range.end;
            }
            start += length(range);
        }
        let joined = concatenate(&parts.iter().collect::<Vec<_>>(), 1)?;
        joined.reshape([1, shape[0] * known, shape[2], shape[3]])
    }

    /// The keys or values of this rank's heads, of `all`, `[1, n * heads, ...]`.
    pub fn own_heads(&self, all: &Array) -> Result<Array> {
        let Some(cuts) = &self.0 else { return Ok(all.clone()) };
        let heads = cuts.kv_heads.last().map_or(1, |range| range.end);
        if all.ndim() != 4 || all.dim(1)? % heads != 0 {
            return Ok(all.clone()); // refused later, by its shape
        }
        let shape = by_heads(all, heads)?;
        let own = cuts.kv_heads.get(cuts.rank).cloned().unwrap_or(0..0);
        let count = length(&own);
        all.reshape(shape)?.slice_axis(1, own)?.reshape([1, shape[0] * count, shape[2], shape[3]])
    }

    /// Returns an error unless all ranks have the same value.
    pub fn agree(&self, what: &str, value: impl FnOnce() -> Result<String>) -> Result<()> {
        match self.0.as_deref() {
            Some(Cuts { group: Some(group), .. }) => group.agree(what, &value()?),
            _ => Ok(()),
        }
    }

    /// The text of rank 0.
    pub fn of_first(&self, text: String) -> Result<String> {
        let Some(cuts) = &self.0 else { return Ok(text) };
        let bytes = cuts.group()?.broadcast(text.as_bytes())?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Whether this is rank 0, which alone writes files.
    pub fn is_first(&self) -> bool {
        self.0.as_ref().is_none_or(|cuts| cuts.rank == 0)
    }

    /// The gathers of one decoded token alone, each of which waits for the one before; `None` on one
    /// rank.
    pub fn gathers_of_a_token(&self, layers: usize, dtype: Dtype) -> Result<Option<Array>> {
        let Some(cuts) = &self.0 else { return Ok(None) };
        let width = |ranges: &[Range<i32>]| ranges.get(cuts.rank).map_or(0, length);
        let hidden = cuts.hidden.last().map_or(1, |range| range.end);
        let h = Array::zeros_of([1, 1, hidden], dtype)?;
        let mut last = cuts.group()?.gather_last(&h, &vec![hidden; cuts.vocab.len()])?;
        let mut gather = |features: i32, axis: Axis| -> Result<()> {
            let own = last.i((.., .., ..1))?.broadcast_to([1, 1, features])?;
            last = self.gather(own, axis)?;
            Ok(())
        };
        for _ in 0..layers {
            gather(width(&cuts.heads) * cuts.head_dim, Axis::Heads)?;
            gather(width(&cuts.hidden), Axis::Hidden)?;
            gather(width(&cuts.inner), Axis::Inner)?;
            gather(width(&cuts.hidden), Axis::Hidden)?;
        }
        gather(width(&cuts.vocab), Axis::Vocab)?;
        Ok(Some(last))
    }

    /// The number of gathers of one decoded token, and the bytes that this rank sends in them;
    /// `(0, 0)` on one rank.
    pub fn traffic(&self, layers: usize, dtype: Dtype) -> (u64, u64) {
        let Some(cuts) = &self.0 else { return (0, 0) };
        let own = |ranges: &[Range<i32>]| ranges.get(cuts.rank).map_or(0, length) as u64;
        let hidden = cuts.hidden.last().map_or(0, |range| range.end) as u64;
        let layer =
            own(&cuts.heads) * cuts.head_dim as u64 + 2 * own(&cuts.hidden) + own(&cuts.inner);
        let features = layers as u64 * layer + hidden + own(&cuts.vocab);
        let others = cuts.vocab.len() as u64 - 1;
        (4 * layers as u64 + 2, features * dtype.size() as u64 * others)
    }
}

impl Cuts {
    /// The numbers of query heads before and after those of this rank that its key head has on other
    /// ranks; `None` if there are none.
    fn absent_queries(&self) -> Option<(i32, i32)> {
        let (own, key) = (self.heads.get(self.rank)?, self.kv_heads.get(self.rank)?);
        let group = self.heads.last()?.end / self.kv_heads.last()?.end;
        let absent = (own.start - key.start * group, key.end * group - own.end);
        (absent != (0, 0)).then_some(absent)
    }

    fn group(&self) -> Result<&Group> {
        self.group.as_ref().ok_or_else(|| {
            Error::argument("split", "ranks that have joined, got one that is only planned")
        })
    }
}

/// The shape `[n, heads, time, features]` of an array `[1, n * heads, time, features]`.
fn by_heads(array: &Array, heads: i32) -> Result<[i32; 4]> {
    let (_, all, time, features) = array.dims4()?;
    Ok([all / heads.max(1), heads, time, features])
}

fn length(range: &Range<i32>) -> i32 {
    range.end - range.start
}

/// Cuts `0..count` in the ratio of the shares. Each part has at least one element.
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

/// Cuts query heads and key heads. A rank has all query heads of its key heads, unless there are
/// more ranks than key heads: then it has some query heads of one.
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
