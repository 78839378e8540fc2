//! Compares both ops with references in f64, on the CPU and in Metal. A simulator runs the Metal
//! kernels on Linux, and the GPU runs them on a Mac.

use mlx_primitives::transforms::{compile, grad};
use mlx_primitives::{Array, Dtype, Result};
use mlx_primitives_check::{Bound, Conformance, Report};
use own_primitive::{mean_square, soft_cap};

/// Returns an error unless all comparisons passed and some of them used Metal kernels.
fn passed(report: &Report) -> Result<()> {
    println!("{report}");
    assert!(report.ran_metal(), "no Metal kernel ran: {:?}", report.not_run());
    report.check()
}

#[test]
fn soft_cap_conforms() -> Result<()> {
    let report = Conformance::new(
        "soft_cap",
        |x| Ok(vec![soft_cap(&x[0], 2.0)?]),
        |x| vec![x[0].map(|x| 2.0 * (x / 2.0).tanh())],
    )
    .shapes(&[&[]])
    .shapes(&[&[0, 3]])
    .shapes(&[&[4, 5, 6]])
    .shapes(&[&[1000]])
    .run();
    passed(&report)
}

/// In float32, n squares, n - 1 additions and a division are rounded. The relative error of each
/// addition, of the division and of all squares together is at most half an epsilon, which is at
/// most an ulp. If all elements of a row are equal, these errors may all have the same sign. A
/// result in 16 bits is rounded once more, from a sum whose error is far below the ulp of the
/// result.
#[test]
fn mean_square_conforms() -> Result<()> {
    let report = Conformance::new(
        "mean_square",
        |x| Ok(vec![mean_square(&x[0])?]),
        |x| vec![x[0].map_rows(|row| row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64)],
    )
    .shapes(&[&[7]])
    .shapes(&[&[3, 4, 33]])
    .shapes(&[&[2, 300]])
    .bounds(|compared| {
        let n = compared.inputs[0].shape.last().map_or(1, |&n| n);
        let ulps = if compared.dtype == Dtype::Float32 { n as f64 + 2.0 } else { 0.6 };
        Bound::ulps(ulps)
    })
    .run();
    passed(&report)
}

#[test]
fn ops_compile_together() -> Result<()> {
    let loss = |x: Array| mean_square(&soft_cap(&x, 3.0)?)?.sum(..);
    let step = compile(move |x| grad(loss, &x[0]), false)?;
    let x = Array::from_slice(&[0.5f32, -1.0, 4.0, 2.0], [2, 2])?;
    let (compiled, plain) = (step.call(&x)?, grad(loss, &x)?);
    let pairs = compiled.to_vec::<f32>()?.into_iter().zip(plain.to_vec::<f32>()?);
    for (compiled, plain) in pairs {
        assert!((compiled - plain).abs() <= 1e-6, "{compiled} {plain}");
    }
    Ok(())
}

#[test]
fn bad_input_is_refused() -> Result<()> {
    assert!(soft_cap(&Array::from_slice(&[1i32], [1])?, 2.0).is_err());
    assert!(mean_square(&Array::scalar(1.0f32)?).is_err());
    assert!(mean_square(&Array::zeros::<f32>([2, 0])?).is_err());
    Ok(())
}
