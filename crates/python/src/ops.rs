//! The table of ops. An entry lists the arguments in order, each with its kind (`arguments.rs`),
//! and gives an expression for the results.

use std::ffi::{c_char, c_int};

use mlx_primitives::ops::{self, Activation, CpuActivations, LinearWeight, QuantizedMode};
use mlx_primitives::ops::{KvLayout, Offset, QuantizedWeight, Rope, RopeAppend};
use mlx_primitives::{Array, Dtype, Error, Result};

use crate::arguments::{Kind, kinds};
use crate::call::{Results, answer, built, exactly};
use crate::objects::Object;

/// A function in the form in which a Python module describes it, a `PyMethodDef`.
#[repr(C)]
pub struct Method {
    name: *const c_char,
    function: Option<unsafe extern "C" fn(Object, *const Object, isize) -> Object>,
    /// The calling convention: an array of arguments without names.
    flags: c_int,
    /// The arguments with their kinds, such as `x:array weight:optional`.
    arguments: *const c_char,
}

const FASTCALL: c_int = 0x80;

// SAFETY: the pointers point to constants.
unsafe impl Sync for Method {}

/// The format of a packed weight.
struct Packing {
    group_size: i32,
    bits: i32,
    mode: i32,
    int8: bool,
}

impl Packing {
    fn mode(&self) -> Result<QuantizedMode> {
        let mode = usize::try_from(self.mode).ok().and_then(|mode| QuantizedMode::ALL.get(mode));
        mode.copied().ok_or_else(|| Error::argument("quantized", "a mode that MLX has"))
    }

    fn weight(&self, w: &Array, scales: &Array, biases: Option<&Array>) -> Result<QuantizedWeight> {
        let (w, scales, biases) = (w.clone(), scales.clone(), biases.cloned());
        QuantizedWeight::new(w, scales, biases, self.group_size, self.bits, self.mode()?)
    }

    /// Makes a quantized weight for a product. The op checks the shapes and types of its arrays.
    fn factor(&self, w: &Array, scales: &Array, biases: Option<&Array>) -> Result<QuantizedWeight> {
        let (w, scales, biases) = (w.clone(), scales.clone(), biases.cloned());
        let (group_size, bits, mode) = (self.group_size, self.bits, self.mode()?);
        let weight = QuantizedWeight::for_products(w, scales, biases, group_size, bits, mode)?;
        Ok(if self.int8 { weight.with_activations(CpuActivations::Int8) } else { weight })
    }

    /// Makes a weight. It is quantized if it has scales.
    fn linear(
        &self,
        w: &Array,
        scales: Option<&Array>,
        biases: Option<&Array>,
    ) -> Result<LinearWeight> {
        match scales {
            Some(scales) => Ok(self.weight(w, scales, biases)?.into()),
            None => Ok(w.into()),
        }
    }

    fn all(&self, weights: &[Parts<'_>]) -> Result<Vec<QuantizedWeight>> {
        let present =
            weights.iter().filter_map(|(w, scales, biases)| Some(((*w)?, *scales, *biases)));
        let missing = || Error::argument("quantized_linears", "scales for each weight");
        present
            .map(|(w, scales, biases)| self.factor(w, scales.ok_or_else(missing)?, biases))
            .collect()
    }
}

/// The codes, scales and biases of a quantized weight. All are `None` if there is no weight.
type Parts<'a> = (Option<&'a Array>, Option<&'a Array>, Option<&'a Array>);

fn activation(kind: i32) -> Option<Activation> {
    match kind {
        1 => Some(Activation::Relu),
        2 => Some(Activation::Gelu),
        3 => Some(Activation::GeluTanh),
        4 => Some(Activation::Silu),
        _ => None,
    }
}

/// The positions of the tokens: a number that is the start of all sequences, or an array with one
/// start for all sequences or a start for each sequence.
fn offset(position: i32, each: Option<&Array>) -> Offset<'_> {
    each.map_or(Offset::Position(position), Offset::Each)
}

fn count(name: &str, value: Option<i32>) -> Result<Option<usize>> {
    let refused = |_| Error::argument(name, "a number that is not negative");
    value.map(|value| usize::try_from(value).map_err(refused)).transpose()
}

macro_rules! reduced {
    ($plain:ident, $keeping:ident, $x:ident, $all:ident, $keepdims:ident) => {
        match ($all, $keepdims) {
            (false, false) => ops::$plain($x, -1),
            (false, true) => ops::$keeping($x, -1),
            (true, false) => ops::$plain($x, ..),
            (true, true) => ops::$keeping($x, ..),
        }
    };
}

macro_rules! table {
    ($($name:ident($($argument:ident: $kind:ident),*) => $body:expr;)*) => {
        /// The ops. The last entry has no name.
        pub static TABLE: &[Method] = &[$({
            /// # Safety
            ///
            /// Python calls this.
            unsafe extern "C" fn $name(
                _module: Object, arguments: *const Object, count: isize
            ) -> Object {
                let run = || {
                    // SAFETY: Python passes this number of objects, which live during the call.
                    let [$($argument),*] = unsafe { exactly(arguments, count) }?;
                    $(
                        let name = stringify!($argument);
                        // SAFETY: these are Python objects, and the caller holds Python's lock.
                        let held = unsafe { <kinds::$kind as Kind>::take($argument, name) }?;
                        let $argument = <kinds::$kind as Kind>::lend(&held);
                    )*
                    let results = built(stringify!($name), || $body)?;
                    // SAFETY: the caller holds Python's lock.
                    unsafe { results.into_object() }
                };
                // SAFETY: as above.
                unsafe { answer(stringify!($name), run) }
            }
            Method {
                name: concat!(stringify!($name), "\0").as_ptr().cast(),
                function: Some($name),
                flags: FASTCALL,
                arguments: concat!($(stringify!($argument), ":", stringify!($kind), " ",)* "\0")
                    .as_ptr()
                    .cast(),
            }
        },)* Method {
            name: std::ptr::null(),
            function: None,
            flags: 0,
            arguments: std::ptr::null(),
        }];
    };
}

table! {
    // Returns its array unchanged, for Python's tests of this library.
    share(x: array) => Ok(x.clone());

    // Norms.
    rms_norm(x: array, weight: optional, eps: float) => ops::rms_norm(x, weight, eps);
    rms_norm_residual(x: array, residual: array, weight: optional, eps: float) =>
        ops::rms_norm_residual(x, residual, weight, eps);
    layer_norm(x: array, weight: optional, bias: optional, eps: float) =>
        ops::layer_norm(x, weight, bias, eps);
    layer_norm_residual(
        x: array, residual: array, weight: optional, bias: optional, eps: float
    ) => ops::layer_norm_residual(x, residual, weight, bias, eps);

    // Softmax and losses.
    softmax(x: array) => ops::softmax(x);
    log_softmax(x: array) => ops::log_softmax(x);
    logsumexp(x: array, keepdims: flag) =>
        if keepdims { ops::logsumexp_keepdims(x) } else { ops::logsumexp(x) };
    masked_softmax(x: array, scale: float, mask: optional, causal: flag, window: maybe_int) =>
        ops::masked_softmax(x, ops::MaskedSoftmax { scale, mask, causal, window });
    cross_entropy(
        logits: array, targets: array, label_smoothing: float, ignore_index: maybe_int
    ) =>
        ops::cross_entropy(logits, targets, ops::CrossEntropy { label_smoothing, ignore_index });
    linear_cross_entropy(
        x: array, w: array, targets: array, scales: optional, biases: optional, group_size: int,
        bits: int, mode: int, bias: optional, label_smoothing: float, ignore_index: maybe_int,
        chunk_rows: maybe_int
    ) => {
        let weight = Packing { group_size, bits, mode, int8: false }.linear(w, scales, biases)?;
        let cross_entropy = ops::CrossEntropy { label_smoothing, ignore_index };
        let chunk_rows = count("linear_cross_entropy", chunk_rows)?;
        let options = ops::LinearCrossEntropy { bias, cross_entropy, chunk_rows };
        ops::linear_cross_entropy(x, weight, targets, options)
    };

    // Rotation and attention.
    rope(
        x: array, dims: int, traditional: flag, base: maybe_float, scale: float, position: int,
        offsets: optional, freqs: optional
    ) => {
        let offset = offset(position, offsets);
        ops::rope(x, Rope { dims, traditional, base, scale, offset, freqs })
    };
    attention(
        q: array, k: array, v: array, scale: maybe_float, causal: flag, window: maybe_int,
        mask: optional, soft_cap: maybe_float, sinks: optional
    ) => {
        let rules = ops::Attention { scale, causal, window, mask, soft_cap, sinks, dropped: 0 };
        ops::attention(q, k, v, rules)
    };
    attention_quantized(
        q: array, k: array, k_scales: array, k_biases: array, v: array, v_scales: array,
        v_biases: array, bits: int, group_size: int, scale: maybe_float, causal: flag,
        window: maybe_int, mask: optional, soft_cap: maybe_float, sinks: optional
    ) => {
        let rules = ops::Attention { scale, causal, window, mask, soft_cap, sinks, dropped: 0 };
        let k = ops::QuantizedRows { packed: k, scales: k_scales, biases: k_biases };
        let v = ops::QuantizedRows { packed: v, scales: v_scales, biases: v_biases };
        ops::attention_quantized(q, k, v, bits, group_size, rules)
    };
    rope_append(
        state: array, qkv: array, heads: int, kv_heads: int, head_dim: int, capacity: int,
        dims: int, traditional: flag, base: maybe_float, scale: float, multiplier: float,
        position: int, offsets: optional, freqs: optional, slot: maybe_int, slots: optional
    ) => {
        let offset = offset(position, offsets);
        let rope = Rope { dims, traditional, base, scale, offset, freqs };
        let slots = slots.map(Offset::Each).or(slot.map(Offset::Position));
        let layout = KvLayout { heads, kv_heads, head_dim, capacity };
        ops::rope_append(state, qkv, layout, RopeAppend { rope, multiplier, slots })
    };
    rope_append_attention(
        state: array, qkv: array, heads: int, kv_heads: int, head_dim: int, capacity: int,
        dims: int, traditional: flag, base: maybe_float, scale: float, multiplier: float,
        position: int, offsets: optional, freqs: optional, slot: maybe_int, slots: optional,
        len: int, score_scale: maybe_float, causal: flag, window: maybe_int, mask: optional,
        soft_cap: maybe_float, sinks: optional
    ) => {
        let offset = offset(position, offsets);
        let rope = Rope { dims, traditional, base, scale, offset, freqs };
        let slots = slots.map(Offset::Each).or(slot.map(Offset::Position));
        let layout = KvLayout { heads, kv_heads, head_dim, capacity };
        let options = RopeAppend { rope, multiplier, slots };
        let scale = score_scale;
        let rules = ops::Attention { scale, causal, window, mask, soft_cap, sinks, dropped: 0 };
        ops::rope_append_attention(state, qkv, layout, options, len, rules)
    };

    // Products.
    matmul(a: array, b: array) => ops::matmul(a, b);
    matmul_nt(a: array, b: array) => ops::matmul_nt(a, b);
    linear(x: array, w: array, bias: optional, activation: int, residual: optional) => {
        let activation = self::activation(activation);
        ops::linear(x, w, ops::Linear { bias, activation, residual })
    };
    lora_linear(
        x: array, w: array, scales: optional, biases: optional, group_size: int, bits: int,
        mode: int, a: array, b: array, scale: float
    ) => {
        let base = Packing { group_size, bits, mode, int8: false }.linear(w, scales, biases)?;
        ops::lora_linear(x, &base, a, b, scale)
    };
    quantized_linear(
        x: array, w: array, scales: array, biases: optional, group_size: int, bits: int, mode: int,
        bias: optional, residual: optional, norm: optional, eps: float, int8: flag
    ) => {
        let weight = Packing { group_size, bits, mode, int8 }.factor(w, scales, biases)?;
        let norm = norm.map(|norm| (norm, eps));
        ops::quantized_linear(x, &weight, ops::QuantizedLinear { bias, residual, norm })
    };
    quantized_linears(
        x: array, w0: array, scales0: array, biases0: optional, w1: optional, scales1: optional,
        biases1: optional, w2: optional, scales2: optional, biases2: optional, group_size: int,
        bits: int, mode: int, norm: optional, eps: float, int8: flag
    ) => {
        let parts = [
            (Some(w0), Some(scales0), biases0), (w1, scales1, biases1), (w2, scales2, biases2),
        ];
        let weights = Packing { group_size, bits, mode, int8 }.all(&parts)?;
        let weights: Vec<_> = weights.iter().collect();
        ops::quantized_linears(x, &weights, norm.map(|norm| (norm, eps)))
    };
    quantized_swiglu(
        x: array, gate: array, gate_scales: array, gate_biases: optional, up: array,
        up_scales: array, up_biases: optional, group_size: int, bits: int, mode: int,
        norm: optional, eps: float, int8: flag
    ) => {
        let packing = Packing { group_size, bits, mode, int8 };
        let gate = packing.factor(gate, gate_scales, gate_biases)?;
        let up = packing.factor(up, up_scales, up_biases)?;
        ops::quantized_swiglu(x, &gate, &up, norm.map(|norm| (norm, eps)))
    };
    // One block (attention and MLP) of a Llama for few tokens. Returns the new state of the layer,
    // and the block's result.
    llama_block(
        x: array, state: array, norm: array, eps: float, q: array, q_scales: array,
        q_biases: optional, k: array, k_scales: array, k_biases: optional, v: array,
        v_scales: array, v_biases: optional, o: array, o_scales: array, o_biases: optional,
        next_norm: array, next_eps: float, gate: array, gate_scales: array, gate_biases: optional,
        up: array, up_scales: array, up_biases: optional, down: array, down_scales: array,
        down_biases: optional, group_size: int, bits: int, mode: int, heads: int, kv_heads: int,
        head_dim: int, capacity: int, dims: int, traditional: flag, base: maybe_float,
        scale: float, freqs: optional, offset: array, len: int, score_scale: float, causal: flag,
        mask: optional
    ) => {
        let packing = Packing { group_size, bits, mode, int8: false };
        let factor = |w, scales, biases| packing.factor(w, scales, biases);
        let q = factor(q, q_scales, q_biases)?;
        let (k, v) = (factor(k, k_scales, k_biases)?, factor(v, v_scales, v_biases)?);
        let o = factor(o, o_scales, o_biases)?;
        let (gate, up) = (factor(gate, gate_scales, gate_biases)?, factor(up, up_scales, up_biases)?);
        let down = factor(down, down_scales, down_biases)?;
        let qkv = ops::quantized_linears(x, &[&q, &k, &v], Some((norm, eps)))?;
        let rope = Rope { dims, traditional, base, scale, offset: offset.into(), freqs };
        let layout = KvLayout { heads, kv_heads, head_dim, capacity };
        let rules = ops::Attention { scale: Some(score_scale), causal, mask, ..Default::default() };
        let (state, seen) = ops::rope_append_attention(state, &qkv, layout, rope.into(), len, rules)?;
        let added = |x, w, to| {
            ops::quantized_linear(x, w, ops::QuantizedLinear { residual: Some(to), ..Default::default() })
        };
        let x = added(&seen, &o, x)?;
        let hidden = ops::quantized_swiglu(&x, &gate, &up, Some((next_norm, next_eps)))?;
        Ok((state, added(&hidden, &down, &x)?))
    };
    quantized_embedding(
        ids: array, w: array, scales: array, biases: optional, group_size: int, bits: int,
        mode: int
    ) => {
        let weight = Packing { group_size, bits, mode, int8: false }.weight(w, scales, biases)?;
        let bytes = weight.mode() != QuantizedMode::Affine;
        weight.take_rows(ids, if bytes { Dtype::Bfloat16 } else { scales.dtype() })
    };
    quantize(w: array, group_size: int, bits: int) =>
        ops::quantize(w, group_size, bits);
    dequantize(w: array, scales: array, biases: array, group_size: int, bits: int) =>
        ops::dequantize(w, scales, biases, group_size, bits);

    // Reductions over the last axis or over all axes.
    sum(x: array, all: flag, keepdims: flag) =>
        reduced!(sum, sum_keepdims, x, all, keepdims);
    mean(x: array, all: flag, keepdims: flag) =>
        reduced!(mean, mean_keepdims, x, all, keepdims);
    max(x: array, all: flag, keepdims: flag) =>
        reduced!(max, max_keepdims, x, all, keepdims);
    norm(x: array, all: flag, keepdims: flag) =>
        reduced!(norm, norm_keepdims, x, all, keepdims);
    sum_of_squares(x: array, all: flag, keepdims: flag) =>
        reduced!(sum_of_squares, sum_of_squares_keepdims, x, all, keepdims);

    // Activations.
    relu(x: array) => ops::relu(x);
    silu(x: array) => ops::silu(x);
    gelu(x: array) => ops::gelu(x);
    gelu_tanh(x: array) => ops::gelu_tanh(x);
    swiglu(gate: array, up: array) => ops::swiglu(gate, up);
    geglu(gate: array, up: array) => ops::geglu(gate, up);
    geglu_tanh(gate: array, up: array) => ops::geglu_tanh(gate, up);
    add_relu(a: array, b: array) => ops::add_relu(a, b);
    mul_relu(a: array, b: array) => ops::mul_relu(a, b);
    affine(x: array, scale: array, shift: array) => ops::affine(x, scale, shift);
}
