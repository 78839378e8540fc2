//! The types of tensors.

use std::cell::Cell;

use crate::dtype::Dtype;
use mlx_primitives_kernels::ggml_blocks::BlockType;

/// A type of tensors in a GGUF file, and the layout and the rounding with which
/// [`load_gguf`](crate::io::load_gguf) loads such tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GgufType {
    /// The format's name of the type, such as `Q4_K`.
    pub name: &'static str,
    /// The number of tensors of that type.
    pub tensors: usize,
    /// The bytes of these tensors in the file.
    pub bytes: u64,
    /// The bits of a code in MLX's affine layout; `None` for a type that does not pack weights.
    pub bits: Option<i32>,
    /// The largest rounding error of the weights, as text; `None` if no number changes.
    pub rounding: Option<&'static str>,
    /// The bits of a code in the layout of [`KQuants::Own`], which rounds nothing; `None` for a
    /// type without that layout.
    pub own_bits: Option<i32>,
}

/// The layout in memory of weights that a GGUF file stores as Q4_K, Q5_K or Q6_K.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KQuants {
    /// MLX's affine layout, as for all other types that pack weights.
    #[default]
    Affine,
    /// The mode [`QuantizedMode::KQuant`](crate::ops::QuantizedMode::KQuant). It keeps the weights'
    /// values, and takes nearly as few bits for each weight as the file.
    Own,
}

thread_local! {
    /// The layout that [`KQuants::with`] has set on this thread.
    static CHOICE: Cell<Option<KQuants>> = const { Cell::new(None) };
}

impl KQuants {
    /// Runs `f`. While it runs, this thread loads models with this layout.
    pub fn with<R>(self, f: impl FnOnce() -> R) -> R {
        struct Restore(Option<KQuants>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CHOICE.set(self.0);
            }
        }
        let _restore = Restore(CHOICE.replace(Some(self)));
        f()
    }

    /// The layout of models that this thread loads: the layout that [`with`](Self::with) sets, or
    /// [`Own`](Self::Own) outside of `with`.
    pub fn of_models() -> Self {
        CHOICE.get().unwrap_or(Self::Own)
    }
}

/// How a tensor's elements are stored.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Plain(Dtype),
    Blocks(BlockType),
}

impl Kind {
    /// The type with this number in files, or an error for a type that this crate does not read.
    pub fn of(number: u32) -> std::result::Result<Self, String> {
        Ok(match number {
            0 => Self::Plain(Dtype::Float32),
            1 => Self::Plain(Dtype::Float16),
            2 => Self::Blocks(BlockType::Q4_0),
            3 => Self::Blocks(BlockType::Q4_1),
            6 => Self::Blocks(BlockType::Q5_0),
            7 => Self::Blocks(BlockType::Q5_1),
            8 => Self::Blocks(BlockType::Q8_0),
            10 => Self::Blocks(BlockType::Q2K),
            11 => Self::Blocks(BlockType::Q3K),
            12 => Self::Blocks(BlockType::Q4K),
            13 => Self::Blocks(BlockType::Q5K),
            14 => Self::Blocks(BlockType::Q6K),
            20 => Self::Blocks(BlockType::Iq4Nl),
            23 => Self::Blocks(BlockType::Iq4Xs),
            24 => Self::Plain(Dtype::Int8),
            25 => Self::Plain(Dtype::Int16),
            26 => Self::Plain(Dtype::Int32),
            27 => Self::Plain(Dtype::Int64),
            30 => Self::Plain(Dtype::Bfloat16),
            other => {
                let got = unread(other).map_or_else(|| format!("number {other}"), str::to_owned);
                return Err(format!(
                    "expected a type among F32, F16, BF16, I8 to I64, Q4_0 to Q8_0, Q2_K to Q6_K, \
                     IQ4_NL and IQ4_XS, got {got}"
                ));
            }
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Plain(Dtype::Float32) => "F32",
            Self::Plain(Dtype::Float16) => "F16",
            Self::Plain(Dtype::Bfloat16) => "BF16",
            Self::Plain(Dtype::Int8) => "I8",
            Self::Plain(Dtype::Int16) => "I16",
            Self::Plain(Dtype::Int32) => "I32",
            Self::Plain(_) => "I64",
            Self::Blocks(kind) => kind.name(),
        }
    }

    /// The number of elements and of bytes of a block.
    pub fn block(self) -> (u64, u64) {
        match self {
            Self::Plain(dtype) => (1, dtype.size() as u64),
            Self::Blocks(kind) => (kind.weights() as u64, kind.bytes() as u64),
        }
    }
}

/// ggml's name of a type that is not read.
fn unread(number: u32) -> Option<&'static str> {
    Some(match number {
        4 => "Q4_2",
        5 => "Q4_3",
        9 => "Q8_1",
        15 => "Q8_K",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        28 => "F64",
        29 => "IQ1_M",
        31 => "Q4_0_4_4",
        32 => "Q4_0_4_8",
        33 => "Q4_0_8_8",
        34 => "TQ1_0",
        35 => "TQ2_0",
        36 => "IQ4_NL_4_4",
        37 => "IQ4_NL_4_8",
        38 => "IQ4_NL_8_8",
        39 => "MXFP4",
        40 => "NVFP4",
        41 => "Q1_0",
        42 => "Q2_0",
        _ => return None,
    })
}

/// The largest rounding error of weights of this type, as text; `None` if they are not rounded.
pub(super) fn rounding(kind: BlockType) -> Option<&'static str> {
    match kind {
        _ if kind.is_exact() => None,
        BlockType::Q6K => Some("1/6 of a step"),
        _ => Some("1/62 of a group's range"),
    }
}
