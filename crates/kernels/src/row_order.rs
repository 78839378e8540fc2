//! The orders in which matrix products and attention add up the terms of a row.

/// By default, calls with at most this many rows use the order [`Tokens`](RowOrder::Tokens).
pub const FEW_ROWS: usize = 8;

/// The order in which a call adds up the terms of a row. With `Tokens` or `Prompt`, a row's result
/// depends neither on the other rows of the call nor on their number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum RowOrder {
    /// Uses [`Tokens`](Self::Tokens) for up to [`FEW_ROWS`] rows, and [`Prompt`](Self::Prompt) for
    /// more.
    #[default]
    ByCount,
    /// The order of one row, for decoding: the vector lanes hold consecutive elements of the row.
    Tokens,
    /// The order of tiles, for prompts: each vector lane holds a different row.
    Prompt,
}

impl RowOrder {
    /// Whether a call with `rows` rows uses the order [`Tokens`](Self::Tokens).
    pub fn is_of_tokens(self, rows: usize) -> bool {
        match self {
            Self::ByCount => rows <= FEW_ROWS,
            Self::Tokens => true,
            Self::Prompt => false,
        }
    }
}
