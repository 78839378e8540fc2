//! Rows of the catalog for `rope_append`.

use mlx_primitives_check::{Bound, Check, Conformance, Input, Tensor};
use mlx_primitives::ops::{self, Offset, Rope, RopeAppend, KvLayout};
use mlx_primitives::{Array, Result};

use super::rotations::follows_mlx;
use super::inputs::{Checked, ulp};
use super::{composed, derivatives_of_ops, only, reference, slices, Hold};

/// The options of a call of `rope_append`. Its inputs are the state, the step, the positions, the
/// slots if they differ from the positions, and the periods if there is no base.
#[derive(Clone, Copy, Debug)]
struct Append {
    layout: KvLayout,
    dims: i32,
    traditional: bool,
    base: Option<f32>,
    scale: f32,
    multiplier: f32,
}

const PLAIN: Append = Append {
    layout: KvLayout { heads: 6, kv_heads: 2, head_dim: 8, capacity: 24 },
    dims: 8,
    traditional: false,
    base: Some(1e4),
    scale: 1.0,
    multiplier: 1.0,
};

impl Append {
    fn split<'a, T>(&self, x: &'a [T]) -> [Option<&'a T>; 2] {
        let freqs = x.last().filter(|_| self.base.is_none());
        [x[..x.len() - freqs.iter().len()].get(3), freqs]
    }

    fn op(self) -> impl Fn(&[Array]) -> Result<Vec<Array>> + Copy {
        move |x| {
            let Self { layout, dims, traditional, base, scale, multiplier } = self;
            let [slots, freqs] = self.split(x);
            // `maximum` makes the slots lazy. The op cannot check lazy slots, so some may be
            // outside the state.
            let slots = slots.map(|slots| slots.maximum(i32::MIN)).transpose()?;
            let slots = slots.as_ref().map(Offset::Each);
            let offset = Offset::Each(&x[2]);
            let rope = Rope { dims, traditional, base, scale, offset, freqs };
            let options = RopeAppend { rope, multiplier, slots };
            Ok(vec![ops::rope_append(&x[0], &x[1], layout, options)?])
        }
    }

    /// Returns the new state in f64, and for each element a factor to which its error is
    /// proportional.
    fn exact(self, x: &[Tensor]) -> [Tensor; 2] {
        let KvLayout { heads, kv_heads, head_dim, capacity } = self.layout;
        let [heads, kv, dim, capacity] = [heads, kv_heads, head_dim, capacity].map(|n| n as usize);
        let (batch, time, all) = (x[1].shape[0], x[1].shape[1], heads + 2 * kv);
        let area = KvLayout::QUERY_POSITIONS as usize;
        let [slots, freqs] = self.split(x);
        let whole = |t: &Tensor| t.values.iter().map(|&v| v as i32).collect::<Vec<_>>();
        let offsets = whole(&x[2]);
        let base =
            || reference::Rope::base(f64::from(self.base.unwrap_or(1.0)), self.dims as usize);
        let rope = reference::Rope {
            shape: [batch, heads + kv, time, dim],
            dims: self.dims as usize,
            traditional: self.traditional,
            freqs: freqs.map_or_else(base, |freqs| freqs.values.clone()),
            scale: f64::from(self.scale),
            offsets: &offsets,
        };
        let at = |b: usize, t: usize, head: usize| ((b * time + t) * all + head) * dim;
        let mut turned = Vec::new();
        for (b, head) in (0..batch).flat_map(|b| (0..heads + kv).map(move |head| (b, head))) {
            for row in (0..time).map(|t| &x[1].values[at(b, t, head)..][..dim]) {
                turned.extend(row.iter().enumerate().map(|(i, v)| {
                    v * if i < self.dims as usize { f64::from(self.multiplier) } else { 1.0 }
                }));
            }
        }
        let (turned, reach) = rope.apply(&turned);
        let (mut state, mut errors) = (x[0].clone(), x[0].map(|_| 0.0));
        let slots = slots.map_or_else(|| offsets.clone(), whole);
        for (b, t) in (0..batch).flat_map(|b| (0..time).map(move |t| (b, t))) {
            let slot = i64::from(slots[if slots.len() > 1 { b } else { 0 }]) + t as i64;
            let slot = usize::try_from(slot).ok().filter(|slot| *slot < capacity);
            for head in 0..all {
                let row = match slot {
                    _ if head < heads && time <= area => Some(head * time + t),
                    Some(slot) if head >= heads => {
                        Some(heads * area + (head - heads) * capacity + slot)
                    }
                    _ => None,
                };
                let Some(row) = row else { continue };
                let to = (b * x[0].shape[1] + row) * dim;
                let from = ((b * (heads + kv) + head.min(heads + kv - 1)) * time + t) * dim;
                for i in 0..dim {
                    let value = x[1].values[at(b, t, head) + i];
                    let copied = head >= heads + kv;
                    state.values[to + i] = if copied { value } else { turned[from + i] };
                    errors.values[to + i] = if copied { 0.0 } else { reach[from + i] };
                }
            }
        }
        [state, errors]
    }

    /// The errors are as for `rope`, plus the rounding of the product with the multiplier. Copies
    /// are exact. On Linux with an x86-64 CPU, every bit equals MLX's.
    fn row(self, positions: Input, slots: Input) -> Conformance {
        let float = Input::Float(-3.0, 3.0);
        let freqs = Input::Float32(0.5, 3.5);
        let fourth =
            if self.base.is_none() && slots == Input::Integer(0, 0) { freqs } else { slots };
        Conformance::new(format!("{self:?}"), self.op(), move |x| {
            let [state, _] = self.exact(x);
            vec![state]
        })
        .inputs(&[float, float, positions, fourth, freqs])
        .bounds(|_| Bound::default())
        .errors(move |compared| {
            let times = match compared.peer {
                true if follows_mlx(compared) => 0.0,
                true => 2.0,
                false => 1.0,
            };
            let [_, reach] = self.exact(compared.inputs);
            let last = ulp(1.0, compared.dtype);
            let longest = if compared.check == Check::Extremes { f64::INFINITY } else { 24.0 };
            vec![reach.map(|v| times * (v * 8.0 * 2f64.powi(-23) + v.min(longest) * 3.0 * last))]
        })
        .peer(composed(self.op()), |compared| {
            if follows_mlx(compared) { Bound::default() } else { Bound::ulps(2.0) }
        })
        .extremes_as_peer()
        // If vmap maps the periods, it runs MLX's composition instead of our op.
        .vmap_bounds(move |compared| match self.base {
            Some(_) => Bound::default(),
            None => Bound { absolute: 1e-4 + 8.0 * ulp(1.0, compared.dtype), ..Bound::ulps(1.0) },
        })
        .derivative_bounds(derivatives_of_ops(1e-4, 8.0))
    }

    /// The shapes of the state for a batch of sequences, and of a step of `time` positions.
    fn shapes(self, batch: i32, time: i32) -> Vec<Vec<i32>> {
        let KvLayout { heads, kv_heads, head_dim, .. } = self.layout;
        let width = (heads + 2 * kv_heads) * head_dim;
        vec![vec![batch, self.layout.rows(), head_dim], vec![batch, time, width]]
    }

    fn with(self, batch: i32, time: i32, more: &[&[i32]]) -> Vec<Vec<i32>> {
        let mut all = self.shapes(batch, time);
        all.extend(more.iter().map(|shape| shape.to_vec()));
        all.extend(self.base.is_none().then(|| vec![self.dims / 2]));
        all
    }
}

const NONE: Input = Input::Integer(0, 0);

pub(super) fn rope_append(hold: &Hold<'_>) -> Checked {
    let layout = KvLayout { heads: 2, kv_heads: 1, head_dim: 6, capacity: 10 };
    for (base, multiplier) in [(Some(1e4), 1.5), (None, 1.0)] {
        let append = Append { layout, dims: 4, base, multiplier, ..PLAIN };
        let row = append.row(Input::Integer(0, 3), Input::Integer(-2, 11));
        let row = row.shapes(&slices(&append.with(2, 2, &[&[], &[2]])));
        hold(row.shapes(&slices(&append.with(1, 9, &[&[1], &[]]))))?;
    }
    Ok(())
}

pub(super) fn rope_append_of_all_parameters(hold: &Hold<'_>) -> Checked {
    for (head_dim, dims) in [(8, 8), (16, 6), (7, 2), (80, 64)] {
        for traditional in [false, true] {
            for base in [Some(1e4), None] {
                for (scale, multiplier, time) in
                    [(1.0, 1.0, 1), (0.25, 1.19, 1), (1.0, 1.19, 3), (-1.5, 1.0, 9)]
                {
                    let layout = KvLayout { head_dim, ..PLAIN.layout };
                    let append = Append { layout, dims, traditional, base, scale, multiplier };
                    let row = append.row(Input::Integer(5, 6), NONE);
                    let row = row.sizes(&slices(&append.with(2, time, &[&[]])));
                    hold(only(Check::Values, row))?;
                }
            }
        }
    }
    for (heads, kv_heads) in [(1, 1), (4, 4), (8, 1), (5, 3)] {
        let layout = KvLayout { heads, kv_heads, ..PLAIN.layout };
        let append = Append { layout, ..PLAIN };
        let row = [1, 2, 7, 8, 9, 24].iter().fold(append.row(NONE, NONE), |row, &time| {
            row.sizes(&slices(&append.with(3, time, &[&[]])))
        });
        hold(only(Check::Values, row))?;
    }
    Ok(())
}

/// Tests one position for all batch entries or one for each, slots that differ from the positions,
/// very large and negative positions, slots outside the state, and empty steps.
pub(super) fn rope_append_to_every_slot(hold: &Hold<'_>) -> Checked {
    for (positions, slots) in [
        (Input::Integer(0, 13), NONE),
        (Input::Integer(70_000, 70_001), Input::Integer(0, 13)),
        (Input::Integer(-40, -20), Input::Integer(3, 4)),
        (Input::Integer(2, 3), Input::Integer(-12, 30)),
        (Input::Integer(2, 3), Input::Integer(i32::MAX - 3, i32::MAX)),
        (Input::Integer(2, 3), Input::Integer(i32::MIN, i32::MIN + 3)),
    ] {
        let mut row = PLAIN.row(positions, slots);
        for time in [1, 4, 11] {
            for each in [&[][..], &[1], &[3]] {
                row = match slots {
                    NONE => row.sizes(&slices(&PLAIN.with(3, time, &[each]))),
                    _ => row.sizes(&slices(&PLAIN.with(3, time, &[each, &[3]]))),
                };
            }
        }
        hold(only(Check::Values, row))?;
    }
    let row = PLAIN.row(NONE, NONE).sizes(&slices(&PLAIN.with(0, 1, &[&[]])));
    hold(only(Check::Values, row.sizes(&slices(&PLAIN.with(2, 0, &[&[]])))))
}
