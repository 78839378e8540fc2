//! Tests the built-in rule for NVIDIA GPUs. The rule chooses between our kernels and MLX's ops,
//! unless the user has measured their times.

use std::rc::Rc;

use mlx_primitives::ops::{
    self, Attention, QuantizedLinear, QuantizedMode, QuantizedRows, QuantizedWeight,
};
use mlx_primitives::transforms::grad;
use mlx_primitives::tune::{Choice, Choices, Key, with_choices};
use mlx_primitives::{Array, Dtype, Result, builtin};

use crate::support::Checked;
use crate::support::compare::{assert_close, numbers};
use crate::support::input::random;
use crate::support::tune::{class, key, linear};

fn built_in() -> Choices {
    Choices::built_in(&Key { chip: "NVIDIA H200".to_owned(), ..key() })
}

#[test]
fn products_are_mlxs_on_nvidia() -> Checked {
    let x = random(&[1, 2, 1, 64], Dtype::Float16, 1)?;
    let choices = built_in();
    for class in [&linear(1, Dtype::Float16)?, &linear(9, Dtype::Float32)?] {
        assert_eq!(choices.choice(class), Choice::Mlx, "{class}");
    }
    // Our attention has a kernel for few queries with 16-bit types and these head dimensions.
    for (queries, features, dtype, choice) in [
        (1, 64, Dtype::Float16, Choice::Ours),
        (8, 128, Dtype::Bfloat16, Choice::Ours),
        (1, 256, Dtype::Bfloat16, Choice::Ours),
        (9, 64, Dtype::Float16, Choice::Mlx),
        (1, 96, Dtype::Float16, Choice::Mlx),
        (1, 64, Dtype::Float32, Choice::Mlx),
    ] {
        let q = random(&[1, 2, queries, features], dtype, 1)?;
        let of = class(|| ops::attention(&q, &q, &q, Attention::default()))?;
        assert_eq!(choices.choice(&of), choice, "{of}");
    }
    assert_eq!(choices.choice(&class(|| ops::softmax(&x))?), Choice::Ours);
    // MLX refuses packed keys and values that are views, so the rule chooses our op.
    for bits in [4, 8] {
        let part = || Array::zeros_of([1, 2, 3, 2], Dtype::Float16);
        let codes = Array::zeros_of([1, 2, 3, 2 * bits], Dtype::Uint32)?;
        let (scales, biases) = (part()?, part()?);
        let rows = QuantizedRows { packed: &codes, scales: &scales, biases: &biases };
        for queries in [1, 2, 9] {
            let q = random(&[1, 2, queries, 64], Dtype::Float16, 2)?;
            let of =
                class(|| ops::attention_quantized(&q, rows, rows, bits, 32, Attention::default()))?;
            assert_eq!(choices.choice(&of), Choice::Ours, "{of}");
        }
    }
    Ok(())
}

/// For products with packed weights, the rule chooses our kernel for one row, and also for two to
/// eight rows if the type has 16 bits or the weights are K-quants. For other products it chooses
/// MLX, and also for `rms_norm` of at least 2048 rows of at least 2048 elements.
#[test]
fn numbers_of_rows_decide_on_nvidia() -> Checked {
    let here = built_in();
    let elsewhere = Choices::built_in(&key());
    let packed = |n: i32, k: i32, bits: i32, dtype: Dtype| -> Result<QuantizedWeight> {
        let part = || Array::zeros_of([n, k / 64], dtype);
        let codes = Array::zeros_of([n, k / 32 * bits], Dtype::Uint32)?;
        QuantizedWeight::new(codes, part()?, Some(part()?), 64, bits, QuantizedMode::Affine)
    };
    let (half, single) = (Dtype::Bfloat16, Dtype::Float32);
    for (n, k, bits, rows, dtype, choice) in [
        (1024, 4096, 4, 1, half, Choice::Ours),
        (14_336, 4096, 8, 1, single, Choice::Ours),
        (14_336, 4096, 4, 2, half, Choice::Ours),
        (128, 128, 4, 8, half, Choice::Ours),
        (128, 128, 4, 2, single, Choice::Mlx),
        (128, 128, 4, 9, half, Choice::Mlx),
    ] {
        let (x, w) = (Array::zeros_of([rows, k], dtype)?, packed(n, k, bits, dtype)?);
        let of = class(|| ops::quantized_linear(&x, &w, QuantizedLinear::default()))?;
        assert_eq!((here.choice(&of), elsewhere.choice(&of)), (choice, Choice::Ours), "{of}, {n}");
        let rows =
            ["1 row", "2 to 8 rows", "more rows"][usize::from(rows > 1) + usize::from(rows > 8)];
        assert_eq!(of.to_string(), format!("quantized_linear, {bits} bits, {dtype}, {rows}"));
    }
    for (rows, choice) in [(1, Choice::Ours), (8, Choice::Ours), (9, Choice::Mlx)] {
        let x = Array::zeros_of([rows, 256], single)?;
        let (codes, scales) =
            (Array::zeros_of([128, 32], Dtype::Uint32)?, Array::zeros_of([128, 20], Dtype::Uint8)?);
        let w = QuantizedWeight::new(codes, scales, None, 32, 4, QuantizedMode::KQuant)?;
        let of = class(|| ops::quantized_linear(&x, &w, QuantizedLinear::default()))?;
        assert_eq!((here.choice(&of), elsewhere.choice(&of)), (choice, Choice::Ours), "{of}");
    }
    let dtype = half;
    let packed = |n: i32, k: i32, bits: i32| packed(n, k, bits, dtype);
    let (x, w) = (Array::zeros_of([1, 128], dtype)?, packed(128, 128, 4)?);
    let (row, of_axis) = (Array::zeros_of([1, 128], dtype)?, Array::zeros_of([128], dtype)?);
    let plain = QuantizedLinear::default();
    for options in [
        QuantizedLinear { bias: Some(&of_axis), ..plain },
        QuantizedLinear { residual: Some(&row), ..plain },
        QuantizedLinear { norm: Some((&of_axis, 1e-5)), ..plain },
    ] {
        let of = class(|| ops::quantized_linear(&x, &w, options))?;
        assert_eq!(here.choice(&of), Choice::Ours, "{options:?}");
    }
    for of in [
        class(|| ops::quantized_linears(&x, &[&w, &w], None))?,
        class(|| ops::quantized_swiglu(&x, &w, &w, None))?,
    ] {
        assert_eq!(here.choice(&of), Choice::Ours, "{of}");
    }
    for (shape, choice) in [
        ([65_536, 4096], Choice::Mlx),
        ([2048, 2048], Choice::Mlx),
        ([512, 4096], Choice::Ours),
        ([65_536, 768], Choice::Ours),
        ([0, 4096], Choice::Ours),
    ] {
        let x = Array::zeros_of(shape, dtype)?; // no element is computed
        let of = class(|| ops::rms_norm(&x, None, 1e-5))?;
        assert_eq!((here.choice(&of), elsewhere.choice(&of)), (choice, Choice::Ours), "{of}");
        let softmax = class(|| ops::softmax(&x))?;
        assert_eq!(here.choice(&softmax), Choice::Ours, "{softmax}");
    }
    Ok(())
}

/// If the rule chooses MLX for a product, the result has the same type, shape and derivatives as
/// our kernel's.
#[test]
fn results_on_nvidia_are_of_the_same_type() -> Checked {
    let here = Rc::new(built_in());
    let ours = Rc::new(Choices::ours());
    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
        let (x, w) = (random(&[1, 9, 128], dtype, 1)?, random(&[64, 128], dtype, 2)?);
        let w = QuantizedWeight::quantize(&w, 64, 4, QuantizedMode::Affine)?;
        let op = |x: &Array| ops::quantized_linear(x, &w, QuantizedLinear::default());
        let of = |choices: &Rc<Choices>| -> Result<(Array, Array)> {
            with_choices(choices.clone(), || {
                let sum = |x: &[Array]| op(&x[0])?.astype(Dtype::Float32)?.square()?.sum(..);
                Ok((op(&x)?, grad(|p| sum(&p), &[&x])?.remove(0)))
            })
        };
        let ((one, by_one), (other, by_other)) = (of(&here)?, of(&ours)?);
        // `composition` is defined only for results of our ops, so it tells which implementation
        // ran.
        let is_ours = [&one, &other].map(|y| builtin::composition(y).is_ok());
        assert_eq!(is_ours, [false, true]);
        for (one, other, what) in [(&one, &other, "result"), (&by_one, &by_other, "gradient")] {
            assert_eq!((one.shape(), one.dtype()), (other.shape(), other.dtype()), "{what}");
            // MLX's product on a CPU adds up 16-bit numbers in 16 bits, so only float32 results can
            // be compared.
            if dtype == Dtype::Float32 {
                assert_close(&numbers(one)?, &numbers(other)?, 2e-3, what);
            }
        }
    }
    Ok(())
}
