//! Activations against f64 and against MLX's compositions: values, layouts, extremes, derivatives.

use half::f16;
use mlx_primitives::transforms::{jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, builtin, ops, stack};

use crate::support::compare::{array_ulps, assert_close, assert_same, numbers, ulp};
use crate::support::input::{FLOATS, LAYOUTS, data, random, random32};
use crate::support::{self, Checked, each_device, message, reference, refs, simulated};

/// A function of `a` and, if it takes two, of `b`.
struct Case {
    name: &'static str,
    two: bool,
    op: fn(&Array, &Array) -> Result<Array>,
    of: fn(f64, f64) -> f64,
    /// Only sums, products and maxima: every backend gives the same bits.
    exact: bool,
}

const CASES: [Case; 9] = [
    Case { name: "relu", two: false, op: |a, _| ops::relu(a), of: |a, _| a.max(0.0), exact: true },
    Case { name: "silu", two: false, op: |a, _| ops::silu(a), of: |a, _| silu(a), exact: false },
    Case { name: "gelu", two: false, op: |a, _| ops::gelu(a), of: |a, _| gelu(a), exact: false },
    Case {
        name: "gelu_tanh",
        two: false,
        op: |a, _| ops::gelu_tanh(a),
        of: |a, _| gelu_tanh(a),
        exact: false,
    },
    Case { name: "swiglu", two: true, op: ops::swiglu, of: |a, b| silu(a) * b, exact: false },
    Case { name: "geglu", two: true, op: ops::geglu, of: |a, b| gelu(a) * b, exact: false },
    Case {
        name: "geglu_tanh",
        two: true,
        op: ops::geglu_tanh,
        of: |a, b| gelu_tanh(a) * b,
        exact: false,
    },
    Case {
        name: "add_relu",
        two: true,
        op: ops::add_relu,
        of: |a, b| (a + b).max(0.0),
        exact: true,
    },
    Case {
        name: "mul_relu",
        two: true,
        op: ops::mul_relu,
        of: |a, b| (a * b).max(0.0),
        exact: true,
    },
];

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// The series of positive terms: exp(-x²) times the sum of 2^n x^(2n+1) / (2n+1)!!.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

fn gelu(x: f64) -> f64 {
    x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)) / 2.0
}

fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    x / 2.0 * (1.0 + inner.tanh())
}

/// Five roundings to the type: of numbers up to 1 that multiply a, then of the result. f32's
/// tanh, erf (1.5e-7 on the CPU) and constants add about as much again.
fn bound(a: f64, b: f64, want: f64, dtype: Dtype) -> f64 {
    let reach = a.abs().max(1e-30) * b.abs().max(1.0);
    5.0 * ulp(1.0, dtype) * reach + ulp(want, dtype)
}

fn check(case: &Case, a: &Array, b: &Array, what: &str) -> Checked {
    let y = (case.op)(a, b)?;
    let peer = builtin::composition(&y)?.swap_remove(0);
    let what = format!("{} {what}", case.name);
    assert_eq!((y.shape(), y.dtype()), (peer.shape(), peer.dtype()), "{what}");
    // On the CPU MLX's polynomials are ours, but for tanh, which is libm's there.
    if case.exact || !simulated() && !case.name.contains("tanh") {
        assert_same(&y, &peer, &what)?;
    }
    let shape = y.shape().to_vec();
    let wide = |x: &Array| numbers(&x.astype(y.dtype())?.broadcast_to(&shape)?);
    let (got, theirs) = (numbers(&y)?, numbers(&peer)?);
    let (a, b) = (wide(a)?, if case.two { wide(b)? } else { vec![1.0; y.size()] });
    for i in 0..got.len() {
        let want = (case.of)(a[i], b[i]);
        let allowed = bound(a[i], b[i], want, y.dtype());
        let error = (got[i] - want).abs();
        assert!(error <= allowed, "{what}: {:e} for {want:e} of {} {}", got[i], a[i], b[i]);
        let apart = (got[i] - theirs[i]).abs();
        assert!(apart <= allowed, "{what}: {:e}, MLX's {:e} of {}", got[i], theirs[i], a[i]);
    }
    Ok(())
}

#[test]
fn sizes_in_every_type() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for case in &CASES {
                for shape in [&[][..], &[0], &[1], &[3], &[2, 17], &[1024], &[3, 1, 1031], &[4097]]
                {
                    let a = random(shape, dtype, 1)?.multiply(2.0f32)?.astype(dtype)?;
                    let b = random(shape, dtype, 2)?;
                    check(case, &a, &b, &format!("{dtype} {shape:?}"))?;
                }
            }
        }
        Ok(())
    })
}

#[test]
fn layouts_and_broadcasts() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for case in &CASES {
                for layout in LAYOUTS {
                    let a = layout.make(&[2, 3, 7], dtype, 3)?;
                    let b = layout.make(&[2, 3, 7], dtype, 4)?;
                    check(case, &a, &b, &format!("{dtype} {layout:?}"))?;
                    a.eval()?;
                    check(case, &a, &random(&[2, 3, 7], dtype, 5)?, "evaluated")?;
                }
                if case.two {
                    let a = random(&[2, 1, 7], dtype, 6)?;
                    check(case, &a, &random(&[3, 1], dtype, 7)?, "broadcast")?;
                    check(case, &random(&[7], dtype, 8)?, &a, "broadcast")?;
                }
            }
        }
        Ok(())
    })
}

#[test]
fn types_are_promoted() -> Checked {
    each_device(|_| {
        let x = random32(&[5, 9], 9)?;
        for case in &CASES {
            check(case, &x.astype(Dtype::Int32)?, &x.astype(Dtype::Int8)?, "integers")?;
            if case.two {
                check(case, &x.astype(Dtype::Bfloat16)?, &x, "bfloat16 and float32")?;
                check(case, &x.astype(Dtype::Float16)?, &x.astype(Dtype::Bfloat16)?, "both")?;
            }
        }
        Ok(())
    })
}

#[test]
fn extremes_are_those_of_mlx() -> Checked {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    each_device(|_| {
        for dtype in FLOATS {
            let large = if dtype == Dtype::Float16 { f16::MAX.to_f32() } else { 3e38 };
            let values = [
                0.0, -0.0, 1e-7, -1e-7, 1e-42, -1e-42, 0.5, -0.5, 9.0, -9.0, 11.5, -11.5, 17.5,
                -17.5, 50.0, -50.0, 87.5, -87.5, 88.5, -88.5, 104.0, -104.0, 300.0, -300.0, large,
                -large, inf, -inf, nan,
            ];
            let x = data(&values, &[29], dtype)?;
            for case in &CASES {
                for b in [1.5, -0.0, large, inf, nan] {
                    if b == inf && simulated() {
                        continue; // MLX's CPU takes e^-88 for 0, of which this makes NaN
                    }
                    let b = data(&[b; 29], &[29], dtype)?;
                    let y = (case.op)(&x, &b)?;
                    let peer = builtin::composition(&y)?.swap_remove(0);
                    let what = format!("{} {dtype}", case.name);
                    if case.exact || !simulated() && !case.name.contains("tanh") {
                        assert_same(&y, &peer, &what)?;
                        continue;
                    }
                    // NaN and infinities agree; the rest within a rounding of 1, times a and b.
                    array_ulps(&y, &peer, &what)?;
                    let (a, b) = (numbers(&x)?, numbers(&b)?);
                    for (i, (y, peer)) in numbers(&y)?.iter().zip(numbers(&peer)?).enumerate() {
                        if y.is_finite() {
                            let b = if case.two { b[i] } else { 1.0 };
                            let allowed = bound(a[i], b, peer, dtype);
                            assert!((y - peer).abs() <= allowed, "{what} {}: {y} {peer}", a[i]);
                        }
                    }
                }
            }
        }
        Ok(())
    })
}

#[test]
fn affine_with_numbers_and_vectors() -> Checked {
    each_device(|_| {
        for dtype in FLOATS {
            for shape in [&[3, 5][..], &[7, 1], &[0, 4], &[2, 3, 1030], &[300, 4], &[6000]] {
                let x = random(shape, dtype, 10)?;
                let n = shape[shape.len() - 1];
                let vectors = [random(&[n], dtype, 11)?, random(&[n], dtype, 12)?];
                let scalars = [random(&[], dtype, 13)?, random(&[], dtype, 14)?];
                for scale in [&vectors[0], &scalars[0]] {
                    for shift in [&vectors[1], &scalars[1]] {
                        let want = x.multiply(scale)?.add(shift)?;
                        let what = format!("{dtype} {shape:?} {:?}", scale.shape());
                        assert_same(&ops::affine(&x, scale, shift)?, &want, &what)?;
                    }
                }
            }
            for layout in LAYOUTS {
                let x = layout.make(&[3, 4, 6], dtype, 15)?;
                let scale = layout.make(&[6, 6], dtype, 16)?.slice_axis(0, 1..2)?.squeeze(&[0])?;
                let shift = random(&[6], dtype, 17)?.slice_axis(0, (.., -1))?;
                let want = x.multiply(&scale)?.add(&shift)?;
                let what = format!("{dtype} {layout:?}");
                assert_same(&ops::affine(&x, &scale, &shift)?, &want, &what)?;
            }
            let x = random(&[], dtype, 18)?;
            assert_same(&ops::affine(&x, &x, &x)?, &x.multiply(&x)?.add(&x)?, "scalars")?;
        }
        Ok(())
    })
}

#[test]
fn vjp_and_jvp() -> Checked {
    each_device(|_| {
        let (a, b) = (random32(&[2, 11], 20)?, random32(&[2, 11], 21)?);
        let (g, t, u) = (random32(&[2, 11], 22)?, random32(&[2, 11], 23)?, random32(&[2, 11], 24)?);
        let all = [&a, &b, &g, &t, &u].map(numbers);
        let [a64, b64, g64, t64, d64] = all.map(|numbers| numbers.unwrap_or_default());
        // Errors of a difference quotient are h² and 1e-16 / h; f32's dominate.
        const TOLERANCE: f64 = 2e-5;
        for case in &CASES {
            let f = |p: &[Array]| Ok(vec![(case.op)(&p[0], p.get(1).unwrap_or(&b))?]);
            let value = |a: &[f64], b: &[f64]| -> Vec<f64> {
                a.iter().zip(b).map(|(&a, &b)| (case.of)(a, b)).collect()
            };
            let (y, of_both) = vjp(f, &[&a, &b], &[&g])?;
            assert_same(&y[0], &(case.op)(&a, &b)?, case.name)?;
            let want = reference::gradient(&a64, 1e-6, |a| reference::dot(&g64, &value(a, &b64)));
            assert_close(&numbers(&of_both[0])?, &want, TOLERANCE, case.name);
            let mut along = reference::along(&a64, &t64, 1e-6, |a| value(a, &b64));
            let directions: &[&Array] = if case.two {
                let want =
                    reference::gradient(&b64, 1e-6, |b| reference::dot(&g64, &value(&a64, b)));
                assert_close(&numbers(&of_both[1])?, &want, TOLERANCE, case.name);
                let of_b = reference::along(&b64, &d64, 1e-6, |b| value(&a64, b));
                along.iter_mut().zip(of_b).for_each(|(a, b)| *a += b);
                &[&t, &u]
            } else {
                &[&t]
            };
            let inputs: &[&Array] = if case.two { &[&a, &b] } else { &[&a] };
            let tangent = jvp(f, inputs, directions)?.1;
            assert_close(&numbers(&tangent[0])?, &along, TOLERANCE, case.name);
        }
        let (scale, shift) = (random32(&[11], 25)?, random32(&[11], 26)?);
        let f = |p: &[Array]| Ok(vec![ops::affine(&p[0], &p[1], &p[2])?]);
        let gradients = vjp(f, &[&a, &scale, &shift], &[&g])?.1;
        let expected = [g.multiply(&scale)?, g.multiply(&a)?.sum(0, false)?, g.sum(0, false)?];
        for (got, want) in gradients.iter().zip(&expected) {
            assert_close(&numbers(got)?, &numbers(want)?, 1e-6, "affine");
        }
        Ok(())
    })
}

#[test]
fn vmap_over_each_axis() -> Checked {
    each_device(|_| {
        let (a, b) = (random32(&[3, 4, 5], 30)?, random32(&[3, 4, 5], 31)?);
        for case in &CASES {
            for axis in -3..3 {
                let slices = |x: &Array| -> Result<Vec<Array>> {
                    (0..x.dim(axis)?)
                        .map(|i| x.slice_axis(axis, i..i + 1)?.squeeze(&[axis]))
                        .collect()
                };
                let f = |p: &[Array]| Ok(vec![(case.op)(&p[0], &p[1])?]);
                let each: Vec<Array> = slices(&a)?
                    .iter()
                    .zip(slices(&b)?)
                    .map(|(a, b)| (case.op)(a, &b))
                    .collect::<Result<_>>()?;
                let got = vmap(f, &[&a, &b], &[Some(axis); 2], &[0])?;
                assert_same(&got[0], &stack(&refs(&each), 0)?, case.name)?;
                // The second shared by all.
                let shared = slices(&b)?.swap_remove(0);
                let each: Vec<Array> =
                    slices(&a)?.iter().map(|a| (case.op)(a, &shared)).collect::<Result<_>>()?;
                let got = vmap(f, &[&a, &shared], &[Some(axis), None], &[0])?;
                assert_same(&got[0], &stack(&refs(&each), 0)?, case.name)?;
            }
        }
        let (scale, shift) = (random32(&[3, 5], 32)?, random32(&[5], 33)?);
        let f = |p: &[Array]| Ok(vec![ops::affine(&p[0], &p[1], &p[2])?]);
        let got = vmap(f, &[&a, &scale, &shift], &[Some(0), Some(0), None], &[0])?;
        let want = a.multiply(&scale.expand_dims(&[1])?)?.add(&shift)?;
        assert_same(&got[0], &want, "affine")?;
        let got = vmap(f, &[&a, &shift, &shift], &[Some(1), None, None], &[1])?;
        assert_same(&got[0], &a.multiply(&shift)?.add(&shift)?, "affine of x alone")?;
        Ok(())
    })
}

#[test]
fn refusals() -> Checked {
    let x = random32(&[2, 8], 40)?;
    for case in &CASES {
        for dtype in [Dtype::Float64, Dtype::Complex64] {
            let said = message((case.op)(&x.astype(dtype)?, &x));
            let expected = format!("[{}] expected float32, float16 or bfloat16, got", case.name);
            assert!(said.starts_with(&expected) && said.contains(dtype.name()), "{said}");
        }
        if case.two {
            assert!(message((case.op)(&x, &random32(&[3, 8], 41)?)).contains("broadcast"));
        }
    }
    for shape in [&[1][..], &[7], &[2, 8], &[1, 8]] {
        let factor = random32(shape, 42)?;
        for said in [message(ops::affine(&x, &factor, &x)), message(ops::affine(&x, &x, &factor))] {
            assert!(said.starts_with("[affine] expected scale and shift"), "{said}");
        }
    }
    Ok(())
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "run by simulated::what_moves"]
fn moves_each_byte_once() -> Checked {
    let (a, b) = (random32(&[8, 1031], 50)?, random32(&[8, 1031], 51)?);
    a.eval()?;
    b.eval()?;
    let bytes = a.nbytes() as u64;
    let (read, written) = ([bytes, 0, bytes], [0, bytes, 0]);
    for case in &CASES {
        let moved = support::moved(|| (case.op)(&a, &b))?;
        assert_eq!(moved.len(), 1, "{}", case.name);
        if case.two {
            assert_eq!(moved[0].arrays, [read, read, written], "{}", case.name);
        } else {
            assert_eq!(moved[0].arrays, [read, written], "{}", case.name);
        }
        support::report_traffic(case.name, &moved, a.nbytes() * if case.two { 3 } else { 2 })?;
    }
    let vector = random32(&[1031], 52)?;
    vector.eval()?;
    let moved = support::moved(|| ops::affine(&a, &vector, &vector))?;
    assert_eq!((moved[0].arrays[0], moved[0].arrays[3]), (read, written));
    // Each thread reads its factors once for four rows.
    assert_eq!(moved[0].arrays[1], [2 * vector.nbytes() as u64, 0, vector.nbytes() as u64]);
    support::report_traffic("affine", &moved, 2 * a.nbytes() + 2 * vector.nbytes())
}
