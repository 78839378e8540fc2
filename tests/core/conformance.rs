//! The public conformance harness accepts correct ops and finds mistakes in wrong ones.

use mlx_primitives::custom::{CustomPrimitive, Spec, View, ViewMut, apply};
use mlx_primitives::{Array, Dtype, Result, ops};
use mlx_primitives_check::{Backend, Bound, Check, Conformance, Input, Tensor};

use crate::support::Checked;

const EPS: f64 = 1e-5;

fn rms_norm(x: &[Tensor]) -> Vec<Tensor> {
    let axis = x[1].values.len();
    let rows = x[0].values.chunks(axis).flat_map(|row| {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / axis as f64;
        let inverse = 1.0 / (mean + f64::from(EPS as f32)).sqrt();
        row.iter().zip(&x[1].values).map(move |(x, w)| x * inverse * w).collect::<Vec<_>>()
    });
    vec![Tensor::new(x[0].shape.clone(), rows.collect::<Vec<_>>())]
}

#[test(simulated = never)]
fn our_own_primitives_pass() -> Checked {
    let report = Conformance::new(
        "rms_norm",
        |x| Ok(vec![ops::rms_norm(&x[0], Some(&x[1]), EPS as f32)?]),
        rms_norm,
    )
    .shapes(&[&[3, 4, 10], &[10]])
    .shapes(&[&[2, 130], &[130]])
    .without(Check::Extremes, "the squares of the largest numbers overflow in float32")
    .run();
    report.check()?;
    assert!(report.outcomes().len() > 100, "{report}");
    assert_eq!(report.ran_metal(), Backend::available().len() > 1);
    assert!(report.not_run()[0].contains("overflow") && report.to_string().contains("not run"));

    let swish = |x: f64| if x == f64::NEG_INFINITY { f64::NAN } else { x / (1.0 + (-x).exp()) };
    let report =
        Conformance::new("silu", |x| Ok(vec![ops::silu(&x[0])?]), move |x| vec![x[0].map(swish)])
            .shapes(&[&[5, 7]])
            .shapes(&[&[]])
            .shapes(&[&[0, 3]])
            .without(Check::Extremes, "the built-in's limit at -inf is 0 in some types")
            .run();
    report.check()?;
    Ok(())
}

/// A peer is another implementation that an op is compared with. `judge_peer` compares the peer
/// with the reference too, so that the report names a wrong peer.
#[test(simulated = never)]
fn a_wrong_peer_is_named() -> Checked {
    let row = |factor: f32| {
        let op = move |x: &[Array]| Ok(vec![x[0].multiply(factor)?]);
        Conformance::new("twice", op, |x| vec![x[0].map(|x| 2.0 * x)])
            .shapes(&[&[2, 3]])
            .dtypes(&[Dtype::Float32])
            .backends(&[Backend::Cpu])
            .without(Check::Extremes, "the largest numbers overflow")
            .peer(|x| Ok(vec![x[0].multiply(2.5)?]), |_| Bound::ulps(1.0))
    };
    let count = |report: &mlx_primitives_check::Report| {
        (report.failures().count(), report.peer_faults().count())
    };
    let trusted = row(2.0).run();
    let values = trusted.outcomes().iter().filter(|outcome| outcome.check == Check::Values);
    assert_eq!(count(&trusted), (values.count(), 0), "{trusted}");
    let judged = row(2.0).judge_peer().run();
    judged.check()?;
    assert_eq!(count(&judged), (0, count(&trusted).0), "{judged}");
    assert!(judged.to_string().contains("the peer differs: values on cpu, float32"), "{judged}");
    let copied = row(2.5).judge_peer().run(); // the peer's own values
    assert!(count(&copied).0 >= count(&trusted).0 && count(&copied).1 == 0, "{copied}");
    Ok(())
}

/// The mistake of a test op, which should compute 3 x.
#[derive(Clone, Copy, PartialEq)]
enum Mistake {
    None,
    Value,
    Layout,
    Nan,
    Infinity,
    Unwritten,
    Vjp,
    Jvp,
    Vmap,
    Panic,
    Shape,
}

struct Triple(Mistake);

impl CustomPrimitive for Triple {
    fn name(&self) -> &str {
        "triple"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        match self.0 {
            Mistake::Shape => Ok(vec![Spec::new([1], Dtype::Float32)]),
            _ => Ok(inputs.to_vec()),
        }
    }

    fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        assert!(self.0 != Mistake::Panic, "a mistake");
        let x = inputs[0].as_slice::<f32>()?;
        let y = outputs[0].as_mut_slice::<f32>()?;
        let left_out = usize::from(self.0 == Mistake::Unwritten);
        for (i, (y, x)) in y.iter_mut().zip(x).enumerate().skip(left_out) {
            *y = match self.0 {
                Mistake::Value if i == 3 => 3.001 * x,
                Mistake::Nan => (3.0 * x).max(f32::MIN),
                Mistake::Infinity if x.is_infinite() => 3.0,
                _ => 3.0 * x,
            };
        }
        Ok(())
    }

    fn vjp(&self, _: &[Array], g: &[Array], _: &[usize], _: &[Array]) -> Result<Vec<Array>> {
        Ok(vec![g[0].multiply(if self.0 == Mistake::Vjp { 2.0 } else { 3.0 })?])
    }

    fn jvp(&self, _: &[Array], t: &[Array], _: &[usize]) -> Result<Vec<Array>> {
        Ok(vec![t[0].multiply(if self.0 == Mistake::Jvp { 2.0 } else { 3.0 })?])
    }

    fn vmap(&self, x: &[Array], axes: &[Option<usize>]) -> Result<(Vec<Array>, Vec<usize>)> {
        let axis = axes[0].unwrap_or(0);
        // The returned axis is wrong, so the result has the right shape only if it is square.
        let axis = if self.0 == Mistake::Vmap { 1 - axis } else { axis };
        Ok((apply(Triple(Mistake::None), &[&x[0]])?, vec![axis]))
    }
}

#[test(simulated = never)]
fn mistakes_are_found() -> Checked {
    let of = |mistake: Mistake| {
        let op = move |x: &[Array]| {
            let x = match mistake {
                // Read the elements in the order of memory and ignore the strides.
                Mistake::Layout => x[0].t()?.contiguous()?.reshape(x[0].shape())?,
                _ => x[0].clone(),
            };
            apply(Triple(mistake), &[&x])
        };
        Conformance::new("triple", op, |x| vec![x[0].map(|x| 3.0 * x)])
            .shapes(&[&[4, 4]])
            .dtypes(&[Dtype::Float32])
            .run()
    };
    let failed = |mistake: Mistake, backend: Backend| -> Vec<Check> {
        let report = of(mistake);
        let failures = report.failures().filter(|failure| failure.backend == backend);
        let mut checks: Vec<Check> = failures.map(|failure| failure.check).collect();
        checks.dedup();
        assert_eq!(report.check().is_err(), report.failures().count() > 0);
        checks
    };
    use Check::*;
    for (mistake, found) in [
        (Mistake::None, vec![]),
        (Mistake::Value, vec![Values, Extremes]),
        (Mistake::Layout, vec![Values, Extremes, Vjp, Jvp]),
        (Mistake::Nan, vec![Extremes]),
        (Mistake::Infinity, vec![Extremes]),
        (Mistake::Vjp, vec![Vjp]),
        (Mistake::Jvp, vec![Jvp]),
        (Mistake::Vmap, vec![Vmap]),
        (Mistake::Shape, vec![Values, Extremes, Vjp, Jvp, Vmap]),
        (Mistake::Panic, vec![Values, Extremes, Vmap, Compile]),
    ] {
        let name = found.clone();
        let got = failed(mistake, Backend::Cpu);
        assert!(name.iter().all(|check| got.contains(check)), "{got:?} lacks some of {name:?}");
        assert!(found.is_empty() == got.is_empty(), "{got:?}");
    }
    // In a debug build, outputs start as NaN, so elements that the op does not write are found.
    if cfg!(debug_assertions) {
        assert!(failed(Mistake::Unwritten, Backend::Cpu).contains(&Values));
    }
    // `Triple` has no Metal kernel. That is a failure on Metal, not a skipped check.
    if let Some(&metal) = Backend::available().iter().find(|backend| backend.is_metal()) {
        assert!(failed(Mistake::None, metal).contains(&Values));
    }
    Ok(())
}

/// The harness enforces the bounds that `ulps` and `peer` set, also for shapes that `sizes` adds.
#[test(simulated = never)]
fn bounds_are_held() {
    let of = |ulps: f64, of_peer: f64| {
        let report = Conformance::new(
            "third",
            |x| Ok(vec![x[0].multiply(1.0f32 / 3.0)?]),
            |x| vec![x[0].map(|x| x / 3.0)],
        )
        .sizes(&[&[7, 9]])
        .dtypes(&[Dtype::Float32])
        .backends(&[Backend::Cpu])
        .ulps(move |_| ulps)
        .peer(|x| Ok(vec![x[0].divide(3.0)?]), move |_| Bound::ulps(of_peer))
        .run();
        assert_eq!(report.outcomes().len(), 1);
        report.check().is_ok()
    };
    // The factor 1/3 is wrong by a third of an ulp, and the product is rounded.
    assert!(of(1.5, 2.0));
    assert!(!of(0.1, 2.0));
    assert!(!of(1.5, 0.1));
}

fn failing(row: &Conformance) -> Vec<Check> {
    let mut checks: Vec<Check> = row.run().failures().map(|failure| failure.check).collect();
    checks.dedup();
    checks
}

/// The harness passes integers and bools unchanged, and does not differentiate them.
#[test(simulated = never)]
fn inputs_are_of_their_kinds() -> Checked {
    for (kind, dtype) in
        [(Input::Float(1.0, 2.0), Dtype::Float16), (Input::Float32(1.0, 2.0), Dtype::Float32)]
    {
        let op = move |x: &[Array]| {
            let types = [x[0].dtype(), x[1].dtype(), x[2].dtype()];
            assert_eq!(types, [dtype, Dtype::Int32, Dtype::Bool]);
            let factors = x[1].astype(Dtype::Float16)?.multiply(x[2].astype(Dtype::Float16)?)?;
            Ok(vec![x[0].astype(Dtype::Float16)?.multiply(&factors)?])
        };
        let of = |x: &[Tensor]| {
            let whole = x[1].values.iter().all(|v| [2.0, 3.0, 4.0].contains(v));
            assert!(whole && x[2].values.iter().all(|v| [0.0, 1.0].contains(v)));
            let factors = x[1].values.iter().zip(&x[2].values).map(|(a, b)| a * b);
            let values = x[0].values.iter().zip(factors).map(|(x, factor)| x * factor);
            vec![Tensor::new(x[0].shape.clone(), values.collect::<Vec<_>>())]
        };
        let row = Conformance::new("chosen", op, of)
            .inputs(&[kind, Input::Integer(2, 5), Input::Bool])
            .shapes(&[&[4, 4], &[4, 4], &[4, 4]])
            .dtypes(&[Dtype::Float16])
            .backends(&[Backend::Cpu]);
        let row = if dtype == Dtype::Float16 {
            row
        } else {
            let why = "it has none that is floating";
            row.without(Check::Vjp, why).without(Check::Jvp, why)
        };
        row.run().check()?;
    }
    Ok(())
}

/// The harness applies each bound only to the check that it belongs to.
#[test(simulated = never)]
fn errors_shares_and_derivatives_are_held() {
    let third = |x: &[Array]| Ok(vec![x[0].multiply(1.0f32 / 3.0)?]);
    let row = || {
        Conformance::new("third", third, |x| vec![x[0].map(|x| x / 3.0)])
            .shapes(&[&[7, 9]])
            .dtypes(&[Dtype::Float32])
            .backends(&[Backend::Cpu])
            .derivative_bounds(|_| Bound::ulps(2.0))
    };
    let of = |error: f64| {
        row()
            .bounds(|_| Bound { absolute: 1e-40, ..Bound::default() })
            .errors(move |compared| vec![compared.inputs[0].map(|x| error * x.abs())])
    };
    assert_eq!(failing(&of(1e-7)), []);
    assert_eq!(failing(&of(1e-9)), [Check::Values, Check::Extremes]);
    assert_eq!(
        failing(&of(1e-7).derivative_bounds(|_| Bound::default())),
        [Check::Vjp, Check::Jvp]
    );
    // The op multiplies and the peer divides. Some elements differ, by at most two ulps.
    let share = |same: f64| {
        let quotient = |x: &[Array]| Ok(vec![x[0].divide(3.0)?]);
        row().ulps(|_| 2.0).peer(quotient, move |_| Bound { same, ..Bound::ulps(2.0) })
    };
    assert_eq!(failing(&share(0.0)), []);
    assert!(failing(&share(1.0)).contains(&Check::Values));
    // Extremes can be compared with a peer's result only if the row has a peer.
    assert_eq!(failing(&row().ulps(|_| 2.0).extremes_as_peer()), [Check::Extremes]);
    // This op jumps at 100. Only the additional extreme input 100 reveals the jump.
    let jump = |x: &[Array]| Ok(vec![x[0].equal(100.0)?.astype(Dtype::Float32)?.add(&x[0])?]);
    let row = Conformance::new("jump", jump, |x| x.to_vec())
        .shapes(&[&[7, 9]])
        .dtypes(&[Dtype::Float32])
        .backends(&[Backend::Cpu]);
    assert_eq!(failing(&row), []);
    assert_eq!(failing(&row.extremes(&[100.0])), [Check::Extremes]);
}

/// The harness compares vmap with the op on each slice. `vmap_bounds` can require equal bits.
#[test(simulated = never)]
fn bounds_of_vmap_are_held() {
    struct Nearly;

    impl CustomPrimitive for Nearly {
        fn name(&self) -> &str {
            "nearly"
        }

        fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
            Ok(inputs.to_vec())
        }

        fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
            let y = outputs[0].as_mut_slice::<f32>()?;
            y.copy_from_slice(inputs[0].as_slice::<f32>()?);
            Ok(())
        }

        fn vmap(&self, x: &[Array], axes: &[Option<usize>]) -> Result<(Vec<Array>, Vec<usize>)> {
            let y = x[0].multiply(1.0 + f32::EPSILON)?;
            Ok((vec![y], vec![axes[0].unwrap_or(0)]))
        }
    }

    let row = Conformance::new("nearly", |x| apply(Nearly, &[&x[0]]), |x| x.to_vec())
        .shapes(&[&[4, 9]])
        .backends(&[Backend::Cpu])
        .dtypes(&[Dtype::Float32])
        .without(Check::Vjp, "it has none")
        .without(Check::Jvp, "it has none");
    assert_eq!(failing(&row), []);
    assert_eq!(failing(&row.vmap_bounds(|_| Bound::default())), [Check::Vmap]);
}

/// The harness finds a derivative that is wrong if only the second input is differentiated.
#[test(simulated = never)]
fn inputs_are_differentiated_alone() {
    #[derive(Clone, Copy, PartialEq)]
    struct Difference {
        wrong: Option<Check>,
    }

    impl Difference {
        /// The sign of the second input. It is wrong if only this input is differentiated.
        fn sign(self, check: Check, argnums: &[usize]) -> f32 {
            if self.wrong == Some(check) && argnums == [1] { 1.0 } else { -1.0 }
        }
    }

    impl CustomPrimitive for Difference {
        fn name(&self) -> &str {
            "difference"
        }

        fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
            Ok(inputs[..1].to_vec())
        }

        fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
            let (a, b) = (inputs[0].as_slice::<f32>()?, inputs[1].as_slice::<f32>()?);
            let y = outputs[0].as_mut_slice::<f32>()?;
            y.iter_mut().zip(a).zip(b).for_each(|((y, a), b)| *y = a - b);
            Ok(())
        }

        fn vjp(&self, _: &[Array], g: &[Array], n: &[usize], _: &[Array]) -> Result<Vec<Array>> {
            let sign = self.sign(Check::Vjp, n);
            n.iter().map(|&n| g[0].multiply(if n == 0 { 1.0 } else { sign })).collect()
        }

        fn jvp(&self, _: &[Array], t: &[Array], n: &[usize]) -> Result<Vec<Array>> {
            match n {
                [0] => Ok(vec![t[0].clone()]),
                [_] => Ok(vec![t[0].multiply(self.sign(Check::Jvp, n))?]),
                _ => Ok(vec![t[0].subtract(&t[1])?]),
            }
        }
    }

    for wrong in [None, Some(Check::Vjp), Some(Check::Jvp)] {
        let op = move |x: &[Array]| apply(Difference { wrong }, &[&x[0], &x[1]]);
        let difference = |x: &[Tensor]| {
            let values: Vec<f64> =
                x[0].values.iter().zip(&x[1].values).map(|(a, b)| a - b).collect();
            vec![Tensor::new(x[0].shape.clone(), values)]
        };
        let row = Conformance::new("difference", op, difference)
            .shapes(&[&[4, 9], &[4, 9]])
            .backends(&[Backend::Cpu])
            .dtypes(&[Dtype::Float32])
            .without(Check::Vmap, "it has none");
        assert_eq!(failing(&row), Vec::from_iter(wrong));
    }
}

#[test(simulated = never)]
fn conformance_without_shapes_fails() {
    let report = Conformance::new("nothing", |x| Ok(x.to_vec()), |x| x.to_vec()).run();
    let said = report.check().map_or_else(|error| error.to_string(), |()| String::new());
    assert!(said.contains("no shapes were given"), "{said}");
}
