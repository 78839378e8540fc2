//! Comparisons of arrays: shape, type and values.

use super::bounds::{Limit, Place, is_same};
use super::inputs::Tensor;
use mlx_primitives::Array;
use mlx_primitives::Dtype;
use mlx_primitives::Result;

pub(super) fn refs(arrays: &[Array]) -> Vec<&Array> {
    arrays.iter().collect()
}

pub(super) fn wrong<T>(said: impl std::fmt::Display) -> Result<T> {
    Err(said.to_string().into())
}

pub(super) fn same_spec(got: &Array, want: &Array, what: &str) -> Result<()> {
    if (got.shape(), got.dtype()) == (want.shape(), want.dtype()) {
        return Ok(());
    }
    wrong(format_args!(
        "{what} is {} {:?}, not {} {:?}",
        got.dtype(),
        got.shape(),
        want.dtype(),
        want.shape()
    ))
}

pub(super) fn compare_outputs(
    got: &[Array],
    want: &[Tensor],
    limit: &Limit,
    dtype: Dtype,
    what: &str,
) -> Result<()> {
    if got.len() != want.len() {
        return wrong(format_args!("{} outputs, and {} of the reference", got.len(), want.len()));
    }
    let mut pairs = got.iter().zip(want).enumerate();
    pairs.try_for_each(|(output, (got, want))| {
        close(got, want, limit, output, dtype, &format!("{what} {output}"))
    })
}

/// Compares `got`, the output with index `output`, with `want`.
pub(super) fn close(
    got: &Array,
    want: &Tensor,
    limit: &Limit,
    output: usize,
    dtype: Dtype,
    what: &str,
) -> Result<()> {
    let got = Tensor::of(got)?;
    if got.shape != want.shape || got.values.len() != want.values.len() {
        return wrong(format_args!("{what} has shape {:?}, not {:?}", got.shape, want.shape));
    }
    let (mut differing, mut wrong, mut first) = (0, 0, None);
    for (at, (&got, &want)) in got.values.iter().zip(&want.values).enumerate() {
        if let Err(error) = limit.hold(got, want, dtype, Place { output, at }, what) {
            wrong += 1;
            first.get_or_insert(error);
        }
        differing += usize::from(!is_same(got, want));
    }
    if let Some(first) = first {
        return Err(format!("{first}; wrong are {wrong} of {}", got.values.len()).into());
    }
    limit.hold_share(differing, want.values.len(), what)
}

/// Checks that each value agrees with at least one of two expected values.
pub(super) fn hold_to_either(
    got: &[Array],
    wants: [(&[Tensor], &Limit); 2],
    dtype: Dtype,
) -> Result<()> {
    for (output, got) in got.iter().enumerate() {
        for (at, &got) in Tensor::of(got)?.values.iter().enumerate() {
            let mut held = wants.iter().map(|(want, limit)| {
                let want = want.get(output).and_then(|want| want.values.get(at));
                let want = want.copied().ok_or("an expected value is missing")?;
                limit.hold(got, want, dtype, Place { output, at }, &format!("output {output}"))
            });
            let first = held.next().unwrap_or(Ok(()));
            if first.is_err() && held.all(|result| result.is_err()) {
                return first;
            }
        }
    }
    Ok(())
}
