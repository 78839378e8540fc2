//! Converts arrays, and the inputs of our ops, to another type. The result has the same bits as
//! MLX's own conversion, which compiled functions use.

use half::{bf16, f16};
use mlx_primitives::device::{Device, with_device};
use mlx_primitives::ops;
use mlx_primitives::transforms::{compile, grad, jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, step};

use crate::support::Checked;
use crate::support::compare::assert_same;

const FLOATS: [Dtype; 4] = [Dtype::Float16, Dtype::Float32, Dtype::Float64, Dtype::Bfloat16];

/// Converts the array by MLX's own primitive.
fn theirs(x: &Array, dtype: Dtype) -> Result<Array> {
    let converted = compile(move |x| Ok(vec![x[0].astype(dtype)?]), false)?.call(&[x])?;
    Ok(converted.into_iter().next().expect("one output"))
}

/// The bytes of the elements, in row-major order.
fn bits(x: &Array) -> Result<Vec<u8>> {
    fn cast<T: bytemuck::NoUninit>(values: Vec<T>) -> Vec<u8> {
        bytemuck::cast_slice(&values).to_vec()
    }
    Ok(match x.dtype() {
        Dtype::Bool => x.to_vec::<bool>()?.into_iter().map(u8::from).collect(),
        Dtype::Uint8 => x.to_vec::<u8>()?,
        Dtype::Uint16 => cast(x.to_vec::<u16>()?),
        Dtype::Uint32 => cast(x.to_vec::<u32>()?),
        Dtype::Uint64 => cast(x.to_vec::<u64>()?),
        Dtype::Int8 => cast(x.to_vec::<i8>()?),
        Dtype::Int16 => cast(x.to_vec::<i16>()?),
        Dtype::Int32 => cast(x.to_vec::<i32>()?),
        Dtype::Int64 => cast(x.to_vec::<i64>()?),
        Dtype::Float16 => cast(x.to_vec::<f16>()?.into_iter().map(f16::to_bits).collect()),
        Dtype::Float32 => cast(x.to_vec::<f32>()?),
        Dtype::Float64 => cast(x.to_vec::<f64>()?),
        Dtype::Bfloat16 => cast(x.to_vec::<bf16>()?.into_iter().map(bf16::to_bits).collect()),
        other => panic!("{other:?} is not real"),
    })
}

/// Numbers of every magnitude, numbers halfway between two float16 or two bfloat16 values,
/// subnormal numbers, infinities, and NaN.
fn floats() -> Vec<f64> {
    let mut all = vec![0.0, -0.0, 1.0, -1.5, 65504.0, 65519.0, 65520.0, 1e-300, 1e300];
    for exponent in -150..129 {
        for mantissa in
            [1.0, 1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 1.7]
        {
            all.push(mantissa * f64::from(exponent).exp2());
            all.push(-1.25 * mantissa * f64::from(exponent).exp2());
        }
    }
    all.extend([f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
    all
}

/// Test values of a type. `Some(true)` draws floats that every signed integer type can hold, and
/// `Some(false)` floats that every unsigned type can hold. `None` draws any floats.
fn elements(dtype: Dtype, small: Option<bool>) -> Result<Array> {
    let values = match small {
        _ if !FLOATS.contains(&dtype) => {
            let mut state = 1u64;
            let values: Vec<i64> = (0..1500)
                .map(|i| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i);
                    (state as i64) >> (i % 64)
                })
                .collect();
            return theirs(&Array::from_slice(&values, [values.len() as i32])?, dtype);
        }
        None => floats(),
        Some(signed) => {
            let lowest = if signed { -127.0 } else { -0.9 };
            (0..1000).map(|i| (lowest + 0.254 * f64::from(i)).min(127.9)).collect()
        }
    };
    theirs(&Array::from_slice(&values, [values.len() as i32])?, dtype)
}

/// The test converts only floats that the integer type can hold. For other floats MLX's result
/// depends on how the compiler vectorized its loop.
#[test]
fn every_pair_of_types_has_the_bits_of_mlx() -> Checked {
    with_device(Device::Cpu, || {
        let real = || Dtype::ALL.iter().copied().filter(|dtype| *dtype != Dtype::Complex64);
        for from in real() {
            for to in real() {
                let to_integer = !FLOATS.contains(&to) && to != Dtype::Bool;
                let signed = matches!(to, Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64);
                let x = elements(from, to_integer.then_some(signed))?;
                assert!(x.size() >= 1000);
                let (ours, want) = (x.astype(to)?, theirs(&x, to)?);
                assert_eq!(ours.dtype(), to);
                assert!(bits(&ours)? == bits(&want)?, "{from:?} to {to:?}: {ours}, not {want}");
            }
        }
        Ok(())
    })
}

/// Compares the conversions with the `half` crate, which rounds to nearest with ties to even.
#[test]
fn floats_are_rounded_to_even() -> Checked {
    with_device(Device::Cpu, || {
        let values: Vec<f32> = floats().into_iter().map(|x| x as f32).collect();
        let x = Array::from_slice(&values, [values.len() as i32])?;
        let (narrow, wide) = (x.astype(Dtype::Float16)?, x.astype(Dtype::Bfloat16)?);
        for ((x, a), b) in values.iter().zip(narrow.to_vec::<f16>()?).zip(wide.to_vec::<bf16>()?) {
            let same = |got: f32, want: f32| {
                got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan())
            };
            assert!(same(a.to_f32(), f16::from_f32(*x).to_f32()), "{x}: {a}");
            assert!(same(b.to_f32(), bf16::from_f32(*x).to_f32()), "{x}: {b}");
        }
        Ok(())
    })
}

#[test]
fn every_layout() -> Checked {
    with_device(Device::Cpu, || {
        let x = Array::arange::<f32>(0.0, 6.0 * 700.0, 1.0)?.divide(7.0)?.reshape((6, 700))?;
        let cube = x.reshape((6, 7, 100))?;
        let layouts = [
            x.clone(),
            x.t()?,
            x.i((1..4, ..))?,
            x.i((.., step(.., 3)))?,
            x.i((step(.., 2), step(1.., 50)))?,
            x.i((step(.., -1), ..))?,
            x.i((.., 0..1))?,
            x.i((.., 3..5))?.t()?,
            x.i(2)?.broadcast_to((5, 700))?,
            x.i((.., 0..1))?.broadcast_to((3, 6, 9))?,
            x.i((0, 0))?,
            x.i((0, 0))?.broadcast_to((4, 4))?,
            cube.transpose([1, 0, 2])?.i((.., .., step(.., 2)))?,
            cube.transpose([2, 1, 0])?.i((1..99, ..))?,
            x.i((0..0, ..))?,
        ];
        for (number, x) in layouts.iter().enumerate() {
            for dtype in [Dtype::Int32, Dtype::Bfloat16, Dtype::Float64, Dtype::Uint8, Dtype::Bool]
            {
                let x = if dtype == Dtype::Uint8 { x.minimum(200.0)? } else { x.clone() };
                let want: Vec<f64> = x
                    .to_vec::<f32>()?
                    .into_iter()
                    .map(|x| match dtype {
                        Dtype::Int32 | Dtype::Uint8 => f64::from(x.trunc()),
                        Dtype::Bfloat16 => f64::from(bf16::from_f32(x)),
                        Dtype::Bool => f64::from(u8::from(x != 0.0)),
                        _ => f64::from(x),
                    })
                    .collect();
                // Convert the array alone, and as part of a graph with another op.
                for got in [x.astype(dtype)?, x.multiply(1.0)?.astype(dtype)?] {
                    assert_eq!(got.shape(), x.shape());
                    let got = theirs(&got, Dtype::Float64)?.to_vec::<f64>()?;
                    assert_eq!(got, want, "layout {number}, {dtype:?}");
                }
            }
        }
        // If both types have the same size, the elements may be converted in place.
        let y = x.multiply(2.0)?.astype(Dtype::Int32)?.astype(Dtype::Float32)?;
        let doubled = x.multiply(2.0)?.to_vec::<f32>()?;
        assert!(y.to_vec::<f32>()?.iter().zip(&doubled).all(|(y, x)| *y == x.trunc()));
        assert_eq!(x.multiply(2.0)?.to_vec::<f32>()?, doubled);
        Ok(())
    })
}

#[test]
fn derivatives_and_maps() -> Checked {
    with_device(Device::Cpu, || {
        let x = Array::from_slice(&[1.5f32, -2.0, 3.25], 3)?;
        let half = |x: Array| x.astype(Dtype::Float16);
        let g = Array::from_slice(&[1.0f32, 2.0, 0.1], 3)?;
        let (_, back) = vjp(half, &x, &g.astype(Dtype::Float16)?)?;
        let rounded: Vec<f32> = [1.0, 2.0, 0.1].map(|g| f16::from_f32(g).to_f32()).to_vec();
        assert_eq!((back.dtype(), back.to_vec::<f32>()?), (Dtype::Float32, rounded.clone()));
        let (_, forth) = jvp(half, &x, &g)?;
        assert_eq!(forth.dtype(), Dtype::Float16);
        assert_eq!(theirs(&forth, Dtype::Float32)?.to_vec::<f32>()?, rounded);
        // The product converts the float16 weight to the type of the input, float32.
        let weight = Array::from_slice(&[2.0f32, 4.0], (1, 2))?.astype(Dtype::Float16)?;
        let input = Array::from_slice(&[3.0f32, 5.0], (1, 2))?;
        let loss = |w: Array| ops::matmul_nt(&input, &w)?.sum(..);
        let dw = grad(loss, &weight)?;
        assert_eq!(dw.dtype(), Dtype::Float16);
        assert_eq!(theirs(&dw, Dtype::Float32)?.to_vec::<f32>()?, [3.0, 5.0]);
        let many = Array::arange::<f32>(0.0, 12.0, 1.0)?.divide(4.0)?.reshape((3, 4))?;
        for axis in [0, 1] {
            let got = vmap(|x: Array| x.astype(Dtype::Int32), &many, axis, axis)?;
            assert_same(&got, &theirs(&many, Dtype::Int32)?, "mapped")?;
        }
        Ok(())
    })
}

/// A compiled function merges equal nodes. Conversions to different types are not equal.
#[test]
fn conversions_to_two_types_stay_apart_in_a_compiled_function() -> Checked {
    with_device(Device::Cpu, || {
        let x = Array::from_slice(&[3i32, -2, 70_001, 5], 4)?;
        let half = Array::full(4, 1.5f32)?.astype(Dtype::Float16)?;
        let brain = half.astype(Dtype::Bfloat16)?;
        let run = |x: &[Array]| Ok(vec![ops::swiglu(&x[0], &x[1])?, ops::swiglu(&x[0], &x[2])?]);
        let inputs = [&x, &half, &brain];
        let compiled = compile(run, false)?.call(&inputs)?;
        for (got, want) in compiled.iter().zip(run(&inputs.map(Clone::clone))?) {
            assert_same(got, &want, "a conversion beside another one")?;
        }
        Ok(())
    })
}
