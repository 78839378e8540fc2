use std::ops::Range;

use mlx_primitives::ops::{LinearWeight, QuantizedMode, QuantizedWeight};
use mlx_primitives::{Array, Dtype, Element, Error, Result, memory};

use super::estimate::estimate;
use super::llama::Llama;
use crate::base::{Config, Quantization, WeightSource, Weights};
use crate::cache::CacheKind;

/// The number of distinct values of the elements of a float tensor.
const LEVELS: usize = 1 << 12;
/// The mean square of the sixteen values of a 4-bit float.
const FP4_SQUARE: f64 = 8.5625;
/// The mean square of the 8-bit floats with an even bit pattern. No NaN has an even bit pattern.
const FP8_SQUARE: f64 = 10752.000;

impl Llama {
    /// Makes a model with random weights for a configuration without a checkpoint. The model is as
    /// large and as fast as a real model, but generates nonsense. Packed matrices are drawn in
    /// packed form, so a 4-bit model never takes the memory of its float weights.
    ///
    /// `dtype` is the type of the activations: float32, float16 or bfloat16. `quantization`
    /// replaces the quantization in the configuration. Matrices whose row length is not a multiple
    /// of the group size and of 32 (256 for K-quants) stay floats. Equal seeds draw equal models.
    ///
    /// # Errors
    ///
    /// Returns an error for another type, for a quantization that MLX does not have, and for
    /// weights that need more bytes than [`memory_limit`](memory::memory_limit).
    ///
    /// ```
    /// use mlx_primitives_llama::{Config, Llama, Options, Quantization};
    /// use mlx_primitives::Dtype;
    ///
    /// let config = Config::parse(
    ///     r#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
    ///         "intermediate_size": 128, "num_attention_heads": 2, "rms_norm_eps": 1e-5,
    ///         "vocab_size": 96}"#,
    /// )?;
    /// let four_bits = Some(Quantization::affine(32, 4));
    /// let llama = Llama::random(config, Dtype::Float16, four_bits, 0)?;
    /// let options = Options { max_tokens: 5, ..Options::default() };
    /// assert_eq!(llama.generate(&[1, 2, 3], &options)?.count(), 5);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn random(
        config: Config,
        dtype: Dtype,
        quantization: Option<Quantization>,
        seed: u64,
    ) -> Result<Self> {
        Self::random_part(config, dtype, quantization, seed, |_, weights| Ok(weights))
    }

    /// Makes only this process's part of a model with random weights, like
    /// [`random`](Self::random). `hold` selects the part with [`Weights::held_by`].
    ///
    /// # Errors
    ///
    /// Returns the errors of [`random`](Self::random) and of `hold`.
    pub fn random_part(
        mut config: Config,
        dtype: Dtype,
        quantization: Option<Quantization>,
        seed: u64,
        hold: impl FnOnce(&Config, Weights) -> Result<Weights>,
    ) -> Result<Self> {
        if !matches!(dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16) {
            return Err(Error::argument(
                "random",
                format_args!("float32, float16 or bfloat16, got {dtype}"),
            ));
        }
        if let Some(to) = quantization {
            config.quantization = Some(to.to_json());
        }
        let packed = config.quantization_of("")?;
        let bytes = estimate(&config, dtype, packed, CacheKind::Plain, 1, 0)?.weights;
        if bytes > memory::memory_limit() as u64 {
            return Err(Error::argument(
                "random",
                format_args!(
                    "weights within the memory limit of {} bytes, got {bytes}",
                    memory::memory_limit()
                ),
            ));
        }
        let source = RandomWeights { state: seed, dtype };
        // `assemble` draws and evaluates the weights layer by layer, in the order in which it would
        // read a checkpoint.
        let weights = hold(&config, Weights::made_by(source))?;
        Self::assemble(config, weights, Some(&mut |_| {}))
    }
}

/// A source of random tensors, which takes the place of a checkpoint.
struct RandomWeights {
    state: u64,
    dtype: Dtype,
}

impl WeightSource for RandomWeights {
    /// Returns ones for a norm, and small random elements for other tensors.
    fn tensor(&mut self, name: &str, shape: &[i32]) -> Result<Array> {
        if shape.len() == 1 && name.ends_with("norm.weight") {
            return Array::full(shape, 1.0f32)?.astype(self.dtype);
        }
        self.floats(shape, 0..shape.first().copied().unwrap_or(0))
    }

    /// Draws a matrix whose elements have a variance of about 1 / inputs, so that products keep the
    /// magnitude of the activations.
    fn matrix(
        &mut self,
        [outputs, inputs]: [i32; 2],
        rows: Range<i32>,
        quantized: Option<Quantization>,
    ) -> Result<LinearWeight> {
        let Some(Quantization { group_size, bits, mode }) =
            quantized.filter(|to| to.divides(inputs))
        else {
            return self.floats(&[outputs, inputs], rows).map(LinearWeight::Plain);
        };
        let words = inputs / 32 * bits;
        let groups = [rows.end - rows.start, inputs / group_size];
        let drawn = if mode == QuantizedMode::Mxfp8 { 0xfefe_fefe } else { u32::MAX };
        let packed = self.words([outputs, words], rows, drawn)?;
        let variance = 1.0 / f64::from(inputs);
        let top = f64::from((1u32 << bits.clamp(1, 8)) - 1);
        let scale = (12.0 * variance / (top * (top + 2.0))).sqrt();
        let (scales, biases) = match mode {
            QuantizedMode::KQuant => {
                let blocks = groups[0] * (inputs / 256);
                let scales = k_quant_block(bits, scale, top).repeat(blocks.unsigned_abs() as usize);
                (Array::from_slice(&scales, [groups[0], inputs / 256 * 20])?, None)
            }
            QuantizedMode::Affine => {
                let fill = |value: f64| Array::full(groups, value as f32)?.astype(self.dtype);
                (fill(scale)?, Some(fill(-scale * top / 2.0)?))
            }
            mode => {
                let square = if mode == QuantizedMode::Mxfp8 { FP8_SQUARE } else { FP4_SQUARE };
                let exponent = (variance / square).sqrt().log2().round();
                let scale = match mode {
                    QuantizedMode::Nvfp4 if exponent < -6.0 => (exponent + 9.0).max(0.0).exp2(),
                    QuantizedMode::Nvfp4 => 8.0 * (exponent + 7.0),
                    _ => exponent + 127.0,
                };
                (Array::full(groups, scale.clamp(0.0, 254.0) as u8)?, None)
            }
        };
        // `full` returns lazy arrays. They are evaluated here, so that the first step of the model
        // does not compute them.
        mlx_primitives::eval([&scales].into_iter().chain(&biases))?;
        QuantizedWeight::new(packed, scales, biases, group_size, bits, mode)
            .map(LinearWeight::Quantized)
    }
}

/// Makes the scales of one K-quants block. Each group has the scale `scale`, and the middle of the
/// group's range stands for zero.
fn k_quant_block(bits: i32, scale: f64, top: f64) -> [u8; 20] {
    const INTEGER: u8 = 8; // each group's scale; the float16 factor is then not subnormal
    let mut block = [if bits == 6 { 128 + INTEGER } else { INTEGER }; 20];
    let steps = [scale, if bits == 6 { 0.0 } else { -scale * top / 2.0 }];
    for (to, step) in block.chunks_exact_mut(2).zip(steps) {
        to.copy_from_slice(&half::f16::from_f64(step / f64::from(INTEGER)).to_le_bytes());
    }
    block
}

impl RandomWeights {
    /// Returns the next 64 random bits of the generator SplitMix64
    /// ([Steele et al. 2014](https://doi.org/10.1145/2660193.2660195)).
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws the rows `rows` of an array of words. The bits in the mask `drawn` are random, and the
    /// other bits are 0.
    fn words(&mut self, shape: [i32; 2], rows: Range<i32>, drawn: u32) -> Result<Array> {
        let numbers =
            self.numbers(&shape, &rows, |bits| [bits as u32 & drawn, (bits >> 32) as u32 & drawn])?;
        Array::from_slice(&numbers, [rows.end - rows.start, shape[1]])
    }

    /// Draws the rows `rows` of a float array of the type `self.dtype`. `floats_of` describes the
    /// distribution.
    fn floats(&mut self, shape: &[i32], rows: Range<i32>) -> Result<Array> {
        match self.dtype {
            Dtype::Float16 => self.floats_of::<half::f16>(shape, rows),
            Dtype::Bfloat16 => self.floats_of::<half::bf16>(shape, rows),
            _ => self.floats_of::<f32>(shape, rows),
        }
    }

    /// Draws uniformly distributed elements with the variance 1 / inputs.
    fn floats_of<T: Element>(&mut self, shape: &[i32], rows: Range<i32>) -> Result<Array> {
        let inputs = f64::from(shape.last().copied().unwrap_or(1).max(1));
        let (bound, middle) = ((3.0 / inputs).sqrt(), (LEVELS - 1) as f64 / 2.0);
        let levels: Vec<T> =
            (0..LEVELS).map(|level| T::from_f64((level as f64 / middle - 1.0) * bound)).collect();
        let level = |place: usize| levels.get(place).copied().unwrap_or(T::from_f64(0.0));
        let numbers = self.numbers(shape, &rows, |bits| {
            [0, 12, 24, 36, 48].map(|shift| level((bits >> shift) as usize % LEVELS))
        })?;
        let mut shape = shape.to_vec();
        if let Some(first) = shape.first_mut() {
            *first = rows.end - rows.start;
        }
        Array::from_slice(&numbers, &shape)
    }

    /// Draws the rows `rows` of an array. Each 64 random bits give the next `N` elements. The
    /// random bits of all rows are drawn, so the elements of a row do not depend on which rows are
    /// requested.
    fn numbers<T: Copy, const N: usize>(
        &mut self,
        shape: &[i32],
        rows: &Range<i32>,
        numbers: impl Fn(u64) -> [T; N],
    ) -> Result<Vec<T>> {
        let all = count(shape)?;
        let row = count(shape.get(1..).unwrap_or_default())?;
        let wanted =
            rows.start.unsigned_abs() as usize * row..rows.end.unsigned_abs() as usize * row;
        let mut drawn = Vec::with_capacity(wanted.len());
        for start in (0..all).step_by(N) {
            let bits = self.next();
            let end = (start + N).min(all);
            if start >= wanted.start && end <= wanted.end {
                drawn.extend(numbers(bits).into_iter().take(end - start));
            } else if start < wanted.end && end > wanted.start {
                let numbers = (start..end).zip(numbers(bits));
                drawn.extend(numbers.filter(|(at, _)| wanted.contains(at)).map(|(_, n)| n));
            }
        }
        Ok(drawn)
    }
}

fn count(shape: &[i32]) -> Result<usize> {
    let elements =
        shape.iter().try_fold(1usize, |size, &dim| size.checked_mul(usize::try_from(dim).ok()?));
    elements.ok_or_else(|| Error::argument("random", format_args!("a shape, got {shape:?}")))
}
