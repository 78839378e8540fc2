//! Compares optimizers, learning-rate schedules and gradient clipping with the formulas of
//! `mlx.optimizers` in float64.

use mlx_primitives::{Array, Dtype};
use mlx_primitives_llama::train::{Adafactor, Adam, Optimizer, Parameters, Schedule, Sgd, clip};

use crate::support::compare::numbers;
use crate::support::{Checked, message};

const STEPS: i32 = 4;

/// Pseudorandom numbers. Each seed gives a different list.
fn list(count: usize, seed: usize) -> Vec<f64> {
    (0..count).map(|at| ((at * 37 + seed * 101) as f64 * 0.7).sin()).collect()
}

fn rms(x: &[f64]) -> f64 {
    (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64).sqrt()
}

/// A reference parameter with the state of its optimizer. It has `rows` rows, or is a vector if
/// `rows` is 0.
struct Reference {
    rows: usize,
    w: Vec<f64>,
    kept: [Vec<f64>; 3],
}

impl Reference {
    fn step(&mut self, optimizer: &Optimizer, g: &[f64], rate: f64, t: i32) {
        match optimizer {
            Optimizer::Adam(options) => self.adam(options, g, rate, t),
            Optimizer::Sgd(options) => self.sgd(options, g, rate),
            Optimizer::Adafactor(options) => self.adafactor(options, g, rate, t),
        }
    }

    fn adam(&mut self, options: &Adam, g: &[f64], rate: f64, t: i32) {
        let [b1, b2] = options.betas;
        let [m, v, _] = &mut self.kept;
        for (at, g) in g.iter().enumerate() {
            m[at] = b1 * m[at] + (1.0 - b1) * g;
            v[at] = b2 * v[at] + (1.0 - b2) * g * g;
            let (mut m, mut v) = (m[at], v[at]);
            if options.bias_correction {
                (m, v) = (m / (1.0 - b1.powi(t)), v / (1.0 - b2.powi(t)));
            }
            self.w[at] *= 1.0 - rate * options.weight_decay;
            self.w[at] -= rate * m / (v.sqrt() + options.eps);
        }
    }

    fn sgd(&mut self, options: &Sgd, g: &[f64], rate: f64) {
        let v = &mut self.kept[0];
        for (at, g) in g.iter().enumerate() {
            let g = g + options.weight_decay * self.w[at];
            v[at] = options.momentum * v[at] + (1.0 - options.dampening) * g;
            self.w[at] -= rate
                * match options {
                    Sgd { momentum: 0.0, .. } => g,
                    Sgd { nesterov: true, momentum, .. } => g + momentum * v[at],
                    _ => v[at],
                };
        }
    }

    fn adafactor(&mut self, options: &Adafactor, g: &[f64], rate: f64, t: i32) {
        let count = g.len();
        let (rows, t) = (self.rows, f64::from(t));
        let columns = count / rows.max(1);
        let least = if options.warmup_init { 1e-6 * t } else { 1e-2 };
        let mut rate = if options.relative_step { least.min(1.0 / t.sqrt()) } else { rate };
        if options.scale_parameter {
            rate *= rms(&self.w).max(options.eps[1]);
        }
        let beta = 1.0 - t.powf(options.decay_rate);
        let square: Vec<f64> = g.iter().map(|g| g * g + options.eps[0]).collect();
        let [row, column, mean] = &mut self.kept;
        let mut step = vec![0.0; count];
        if rows > 0 {
            for (at, row) in row.iter_mut().enumerate().take(rows) {
                let all = &square[at * columns..(at + 1) * columns];
                *row = beta * *row + (1.0 - beta) * all.iter().sum::<f64>() / columns as f64;
            }
            for (at, column) in column.iter_mut().enumerate().take(columns) {
                let all = square.iter().skip(at).step_by(columns);
                *column = beta * *column + (1.0 - beta) * all.sum::<f64>() / rows as f64;
            }
            let all = row[..rows].iter().sum::<f64>() / rows as f64;
            for at in 0..count {
                step[at] = g[at] / (row[at / columns] / all * column[at % columns]).sqrt();
            }
        } else {
            for at in 0..count {
                row[at] = beta * row[at] + (1.0 - beta) * square[at];
                step[at] = g[at] / row[at].sqrt();
            }
        }
        let excess = (rms(&step) / options.clip_threshold).max(1.0);
        for at in 0..count {
            let mut step = rate * step[at] / excess;
            if let Some(beta) = options.beta_1 {
                mean[at] = beta * mean[at] + (1.0 - beta) * step;
                step = mean[at];
            }
            self.w[at] -= self.w[at] * options.weight_decay * rate + step;
        }
    }
}

fn optimizers() -> Vec<Optimizer> {
    let adam = Adam::default();
    let sgd = Sgd { momentum: 0.9, ..Sgd::default() };
    let factored = Adafactor::default();
    let mut all = vec![
        Optimizer::Adam(adam),
        Optimizer::Adam(Adam { bias_correction: true, eps: 1e-3, ..adam }),
        Optimizer::Adam(Adam { weight_decay: 0.1, betas: [0.8, 0.95], ..adam }),
        Optimizer::Sgd(Sgd::default()),
        Optimizer::Sgd(Sgd { weight_decay: 0.1, ..Sgd::default() }),
        Optimizer::Sgd(sgd),
        Optimizer::Sgd(Sgd { dampening: 0.3, ..sgd }),
        Optimizer::Sgd(Sgd { nesterov: true, weight_decay: 0.01, ..sgd }),
    ];
    all.extend(
        [
            factored,
            Adafactor { beta_1: Some(0.9), ..factored },
            Adafactor { relative_step: false, scale_parameter: false, ..factored },
            Adafactor { warmup_init: true, weight_decay: 0.5, ..factored },
            Adafactor { clip_threshold: 0.2, eps: [1e-3, 2.0], decay_rate: -0.5, ..factored },
        ]
        .map(Optimizer::Adafactor),
    );
    all
}

#[test(simulated = never)]
fn optimizers_equal_their_formulas() -> Checked {
    for optimizer in optimizers() {
        for (dtype, bound) in
            [(Dtype::Float32, 2e-6), (Dtype::Float16, 1e-3), (Dtype::Bfloat16, 8e-3)]
        {
            let shapes = [("matrix", vec![3, 4], 3), ("vector", vec![5], 0)];
            let count = |shape: &[i32]| shape.iter().product::<i32>() as usize;
            let array = |x: &[f64], shape: &[i32]| {
                let x: Vec<f32> = x.iter().map(|&x| x as f32).collect();
                Array::from_slice(&x, shape)?.astype(dtype)
            };
            let mut references = Vec::new();
            let mut parameters = Parameters::new();
            for (name, shape, rows) in &shapes {
                let w = array(&list(count(shape), 1), shape)?;
                let kept = [(); 3].map(|()| vec![0.0; count(shape)]);
                references.push(Reference { rows: *rows, w: numbers(&w)?, kept });
                parameters.insert((*name).to_owned(), w);
            }
            let mut state = optimizer.state(&parameters)?;
            for t in 1..=STEPS {
                let rate = 0.1 / f64::from(t);
                let mut gradients = Parameters::new();
                for ((name, shape, _), reference) in shapes.iter().zip(&mut references) {
                    let g = array(&list(count(shape), 10 + t as usize), shape)?;
                    reference.step(&optimizer, &numbers(&g)?, rate, t);
                    gradients.insert((*name).to_owned(), g);
                }
                optimizer.update(&mut parameters, &gradients, &mut state, rate)?;
                for ((name, ..), reference) in shapes.iter().zip(&references) {
                    let (got, want) = (&parameters[*name], &reference.w);
                    assert_eq!(got.dtype(), dtype);
                    for (got, want) in numbers(got)?.into_iter().zip(want) {
                        let error = (got - want).abs() / want.abs().max(1.0);
                        let most = bound * f64::from(t);
                        assert!(error <= most, "{optimizer:?} {name} {dtype} {t}: {got} {want}");
                    }
                }
            }
            assert_eq!(state.updates, STEPS as u64);
            assert!(state.arrays.values().all(|array| array.dtype() == Dtype::Float32));
        }
    }
    Ok(())
}

#[test(simulated = never)]
fn optimizers_refuse_what_has_no_meaning() -> Checked {
    let of = |array: Array| Parameters::from([("w".to_owned(), array)]);
    let w = of(Array::ones::<f32>(2)?);
    let refused = [
        Optimizer::Adam(Adam { betas: [1.0, 0.9], ..Adam::default() }),
        Optimizer::Adam(Adam { eps: f64::NAN, ..Adam::default() }),
        Optimizer::Sgd(Sgd { momentum: -0.1, ..Sgd::default() }),
        Optimizer::Sgd(Sgd { nesterov: true, ..Sgd::default() }),
        Optimizer::Sgd(Sgd { nesterov: true, momentum: 0.9, dampening: 0.1, ..Sgd::default() }),
        Optimizer::Adafactor(Adafactor { clip_threshold: 0.0, ..Adafactor::default() }),
    ];
    for optimizer in refused {
        assert!(message(optimizer.state(&w)).contains("[optimizer] expected"), "{optimizer:?}");
    }
    let sgd = Optimizer::Sgd(Sgd { momentum: 0.9, ..Sgd::default() });
    assert!(message(sgd.state(&of(Array::ones::<i32>(2)?))).contains("got w of int32"));
    let mut state = sgd.state(&w)?;
    let error = message(sgd.update(&mut w.clone(), &Parameters::new(), &mut state, 0.1));
    assert!(error.contains("a gradient of w, got none"), "{error}");
    let error = message(sgd.update(&mut w.clone(), &w, &mut Default::default(), 0.1));
    assert!(error.contains("v of w, got none"), "{error}");
    Ok(())
}

#[test(simulated = never)]
fn schedules_equal_their_formulas() {
    let cosine = Schedule::Cosine { from: 3.0, to: 1.0, steps: 8 };
    for (update, rate) in [(0, 3.0), (2, 2.0 + 0.5f64.sqrt()), (4, 2.0), (8, 1.0), (99, 1.0)] {
        assert!((cosine.rate(update) - rate).abs() < 1e-12, "{update}");
    }
    // After a warm-up of 2 updates, updates 2 and 3 both have the full rate, as in mlx-lm.
    let warm = cosine.after_warmup(1.0, 2);
    let rates = [0, 1, 2, 3, 7, 11].map(|update| warm.rate(update));
    assert_eq!(rates[..4], [1.0, 2.0, 3.0, 3.0]);
    assert!((rates[4] - 2.0).abs() < 1e-12 && (rates[5] - 1.0).abs() < 1e-12);
    assert_eq!(Schedule::Constant(0.5).rate(u64::MAX), 0.5);
    let linear = Schedule::Linear { from: 0.0, to: 1.0, steps: 0 };
    assert_eq!((linear.rate(0), linear.after_warmup(0.0, u64::MAX).rate(7)), (0.0, 0.0));
}

#[test(simulated = never)]
fn gradients_are_clipped_by_their_common_norm() -> Checked {
    let gradients = Parameters::from([
        ("a".to_owned(), Array::from_slice(&[3.0f32, 0.0], 2)?),
        ("b".to_owned(), Array::full(1, half::bf16::from_f32(4.0))?),
    ]);
    let (clipped, norm) = clip(&gradients, 2.5)?;
    assert_eq!(norm.item::<f32>()?, 5.0);
    assert!((numbers(&clipped["a"])?[0] - 1.5).abs() < 1e-6);
    assert_eq!((numbers(&clipped["b"])?[0], clipped["b"].dtype()), (2.0, Dtype::Bfloat16));
    let (same, _) = clip(&gradients, 6.0)?;
    assert_eq!(numbers(&same["a"])?, [3.0, 0.0]);
    assert!(clip(&gradients, 0.0).is_err() && clip(&gradients, f64::NAN).is_err());
    Ok(())
}
