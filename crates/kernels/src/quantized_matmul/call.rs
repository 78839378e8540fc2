//! The arguments of a call, and the order in which the inputs of the call are prepared.

use crate::element::Element;
use crate::row_order::RowOrder;

/// How weights are packed, like MLX's `mode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mode {
    /// `scale * q + bias`, with q of 2, 3, 4, 5, 6 or 8 bits.
    Affine,
    /// `2^(e - 127) * q`, with a 4-bit float q and an 8-bit scale e.
    Mxfp4,
    /// `2^(e - 127) * q`, with an 8-bit float q and an 8-bit scale e.
    Mxfp8,
    /// `s * q` with a 4-bit float q and an 8-bit float s.
    Nvfp4,
    /// `scale * q + bias`, with codes like [`Affine`](Self::Affine), but with the scales and biases
    /// of several groups in one block. Codes have 4 or 5 bits in groups of 32, or 6 bits in groups
    /// of 16 with a bias of `-32 * scale`.
    KQuant,
    /// Weights that are not packed: `packed` is `[columns, axis]` of the element type. This mode is
    /// for a low-rank correction of plain weights, with one matrix and no norm.
    Plain,
}

/// One packed matrix of `columns` rows of weights. Each row gives a column of the result.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Weights {
    /// `axis * bits / 8` bytes for each row.
    pub packed: *const u8,
    /// One scale for each group, of the type [`Call::of_scales`] or of one byte. K-quants have
    /// [`SCALE_BYTES`](super::k_quant::SCALE_BYTES) bytes for each of their blocks instead.
    pub scales: *const u8,
    /// One bias for each group, of the type of the scales; null if the mode has no biases.
    pub biases: *const u8,
    pub columns: usize,
}

/// RMS normalization of x before the product.
#[derive(Clone, Copy)]
pub struct Norm {
    pub weight: *const u8,
    pub eps: f32,
}

/// A low-rank correction of the product, `scale * (x · Aᵀ) · Bᵀ`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LowRank {
    /// `[rank, axis]`.
    pub a: *const u8,
    /// `[columns, rank]`.
    pub b: *const u8,
    pub rank: usize,
    /// The scale, already rounded to the element type.
    pub scale: f32,
}

/// How the columns of the products form the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Join {
    /// The columns of all products, one product after another.
    Concatenate,
    /// `silu(first) * second`, where both products have the same number of columns.
    Swiglu,
}

/// The arguments of one call. Buffers hold elements of the type `element` and are aligned to them.
pub struct Call<'a> {
    pub element: Element,
    /// The type of the scales and biases of an affine format. If it is not `element`, `element` is
    /// f32.
    pub of_scales: Element,
    pub mode: Mode,
    pub bits: u32,
    pub group: usize,
    /// `[rows, axis]`. `axis` is a multiple of `group` and of 32. With K-quants, it is a
    /// multiple of 256, the number of weights in a block.
    pub x: *const u8,
    pub rows: usize,
    pub axis: usize,
    pub norm: Option<Norm>,
    pub weights: &'a [Weights],
    pub join: Join,
    /// `[columns of the result]`, or null.
    pub bias: *const u8,
    /// `[rows, columns of the result]`, or null; may be `out`.
    pub residual: *const u8,
    pub low_rank: Option<LowRank>,
    /// Whether x may be rounded to eight bits, on machines where this is faster.
    pub int8: bool,
    /// Whether each bias of an affine format equals the scale times minus half of the number of
    /// codes, in the type of the scales. Then products with few rows of x do not read the biases.
    pub centered: bool,
    pub order: RowOrder,
    pub out: *mut u8,
}

// SAFETY: the buffers belong to one call: its threads read the same inputs and write columns that
// they divide among themselves.
unsafe impl Sync for Call<'_> {}

impl Call<'_> {
    /// Whether sums have the order [`RowOrder::Tokens`].
    pub(super) fn of_tokens(&self) -> bool {
        self.order.is_of_tokens(self.rows)
    }

    /// Returns the call for a single row of x, in the order [`RowOrder::Tokens`].
    pub(super) fn token(&self, row: usize) -> Self {
        let bytes = self.element.bytes();
        let (x, out) = (row * self.axis * bytes, row * self.columns() * bytes);
        let residual =
            if self.residual.is_null() { self.residual } else { self.residual.wrapping_add(out) };
        let (x, out) = (self.x.wrapping_add(x), self.out.wrapping_add(out));
        Self { x, rows: 1, residual, order: RowOrder::Tokens, out, ..*self }
    }

    /// The number of columns of the result.
    pub fn columns(&self) -> usize {
        match self.join {
            Join::Concatenate => self.weights.iter().map(|weights| weights.columns).sum(),
            Join::Swiglu => self.weights.first().map_or(0, |weights| weights.columns),
        }
    }
}

/// The order of prepared inputs. It is the order in which the weights of a chunk of lanes are
/// decoded: the first weight of every lane, then the second weight of every lane, and so on.
#[derive(Clone, Copy)]
pub(super) struct Order {
    pub lanes: usize,
    /// The number of inputs for a lane: 4, 8 or 16, or half as many if `half`.
    pub per_lane: usize,
    /// Whether inputs are bf16 patterns instead of f32.
    pub half: bool,
    /// The number of bits of a code in an affine format, or zero for other formats. Only code for
    /// `F32x16::IN_PLACE` uses it.
    pub bits: u32,
    /// The number of rows whose cache lines alternate in memory.
    pub band: usize,
}

impl Order {
    pub fn element_bytes(self) -> usize {
        if self.half { 2 } else { 4 }
    }
}
