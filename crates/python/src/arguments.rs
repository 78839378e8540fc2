//! The kinds of arguments that an op takes.
//!
//! | kind | in Python |
//! |---|---|
//! | `array` | an `mx.array` |
//! | `optional` | an `mx.array` or None |
//! | `int`, `float`, `flag` | a number, a bool |
//! | `maybe_int`, `maybe_float` | a number or None |

use mlx_primitives::Array;

use crate::api::api;
use crate::objects::{Object, layout};
use crate::refused::Refused;

pub trait Kind {
    type Held;
    /// The type that an op takes.
    type Lent<'a>;

    /// Reads an argument from its Python object.
    ///
    /// # Safety
    ///
    /// `object` is a Python object, and this thread holds Python's lock.
    unsafe fn take(object: Object, name: &str) -> Result<Self::Held, Refused>;

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

impl Kind for kinds::flag {
    type Held = bool;
    type Lent<'a> = bool;

    unsafe fn take(object: Object, name: &str) -> Result<bool, Refused> {
        // SAFETY: the caller's promise.
        unsafe { api()?.flag(object, name) }
    }

    fn lend(held: &bool) -> bool {
        *held
    }
}

macro_rules! numbers {
    ($($kind:ident, $maybe:ident, $number:ty;)*) => {$(
        impl Kind for kinds::$kind {
            type Held = $number;
            type Lent<'a> = $number;

            unsafe fn take(object: Object, name: &str) -> Result<$number, Refused> {
                // SAFETY: the caller's promise.
                unsafe { api()?.$kind(object, name) }
            }

            fn lend(held: &$number) -> $number {
                *held
            }
        }

        impl Kind for kinds::$maybe {
            type Held = Option<$number>;
            type Lent<'a> = Option<$number>;

            unsafe fn take(object: Object, name: &str) -> Result<Option<$number>, Refused> {
                let api = api()?;
                if object == api.none {
                    return Ok(None);
                }
                // SAFETY: the caller's promise.
                unsafe { api.$kind(object, name) }.map(Some)
            }

            fn lend(held: &Option<$number>) -> Option<$number> {
                *held
            }
        }
    )*};
}

numbers! {
    int, maybe_int, i32;
    float, maybe_float, f32;
}
