use crate::ffi::ops::bridge as ffi;

/// The order in which a row of a product or of attention adds up its terms. The last bits of a
/// result depend on it.
///
/// The order depends only on the row and on the arrays that it is multiplied with. The number and
/// the values of other rows, and the threads, do not change a bit. Prompts have a separate order,
/// because tiles of many rows are several times as fast in it.
///
/// The order applies to [`linear`](super::linear), the products of packed weights and of
/// [`lora_linear`](super::lora_linear), and [`attention`](super::attention) with its variants. All
/// other ops have one order for any number of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowOrder {
    /// The order of tokens for up to eight rows (in attention: queries), and of prompts for more.
    #[default]
    ByCount,
    /// The order of one row alone: for decoding, the verification of drafts and batches of texts.
    Tokens,
    /// The order of a prompt, for any part of it. Attention adds up keys in blocks at multiples of
    /// a fixed number of keys, so that the start of a part makes no difference.
    Prompt,
}

/// The order of rows in the ops that this thread builds.
pub fn row_order() -> RowOrder {
    let order = ffi::set_row_order(0);
    ffi::set_row_order(order);
    match order {
        1 => RowOrder::Tokens,
        2 => RowOrder::Prompt,
        _ => RowOrder::ByCount,
    }
}

/// Runs `f`, in which the rows of the ops that it builds have this order.
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
