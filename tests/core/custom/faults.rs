//! If a user's primitive fails, evaluation returns an `Err` that names the primitive. The data that
//! the primitive left in its outputs never becomes a result.

use std::sync::atomic::{AtomicU32, Ordering};

use mlx_primitives::custom::{CustomPrimitive, Layout, Spec, View, ViewMut, apply, apply_one};
use mlx_primitives::transforms::{compile, jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Error, Result, eval};

use crate::support::custom::Computed;
use crate::support::input::random32;
use crate::support::{Checked, message, on_cpu};

/// The fault of `Faulty`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    None,
    PanicIn(&'static str),
    ErrIn(&'static str),
    NoOutput,
    NegativeOutput,
    HugeOutput,
    WrongOutputType,
    WrongInputType,
    BeyondOutput,
    SmallOutput,
    TakenInput,
    OtherInPlace,
    Shape,
    Type,
    Count,
    Axis,
    PanicInDrop,
}

/// A primitive that computes y = 2 x and has this fault.
#[derive(Clone)]
struct Faulty(Fault);

impl Faulty {
    fn enter(&self, method: &'static str) -> Result<()> {
        match self.0 {
            Fault::PanicIn(here) if here == method => panic!("a panic in {method}"),
            Fault::ErrIn(here) if here == method => Err(Error::from("a faulty message")),
            _ => Ok(()),
        }
    }

    fn spoiled(&self, result: Array) -> Result<Vec<Array>> {
        match self.0 {
            Fault::Shape => Ok(vec![result.reshape([-1])?]),
            Fault::Type => Ok(vec![result.astype(Dtype::Float16)?]),
            Fault::Count => Ok(vec![result.clone(), result]),
            _ => Ok(vec![result]),
        }
    }
}

impl CustomPrimitive for Faulty {
    fn name(&self) -> &str {
        let _ = self.enter("name");
        "faulty"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        self.enter("outputs")?;
        match self.0 {
            Fault::NoOutput => Ok(Vec::new()),
            Fault::NegativeOutput => Ok(vec![Spec::new([2, -3], Dtype::Float32)]),
            Fault::SmallOutput => Ok(vec![Spec::new([1], Dtype::Float32)]),
            Fault::HugeOutput => Ok(vec![Spec::new([i32::MAX; 4], Dtype::Float32)]),
            _ => Ok(inputs.to_vec()),
        }
    }

    fn in_place(&self) -> Option<usize> {
        match self.0 {
            Fault::PanicIn("in_place") => panic!("a panic in in_place"),
            Fault::TakenInput => Some(0),
            Fault::OtherInPlace => Some(1),
            _ => None,
        }
    }

    fn layout(&self, _: usize) -> Layout {
        assert!(self.enter("layout").is_ok());
        Layout::RowContiguous
    }

    fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        let x = inputs[0].as_slice::<f32>()?;
        let y = outputs[0].as_mut_slice::<f32>()?;
        y[0] = 2.0 * x[0];
        self.enter("eval_cpu")?; // half-way
        match self.0 {
            Fault::WrongInputType => inputs[0].as_slice::<i32>().map(|_| ())?,
            Fault::BeyondOutput => y[x.len()] = 1.0,
            Fault::SmallOutput => y.copy_from_slice(x),
            Fault::WrongOutputType => outputs[0].as_mut_slice::<f64>().map(|_| ())?,
            _ => {
                for (y, x) in y.iter_mut().zip(x) {
                    *y = 2.0 * x;
                }
            }
        }
        Ok(())
    }

    fn vjp(&self, _: &[Array], g: &[Array], _: &[usize], _: &[Array]) -> Result<Vec<Array>> {
        self.enter("vjp")?;
        self.spoiled(g[0].multiply(2.0)?)
    }

    fn jvp(&self, _: &[Array], t: &[Array], _: &[usize]) -> Result<Vec<Array>> {
        self.enter("jvp")?;
        self.spoiled(t[0].multiply(2.0)?)
    }

    fn vmap(&self, x: &[Array], axes: &[Option<usize>]) -> Result<(Vec<Array>, Vec<usize>)> {
        self.enter("vmap")?;
        let y = self.spoiled(apply_one(Faulty(Fault::None), &[&x[0]])?)?;
        let axis = if self.0 == Fault::Axis { 7 } else { axes[0].unwrap_or(0) };
        Ok((y, vec![axis]))
    }

    fn is_equivalent(&self, _: &Self) -> bool {
        self.enter("is_equivalent").is_ok()
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        if self.0 == Fault::PanicInDrop {
            self.0 = Fault::None;
            panic!("a panic in drop");
        }
    }
}

pub fn faulty(x: &Array, fault: Fault) -> Result<Array> {
    apply_one(Faulty(fault), &[x])
}

#[track_caller]
fn says(said: &str, mentions: &str) {
    assert!(said.contains("faulty") && said.contains(mentions), "{said} lacks {mentions}");
}

#[test(simulated = never)]
fn faults_before_there_is_a_node() -> Checked {
    let x = random32(&[2, 3], 1)?;
    for method in ["outputs", "layout", "in_place"] {
        says(&message(faulty(&x, Fault::PanicIn(method))), "panic");
    }
    let said = message(faulty(&x, Fault::PanicIn("name")));
    assert!(said.contains("a panic in name"), "{said}");
    says(&message(faulty(&x, Fault::ErrIn("outputs"))), "a faulty message");
    says(&message(faulty(&x, Fault::NoOutput)), "at least one output");
    says(&message(faulty(&x, Fault::OtherInPlace)), "input 1 to be what output 0 is");
    for fault in [Fault::NegativeOutput, Fault::HugeOutput] {
        says(&message(faulty(&x, fault)), "a shape that memory can hold");
    }
    Ok(())
}

#[test(simulated = never)]
fn faults_of_eval_cpu() -> Checked {
    let faults = [
        (Fault::PanicIn("eval_cpu"), "[faulty] eval_cpu panicked: a panic in eval_cpu"),
        (Fault::ErrIn("eval_cpu"), "[faulty] eval_cpu: a faulty message"),
        (Fault::WrongInputType, "[faulty] expected input 0 to be int32, got float32"),
        (Fault::TakenInput, "[faulty] expected input 0 to be read in output 0"),
        (Fault::BeyondOutput, "[faulty] eval_cpu panicked: index out of bounds"),
        (Fault::SmallOutput, "[faulty] eval_cpu panicked: copy_from_slice: source"),
        (Fault::WrongOutputType, "[faulty] expected output 0 to be float64, got float32"),
    ];
    on_cpu(|| {
        let x = random32(&[2, 3], 2)?;
        for (fault, mentions) in faults {
            let y = faulty(&x, fault)?; // building succeeds
            for _ in 0..3 {
                assert!(message(y.to_vec::<f32>()).contains(mentions), "{fault:?}");
                assert!(message(y.eval()).contains(mentions), "{fault:?}, evaluated");
            }
            // A view of the failed array fails too, and so does an array computed from it. It makes
            // no difference if they are built before or after the failed evaluation.
            let y = faulty(&x, fault)?;
            let (view, more) = (y.reshape([-1])?, y.add(1.0)?);
            assert!(message(eval([&more])).contains(mentions), "{fault:?}, used");
            assert!(more.to_vec::<f32>().is_err() && y.to_vec::<f32>().is_err(), "{fault:?}");
            assert!(view.to_vec::<f32>().is_err(), "{fault:?}, a view");
            assert!(faulty(&y, Fault::None)?.to_vec::<f32>().is_err(), "{fault:?}, custom again");
            assert!(more.add(1.0)?.to_vec::<f32>().is_err(), "{fault:?}, used later");
            // The stream still works.
            assert_eq!(
                faulty(&x, Fault::None)?.to_vec::<f32>()?,
                x.multiply(2.0)?.to_vec::<f32>()?
            );
        }
        Ok(())
    })
}

#[test(simulated = never)]
fn faults_of_derivatives_and_vmap() -> Checked {
    let x = random32(&[2, 3], 5)?;
    let run = |fault: Fault| {
        let f = move |p: &[Array]| Ok(vec![faulty(&p[0], fault)?]);
        [
            vjp(|p| f(&p), &[&x], &[&x]).map(|_| ()),
            jvp(|p| f(&p), &[&x], &[&x]).map(|_| ()),
            vmap(|p| f(&p), &[&x], [Some(0)], 0).map(|_| ()),
        ]
    };
    for (index, method) in ["vjp", "jvp", "vmap"].into_iter().enumerate() {
        for (fault, mentions) in
            [(Fault::PanicIn(method), "panicked"), (Fault::ErrIn(method), "a faulty message")]
        {
            for (other, result) in run(fault).into_iter().enumerate() {
                match other == index {
                    true => says(&message(result), mentions),
                    false => result?,
                }
            }
        }
    }
    let wrong = [
        (Fault::Shape, "to return float32 [2, 3] as number 0, got float32 [6]"),
        (Fault::Type, "got float16"),
        (Fault::Count, "to return 1 arrays, got 2"),
    ];
    for (fault, mentions) in wrong {
        for (index, result) in run(fault).into_iter().enumerate() {
            let said = message(result);
            assert!(said.contains("[faulty] expected "), "{said}");
            assert!(
                said.contains(["vjp", "jvp", "vmap"][index]) && said.contains(mentions),
                "{said}"
            );
        }
    }
    let [_, _, mapped] = run(Fault::Axis);
    says(&message(mapped), "an axis within rank 2, got 7");
    Ok(())
}

/// A primitive that implements only the required methods. It counts its calls.
fn bare(calls: &'static AtomicU32) -> impl CustomPrimitive {
    Computed("bare", move |_: &[View<'_>], outputs: &mut [ViewMut<'_>]| {
        calls.fetch_add(1, Ordering::Relaxed);
        outputs[0].as_mut_slice::<f32>()?.fill(1.0);
        Ok(())
    })
}

#[test(simulated = never)]
fn missing_methods_are_named() -> Checked {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let x = random32(&[2, 3], 6)?;
    let f = |p: &[Array]| apply(bare(&CALLS), &[&p[0]]);
    for (what, result) in [
        ("vjp", vjp(|p| f(&p), &[&x], &[&x]).map(|_| ())),
        ("jvp", jvp(|p| f(&p), &[&x], &[&x]).map(|_| ())),
        ("vmap", vmap(|p| f(&p), &[&x], [Some(0)], 0).map(|_| ())),
    ] {
        let said = message(result);
        assert!(said.contains(&format!("[bare] expected a primitive with a {what}")), "{said}");
    }
    if mlx_primitives::simulator::is_available() {
        let simulated = mlx_primitives::simulator::with_metal(
            mlx_primitives::simulator::Schedule::Forward,
            || f(std::slice::from_ref(&x))?[0].eval(),
        )?;
        let said = message(simulated);
        assert!(said.contains("[bare] expected a primitive with a Metal kernel"), "{said}");
    }
    assert_eq!(CALLS.load(Ordering::Relaxed), 0, "lazy");
    on_cpu(|| {
        // `compile` merges the two nodes only if the primitive says that they are equivalent, so
        // both run. A node without elements does not run.
        let compiled = compile(move |p| Ok(vec![f(p)?.remove(0), f(p)?.remove(0)]), false)?;
        eval(&compiled.call(&[&x])?)?;
        f(&[Array::zeros::<f32>(&[0, 3])?])?[0].eval()?;
        Ok(())
    })?;
    assert_eq!(CALLS.load(Ordering::Relaxed), 2);
    Ok(())
}

#[test(simulated = never)]
fn panics_in_drop_and_comparisons_are_ignored() -> Checked {
    on_cpu(|| {
        let x = random32(&[2, 3], 7)?;
        let y = faulty(&x, Fault::PanicInDrop)?;
        assert_eq!(y.to_vec::<f32>()?, x.multiply(2.0)?.to_vec::<f32>()?);
        drop(faulty(&x, Fault::PanicInDrop)?);
        let fault = Fault::PanicIn("is_equivalent");
        let compiled =
            compile(move |p| Ok(vec![faulty(&p[0], fault)?, faulty(&p[0], fault)?]), false)?;
        assert_eq!(compiled.call(&[&x])?[1].to_vec::<f32>()?.len(), 6);
        Ok(())
    })
}
