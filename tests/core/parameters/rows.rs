//! The table of fields: for each field of each primitive, it builds nodes that differ only in this
//! field.

use mlx_primitives::ops::{
    self, Activation, Attention, Linear, LinearWeight, MaskedSoftmax, QuantizedLinear, Rope,
    RopeAppend,
};
use mlx_primitives::transforms::vjp;
use mlx_primitives::{Array, Dtype, Result};

use super::calls::Row::{self, Apart, Fixed};
use super::calls::{
    CAPTURED, LAYOUT, OTHER_LAYOUT, QKV, QKV_MASK, SCORES, STEP, Shapes, Variants, WITH_VECTOR, X,
    append, attended, attention, attention_grad, attention_grads, cross_entropy,
    cross_entropy_grad, dequantized, masked, masks, normed_or, offset, quantized, rotations, usual,
};
use crate::support::simulated;

type One = fn(&Array) -> Result<Array>;
type Two = fn(&Array, &Array) -> Result<Array>;
const SHAPES_SAY: &str = "the shapes of the inputs determine it";

fn apart(fields: &'static str, shapes: Shapes, variants: Variants) -> (&'static str, Row) {
    (fields, Apart(shapes, variants))
}

fn fixed(fields: &'static str, reason: &'static str) -> (&'static str, Row) {
    (fields, Fixed(reason))
}

/// The rows of the table. If one test covers several fields, they share a row. The row's name lists
/// them with commas, and omits the part of a name that equals the name before it.
pub fn rows() -> Vec<(&'static str, Row)> {
    vec![
        apart("Activation::kind_", X, |p| {
            let all: [One; 4] = [ops::relu, ops::silu, ops::gelu, ops::gelu_tanh];
            all.iter().map(|op| op(&p[0])).collect()
        }),
        apart("Activation::kind_ of two", &[&[4, 8], &[4, 8]], |p| {
            let all: [Two; 5] =
                [ops::swiglu, ops::geglu, ops::geglu_tanh, ops::add_relu, ops::mul_relu];
            all.iter().map(|op| op(&p[0], &p[1])).collect()
        }),
        apart("Activation::kind_ of a slope", &[&[4, 8], &[4, 8]], |p| {
            let all: [One; 4] = [ops::relu, ops::silu, ops::gelu, ops::gelu_tanh];
            all.iter().map(|op| Ok(vjp(|x: Array| op(&x), &p[0], &p[1])?.1)).collect()
        }),
        apart("ActivationGrad::kind_", &[&[4, 8], &[4, 8], &[4, 8]], |p| {
            let all: [Two; 5] =
                [ops::swiglu, ops::geglu, ops::geglu_tanh, ops::add_relu, ops::mul_relu];
            let of = |op: &Two| {
                let function = |(a, b): (Array, Array)| op(&a, &b);
                Ok(vjp(function, (&p[0], &p[1]), &p[2])?.1.0)
            };
            all.iter().map(of).collect()
        }),
        apart("Attention::rules_.scale, .causal, .window, .soft_cap", QKV, |p| {
            Ok(vec![
                attention(p, Attention::default())?,
                attention(p, Attention { scale: Some(0.7), ..Default::default() })?,
                attention(p, Attention { causal: true, ..Default::default() })?,
                attention(p, Attention { causal: true, window: Some(2), ..Default::default() })?,
                attention(p, Attention { soft_cap: Some(0.5), ..Default::default() })?,
            ])
        }),
        apart("Attention::masked_, ::sinks_", QKV, |p| {
            Ok(vec![
                attention(p, Attention { mask: Some(&p[3]), ..Default::default() })?,
                attention(p, Attention { sinks: Some(&p[3]), ..Default::default() })?,
            ])
        }),
        fixed("Attention::bits_, ::group_size_", SHAPES_SAY),
        apart("AttentionGrad::attention_", QKV, |p| {
            Ok(vec![
                attention_grad(p, Attention::default())?,
                attention_grad(p, Attention { scale: Some(0.7), ..Default::default() })?,
                attention_grad(p, Attention { causal: true, ..Default::default() })?,
                attention_grad(p, Attention { soft_cap: Some(0.5), ..Default::default() })?,
            ])
        }),
        apart("AttentionGrad::of_keys_", QKV_MASK, |p| {
            let all = attention_grads(p, &[0, 1, 4])?;
            Ok(vec![attention_grads(p, &[0, 4])?[1].clone(), all[1].clone()])
        }),
        apart("AttentionGrad::of_mask_", QKV_MASK, |p| {
            // The node's fourth output is the gradient of the mask if it is computed, and otherwise
            // the gradient of the sinks.
            let all = attention_grads(p, &[0, 1, 3, 4])?;
            Ok(vec![attention_grads(p, &[0, 1, 4])?[2].clone(), all[2].clone()])
        }),
        apart("CrossEntropy::targets_.smoothing, .ignored", X, |p| {
            Ok(vec![
                cross_entropy(p, 0.0, None)?,
                cross_entropy(p, 0.2, None)?,
                cross_entropy(p, 0.0, Some(1))?,
                cross_entropy(p, 0.0, Some(7))?,
            ])
        }),
        apart("CrossEntropyGrad::targets_.smoothing, .ignored", &[&[4, 8], &[4]], |p| {
            Ok(vec![
                cross_entropy_grad(p, 0.0, None)?,
                cross_entropy_grad(p, 0.2, None)?,
                cross_entropy_grad(p, 0.0, Some(1))?,
                cross_entropy_grad(p, 0.0, Some(7))?,
            ])
        }),
        fixed(
            "Custom::op_, ::name_, ::dtypes_, ::in_place_",
            "the user's comparison decides; custom::twin tests it",
        ),
        apart("LayerNorm::eps_", X, |p| {
            [1e-5, 1.0].map(|eps| ops::layer_norm(&p[0], None, None, eps)).into_iter().collect()
        }),
        apart("LayerNorm::weighted_, ::biased_", WITH_VECTOR, |p| {
            Ok(vec![
                ops::layer_norm(&p[0], Some(&p[1]), None, 1e-5)?,
                ops::layer_norm(&p[0], None, Some(&p[1]), 1e-5)?,
            ])
        }),
        apart("Linear::state_.columns", &[&[4, 8], &[8, 8]], |p| {
            Ok(vec![ops::matmul(&p[0], &p[1])?, ops::matmul_nt(&p[0], &p[1])?])
        }),
        apart("Linear::state_.turned", &[&[16, 16], &[16, 8]], |p| {
            Ok(vec![ops::matmul(&p[0], &p[1])?, ops::matmul(&p[0].t()?, &p[1])?])
        }),
        fixed(
            "Linear::state_.gated, .eps",
            "NVIDIA GPUs alone have such nodes, of one epsilon a model",
        ),
        apart("Linear::state_.activation", &[&[4, 8], &[8, 8]], |p| {
            let of =
                |activation| ops::linear(&p[0], &p[1], Linear { activation, ..Default::default() });
            Ok(vec![of(None)?, of(Some(Activation::Silu))?])
        }),
        apart("Linear::state_.biased, .residual", &[&[8], &[8, 8], &[8]], |p| {
            let activation = Some(Activation::Silu);
            let bias = Linear { bias: Some(&p[2]), activation, residual: None };
            let residual = Linear { bias: None, activation, residual: Some(&p[2]) };
            Ok(vec![ops::linear(&p[0], &p[1], bias)?, ops::linear(&p[0], &p[1], residual)?])
        }),
        apart("LogSumExpGrad::subtracted_", &[&[4, 1], &[4, 1]], |p| {
            let all: [One; 2] = [ops::logsumexp_keepdims, ops::log_softmax];
            all.iter().map(|op| Ok(vjp(|x: Array| op(&x), &p[0], &p[1])?.1)).collect()
        }),
        apart("LoraLinear::scale_", &[&[4, 8], &[6, 8], &[2, 8], &[6, 2]], |p| {
            let of =
                |scale| ops::lora_linear(&p[0], &LinearWeight::from(&p[1]), &p[2], &p[3], scale);
            Ok(vec![of(1.5)?, of(0.5)?])
        }),
        fixed("LoraLinear::format_", "the number and the shapes of the inputs determine it"),
        apart("MaskedSoftmax::masking_.scale, .causal, .window", SCORES, |p| {
            masks().map(|options| masked(&p[0], options)).collect()
        }),
        // One node computes the gradient of the scores, and another the gradient of an additive
        // mask. These nodes differ only in `scale`, which is 1 for the mask.
        apart(
            "MaskedSoftmaxGrad::masking_.scale",
            &[&[2, 4, 6, 6], &[2, 4, 6, 6], &[2, 4, 6, 6]],
            |p| {
                let of = |(x, mask): (Array, Array)| {
                    masked(
                        &x,
                        MaskedSoftmax { scale: 0.5, mask: Some(&mask), ..Default::default() },
                    )
                };
                let (x, mask) = vjp(of, (&p[0], &p[1]), &p[2])?.1;
                Ok(vec![x, mask])
            },
        ),
        fixed(
            "MaskedSoftmaxGrad::masking_.causal, .window",
            "the result, which is an input, differs",
        ),
        apart("NormGrad::kind_.centered, .eps", &[&[4, 8], &[4, 8]], |p| {
            Ok(vec![
                vjp(|x: Array| ops::rms_norm(&x, None, 1e-5), &p[0], &p[1])?.1,
                vjp(|x: Array| ops::rms_norm(&x, None, 1.0), &p[0], &p[1])?.1,
                vjp(|x: Array| ops::layer_norm(&x, None, None, 1e-5), &p[0], &p[1])?.1,
            ])
        }),
        // The inputs are vectors of equal length. So one array can serve as the norm's weight, or
        // as another gradient that is added.
        apart("NormGrad::kind_.weighted, .added", &[&[8], &[8], &[8], &[8]], |p| {
            let (sum, _) = ops::rms_norm_residual(&p[0], &p[1], None, 1e-5)?;
            let with_sum = |x: Array| ops::rms_norm_residual(&x, &p[1], None, 1e-5);
            Ok(vec![
                vjp(|x: Array| ops::rms_norm(&x, Some(&p[2]), 1e-5), &sum, &p[3])?.1,
                vjp(with_sum, &p[0], (&p[3], &p[2]))?.1,
            ])
        }),
        apart("NormGrad::kind_.of_weight, .of_bias", &[&[4, 8], &[8], &[8], &[4, 8]], |p| {
            let norm = |weight: &Array, bias: &Array| {
                ops::layer_norm(&p[0], Some(weight), Some(bias), 1e-5)
            };
            Ok(vec![
                vjp(|weight: Array| norm(&weight, &p[2]), &p[1], &p[3])?.1,
                vjp(|bias: Array| norm(&p[1], &bias), &p[2], &p[3])?.1,
            ])
        }),
        match simulated() {
            true => fixed("NormGrad::kind_.affine", "GPUs have MLX's kernels instead"),
            false => apart("NormGrad::kind_.affine", &[&[4, 8], &[8], &[4, 8]], |p| {
                Ok(vec![
                    vjp(|x: Array| ops::affine(&x, &p[1], &p[1]), &p[0], &p[2])?.1,
                    vjp(|x: Array| ops::rms_norm(&x, Some(&p[1]), 0.0), &p[0], &p[2])?.1,
                ])
            }),
        },
        fixed("ReductionGrad::kind_", "the result, which is an input, differs or is none"),
        fixed(
            "QuantizedTransposed::format_, ::added_",
            "the number and the shapes of the inputs determine it",
        ),
        apart("Quantize::group_size_, ::bits_", &[&[4, 128]], |p| {
            let of = |group, bits| ops::quantize(&p[0], group, bits)?.0.astype(Dtype::Float32);
            Ok(vec![of(32, 4)?, of(64, 4)?, of(32, 8)?, of(64, 8)?])
        }),
        apart("Dequantize::group_size_, ::bits_", &[&[32, 1], &[32, 1]], |p| {
            [(32, 4), (64, 2)].map(|format| dequantized(p, format)).into_iter().collect()
        }),
        fixed(
            "Attention::rules_.order, .dropped, Linear::state_.order, LoraLinear::order_, \
             QuantizedMatmul::kind_.order",
            "it changes numbers of some calls alone; `orders_of_rows_stay_apart` tests it",
        ),
        fixed("QuantizedMatmul::kind_.format", SHAPES_SAY),
        fixed("QuantizedMatmul::kind_.parts", "the number of inputs determines it"),
        fixed(
            "QuantizedMatmul::kind_.int8, .centered",
            "they change numbers of some calls alone, or none; `products_that_round_stay_apart` tests it",
        ),
        apart("QuantizedMatmul::kind_.swiglu", &[&[1, 32]], |p| {
            CAPTURED.with(|captured| {
                let [a, b] = [&captured.weights[0], &captured.weights[1]];
                Ok(vec![
                    ops::quantized_linears(&p[0], &[a, b], None)?,
                    ops::quantized_swiglu(&p[0], a, b, None)?,
                ])
            })
        }),
        apart("QuantizedMatmul::kind_.normed, .biased", &[&[32], &[32]], |p| {
            normed_or(p, QuantizedLinear { bias: Some(&p[1]), ..Default::default() })
        }),
        // For a single row, adding a residual gives the same result as adding a bias. So this test
        // and the test before it both compare with a norm.
        apart("QuantizedMatmul::kind_.added", &[&[32], &[32]], |p| {
            normed_or(p, QuantizedLinear { residual: Some(&p[1]), ..Default::default() })
        }),
        apart("QuantizedMatmul::kind_.eps", &[&[2, 32], &[32]], |p| {
            let of = |eps| QuantizedLinear { norm: Some((&p[1], eps)), ..Default::default() };
            [1e-5, 1.0].map(|eps| quantized(&p[0], of(eps))).into_iter().collect()
        }),
        apart("Reduction::kind_", X, |p| {
            Ok(vec![
                ops::sum(&p[0], -1)?,
                ops::mean(&p[0], -1)?,
                ops::max(&p[0], -1)?,
                ops::sum_of_squares(&p[0], -1)?,
                ops::norm(&p[0], -1)?,
            ])
        }),
        apart("Reduction::all_, ::keepdims_", X, |p| {
            Ok(vec![
                ops::sum(&p[0], -1)?,
                ops::sum_keepdims(&p[0], -1)?,
                ops::sum(&p[0], ..)?,
                ops::sum_keepdims(&p[0], ..)?,
            ])
        }),
        apart("ResidualNorm::centered_", &[&[4, 8], &[4, 8]], |p| {
            Ok(vec![
                ops::rms_norm_residual(&p[0], &p[1], None, 1e-5)?.1,
                ops::layer_norm_residual(&p[0], &p[1], None, None, 1e-5)?.1,
            ])
        }),
        apart("ResidualNorm::eps_", &[&[4, 8], &[4, 8]], |p| {
            let of = |eps| Ok(ops::rms_norm_residual(&p[0], &p[1], None, eps)?.1);
            [1e-5, 1.0].map(of).into_iter().collect()
        }),
        apart("ResidualNorm::weighted_, ::biased_", &[&[4, 8], &[4, 8], &[8]], |p| {
            Ok(vec![
                ops::layer_norm_residual(&p[0], &p[1], Some(&p[2]), None, 1e-5)?.1,
                ops::layer_norm_residual(&p[0], &p[1], None, Some(&p[2]), 1e-5)?.1,
            ])
        }),
        apart("RmsNorm::eps_", X, |p| {
            [1e-5, 1.0].map(|eps| ops::rms_norm(&p[0], None, eps)).into_iter().collect()
        }),
        apart("Rope::dims_, ::traditional_, ::base_, ::scale_", &[&[2, 3, 8]], |p| {
            rotations(&offset()).into_iter().map(|rope| ops::rope(&p[0], rope)).collect()
        }),
        apart("Rope::forward_", &[&[2, 3, 8]], |p| {
            Ok(vec![
                ops::rope(&p[0], usual(&offset()))?,
                vjp(|x| ops::rope(&x, usual(&offset())), &Array::ones::<f32>((2, 3, 8))?, &p[0])?.1,
            ])
        }),
        apart("RopeAppend::dims_, ::traditional_, ::base_, ::scale_", STEP, |p| {
            rotations(&offset()).into_iter().map(|rope| append(p, LAYOUT, rope.into())).collect()
        }),
        apart("RopeAppend::multiplier_", STEP, |p| {
            let of = |multiplier| {
                append(p, LAYOUT, RopeAppend { multiplier, ..usual(&offset()).into() })
            };
            Ok(vec![of(1.0)?, of(0.5)?])
        }),
        apart("RopeAppend::layout_.heads, .kv_heads, .capacity", STEP, |p| {
            Ok(vec![
                append(p, LAYOUT, usual(&offset()).into())?,
                append(p, OTHER_LAYOUT, usual(&offset()).into())?,
            ])
        }),
        apart("RopeAppendGrad::append_", STEP, |p| {
            let of = |rope: Rope<'_>| {
                let new = |qkv: Array| append(&[p[0].clone(), qkv], LAYOUT, rope.into());
                Ok(vjp(new, &p[1], &p[0])?.1)
            };
            rotations(&offset()).into_iter().map(of).collect()
        }),
        apart("RopeAppendGrad::time_", STEP, |p| {
            let of = |time: i32| {
                let qkv = p[1].slice_axis(1, 0..time)?;
                let offset = offset();
                let new = |state| append(&[state, qkv.clone()], LAYOUT, usual(&offset).into());
                Ok(vjp(new, &p[0], &p[0])?.1)
            };
            [1, 2].map(of).into_iter().collect()
        }),
        apart("RopeHeads::append_", &[&[1, 2, 80]], |p| {
            let of = |rope: Rope<'_>| Ok(ops::rope_heads(&p[0], LAYOUT, rope.into())?[1].clone());
            rotations(&offset()).into_iter().map(of).collect()
        }),
        fixed("RopeHeads::forward_", "a step is one input, and its heads are three"),
        fixed("RopeAppend::layout_.head_dim, RopeAppendAttention::layout_.head_dim", SHAPES_SAY),
        apart("RopeAppendAttention::append_", STEP, |p| {
            rotations(&offset())
                .into_iter()
                .map(|rope| attended(p, LAYOUT, rope, 5, Attention::default()))
                .collect()
        }),
        apart("RopeAppendAttention::attention_", STEP, |p| {
            Ok(vec![
                attended(p, LAYOUT, usual(&offset()), 5, Attention::default())?,
                attended(
                    p,
                    LAYOUT,
                    usual(&offset()),
                    5,
                    Attention { scale: Some(0.9), ..Default::default() },
                )?,
                attended(
                    p,
                    LAYOUT,
                    usual(&offset()),
                    5,
                    Attention { causal: true, ..Default::default() },
                )?,
            ])
        }),
        fixed(
            "RopeAppendAttention::layout_.heads, .kv_heads, .capacity",
            "that of append_, which is compared",
        ),
        apart("RopeAppendAttention::masked_, ::appended_", STEP, |p| {
            Ok(vec![
                attended(
                    p,
                    LAYOUT,
                    Rope { base: None, freqs: Some(&p[2]), ..usual(&offset()) },
                    4,
                    Attention::default(),
                )?,
                attended(
                    p,
                    LAYOUT,
                    usual(&offset()),
                    4,
                    Attention { mask: Some(&p[2]), ..Default::default() },
                )?,
            ])
        }),
        apart("RopeAppendAttention::len_", STEP, |p| {
            let of = |len| attended(p, LAYOUT, usual(&offset()), len, Attention::default());
            Ok(vec![of(5)?, of(8)?])
        }),
        apart("TakeGrad::rows_", &[&[1, 8]], |p| {
            let ids = offset().reshape(1)?;
            let of = |rows: i32| {
                let matrix = Array::ones::<f32>((rows, 8))?;
                Ok(vjp(|x: Array| x.take(&ids, 0), &matrix, &p[0])?.1)
            };
            [5, 6].map(of).into_iter().collect()
        }),
    ]
}
