//! Products with biases that the scales determine (`with_centered_codes`). They have the bits of
//! products that read the biases.

use mlx_primitives::device::Device;
use mlx_primitives::ops::{self, QuantizedLinear, QuantizedMode, QuantizedWeight, RowOrder};
use mlx_primitives::transforms::{grad, vmap};
use mlx_primitives::{Array, Dtype, Result};

use crate::support::compare::assert_same;
use crate::support::input::random;
use crate::support::{Checked, each_device, simulated};
use crate::table::inputs::{FORMATS, weight};

const N: i32 = 24;
const K: i32 = 256;

/// Returns a weight whose biases are its scales times `factor`.
fn with_biases(w: &QuantizedWeight, factor: f32) -> Result<QuantizedWeight> {
    let biases = w.scales().multiply(factor)?.astype(w.scales().dtype())?;
    let (packed, scales, group) = (w.packed().clone(), w.scales().clone(), w.group_size());
    QuantizedWeight::new(packed, scales, Some(biases), group, w.bits(), QuantizedMode::Affine)
}

#[test]
fn biases_that_scales_determine() -> Checked {
    each_device(|device| {
        for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
            for format in FORMATS.into_iter().filter(|format| format.2 == QuantizedMode::Affine) {
                same_bits(device, dtype, format)?;
            }
        }
        Ok(())
    })
}

fn same_bits(device: Device, dtype: Dtype, format: (i32, i32, QuantizedMode)) -> Checked {
    let factor = -((1 << (format.1 - 1)) as f32);
    let weights = [6, 7].map(|seed| with_biases(&weight(format, N, K, dtype, seed)?, factor));
    let [w, other] = weights;
    let (w, other) = (w?, other?);
    let (centered, both) = (w.clone().with_centered_codes(), other.clone().with_centered_codes());
    for rows in [1, 5, 20] {
        let what = format!("{dtype} {format:?} {rows}");
        let x = random(&[rows, K], dtype, 9)?;
        let plain = |w: &QuantizedWeight| plain_of(&x, w);
        let expected = plain(&w)?;
        assert_same(&plain(&centered)?, &expected, &what)?;
        // One of the two weights has biases that must be read.
        let read = weight(format, N, K, dtype, 8)?;
        let two = ops::quantized_linears(&x, &[&centered, &read], None)?;
        assert_same(&two, &ops::quantized_linears(&x, &[&w, &read], None)?, &what)?;
        let gated = ops::quantized_swiglu(&x, &centered, &both, None)?;
        assert_same(&gated, &ops::quantized_swiglu(&x, &w, &other, None)?, &what)?;
        let mapped = vmap(|row: Array| plain_of(&row, &centered), &x, 0, 0)?;
        assert_same(&mapped, &vmap(|row: Array| plain_of(&row, &w), &x, 0, 0)?, &what)?;
        let of = |w: &QuantizedWeight| grad(|x: Array| plain_of(&x, w)?.square()?.sum(..), &x);
        assert_same(&of(&centered)?, &of(&w)?, &what)?;
        // A CPU does not read the biases in the order of tokens.
        if device == Device::Cpu && !simulated() {
            let unread = with_biases(&w, f32::NAN)?.with_centered_codes();
            let tokens =
                |w: &QuantizedWeight| ops::with_row_order(RowOrder::Tokens, || plain_of(&x, w));
            assert_same(&tokens(&unread)?, &tokens(&w)?, &what)?;
        }
    }
    Ok(())
}

fn plain_of(x: &Array, w: &QuantizedWeight) -> Result<Array> {
    ops::quantized_linear(x, w, QuantizedLinear::default())
}
