//! The comparisons of each check.

use std::rc::Rc;

use super::bounds::{Compared, Place as Value};
use super::compare::{close, refs, same_spec, wrong};
use super::inputs::{Arrangement, Input, Tensor, extremes};
use super::mapped::mappings;
use super::values::{Peer, Place};
use super::{Backend, Check, Conformance, Outcome, Report};
use mlx_primitives::Array;
use mlx_primitives::Dtype;
use mlx_primitives::Result;
use mlx_primitives::support::panics::caught;
use mlx_primitives::transforms::{compile, jvp, vjp};

/// The step of the finite differences, in f64. Both sources of error, the square of the step and
/// 1e-16 divided by the step, are below every tolerance.
const STEP: f64 = 1e-5;
/// The number of elements of an input whose derivatives are checked. They are spread over the
/// input.
const PROBES: usize = 24;

/// Runs the given comparison and reports it under a name. If the peer's values differ although the
/// comparison passes, the comparison returns that difference.
type Comparison<'a> = dyn FnMut(&str, &mut dyn FnMut() -> Result<Peer>) + 'a;

impl Conformance {
    pub(super) fn run_check(&self, backend: Backend, check: Check, report: &mut Report) {
        for &dtype in &self.dtypes {
            let place = Place { backend, check, dtype };
            let sizes = self.sizes.iter().filter(|_| check == Check::Values);
            let sizes = sizes.map(|size| (size, &Arrangement::ALL[..1]));
            let cases = self.cases.iter().map(|case| (case, &Arrangement::ALL[..]));
            for (number, (case, arrangements)) in cases.chain(sizes).enumerate() {
                if self.share.as_ref().is_none_or(|share| share.takes_next()) {
                    self.run_case(place, number as u64, case, arrangements, report);
                }
            }
        }
    }

    fn kinds(&self) -> impl Iterator<Item = Input> + '_ {
        let (low, high) = self.range;
        self.inputs.iter().copied().chain(std::iter::repeat(Input::Float(low, high)))
    }

    /// Returns the indices of the inputs in which the op has derivatives.
    fn differentiable(&self, count: usize) -> Vec<usize> {
        let kinds = self.kinds().take(count).enumerate();
        kinds.filter(|(_, kind)| kind.is_differentiable()).map(|(number, _)| number).collect()
    }

    fn arrays(&self, tensors: &[Tensor], dtype: Dtype) -> Result<Vec<Array>> {
        let kinds = tensors.iter().zip(self.kinds());
        kinds.map(|(tensor, kind)| tensor.array(kind.dtype(dtype))).collect()
    }

    fn run_case(
        &self,
        place: Place,
        number: u64,
        shapes: &[Vec<i32>],
        arrangements: &[Arrangement],
        report: &mut Report,
    ) {
        let Place { backend, check, dtype } = place;
        let mut met = 0;
        let mut compare = |what: &str, run: &mut dyn FnMut() -> Result<Peer>| {
            met += 1;
            if met > 1 && !(met + number as usize).is_multiple_of(self.sample) {
                return;
            }
            let ran = caught(|| backend.run(&mut *run));
            let (failure, peer_fault) = match ran {
                Ok(Ok(peer)) => (None, peer),
                Ok(Err(error)) => (Some(error.to_string()), None),
                Err(message) => (Some(format!("panicked: {message}")), None),
            };
            let case =
                if what.is_empty() { format!("{shapes:?}") } else { format!("{shapes:?}, {what}") };
            report.add(Outcome { check, backend, dtype, case, failure, peer_fault });
        };
        let random = |shapes: &[Vec<i32>], seed: u64| -> Vec<Tensor> {
            let seeds = (0..).map(|i| 1000 * seed + 10 * number + i);
            let inputs = shapes.iter().zip(self.kinds()).zip(seeds);
            inputs.map(|((shape, kind), seed)| Tensor::random(shape, kind, seed)).collect()
        };
        let inputs = |seed: u64| random(shapes, seed);
        let arrays = |seed: u64| self.arrays(&inputs(seed), dtype);
        match check {
            Check::Values => {
                for (first, arrangement) in arrangements.iter().enumerate() {
                    let arranged = |step: usize| -> Result<Vec<Array>> {
                        let arrays = arrays(1)?;
                        let of = |(i, x): (usize, &Array)| {
                            arrangements[(first + step * i) % arrangements.len()].of(x)
                        };
                        arrays.iter().enumerate().map(of).collect()
                    };
                    compare(&format!("{arrangement:?}"), &mut || {
                        self.compare_values(&arranged(0)?, place)
                    });
                    if *arrangement == Arrangement::RowContiguous && shapes.len() == 1
                        || arrangements.len() == 1
                    {
                        continue; // these arrays are not views
                    }
                    // An op may handle evaluated views differently, so evaluate a separate view for
                    // each input.
                    compare(&format!("{arrangement:?}, evaluated"), &mut || {
                        let arranged = arranged(3)?;
                        arranged.iter().try_for_each(Array::eval)?;
                        self.compare_values(&arranged, place)
                    });
                }
            }
            Check::Extremes => self.run_extremes(&inputs, place, &mut compare),
            Check::Vjp => {
                for (name, numbers) in self.sets(shapes.len()) {
                    compare(&name, &mut || {
                        self.compare_vjp(&arrays(4)?, &numbers, place).map(|()| None)
                    });
                }
            }
            Check::Jvp => {
                for (name, numbers) in self.sets(shapes.len()) {
                    compare(&name, &mut || {
                        let (arrays, tangents) = (arrays(5)?, arrays(6)?);
                        self.compare_jvp(&arrays, &tangents, &numbers, place).map(|()| None)
                    });
                }
            }
            Check::Vmap => {
                for mapping in mappings(shapes) {
                    compare(
                        &format!("axes {:?} of {:?}", mapping.axes, mapping.shapes),
                        &mut || {
                            let arrays = self.arrays(&random(&mapping.shapes, 7), dtype)?;
                            self.compare_vmap(&arrays, &mapping.axes, backend, dtype)?;
                            Ok(None)
                        },
                    );
                }
            }
            Check::Compile => {
                compare("", &mut || self.compare_compiled(&arrays(8)?).map(|()| None));
            }
        }
    }

    fn run_extremes(
        &self,
        inputs: &dyn Fn(u64) -> Vec<Tensor>,
        place: Place,
        compare: &mut Comparison<'_>,
    ) {
        let mut numbers: Vec<(String, f64)> =
            extremes(place.dtype).map(|(name, value)| (name.to_owned(), value)).to_vec();
        numbers.extend(self.extremes.iter().map(|&value| (value.to_string(), value)));
        let floating = self.differentiable(inputs(2).len());
        for (name, value) in &numbers {
            for &number in &floating {
                compare(&format!("{name} among others of input {number}"), &mut || {
                    let mut tensors = inputs(2);
                    let values = &mut tensors[number].values;
                    let middle = values.len() / 2;
                    values.get_mut(middle).into_iter().for_each(|v| *v = *value);
                    self.compare_values(&self.arrays(&tensors, place.dtype)?, place)
                });
            }
        }
        for (name, value) in &numbers {
            compare(&format!("{name} everywhere in the first input"), &mut || {
                let mut tensors = inputs(3);
                for &number in floating.iter().take(1) {
                    tensors[number] = tensors[number].map(|_| *value);
                }
                self.compare_values(&self.arrays(&tensors, place.dtype)?, place)
            });
        }
        // Fill each input with all numbers, one after the other. In inputs with enough elements,
        // the shifts pair each number of an input with each number of the next input.
        let shifts = if floating.len() > 1 { numbers.len() } else { 1 };
        for shift in 0..shifts {
            compare(&format!("one after the other, {shift} apart"), &mut || {
                let mut tensors = inputs(3);
                for (&number, times) in floating.iter().zip(0..) {
                    let cycle = numbers.iter().cycle().skip(shift * times);
                    let values = tensors[number].values.iter_mut();
                    values.zip(cycle).for_each(|(v, (_, extreme))| *v = *extreme);
                }
                self.compare_values(&self.arrays(&tensors, place.dtype)?, place)
            });
        }
    }

    /// Returns the central difference of the reference's outputs at `x` along `direction`.
    fn difference(&self, x: &[Tensor], direction: &[Tensor]) -> Vec<Tensor> {
        let moved = |step: f64| {
            let inputs: Vec<Tensor> =
                x.iter().zip(direction).map(|(x, d)| add(x, step, d)).collect();
            (self.reference)(&inputs)
        };
        let (above, below) = (moved(STEP), moved(-STEP));
        above.iter().zip(&below).map(|(a, b)| add(a, -1.0, b).map(|d| d / (2.0 * STEP))).collect()
    }

    /// Returns the op as a function of the inputs with these indices. The other inputs are fixed.
    fn of_some<'a>(
        &'a self,
        arrays: &'a [Array],
        numbers: &'a [usize],
    ) -> impl Fn(&[Array]) -> Result<Vec<Array>> + 'a {
        move |p| {
            let mut all = arrays.to_vec();
            numbers.iter().zip(p).for_each(|(&number, x)| all[number] = x.clone());
            (self.op)(&all)
        }
    }

    /// Returns the sets of inputs to differentiate in, with their names: all inputs together and,
    /// if there are several, each input alone.
    fn sets(&self, inputs: usize) -> Vec<(String, Vec<usize>)> {
        let all = self.differentiable(inputs);
        let alone = all.iter().filter(|_| all.len() > 1);
        let mut sets: Vec<_> = alone.map(|&i| (format!("in input {i} alone"), vec![i])).collect();
        sets.insert(0, (String::new(), all));
        sets
    }

    fn compare_vjp(&self, arrays: &[Array], numbers: &[usize], place: Place) -> Result<()> {
        let Place { backend, check, dtype } = place;
        let tensors: Vec<Tensor> = arrays.iter().map(Tensor::of).collect::<Result<_>>()?;
        let compared = Compared { backend, check, dtype, inputs: &tensors, peer: false };
        let limit = self.derivative_tolerance.limit(None, &compared);
        let outputs = (self.reference)(&tensors);
        let cotangents = cotangents(&outputs, dtype)?;
        let primals: Vec<&Array> = numbers.iter().map(|&number| &arrays[number]).collect();
        let (_, gradients) =
            vjp(|p| self.of_some(arrays, numbers)(&p), &primals, &refs(&cotangents))?;
        let weights: Vec<Tensor> = cotangents.iter().map(Tensor::of).collect::<Result<_>>()?;
        for (&number, gradient) in numbers.iter().zip(&gradients) {
            let got = Tensor::of(gradient)?;
            let what = format!("the gradient of input {number}");
            same_spec(gradient, &arrays[number], &what)?;
            let count = got.values.len();
            for at in (0..count).step_by(count.div_ceil(PROBES).max(1)) {
                let mut direction: Vec<Tensor> = tensors.iter().map(|t| t.map(|_| 0.0)).collect();
                direction[number].values[at] = 1.0;
                let along = self.difference(&tensors, &direction);
                let want: f64 = along.iter().zip(&weights).map(|(d, w)| dot(d, w)).sum();
                limit.hold(got.values[at], want, dtype, Value { output: 0, at }, &what)?;
            }
        }
        Ok(())
    }

    fn compare_jvp(
        &self,
        arrays: &[Array],
        tangents: &[Array],
        numbers: &[usize],
        place: Place,
    ) -> Result<()> {
        let Place { backend, check, dtype } = place;
        let tensors: Vec<Tensor> = arrays.iter().map(Tensor::of).collect::<Result<_>>()?;
        let mut directions: Vec<Tensor> = tensors.iter().map(|t| t.map(|_| 0.0)).collect();
        for &number in numbers {
            directions[number] = Tensor::of(&tangents[number])?;
        }
        let of = |arrays: &[Array]| numbers.iter().map(|&i| arrays[i].clone()).collect::<Vec<_>>();
        let (primals, tangents) = (of(arrays), of(tangents));
        let op = self.of_some(arrays, numbers);
        let (values, derivatives) = jvp(|p| op(&p), &refs(&primals), &refs(&tangents))?;
        let want = self.difference(&tensors, &directions);
        let compared = Compared { backend, check, dtype, inputs: &tensors, peer: false };
        let limit = self.derivative_tolerance.limit(None, &compared);
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
            close(got, want, &limit, index, dtype, &what)?;
        }
        Ok(())
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

/// Returns random cotangents of type `dtype` for the outputs.
fn cotangents(outputs: &[Tensor], dtype: Dtype) -> Result<Vec<Array>> {
    let weights = outputs.iter().enumerate().map(|(i, output)| {
        let shape: Vec<i32> = output.shape.iter().map(|&dim| dim as i32).collect();
        Tensor::random(&shape, Input::Float(-1.0, 1.0), 9000 + i as u64).array(dtype)
    });
    weights.collect()
}

fn add(x: &Tensor, factor: f64, y: &Tensor) -> Tensor {
    let values: Vec<f64> = x.values.iter().zip(&y.values).map(|(x, y)| x + factor * y).collect();
    Tensor::new(x.shape.clone(), values)
}

fn dot(x: &Tensor, y: &Tensor) -> f64 {
    x.values.iter().zip(&y.values).map(|(x, y)| x * y).sum()
}
