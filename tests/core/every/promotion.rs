//! If one input is float32 and the others have 16-bit types, the result is float32. It has the same
//! bits as if the caller had converted all inputs to float32.

use mlx_primitives::ops::{
    self, LinearWeight, MaskedSoftmax, QuantizedLinear, QuantizedMode, QuantizedWeight,
};
use mlx_primitives::{Array, Dtype, Result};

use crate::support::compare::assert_same;
use crate::support::input::random32;
use crate::support::{Checked, EPS, each_device};
use crate::table::ops::{OPS, Run, one};

const GROUP: i32 = 32;

/// An op, with the shapes of its floating-point inputs.
struct Row {
    name: &'static str,
    shapes: &'static [&'static [i32]],
    run: Run,
}

const X: &[i32] = &[3, 64];
const K: &[i32] = &[64];
const N: &[i32] = &[8];
const Y: &[i32] = &[3, 8];
const SCALES: &[i32] = &[8, 2];

/// A quantized matrix `[8, 64]`. The array `scales` serves as its scales and its biases.
fn weight(scales: &Array) -> Result<QuantizedWeight> {
    let codes =
        QuantizedWeight::quantize(&random32(&[8, 64], 9)?, GROUP, 4, QuantizedMode::Affine)?;
    let (packed, biases) = (codes.packed().clone(), Some(scales.clone()));
    QuantizedWeight::new(packed, scales.clone(), biases, GROUP, 4, QuantizedMode::Affine)
}

const PRODUCTS: [Row; 7] = [
    Row {
        name: "quantized_linear",
        shapes: &[X, SCALES, K, N, Y],
        run: |x| {
            let (norm, bias, residual) = (Some((&x[2], EPS)), Some(&x[3]), Some(&x[4]));
            let options = QuantizedLinear { norm, bias, residual };
            one(ops::quantized_linear(&x[0], &weight(&x[1])?, options))
        },
    },
    Row {
        name: "quantized_linears",
        shapes: &[X, SCALES, SCALES],
        run: |x| {
            let (q, k) = (weight(&x[1])?, weight(&x[2])?);
            one(ops::quantized_linears(&x[0], &[&q, &k], None))
        },
    },
    Row {
        name: "quantized_swiglu",
        shapes: &[X, SCALES, SCALES],
        run: |x| {
            let (gate, up) = (weight(&x[1])?, weight(&x[2])?);
            one(ops::quantized_swiglu(&x[0], &gate, &up, None))
        },
    },
    Row {
        name: "lora_linear",
        shapes: &[X, &[8, 64], &[2, 64], &[8, 2]],
        run: |x| one(ops::lora_linear(&x[0], &LinearWeight::from(&x[1]), &x[2], &x[3], 1.5)),
    },
    Row {
        name: "lora_linear on packed weights",
        shapes: &[X, &[2, 64], &[8, 2], SCALES],
        run: |x| {
            let base = LinearWeight::Quantized(weight(&x[3])?);
            one(ops::lora_linear(&x[0], &base, &x[1], &x[2], 1.5))
        },
    },
    Row { name: "matmul", shapes: &[X, &[64, 8]], run: |x| one(ops::matmul(&x[0], &x[1])) },
    Row {
        name: "masked_softmax",
        shapes: &[X],
        run: |x| one(ops::masked_softmax(&x[0], MaskedSoftmax::default())),
    },
];

fn check(name: &str, run: Run, inputs: &[Array]) -> Checked {
    let all: Vec<usize> = (0..inputs.len()).collect();
    for narrow in [Dtype::Float16, Dtype::Bfloat16] {
        let narrow: Vec<Array> = inputs.iter().map(|x| x.astype(narrow)).collect::<Result<_>>()?;
        let wide: Vec<Array> =
            narrow.iter().map(|x| x.astype(Dtype::Float32)).collect::<Result<_>>()?;
        let want = run(&wide)?;
        for chosen in &all {
            let mixed: Vec<Array> =
                all.iter().map(|i| if i == chosen { &wide } else { &narrow }[*i].clone()).collect();
            let what = format!("{name}, input {chosen} beside {}", narrow[0].dtype());
            for (got, want) in run(&mixed)?.iter().zip(&want) {
                assert_eq!(got.dtype(), want.dtype(), "{what}");
                assert_same(got, want, &what)?;
            }
        }
    }
    Ok(())
}

#[test]
fn one_wide_input_widens_the_result() -> Checked {
    each_device(|_| {
        for row in &PRODUCTS {
            let inputs = row.shapes.iter().zip(1..).map(|(shape, seed)| random32(shape, seed));
            check(row.name, row.run, &inputs.collect::<Result<Vec<_>>>()?)?;
        }
        for op in OPS.iter().filter(|op| op.promotes) {
            check(op.name, op.run, &op.inputs(3, 1)?)?;
        }
        Ok(())
    })
}
