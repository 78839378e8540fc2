//! After a primitive of a user has failed, evaluations that depend on it return errors, never a
//! result.

use std::sync::atomic::{AtomicBool, Ordering};

use mlx_primitives::custom::{CustomPrimitive, Spec, View, ViewMut, apply, apply_one};
use mlx_primitives::transforms::compile;
use mlx_primitives::{Array, Dtype, Error, Result, async_eval, eval, io};

use super::faults::{Fault, faulty};
use crate::support::custom::Computed;
use crate::support::input::random32;
use crate::support::{Checked, message, on_cpu};

#[test(simulated = never)]
fn faults_of_an_asynchronous_evaluation() -> Checked {
    on_cpu(|| {
        let x = random32(&[2, 3], 3)?;
        let y = faulty(&x, Fault::PanicIn("eval_cpu"))?;
        let first = async_eval([&y]).and_then(|()| y.to_vec::<f32>().map(|_| ()));
        assert!(message(first).contains("a panic in eval_cpu"));
        for _ in 0..3 {
            assert!(message(y.to_vec::<f32>()).contains("a panic in eval_cpu"));
        }
        // An unrelated evaluation does not get the error, and the failed array never becomes a
        // result.
        let y = faulty(&x, Fault::PanicIn("eval_cpu"))?;
        async_eval([&y])?;
        x.add(1.0)?.eval()?;
        assert!(message(y.to_vec::<f32>()).contains("a panic in eval_cpu"));
        assert_eq!(x.add(1.0)?.to_vec::<f32>()?.len(), 6);
        Ok(())
    })
}

/// No array that is computed from a failed array, directly or through other arrays, becomes a
/// result.
#[test(simulated = never)]
fn nothing_computed_from_a_fault_is_a_result() -> Checked {
    on_cpu(|| {
        let x = random32(&[1000], 4)?;
        let y = faulty(&x, Fault::PanicIn("eval_cpu"))?; // held, so that its memory is not reused
        let first = y.add(1.0)?;
        let last = first.exp()?.sum(..)?;
        assert!(message(last.eval()).contains("a panic in eval_cpu"));
        for later in [first, y.clone(), y.add(2.0)?, y.reshape([10, 100])?.sum(..)?] {
            assert!(message(later.eval()).contains("a panic in eval_cpu"));
            let started = message(async_eval([&later.add(1.0)?]));
            assert!(started.contains("a panic in eval_cpu"), "{started}");
        }
        Ok(())
    })
}

#[test(simulated = never)]
fn no_primitive_runs_on_what_a_fault_left() -> Checked {
    static RAN: AtomicBool = AtomicBool::new(false);
    let noted = Computed("noted", |_: &[View<'_>], _: &mut [ViewMut<'_>]| {
        RAN.store(true, Ordering::Relaxed);
        Ok(())
    });
    on_cpu(|| {
        let y = faulty(&random32(&[4], 6)?, Fault::PanicIn("eval_cpu"))?;
        assert!(message(apply_one(noted, &[&y])?.eval()).contains("a panic in eval_cpu"));
        assert!(!RAN.load(Ordering::Relaxed));
        Ok(())
    })
}

#[test(simulated = never)]
fn what_depends_on_two_faults_is_no_result() -> Checked {
    on_cpu(|| {
        let x = random32(&[1000], 5)?;
        let fault = || faulty(&x, Fault::PanicIn("eval_cpu"));
        let both = fault()?.add(&fault()?)?;
        assert!(message(both.eval()).contains("a panic in eval_cpu"));
        assert!(message(both.add(1.0)?.eval()).contains("a panic in eval_cpu"));
        Ok(())
    })
}

/// Integers have no NaN, so the outputs of a failed primitive are zeros. A caller could mistake
/// these for a result, so they must be refused too.
#[test(simulated = never)]
fn integers_of_a_fault_are_no_result() -> Checked {
    let half = Computed("half", |_: &[View<'_>], y: &mut [ViewMut<'_>]| {
        y[0].as_mut_slice::<i32>()?[0] = 7;
        Err(Error::from("half-way"))
    });
    on_cpu(|| {
        let y = apply_one(half, &[&Array::from_slice(&[1i32, 2, 3], [3])?])?;
        assert!(message(y.add(1)?.eval()).contains("[half] eval_cpu: half-way"));
        for later in [y.clone(), y.add(1)?, y.multiply(0)?, y.sum(..)?] {
            assert!(message(later.to_vec::<i32>()).contains("half-way"));
        }
        Ok(())
    })
}

#[test(simulated = never)]
fn a_fault_is_not_saved() -> Checked {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("faulty.safetensors");
    on_cpu(|| {
        let y = faulty(&random32(&[4], 5)?, Fault::PanicIn("eval_cpu"))?;
        for _ in 0..2 {
            let said = message(io::save_safetensors(&path, [("y", &y)], []));
            assert!(said.contains("a panic in eval_cpu") && !path.exists(), "{said}");
        }
        assert!(y.to_string().contains("a panic in eval_cpu"), "{y}");
        Ok(())
    })
}

/// A primitive whose `outputs` returns something else when it is called again. `compile` calls it
/// again for other shapes.
struct Fickle {
    asked: AtomicBool,
    in_place: bool,
    later: Vec<Spec>,
}

impl CustomPrimitive for Fickle {
    fn name(&self) -> &str {
        "fickle"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        match self.asked.swap(true, Ordering::Relaxed) {
            false => Ok(inputs.to_vec()),
            true => Ok(self.later.clone()),
        }
    }

    fn in_place(&self) -> Option<usize> {
        self.in_place.then_some(0)
    }

    fn eval_cpu(&self, _: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        outputs[0].as_mut_slice::<f32>()?.fill(1.0);
        Ok(())
    }
}

#[test(simulated = never)]
fn outputs_that_change_are_refused() -> Checked {
    let float = |shape: &[i32]| Spec::new(shape, Dtype::Float32);
    let cases = [
        ("at least one output", false, vec![]),
        ("outputs of the same number and types", false, vec![float(&[4]), float(&[4])]),
        ("outputs of the same number and types", false, vec![Spec::new([4], Dtype::Float64)]),
        ("a shape that memory can hold", false, vec![float(&[-4])]),
        ("input 0 to be what output 0 is", true, vec![float(&[4000])]),
    ];
    on_cpu(|| {
        let x = random32(&[4], 6)?;
        for (mentions, in_place, later) in cases {
            let f = move |x: &[Array]| {
                let (asked, later) = (AtomicBool::new(false), later.clone());
                apply(Fickle { asked, in_place, later }, &[&x[0].add(1.0)?])
            };
            let said = message(compile(f, true)?.call(&[&x]).and_then(|y| eval(&y)));
            assert!(said.contains("[fickle] expected ") && said.contains(mentions), "{said}");
        }
        Ok(())
    })
}
