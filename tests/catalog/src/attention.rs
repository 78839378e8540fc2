//! Rows of the catalog for attention.

use mlx_primitives_check::{Bound, Check, Compared, Conformance, Input, Tensor};
use mlx_primitives::ops::{self, Attention};
use mlx_primitives::{Array, Result};

use super::attention_reference::Reference;
use super::inputs::{Checked, TOLERANCE, tolerance_to_mlx, ulp};
use super::{composed, derivatives_of_ops, only, slices, Hold};

/// The options of a call of attention. Its inputs are queries, keys and values, then a mask and
/// sinks, if present.
#[derive(Clone, Copy, Debug, Default)]
struct Rules {
    scale: Option<f32>,
    causal: bool,
    window: Option<i32>,
    soft_cap: Option<f32>,
    /// `None` if there is no mask, and otherwise true if the mask is boolean.
    mask: Option<bool>,
    sinks: bool,
}

impl Rules {
    fn split<'a, T>(&self, x: &'a [T]) -> [Option<&'a T>; 2] {
        let mask = self.mask.and(x.get(3));
        [mask, x.get(if self.mask.is_some() { 4 } else { 3 }).filter(|_| self.sinks)]
    }

    fn op(self) -> impl Fn(&[Array]) -> Result<Vec<Array>> + Copy {
        move |x| {
            let Self { scale, causal, window, soft_cap, .. } = self;
            let [mask, sinks] = self.split(x);
            let options =
                Attention { scale, causal, window, mask, soft_cap, sinks, ..Attention::default() };
            Ok(vec![ops::attention(&x[0], &x[1], &x[2], options)?])
        }
    }

    fn exact(self, x: &[Tensor]) -> Vec<Tensor> {
        let Self { scale, causal, window, soft_cap, .. } = self;
        let options = Attention { scale, causal, window, soft_cap, ..Default::default() };
        let [mask, sinks] = self.split(x);
        let mask = mask.map(|mask| (mask, self.mask == Some(true)));
        let reference = Reference::of([&x[0], &x[1], &x[2]], mask, sinks, options);
        let shape = [&x[0].shape[..3], &x[2].shape[3..]].concat();
        vec![Tensor::new(shape, reference.apply())]
    }

    fn row(self) -> Conformance {
        let near = |error: f64| {
            move |compared: &Compared<'_>| {
                let ulps = error / ulp(1.0, compared.dtype) + 0.51;
                Bound { absolute: error, ..Bound::ulps(ulps) }
            }
        };
        let mask = if self.mask == Some(true) { Input::Bool } else { Input::Float(-3.0, 3.0) };
        let float = Input::Float(-3.0, 3.0);
        Conformance::new(format!("attention, {self:?}"), self.op(), move |x| self.exact(x))
            .inputs(&[float, float, float, mask])
            .bounds(near(TOLERANCE))
            .peer(composed(self.op()), move |c| near(tolerance_to_mlx(c.dtype))(c))
            // If vmap maps the sinks, it runs MLX's composition instead of our op.
            .vmap_bounds(move |c| {
                near(if self.sinks { tolerance_to_mlx(c.dtype) } else { TOLERANCE })(c)
            })
            // A derivative is a sum of a few dozen products, and each product is at most 27.
            .derivative_bounds(derivatives_of_ops(1e-4, 27.0))
            .without(Check::Extremes, "attention/mod.rs has those of which MLX makes the same")
    }

    /// The shapes of the inputs. `heads` is [batch, heads, kv_heads], `extents` is [queries, keys,
    /// dim]. A mask has one value per score.
    fn shapes(self, heads: [i32; 3], extents: [i32; 3]) -> Vec<Vec<i32>> {
        let ([batch, heads, kv_heads], [queries, keys, dim]) = (heads, extents);
        let rows = vec![batch, kv_heads, keys, dim];
        let mut all = vec![vec![batch, heads, queries, dim], rows.clone(), rows];
        all.extend(self.mask.map(|_| vec![batch, heads, queries, keys]));
        all.extend(self.sinks.then(|| vec![heads]));
        all
    }
}

/// The sizes range from one query to more than a block of queries, and from one key to more than a
/// tile of keys, with all usual and some unusual head dimensions. In some cases a query sees no
/// keys. `attention_of_every_size` also has two cases with more keys than one dispatch or one chunk
/// can process.
const SIZES: [([i32; 3], [i32; 3]); 23] = [
    ([1, 1, 1], [1, 1, 1]),
    ([1, 8, 2], [1, 67, 64]),
    ([2, 3, 3], [1, 33, 32]),
    ([1, 2, 1], [1, 5, 80]),
    ([1, 6, 1], [1, 40, 96]),
    ([1, 4, 2], [2, 19, 128]),
    ([1, 2, 2], [3, 50, 256]),
    ([1, 1, 1], [1, 21, 104]),
    ([2, 2, 2], [1, 9, 200]),
    ([1, 4, 2], [3, 17, 256]),
    ([2, 4, 4], [7, 9, 33]),
    ([1, 4, 1], [3, 35, 64]),
    ([2, 2, 1], [17, 17, 32]),
    ([1, 1, 1], [33, 40, 64]),
    ([1, 3, 1], [5, 70, 80]),
    ([1, 1, 1], [9, 34, 128]),
    ([1, 1, 1], [10, 18, 256]),
    ([1, 3, 1], [5, 35, 96]),
    ([1, 1, 1], [9, 17, 130]),
    ([1, 5, 1], [2, 33, 7]),
    ([1, 1, 1], [40, 11, 100]),
    ([1, 1, 1], [5, 2, 16]),
    ([1, 2, 1], [40, 9, 32]),
];

pub(super) fn attention_of_every_size(hold: &Hold<'_>) -> Checked {
    for (causal, window) in [(false, None), (true, None), (true, Some(2))] {
        let rules = Rules { causal, window, ..Default::default() };
        let row = SIZES.iter().fold(rules.row(), |row, (heads, extents)| {
            row.sizes(&slices(&rules.shapes(*heads, *extents)))
        });
        hold(only(Check::Values, row))?;
    }
    for window in [None, Some(1027)] {
        let rules = Rules { causal: true, window, sinks: true, ..Default::default() };
        let long = [([1, 2, 1], [1, 1030, 32]), ([1, 3, 1], [3, 1100, 16])];
        let row = long.iter().fold(rules.row(), |row, (heads, extents)| {
            row.sizes(&slices(&rules.shapes(*heads, *extents)))
        });
        hold(only(Check::Values, row))?;
    }
    Ok(())
}

/// Tests values with more or fewer features per head than the keys, as in DeepSeek's attention.
pub(super) fn attention_of_other_values(hold: &Hold<'_>) -> Checked {
    let rules = Rules { causal: true, ..Default::default() };
    let sized = |(heads, extents, dim): ([i32; 3], [i32; 3], i32)| {
        let mut shapes = rules.shapes(heads, extents);
        shapes[2][3] = dim;
        shapes
    };
    let row = [
        ([1, 8, 2], [1, 67, 192], 128),
        ([1, 4, 4], [1, 9, 24], 64),
        ([2, 3, 1], [2, 33, 96], 33),
        ([1, 6, 2], [1, 5, 7], 256),
        ([1, 2, 1], [9, 40, 192], 128),
        ([1, 3, 3], [40, 19, 64], 96),
        ([2, 2, 2], [10, 11, 130], 5),
        ([1, 2, 1], [1, 1030, 16], 24),
    ]
    .into_iter()
    .fold(rules.row(), |row, sizes| row.sizes(&slices(&sized(sizes))));
    hold(only(Check::Values, row))?;
    let derived = [sized(([1, 4, 2], [2, 6, 3], 5)), sized(([2, 2, 1], [9, 5, 4], 2))];
    hold(derived.iter().fold(rules.row(), |row, shapes| row.shapes(&slices(shapes))))
}

pub(super) fn attention_by_every_rule(hold: &Hold<'_>) -> Checked {
    for mask in [None, Some(false), Some(true)] {
        for (sinks, causal, window, soft_cap) in [
            (true, false, None, None),
            (false, true, None, Some(2.0)),
            (false, true, Some(5), None),
            (true, true, Some(20), Some(30.0)),
            (false, false, Some(3), None),
            (false, false, None, None),
        ] {
            let scale = soft_cap.map(|_| 0.3);
            let rules = Rules { scale, causal, window, soft_cap, mask, sinks };
            let mut row = rules.row();
            for queries in [2, 6] {
                let mut shapes = rules.shapes([2, 4, 2], [queries, 37, 32]);
                row = row.sizes(&slices(&shapes));
                if mask == Some(false) {
                    shapes[3] = vec![queries, 37];
                    row = row.sizes(&slices(&shapes));
                } else if mask == Some(true) {
                    shapes[3] = vec![2, 1, 1, 37];
                    row = row.sizes(&slices(&shapes));
                }
            }
            hold(only(Check::Values, row))?;
        }
    }
    Ok(())
}

/// Runs all checks of attention. They include the derivatives with respect to the sinks, although
/// MLX's own attention cannot compute these on a GPU.
pub(super) fn attention(hold: &Hold<'_>) -> Checked {
    for (mask, every) in [(None, false), (Some(true), true), (Some(false), false)] {
        let (window, soft_cap) = (every.then_some(4), every.then_some(4.0));
        let rules = Rules { causal: true, window, soft_cap, mask, sinks: every, scale: None };
        let row = rules.row().shapes(&slices(&rules.shapes([1, 4, 2], [2, 6, 3])));
        hold(row.shapes(&slices(&rules.shapes([2, 2, 1], [9, 5, 4]))))?;
    }
    Ok(())
}
