//! The orders in which products and attention add up the terms of a row.

/// The most rows that count as tokens by default.
pub const FEW_ROWS: usize = 8;

/// The order in which a call adds up the terms of a row. A row's result depends only on the row and
/// on its factors, and not on the other rows of the call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum RowOrder {
    /// [`Tokens`](Self::Tokens) for up to [`FEW_ROWS`] rows, and [`Prompt`](Self::Prompt) for more.
    #[default]
    ByCount,
    /// The order of one row: lanes run along the row.
    Tokens,
    /// The order of tiles: lanes run across rows.
    Prompt,
}

impl RowOrder {
    /// Whether `rows` rows have the order of tokens.
    pub fn is_of_tokens(self, rows: usize) -> bool {
        match self {
            Self::ByCount => rows <= FEW_ROWS,
            Self::Tokens => true,
            Self::Prompt => false,
        }
    }
}
