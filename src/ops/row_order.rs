use crate::ffi::ops::bridge as ffi;

/// The order in which an op adds up the terms of a row of a product, or of a query of attention.
/// The last bits of a result depend on this order.
///
/// The orders `Tokens` and `Prompt` depend only on the row and on the arrays that the row is
/// multiplied by: other rows do not change a bit. `ByCount` chooses one of them by the number of
/// rows. The number of threads changes no bit. Prompts have a separate order, because tiles of many
/// rows are several times as fast with it.
///
/// The choice applies to [`linear`](super::linear), [`matmul`](super::matmul) and
/// [`matmul_nt`](super::matmul_nt), to products with packed weights, to
/// [`lora_linear`](super::lora_linear), and to [`attention`](super::attention) and its variants.
/// Ops that contain these ops follow it too. Every other op has one order for any number of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowOrder {
    /// [`Tokens`](Self::Tokens) for up to eight rows (in attention: queries), and
    /// [`Prompt`](Self::Prompt) for more rows.
    #[default]
    ByCount,
    /// The order of a single row, for any number of rows. It is for decoding, the verification of
    /// draft tokens, and batches of sequences.
    Tokens,
    /// The order of prompts, for any number of rows. A prompt may be processed in parts: attention
    /// adds up keys in blocks that start at multiples of a fixed number of keys, so the start of a
    /// part does not change the order.
    Prompt,
}

/// The row order of the ops that this thread builds.
pub fn row_order() -> RowOrder {
    let order = ffi::set_row_order(0);
    ffi::set_row_order(order);
    match order {
        1 => RowOrder::Tokens,
        2 => RowOrder::Prompt,
        _ => RowOrder::ByCount,
    }
}

/// Runs `f`. The ops that `f` builds on this thread have the row order `order`.
///
/// ```
/// use mlx_primitives::ops::{self, RowOrder, with_row_order};
/// use mlx_primitives::Array;
///
/// let x = Array::from_slice(&[0.1f32; 33 * 100], &[33, 100])?;
/// let w = Array::from_slice(&[0.3f32; 5 * 100], &[5, 100])?;
/// let product = |rows: std::ops::Range<i32>| {
///     with_row_order(RowOrder::Tokens, || {
///         ops::linear(&x.slice_axis(0, rows)?, &w, Default::default())?.to_vec::<f32>()
///     })
/// };
/// assert_eq!(product(0..33)?[7 * 5..8 * 5], product(7..8)?);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn with_row_order<R>(order: RowOrder, f: impl FnOnce() -> R) -> R {
    struct Restore(u8);
    impl Drop for Restore {
        fn drop(&mut self) {
            ffi::set_row_order(self.0);
        }
    }
    let _restore = Restore(ffi::set_row_order(order as u8));
    f()
}
