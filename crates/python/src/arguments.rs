//! The kinds of arguments.
//!
//! | kind | in Python | in C |
//! |---|---|---|
//! | `array` | an `mx.array` | the object |
//! | `optional` | an `mx.array` or None | the object |
//! | `int`, `float`, `flag` | a number, a bool | `int64_t`, `float`, `bool` |
//! | `maybe_int`, `maybe_float` | a number, or -2^63, NaN for None | `int64_t`, `float` |

use mlx_primitives::Array;

use crate::objects::{Object, layout};
use crate::refused::Refused;

pub trait Kind {
    /// The type in C.
    type Raw;
    type Held;
    /// The type that an op takes.
    type Lent<'a>;

    /// An argument from its C value.
    ///
    /// # Safety
    ///
    /// A pointer is a Python object that no other thread changes.
    unsafe fn take(raw: Self::Raw, name: &str) -> Result<Self::Held, Refused>;

    fn lend(held: &Self::Held) -> Self::Lent<'_>;
}

#[allow(non_camel_case_types)]
pub mod kinds {
    pub enum array {}
    pub enum optional {}
    pub enum int {}
    pub enum maybe_int {}
    pub enum float {}
    pub enum maybe_float {}
    pub enum flag {}
}

impl Kind for kinds::array {
    type Raw = Object;
    type Held = Array;
    type Lent<'a> = &'a Array;

    unsafe fn take(object: Object, name: &str) -> Result<Array, Refused> {
        // SAFETY: the caller's promise.
        unsafe { layout()?.array(object, name) }
    }

    fn lend(held: &Array) -> &Array {
        held
    }
}

impl Kind for kinds::optional {
    type Raw = Object;
    type Held = Option<Array>;
    type Lent<'a> = Option<&'a Array>;

    unsafe fn take(object: Object, name: &str) -> Result<Option<Array>, Refused> {
        // SAFETY: the caller's promise.
        unsafe { layout()?.optional(object, name) }
    }

    fn lend(held: &Option<Array>) -> Option<&Array> {
        held.as_ref()
    }
}

macro_rules! numbers {
    ($($kind:ident: $raw:ty => $number:ty, $take:expr;)*) => {$(
        impl Kind for kinds::$kind {
            type Raw = $raw;
            type Held = $number;
            type Lent<'a> = $number;

            unsafe fn take(raw: $raw, name: &str) -> Result<$number, Refused> {
                $take(raw, name)
            }

            fn lend(held: &$number) -> $number {
                *held
            }
        }
    )*};
}

numbers! {
    int: i64 => i32, int;
    maybe_int: i64 => Option<i32>, maybe_int;
    float: f32 => f32, |value, _| Ok(value);
    maybe_float: f32 => Option<f32>, |value: f32, _| Ok(Some(value).filter(|it| !it.is_nan()));
    flag: bool => bool, |value, _| Ok(value);
}

fn int(value: i64, name: &str) -> Result<i32, Refused> {
    let refused = |_| Refused::Value(format!("expected {name} to be an int of 32 bits"));
    i32::try_from(value).map_err(refused)
}

fn maybe_int(value: i64, name: &str) -> Result<Option<i32>, Refused> {
    if value == i64::MIN { Ok(None) } else { int(value, name).map(Some) }
}
