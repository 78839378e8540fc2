//! Compares `vmap` with a loop.

use super::bounds::Compared;
use super::compare::{close, refs, same_spec, wrong};
use super::inputs::Tensor;
use super::{Backend, Check, Conformance};
use mlx_primitives::Array;
use mlx_primitives::Dtype;
use mlx_primitives::Result;
use mlx_primitives::transforms::vmap;

/// The length of an axis that is added to a case for `vmap`.
const LENGTH: i32 = 2;
/// An axis that an input already has is mapped only if it is at most this long.
const SHORT: i32 = 3;
/// Up to this number of inputs, every set of inputs is mapped. With more inputs, only each input
/// alone and all inputs together are mapped.
const MOST: usize = 5;

/// The shapes of the inputs, and the mapped axis of each input, if any.
pub(super) struct Mapping {
    pub(super) shapes: Vec<Vec<i32>>,
    pub(super) axes: Vec<Option<i32>>,
}

/// Returns the mappings of a case. Some add an axis to a single input, at each possible position.
/// Some add an axis to each input of a set. Others map a short axis that an input already has; the
/// op may refuse the slices along such an axis.
pub(super) fn mappings(case: &[Vec<i32>]) -> Vec<Mapping> {
    let count = case.len();
    let mut all = Vec::new();
    let mut add = |place: &dyn Fn(usize) -> Option<usize>| {
        let mut mapping = Mapping { shapes: case.to_vec(), axes: vec![None; count] };
        for (number, shape) in mapping.shapes.iter_mut().enumerate() {
            if let Some(place) = place(number) {
                shape.insert(place, LENGTH);
                mapping.axes[number] = Some(place as i32);
            }
        }
        all.push(mapping);
    };
    for (number, shape) in case.iter().enumerate() {
        for place in 0..=shape.len() {
            add(&|other| (other == number).then_some(place));
        }
    }
    let everything = (1usize << count) - 1;
    let sets = if count <= MOST { 1..=everything } else { everything..=everything };
    for set in sets.filter(|set| set.count_ones() > 1) {
        let place = |number: usize| (set + number) % (case[number].len() + 1);
        add(&|number| (set >> number & 1 == 1).then(|| place(number)));
    }
    for (number, shape) in case.iter().enumerate() {
        for axis in (0..shape.len()).filter(|&axis| (1..=SHORT).contains(&shape[axis])) {
            let mut mapping = Mapping { shapes: case.to_vec(), axes: vec![None; count] };
            mapping.axes[number] = Some(axis as i32);
            all.push(mapping);
        }
    }
    all
}

impl Conformance {
    /// Compares `vmap` of the op with the op on each slice. If the op refuses a slice, `vmap` must
    /// also fail.
    pub(super) fn compare_vmap(
        &self,
        arrays: &[Array],
        axes: &[Option<i32>],
        backend: Backend,
        dtype: Dtype,
    ) -> Result<()> {
        let mapped = vmap(|p| (self.op)(&p), &refs(arrays), axes, 0);
        let entries = entries(arrays, axes)?;
        let parts: Result<Vec<_>> = entries.iter().map(|entry| (self.op)(entry)).collect();
        let (mapped, parts) = match (mapped, parts) {
            (Err(_), Err(_)) => return Ok(()),
            (Ok(_), Err(error)) => {
                return wrong(format_args!("vmap takes what is refused: {error}"));
            }
            (mapped, parts) => (mapped?, parts?),
        };
        for (at, (entry, part)) in entries.iter().zip(&parts).enumerate() {
            let inputs: Vec<Tensor> = entry.iter().map(Tensor::of).collect::<Result<_>>()?;
            let compared =
                Compared { backend, check: Check::Vmap, dtype, inputs: &inputs, peer: false };
            let limit = self.vmap_limit(&compared);
            if mapped.len() != part.len() {
                return wrong(format_args!("{} outputs, not {}", mapped.len(), part.len()));
            }
            for (index, (mapped, want)) in mapped.iter().zip(part).enumerate() {
                let what = format!("output {index} of entry {at}");
                if mapped.ndim() == 0 || mapped.dim(0)? != entries.len() as i32 {
                    return wrong(format_args!("{what} is one of {:?}", mapped.shape()));
                }
                let at = at as i32;
                let got = mapped.slice_axis(0, at..at + 1)?.squeeze([0])?;
                same_spec(&got, want, &what)?;
                let beside = close(&got, &Tensor::of(want)?, &limit, index, dtype, &what);
                if beside.is_err() && self.judges(backend) {
                    // The op may run MLX's own ops, which add in a different order for a batch. So
                    // compare with the reference.
                    let own = self.limit(&self.tolerance, &compared);
                    let exact = (self.reference)(&inputs);
                    let exact = exact.get(index).ok_or("the reference has fewer outputs")?;
                    close(&got, exact, &own, index, dtype, &what)?;
                } else {
                    beside?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the inputs of the op for each slice of the mapped axes.
fn entries(arrays: &[Array], axes: &[Option<i32>]) -> Result<Vec<Vec<Array>>> {
    let size = arrays.iter().zip(axes).find_map(|(x, axis)| axis.map(|axis| x.dim(axis)));
    let entry = |at: i32| {
        let entry = arrays.iter().zip(axes).map(|(x, axis)| match axis {
            Some(axis) => x.slice_axis(*axis, at..at + 1)?.squeeze([*axis]),
            None => Ok(x.clone()),
        });
        entry.collect::<Result<Vec<_>>>()
    };
    (0..size.unwrap_or(Ok(0))?).map(entry).collect()
}
