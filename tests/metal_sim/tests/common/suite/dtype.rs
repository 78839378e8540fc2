//! The element types of the kernels, as bytes and as numbers.

use half::{bf16, f16};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Dtype {
    pub const ALL: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

    /// MLX's name, the end of every kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "float32",
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
        }
    }

    pub fn size(self) -> usize {
        if self == Dtype::F32 { 4 } else { 2 }
    }

    /// Half the distance from 1 to the next number: the relative error of one rounding.
    pub fn roundoff(self) -> f64 {
        match self {
            Dtype::F32 => 2f64.powi(-24),
            Dtype::F16 => 2f64.powi(-11),
            Dtype::Bf16 => 2f64.powi(-8),
        }
    }

    /// The absolute error next to zero; float32 and bfloat16 may lose subnormal numbers.
    pub fn underflow(self) -> f64 {
        if self == Dtype::F16 { 2f64.powi(-25) } else { 2f64.powi(-126) }
    }

    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(values.len() * self.size());
        for value in values {
            match self {
                Dtype::F32 => bytes.extend(value.to_le_bytes()),
                Dtype::F16 => bytes.extend(f16::from_f32(*value).to_le_bytes()),
                Dtype::Bf16 => bytes.extend(bf16::from_f32(*value).to_le_bytes()),
            }
        }
        bytes
    }

    pub fn decode(self, bytes: &[u8]) -> Vec<f64> {
        let element = |b: &[u8]| match self {
            Dtype::F32 => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
            Dtype::F16 => f16::from_le_bytes([b[0], b[1]]).to_f64(),
            Dtype::Bf16 => bf16::from_le_bytes([b[0], b[1]]).to_f64(),
        };
        bytes.chunks(self.size()).map(element).collect()
    }
}
