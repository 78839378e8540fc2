//! The calls of ops that the table in `rows.rs` uses.

use mlx_primitives::ops::{
    self, Attention, CrossEntropy, KvLayout, MaskedSoftmax, QuantizedLinear, QuantizedMode,
    QuantizedWeight, Rope, RopeAppend,
};
use mlx_primitives::transforms::vjp;
use mlx_primitives::{Array, Result};

use crate::support::input::random32;

/// Builds nodes of one type with the same inputs. They differ in one parameter.
pub type Variants = fn(&[Array]) -> Result<Vec<Array>>;

/// The shapes of the inputs.
pub type Shapes = &'static [&'static [i32]];

pub enum Row {
    /// The shapes of the inputs, and the nodes that differ in the field.
    Apart(Shapes, Variants),
    /// The reason why two nodes with the same inputs cannot differ in this field alone.
    Fixed(&'static str),
}

pub const X: Shapes = &[&[4, 8]];
pub const WITH_VECTOR: Shapes = &[&[4, 8], &[8]];
pub const SCORES: Shapes = &[&[2, 4, 6, 6]];
pub const QKV: Shapes = &[&[1, 4, 4, 8], &[1, 4, 4, 8], &[1, 4, 4, 8], &[4]];
pub const QKV_MASK: Shapes = &[&[1, 4, 4, 8], &[1, 4, 4, 8], &[1, 4, 4, 8], &[1, 4, 4, 4], &[4]];
pub const LAYOUT: KvLayout = KvLayout { heads: 6, kv_heads: 2, head_dim: 8, capacity: 26 };
/// Another layout. A state has as many rows, and a step as many features, as with `LAYOUT`.
pub const OTHER_LAYOUT: KvLayout = KvLayout { heads: 4, kv_heads: 3, head_dim: 8, capacity: 20 };
pub const STEP: Shapes = &[&[1, 152, 8], &[1, 2, 80], &[4]];

pub fn attention(p: &[Array], options: Attention<'_>) -> Result<Array> {
    ops::attention(&p[0], &p[1], &p[2], options)
}

pub fn attention_grad(p: &[Array], options: Attention<'_>) -> Result<Array> {
    Ok(vjp(|q| ops::attention(&q, &p[1], &p[2], options), &p[0], &p[1])?.1)
}

/// The gradients with respect to the inputs with these indices. `p` holds the queries, keys,
/// values, mask and sinks. The queries also serve as the cotangent.
pub fn attention_grads(p: &[Array], inputs: &[usize]) -> Result<Vec<Array>> {
    let attended = |x: Vec<Array>| {
        let mut all = p.to_vec();
        inputs.iter().zip(x).for_each(|(&input, x)| all[input] = x);
        let options = Attention { mask: Some(&all[3]), sinks: Some(&all[4]), ..Default::default() };
        attention(&all, options)
    };
    let primals: Vec<&Array> = inputs.iter().map(|&input| &p[input]).collect();
    Ok(vjp(attended, &primals, &[&p[0]])?.1)
}

pub fn masked(x: &Array, options: MaskedSoftmax<'_>) -> Result<Array> {
    ops::masked_softmax(x, options)
}

pub fn cross_entropy(
    p: &[Array],
    label_smoothing: f32,
    ignore_index: Option<i32>,
) -> Result<Array> {
    let options = CrossEntropy { label_smoothing, ignore_index };
    ops::cross_entropy(&p[0], &classes()?, options)
}

pub fn cross_entropy_grad(p: &[Array], smoothing: f32, ignored: Option<i32>) -> Result<Array> {
    Ok(vjp(|x| cross_entropy(&[x], smoothing, ignored), &p[0], &p[1])?.1)
}

thread_local! {
    /// Inputs that the functions capture. All variants use the same arrays.
    pub static CAPTURED: Captured = Captured::new().expect("the captured arrays");
}

pub struct Captured {
    classes: Array,
    pub weights: Vec<QuantizedWeight>,
    offset: Array,
}

impl Captured {
    fn new() -> Result<Self> {
        let weight = |seed| {
            QuantizedWeight::quantize(&random32(&[32, 32], seed)?, 32, 4, QuantizedMode::Affine)
        };
        let weights = vec![weight(31)?, weight(32)?];
        let offset = Array::from_slice(&[3i32], 1)?;
        let classes = Array::from_slice(&[1i32, 0, 7, 3], 4)?;
        for weight in &weights {
            mlx_primitives::eval([weight.packed(), weight.scales()])?;
            weight.biases().map_or(Ok(()), Array::eval)?;
        }
        Ok(Self { classes, weights, offset })
    }
}

pub fn classes() -> Result<Array> {
    Ok(CAPTURED.with(|captured| captured.classes.clone()))
}

pub fn quantized(x: &Array, options: QuantizedLinear<'_>) -> Result<Array> {
    CAPTURED.with(|captured| ops::quantized_linear(x, &captured.weights[0], options))
}

/// Two products of `p[0]`: one with a norm whose weight is `p[1]`, and one with the options
/// `other`.
pub fn normed_or(p: &[Array], other: QuantizedLinear<'_>) -> Result<Vec<Array>> {
    let normed = QuantizedLinear { norm: Some((&p[1], 1e-5)), ..Default::default() };
    Ok(vec![quantized(&p[0], normed)?, quantized(&p[0], other)?])
}

/// Dequantizes codes with the scales `p[0]` and the biases `p[1]`. Four words of codes share a
/// scale.
pub fn dequantized(p: &[Array], (group_size, bits): (i32, i32)) -> Result<Array> {
    CAPTURED.with(|captured| {
        ops::dequantize(captured.weights[0].packed(), &p[0], &p[1], group_size, bits)
    })
}

pub fn append(p: &[Array], layout: KvLayout, options: RopeAppend<'_>) -> Result<Array> {
    ops::rope_append(&p[0], &p[1], layout, options)
}

pub fn turning(offset: &Array, dims: i32, traditional: bool, base: f32, scale: f32) -> Rope<'_> {
    Rope { dims, traditional, base: Some(base), scale, offset: offset.into(), freqs: None }
}

/// The offset array that all variants share. Separate arrays would be different inputs.
pub fn offset() -> Array {
    CAPTURED.with(|captured| captured.offset.clone())
}

pub fn usual(offset: &Array) -> Rope<'_> {
    turning(offset, 8, false, 1e4, 1.0)
}

pub fn attended(
    p: &[Array],
    layout: KvLayout,
    rope: Rope<'_>,
    len: i32,
    rules: Attention<'_>,
) -> Result<Array> {
    Ok(ops::rope_append_attention(&p[0], &p[1], layout, rope.into(), len, rules)?.1)
}

pub fn masks() -> impl Iterator<Item = MaskedSoftmax<'static>> {
    let of = |scale, causal, window| MaskedSoftmax { scale, causal, window, ..Default::default() };
    [of(1.0, false, None), of(0.5, false, None), of(1.0, true, None), of(1.0, true, Some(2))]
        .into_iter()
}

pub fn rotations(offset: &Array) -> [Rope<'_>; 5] {
    [
        turning(offset, 8, false, 1e4, 1.0),
        turning(offset, 8, true, 1e4, 1.0),
        turning(offset, 4, false, 1e4, 1.0),
        turning(offset, 8, false, 1e3, 1.0),
        turning(offset, 8, false, 1e4, 2.0),
    ]
}
