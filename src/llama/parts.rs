//! The part of a model that this rank holds, and what the ranks exchange to compute together.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::array::{Array, async_eval, concatenate, select};
use crate::custom::Spec;
use crate::distributed::Group;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::transforms::differentiates;

use super::cache::Heads;
use super::config::Config;
use super::cuts::{Axis, Cuts, length};
use super::split::{Scheme, Split};

/// The parts of a model that the ranks hold. By default there is one rank, which holds all.
#[derive(Clone, Default)]
pub(super) struct Parts(Option<Arc<Shared>>);

struct Shared {
    /// `None` for a rank that is only planned.
    group: Option<Group>,
    cuts: Cuts,
    /// The types of the residual stream where it enters this rank's layers, and after the last rank's.
    stream: OnceLock<[Dtype; 2]>,
}

impl Shared {
    fn group(&self) -> Result<&Group> {
        self.group.as_ref().ok_or_else(|| {
            Error::argument("split", "ranks that have joined, got one that is only planned")
        })
    }

    fn is_pipeline(&self) -> bool {
        self.cuts.scheme == Scheme::Pipeline
    }

    fn ranks(&self) -> usize {
        self.cuts.layers.len()
    }
}

impl Parts {
    /// The parts of a model of that configuration.
    pub fn new(split: Option<&Split>, config: &Config) -> Result<Self> {
        let Some(split) = split.filter(|split| split.shares.len() > 1) else {
            return Ok(Self(None));
        };
        let cuts = Cuts::new(split, config)?;
        let group = split.group.clone();
        let parts = Self(Some(Arc::new(Shared { group, cuts, stream: OnceLock::new() })));
        parts.agree("the split", || Ok(format!("{:?} {:?}", split.scheme, split.shares)))?;
        Ok(parts)
    }

    /// The ranges of the ranks; `None` if there is one rank.
    pub fn cuts(&self) -> Option<&Cuts> {
        self.0.as_deref().map(|shared| &shared.cuts)
    }

    /// The ranks of a scheme that passes whole layers on.
    fn pipeline(&self) -> Option<&Shared> {
        self.0.as_deref().filter(|shared| shared.is_pipeline())
    }

    /// The rows of the matrix `[outputs, ...]` of that path which this rank holds.
    pub fn rows(&self, path: &str, outputs: i32) -> Range<i32> {
        self.cuts().map_or(0..outputs, |cuts| cuts.rows(path, outputs))
    }

    /// The rows among them which no lower rank holds, or of which it has other columns.
    pub fn fresh_rows(&self, path: &str, outputs: i32) -> Range<i32> {
        self.cuts().map_or(0..outputs, |cuts| cuts.fresh_rows(path, outputs))
    }

    /// The sum of a number of each rank, modulo 2^64.
    pub fn sum(&self, own: u64) -> Result<u64> {
        let Some(group) = self.group()? else { return Ok(own) };
        let all = group.gather_text(&format!("{own:016x}"))?;
        let number = |text: &String| u64::from_str_radix(text, 16).ok();
        all.iter()
            .map(number)
            .try_fold(0, |sum: u64, own| Some(sum.wrapping_add(own?)))
            .ok_or_else(|| Error::argument("split", "a number of each rank"))
    }

    /// The columns of the matrix `[..., inputs]` of that path which this rank holds.
    pub fn columns(&self, path: &str, inputs: i32) -> Range<i32> {
        self.cuts().and_then(|cuts| cuts.own_columns(path)).unwrap_or(0..inputs)
    }

    /// Returns an error unless the columns that each rank holds are whole groups of packed weights.
    pub fn check_groups(&self, path: &str, group_size: i32) -> Result<()> {
        self.cuts().map_or(Ok(()), |cuts| cuts.check_groups(path, group_size))
    }

    /// The layers that this rank holds, of `all`.
    pub fn layers(&self, all: i32) -> Range<i32> {
        self.cuts().map_or(0..all, |cuts| cuts.own(&cuts.layers))
    }

    /// The heads that this rank holds, of a model with the heads `whole`.
    pub fn heads(&self, whole: Heads) -> Heads {
        let Some(cuts) = self.cuts() else { return whole };
        let count = |ranges: &[Range<i32>]| length(&cuts.own(ranges));
        Heads { heads: count(&cuts.heads), kv_heads: count(&cuts.kv_heads), ..whole }
    }

    /// Whether the ranks add the products of columns instead of gathering those of rows.
    pub fn sums(&self) -> bool {
        self.cuts().is_some_and(|cuts| cuts.scheme == Scheme::Reduce)
    }

    /// This rank's part of the features of `x`, which has the residual stream on its last axis.
    pub fn own(&self, x: &Array) -> Result<Array> {
        match self.cuts() {
            Some(cuts) if cuts.scheme == Scheme::Gather => x.slice_axis(-1, cuts.own(&cuts.hidden)),
            _ => Ok(x.clone()),
        }
    }

    /// Whether this rank has all query heads of each of its key heads.
    pub fn has_whole_groups(&self) -> bool {
        self.0.as_deref().is_none_or(|shared| shared.cuts.absent_queries().is_none())
    }

    /// This rank's queries `[batch, heads, time, head_dim]` with zeros in the place of the query heads
    /// that other ranks have of its key head. Attention chooses the order of its sums by the number
    /// of query heads of a key head.
    pub fn whole_groups(&self, queries: Array) -> Result<Array> {
        let Some((before, after)) = self.cuts().and_then(Cuts::absent_queries) else {
            return Ok(queries);
        };
        let (batch, _, time, features) = queries.dims4()?;
        let zeros = |heads: i32| Array::zeros_of([batch, heads, time, features], queries.dtype());
        concatenate(&[&zeros(before)?, &queries, &zeros(after)?], 1)
    }

    /// The results of this rank's queries, without those of [`whole_groups`](Self::whole_groups).
    pub fn own_queries(&self, attended: Array) -> Result<Array> {
        match self.cuts().and_then(Cuts::absent_queries) {
            Some((before, after)) => attended.slice_axis(1, before..attended.dim(1)? - after),
            None => Ok(attended),
        }
    }

    /// The features of all ranks, of the last axis of which `x` has this rank's part.
    pub fn gather(&self, x: Array, axis: Axis) -> Result<Array> {
        let Some(shared) = &self.0 else { return Ok(x) };
        self.refuse_derivatives()?;
        let whole = match axis {
            Axis::Vocab => shared.is_pipeline(),
            _ if shared.is_pipeline() => return Ok(x),
            _ => false,
        };
        let (ranges, features) = shared.cuts.of(axis);
        let lengths: Vec<i32> = ranges.iter().map(|range| length(range) * features).collect();
        let all = shared.group()?.gather_last(&x, &lengths)?;
        // Rank 0 has all tokens.
        if whole { all.slice_axis(-1, ..lengths.first().copied().unwrap_or(0)) } else { Ok(all) }
    }

    /// `to`, which all ranks have, plus the sum of the ranks' `x`.
    pub fn sum_onto(&self, to: &Array, x: &Array) -> Result<Array> {
        match &self.0 {
            Some(shared) => shared.group()?.sum_onto(to, x),
            None => to.add(x),
        }
    }

    /// The rows of `tokens` in a table, in which `own` looks up this rank's rows, from 0.
    pub fn embedded(
        &self,
        tokens: &Array,
        own: impl FnOnce(&Array) -> Result<Array>,
    ) -> Result<Array> {
        let Some(shared) = &self.0 else { return own(tokens) };
        let cuts = &shared.cuts;
        match (shared.is_pipeline(), cuts.rank) {
            (true, 0) => return own(tokens),
            (true, rank) => {
                let expected = format_args!("the embedding of rank 0, got that of rank {rank}");
                return Err(Error::argument("split", expected));
            }
            _ => {}
        }
        let tokens = tokens.astype(Dtype::Int32)?;
        let range = cuts.own(&cuts.vocab);
        let ids = tokens.subtract(range.start)?.maximum(0)?.minimum(length(&range) - 1)?;
        let h = own(&ids)?;
        let hidden = h.dim(-1)?;
        let all = shared.group()?.gather_last(&h, &vec![hidden; cuts.vocab.len()])?;
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

    /// The input of this rank's first layer: what `first` returns or, in a pipeline, what the rank
    /// before this one sends for `tokens`, with `hidden` features.
    pub fn entered(
        &self,
        tokens: &Array,
        hidden: i32,
        first: impl FnOnce() -> Result<Array>,
    ) -> Result<Array> {
        self.refuse_derivatives()?;
        let Some(shared) = self.pipeline().filter(|shared| shared.cuts.rank > 0) else {
            return first();
        };
        let [dtype, _] = shared.stream()?;
        let spec = Spec::new([tokens.dim(0)?, tokens.dim(1)?, hidden], dtype);
        shared.group()?.receive_after(tokens, spec)
    }

    /// The output of the last layer, of which `h` is that of this rank's last layer. In a pipeline the
    /// ranks start to compute it here, so that what they send comes in the order of the calls; `kept`
    /// are the arrays that they keep of it.
    pub fn left<'a>(&self, h: Array, kept: impl IntoIterator<Item = &'a Array>) -> Result<Array> {
        let Some(shared) = self.pipeline() else { return Ok(h) };
        let (group, last) = (shared.group()?, shared.ranks() - 1);
        let [_, dtype] = shared.stream()?;
        let hidden = h.dim(-1)?;
        let own = if shared.cuts.rank < last {
            async_eval([&group.send_on(&h)?])?;
            Array::zeros_of([h.dim(0)?, h.dim(1)?, 1], dtype)?
        } else {
            async_eval(kept)?;
            h
        };
        let mut lengths = vec![1; last];
        lengths.push(hidden);
        group.gather_last(&own, &lengths)?.slice_axis(-1, last as i32..)
    }

    /// Learns the types of the residual stream, of which `after` returns that of this rank's last
    /// layer for that of its first one. Other schemes do not need them.
    pub fn learn(&self, first: Dtype, after: impl FnOnce(Dtype) -> Result<Dtype>) -> Result<()> {
        let Some(shared) = self.pipeline().filter(|shared| shared.group.is_some()) else {
            return Ok(());
        };
        let floats = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];
        let named = |name: &str| floats.into_iter().find(|dtype| dtype.name() == name);
        let mut entered = first;
        let last = self.in_turn(first.name().to_owned(), |name| {
            entered = named(name).unwrap_or(first);
            Ok(after(entered)?.name().to_owned())
        })?;
        let _ = shared.stream.set([entered, named(&last).unwrap_or(first)]);
        Ok(())
    }

    /// In a pipeline, what the last rank makes of what the rank before it makes, and so on from what
    /// rank 0 makes of `state`; all ranks get it. In other schemes each rank makes it of `state`.
    pub fn in_turn(
        &self,
        state: String,
        own: impl FnOnce(&str) -> Result<String>,
    ) -> Result<String> {
        let Some(shared) = self.pipeline() else { return own(&state) };
        let (mut state, mut own) = (state, Some(own));
        for rank in 0..shared.ranks() {
            let made = match own.take_if(|_| rank == shared.cuts.rank) {
                Some(own) => own(&state)?,
                None => String::new(),
            };
            state = shared.group()?.gather_text(&made)?.into_iter().nth(rank).unwrap_or_default();
        }
        Ok(state)
    }

    /// Returns an error inside of a derivative, of which a rank would compute the terms of its part
    /// alone.
    fn refuse_derivatives(&self) -> Result<()> {
        match &self.0 {
            Some(shared) if differentiates() => {
                let ranks = shared.ranks();
                let expected = format_args!("one rank for derivatives, got {ranks} ranks");
                Err(Error::argument("split", expected))
            }
            _ => Ok(()),
        }
    }

    /// Returns an error unless all ranks have the same value.
    pub fn agree(&self, what: &str, value: impl FnOnce() -> Result<String>) -> Result<()> {
        match self.0.as_deref() {
            Some(Shared { group: Some(group), .. }) => group.agree(what, &value()?),
            _ => Ok(()),
        }
    }

    /// The group of the ranks; `None` if there is one rank.
    pub fn group(&self) -> Result<Option<&Group>> {
        self.0.as_deref().map(Shared::group).transpose()
    }

    pub fn rank(&self) -> usize {
        self.cuts().map_or(0, |cuts| cuts.rank)
    }

    /// Whether this is rank 0, which alone writes files.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Whether the ranks hold different layers.
    pub fn is_pipeline(&self) -> bool {
        self.pipeline().is_some()
    }
}

impl Shared {
    fn stream(&self) -> Result<[Dtype; 2]> {
        let known = self.stream.get().copied();
        known.ok_or_else(|| Error::argument("split", "a model that has been loaded"))
    }
}
