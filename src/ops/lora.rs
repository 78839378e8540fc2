use super::{Linear, QuantizedLinear, QuantizedMode, QuantizedWeight};
use super::{linear, matmul, matmul_nt, quantized_linear, sum_of_squares};
use crate::array::{Array, to_list};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ffi::ops::bridge as ffi;
use crate::random;
use crate::tune::{chosen, rows};

/// The matrix `[n, k]` of a linear layer.
#[derive(Clone)]
pub enum LinearWeight {
    /// An array `[n, k]` of a floating-point type.
    Plain(Array),
    /// A packed matrix.
    Quantized(QuantizedWeight),
}

impl From<Array> for LinearWeight {
    fn from(weight: Array) -> Self {
        Self::Plain(weight)
    }
}

impl From<&Array> for LinearWeight {
    fn from(weight: &Array) -> Self {
        Self::Plain(weight.clone())
    }
}

impl From<QuantizedWeight> for LinearWeight {
    fn from(weight: QuantizedWeight) -> Self {
        Self::Quantized(weight)
    }
}

impl From<&QuantizedWeight> for LinearWeight {
    fn from(weight: &QuantizedWeight) -> Self {
        Self::Quantized(weight.clone())
    }
}

impl LinearWeight {
    /// The arrays of the matrix: either the matrix itself, or the packed integers, the scales and,
    /// in affine mode, the biases.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        let (plain, packed) = match self {
            Self::Plain(rows) => (Some(rows), None),
            Self::Quantized(rows) => (None, Some(rows.arrays())),
        };
        plain.into_iter().chain(packed.into_iter().flatten())
    }

    /// The matrix with `f` applied to each of its arrays. `f` must not change the values of the
    /// array.
    #[doc(hidden)]
    pub fn map_arrays(&self, mut f: impl FnMut(&Array) -> Result<Array>) -> Result<Self> {
        match self {
            Self::Plain(rows) => f(rows).map(Self::Plain),
            Self::Quantized(rows) => rows.map_arrays(f).map(Self::Quantized),
        }
    }

    /// The number of outputs and the number of inputs: `[n, k]`.
    ///
    /// # Errors
    ///
    /// Returns an error if a plain weight is not a matrix.
    pub fn shape(&self) -> Result<[i32; 2]> {
        match self {
            Self::Plain(rows) => Ok([rows.dim(0)?, rows.dim(1)?]),
            Self::Quantized(rows) => Ok([rows.outputs(), rows.inputs()]),
        }
    }

    /// The type of the matrix's numbers. For a packed weight it is the type of the scales in affine
    /// mode, float32 for K-quants, and bfloat16 in the other modes.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::Plain(rows) => rows.dtype(),
            Self::Quantized(rows) => rows.dtype(),
        }
    }

    /// The product `x · Wᵀ`, of shape `[..., n]`, for an `x` of shape `[..., k]`.
    ///
    /// # Errors
    ///
    /// Returns an error if [`linear`] or [`quantized_linear`] refuses `x`.
    pub fn apply(&self, x: &Array) -> Result<Array> {
        match self {
            Self::Plain(rows) => linear(x, rows, Linear::default()),
            Self::Quantized(rows) => quantized_linear(x, rows, QuantizedLinear::default()),
        }
    }

    /// The sum of the squares of each row: a float32 vector `[n]`.
    ///
    /// # Errors
    ///
    /// Returns an error if a plain weight is not a matrix of a floating type.
    pub fn row_squares(&self) -> Result<Array> {
        sum_of_squares(&self.rows()?.astype(Dtype::Float32)?, -1)
    }

    /// The matrix `[n, k]`, unpacked.
    fn rows(&self) -> Result<Array> {
        match self {
            Self::Plain(rows) => Ok(rows.clone()),
            Self::Quantized(rows) => rows.dequantize(),
        }
    }
}

/// A linear layer with a low-rank update ([Hu et al. 2021](https://arxiv.org/abs/2106.09685)):
/// `x · Wᵀ + scale · (x · Aᵀ) · Bᵀ`, in one node of the graph.
///
/// `x` is `[..., k]`, the weight `base` is `[n, k]`, `a` is `[rank, k]` and `b` is `[n, rank]`. The
/// result is `[..., n]`, of the type that all arrays promote to. Products accumulate in float32.
/// The three products, the scaling and the sum are each rounded to the result's type, as separate
/// ops would do. The values of other rows do not change a bit of a row's result. Their number may,
/// unless [`RowOrder`](super::RowOrder) fixes the order of additions. [`Lora`] takes the matrices
/// in the layout of mlx-lm.
///
/// Differentiable in `x`, `a` and `b`, and in a plain base. If the base is frozen, no gradient of
/// the base is computed.
///
/// # Cost
///
/// Three kernels move `m k + r k + n r + n k + m n + 2 m r` elements for m rows, rank r and a plain
/// base, and compute `2 m (k n + k r + n r)` operations. The gradients keep the inputs in memory,
/// but no product. Only the gradient in `x` reads the base.
///
/// # Errors
///
/// Returns an error if the shapes do not fit together, or a type is not float32, float16 or
/// bfloat16.
///
/// ```
/// use mlx_primitives::{Array, ops};
///
/// let x = Array::from_slice(&[1.0f32, 2.0], &[1, 2])?;
/// let w = Array::from_slice(&[1.0f32, 0.0, 0.0, 1.0, 1.0, 1.0], &[3, 2])?;
/// let a = Array::from_slice(&[1.0f32, 1.0], &[1, 2])?;
/// let b = Array::from_slice(&[1.0f32, 0.0, -1.0], &[3, 1])?;
/// let y = ops::lora_linear(&x, &(&w).into(), &a, &b, 2.0)?;
/// assert_eq!(y.to_vec::<f32>()?, [7.0, 2.0, -3.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn lora_linear(
    x: &Array,
    base: &LinearWeight,
    a: &Array,
    b: &Array,
    scale: f32,
) -> Result<Array> {
    let (arrays, layout) = match base {
        LinearWeight::Plain(weight) => (to_list([weight]), None),
        LinearWeight::Quantized(weight) => (to_list(weight.arrays()), Some(weight.layout())),
    };
    let layout = layout.as_ref().map_or(std::ptr::null(), |layout| layout as *const _);
    // SAFETY: the pointer is null or belongs to a value that outlives the call.
    let built = unsafe { ffi::lora_linear(x.raw(), &arrays, layout, a.raw(), b.raw(), scale) };
    match base {
        LinearWeight::Plain(_) => chosen("lora_linear", || rows(x), built),
        LinearWeight::Quantized(weight) => {
            chosen(format_args!("lora_linear, {}", weight.format_name()), || rows(x), built)
        }
    }
}

/// A low-rank update `scale · B · A` of the weight `W`, `[n, k]`, of a linear layer. It may have
/// magnitudes: norms to which the rows of `W + scale · B · A` are scaled (DoRA, [Liu et al.
/// 2024](https://arxiv.org/abs/2402.09353)).
#[derive(Clone, Debug)]
pub struct Lora {
    a: Array,
    b: Array,
    scale: f32,
    magnitude: Option<Array>,
}

impl Lora {
    /// An update from `a`, `[rank, k]`, and `b`, `[n, rank]`: the layout of the paper and of PEFT.
    ///
    /// # Errors
    ///
    /// Returns an error if `a` or `b` is not a matrix, or their ranks differ.
    pub fn new(a: Array, b: Array, scale: f32) -> Result<Self> {
        match (a.shape(), b.shape()) {
            (&[rank, _], &[_, same]) if rank == same => Ok(Self { a, b, scale, magnitude: None }),
            (of_a, of_b) => Err(Error::argument(
                "lora",
                format_args!("a of shape [rank, k] and b of [n, rank], got {of_a:?} and {of_b:?}"),
            )),
        }
    }

    /// Adds magnitudes to the update: norms `[n]` to which the rows of `W + scale · B · A` are
    /// scaled.
    ///
    /// # Errors
    ///
    /// Returns an error if `magnitude` has another shape.
    pub fn with_magnitude(self, magnitude: Array) -> Result<Self> {
        if magnitude.shape() != &self.b.shape()[..1] {
            let got = (magnitude.shape(), self.b.shape());
            let expected = format_args!("a magnitude [n] beside b [n, rank], got {got:?}");
            return Err(Error::argument("lora", expected));
        }
        Ok(Self { magnitude: Some(magnitude), ..self })
    }

    /// An update from `lora_a`, `[k, rank]`, and `lora_b`, `[rank, n]`: the layout of mlx-lm's
    /// adapters.
    ///
    /// # Errors
    ///
    /// Returns an error if `lora_a` or `lora_b` is not a matrix, or their ranks differ.
    pub fn from_mlx_lm(lora_a: &Array, lora_b: &Array, scale: f32) -> Result<Self> {
        Self::new(lora_a.t()?.contiguous()?, lora_b.t()?.contiguous()?, scale)
    }

    /// An initial update of a layer `[n, k]`. It changes nothing, because `b` is zero. `a` is drawn
    /// uniformly from the range ±1 / √k, with the thread's random generator. Both matrices are
    /// float32.
    ///
    /// # Errors
    ///
    /// Returns an error if the rank or an extent is less than 1.
    pub fn initial([outputs, inputs]: [i32; 2], rank: i32, scale: f32) -> Result<Self> {
        if rank < 1 || outputs < 1 || inputs < 1 {
            return Err(Error::argument(
                "lora",
                format_args!("a rank and extents above 0, got {rank} for [{outputs}, {inputs}]"),
            ));
        }
        let bound = 1.0 / (inputs as f32).sqrt();
        let a = random::uniform::<f32>(-bound, bound, &[rank, inputs], None)?;
        Self::new(a, Array::zeros::<f32>(&[outputs, rank])?, scale)
    }

    /// The matrix A, `[rank, k]`.
    pub fn a(&self) -> &Array {
        &self.a
    }

    /// The matrix B, `[n, rank]`.
    pub fn b(&self) -> &Array {
        &self.b
    }

    /// The factor of the product `B · A`.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// The magnitudes `[n]` that [`with_magnitude`](Self::with_magnitude) added, if there are any.
    pub fn magnitude(&self) -> Option<&Array> {
        self.magnitude.as_ref()
    }

    /// Returns `lora_a`, `[k, rank]`, and `lora_b`, `[rank, n]`: the layout of mlx-lm's adapters.
    ///
    /// # Errors
    ///
    /// Returns an error if MLX refuses to transpose the matrices, which does not happen after
    /// [`Lora::new`].
    pub fn to_mlx_lm(&self) -> Result<[Array; 2]> {
        Ok([self.a.t()?.contiguous()?, self.b.t()?.contiguous()?])
    }

    /// The update with both matrices converted to `dtype`. If that is the type of the layer's
    /// input, [`apply`](Self::apply) need not convert the base.
    ///
    /// # Errors
    ///
    /// Returns an error if MLX does not convert the matrices to `dtype`.
    pub fn astype(&self, dtype: Dtype) -> Result<Self> {
        let magnitude = self.magnitude.clone();
        Ok(Self {
            magnitude,
            ..Self::new(self.a.astype(dtype)?, self.b.astype(dtype)?, self.scale)?
        })
    }

    /// [`lora_linear`] with this update. The result is multiplied by
    /// [`row_factors`](Self::row_factors), if there are any.
    ///
    /// # Errors
    ///
    /// Returns an error if [`lora_linear`] refuses the arrays because the shapes or types of `x`,
    /// `base` and the update do not fit together.
    pub fn apply(&self, x: &Array, base: &LinearWeight) -> Result<Array> {
        let y = lora_linear(x, base, &self.a, &self.b, self.scale)?;
        match self.row_factors(base, None)? {
            Some(factors) => y.multiply(factors.astype(y.dtype())?),
            None => Ok(y),
        }
    }

    /// The factors `[n]` for the rows of `W + scale · B · A`: the magnitudes divided by the norms
    /// of these rows. Returns `None` if there are no magnitudes. Gradients treat the norms as
    /// constants. `squares` are the [`row_squares`](LinearWeight::row_squares) of `base`, if they
    /// are known.
    ///
    /// # Errors
    ///
    /// Returns an error if the shape of the update does not fit `base`.
    ///
    /// ```
    /// use mlx_primitives::Array;
    /// use mlx_primitives::ops::{LinearWeight, Lora};
    ///
    /// let base = LinearWeight::from(Array::from_slice(&[3.0f32, 0.0, 0.0, 1.0], &[2, 2])?);
    /// let [a, b] = [Array::from_slice(&[0.0f32, 2.0], &[1, 2])?, Array::ones::<f32>(&[2, 1])?];
    /// let lora = Lora::new(a, b, 2.0)?.with_magnitude(Array::from_slice(&[10.0f32, 1.0], &[2])?)?;
    /// assert_eq!(lora.row_factors(&base, None)?.unwrap().to_vec::<f32>()?, [2.0, 0.2]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn row_factors(
        &self,
        base: &LinearWeight,
        squares: Option<&Array>,
    ) -> Result<Option<Array>> {
        let Some(magnitude) = &self.magnitude else { return Ok(None) };
        let squares = squares.map_or_else(|| base.row_squares(), |it| Ok(it.clone()))?;
        // |w + s·b·A|² is |w|² + s·b·(2·A·w + s·A·Aᵀ·b). So only the product of A and the base is
        // needed.
        let met = match base {
            LinearWeight::Plain(w) => base.apply(&self.a.astype(w.dtype())?)?,
            LinearWeight::Quantized(_) => base.apply(&self.a)?,
        };
        let met = met.astype(Dtype::Float32)?;
        let [a, b] = [self.a.astype(Dtype::Float32)?, self.b.astype(Dtype::Float32)?];
        let among = matmul(&b, &matmul_nt(&a, &a)?)?.multiply(self.scale)?;
        let changed = b.multiply(met.t()?.multiply(2.0)?.add(among)?)?.sum(-1)?;
        // The lower bound avoids a division by zero for a row of zeros.
        let norms = squares.add(changed.multiply(self.scale)?)?.maximum(1e-30)?.sqrt()?;
        magnitude.divide(norms.stop_gradient()?).map(Some)
    }

    /// Returns `W + scale · B · A`, in the type and format of W. If there are magnitudes, the rows
    /// are scaled to them. A packed W is quantized again, which rounds the sum. K-quants become
    /// affine weights in groups of 32, and K-quants of 6 bits become 8-bit weights.
    ///
    /// # Errors
    ///
    /// Returns an error if the shape of the update does not fit `base`, or `base` cannot be
    /// quantized again.
    pub fn merge(&self, base: &LinearWeight) -> Result<LinearWeight> {
        self.moved(base, self.scale)
    }

    /// Returns `W - scale · B · A`: undoes [`merge`](Self::merge), except for rounding.
    ///
    /// # Errors
    ///
    /// Returns an error if the shape of the update does not fit `base`, if `base` cannot be
    /// quantized again, or if the update has magnitudes: they replaced the original norms of the
    /// rows.
    pub fn unmerge(&self, base: &LinearWeight) -> Result<LinearWeight> {
        match self.magnitude {
            Some(_) => Err(Error::argument("lora", "an update without magnitudes to undo")),
            None => self.moved(base, -self.scale),
        }
    }

    fn moved(&self, base: &LinearWeight, scale: f32) -> Result<LinearWeight> {
        let plain = base.rows()?;
        let scaled = self.b.multiply(Array::scalar(scale)?.astype(self.b.dtype())?)?;
        let update = matmul(&scaled, &self.a)?.astype(plain.dtype())?;
        let mut merged = plain.add(&update)?;
        if let Some(magnitude) = &self.magnitude {
            let squares = LinearWeight::from(&merged).row_squares()?;
            let factors = magnitude.divide(squares.maximum(1e-30)?.sqrt()?)?.expand_dims(-1)?;
            merged = merged.multiply(factors)?.astype(plain.dtype())?;
        }
        Ok(match base {
            LinearWeight::Plain(_) => LinearWeight::Plain(merged),
            LinearWeight::Quantized(weight) => {
                let (group, bits, mode) = match weight.mode() {
                    QuantizedMode::KQuant if weight.bits() == 6 => (32, 8, QuantizedMode::Affine),
                    QuantizedMode::KQuant => (32, weight.bits(), QuantizedMode::Affine),
                    mode => (weight.group_size(), weight.bits(), mode),
                };
                QuantizedWeight::quantize(&merged, group, bits, mode)?.into()
            }
        })
    }
}
