//! Activations beside their rows of `table`: refusals, traffic.

use mlx_primitives::{Array, Result, ops};

use crate::support::input::random32;
use crate::support::{self, Checked, message};

type Op = fn(&Array, &Array) -> Result<Array>;

/// Whether it takes two inputs, by name.
const OPS: [(&str, bool, Op); 9] = [
    ("relu", false, |a, _| ops::relu(a)),
    ("silu", false, |a, _| ops::silu(a)),
    ("gelu", false, |a, _| ops::gelu(a)),
    ("gelu_tanh", false, |a, _| ops::gelu_tanh(a)),
    ("swiglu", true, ops::swiglu),
    ("geglu", true, ops::geglu),
    ("geglu_tanh", true, ops::geglu_tanh),
    ("add_relu", true, ops::add_relu),
    ("mul_relu", true, ops::mul_relu),
];

#[test]
fn refusals() -> Checked {
    let x = random32(&[2, 8], 40)?;
    for (name, two, op) in OPS {
        assert!(!two || message(op(&x, &random32(&[3, 8], 41)?)).contains("broadcast"), "{name}");
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
    for (name, two, op) in OPS {
        let moved = support::moved(|| op(&a, &b))?;
        assert_eq!(moved.len(), 1, "{name}");
        let want = if two { &[read, read, written][..] } else { &[read, written] };
        assert_eq!(moved[0].arrays, want, "{name}");
        support::report_traffic(name, &moved, a.nbytes() * want.len())?;
    }
    let vector = random32(&[1031], 52)?;
    vector.eval()?;
    let moved = support::moved(|| ops::affine(&a, &vector, &vector))?;
    assert_eq!((moved[0].arrays[0], moved[0].arrays[3]), (read, written));
    // Each thread reads its factors once for four rows.
    assert_eq!(moved[0].arrays[1], [2 * vector.nbytes() as u64, 0, vector.nbytes() as u64]);
    support::report_traffic("affine", &moved, 2 * a.nbytes() + 2 * vector.nbytes())
}
