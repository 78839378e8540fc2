//! Arrays and MLX's general ops, compared with plain Rust.

use half::{bf16, f16};
use mlx_primitives::{Array, Dtype, Element, concatenate, eval, select, stack, step};

use crate::support::compare::{assert_close, numbers};
use crate::support::input::{LAYOUTS, random32};
use crate::support::{Checked, message};

/// The numbers 0, 1, 2, … as an array of this shape.
fn iota(shape: &[i32]) -> mlx_primitives::Result<Array> {
    Array::arange::<i32>(0.0, shape.iter().product::<i32>().into(), 1.0)?.reshape(shape)
}

fn round_trip<T: Element + PartialEq + std::fmt::Debug>(values: &[T]) -> Checked {
    let shape = [2, values.len() as i32 / 2];
    let x = Array::from_slice(values, shape)?;
    assert_eq!((x.shape(), x.dtype()), (&shape[..], T::DTYPE));
    assert_eq!((x.size(), x.nbytes()), (values.len(), size_of_val(values)));
    assert_eq!(x.to_vec::<T>()?, values);
    // Read a transposed view, whose elements must first be copied into row-major order.
    let (rows, n) = (shape[0] as usize, shape[1] as usize);
    let turned: Vec<T> = (0..n).flat_map(|i| (0..rows).map(move |r| values[r * n + i])).collect();
    assert_eq!(x.t()?.to_vec::<T>()?, turned);
    assert_eq!(Array::scalar(values[1])?.item::<T>()?, values[1]);
    assert_eq!(Array::full([3], values[1])?.to_vec::<T>()?, [values[1]; 3]);
    assert_eq!(Array::zeros::<T>(&[2])?.to_vec::<T>()?, [T::default(); 2]);
    assert_eq!(Array::ones::<T>(&[2])?.to_vec::<T>()?, [T::from_f64(1.0); 2]);
    assert_eq!(Array::from_slice::<T>(&[], &[0, 3])?.to_vec::<T>()?, []);
    Ok(())
}

#[test]
fn every_element_type_survives_a_round_trip() -> Checked {
    round_trip(&[true, false, false, true])?;
    round_trip(&[0, 1, 127, u8::MAX])?;
    round_trip(&[0, 1, 256, u16::MAX])?;
    round_trip(&[0, 1, 1 << 16, u32::MAX])?;
    round_trip(&[0, 1, 1 << 53, u64::MAX])?;
    round_trip(&[i8::MIN, -1, 1, i8::MAX])?;
    round_trip(&[i16::MIN, -1, 1, i16::MAX])?;
    round_trip(&[i32::MIN, -1, 1, i32::MAX])?;
    round_trip(&[i64::MIN, -1, (1 << 53) + 1, i64::MAX])?;
    round_trip(&[f16::MIN, f16::from_bits(1), f16::INFINITY, f16::MAX])?;
    round_trip(&[bf16::MIN, bf16::from_bits(1), bf16::INFINITY, bf16::MAX])?;
    round_trip(&[f32::MIN, f32::from_bits(1), f32::NEG_INFINITY, f32::MAX])?;
    mlx_primitives::device::with_device(mlx_primitives::device::Device::Cpu, || {
        round_trip(&[f64::MIN, f64::from_bits(1), f64::NEG_INFINITY, f64::MAX])
    })
}

/// If the reduced axis is empty and the array is not row-contiguous, MLX's reduction may never
/// return. This crate therefore copies the array first.
#[test]
fn reductions_of_empty_transposed_arrays() -> Checked {
    // First run a reduction with many axes. It leaves values on the stack, and without the copy MLX
    // would use them as strides.
    let full = Array::ones::<u8>(&[5, 6, 7, 4])?.transpose([0, 2, 1, 3])?;
    let full = full.i((.., .., step(.., 2), step(.., 2)))?;
    for dtype in [Dtype::Uint8, Dtype::Int64, Dtype::Float32, Dtype::Bfloat16] {
        full.astype(dtype)?.sum(&[0, 1, 2][..])?.eval()?;
        let empty = Array::zeros_of([3, 0, 4], dtype)?.transpose([2, 1, 0])?;
        empty.eval()?;
        let values = |x: Array| -> mlx_primitives::Result<Vec<f32>> {
            assert_eq!(x.shape(), [4, 3]);
            x.astype(Dtype::Float32)?.to_vec()
        };
        assert_eq!(values(empty.sum(1)?)?, [0.0; 12]);
        assert_eq!(values(empty.prod(1)?)?, [1.0; 12]);
        assert_eq!(values(empty.all(1)?)?, [1.0; 12]);
        assert_eq!(values(empty.any(1)?)?, [0.0; 12]);
        assert!(values(empty.mean(1)?)?.iter().all(|mean| mean.is_nan()));
    }
    Ok(())
}

#[test]
fn every_bit_pattern_of_sixteen_bits() -> Checked {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let halves: Vec<f16> = all.iter().map(|&bits| f16::from_bits(bits)).collect();
    let brains: Vec<bf16> = all.iter().map(|&bits| bf16::from_bits(bits)).collect();
    let shape = [all.len() as i32];
    let halves = Array::from_slice(&halves, shape)?;
    let brains = Array::from_slice(&brains, shape)?;
    assert!(halves.to_vec::<f16>()?.iter().map(|v| v.to_bits()).eq(all.iter().copied()));
    assert!(brains.to_vec::<bf16>()?.iter().map(|v| v.to_bits()).eq(all.iter().copied()));
    let wide = halves.astype(Dtype::Float32)?.to_vec::<f32>()?;
    for (bits, wide) in all.iter().zip(wide) {
        let want = f16::from_bits(*bits).to_f32();
        assert!(wide == want || wide.is_nan() && want.is_nan(), "{bits:#x}: {wide}");
    }
    Ok(())
}

#[test]
fn wrong_types_and_sizes() -> Checked {
    let x = Array::from_slice(&[1.0f32, 2.0], [2])?;
    assert!(
        message(x.to_vec::<i32>()).starts_with("[to_vec] expected an array of int32, got float32")
    );
    assert!(message(x.to_vec::<f64>()).contains("float64"));
    assert!(message(x.item::<f32>()).starts_with("[item] expected an array of one element"));
    assert!(message(Array::scalar(1i32)?.item::<f32>()).contains("int32"));
    for shape in [&[][..], &[1], &[3], &[2, 2], &[-2], &[-1, -2], &[0], &[i32::MAX, i32::MAX]] {
        let text = message(Array::from_slice(&[1.0f32, 2.0], shape));
        assert!(text.starts_with("[from_slice] expected as many elements"), "{text}");
    }
    assert!(Array::from_slice::<u8>(&[], &[1 << 30, 1 << 30, 0]).is_ok());
    Ok(())
}

#[test]
fn handles_describe_their_arrays() -> Checked {
    let x = iota(&[2, 3, 4])?;
    assert_eq!((x.ndim(), x.size(), x.nbytes()), (3, 24, 96));
    assert_eq!((x.dim(0)?, x.dim(-1)?, x.dim(2)?), (2, 4, 4));
    for axis in [3, -4, i32::MAX, i32::MIN] {
        assert!(message(x.dim(axis)).starts_with("[dim] expected an axis within rank 3"));
    }
    let y = x.transpose([2, 0, 1])?;
    assert!(!y.is_scheduled());
    eval([&y])?;
    assert!(y.is_scheduled() && !y.is_row_contiguous());
    assert_eq!((y.shape(), y.strides()), (&[4, 2, 3][..], vec![1, 12, 4]));
    assert!(y.contiguous()?.to_vec::<i32>()? == y.to_vec::<i32>()?);
    let z = y.clone();
    drop(y);
    assert_eq!(z.shape(), [4, 2, 3]);
    Ok(())
}

#[test]
fn shapes() -> Checked {
    let x = iota(&[2, 3])?;
    assert_eq!(x.reshape([3, -1])?.shape(), [3, 2]);
    assert_eq!(x.reshape([6])?.to_vec::<i32>()?, [0, 1, 2, 3, 4, 5]);
    assert_eq!(x.transpose([-1, 0])?.to_vec::<i32>()?, [0, 3, 1, 4, 2, 5]);
    assert_eq!(x.t()?.reshape([6])?.to_vec::<i32>()?, [0, 3, 1, 4, 2, 5]);
    assert_eq!(x.expand_dims([0, -1])?.shape(), [1, 2, 3, 1]);
    assert_eq!(x.expand_dims([1])?.squeeze([1])?.shape(), [2, 3]);
    assert_eq!(iota(&[1, 3])?.broadcast_to([2, 2, 3])?.to_vec::<i32>()?, [0, 1, 2].repeat(4));
    assert_eq!(concatenate(&[&x, &x], 1)?.to_vec::<i32>()?, [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]);
    assert_eq!(concatenate(&[&x, &x], -2)?.shape(), [4, 3]);
    assert_eq!(stack(&[&x, &x], -1)?.to_vec::<i32>()?, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
    assert_eq!(Array::arange::<f32>(1.0, 0.0, -0.25)?.to_vec::<f32>()?, [1.0, 0.75, 0.5, 0.25]);
    assert_eq!(Array::arange::<i32>(3.0, 3.0, 1.0)?.shape(), [0]);
    Ok(())
}

/// The indices that Python's `[start:stop:step]` selects.
fn python(n: i32, start: i32, stop: i32, step: i32) -> Vec<i32> {
    let clamp = |bound: i32, low: i32, high: i32| {
        (if bound < 0 { bound + n } else { bound }).clamp(low, high)
    };
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let (mut at, stop) = (clamp(start, low, high), clamp(stop, low, high));
    let mut selected = Vec::new();
    while (step > 0 && at < stop) || (step < 0 && at > stop) {
        selected.push(at);
        at += step;
    }
    selected
}

#[test]
fn slices_follow_python() -> Checked {
    for n in [1, 2, 5, 7] {
        let x = iota(&[n])?;
        let bounds: Vec<i32> = (-n - 2..n + 3).collect();
        for &start in &bounds {
            for &stop in &bounds {
                for every in [1, 2, 3, -1, -2, -3, 100, -100] {
                    let got = x.i(step(start..stop, every))?.to_vec::<i32>()?;
                    assert_eq!(got, python(n, start, stop, every), "{n}: {start}:{stop}:{every}");
                }
                let got = x.i(start..stop)?.to_vec::<i32>()?;
                assert_eq!(got, python(n, start, stop, 1), "{n}: {start}:{stop}");
            }
            assert_eq!(x.i(start..)?.to_vec::<i32>()?, python(n, start, n, 1));
            assert_eq!(x.i(..start)?.to_vec::<i32>()?, python(n, 0, start, 1));
        }
        let reversed: Vec<i32> = (0..n).rev().collect();
        assert_eq!(x.i(step(.., -1))?.to_vec::<i32>()?, reversed);
    }
    let x = iota(&[3, 4])?;
    assert_eq!(x.i((1.., step(0..4, 2)))?.to_vec::<i32>()?, [4, 6, 8, 10]);
    assert_eq!(x.slice_axis(-1, 3..)?.to_vec::<i32>()?, [3, 7, 11]);
    assert_eq!(x.i(())?.shape(), [3, 4]);
    let update = Array::from_slice(&[-1i32, -2], [2])?;
    let updated = x.slice_update((1..3, 1..3), &update)?;
    assert_eq!(updated.to_vec::<i32>()?, [0, 1, 2, 3, 4, -1, -2, 7, 8, -1, -2, 11]);
    assert_eq!(x.to_vec::<i32>()?, (0..12).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn conversions_follow_rust() -> Checked {
    let x = Array::from_slice(&[-1.9f32, 0.0, 0.5, 200.7], [4])?;
    assert_eq!(x.astype(Dtype::Int32)?.to_vec::<i32>()?, [-1, 0, 0, 200]);
    assert_eq!(x.astype(Dtype::Bool)?.to_vec::<bool>()?, [true, false, true, true]);
    assert_eq!(x.astype(Dtype::Float32)?.to_vec::<f32>()?, [-1.9, 0.0, 0.5, 200.7]);
    let values = random32(&[1000], 1)?.to_vec::<f32>()?;
    let x = Array::from_slice(&values, [1000])?;
    let want: Vec<f16> = values.iter().map(|&v| f16::from_f32(v)).collect();
    assert_eq!(x.astype(Dtype::Float16)?.to_vec::<f16>()?, want);
    let want: Vec<bf16> = values.iter().map(|&v| bf16::from_f32(v)).collect();
    assert_eq!(x.astype(Dtype::Bfloat16)?.to_vec::<bf16>()?, want);
    Ok(())
}

#[test]
fn indices_wrap_and_are_kept_within_the_axis() -> Checked {
    let x = iota(&[4, 3])?;
    let rows = |indices: &Array| x.take(indices, 0)?.slice_axis(1, 0..1)?.to_vec::<i32>();
    let i = Array::from_slice(&[0i32, -1, -4, 3, 4, 100, -5, i32::MAX, i32::MIN], [9])?;
    assert_eq!(rows(&i)?, [0, 9, 0, 9, 9, 9, 0, 9, 0]);
    assert_eq!(rows(&Array::from_slice(&[0u32, 3, 4, u32::MAX], [4])?)?, [0, 9, 9, 9]);
    assert_eq!(rows(&Array::from_slice(&[1u8, 255], [2])?)?, [3, 9]);
    // An index that does not fit in 32 bits is outside the axis too. It does not wrap around to a
    // valid index.
    assert_eq!(
        rows(&Array::from_slice(&[1i64 << 32, i64::MAX, i64::MIN, -1], [4])?)?,
        [9, 9, 0, 9]
    );
    assert_eq!(rows(&Array::from_slice(&[1u64 << 32, u64::MAX], [2])?)?, [9, 9]);
    let square = Array::from_slice(&[0i32, 1, 2, 3], [2, 2])?;
    assert_eq!(x.take(&square, 0)?.shape(), [2, 2, 3]);

    let along = Array::from_slice(&[2i32, 0, -1, 7], [4, 1])?;
    assert_eq!(x.take_along_axis(&along, 1)?.to_vec::<i32>()?, [2, 3, 8, 11]);
    let put = x.put_along_axis(&along, &Array::scalar(-1i32)?, 1)?;
    assert_eq!(put.to_vec::<i32>()?, [0, 1, -1, -1, 4, 5, 6, 7, -1, 9, 10, -1]);
    let floats = Array::from_slice(&[0.0f32], [1])?;
    assert!(message(x.take(&floats, 0)).starts_with("[take] expected integer indices"));
    assert!(message(Array::zeros::<f32>(&[0])?.take(&square, 0)).contains("at least one element"));
    Ok(())
}

#[test]
fn order_and_sums() -> Checked {
    for layout in LAYOUTS {
        let x = layout.make(&[5, 7], Dtype::Float32, 2)?;
        let plain = x.to_vec::<f32>()?;
        let rows: Vec<&[f32]> = plain.chunks(7).collect();
        let sorted = x.sort(-1)?.to_vec::<f32>()?;
        let order = x.argsort(1)?.to_vec::<u32>()?;
        let sums = x.cumsum(1)?.to_vec::<f32>()?;
        let most = x.argmax(-1)?.to_vec::<u32>()?;
        for (r, row) in rows.iter().enumerate() {
            let mut want = row.to_vec();
            want.sort_by(f32::total_cmp);
            assert_eq!(sorted[r * 7..][..7], want, "{layout:?}");
            let by_order: Vec<f32> = order[r * 7..][..7].iter().map(|&i| row[i as usize]).collect();
            assert_eq!(by_order, want, "{layout:?}");
            assert_eq!(row[most[r] as usize], want[6], "{layout:?}");
            let mut sum = 0.0;
            for (i, v) in row.iter().enumerate() {
                sum += v;
                // The result is a sum of seven numbers up to 3.
                assert!((sums[r * 7 + i] - sum).abs() <= 7.0 * 21.0 * f32::EPSILON, "{layout:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn reductions() -> Checked {
    let x = random32(&[3, 4, 5], 3)?;
    let v = numbers(&x)?;
    let sum: f64 = v.iter().sum();
    let mean = sum / 60.0;
    let var = v.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / 60.0;
    let least = v.iter().copied().fold(f64::INFINITY, f64::min);
    let most = v.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let logsumexp = v.iter().map(|v| v.exp()).sum::<f64>().ln();
    let product: f64 = v.iter().product();
    for (got, want) in [
        (x.sum(..)?, sum),
        (x.mean(..)?, mean),
        (x.var(..)?, var),
        (x.min(..)?, least),
        (x.max(..)?, most),
        (x.logsumexp(..)?, logsumexp),
        (x.prod(..)?, product),
    ] {
        // The bound is for the sum, which has 60 terms. Each addition is wrong by at most half an
        // ulp of a partial sum below 30. The errors of the other results are smaller.
        assert_close(&numbers(&got)?, &[want], 60.0 * 30.0 * 6e-8, "all axes");
        assert_eq!(got.shape(), [0i32; 0]);
    }
    assert_eq!(x.sum_keepdims([0, -1])?.shape(), [1, 4, 1]);
    assert_eq!(x.sum(1)?.shape(), [3, 5]);
    let b = Array::from_slice(&[true, false, true, true], [2, 2])?;
    assert_eq!(b.all(1)?.to_vec::<bool>()?, [false, true]);
    assert_eq!(b.any(0)?.to_vec::<bool>()?, [true, true]);
    Ok(())
}

#[test]
fn products() -> Checked {
    let (a, b) = (random32(&[2, 3, 4], 4)?, random32(&[4, 5], 5)?);
    let (va, vb) = (numbers(&a)?, numbers(&b)?);
    let want: Vec<f64> =
        (0..30).map(|i| (0..4).map(|k| va[i / 5 * 4 + k] * vb[k * 5 + i % 5]).sum()).collect();
    // The result is a sum of four products up to 9.
    assert_close(&numbers(&a.matmul(&b)?)?, &want, 4.0 * 36.0 * 6e-8, "matmul");
    let turned = b.t()?.contiguous()?.t()?;
    assert_close(&numbers(&a.matmul(&turned)?)?, &want, 4.0 * 36.0 * 6e-8, "transposed");
    assert!(a.matmul(&a).is_err());
    Ok(())
}

type Unary = (&'static str, fn(&Array) -> mlx_primitives::Result<Array>, fn(f64) -> f64);

#[test]
fn elementwise() -> Checked {
    let x = random32(&[200], 6)?;
    let v = numbers(&x)?;
    let functions: [Unary; 12] = [
        ("abs", Array::abs, f64::abs),
        ("cos", Array::cos, f64::cos),
        ("exp", Array::exp, f64::exp),
        ("log", |x| x.abs()?.add(0.1)?.log(), |v| (v.abs() + 0.1).ln()),
        ("negative", Array::negative, |v| -v),
        ("reciprocal", |x| x.abs()?.add(0.1)?.reciprocal(), |v| 1.0 / (v.abs() + 0.1)),
        ("rsqrt", |x| x.abs()?.add(0.1)?.rsqrt(), |v| (v.abs() + 0.1).powf(-0.5)),
        ("sigmoid", Array::sigmoid, |v| 1.0 / (1.0 + (-v).exp())),
        ("sin", Array::sin, f64::sin),
        ("sqrt", |x| x.abs()?.sqrt(), |v| v.abs().sqrt()),
        ("square", Array::square, |v| v * v),
        ("tanh", Array::tanh, f64::tanh),
    ];
    for (name, ours, want) in functions {
        let want: Vec<f64> = v.iter().map(|&v| want(v)).collect();
        // Each function is wrong by a few ulps. Adding 0.1 first multiplies the error by at most
        // 10.
        assert_close(&numbers(&ours(&x)?)?, &want, 2e-6, name);
    }
    let y = random32(&[200], 7)?;
    let w = numbers(&y)?;
    let pairs =
        |f: fn(f64, f64) -> f64| -> Vec<f64> { v.iter().zip(&w).map(|(&a, &b)| f(a, b)).collect() };
    assert_close(&numbers(&x.add(&y)?)?, &pairs(|a, b| a + b), 1e-6, "add");
    assert_close(&numbers(&x.subtract(&y)?)?, &pairs(|a, b| a - b), 1e-6, "subtract");
    assert_close(&numbers(&x.multiply(&y)?)?, &pairs(|a, b| a * b), 1e-6, "multiply");
    assert_close(&numbers(&x.divide(&y)?)?, &pairs(|a, b| a / b), 1e-6, "divide");
    assert_close(&numbers(&x.maximum(&y)?)?, &pairs(f64::max), 0.0, "maximum");
    assert_close(&numbers(&x.minimum(&y)?)?, &pairs(f64::min), 0.0, "minimum");
    assert_close(&numbers(&x.abs()?.power(&y)?)?, &pairs(|a, b| a.abs().powf(b)), 1e-5, "power");
    assert_close(&numbers(&x.less(&y)?)?, &pairs(|a, b| f64::from(a < b)), 0.0, "less");
    assert_close(&numbers(&x.greater(&y)?)?, &pairs(|a, b| f64::from(a > b)), 0.0, "greater");
    let chosen = select(&x.less(&y)?, &x, &y)?;
    assert_close(&numbers(&chosen)?, &pairs(f64::min), 0.0, "select");
    Ok(())
}

#[test]
fn numbers_take_the_arrays_type() -> Checked {
    let half = Array::ones::<f16>(&[2])?;
    assert_eq!(half.multiply(2.5)?.dtype(), Dtype::Float16);
    assert_eq!(half.add(1)?.dtype(), Dtype::Float16);
    assert_eq!(Array::ones::<i32>(&[2])?.multiply(2.5)?.to_vec::<f32>()?, [2.5; 2]);
    assert_eq!(Array::ones::<u8>(&[2])?.add(1)?.dtype(), Dtype::Uint8);
    assert_eq!(Array::ones::<bool>(&[2])?.add(1)?.to_vec::<i32>()?, [2; 2]);
    let integers = Array::from_slice(&[7i32, 2], [2])?;
    assert_eq!(integers.divide(2)?.to_vec::<f32>()?, [3.5, 1.0]);
    Ok(())
}
