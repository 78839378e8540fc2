//! Random numbers in bfloat16, and references in double precision.

/// A sequence of random numbers between -1 and 1.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    pub fn next(&mut self) -> f32 {
        self.bits() as f32 / (1u64 << 30) as f32 - 1.0
    }

    /// Returns random bfloat16 numbers that are roughly normally distributed, with a mean other
    /// than zero.
    pub fn elements(&mut self, count: usize) -> Vec<u8> {
        (0..count)
            .flat_map(|_| {
                let x = self.next() + self.next() + self.next() + 0.5;
                bfloat16(x).to_le_bytes()
            })
            .collect()
    }
}

/// Rounds to the nearest bfloat16, ties to even.
pub fn bfloat16(x: f32) -> u16 {
    let bits = x.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

pub fn numbers(bytes: &[u8]) -> Vec<f64> {
    let pairs = bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    pairs.map(|bits| f64::from(f32::from_bits(u32::from(bits) << 16))).collect()
}

pub fn layer_norm(x: &[f64], weight: &[f64], bias: &[f64], eps: f64) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
    let inverse = 1.0 / (variance + eps).sqrt();
    (0..x.len()).map(|i| (x[i] - mean) * inverse * weight[i] + bias[i]).collect()
}

pub fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let squares = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let inverse = 1.0 / (squares + eps).sqrt();
    x.iter().zip(weight).map(|(x, w)| x * inverse * w).collect()
}

pub fn softmax(x: &[f64]) -> Vec<f64> {
    let most = x.iter().copied().fold(f64::MIN, f64::max);
    let all: Vec<f64> = x.iter().map(|x| (x - most).exp()).collect();
    let sum: f64 = all.iter().sum();
    all.iter().map(|x| x / sum).collect()
}

/// Returns the root mean square of the errors, as a multiple of 2^-8 times the largest reference
/// value.
pub fn error(got: &[f64], want: &[f64]) -> f64 {
    let largest = want.iter().fold(0.0, |all: f64, x| all.max(x.abs()));
    let squares = got.iter().zip(want).map(|(got, want)| (got - want) * (got - want));
    let root = (squares.sum::<f64>() / want.len() as f64).sqrt();
    root / largest * 256.0
}
