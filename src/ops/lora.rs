use super::{QuantizedMode, QuantizedWeight, matmul};
use crate::array::{Array, to_list};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::ffi::ops::bridge as ffi;
use crate::random;
use crate::tune::{chosen, rows};

/// The frozen matrix `[n, k]` of a linear layer.
#[derive(Clone)]
pub enum LinearWeight {
    /// An array `[n, k]` of a floating type.
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
    /// The arrays of the matrix: its rows, or the packed codes, the scales and perhaps biases.
    pub fn arrays(&self) -> impl Iterator<Item = &Array> {
        let (plain, packed) = match self {
            Self::Plain(rows) => (Some(rows), None),
            Self::Quantized(rows) => (None, Some(rows.arrays())),
        };
        plain.into_iter().chain(packed.into_iter().flatten())
    }

    /// The matrix with each array replaced by `f` of it, which has to hold the same numbers.
    #[doc(hidden)]
    pub fn map_arrays(&self, mut f: impl FnMut(&Array) -> Result<Array>) -> Result<Self> {
        match self {
            Self::Plain(rows) => f(rows).map(Self::Plain),
            Self::Quantized(rows) => rows.map_arrays(f).map(Self::Quantized),
        }
    }

    /// The numbers of outputs and inputs, `[n, k]`.
    ///
    /// # Errors
    ///
    /// Returns an error if a plain weight is no matrix.
    pub fn shape(&self) -> Result<[i32; 2]> {
        match self {
            Self::Plain(rows) => Ok([rows.dim(0)?, rows.dim(1)?]),
            Self::Quantized(rows) => Ok([rows.outputs(), rows.inputs()]),
        }
    }

    /// The type of the numbers: that of the scales of an affine packing, and bfloat16 of others.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::Plain(rows) => rows.dtype(),
            Self::Quantized(rows) if rows.mode() == QuantizedMode::Affine => rows.scales().dtype(),
            Self::Quantized(_) => Dtype::Bfloat16,
        }
    }
}

/// A linear layer with a low-rank update ([Hu et al. 2021](https://arxiv.org/abs/2106.09685)):
/// `x · Wᵀ + scale · (x · Aᵀ) · Bᵀ`, in one node of the graph.
///
/// `x` is `[..., k]`, the base `[n, k]`, `a` is `[rank, k]` and `b` is `[n, rank]`; the result is
/// `[..., n]` of the type that all promote to. Products accumulate in float32; the three products,
/// the scaling and the sum are each rounded to the result's type, as by separate ops. [`Lora`]
/// takes matrices as mlx-lm stores them.
///
/// Differentiable in `x`, `a` and `b` without a gradient of the base, and in a plain base.
///
/// # Errors
///
/// Returns an error for shapes that do not fit or a type other than float32, float16 and bfloat16.
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

/// A low-rank update `scale · B · A` of the weight `[n, k]` of a linear layer.
#[derive(Clone, Debug)]
pub struct Lora {
    a: Array,
    b: Array,
    scale: f32,
}

impl Lora {
    /// An update from `a`, `[rank, k]`, and `b`, `[n, rank]`, as the paper and PEFT write them.
    ///
    /// # Errors
    ///
    /// Returns an error if `a` or `b` is no matrix, or their ranks differ.
    pub fn new(a: Array, b: Array, scale: f32) -> Result<Self> {
        match (a.shape(), b.shape()) {
            (&[rank, _], &[_, same]) if rank == same => Ok(Self { a, b, scale }),
            (of_a, of_b) => Err(Error::argument(
                "lora",
                format_args!("a of shape [rank, k] and b of [n, rank], got {of_a:?} and {of_b:?}"),
            )),
        }
    }

    /// An update from `lora_a`, `[k, rank]`, and `lora_b`, `[rank, n]`, as adapters of mlx-lm store
    /// them.
    ///
    /// # Errors
    ///
    /// Returns an error if `lora_a` or `lora_b` is no matrix, or their ranks differ.
    pub fn from_mlx_lm(lora_a: &Array, lora_b: &Array, scale: f32) -> Result<Self> {
        Self::new(lora_a.t()?.contiguous()?, lora_b.t()?.contiguous()?, scale)
    }

    /// An update of a layer `[n, k]` that changes nothing yet: `a` is drawn uniformly from the
    /// range ±1 / √k, by the thread's random sequence, and `b` is zero. Both are float32.
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

    /// `lora_a`, `[k, rank]`, and `lora_b`, `[rank, n]`, as adapters of mlx-lm store them.
    ///
    /// # Errors
    ///
    /// Returns an error if MLX refuses to transpose the matrices, which no update of [`Lora::new`]
    /// leads to.
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
        Self::new(self.a.astype(dtype)?, self.b.astype(dtype)?, self.scale)
    }

    /// [`lora_linear`] with this update.
    ///
    /// # Errors
    ///
    /// Returns an error for what [`lora_linear`] refuses, that is, if `x`, `base` and the update do
    /// not fit together.
    pub fn apply(&self, x: &Array, base: &LinearWeight) -> Result<Array> {
        lora_linear(x, base, &self.a, &self.b, self.scale)
    }

    /// `W + scale · B · A`, of the type and format of W; a packed W is quantized again, which
    /// rounds the sum.
    ///
    /// # Errors
    ///
    /// Returns an error if the update has other extents than `base`, or `base` cannot be quantized
    /// again.
    pub fn merge(&self, base: &LinearWeight) -> Result<LinearWeight> {
        self.moved(base, self.scale)
    }

    /// `W - scale · B · A`: undoes [`merge`](Self::merge), up to rounding.
    ///
    /// # Errors
    ///
    /// Returns an error if the update has other extents than `base`, or `base` cannot be quantized
    /// again.
    pub fn unmerge(&self, base: &LinearWeight) -> Result<LinearWeight> {
        self.moved(base, -self.scale)
    }

    fn moved(&self, base: &LinearWeight, scale: f32) -> Result<LinearWeight> {
        let plain = match base {
            LinearWeight::Plain(weight) => weight.clone(),
            LinearWeight::Quantized(weight) => weight.dequantize()?,
        };
        let scaled = self.b.multiply(Array::scalar(scale)?.astype(self.b.dtype())?)?;
        let update = matmul(&scaled, &self.a)?.astype(plain.dtype())?;
        let merged = plain.add(&update)?;
        Ok(match base {
            LinearWeight::Plain(_) => LinearWeight::Plain(merged),
            LinearWeight::Quantized(weight) => {
                let (group, bits) = (weight.group_size(), weight.bits());
                QuantizedWeight::quantize(&merged, group, bits, weight.mode())?.into()
            }
        })
    }
}
