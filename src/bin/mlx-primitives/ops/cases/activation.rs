use mlx_primitives::{Array, Result, builtin, ops};

use super::{Inputs, Size, Workload, ready};

const SHAPES: [(&[i32], Size); 3] = [
    (&[1, 1, 8192], Size::Decode),
    (&[1, 512, 2048], Size::Prefill),
    (&[4, 2048, 4096], Size::Large),
];

type Two = fn(&Array, &Array) -> Result<Array>;

pub fn workloads() -> Vec<Workload> {
    let ops: [(&'static str, bool, Two); 10] = [
        ("relu", false, |x, _| ops::relu(x)),
        ("silu", false, |x, _| ops::silu(x)),
        ("gelu", false, |x, _| ops::gelu(x)),
        ("gelu_tanh", false, |x, _| ops::gelu_tanh(x)),
        ("swiglu", true, ops::swiglu),
        ("geglu", true, ops::geglu),
        ("geglu_tanh", true, ops::geglu_tanh),
        ("add_relu", true, ops::add_relu),
        ("mul_relu", true, ops::mul_relu),
        ("affine", false, |x, vector| ops::affine(x, vector, vector)),
    ];
    ops.into_iter().flat_map(|op| SHAPES.map(|(shape, size)| workload(op, shape, size))).collect()
}

/// In 16-bit types all values lie in a table.
const FUNCTIONS: &str =
    "an exponential or erf for each element, or its look-up, takes longer than moving it";

fn workload(
    (op, two, call): (&'static str, bool, Two),
    shape: &'static [i32],
    size: Size,
) -> Workload {
    let inputs = move |dtype| {
        let x = ready(shape, dtype, -4.0..4.0)?;
        // The second input, or affine's factors.
        let other = ready(if two { shape } else { &shape[shape.len() - 1..] }, dtype, 0.8..1.2)?;
        let (ours, theirs) = (other.clone(), other.clone());
        let read = match op {
            "affine" => 2 * other.nbytes(),
            _ if two => other.nbytes(),
            _ => 0,
        };
        Ok(Inputs {
            read: x.nbytes() + read,
            written: x.nbytes(),
            products: None,
            x,
            ours: Box::new(move |x| call(x, &ours)),
            // Building ours first takes the peer about a microsecond.
            builtin: Some(Box::new(move |x| {
                Ok(builtin::composition(&call(x, &theirs)?)?.swap_remove(0))
            })),
        })
    };
    let workload = Workload::new(op, shape, "", size, inputs);
    match op {
        "relu" | "add_relu" | "mul_relu" | "affine" => workload,
        _ => workload.because(FUNCTIONS),
    }
}
