//! The table: for each field of each primitive, nodes that differ in it alone.

use mlx_primitives::ops::{
    self, Activation, Attention, Linear, LinearWeight, MaskedSoftmax, QuantizedLinear, Rope,
    RopeAppend,
};
use mlx_primitives::transforms::vjp;
use mlx_primitives::{Array, Dtype, Result};

use super::calls::Row::{self, Apart, Fixed};
use super::calls::{
    CAPTURED, LAYOUT, OTHER_LAYOUT, QKV, SCORES, STEP, WITH_VECTOR, X, append, attended, attention,
    cross_entropy, cross_entropy_grad, dequantized, masked, masks, normed_or, offset, quantized,
    rotations, usual,
};

type One = fn(&Array) -> Result<Array>;
type Two = fn(&Array, &Array) -> Result<Array>;
const SHAPES_SAY: Row = Fixed("the shapes of the inputs determine it");

/// A row for each field of each primitive; those that one test covers share it.
pub fn rows() -> Vec<(&'static [&'static str], Row)> {
    vec![
        (
            &["Activation::kind_"],
            Apart(X, |p| {
                let all: [One; 4] = [ops::relu, ops::silu, ops::gelu, ops::gelu_tanh];
                all.iter().map(|op| op(&p[0])).collect()
            }),
        ),
        (
            &["Activation::kind_ of two"],
            Apart(&[&[4, 8], &[4, 8]], |p| {
                let all: [Two; 5] =
                    [ops::swiglu, ops::geglu, ops::geglu_tanh, ops::add_relu, ops::mul_relu];
                all.iter().map(|op| op(&p[0], &p[1])).collect()
            }),
        ),
        (
            &[
                "Attention::rules_.scale",
                "Attention::rules_.causal",
                "Attention::rules_.window",
                "Attention::rules_.soft_cap",
            ],
            Apart(QKV, |p| {
                Ok(vec![
                    attention(p, Attention::default())?,
                    attention(p, Attention { scale: Some(0.7), ..Default::default() })?,
                    attention(p, Attention { causal: true, ..Default::default() })?,
                    attention(
                        p,
                        Attention { causal: true, window: Some(2), ..Default::default() },
                    )?,
                    attention(p, Attention { soft_cap: Some(0.5), ..Default::default() })?,
                ])
            }),
        ),
        (
            &["Attention::masked_", "Attention::sinks_"],
            Apart(QKV, |p| {
                Ok(vec![
                    attention(p, Attention { mask: Some(&p[3]), ..Default::default() })?,
                    attention(p, Attention { sinks: Some(&p[3]), ..Default::default() })?,
                ])
            }),
        ),
        (&["Attention::bits_", "Attention::group_size_"], SHAPES_SAY),
        (
            &["CrossEntropy::targets_.smoothing", "CrossEntropy::targets_.ignored"],
            Apart(X, |p| {
                Ok(vec![
                    cross_entropy(p, 0.0, None)?,
                    cross_entropy(p, 0.2, None)?,
                    cross_entropy(p, 0.0, Some(1))?,
                    cross_entropy(p, 0.0, Some(7))?,
                ])
            }),
        ),
        (
            &["CrossEntropyGrad::targets_.smoothing", "CrossEntropyGrad::targets_.ignored"],
            Apart(&[&[4, 8], &[4]], |p| {
                Ok(vec![
                    cross_entropy_grad(p, 0.0, None)?,
                    cross_entropy_grad(p, 0.2, None)?,
                    cross_entropy_grad(p, 0.0, Some(1))?,
                    cross_entropy_grad(p, 0.0, Some(7))?,
                ])
            }),
        ),
        (
            &["Custom::op_", "Custom::name_", "Custom::dtypes_", "Custom::in_place_"],
            Fixed("the user's comparison decides; custom::twin tests it"),
        ),
        (
            &["LayerNorm::eps_"],
            Apart(X, |p| {
                [1e-5, 1.0].map(|eps| ops::layer_norm(&p[0], None, None, eps)).into_iter().collect()
            }),
        ),
        (
            &["LayerNorm::weighted_", "LayerNorm::biased_"],
            Apart(WITH_VECTOR, |p| {
                Ok(vec![
                    ops::layer_norm(&p[0], Some(&p[1]), None, 1e-5)?,
                    ops::layer_norm(&p[0], None, Some(&p[1]), 1e-5)?,
                ])
            }),
        ),
        (
            &["Linear::state_.columns"],
            Apart(&[&[4, 8], &[8, 8]], |p| {
                Ok(vec![ops::matmul(&p[0], &p[1])?, ops::matmul_nt(&p[0], &p[1])?])
            }),
        ),
        (
            &["Linear::state_.activation"],
            Apart(&[&[4, 8], &[8, 8]], |p| {
                let of = |activation| {
                    ops::linear(&p[0], &p[1], Linear { activation, ..Default::default() })
                };
                Ok(vec![of(None)?, of(Some(Activation::Silu))?])
            }),
        ),
        (
            &["Linear::state_.biased", "Linear::state_.residual"],
            Apart(&[&[8], &[8, 8], &[8]], |p| {
                let activation = Some(Activation::Silu);
                let bias = Linear { bias: Some(&p[2]), activation, residual: None };
                let residual = Linear { bias: None, activation, residual: Some(&p[2]) };
                Ok(vec![ops::linear(&p[0], &p[1], bias)?, ops::linear(&p[0], &p[1], residual)?])
            }),
        ),
        (
            &["LoraLinear::scale_"],
            Apart(&[&[4, 8], &[6, 8], &[2, 8], &[6, 2]], |p| {
                let of = |scale| {
                    ops::lora_linear(&p[0], &LinearWeight::from(&p[1]), &p[2], &p[3], scale)
                };
                Ok(vec![of(1.5)?, of(0.5)?])
            }),
        ),
        (&["LoraLinear::format_"], Fixed("the number and the shapes of the inputs determine it")),
        (
            &[
                "MaskedSoftmax::masking_.scale",
                "MaskedSoftmax::masking_.causal",
                "MaskedSoftmax::masking_.window",
            ],
            Apart(SCORES, |p| masks().map(|options| masked(&p[0], options)).collect()),
        ),
        // The gradients of the scores and of an additive mask are those of one result.
        (
            &["MaskedSoftmaxGrad::masking_.scale"],
            Apart(&[&[2, 4, 6, 6], &[2, 4, 6, 6], &[2, 4, 6, 6]], |p| {
                let of = |(x, mask): (Array, Array)| {
                    masked(
                        &x,
                        MaskedSoftmax { scale: 0.5, mask: Some(&mask), ..Default::default() },
                    )
                };
                let (x, mask) = vjp(of, (&p[0], &p[1]), &p[2])?.1;
                Ok(vec![x, mask])
            }),
        ),
        (
            &["MaskedSoftmaxGrad::masking_.causal", "MaskedSoftmaxGrad::masking_.window"],
            Fixed("the result, which is an input, differs"),
        ),
        (
            &["Quantize::group_size_", "Quantize::bits_"],
            Apart(&[&[4, 128]], |p| {
                let of = |group, bits| ops::quantize(&p[0], group, bits)?.0.astype(Dtype::Float32);
                Ok(vec![of(32, 4)?, of(64, 4)?, of(32, 8)?, of(64, 8)?])
            }),
        ),
        (
            &["Dequantize::group_size_", "Dequantize::bits_"],
            Apart(&[&[32, 1], &[32, 1]], |p| {
                [(32, 4), (64, 2)].map(|format| dequantized(p, format)).into_iter().collect()
            }),
        ),
        (&["QuantizedMatmul::kind_.format"], SHAPES_SAY),
        (&["QuantizedMatmul::kind_.parts"], Fixed("the number of inputs determines it")),
        (
            &["QuantizedMatmul::kind_.int8"],
            Fixed("it changes the numbers on some processors alone, and `==` compares all of Kind"),
        ),
        (
            &["QuantizedMatmul::kind_.swiglu"],
            Apart(&[&[1, 32]], |p| {
                CAPTURED.with(|captured| {
                    let [a, b] = [&captured.weights[0], &captured.weights[1]];
                    Ok(vec![
                        ops::quantized_linears(&p[0], &[a, b], None)?,
                        ops::quantized_swiglu(&p[0], a, b, None)?,
                    ])
                })
            }),
        ),
        (
            &["QuantizedMatmul::kind_.normed", "QuantizedMatmul::kind_.biased"],
            Apart(&[&[32], &[32]], |p| {
                normed_or(p, QuantizedLinear { bias: Some(&p[1]), ..Default::default() })
            }),
        ),
        // For a vector, a residual is added as a bias is.
        (
            &["QuantizedMatmul::kind_.added"],
            Apart(&[&[32], &[32]], |p| {
                normed_or(p, QuantizedLinear { residual: Some(&p[1]), ..Default::default() })
            }),
        ),
        (
            &["QuantizedMatmul::kind_.eps"],
            Apart(&[&[2, 32], &[32]], |p| {
                let of = |eps| QuantizedLinear { norm: Some((&p[1], eps)), ..Default::default() };
                [1e-5, 1.0].map(|eps| quantized(&p[0], of(eps))).into_iter().collect()
            }),
        ),
        (
            &["Reduction::kind_"],
            Apart(X, |p| {
                Ok(vec![
                    ops::sum(&p[0], -1)?,
                    ops::mean(&p[0], -1)?,
                    ops::max(&p[0], -1)?,
                    ops::sum_of_squares(&p[0], -1)?,
                    ops::norm(&p[0], -1)?,
                ])
            }),
        ),
        (
            &["Reduction::all_", "Reduction::keepdims_"],
            Apart(X, |p| {
                Ok(vec![
                    ops::sum(&p[0], -1)?,
                    ops::sum_keepdims(&p[0], -1)?,
                    ops::sum(&p[0], ..)?,
                    ops::sum_keepdims(&p[0], ..)?,
                ])
            }),
        ),
        (
            &["ResidualNorm::centered_"],
            Apart(&[&[4, 8], &[4, 8]], |p| {
                Ok(vec![
                    ops::rms_norm_residual(&p[0], &p[1], None, 1e-5)?.1,
                    ops::layer_norm_residual(&p[0], &p[1], None, None, 1e-5)?.1,
                ])
            }),
        ),
        (
            &["ResidualNorm::eps_"],
            Apart(&[&[4, 8], &[4, 8]], |p| {
                let of = |eps| Ok(ops::rms_norm_residual(&p[0], &p[1], None, eps)?.1);
                [1e-5, 1.0].map(of).into_iter().collect()
            }),
        ),
        (
            &["ResidualNorm::weighted_", "ResidualNorm::biased_"],
            Apart(&[&[4, 8], &[4, 8], &[8]], |p| {
                Ok(vec![
                    ops::layer_norm_residual(&p[0], &p[1], Some(&p[2]), None, 1e-5)?.1,
                    ops::layer_norm_residual(&p[0], &p[1], None, Some(&p[2]), 1e-5)?.1,
                ])
            }),
        ),
        (
            &["RmsNorm::eps_"],
            Apart(X, |p| {
                [1e-5, 1.0].map(|eps| ops::rms_norm(&p[0], None, eps)).into_iter().collect()
            }),
        ),
        (
            &["Rope::dims_", "Rope::traditional_", "Rope::base_", "Rope::scale_"],
            Apart(&[&[2, 3, 8]], |p| {
                rotations(&offset()).into_iter().map(|rope| ops::rope(&p[0], rope)).collect()
            }),
        ),
        (
            &["Rope::forward_"],
            Apart(&[&[2, 3, 8]], |p| {
                Ok(vec![
                    ops::rope(&p[0], usual(&offset()))?,
                    vjp(
                        |x| ops::rope(&x, usual(&offset())),
                        &Array::ones::<f32>((2, 3, 8))?,
                        &p[0],
                    )?
                    .1,
                ])
            }),
        ),
        (
            &[
                "RopeAppend::dims_",
                "RopeAppend::traditional_",
                "RopeAppend::base_",
                "RopeAppend::scale_",
            ],
            Apart(STEP, |p| {
                rotations(&offset())
                    .into_iter()
                    .map(|rope| append(p, LAYOUT, rope.into()))
                    .collect()
            }),
        ),
        (
            &["RopeAppend::multiplier_"],
            Apart(STEP, |p| {
                let of = |multiplier| {
                    append(p, LAYOUT, RopeAppend { multiplier, ..usual(&offset()).into() })
                };
                Ok(vec![of(1.0)?, of(0.5)?])
            }),
        ),
        (
            &[
                "RopeAppend::layout_.heads",
                "RopeAppend::layout_.kv_heads",
                "RopeAppend::layout_.capacity",
            ],
            Apart(STEP, |p| {
                Ok(vec![
                    append(p, LAYOUT, usual(&offset()).into())?,
                    append(p, OTHER_LAYOUT, usual(&offset()).into())?,
                ])
            }),
        ),
        (&["RopeAppend::layout_.head_dim", "RopeAppendAttention::layout_.head_dim"], SHAPES_SAY),
        (
            &["RopeAppendAttention::append_"],
            Apart(STEP, |p| {
                rotations(&offset())
                    .into_iter()
                    .map(|rope| attended(p, LAYOUT, rope, 5, Attention::default()))
                    .collect()
            }),
        ),
        (
            &["RopeAppendAttention::attention_"],
            Apart(STEP, |p| {
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
        ),
        (
            &[
                "RopeAppendAttention::layout_.heads",
                "RopeAppendAttention::layout_.kv_heads",
                "RopeAppendAttention::layout_.capacity",
            ],
            Fixed("that of append_, which is compared"),
        ),
        (
            &["RopeAppendAttention::masked_", "RopeAppendAttention::appended_"],
            Apart(STEP, |p| {
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
        ),
        (
            &["RopeAppendAttention::len_"],
            Apart(STEP, |p| {
                let of = |len| attended(p, LAYOUT, usual(&offset()), len, Attention::default());
                Ok(vec![of(5)?, of(8)?])
            }),
        ),
    ]
}
