//! Values of function constants.

use std::collections::BTreeMap;

/// The values of function constants, by their index. A value is stored as its bits.
///
/// ```
/// let constants = metal_sim::Constants::new().with(0, true).with(1, 0.5f32);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Constants(pub(crate) BTreeMap<u32, u64>);

impl Constants {
    /// Makes an empty set of values.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives constant `index` a value.
    pub fn with(mut self, index: u32, value: impl ConstantBits) -> Self {
        self.0.insert(index, value.bits());
        self
    }
}

/// A type that a function constant can have.
pub trait ConstantBits {
    /// The value in the low bits of a 64-bit word.
    fn bits(self) -> u64;
}

macro_rules! constant_bits {
    ($($kind:ty: $value:ident => $bits:expr),* $(,)?) => {
        $(impl ConstantBits for $kind {
            fn bits(self) -> u64 {
                let $value = self;
                $bits
            }
        })*
    };
}
constant_bits! {
    bool: v => u64::from(v),
    u8: v => u64::from(v), u16: v => u64::from(v), u32: v => u64::from(v), u64: v => v,
    i8: v => v as u64, i16: v => v as u64, i32: v => v as u64, i64: v => v as u64,
    f32: v => u64::from(v.to_bits()),
}
