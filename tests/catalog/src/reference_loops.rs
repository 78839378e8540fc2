//! The inner loops of the reference implementations for tests. Cargo optimizes this crate even in
//! test builds.

/// Returns the sum of the products, and the sum of their magnitudes.
pub fn dot(a: &[f64], b: &[f64]) -> (f64, f64) {
    let (mut sum, mut reach) = (0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        sum += a * b;
        reach += (a * b).abs();
    }
    (sum, reach)
}

/// The results of several reductions of the same numbers.
pub struct Sums {
    pub sum: f64,
    /// The sum of the magnitudes.
    pub reach: f64,
    pub squares: f64,
    /// The maximum, or NaN if one number is NaN.
    pub max: f64,
}

/// Computes all reductions. The numbers are added in order.
pub fn sums(x: &[f64]) -> Sums {
    let mut all = Sums { sum: 0.0, reach: 0.0, squares: 0.0, max: f64::NEG_INFINITY };
    for &v in x {
        all.sum += v;
        all.reach += v.abs();
        all.squares += v * v;
        if v > all.max || v.is_nan() {
            all.max = v;
        }
    }
    all
}

/// Uniform random numbers in [-scale, scale). Equal seeds give equal numbers.
pub fn values(count: usize, seed: u64, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    let mut next = || {
        // The generator splitmix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next() * scale).collect()
}

/// Decodes the numbers of a packed matrix. A row has `inputs` codes of `bits` bits, and each group
/// of `group` codes has a scale. If there are biases, the codes are integers, and each group has a
/// bias. Otherwise the codes are floats of 4 or 8 bits.
pub fn decoded(
    words: &[u32],
    inputs: usize,
    (bits, group): (usize, usize),
    scales: &[f64],
    biases: Option<&[f64]>,
) -> Vec<f64> {
    const FP4: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let mut numbers = Vec::new();
    for row in words.chunks_exact(inputs * bits / 32) {
        for column in 0..inputs {
            let mut code = 0;
            for bit in 0..bits {
                let at = column * bits + bit;
                code |= (row[at / 32] >> (at % 32) & 1) << bit;
            }
            let scale = scales[numbers.len() / group];
            numbers.push(match biases {
                Some(biases) => f64::from(code) * scale + biases[numbers.len() / group],
                None if bits == 8 => fp8(code) * scale,
                None => FP4[code as usize & 7] * if code & 8 == 0 { scale } else { -scale },
            });
        }
    }
    numbers
}

/// Decodes an 8-bit float with a sign, four exponent bits and three mantissa bits. The format has
/// no infinities.
pub fn fp8(code: u32) -> f64 {
    let (exponent, mantissa) = ((code >> 3 & 15) as i32, f64::from(code & 7));
    let magnitude = match exponent {
        0 => mantissa / 512.0,
        15 if code & 7 == 7 => f64::NAN,
        _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
    };
    if code & 128 == 0 { magnitude } else { -magnitude }
}
