//! Compares `quantize` with MLX bit for bit. Also dequantizes the codes and compares the numbers
//! with float64. The conformance table (`tests/catalog`) tests `dequantize` alone.

use mlx_primitives::device::Device;
use mlx_primitives::ops::{QuantizedMode, QuantizedWeight};
use mlx_primitives::transforms::{vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, builtin, ops, stack};

use crate::support::compare::{assert_same, numbers};
use crate::support::input::{FLOATS, LAYOUTS, data, random, random32, values};
use crate::support::{self, Checked, each_device, simulated};

const BITS: [i32; 6] = [2, 3, 4, 5, 6, 8];
const GROUPS: [i32; 3] = [32, 64, 128];

/// MLX's Metal kernel rounds ties away from zero. It also takes 0 as the maximum of a group in
/// which all numbers are negative. On every device, our kernel does what MLX does on a CPU.
fn follows_mlx_bit_for_bit(device: Device) -> bool {
    device == Device::Cpu || simulated()
}

fn check(device: Device, x: &Array, group_size: i32, bits: i32, what: &str) -> Checked {
    let what = format!("{what} {} {:?} {group_size} {bits}", x.dtype(), x.shape());
    let (packed, scales, biases) = ops::quantize(x, group_size, bits)?;
    let back = ops::dequantize(&packed, &scales, &biases, group_size, bits)?;
    assert_eq!((back.shape(), back.dtype()), (x.shape(), x.dtype()), "{what}");
    if follows_mlx_bit_for_bit(device) {
        let peers = builtin::composition(&packed)?;
        assert_eq!(packed.shape(), peers[0].shape(), "{what}");
        assert_eq!(packed.to_vec::<u32>()?, peers[0].to_vec::<u32>()?, "{what}: codes");
        assert_same(&scales, &peers[1], &format!("{what}: scales"))?;
        assert_same(&biases, &peers[2], &format!("{what}: biases"))?;
        let peer = ops::dequantize(&packed, &scales, &biases, group_size, bits)?;
        let peer = builtin::composition(&peer)?.remove(0);
        assert_same(&back, &peer, &format!("{what}: back"))?;
    }
    near(x, [&packed, &scales, &biases, &back], group_size as usize, bits as usize, &what)
}

/// Checks in float64 that each code's number is within a quantization step of x, and that
/// `dequantize` returns the code's number.
fn near(x: &Array, q: [&Array; 4], group_size: usize, bits: usize, what: &str) -> Checked {
    let words = q[0].to_vec::<u32>()?;
    let (scales, biases, back) = (numbers(q[1])?, numbers(q[2])?, numbers(q[3])?);
    let epsilon = match x.dtype() {
        Dtype::Float16 => 2f64.powi(-11),
        Dtype::Bfloat16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    };
    let top = f64::from((1 << bits) - 1);
    for (i, (x, back)) in numbers(x)?.into_iter().zip(back).enumerate() {
        let code = (0..bits).fold(0, |code, bit| {
            let at = i * bits + bit;
            code | (words[at / 32] >> (at % 32) & 1) << bit
        });
        let (scale, bias) = (scales[i / group_size], biases[i / group_size]);
        let exact = f64::from(code) * scale + bias;
        // `dequantize` rounds the product of code and scale, and the sum with the bias, to the
        // type.
        let rounding = epsilon * (2.0 * top * scale.abs() + bias.abs() + exact.abs());
        assert!((back - exact).abs() <= rounding + 1e-7, "{what}: {back} {exact} at {i}");
        // A number is wrong by half a quantization step plus the roundings of scale and bias.
        // `quantize` changes the scale so that 0 has a code. This may cost another half step at one
        // end of the range.
        let allowed = scale.abs() * (1.0 + 1e-3) + rounding + 1e-7;
        assert!((exact - x).abs() <= allowed, "{what}: {x} became {exact} at {i}");
    }
    Ok(())
}

#[test]
fn sizes_in_every_type() -> Checked {
    each_device(|device| {
        for dtype in FLOATS {
            for bits in BITS {
                for group_size in GROUPS {
                    for rows in [&[1][..], &[3], &[2, 3, 5], &[67]] {
                        let shape = [rows, &[group_size * (1 + bits % 3)]].concat();
                        check(device, &random(&shape, dtype, 1)?, group_size, bits, "sizes")?;
                    }
                }
            }
        }
        Ok(())
    })
}

#[test]
fn layouts_and_empty_axes() -> Checked {
    each_device(|device| {
        for layout in LAYOUTS {
            let x = layout.make(&[4, 3, 64], Dtype::Bfloat16, 2)?;
            check(device, &x, 32, 4, &format!("{layout:?}"))?;
        }
        for shape in [[0, 64], [3, 0]] {
            let x = random(&shape, Dtype::Float16, 1)?;
            let (packed, scales, biases) = ops::quantize(&x, 64, 4)?;
            let back = ops::dequantize(&packed, &scales, &biases, 64, 4)?;
            assert_eq!((back.shape(), numbers(&back)?.len()), (&shape[..], 0));
        }
        Ok(())
    })
}

#[test]
fn extremes_are_those_of_mlx() -> Checked {
    each_device(|device| {
        if !follows_mlx_bit_for_bit(device) {
            return Ok(());
        }
        for dtype in FLOATS {
            let top = if dtype == Dtype::Float16 { 65_504.0 } else { 3e38 };
            let mut rows = vec![values(64, 1, 1.0); 14];
            rows[0].fill(0.0);
            rows[1].fill(-0.0);
            rows[2].fill(2.5);
            rows[3].fill(-2.5);
            rows[4].iter_mut().for_each(|v| *v = v.abs() + 1.0);
            rows[5].iter_mut().for_each(|v| *v = -v.abs() - 1.0);
            rows[6].iter_mut().for_each(|v| *v *= 1e-7);
            rows[7].iter_mut().for_each(|v| *v *= top);
            (rows[8][7], rows[8][40]) = (f32::NAN, f32::NAN);
            rows[9].fill(f32::NAN);
            rows[10][3] = f32::INFINITY;
            rows[11][3] = f32::NEG_INFINITY;
            (rows[12][3], rows[12][5]) = (f32::INFINITY, f32::NEG_INFINITY);
            rows[13].iter_mut().for_each(|v| *v = (*v * 15.0).round() / 2.0);
            let x = data(&rows.concat(), &[14, 64], dtype)?;
            for bits in BITS {
                for group_size in [32, 64] {
                    let (packed, scales, biases) = ops::quantize(&x, group_size, bits)?;
                    let peers = builtin::composition(&packed)?;
                    let what = format!("{dtype} {group_size} {bits}");
                    let (got, want) = (packed.to_vec::<u32>()?, peers[0].to_vec::<u32>()?);
                    assert_eq!(got, want, "{what}");
                    assert_same(&scales, &peers[1], &what)?;
                    assert_same(&biases, &peers[2], &what)?;
                    let back = ops::dequantize(&packed, &scales, &biases, group_size, bits)?;
                    assert_same(&back, &builtin::composition(&back)?[0], &what)?;
                }
            }
        }
        Ok(())
    })
}

/// Dequantizes the rows `ids` of a matrix in two ways: by our single node, and by MLX's `take` of
/// codes, scales and biases, followed by `ops::dequantize`.
fn both_rows(weight: &QuantizedWeight, ids: &Array) -> Result<[Array; 2]> {
    let (scales, biases) = (weight.scales(), weight.biases().expect("affine has biases"));
    let (group_size, bits) = (weight.group_size(), weight.bits());
    let [packed, scales, biases] =
        [weight.packed().take(ids, 0)?, scales.take(ids, 0)?, biases.take(ids, 0)?];
    let peer = ops::dequantize(&packed, &scales, &biases, group_size, bits)?;
    Ok([weight.take_rows(ids, scales.dtype())?, peer])
}

#[test]
fn rows_are_those_of_mlx() -> Checked {
    each_device(|_| {
        for (dtype, bits) in FLOATS.into_iter().flat_map(|d| BITS.map(|bits| (d, bits))) {
            for group_size in GROUPS {
                let w = random(&[11, 2 * group_size], dtype, 1)?;
                let weight =
                    QuantizedWeight::quantize(&w, group_size, bits, QuantizedMode::Affine)?;
                let ids = Array::from_slice(&[10, 0, -1, 3, 3, -11], (3, 2))?;
                let [rows, peer] = both_rows(&weight, &ids)?;
                assert_eq!(rows.shape(), [3, 2, 2 * group_size]);
                assert_same(&rows, &peer, &format!("{dtype} {bits} {group_size}"))?;
            }
        }
        let w = random(&[9, 64], Dtype::Bfloat16, 1)?;
        let weight = QuantizedWeight::quantize(&w, 32, 4, QuantizedMode::Affine)?;
        let ids = Array::from_slice(&[8i32, 1, 0, 5], (2, 2))?;
        for kind in [Dtype::Uint8, Dtype::Int16, Dtype::Uint32, Dtype::Int64] {
            let [rows, peer] = both_rows(&weight, &ids.astype(kind)?.t()?)?;
            assert_same(&rows, &peer, &format!("{kind} ids that are not contiguous"))?;
        }
        let one = weight.take_rows(&Array::scalar(5i32)?, w.dtype())?;
        assert_eq!(one.shape(), [64]);
        let [_, peer] = both_rows(&weight, &Array::from_slice(&[5], 1)?)?;
        assert_same(&one, &peer.squeeze([0])?, "one row")?;
        let none = both_rows(&weight, &Array::from_slice::<i32>(&[], (2, 0))?)?;
        assert!(none.iter().all(|rows| rows.shape() == [2, 0, 64]));
        let beyond = [
            Array::from_slice(&[9, -9, -10, i32::MAX, i32::MIN], 5)?,
            Array::from_slice(&[9, 1 << 31, u32::MAX], 3)?,
            Array::from_slice(&[1i64 << 32, -1 << 33, (1 << 32) + 1], 3)?,
            Array::from_slice(&[1u64 << 32, (1 << 32) + 1, u64::MAX], 3)?,
        ];
        for ids in beyond {
            let [rows, peer] = both_rows(&weight, &ids)?;
            assert_same(&rows, &peer, &format!("{} ids beyond the matrix", ids.dtype()))?;
            let composed = builtin::composition(&weight.take_rows(&ids, w.dtype())?)?;
            assert_same(&composed[0], &peer, "their composition")?;
        }
        let refused = weight.take_rows(&Array::scalar(1.0f32)?, w.dtype()).unwrap_err();
        assert!(refused.to_string().contains("integer"), "{refused}");
        Ok(())
    })
}

#[test]
fn rows_have_the_derivatives_and_vmap_of_mlxs_lookups() -> Checked {
    let (packed, scales, biases) = ops::quantize(&random32(&[5, 64], 1)?, 32, 4)?;
    let ids = Array::from_slice(&[4, 0, 4], 3)?;
    let rows = |scales: &Array, biases: &Array, ids: &Array| {
        let (packed, scales, biases) = (packed.clone(), scales.clone(), Some(biases.clone()));
        let weight = QuantizedWeight::new(packed, scales, biases, 32, 4, QuantizedMode::Affine)?;
        weight.take_rows(ids, Dtype::Float32)
    };
    let peer = |scales: &Array, biases: &Array, ids: &Array| {
        let [packed, scales, biases] =
            [packed.take(ids, 0)?, scales.take(ids, 0)?, biases.take(ids, 0)?];
        let ours = ops::dequantize(&packed, &scales, &biases, 32, 4)?;
        Ok::<_, mlx_primitives::Error>(builtin::composition(&ours)?.swap_remove(0))
    };
    let g = random32(&[3, 64], 2)?;
    let ours = vjp(|p| Ok(vec![rows(&p[0], &p[1], &ids)?]), &[&scales, &biases], &[&g])?.1;
    let theirs = vjp(|p| Ok(vec![peer(&p[0], &p[1], &ids)?]), &[&scales, &biases], &[&g])?.1;
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_same(ours, theirs, "vjp")?;
        assert!(numbers(ours)?.iter().any(|v| *v != 0.0), "a gradient of nothing but zeros");
    }
    let many = Array::from_slice(&[4, 0, 1, 3, 2, 2], (3, 2))?;
    let one = vmap(|p| Ok(vec![rows(&scales, &biases, &p[0])?]), &[&many], [Some(1)], [0])?;
    assert_same(&one[0], &rows(&scales, &biases, &many.t()?)?, "vmap over ids")?;
    let doubled = stack(&[&scales, &scales.multiply(2.0)?], 0)?;
    let two = vmap(|p| Ok(vec![rows(&p[0], &biases, &ids)?]), &[&doubled], [Some(0)], [0])?;
    let second = rows(&scales.multiply(2.0)?, &biases, &ids)?;
    assert_same(&two[0].slice_axis(0, 1..2)?.squeeze([0])?, &second, "vmap over scales")?;
    Ok(())
}

#[test]
fn quantize_has_mlxs_derivatives() -> Checked {
    let (x, g) = (random32(&[2, 64], 1)?, random32(&[2, 2], 2)?);
    let scales = |p: &[Array]| Ok(vec![ops::quantize(&p[0], 32, 4)?.1]);
    let peer = |p: &[Array]| {
        let (packed, _, _) = ops::quantize(&p[0], 32, 4)?;
        Ok(vec![builtin::composition(&packed)?.remove(1)])
    };
    let (ours, theirs) = (vjp(|p| scales(&p), &[&x], &[&g])?.1, vjp(|p| peer(&p), &[&x], &[&g])?.1);
    assert_same(&ours[0], &theirs[0], "vjp of the scales")?;
    assert!(numbers(&ours[0])?.iter().any(|v| *v != 0.0), "a gradient of nothing but zeros");
    Ok(())
}

#[test]
fn vmap_over_each_axis() -> Checked {
    each_device(|_| {
        let x = random32(&[3, 4, 5, 64], 1)?;
        let there = |p: &[Array]| {
            let (packed, scales, biases) = ops::quantize(&p[0], 32, 4)?;
            Ok(vec![packed, scales, biases])
        };
        let back = |p: &[Array]| Ok(vec![ops::dequantize(&p[0], &p[1], &p[2], 32, 4)?]);
        for axis in 0..3 {
            let got = vmap(|p| there(&p), &[&x], [Some(axis)], [0, 0, 0])?;
            let mut all = [Vec::new(), Vec::new(), Vec::new()];
            for i in 0..x.dim(axis)? {
                let entry = x.slice_axis(axis, i..i + 1)?.squeeze([axis])?;
                all.iter_mut().zip(there(&[entry])?).for_each(|(list, part)| list.push(part));
            }
            let want: Vec<Array> = all
                .iter()
                .map(|list| stack(&list.iter().collect::<Vec<_>>(), 0))
                .collect::<Result<_>>()?;
            assert_eq!(got[0].to_vec::<u32>()?, want[0].to_vec::<u32>()?);
            assert_same(&got[1], &want[1], "scales")?;
            assert_same(&got[2], &want[2], "biases")?;
            let axes = [Some(0), Some(0), Some(0)];
            let whole = vmap(|p| back(&p), &[&got[0], &got[1], &got[2]], axes, [0])?;
            let plain = ops::dequantize(&want[0], &want[1], &want[2], 32, 4)?;
            assert_same(&whole[0], &plain, "back")?;
        }
        Ok(())
    })
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::kernel_traffic"]
fn moves_each_byte_once() -> Checked {
    for bits in BITS {
        let x = random(&[16, 256], Dtype::Bfloat16, 1)?;
        x.eval()?;
        let mut all = None;
        let moved = support::moved(|| {
            let (packed, scales, biases) = ops::quantize(&x, 64, bits)?;
            all = Some([packed.clone(), scales, biases]);
            Ok(packed)
        })?;
        let [packed, scales, biases] = all.expect("outputs");
        let sizes = [&packed, &scales, &biases].map(|a| a.nbytes() as u64);
        let bytes = x.nbytes() as u64;
        let [read, a, b, c] = moved[0].arrays[..] else { panic!("{moved:?}") };
        assert_eq!((read, [a[1], b[1], c[1]]), ([bytes, 0, bytes], sizes));
        if bits == 4 {
            support::report_traffic(
                "quantize",
                &moved,
                (bytes + sizes.iter().sum::<u64>()) as usize,
            )?;
        }
        let moved = support::moved(|| ops::dequantize(&packed, &scales, &biases, 64, bits))?;
        let [a, b, c, out] = moved[0].arrays[..] else { panic!("{moved:?}") };
        assert_eq!(([a[2], b[2], c[2]], out), (sizes, [0, bytes, 0]));
        assert_eq!(a[0], sizes[0], "codes are read once");
    }
    Ok(())
}
