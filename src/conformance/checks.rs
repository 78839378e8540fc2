//! The comparisons.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use super::bounds::{Compared, Limit};
use super::inputs::{Arrangement, Tensor, extremes};
use super::{Backend, Check, Conformance, Outcome, Report};
use crate::array::{Array, stack};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::transforms::{compile, jvp, panic_message, vjp, vmap};

/// The step of differences in f64: its square, and 1e-16 over it, are below every tolerance.
const STEP: f64 = 1e-5;
/// Elements of an input that are differentiated in, spread over it.
const PROBES: usize = 24;

fn refs(arrays: &[Array]) -> Vec<&Array> {
    arrays.iter().collect()
}

fn wrong<T>(said: impl std::fmt::Display) -> Result<T> {
    Err(Error::Argument(said.to_string()))
}

/// What a comparison is made of.
#[derive(Clone, Copy)]
struct Place {
    backend: Backend,
    check: Check,
    dtype: Dtype,
}

impl Conformance {
    pub(super) fn run_check(&self, backend: Backend, check: Check, report: &mut Report) {
        for &dtype in &self.dtypes {
            let place = Place { backend, check, dtype };
            let sizes = self.sizes.iter().filter(|_| check == Check::Values);
            let sizes = sizes.map(|size| (size, &Arrangement::ALL[..1]));
            let cases = self.cases.iter().map(|case| (case, &Arrangement::ALL[..]));
            for (number, (case, arrangements)) in cases.chain(sizes).enumerate() {
                let inputs = |seed: u64| -> Vec<Tensor> {
                    let seeds = (0..).map(|i| 1000 * seed + 10 * number as u64 + i);
                    let pairs = case.iter().zip(seeds);
                    pairs.map(|(shape, seed)| Tensor::random(shape, self.range, seed)).collect()
                };
                self.run_case(place, &format!("{case:?}"), arrangements, &inputs, report);
            }
        }
    }

    fn run_case(
        &self,
        place: Place,
        case: &str,
        arrangements: &[Arrangement],
        inputs: &dyn Fn(u64) -> Vec<Tensor>,
        report: &mut Report,
    ) {
        let dtype = place.dtype;
        let mut compare = |what: &str, run: &mut dyn FnMut() -> Result<()>| {
            let ran = catch_unwind(AssertUnwindSafe(|| place.backend.run(&mut *run)));
            let failure = match ran {
                Ok(result) => result.err().map(|error| error.to_string()),
                Err(payload) => Some(format!("panicked: {}", panic_message(&*payload))),
            };
            let case = if what.is_empty() { case.to_owned() } else { format!("{case}, {what}") };
            let Place { backend, check, .. } = place;
            report.add(Outcome { check, backend, dtype, case, failure });
        };
        let arrays = |seed: u64| -> Result<Vec<Array>> {
            inputs(seed).iter().map(|input| input.array(dtype)).collect()
        };
        match place.check {
            Check::Values => {
                for arrangement in arrangements {
                    let arranged = || -> Result<Vec<Array>> {
                        arrays(1)?.iter().map(|x| arrangement.of(x)).collect()
                    };
                    compare(&format!("{arrangement:?}"), &mut || {
                        self.compare_values(&arranged()?, place)
                    });
                    // An op may know more of a view that is there already.
                    compare(&format!("{arrangement:?}, evaluated"), &mut || {
                        let arranged = arranged()?;
                        arranged.iter().try_for_each(Array::eval)?;
                        self.compare_values(&arranged, place)
                    });
                }
            }
            Check::Extremes => {
                for (name, value) in extremes(dtype) {
                    compare(&format!("{name} among others"), &mut || {
                        let mut tensors = inputs(2);
                        for tensor in &mut tensors {
                            let middle = tensor.values.len() / 2;
                            tensor.values.get_mut(middle).into_iter().for_each(|v| *v = value);
                        }
                        self.compare_tensors(&tensors, place)
                    });
                }
                compare("one after the other", &mut || {
                    let mut tensors = inputs(3);
                    for (shift, tensor) in tensors.iter_mut().enumerate() {
                        let cycle = extremes(dtype).into_iter().cycle().skip(shift);
                        tensor
                            .values
                            .iter_mut()
                            .zip(cycle)
                            .for_each(|(v, (_, extreme))| *v = extreme);
                    }
                    self.compare_tensors(&tensors, place)
                });
            }
            Check::Vjp => compare("", &mut || self.compare_vjp(&arrays(4)?, dtype)),
            Check::Jvp => compare("", &mut || self.compare_jvp(&arrays(5)?, &arrays(6)?, dtype)),
            Check::Vmap => {
                for mapped in mappings(&inputs(7)) {
                    compare(&format!("axes {mapped:?}"), &mut || {
                        self.compare_vmap(&arrays(7)?, &mapped, place)
                    });
                }
            }
            Check::Compile => compare("", &mut || self.compare_compiled(&arrays(8)?)),
        }
    }

    fn compare_tensors(&self, tensors: &[Tensor], place: Place) -> Result<()> {
        let arrays: Result<Vec<Array>> = tensors.iter().map(|t| t.array(place.dtype)).collect();
        self.compare_values(&arrays?, place)
    }

    fn compare_values(&self, arrays: &[Array], place: Place) -> Result<()> {
        let got = (self.op)(arrays)?;
        if got.iter().any(Array::is_scheduled) {
            return wrong("computed when it was built");
        }
        let inputs: Vec<Tensor> = arrays.iter().map(Tensor::of).collect::<Result<_>>()?;
        let Place { backend, dtype, .. } = place;
        let compared = Compared { backend, dtype, inputs: &inputs };
        let limit = self.tolerance.limit(&compared);
        compare_outputs(&got, &(self.reference)(&inputs), limit, dtype, "output")?;
        match &self.peer {
            // MLX's own ops refuse some empty arrays.
            Some((peer, bounds)) if inputs.iter().all(|input| !input.values.is_empty()) => {
                let peers = peer(arrays)?;
                for (index, (got, peer)) in got.iter().zip(&peers).enumerate() {
                    same_spec(got, peer, &format!("output {index}, beside its peer,"))?;
                }
                let want: Vec<Tensor> = peers.iter().map(Tensor::of).collect::<Result<_>>()?;
                let what = "beside the peer's, output";
                compare_outputs(&got, &want, bounds.limit(&compared), dtype, what)
            }
            _ => Ok(()),
        }
    }

    /// Sums of the reference's outputs times `weights`, at the inputs moved along `direction`.
    fn difference(&self, x: &[Tensor], direction: &[Tensor]) -> Vec<Tensor> {
        let moved = |step: f64| {
            let inputs: Vec<Tensor> =
                x.iter().zip(direction).map(|(x, d)| add(x, step, d)).collect();
            (self.reference)(&inputs)
        };
        let (above, below) = (moved(STEP), moved(-STEP));
        above.iter().zip(&below).map(|(a, b)| add(a, -1.0, b).map(|d| d / (2.0 * STEP))).collect()
    }

    fn compare_vjp(&self, arrays: &[Array], dtype: Dtype) -> Result<()> {
        let tensors: Vec<Tensor> = arrays.iter().map(Tensor::of).collect::<Result<_>>()?;
        let outputs = (self.reference)(&tensors);
        let cotangents = cotangents(&outputs, dtype)?;
        let op = |p: &[Array]| (self.op)(p);
        let (_, gradients) = vjp(op, &refs(arrays), &refs(&cotangents))?;
        let weights: Vec<Tensor> = cotangents.iter().map(Tensor::of).collect::<Result<_>>()?;
        for (number, gradient) in gradients.iter().enumerate() {
            let got = Tensor::of(gradient)?;
            same_spec(gradient, &arrays[number], &format!("the gradient of input {number}"))?;
            let count = got.values.len();
            for at in (0..count).step_by(count.div_ceil(PROBES).max(1)) {
                let mut direction: Vec<Tensor> = tensors.iter().map(|t| t.map(|_| 0.0)).collect();
                direction[number].values[at] = 1.0;
                let along = self.difference(&tensors, &direction);
                let want: f64 = along.iter().zip(&weights).map(|(d, w)| dot(d, w)).sum();
                let what = format!("the gradient of input {number} at {at}");
                let limit = Limit::Epsilons(self.derivative_tolerance);
                limit.hold(got.values[at], want, dtype, || what)?;
            }
        }
        Ok(())
    }

    fn compare_jvp(&self, arrays: &[Array], tangents: &[Array], dtype: Dtype) -> Result<()> {
        let tensors: Vec<Tensor> = arrays.iter().map(Tensor::of).collect::<Result<_>>()?;
        let directions: Vec<Tensor> = tangents.iter().map(Tensor::of).collect::<Result<_>>()?;
        let op = |p: &[Array]| (self.op)(p);
        let (values, derivatives) = jvp(op, &refs(arrays), &refs(tangents))?;
        let want = self.difference(&tensors, &directions);
        if derivatives.len() != want.len() {
            return wrong(format_args!(
                "{} derivatives of {} outputs",
                derivatives.len(),
                want.len()
            ));
        }
        for (index, (got, want)) in derivatives.iter().zip(&want).enumerate() {
            let what = format!("the derivative of output {index}");
            same_spec(got, &values[index], &what)?;
            close(got, want, Limit::Epsilons(self.derivative_tolerance), dtype, &what)?;
        }
        Ok(())
    }

    /// What the op refuses of a slice, vmap has to refuse too.
    fn compare_vmap(&self, arrays: &[Array], axes: &[Option<i32>], place: Place) -> Result<()> {
        let mapped = vmap(|p| (self.op)(p), &refs(arrays), axes, &[]);
        let (mapped, parts) = match (mapped, self.slices(arrays, axes)) {
            (Err(_), Err(_)) => return Ok(()),
            (Ok(_), Err(error)) => {
                return wrong(format_args!("vmap takes what is refused: {error}"));
            }
            (mapped, parts) => (mapped?, parts?),
        };
        let inputs: Vec<Tensor> = arrays.iter().map(Tensor::of).collect::<Result<_>>()?;
        let Place { backend, dtype, .. } = place;
        let limit = self.tolerance.limit(&Compared { backend, dtype, inputs: &inputs });
        for (index, mapped) in mapped.iter().enumerate() {
            let column: Vec<&Array> = parts.iter().filter_map(|part| part.get(index)).collect();
            let want = stack(&column, 0)?;
            let what = format!("output {index}");
            same_spec(mapped, &want, &what)?;
            close(mapped, &Tensor::of(&want)?, limit, dtype, &what)?;
        }
        Ok(())
    }

    /// The op's outputs for each slice of the mapped inputs.
    fn slices(&self, arrays: &[Array], axes: &[Option<i32>]) -> Result<Vec<Vec<Array>>> {
        let size = arrays.iter().zip(axes).find_map(|(x, axis)| axis.map(|axis| x.dim(axis)));
        let part = |at: i32| {
            let part = arrays.iter().zip(axes).map(|(x, axis)| match axis {
                Some(axis) => x.slice_axis(*axis, at..at + 1)?.squeeze(&[*axis]),
                None => Ok(x.clone()),
            });
            (self.op)(&part.collect::<Result<Vec<_>>>()?)
        };
        (0..size.unwrap_or(Ok(0))?).map(part).collect()
    }

    fn compare_compiled(&self, arrays: &[Array]) -> Result<()> {
        let op = Rc::clone(&self.op);
        let compiled = compile(move |p| op(p), false)?.call(&refs(arrays))?;
        for (index, (got, want)) in compiled.iter().zip((self.op)(arrays)?).enumerate() {
            same_spec(got, &want, &format!("output {index}"))?;
            let (got, want) = (Tensor::of(got)?, Tensor::of(&want)?);
            let differ =
                |(a, b): (&f64, &f64)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
            if let Some(at) = got.values.iter().zip(&want.values).position(differ) {
                return wrong(format_args!(
                    "output {index} at {at} is {} compiled, {} otherwise",
                    got.values[at], want.values[at]
                ));
            }
        }
        Ok(())
    }
}

/// Random weights for the outputs, in the op's own output type.
fn cotangents(outputs: &[Tensor], dtype: Dtype) -> Result<Vec<Array>> {
    let weights = outputs.iter().enumerate().map(|(i, output)| {
        let shape: Vec<i32> = output.shape.iter().map(|&dim| dim as i32).collect();
        Tensor::random(&shape, (-1.0, 1.0), 9000 + i as u64).array(dtype)
    });
    weights.collect()
}

/// Each axis of each input alone, and the first axes of all inputs where they are equally long.
fn mappings(inputs: &[Tensor]) -> Vec<Vec<Option<i32>>> {
    let mut all = Vec::new();
    for (number, input) in inputs.iter().enumerate() {
        for axis in (0..input.shape.len()).filter(|&axis| input.shape[axis] > 0) {
            let mut axes = vec![None; inputs.len()];
            axes[number] = Some(axis as i32);
            all.push(axes);
        }
    }
    let first = inputs.first().and_then(|input| input.shape.first());
    if inputs.len() > 1
        && first.is_some_and(|&n| n > 0)
        && inputs.iter().all(|i| i.shape.first() == first)
    {
        all.push(vec![Some(0); inputs.len()]);
    }
    all
}

fn add(x: &Tensor, factor: f64, y: &Tensor) -> Tensor {
    let values: Vec<f64> = x.values.iter().zip(&y.values).map(|(x, y)| x + factor * y).collect();
    Tensor::new(x.shape.clone(), values)
}

fn dot(x: &Tensor, y: &Tensor) -> f64 {
    x.values.iter().zip(&y.values).map(|(x, y)| x * y).sum()
}

fn same_spec(got: &Array, want: &Array, what: &str) -> Result<()> {
    if (got.shape(), got.dtype()) == (want.shape(), want.dtype()) {
        return Ok(());
    }
    wrong(format_args!(
        "{what} is {} {:?}, not {} {:?}",
        got.dtype(),
        got.shape(),
        want.dtype(),
        want.shape()
    ))
}

fn compare_outputs(
    got: &[Array],
    want: &[Tensor],
    limit: Limit,
    dtype: Dtype,
    what: &str,
) -> Result<()> {
    if got.len() != want.len() {
        return wrong(format_args!("{} outputs, and {} of the reference", got.len(), want.len()));
    }
    let mut pairs = got.iter().zip(want).enumerate();
    pairs.try_for_each(|(i, (got, want))| close(got, want, limit, dtype, &format!("{what} {i}")))
}

fn close(got: &Array, want: &Tensor, limit: Limit, dtype: Dtype, what: &str) -> Result<()> {
    let got = Tensor::of(got)?;
    if got.shape != want.shape || got.values.len() != want.values.len() {
        return wrong(format_args!("{what} has shape {:?}, not {:?}", got.shape, want.shape));
    }
    for (at, (&got, &want)) in got.values.iter().zip(&want.values).enumerate() {
        limit.hold(got, want, dtype, || format!("{what} at {at}"))?;
    }
    Ok(())
}
