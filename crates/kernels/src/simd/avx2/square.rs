//! Transposes sixteen blocks of sixteen lanes, as four squares of eight registers each.

use std::arch::x86_64::*;

use super::super::LANES;
use super::super::registers::Avx2;

/// Block i of the result has lane i of every block. The function is too long to be inlined.
///
/// # Safety
/// The machine has AVX2.
#[inline(never)]
#[target_feature(enable = "avx2")]
pub unsafe fn transpose(rows: &[Avx2; LANES]) -> [Avx2; LANES] {
    let mut out = *rows;
    // SAFETY: the caller upholds the contract.
    unsafe {
        for i in [0, 8] {
            let mut square = [rows[i].0; 8];
            for (to, row) in square.iter_mut().zip(&rows[i..]) {
                *to = row.0;
            }
            square = eight(square);
            for (to, lanes) in out.iter_mut().zip(square) {
                if i == 0 { to.0 = lanes } else { to.1 = lanes }
            }
            for (to, row) in square.iter_mut().zip(&rows[i..]) {
                *to = row.1;
            }
            square = eight(square);
            for (to, lanes) in out[8..].iter_mut().zip(square) {
                if i == 0 { to.0 = lanes } else { to.1 = lanes }
            }
        }
    }
    out
}

/// Transposes a square of eight registers with eight lanes each.
#[inline(always)]
unsafe fn eight(rows: [__m256; 8]) -> [__m256; 8] {
    let mut out = rows;
    // SAFETY: the caller promises AVX2.
    unsafe {
        // Transposes pairs of rows, then groups of four rows, within 128-bit halves. The last loop
        // exchanges halves.
        let mut t = rows;
        for i in 0..4 {
            t[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
            t[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
        }
        let mut q = t;
        for i in 0..2 {
            let (a, b) = (_mm256_castps_pd(t[4 * i]), _mm256_castps_pd(t[4 * i + 1]));
            let (c, d) = (_mm256_castps_pd(t[4 * i + 2]), _mm256_castps_pd(t[4 * i + 3]));
            q[4 * i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
            q[4 * i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
            q[4 * i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
            q[4 * i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
        }
        for i in 0..4 {
            out[i] = _mm256_permute2f128_ps::<0x20>(q[i], q[4 + i]);
            out[4 + i] = _mm256_permute2f128_ps::<0x31>(q[i], q[4 + i]);
        }
    }
    out
}
