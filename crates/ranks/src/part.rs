//! The part of a model that a rank holds, and the exchanges by which the ranks compute together.

use std::ops::Range;
use std::sync::OnceLock;

use mlx_primitives::custom::Spec;
use mlx_primitives::support::differentiates;
use mlx_primitives::{Array, Dtype, Error, Result, async_eval, select};
use mlx_primitives_llama::base::{Axis, Exchange, Heads, SavedCache};

use super::cuts::{Cuts, length};
use super::group::Group;
use super::saved_parts::{joined_heads, joined_layers, own_heads};
use super::scheme::Scheme;

/// The part of a model that one of several ranks holds.
pub(super) struct RankPart {
    /// `None` for a rank of a group that does not exist yet (`Split::planned`).
    group: Option<Group>,
    cuts: Cuts,
    /// The types of the hidden states before the first layer of each rank, and the type after the
    /// last layer of the model.
    types: OnceLock<Vec<Dtype>>,
}

impl RankPart {
    /// Makes the part of a rank. `said` is a text that says how the ranks share the model. Returns
    /// an error unless it is equal on all ranks.
    pub fn new(group: Option<Group>, cuts: Cuts, said: String) -> Result<Self> {
        let part = Self { group, cuts, types: OnceLock::new() };
        part.agree("the split", &mut || Ok(said.clone()))?;
        Ok(part)
    }

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

    /// Returns the type of the hidden states before the first layer of a rank. If `rank` is the
    /// number of ranks, returns the type after the last layer of the model.
    fn type_before(&self, rank: usize) -> Result<Dtype> {
        let known = self.types.get().and_then(|types| types.get(rank)).copied();
        known.ok_or_else(|| Error::argument("split", "a model that has been loaded"))
    }

    /// Gives all ranks the hidden states of the ranks `which`, with one gather for each of these
    /// ranks. Used in groups in which a rank cannot send to a single other rank. `h` has the hidden
    /// states of this rank, or any values if `which` does not contain this rank. Each gather reads
    /// the result of the previous gather, so all ranks run the gathers in the same order.
    fn pass(&self, h: &Array, which: Range<usize>) -> Result<Passed> {
        let of = |all: &Array, rank: usize| {
            let rank = rank as i32;
            all.slice_axis(0, rank..rank + 1)?.squeeze(0)
        };
        let (mut own, mut from) = (h.clone(), h.clone());
        for rank in which {
            let all = self.group()?.pass(&own.astype(self.type_before(rank + 1)?)?)?;
            (own, from) = (of(&all, self.cuts.rank)?, of(&all, rank)?);
        }
        Ok(Passed { own, from })
    }

    /// Returns an error if the caller differentiates, because a rank would compute only the terms
    /// of a derivative that belong to its part.
    fn refuse_derivatives(&self) -> Result<()> {
        if !differentiates() {
            return Ok(());
        }
        let ranks = self.ranks();
        Err(Error::argument("split", format_args!("one rank for derivatives, got {ranks} ranks")))
    }
}

/// The results of [`RankPart::pass`].
struct Passed {
    /// The array `h` of this rank, taken from the results of the gathers so that it depends on
    /// them.
    own: Array,
    /// The hidden states of the last rank in `which`, or `h` if `which` is empty.
    from: Array,
}

impl Exchange for RankPart {
    fn rows(&self, path: &str, outputs: i32) -> Range<i32> {
        self.cuts.rows(path, outputs)
    }

    fn fresh_rows(&self, path: &str, outputs: i32) -> Range<i32> {
        self.cuts.fresh_rows(path, outputs)
    }

    fn layers(&self, _: i32) -> Range<i32> {
        self.cuts.own(&self.cuts.layers)
    }

    fn heads(&self, whole: Heads) -> Heads {
        let count = |ranges: &[Range<i32>]| length(&self.cuts.own(ranges));
        Heads { heads: count(&self.cuts.heads), kv_heads: count(&self.cuts.kv_heads), ..whole }
    }

    fn is_first(&self) -> bool {
        self.cuts.rank == 0
    }

    fn input(
        &self,
        tokens: &Array,
        hidden: i32,
        embed: &mut dyn FnMut() -> Result<Array>,
    ) -> Result<Array> {
        self.refuse_derivatives()?;
        if !self.is_pipeline() || self.cuts.rank == 0 {
            return embed();
        }
        let dtype = self.type_before(self.cuts.rank)?;
        let shape = [tokens.dim(0)?, tokens.dim(1)?, hidden];
        if !self.group()?.sends() {
            let any = tokens.expand_dims(-1)?.broadcast_to(shape)?;
            return Ok(self.pass(&any, 0..self.cuts.rank)?.from);
        }
        self.group()?.receive_after(tokens, Spec::new(shape, dtype))
    }

    /// In a pipeline, the ranks start to compute here, so that they send in the order of the calls.
    fn output(&self, h: Array, caches: &[&Array]) -> Result<Array> {
        if !self.is_pipeline() {
            return Ok(h);
        }
        let (group, last) = (self.group()?, self.ranks() - 1);
        if !group.sends() {
            let Passed { own, .. } = self.pass(&h, self.cuts.rank..last)?;
            match self.cuts.rank == last {
                true => async_eval(caches.iter().copied())?,
                false => async_eval([&own])?,
            }
            return Ok(self.pass(&own, last..last + 1)?.from);
        }
        let dtype = self.type_before(last + 1)?;
        let hidden = h.dim(-1)?;
        let own = if self.cuts.rank < last {
            async_eval([&group.send_on(&h)?])?;
            Array::zeros_of([h.dim(0)?, h.dim(1)?, 1], dtype)?
        } else {
            async_eval(caches.iter().copied())?;
            h
        };
        let mut lengths = vec![1; last];
        lengths.push(hidden);
        group.gather_last(&own, &lengths)?.slice_axis(-1, last as i32..)
    }

    fn embedding(
        &self,
        tokens: &Array,
        own: &mut dyn FnMut(&Array) -> Result<Array>,
    ) -> Result<Array> {
        let cuts = &self.cuts;
        match (self.is_pipeline(), cuts.rank) {
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
        let all = self.group()?.gather_last(&h, &vec![hidden; cuts.vocab.len()])?;
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

    fn own_features(&self, x: &Array) -> Result<Array> {
        match self.cuts.scheme {
            Scheme::Gather => x.slice_axis(-1, self.cuts.own(&self.cuts.hidden)),
            Scheme::Pipeline => Ok(x.clone()),
        }
    }

    fn gather(&self, x: Array, axis: Axis) -> Result<Array> {
        self.refuse_derivatives()?;
        if self.is_pipeline() && axis != Axis::Vocab {
            return Ok(x);
        }
        let (ranges, features) = self.cuts.of(axis);
        let lengths: Vec<i32> = ranges.iter().map(|range| length(range) * features).collect();
        let all = self.group()?.gather_last(&x, &lengths)?;
        // In a pipeline, rank 0 computes the logits of the complete vocabulary.
        match self.is_pipeline() {
            true => all.slice_axis(-1, ..lengths.first().copied().unwrap_or(0)),
            false => Ok(all),
        }
    }

    fn absent_queries(&self) -> Option<(i32, i32)> {
        self.cuts.absent_queries()
    }

    /// Finds the type of the hidden states after each rank of a pipeline. One rank after the other
    /// calls `after` with the type that the previous rank has found, and the first rank with
    /// `first`. Other schemes do not need the types.
    fn learn_types(
        &self,
        first: Dtype,
        after: &mut dyn FnMut(Dtype) -> Result<Dtype>,
    ) -> Result<()> {
        let Some(group) = self.group.as_ref().filter(|_| self.is_pipeline()) else {
            return Ok(());
        };
        let floats = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];
        let named = |name: &str| floats.into_iter().find(|dtype| dtype.name() == name);
        let mut types = vec![first];
        let mut reached = first;
        for rank in 0..self.ranks() {
            let mut found = String::new();
            if rank == self.cuts.rank {
                found = after(reached)?.name().to_owned();
            }
            let found = group.gather_text(&found)?.into_iter().nth(rank).unwrap_or_default();
            reached = named(&found).unwrap_or(first);
            types.push(reached);
        }
        let _ = self.types.set(types);
        Ok(())
    }

    fn sum(&self, own: u64) -> Result<u64> {
        let all = self.group()?.gather_text(&format!("{own:016x}"))?;
        let number = |text: &String| u64::from_str_radix(text, 16).ok();
        all.iter()
            .map(number)
            .try_fold(0, |sum: u64, own| Some(sum.wrapping_add(own?)))
            .ok_or_else(|| Error::argument("split", "a number of each rank"))
    }

    fn agree(&self, what: &str, text: &mut dyn FnMut() -> Result<String>) -> Result<()> {
        match &self.group {
            Some(group) => group.agree(what, &text()?),
            None => Ok(()),
        }
    }

    fn whole_cache(&self, own: SavedCache) -> Result<SavedCache> {
        let (group, (arrays, layers)) = (self.group()?, own);
        if self.is_pipeline() {
            return joined_layers(group, arrays, &layers);
        }
        let whole =
            |(name, array): (String, Array)| Ok((name, joined_heads(group, &self.cuts, &array)?));
        Ok((arrays.into_iter().map(whole).collect::<Result<_>>()?, layers))
    }

    fn own_heads(&self, all: &Array) -> Result<Array> {
        own_heads(&self.cuts, all)
    }
}
