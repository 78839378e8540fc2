//! Tests how every op of the catalog (`tests/catalog`) handles the types of its inputs and the
//! transforms. The catalog's conformance table compares values with references.

mod compiled;
mod derivatives;
mod maps;
mod promotion;

use mlx_primitives::device::{Device, with_device};
use mlx_primitives::{Array, Dtype, Result, builtin};

use crate::support::compare::{assert_close, numbers, ulp};
use crate::support::{Checked, each_device, message};
use crate::table::ops::{OPS, Run};

/// The type of the sum of these arrays in MLX, with float32 in place of an integer type.
fn promoted(inputs: &[Array]) -> Result<Dtype> {
    let mut sum = inputs[0].sum(..)?;
    for input in &inputs[1..] {
        sum = sum.add(&input.sum(..)?)?;
    }
    Ok(if sum.dtype() == Dtype::Int32 { Dtype::Float32 } else { sum.dtype() })
}

/// Results have the types of MLX's results. The values may differ slightly from MLX's values,
/// because each op rounds a few times.
#[test]
fn types_are_promoted() -> Checked {
    each_device(|_| {
        let types = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16, Dtype::Int32];
        for op in OPS.iter().filter(|op| op.promotes) {
            for (first, step) in (0..4).flat_map(|first| (0..4).map(move |step| (first, step))) {
                let of = |i: usize| types[(first + step * i) % 4];
                if !op.integers && of(0) == Dtype::Int32 {
                    continue;
                }
                let inputs = op.inputs(3, 1)?.into_iter().enumerate();
                let inputs: Vec<Array> =
                    inputs.map(|(i, x)| x.astype(of(i))).collect::<Result<_>>()?;
                let ours = (op.run)(&inputs)?;
                // The op's node, and the MLX ops that can replace it, compute in the promoted type.
                let widest = ours.last().expect("an output").dtype();
                assert_eq!(widest, promoted(&inputs)?, "{} of {first} {step}", op.name);
                let theirs = builtin::composition(&ours[0])
                    .map_err(|e| anyhow::anyhow!("{} {e}", op.name))?;
                for (ours, theirs) in ours.iter().zip(&theirs) {
                    let what = format!(
                        "{} of {:?}",
                        op.name,
                        inputs.iter().map(Array::dtype).collect::<Vec<_>>()
                    );
                    assert_eq!(
                        (ours.shape(), ours.dtype()),
                        (theirs.shape(), theirs.dtype()),
                        "{what}"
                    );
                    let tolerance = 6.0 * ulp(1.0, ours.dtype()) + 2e-5;
                    assert_close(&numbers(ours)?, &numbers(theirs)?, tolerance, &what);
                }
            }
            let others = [Dtype::Int8, Dtype::Int64, Dtype::Uint16, Dtype::Bool];
            for other in others.into_iter().filter(|_| op.integers) {
                let whole = |x: &Array| x.abs()?.astype(other);
                let inputs: Vec<Array> =
                    op.inputs(3, 1)?.iter().map(whole).collect::<Result<_>>()?;
                let ours = (op.run)(&inputs)?.swap_remove(0);
                assert_eq!(ours.dtype(), Dtype::Float32, "{} of {other}", op.name);
                let theirs = numbers(&builtin::composition(&ours)?[0])?;
                assert_close(&numbers(&ours)?, &theirs, 4e-6, op.name);
            }
        }
        Ok(())
    })
}

#[test]
fn other_types_are_refused() -> Checked {
    for op in OPS {
        let wide = [Dtype::Complex64, Dtype::Float64];
        let whole = [Dtype::Int32, Dtype::Bool, Dtype::Uint8];
        for dtype in wide.iter().chain(whole.iter().filter(|_| !op.integers)) {
            // MLX cannot create float64 arrays on a GPU, so create these on the CPU.
            let inputs: Result<Vec<Array>> = with_device(Device::Cpu, || {
                op.inputs(2, 1)?.iter().map(|x| x.astype(*dtype)).collect()
            });
            let said = message((op.run)(&inputs?));
            if said.contains("float64 is not supported on the GPU") && *dtype == Dtype::Float64 {
                continue; // MLX refuses it first
            }
            let expected = format!("[{}] expected ", op.name);
            assert!(said.starts_with(&expected) && said.contains(dtype.name()), "{said}");
        }
    }
    Ok(())
}

/// Reduces all outputs to a scalar loss.
fn loss(run: Run) -> impl Fn(&[Array]) -> Result<Array> {
    move |p| {
        let all = run(p)?.into_iter().map(|y| y.square()?.sum(..));
        all.reduce(|a, b| a?.add(b?)).unwrap_or_else(|| Array::scalar(0.0f32))
    }
}
