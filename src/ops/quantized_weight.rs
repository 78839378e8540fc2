use super::quantize::{CpuActivations, QuantizedMode, dequantize_rows};
use crate::array::{Array, from_list, select, to_list};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ffi::ops::bridge as ffi;

/// A matrix `[n, k]` in MLX's packed layout, the layout of `mx.quantize` and of mlx-lm's
/// checkpoints.
///
/// `packed` is uint32 `[n, k * bits / 32]`, lowest bits first. In the mode
/// [`QuantizedMode::Affine`], `scales` and `biases` are `[n, k / group_size]` of a floating type.
/// In the other modes the scales are uint8 and there are no biases. The scales of
/// [`QuantizedMode::KQuant`] are `[n, k / 256 * 20]`. Cloning shares the arrays.
#[derive(Clone)]
pub struct QuantizedWeight {
    packed: Array,
    scales: Array,
    biases: Option<Array>,
    group_size: i32,
    bits: i32,
    mode: QuantizedMode,
    pub(super) activations: CpuActivations,
    pub(super) centered: bool,
}

impl QuantizedWeight {
    /// A matrix `[n, k]` from its parts. [`QuantizedWeight`] states their shapes and types.
    ///
    /// # Errors
    ///
    /// Returns an error if the mode does not have this group size or number of bits, or if a part
    /// has another shape or type.
    pub fn new(
        packed: Array,
        scales: Array,
        biases: Option<Array>,
        group_size: i32,
        bits: i32,
        mode: QuantizedMode,
    ) -> Result<Self> {
        let weight = Self::for_products(packed, scales, biases, group_size, bits, mode)?;
        ffi::check_quantized(&to_list(weight.arrays()), &weight.layout())?;
        Ok(weight)
    }

    /// Like [`QuantizedWeight::new`], but does not check the shapes and types. Use the matrix in
    /// products only, because the products check the shapes and types.
    #[doc(hidden)]
    pub fn for_products(
        packed: Array,
        scales: Array,
        biases: Option<Array>,
        group_size: i32,
        bits: i32,
        mode: QuantizedMode,
    ) -> Result<Self> {
        if biases.is_some() != (mode == QuantizedMode::Affine) {
            let expected = format_args!("biases for affine and for no other mode, got {mode:?}");
            return Err(Error::argument("quantized_weight", expected));
        }
        let activations = CpuActivations::default();
        Ok(Self { packed, scales, biases, group_size, bits, mode, activations, centered: false })
    }

    /// Sets how products round `x` on a CPU. The setting applies to
    /// [`quantized_linear`](crate::ops::quantized_linear),
    /// [`quantized_linears`](crate::ops::quantized_linears) and
    /// [`quantized_swiglu`](crate::ops::quantized_swiglu). If an op has several weights, the
    /// setting of the first weight applies.
    ///
    /// ```
    /// use mlx_primitives::Array;
    /// use mlx_primitives::ops::{self, CpuActivations, QuantizedMode, QuantizedWeight};
    ///
    /// let w = Array::from_slice(&[0.5f32; 128], &[2, 64])?;
    /// let w = QuantizedWeight::quantize(&w, 64, 4, QuantizedMode::Affine)?;
    /// let x = Array::from_slice(&[1.0f32; 16 * 64], &[16, 64])?;
    /// let w = w.with_activations(CpuActivations::Int8);
    /// let y = ops::quantized_linear(&x, &w, Default::default())?;
    /// assert!((y.max(..)?.item::<f32>()? - 32.0).abs() < 0.5);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    #[must_use]
    pub fn with_activations(self, activations: CpuActivations) -> Self {
        Self { activations, ..self }
    }

    /// States that each bias equals the scale times `-2^(bits - 1)`, in the type of the scales.
    /// On a CPU, [`quantized_linear`](crate::ops::quantized_linear),
    /// [`quantized_linears`](crate::ops::quantized_linears) and
    /// [`quantized_swiglu`](crate::ops::quantized_swiglu) of few rows then do not read the biases,
    /// if all their weights state this. Their results have the bits that they would have with these
    /// biases, unless a bias is too large for the type.
    #[doc(hidden)]
    #[must_use]
    pub fn with_centered_codes(self) -> Self {
        Self { centered: self.mode == QuantizedMode::Affine, ..self }
    }

    /// Whether the scales determine the biases, as
    /// [`with_centered_codes`](Self::with_centered_codes) states.
    #[doc(hidden)]
    pub fn has_centered_codes(&self) -> bool {
        self.centered
    }

    /// Quantizes a matrix `[n, k]` with `mx.quantize`; k is a multiple of the group size.
    ///
    /// # Errors
    ///
    /// Returns an error if `w` is not a matrix of a floating type, `k` is not a multiple of the
    /// group size, or the mode does not have these bits or this group size.
    ///
    /// ```
    /// use mlx_primitives::Array;
    /// use mlx_primitives::ops::{QuantizedMode, QuantizedWeight};
    ///
    /// let w = Array::from_slice(&[0.5f32; 128], &[2, 64])?;
    /// let quantized = QuantizedWeight::quantize(&w, 64, 4, QuantizedMode::Affine)?;
    /// assert_eq!(quantized.packed().shape(), [2, 8]);
    /// assert_eq!(quantized.dequantize()?.to_vec::<f32>()?, [0.5; 128]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn quantize(w: &Array, group_size: i32, bits: i32, mode: QuantizedMode) -> Result<Self> {
        if w.ndim() != 2 {
            let got = format!("a matrix, got shape {:?}", w.shape());
            return Err(Error::argument("quantized_weight", got));
        }
        let layout = layout(group_size, bits, mode);
        let mut parts = from_list(&*ffi::pack_matrix(w.raw(), &layout)?).into_iter();
        let mut next = || {
            parts.next().ok_or_else(|| Error::argument("quantized_weight", "all parts of a result"))
        };
        let (packed, scales) = (next()?, next()?);
        let biases = if mode == QuantizedMode::Affine { Some(next()?) } else { None };
        Self::new(packed, scales, biases, group_size, bits, mode)
    }

    /// Unpacks the matrix `[n, k]`. The result has the type of the scales, or bfloat16 if the
    /// scales are bytes. K-quants become float32, so that their scales lose no bits.
    ///
    /// # Errors
    ///
    /// Returns an error if MLX refuses the parts. This cannot happen if [`QuantizedWeight::new`]
    /// checked them.
    pub fn dequantize(&self) -> Result<Array> {
        self.dequantize_to(self.dtype())
    }

    /// Unpacks the matrix `[n, k]` to an array of the type `dtype`.
    ///
    /// # Errors
    ///
    /// Returns an error if `dtype` is not a floating type.
    pub fn dequantize_to(&self, dtype: Dtype) -> Result<Array> {
        let list = to_list(self.arrays());
        Array::from_bridge(ffi::unpack_matrix(&list, &self.layout(), dtype.into()))
    }

    /// Unpacks the rows with the indices `ids`, an array `[...]` of integers, to `[..., k]` of the
    /// type `dtype`. This is the lookup of an embedding. Indices are as for [`Array::take`].
    ///
    /// # Errors
    ///
    /// Returns an error if the type of `ids` is not an integer, or `dtype` is not a floating type.
    pub fn take_rows(&self, ids: &Array, dtype: Dtype) -> Result<Array> {
        let parts: Vec<&Array> = self.arrays().collect();
        if let [packed, scales, biases] = parts.as_slice()
            && [scales.dtype(), biases.dtype()] == [dtype; 2]
        {
            // One node replaces the many nodes that MLX needs on a CPU. The result has the same
            // bits.
            let ids = self.row_numbers(ids)?;
            return dequantize_rows(packed, scales, biases, &ids, self.group_size, self.bits);
        }
        let taken: Vec<Array> =
            parts.into_iter().map(|part| part.take(ids, 0)).collect::<Result<_>>()?;
        let list = to_list(&taken);
        Array::from_bridge(ffi::unpack_matrix(&list, &self.layout(), dtype.into()))
    }

    /// Converts indices to uint32, and negative indices to row numbers. An index outside the matrix
    /// becomes the nearest row, except in uint32, where the kernel takes the last row for it.
    fn row_numbers(&self, ids: &Array) -> Result<Array> {
        if ids.dtype() == Dtype::Uint32 {
            return Ok(ids.clone());
        }
        let ids = self.packed.in_bounds("take_rows", ids, 0)?;
        match ids.dtype() {
            Dtype::Uint32 => Ok(ids),
            _ => select(&ids.less(0)?, &ids.add(self.outputs())?, &ids)?.astype(Dtype::Uint32),
        }
    }

    /// The type of the matrix that [`dequantize`](Self::dequantize) returns.
    pub(crate) fn dtype(&self) -> Dtype {
        match self.mode {
            QuantizedMode::Affine => self.scales.dtype(),
            QuantizedMode::KQuant => Dtype::Float32,
            _ => Dtype::Bfloat16,
        }
    }

    /// The number of rows `n`, which is the length of a product with one row of `x`.
    pub fn outputs(&self) -> i32 {
        self.packed.shape().first().copied().unwrap_or(0)
    }

    /// The number of columns `k`, which is the length of a row of `x`.
    pub fn inputs(&self) -> i32 {
        let words = self.packed.shape().last().copied().unwrap_or(0);
        words * 32 / self.bits
    }

    /// The packed integers, uint32 `[n, k * bits / 32]`.
    pub fn packed(&self) -> &Array {
        &self.packed
    }

    /// The scales of the groups, `[n, k / group_size]`. For K-quants: the scales of the blocks of
    /// 256 weights, `[n, k / 256 * 20]`.
    pub fn scales(&self) -> &Array {
        &self.scales
    }

    /// The biases of the groups, `[n, k / group_size]`. Returns `None` if the mode is not affine.
    pub fn biases(&self) -> Option<&Array> {
        self.biases.as_ref()
    }

    /// The number of weights that share a scale.
    pub fn group_size(&self) -> i32 {
        self.group_size
    }

    /// The bits of a packed weight.
    pub fn bits(&self) -> i32 {
        self.bits
    }

    /// The formula that turns packed integers into numbers.
    pub fn mode(&self) -> QuantizedMode {
        self.mode
    }

    /// Whether a CPU with the kernels in use rounds activations for these weights, if
    /// [`CpuActivations::Int8`] is selected. It does not for 8-bit floats, and not for integers of
    /// eight bits if the kernels are `avx512` or `avx2`.
    ///
    /// ```
    /// use mlx_primitives::ops::{QuantizedMode, QuantizedWeight};
    /// use mlx_primitives::{Array, device};
    ///
    /// let w = Array::from_slice(&[0.5f32; 64], &[2, 32])?;
    /// let four = QuantizedWeight::quantize(&w, 32, 4, QuantizedMode::Affine)?;
    /// assert_eq!(four.can_round_activations(), device::cpu_multiplies_bytes());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn can_round_activations(&self) -> bool {
        let bits = self.bits.unsigned_abs();
        self.mode != QuantizedMode::Mxfp8 && mlx_primitives_kernels::multiplies_bytes(bits)
    }

    /// The bytes that the arrays take.
    pub fn nbytes(&self) -> usize {
        self.arrays().map(Array::nbytes).sum()
    }

    /// The matrix with `f` applied to each of its arrays. `f` must not change the values of the
    /// array, except by a conversion to another floating type.
    #[doc(hidden)]
    pub fn map_arrays(&self, mut f: impl FnMut(&Array) -> Result<Array>) -> Result<Self> {
        let (packed, scales) = (f(&self.packed)?, f(&self.scales)?);
        let biases = self.biases.as_ref().map(f).transpose()?;
        Ok(Self { packed, scales, biases, ..self.clone() })
    }

    #[doc(hidden)]
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        [&self.packed, &self.scales].into_iter().chain(&self.biases)
    }

    pub(crate) fn layout(&self) -> ffi::QuantizedLayout {
        layout(self.group_size, self.bits, self.mode)
    }

    /// The name of the format. It is part of the names of ops in [`tune`](crate::tune).
    pub(crate) fn format_name(&self) -> &'static str {
        match (self.mode, self.bits) {
            (QuantizedMode::Affine, 2) => "2 bits",
            (QuantizedMode::Affine, 3) => "3 bits",
            (QuantizedMode::Affine, 4) => "4 bits",
            (QuantizedMode::Affine, 5) => "5 bits",
            (QuantizedMode::Affine, 6) => "6 bits",
            (QuantizedMode::Affine, _) => "8 bits",
            (QuantizedMode::KQuant, 4) => "k_quant of 4 bits",
            (QuantizedMode::KQuant, 5) => "k_quant of 5 bits",
            (QuantizedMode::KQuant, _) => "k_quant of 6 bits",
            (mode, _) => mode.name(),
        }
    }

    pub(super) fn format(&self) -> (i32, i32, QuantizedMode) {
        (self.group_size, self.bits, self.mode)
    }
}

fn layout(group_size: i32, bits: i32, mode: QuantizedMode) -> ffi::QuantizedLayout {
    ffi::QuantizedLayout { group_size, bits, mode: mode.raw() }
}
