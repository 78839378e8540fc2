//! Transposes sixteen rows of sixteen words, as four squares of eight registers each.

use std::arch::x86_64::*;

use super::super::LANES;
use super::super::registers::Avx2;

/// Block i of the result has lane i of every block.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
pub unsafe fn transpose<const DOTS: bool>(rows: &[Avx2<DOTS>; LANES]) -> [Avx2<DOTS>; LANES] {
    let mut out = *rows;
    let rows = rows.each_ref().map(|row| (&raw const *row).cast());
    // SAFETY: the caller upholds the contract; a block has sixteen words.
    unsafe { words::<false>(&rows, 0, (&raw mut out).cast()) };
    out
}

/// Implements [`F32x16::transpose_words`](super::super::F32x16::transpose_words). The function is
/// too long to be inlined.
///
/// # Safety
/// The contract of that method applies; the machine has AVX2.
#[inline(never)]
#[target_feature(enable = "avx2")]
pub unsafe fn words<const NIBBLES: bool>(rows: &[*const u8; LANES], at: usize, to: *mut f32) {
    let each = if NIBBLES { 2 * LANES } else { LANES };
    let mask = _mm256_set1_epi8(15);
    for word in [0, 8] {
        for row in [0, 8] {
            // SAFETY: the caller upholds the contract.
            unsafe {
                let mut square = [_mm256_setzero_ps(); 8];
                for (lanes, row) in square.iter_mut().zip(&rows[row..]) {
                    *lanes = _mm256_loadu_ps(row.wrapping_add(at).cast::<f32>().add(word));
                }
                for (i, lanes) in eight(square).into_iter().enumerate() {
                    let to = to.add((word + i) * each + row);
                    if NIBBLES {
                        let codes = _mm256_castps_si256(lanes);
                        let high = _mm256_and_si256(_mm256_srli_epi32::<4>(codes), mask);
                        _mm256_storeu_si256(to.cast(), _mm256_and_si256(codes, mask));
                        _mm256_storeu_si256(to.add(LANES).cast(), high);
                    } else {
                        _mm256_storeu_ps(to, lanes);
                    }
                }
            }
        }
    }
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
