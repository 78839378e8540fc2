//! Inputs that ops refuse, and the error messages. The tests in `every` cover types that ops
//! refuse.

use mlx_primitives::device::{Device, with_device};
use mlx_primitives::ops::{self, CrossEntropy, Linear, LinearWeight, Lora, MaskedSoftmax};
use mlx_primitives::{Array, Dtype, Result};

use crate::support::input::random32;
use crate::support::{Checked, EPS, message};

/// Checks that the error of `op` says what the op expected and what it got, and contains `part`.
#[track_caller]
pub fn refused<T>(op: &str, result: Result<T>, part: &str) {
    let said = message(result);
    let expected = said.starts_with(&format!("[{op}] expected ")) && said.contains("got ");
    assert!(expected && said.contains(part), "{said} lacks {part}");
}

fn ones(shape: &[i32]) -> Result<Array> {
    Array::ones::<f32>(shape)
}

fn of(shape: &[i32]) -> Result<Array> {
    random32(shape, 9)
}

#[test]
fn norms() -> Checked {
    let (x, r) = (of(&[2, 8])?, ones(&[2, 8])?);
    let empty = ones(&[3, 0])?;
    let scalar = ones(&[])?;
    for shape in [&[][..], &[1], &[7], &[9], &[8, 1], &[1, 8]] {
        let v = ones(shape)?;
        refused("rms_norm", ops::rms_norm(&x, Some(&v), EPS), "weight of shape (8)");
        refused("layer_norm", ops::layer_norm(&x, Some(&v), None, EPS), "weight of shape (8)");
        refused("layer_norm", ops::layer_norm(&x, None, Some(&v), EPS), "bias of shape (8)");
        let op = "layer_norm_residual";
        let y = ops::layer_norm_residual(&x, &r, Some(&v), None, EPS);
        refused(op, y, "weight of shape (8)");
        let y = ops::layer_norm_residual(&x, &r, None, Some(&v), EPS);
        refused(op, y, "bias of shape (8)");
        let y = ops::rms_norm_residual(&x, &r, Some(&v), EPS);
        refused("rms_norm_residual", y, "weight of shape (8)");
    }
    let complex = ones(&[8])?.astype(Dtype::Complex64)?;
    refused("rms_norm", ops::rms_norm(&x, Some(&complex), EPS), "complex64");
    for (x, part) in [(&scalar, "scalar"), (&empty, "(3,0)")] {
        refused("rms_norm", ops::rms_norm(x, None, EPS), part);
        refused("layer_norm", ops::layer_norm(x, None, None, EPS), part);
        refused("layer_norm_residual", ops::layer_norm_residual(x, x, None, None, EPS), part);
        refused("rms_norm_residual", ops::rms_norm_residual(x, x, None, EPS), part);
    }
    for shape in [&[][..], &[8], &[1, 8], &[2, 7], &[8, 2], &[1, 2, 8]] {
        let r = ones(shape)?;
        let part = "residual of shape (2,8)";
        refused("layer_norm_residual", ops::layer_norm_residual(&x, &r, None, None, EPS), part);
        refused("rms_norm_residual", ops::rms_norm_residual(&x, &r, None, EPS), part);
    }
    Ok(())
}

#[test]
fn rotations() -> Checked {
    let x = of(&[2, 3, 8])?;
    let plain = |x: &Array, dims: i32| ops::rope(x, ops::Rope { dims, ..ops::Rope::default() });
    for shape in [&[][..], &[8], &[3, 8]] {
        refused("rope", plain(&ones(shape)?, 8), "rank 3");
    }
    for dims in [0, -2, 7, 9, 10, i32::MAX, i32::MIN, 1] {
        refused("rope", plain(&x, dims), &dims.to_string());
    }
    refused("rope", plain(&ones(&[2, 3, 0])?, 2), "2");
    let with_offset = |offset: &Array| {
        ops::rope(&x, ops::Rope { dims: 8, offset: offset.into(), ..ops::Rope::default() })
    };
    for shape in [&[3][..], &[0], &[2, 1], &[1, 1]] {
        refused("rope", with_offset(&Array::zeros::<i32>(shape)?), "offset");
    }
    for dtype in [Dtype::Float32, Dtype::Bool, Dtype::Complex64] {
        refused("rope", with_offset(&Array::scalar(1i32)?.astype(dtype)?), dtype.name());
    }
    let freqs = ones(&[4])?;
    refused(
        "rope",
        ops::rope(&x, ops::Rope { dims: 8, base: None, ..ops::Rope::default() }),
        "neither",
    );
    refused(
        "rope",
        ops::rope(&x, ops::Rope { dims: 8, freqs: Some(&freqs), ..ops::Rope::default() }),
        "both",
    );
    for shape in [&[][..], &[3], &[8], &[1, 4]] {
        let freqs = ones(shape)?;
        refused(
            "rope",
            ops::rope(
                &x,
                ops::Rope { dims: 8, base: None, freqs: Some(&freqs), ..ops::Rope::default() },
            ),
            "freqs of shape (4)",
        );
    }
    Ok(())
}

#[test]
fn softmaxes() -> Checked {
    let (x, scalar, empty) = (of(&[2, 3, 8])?, ones(&[])?, ones(&[2, 0])?);
    const PLAIN: MaskedSoftmax =
        MaskedSoftmax { scale: 1.0, mask: None, causal: false, window: None };
    for (x, part) in [(&scalar, "scalar"), (&empty, "(2,0)")] {
        refused("softmax", ops::softmax(x), part);
        refused("logsumexp", ops::logsumexp(x), "");
        refused("log_softmax", ops::log_softmax(x), "");
        refused("masked_softmax", ops::masked_softmax(x, PLAIN), part);
    }
    fn masked(x: &Array, options: MaskedSoftmax<'_>, part: &str) {
        refused("masked_softmax", ops::masked_softmax(x, options), part);
    }
    for shape in [&[2][..], &[2, 8], &[3, 3, 8], &[1, 2, 3, 8], &[3, 7], &[0]] {
        let mask = ones(shape)?;
        masked(&x, MaskedSoftmax { mask: Some(&mask), ..PLAIN }, "broadcasts to (2,3,8)");
    }
    let (half, wide) = (x.astype(Dtype::Float16)?, ones(&[8])?);
    masked(&half, MaskedSoftmax { mask: Some(&wide), ..PLAIN }, "float16");
    for window in [0, -1, i32::MIN] {
        masked(&x, MaskedSoftmax { window: Some(window), ..PLAIN }, &window.to_string());
    }
    // An integer mask is converted to the type of the scores, and added.
    let mask = Array::ones::<i32>(&[8])?;
    let y = ops::masked_softmax(&half, MaskedSoftmax { mask: Some(&mask), ..PLAIN })?;
    assert_eq!(y.dtype(), Dtype::Float16);
    Ok(())
}

#[test]
fn cross_entropy() -> Checked {
    let plain = CrossEntropy::default();
    let (x, targets) = (of(&[2, 8])?, Array::from_slice(&[1i32, 2], [2])?);
    let says = |x: &Array, targets: &Array, part: &str| {
        refused("cross_entropy", ops::cross_entropy(x, targets, plain), part);
    };
    says(&ones(&[])?, &targets, "scalar");
    says(&ones(&[2, 0])?, &targets, "(2,0)");
    says(&x, &targets.astype(Dtype::Float32)?, "integer");
    says(&x, &targets.astype(Dtype::Bool)?, "integer");
    says(&x, &targets.reshape([2, 1])?, "shape (2)");
    says(&x, &targets.i(..1)?, "shape (2)");
    for label_smoothing in [-0.1, 1.0, f32::NAN] {
        let options = CrossEntropy { label_smoothing, ..plain };
        refused("cross_entropy", ops::cross_entropy(&x, &targets, options), "[0, 1)");
    }
    Ok(())
}

#[test]
fn reductions_and_elements() -> Checked {
    refused("sum", ops::sum(&ones(&[])?, -1), "scalar");
    refused("mean", ops::mean(&ones(&[])?, -1), "scalar");
    refused("max", ops::max(&ones(&[])?, -1), "scalar");
    refused("sum_of_squares", ops::sum_of_squares(&ones(&[])?, -1), "scalar");
    refused("norm", ops::norm(&ones(&[])?, -1), "scalar");
    for (shape, axes) in [(&[3, 0][..], Some(-1)), (&[0, 3], None), (&[0], None)] {
        refused("max", ops::max(&ones(shape)?, axes), "at least one element");
    }
    // The ops would first have to copy this broadcast array. The copy would take four terabytes.
    let large = ones(&[1, 1])?.broadcast_to([1 << 20, 1 << 20])?;
    for op in [ops::sum, ops::mean, ops::max, ops::sum_of_squares, ops::norm] {
        assert!(message(op(&large, ..)).starts_with("[reduce] expected"));
    }
    let (x, other) = (of(&[2, 8])?, of(&[3, 8])?);
    for op in [ops::swiglu, ops::geglu, ops::geglu_tanh, ops::add_relu, ops::mul_relu] {
        assert!(message(op(&x, &other)).contains("broadcast"));
    }
    for shape in [&[1][..], &[7], &[2, 8], &[1, 8]] {
        let factor = of(shape)?;
        refused("affine", ops::affine(&x, &factor, &x), "scale and shift");
        refused("affine", ops::affine(&x, &x, &factor), "scale and shift");
    }
    Ok(())
}

#[test]
fn products() -> Checked {
    let (x, w) = (of(&[2, 8])?, of(&[5, 8])?);
    let none = Linear::default();
    for (x, w) in [
        (&[2, 7][..], &[5, 8][..]),
        (&[], &[5, 8]),
        (&[2, 8], &[8]),
        (&[2, 8], &[1, 5, 8]),
        (&[8, 2], &[5, 8]),
    ] {
        let y = ops::linear(&of(x)?, &of(w)?, none);
        refused("linear", y, "x [..., k] and w [n, k], got ");
    }
    for shape in [&[1][..], &[8], &[1, 5], &[]] {
        let bias = of(shape)?;
        let y = ops::linear(&x, &w, Linear { bias: Some(&bias), ..none });
        refused("linear", y, "bias of shape (5), got ");
    }
    for shape in [&[5][..], &[1, 5], &[2, 8], &[1, 2, 5]] {
        let residual = of(shape)?;
        let y = ops::linear(&x, &w, Linear { residual: Some(&residual), ..none });
        refused("linear", y, "residual of shape (2,5), got ");
    }
    // MLX refuses float64 on a GPU.
    with_device(Device::Cpu, || -> Checked {
        for dtype in [Dtype::Int32, Dtype::Bool, Dtype::Complex64, Dtype::Float64] {
            let y = ops::matmul_nt(&x.astype(dtype)?, &w.astype(dtype)?);
            refused("matmul", y, &format!("float32, float16 or bfloat16, got {dtype}"));
        }
        Ok(())
    })?;
    for (a, b, transposed) in [
        (&[2, 8][..], &[5, 8][..], false),
        (&[2, 8], &[8, 5], true),
        (&[8], &[8, 5], false),
        (&[2, 8], &[8], true),
    ] {
        let matmul = if transposed { ops::matmul_nt } else { ops::matmul };
        refused("matmul", matmul(&of(a)?, &of(b)?), "a [..., m, k] and b");
    }
    assert!(ops::matmul_nt(&of(&[2, 3, 8])?, &of(&[3, 5, 8])?).is_err());
    Ok(())
}

#[test]
fn low_rank_updates() -> Checked {
    let (x, w) = (of(&[2, 64])?, of(&[5, 64])?);
    let (a, b) = (of(&[3, 64])?, of(&[5, 3])?);
    let base = LinearWeight::from(&w);
    let vector = LinearWeight::from(of(&[64])?);
    let whole = LinearWeight::from(w.astype(Dtype::Int32)?);
    let says = |x: &Array, base: &LinearWeight, a: &Array, b: &Array, part: &str| {
        refused("lora_linear", ops::lora_linear(x, base, a, b, 1.0), part);
    };
    says(&w.t()?, &base, &a, &b, "a last axis of 64");
    says(&x, &vector, &a, &b, "a matrix of weights");
    says(&x, &whole, &a, &b, "floating weights");
    says(&x, &base, &b, &b, "a of shape (rank, 64)");
    says(&x, &base, &a, &a, "b of shape (5, 3)");
    assert!(message(Lora::new(b, a, 1.0)).contains("a of shape [rank, k]"));
    Ok(())
}

#[test]
fn quantization() -> Checked {
    let x = of(&[2, 64])?;
    for (group_size, bits, part) in [
        (16, 4, "group size of 32, 64 or 128, got 16"),
        (0, 4, "got 0"),
        (64, 1, "2, 3, 4, 5, 6 or 8 bits, got 1"),
        (64, 7, "got 7"),
        (64, 16, "got 16"),
        (128, 4, "multiples of 128, got shape (2,64)"),
    ] {
        refused("quantize", ops::quantize(&x, group_size, bits), part);
    }
    refused("quantize", ops::quantize(&x.astype(Dtype::Int32)?, 32, 4), "int32");
    refused("quantize", ops::quantize(&of(&[64])?, 32, 4), "rank 2");
    let (packed, scales, biases) = ops::quantize(&x, 32, 4)?;
    let (short, half) = (scales.i(..1)?, biases.astype(Dtype::Float16)?);
    for (packed, scales, biases, group, bits) in [
        (&packed, &scales, &biases, 64, 4),
        (&packed, &scales, &biases, 32, 8),
        (&packed, &scales, &biases, 32, 9),
        (&scales, &scales, &biases, 32, 4),
        (&packed, &scales, &short, 32, 4),
        (&packed, &scales, &half, 32, 4),
        (&packed, &packed, &packed, 32, 4),
    ] {
        refused("dequantize", ops::dequantize(packed, scales, biases, group, bits), "");
    }
    Ok(())
}
