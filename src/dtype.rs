use half::{bf16, f16};

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident => $name:literal;)*) => {
        /// The type of an array's elements.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Dtype {
            $($(#[$doc])* $variant,)*
        }

        impl Dtype {
            /// Every type, in MLX's order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// MLX's name of the type, such as `float32`.
            ///
            /// ```
            /// assert_eq!(mlx_primitives::Dtype::Bfloat16.name(), "bfloat16");
            /// ```
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

dtypes! {
    /// `bool`, one byte.
    Bool => "bool";
    /// `u8`.
    Uint8 => "uint8";
    /// `u16`.
    Uint16 => "uint16";
    /// `u32`.
    Uint32 => "uint32";
    /// `u64`.
    Uint64 => "uint64";
    /// `i8`.
    Int8 => "int8";
    /// `i16`.
    Int16 => "int16";
    /// `i32`.
    Int32 => "int32";
    /// `i64`.
    Int64 => "int64";
    /// `half::f16`.
    Float16 => "float16";
    /// `f32`.
    Float32 => "float32";
    /// `f64`; on the CPU only.
    Float64 => "float64";
    /// `half::bf16`.
    Bfloat16 => "bfloat16";
    /// A pair of `f32`; no Rust type implements [`Element`] for it.
    Complex64 => "complex64";
}

impl Dtype {
    /// The bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => 1,
            Self::Uint16 | Self::Int16 | Self::Float16 | Self::Bfloat16 => 2,
            Self::Uint32 | Self::Int32 | Self::Float32 => 4,
            _ => 8,
        }
    }

    /// Whether the type is one of the real floating-point types: float16, bfloat16, float32,
    /// float64.
    pub fn is_floating(self) -> bool {
        matches!(self, Self::Float16 | Self::Bfloat16 | Self::Float32 | Self::Float64)
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is the element of an [`Array`](crate::Array).
///
/// The trait is sealed: implemented for `bool`, the integers of 8 to 64 bits, `half::f16`,
/// `half::bf16`, `f32` and `f64`. All of these types have the memory layout of MLX's types.
pub trait Element: sealed::Sealed + Copy + Default + 'static {
    /// The [`Dtype`] of arrays with elements of this type.
    const DTYPE: Dtype;

    /// Converts a number as Rust's `as` does; bools are true for numbers other than 0.
    fn from_f64(value: f64) -> Self;

    /// Copies elements out of MLX's memory.
    #[doc(hidden)]
    fn copy_from(bytes: &[u8]) -> Vec<Self> {
        let count = bytes.len() / size_of::<Self>();
        let mut elements = vec![Self::default(); count];
        // SAFETY: both regions are count elements long and do not overlap, the source need not be
        // aligned, and every bit pattern is a value of the sealed number types. The method for bool
        // is separate.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                elements.as_mut_ptr().cast::<u8>(),
                count * size_of::<Self>(),
            );
        }
        elements
    }
}

macro_rules! element {
    ($($type:ty => $dtype:ident, $from:expr;)*) => {$(
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;
            fn from_f64(value: f64) -> Self {
                ($from)(value)
            }
        }
    )*};
}

element! {
    u8 => Uint8, |v| v as u8;
    u16 => Uint16, |v| v as u16;
    u32 => Uint32, |v| v as u32;
    u64 => Uint64, |v| v as u64;
    i8 => Int8, |v| v as i8;
    i16 => Int16, |v| v as i16;
    i32 => Int32, |v| v as i32;
    i64 => Int64, |v| v as i64;
    f16 => Float16, f16::from_f64;
    bf16 => Bfloat16, bf16::from_f64;
    f32 => Float32, |v| v as f32;
    f64 => Float64, |v| v;
}

impl sealed::Sealed for bool {}
impl Element for bool {
    const DTYPE: Dtype = Dtype::Bool;
    fn from_f64(value: f64) -> Self {
        value != 0.0
    }
    fn copy_from(bytes: &[u8]) -> Vec<Self> {
        // Bytes other than 0 and 1 are not valid bools.
        bytes.iter().map(|&byte| byte != 0).collect()
    }
}

/// The bytes of a slice of elements.
pub(crate) fn as_bytes<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: the sealed element types have no padding, so all their bytes are initialized, and the
    // borrowed slice has this length.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}
