//! Rows of the catalog for `rope`.

use mlx_primitives_check::{Backend, Bound, Check, Compared, Conformance, Input, Tensor};
use mlx_primitives::ops::Offset;
use mlx_primitives::{builtin, ops};

use super::inputs::{Checked, ulp};
use super::{derivatives_of_ops, exact, only, reference, Hold};

/// The options of a call of `rope`. Its inputs are x, the offset, and the periods if there is no
/// base.
#[derive(Clone, Copy, Debug)]
struct Rotation {
    dims: i32,
    traditional: bool,
    base: Option<f32>,
    scale: f32,
}

/// Returns true if every bit of the result must equal MLX's: on Linux with an x86-64 CPU. On other
/// CPUs, with Apple's libraries and on a GPU, MLX may compute other sines and cosines.
pub(super) fn follows_mlx(compared: &Compared<'_>) -> bool {
    compared.backend == Backend::Cpu && cfg!(all(target_os = "linux", target_arch = "x86_64"))
}

impl Rotation {
    /// Returns the rotated elements, and for each element a factor to which its error is
    /// proportional.
    fn exact(self, x: &[Tensor]) -> [Tensor; 2] {
        let (shape, rank) = (&x[0].shape, x[0].shape.len());
        let offsets: Vec<i32> = x[1].values.iter().map(|&offset| offset as i32).collect();
        let base =
            || reference::Rope::base(f64::from(self.base.unwrap_or(1.0)), self.dims as usize);
        let rope = reference::Rope {
            shape: [
                shape[0],
                shape[1..rank - 2].iter().product(),
                shape[rank - 2],
                shape[rank - 1],
            ],
            dims: self.dims as usize,
            traditional: self.traditional,
            freqs: x.get(2).map_or_else(base, |freqs| freqs.values.clone()),
            scale: f64::from(self.scale),
            offsets: &offsets,
        };
        let (y, reach) = rope.apply(&x[0].values);
        [y, reach].map(|values| Tensor::new(shape.clone(), values))
    }

    /// The angle has the error of about five f32 roundings. The error of the logarithm of the base
    /// is multiplied by up to ln(base), about 10. The sine, the cosine and both products are
    /// rounded to the type. On Linux with an x86-64 CPU, every bit equals MLX's. Derivatives rotate
    /// tangents of up to 4 by angles of up to 118.
    fn row(self, input: Input) -> Conformance {
        let Self { dims, traditional, base, scale } = self;
        Conformance::new(
            format!("{self:?}"),
            move |x| {
                let (offset, freqs) = (Offset::Each(&x[1]), x.get(2));
                Ok(vec![ops::rope(&x[0], ops::Rope { dims, traditional, base, scale, offset, freqs })?])
            },
            move |x| {
                let [y, _] = self.exact(x);
                vec![y]
            },
        )
        .inputs(&[Input::Float(-3.0, 3.0), input, Input::Float32(0.5, 3.5)])
        // Extreme inputs include subnormal numbers, whose products have few significant bits.
        .bounds(|compared| Bound::ulps(if compared.check == Check::Extremes { 1.0 } else { 0.0 }))
        .errors(move |compared| {
            let times = match compared.peer {
                true if follows_mlx(compared) => 0.0,
                true => 2.0,
                false => 1.0,
            };
            let [_, reach] = self.exact(compared.inputs);
            let last = 2.0 * ulp(1.0, compared.dtype);
            // The factor of a pair of ordinary numbers grows with the angle, but the rounded
            // products are always below 16.
            let longest = if compared.check == Check::Extremes { f64::INFINITY } else { 16.0 };
            vec![reach.map(|v| times * (v * 8.0 * 2f64.powi(-23) + v.min(longest) * last))]
        })
        .peer(
            move |x| {
                let (offset, freqs) = (Offset::Each(&x[1]), x.get(2));
                // On an NVIDIA GPU, MLX's op writes outside its result if the strides are negative.
                Ok(vec![builtin::rope(&x[0].contiguous()?, ops::Rope { dims, traditional, base, scale, offset, freqs })?])
            },
            // Products of subnormal numbers have larger errors.
            |compared| if follows_mlx(compared) { Bound::default() } else { Bound::ulps(2.0) },
        )
        .extremes_as_peer()
        .vmap_bounds(exact)
        .derivative_bounds(derivatives_of_ops(1e-4, 4.0))
    }
}

pub(super) fn rope(hold: &Hold<'_>) -> Checked {
    for traditional in [false, true] {
        for base in [Some(1e4), None] {
            let rotation = Rotation { dims: 8, traditional, base, scale: 1.0 };
            let mut row = rotation.row(Input::Integer(-3, 50));
            let periods: &[&[i32]] = if base.is_none() { &[&[4]] } else { &[] };
            fn inputs<'a>(
                x: &'a [i32],
                offset: &'a [i32],
                periods: &[&'a [i32]],
            ) -> Vec<&'a [i32]> {
                [&[x, offset], periods].concat()
            }
            for (x, offset) in [
                (&[2, 3, 8][..], &[][..]),
                (&[2, 5, 8], &[2]),
                (&[2, 3, 5, 8], &[1]),
                (&[3, 1, 1, 10], &[3]),
                (&[2, 3, 2, 5, 8], &[2]),
                (&[1, 2, 1, 2, 3, 8], &[]),
            ] {
                row = row.shapes(&inputs(x, offset, periods));
            }
            for x in [[0, 3, 5, 8], [2, 0, 5, 8], [2, 3, 0, 8]] {
                row = row.sizes(&inputs(&x, &[], periods));
            }
            for time in [1, 2, 9] {
                row = row.sizes(&inputs(&[4, 3, time, 8], &[4], periods)).sizes(&inputs(
                    &[4, 3, time, 8],
                    &[],
                    periods,
                ));
            }
            hold(row)?;
        }
    }
    Ok(())
}

pub(super) fn rope_of_all_parameters(hold: &Hold<'_>) -> Checked {
    for (dims, features) in [(2, 2), (4, 6), (64, 64), (32, 80), (30, 33), (2, 7)] {
        for traditional in [false, true] {
            for base in [Some(1e4), Some(5e5), None] {
                for scale in [1.0, 0.25, -1.5, 0.0] {
                    let rotation = Rotation { dims, traditional, base, scale };
                    let mut row = rotation.row(Input::Integer(-3, 8));
                    for x in [[2, 3, 5, features], [1, 1, 1, features]] {
                        let all: [&[i32]; 3] = [&x, &[], &[dims / 2]];
                        row = row.sizes(&all[..if base.is_none() { 3 } else { 2 }]);
                    }
                    hold(only(Check::Values, row))?;
                }
            }
        }
    }
    for offset in [100_000, -100_000, 1 << 24, i32::MAX - 4] {
        for base in [1e4, 5e5] {
            let rotation = Rotation { dims: 8, traditional: false, base: Some(base), scale: 1.0 };
            let row = rotation.row(Input::Integer(offset, offset + 1));
            hold(only(Check::Values, row.sizes(&[&[1, 2, 3, 8], &[]])))?;
        }
    }
    Ok(())
}
