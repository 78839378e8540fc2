//! Joins the ranks' parts of a saved prompt cache, and extracts a rank's part from it.

use mlx_primitives::{Array, Dtype, Error, Result, concatenate};
use mlx_primitives_llama::base::SavedCache;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cuts::{Cuts, length};
use super::group::Group;

/// Describes the cache of the layers that a rank of a pipeline holds.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// The names, shapes and types of the arrays.
    arrays: Vec<(String, Vec<i32>, String)>,
    layers: Vec<Value>,
}

/// Gathers the keys or values of all heads. `own`, `[1, n * own heads, ...]`, has only the heads of
/// this rank. If `n` is 2, the keys come first and then the values.
pub(super) fn joined_heads(group: &Group, cuts: &Cuts, own: &Array) -> Result<Array> {
    let lengths: Vec<i32> = cuts.kv_heads.iter().map(length).collect();
    let held = lengths.get(cuts.rank).copied().unwrap_or(1);
    let shape = by_heads(own, held)?;
    // Move the heads of `[n, heads, time, features]` to the last axis, which `gather_last` joins.
    let last = own.reshape(shape)?.transpose([0, 2, 3, 1])?;
    let all = group.gather_last(&last, &lengths)?.transpose([0, 3, 1, 2])?;
    let (mut parts, mut known) = (Vec::new(), 0);
    let mut start = 0;
    for range in &cuts.kv_heads {
        // If several ranks hold a head, use the copy of the first of these ranks.
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

/// Returns the keys or values of this rank's heads. `all`, `[1, n * heads, ...]`, has all heads.
pub(super) fn own_heads(cuts: &Cuts, all: &Array) -> Result<Array> {
    let heads = cuts.kv_heads.last().map_or(1, |range| range.end);
    if all.ndim() != 4 || all.dim(1)? % heads != 0 {
        return Ok(all.clone()); // refused later, by its shape
    }
    let shape = by_heads(all, heads)?;
    let own = cuts.own(&cuts.kv_heads);
    let count = length(&own);
    all.reshape(shape)?.slice_axis(1, own)?.reshape([1, shape[0] * count, shape[2], shape[3]])
}

/// Gathers the cache of all layers of a pipeline. `own` is the part of this rank.
pub(super) fn joined_layers(
    group: &Group,
    own: Vec<(String, Array)>,
    layers: &Value,
) -> Result<SavedCache> {
    let refuse = |rank| Error::argument("prompt_cache", format_args!("a part of rank {rank}"));
    let about = |(name, array): &(String, Array)| {
        (name.clone(), array.shape().to_vec(), array.dtype().name().to_owned())
    };
    let kept = Kept {
        arrays: own.iter().map(about).collect(),
        layers: layers.as_array().cloned().unwrap_or_default(),
    };
    let text = serde_json::to_string(&kept).map_err(|_| refuse(group.rank()))?;
    let (mut arrays, mut layers) = (Vec::new(), Vec::new());
    for (rank, text) in group.gather_text(&text)?.iter().enumerate() {
        let kept: Kept = serde_json::from_str(text).map_err(|_| refuse(rank))?;
        layers.extend(kept.layers);
        for (at, (name, shape, dtype)) in kept.arrays.iter().enumerate() {
            let size = shape.iter().product::<i32>();
            let types = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16, Dtype::Uint32];
            let dtype =
                types.into_iter().find(|it| it.name() == dtype).ok_or_else(|| refuse(rank))?;
            let mut lengths = vec![1; group.size()];
            let part = lengths.get_mut(rank).ok_or_else(|| refuse(rank))?;
            *part = size;
            let flat = match own.get(at).filter(|_| rank == group.rank()) {
                Some((_, array)) => array.reshape([size])?,
                None => Array::zeros_of([1], dtype)?,
            };
            let start = rank as i32;
            let array = group.gather_last(&flat, &lengths)?.slice_axis(0, start..start + size)?;
            let array = array.reshape(shape.as_slice())?;
            array.eval()?; // one after the other, in the order of all ranks
            arrays.push((name.clone(), array));
        }
    }
    Ok((arrays, Value::Array(layers)))
}

/// Returns the shape `[n, heads, time, features]` of an array `[1, n * heads, time, features]`.
fn by_heads(array: &Array, heads: i32) -> Result<[i32; 4]> {
    let (_, all, time, features) = array.dims4()?;
    Ok([all / heads.max(1), heads, time, features])
}
