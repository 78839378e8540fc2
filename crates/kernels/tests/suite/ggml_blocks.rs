//! Compares every block type with ggml's `dequantize_row` functions. This file repeats them line by
//! line.

use half::f16;
use mlx_primitives_kernels::ggml_blocks::{BlockType, GROUP, Part};

const TABLE: [i32; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn float(bytes: &[u8]) -> f64 {
    f64::from(f16::from_le_bytes([bytes[0], bytes[1]]))
}

/// ggml's `dequantize_row_*` function of the block type. In f64, every product and sum is exact.
fn dequantized(kind: BlockType, x: &[u8]) -> Vec<f64> {
    let mut y = vec![0.0; kind.weights()];
    match kind {
        BlockType::Q4_0 => (0..16).for_each(|j| {
            y[j] = float(x) * f64::from(i32::from(x[2 + j] & 15) - 8);
            y[j + 16] = float(x) * f64::from(i32::from(x[2 + j] >> 4) - 8);
        }),
        BlockType::Q4_1 => (0..16).for_each(|j| {
            y[j] = float(x) * f64::from(x[4 + j] & 15) + float(&x[2..]);
            y[j + 16] = float(x) * f64::from(x[4 + j] >> 4) + float(&x[2..]);
        }),
        BlockType::Q5_0 | BlockType::Q5_1 => {
            let (high, zero, low) = match kind {
                BlockType::Q5_0 => (2, 16, 0.0),
                _ => (4, 0, float(&x[2..])),
            };
            let qh = u32::from_le_bytes(x[high..high + 4].try_into().unwrap());
            for j in 0..16 {
                let qs = x[high + 4 + j];
                let (h0, h1) = ((qh >> j) << 4 & 16, (qh >> (j + 12)) & 16);
                let (x0, x1) = (u32::from(qs & 15) | h0, u32::from(qs >> 4) | h1);
                y[j] = float(x) * f64::from(x0 as i32 - zero) + low;
                y[j + 16] = float(x) * f64::from(x1 as i32 - zero) + low;
            }
        }
        BlockType::Q8_0 => {
            (0..32).for_each(|j| y[j] = float(x) * f64::from(x[2 + j] as i8));
        }
        BlockType::Iq4Nl => (0..16).for_each(|j| {
            y[j] = float(x) * f64::from(TABLE[usize::from(x[2 + j] & 15)]);
            y[j + 16] = float(x) * f64::from(TABLE[usize::from(x[2 + j] >> 4)]);
        }),
        BlockType::Iq4Xs => {
            let scales_h = u32::from(u16::from_le_bytes([x[2], x[3]]));
            for ib in 0..8 {
                let low = u32::from(x[4 + ib / 2] >> (4 * (ib % 2)) & 15);
                let ls = low | (scales_h >> (2 * ib) & 3) << 4;
                let dl = float(x) * f64::from(ls as i32 - 32);
                for j in 0..16 {
                    let q = x[8 + 16 * ib + j];
                    y[32 * ib + j] = dl * f64::from(TABLE[usize::from(q & 15)]);
                    y[32 * ib + j + 16] = dl * f64::from(TABLE[usize::from(q >> 4)]);
                }
            }
        }
        BlockType::Q2K => {
            let (scales, qs) = (&x[..16], &x[16..80]);
            let (d, min) = (float(&x[80..]), float(&x[82..]));
            let (mut at, mut is) = (0, 0);
            for n in 0..2 {
                for shift in [0, 2, 4, 6] {
                    for start in [0, 16] {
                        let sc = scales[is];
                        is += 1;
                        let (dl, ml) = (d * f64::from(sc & 15), min * f64::from(sc >> 4));
                        for l in start..start + 16 {
                            y[at] = dl * f64::from(qs[32 * n + l] >> shift & 3) - ml;
                            at += 1;
                        }
                    }
                }
            }
        }
        BlockType::Q3K => {
            let (hm, qs, packed, d) = (&x[..32], &x[32..96], &x[96..108], float(&x[108..]));
            let word = |i: usize| u32::from_le_bytes(packed[4 * i..4 * i + 4].try_into().unwrap());
            let (k1, k2, tmp) = (0x0303_0303u32, 0x0f0f_0f0fu32, word(2));
            let aux = [
                (word(0) & k2) | (tmp & k1) << 4,
                (word(1) & k2) | ((tmp >> 2) & k1) << 4,
                ((word(0) >> 4) & k2) | ((tmp >> 4) & k1) << 4,
                ((word(1) >> 4) & k2) | ((tmp >> 6) & k1) << 4,
            ];
            let scales: Vec<u8> = aux.iter().flat_map(|word| word.to_le_bytes()).collect();
            let (mut at, mut is, mut m) = (0, 0, 1u8);
            for n in 0..2 {
                for shift in [0, 2, 4, 6] {
                    for start in [0, 16] {
                        let dl = d * f64::from(i32::from(scales[is]) - 32);
                        is += 1;
                        for l in start..start + 16 {
                            let high = if hm[l] & m != 0 { 0 } else { 4 };
                            let q = i32::from(qs[32 * n + l] >> shift & 3) - high;
                            y[at] = dl * f64::from(q);
                            at += 1;
                        }
                    }
                    m = m.rotate_left(1);
                }
            }
        }
        BlockType::Q4K | BlockType::Q5K => {
            let (d, min, q) = (float(x), float(&x[2..]), &x[4..16]);
            let get_scale_min_k4 = |j: usize| match j {
                0..4 => (q[j] & 63, q[j + 4] & 63),
                _ => (
                    (q[j + 4] & 0xF) | ((q[j - 4] >> 6) << 4),
                    (q[j + 4] >> 4) | ((q[j] >> 6) << 4),
                ),
            };
            let (qh, ql) = match kind {
                BlockType::Q4K => (&[0; 32][..], &x[16..]),
                _ => (&x[16..48], &x[48..]),
            };
            for j in 0..4 {
                for (half, shift) in [(0, 0), (1, 4)] {
                    let (sc, m) = get_scale_min_k4(2 * j + half);
                    for l in 0..32 {
                        let high = if qh[l] & 1 << (2 * j + half) != 0 { 16 } else { 0 };
                        let q = (ql[32 * j + l] >> shift & 0xF) + high;
                        y[64 * j + 32 * half + l] =
                            d * f64::from(sc) * f64::from(q) - min * f64::from(m);
                    }
                }
            }
        }
        BlockType::Q6K => {
            let d = float(&x[208..]);
            for n in 0..2 {
                let (ql, qh) = (&x[64 * n..], &x[128 + 32 * n..]);
                let sc = |i: usize| f64::from(x[192 + 8 * n + i] as i8);
                for l in 0..32 {
                    let is = l / 16;
                    let q = [
                        (ql[l] & 0xF) | ((qh[l] & 3) << 4),
                        (ql[l + 32] & 0xF) | ((qh[l] >> 2 & 3) << 4),
                        (ql[l] >> 4) | ((qh[l] >> 4 & 3) << 4),
                        (ql[l + 32] >> 4) | ((qh[l] >> 6 & 3) << 4),
                    ];
                    for (k, q) in q.into_iter().enumerate() {
                        y[128 * n + 32 * k + l] = d * sc(is + 2 * k) * f64::from(i32::from(q) - 32);
                    }
                }
            }
        }
    }
    y
}

/// Builds a block of random bits with finite scales.
fn block(kind: BlockType, seed: u64) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15 ^ (seed + 1).wrapping_mul(0xd134_2543_de82_ef95);
    let mut next = || {
        state = u64::wrapping_add(state.wrapping_mul(0x5851_f42d_4c95_7f2d), 0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    let mut bytes: Vec<u8> = (0..kind.bytes()).map(|_| next()).collect();
    let floats: &[usize] = match kind {
        BlockType::Q2K => &[80, 82],
        BlockType::Q3K => &[108],
        BlockType::Q6K => &[208],
        BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4K | BlockType::Q5K => &[0, 2],
        _ => &[0],
    };
    for &at in floats {
        let value = 0.01 + f32::from(next()) / 5000.0;
        let sign = if seed.is_multiple_of(3) { -1.0 } else { 1.0 };
        bytes[at..at + 2].copy_from_slice(&f16::from_f32(sign * value).to_le_bytes());
    }
    bytes
}

/// Computes the weights from the parts that `fill` unpacks.
fn unpacked(kind: BlockType, bytes: &[u8]) -> Vec<f64> {
    let blocks = bytes.len() / kind.bytes();
    let part = |part: Part| {
        let mut out = vec![0; blocks * kind.part_bytes(part)];
        kind.fill(part, bytes, &mut out);
        out
    };
    let floats = |bytes: Vec<u8>| -> Vec<f64> {
        match kind.has_f16_scales() {
            true => bytes.chunks(2).map(float).collect(),
            false => bytes
                .chunks(4)
                .map(|bytes| f64::from(f32::from_le_bytes(bytes.try_into().unwrap())))
                .collect(),
        }
    };
    let (codes, scales, biases) =
        (part(Part::Codes), floats(part(Part::Scales)), floats(part(Part::Biases)));
    (0..blocks * kind.weights())
        .map(|i| {
            let bit = |at: usize| u32::from(codes[at / 8] >> (at % 8) & 1);
            let code: u32 = (0..kind.bits()).map(|b| bit(i * kind.bits() + b) << b).sum();
            scales[i / GROUP] * f64::from(code) + biases[i / GROUP]
        })
        .collect()
}

const BLOCKS: u64 = 200;

fn each_block(kind: BlockType, check: impl Fn(&[f64], &[f64])) {
    let blocks: Vec<Vec<u8>> = (0..BLOCKS).map(|seed| block(kind, seed)).collect();
    let got = unpacked(kind, &blocks.concat());
    for (block, got) in blocks.iter().zip(got.chunks(kind.weights())) {
        let want = dequantized(kind, block);
        assert!(want.iter().any(|v| *v != want[0]), "{kind:?}: a block of one number");
        for (got, want) in got.chunks(GROUP).zip(want.chunks(GROUP)) {
            check(got, want);
        }
    }
}

#[test]
fn exact_types_keep_every_number() {
    let mut exact = 0;
    for kind in BlockType::ALL.into_iter().filter(|kind| kind.is_exact()) {
        each_block(kind, |got, want| assert_eq!(got, want, "{kind:?}"));
        exact += 1;
    }
    assert_eq!(exact, 10);
}

/// Checks the K-quants in the layout of the kernels' module `k_quant`, which the parts `OwnCodes`
/// and `OwnScales` have.
#[test]
fn k_quants_keep_every_number_at_their_own_size() {
    let kinds = [(BlockType::Q4K, 4), (BlockType::Q5K, 5), (BlockType::Q6K, 6)];
    for (kind, bits) in kinds {
        assert_eq!(kind.own_bits(), Some(bits));
        let bytes: Vec<u8> = (0..BLOCKS).flat_map(|seed| block(kind, seed)).collect();
        let part = |part: Part| {
            let mut out = vec![0; BLOCKS as usize * kind.part_bytes(part)];
            kind.fill(part, &bytes, &mut out);
            out
        };
        let (codes, scales) = (part(Part::OwnCodes), part(Part::OwnScales));
        let blocks = bytes.chunks(kind.bytes()).zip(codes.chunks(32 * bits)).zip(scales.chunks(20));
        for ((block, codes), scales) in blocks {
            let (scales, biases) = crate::quantized_matmul::numbers_of_block(bits as u32, scales);
            let bit = |at: usize| u32::from(codes[at / 8] >> (at % 8) & 1);
            for (i, want) in dequantized(kind, block).into_iter().enumerate() {
                let code: u32 = (0..bits).map(|b| bit(i * bits + b) << b).sum();
                let group = i * scales.len() / 256;
                assert_eq!(scales[group] * f64::from(code) + biases[group], want, "{kind:?}, {i}");
            }
        }
    }
    assert!(BlockType::ALL.iter().filter(|kind| kind.own_bits().is_some()).count() == 3);
}

/// Returns the greatest common divisor of the differences of 16 weights. It is the quantization
/// step, or in about one of ten thousand cases twice the step. It is 0 if all weights are equal.
fn step(weights: &[f64]) -> f64 {
    weights.iter().fold(0.0, |step: f64, weight| {
        let (mut a, mut b) = (step, (weight - weights[0]).abs());
        while b > 0.0 {
            (a, b) = (b, a % b); // exact, as the weights are
        }
        a
    })
}

fn apart(got: &[f64], want: &[f64]) -> f64 {
    got.iter().zip(want).fold(0.0, |most: f64, (got, want)| most.max((got - want).abs()))
}

#[test]
fn types_with_a_step_for_16_weights_are_off_by_what_is_stated() {
    each_block(BlockType::Q6K, |got, want| {
        let steps = [step(&want[..16]), step(&want[16..])];
        let most = steps[0].max(steps[1]);
        let error = apart(got, want);
        assert!(error <= most / 6.0 * (1.0 + 1e-5), "{error} of {most}");
        let larger = if steps[0] > steps[1] { 0..16 } else { 16..32 };
        let kept = apart(&got[larger.clone()], &want[larger]);
        assert!(kept <= 1e-5 * most, "{kept} of {most}");
    });
    each_block(BlockType::Q2K, |got, want| {
        let (least, most) =
            want.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
        let error = apart(got, want);
        assert!(error <= (most - least) / 62.0 * (1.0 + 1e-5), "{error} of {least} to {most}");
    });
}

/// Checks that arbitrary bytes do not cause a panic, and that codes fit in their bits.
#[test]
fn any_bytes_are_unpacked() {
    for kind in BlockType::ALL {
        for fill in [0, 0xff, 0x7c, 0x7e, 0x80, 1] {
            let block = vec![fill; kind.bytes()];
            for index in 0..kind.weights() / GROUP {
                let group = kind.group(&block, index);
                let most = (1u32 << kind.bits()) - 1;
                assert!(group.codes.iter().all(|&code| u32::from(code) <= most), "{kind:?}");
            }
        }
    }
}

#[test]
fn halves_of_equal_scales_are_exact() {
    // Q6_K has a scale for 16 weights, and an unpacked group has one for 32. If all scales are 3,
    // both halves of a group have the same step, so unpacking loses nothing.
    for seed in 0..20 {
        let mut bytes = block(BlockType::Q6K, seed);
        bytes[192..208].fill(3);
        let got = unpacked(BlockType::Q6K, &bytes);
        assert_eq!(got, dequantized(BlockType::Q6K, &bytes));
    }
}
