//! The table of workloads. For each op, it has the reason why the op is slower than the machine's
//! limit, and the op's shapes and inputs.

use std::rc::Rc;

use mlx_primitives::ops::{self, KvLayout};
use mlx_primitives::{Array, Result};

use super::cases::Size::{self, Decode, Large, Prefill, Wide};
use super::cases::{Case, Inputs, Workload};
use super::inputs::{self, Call};

/// The size and the shape of a workload, and the variants of the op with this shape.
type Row<'a> = (Size, &'static [i32], &'a [&'static str]);
const PLAIN: &[&str] = &[""];

#[derive(Default)]
struct Table(Vec<Workload>);

impl Table {
    fn add<F>(&mut self, op: &'static str, why: &'static str, rows: &[Row], inputs: F)
    where
        F: Fn(&Case) -> Result<Inputs> + 'static,
    {
        let inputs = Rc::new(inputs);
        for &(size, shape, variants) in rows {
            self.0.extend(variants.iter().map(|&variant| {
                let inputs = inputs.clone();
                Workload { op, shape, variant, size, why, inputs }
            }));
        }
    }
}

const EXPONENTIALS: &str = "an exponential for each element takes longer than moving it";
/// The reason for ops that round the result of each step, as MLX's composition does.
const ROUNDINGS: &str = "each step is rounded to the type, which takes longer than moving it";
const GROUPS: &str =
    "each group takes two passes: for its extremes, and for a quotient of each element";
const SOFTMAX: &str = "a softmax stands between the products, of weights that stay float32";
const CODES: &str = "codes become floats for no more than four rows of queries";
const SUMS: &str = "the registers hold sums for four rows of x, so that eight rows take two passes";
const COLUMNS: &str = "columns of w, in cache lines that lie far apart, are turned into rows first";
/// The reason for ops that compute a function of each element, or look up the function's value in a
/// table for 16-bit types.
const FUNCTIONS: &str =
    "an exponential or erf for each element, or its look-up, takes longer than moving it";

/// Returns all workloads, grouped by op, in the order of the reports.
pub fn all() -> Vec<Workload> {
    let mut table = Table::default();
    rows(&mut table);
    positions(&mut table);
    matrices(&mut table);
    elements(&mut table);
    table.0
}

/// The names of the ops.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = all().iter().map(|workload| workload.op).collect();
    names.dedup();
    names
}

fn rows(table: &mut Table) {
    let shapes: [Row; 4] = [
        (Decode, &[1, 1, 4096], PLAIN),
        (Prefill, &[8, 128, 768], PLAIN),
        (Prefill, &[1, 512, 2048], PLAIN),
        (Large, &[4, 2048, 4096], PLAIN),
    ];
    table.add("rms_norm", ROUNDINGS, &shapes, inputs::rms_norm);
    table.add("layer_norm", ROUNDINGS, &shapes, inputs::layer_norm);
    table.add("rms_norm_residual", "", &shapes, inputs::rms_norm_residual);
    table.add("layer_norm_residual", "", &shapes, inputs::layer_norm_residual);
    let shapes: [Row; 6] = [
        (Decode, &[1, 1, 4096], PLAIN),
        (Decode, &[1, 32, 1, 512], PLAIN),
        (Prefill, &[8, 128, 768], PLAIN),
        (Wide, &[1, 512, 2048], PLAIN),
        (Wide, &[1, 32, 512, 512], PLAIN),
        (Large, &[4, 2048, 4096], PLAIN),
    ];
    table.add("softmax", EXPONENTIALS, &shapes, inputs::softmax);
    let shapes: [Row; 4] = [
        (Decode, &[1, 32, 1, 512], &["scaled", "bool"]),
        (Decode, &[1, 32, 1, 4096], &["sliding"]),
        (Wide, &[1, 8, 512, 512], &["causal", "bool", "additive"]),
        (Large, &[1, 32, 1024, 1024], &["causal", "bool", "additive"]),
    ];
    table.add("masked_softmax", EXPONENTIALS, &shapes, inputs::masked_softmax);
    let shapes = |decode| -> [Row; 4] {
        [
            (decode, &[1, 1, 4096], PLAIN),
            (Wide, &[1, 1, 128_256], PLAIN),
            (Wide, &[1, 512, 2048], PLAIN),
            (Large, &[1, 256, 128_256], PLAIN),
        ]
    };
    // The result of `logsumexp` cannot be its next input, so `Wide` replaces `Decode`.
    table.add("logsumexp", EXPONENTIALS, &shapes(Wide), inputs::logsumexp);
    table.add("log_softmax", EXPONENTIALS, &shapes(Decode), inputs::log_softmax);
    let shapes: [Row; 5] = [
        (Wide, &[512, 2048], PLAIN),
        (Wide, &[64, 32_000], PLAIN),
        (Large, &[256, 128_256], PLAIN),
        (Wide, &[64, 32_000], &["gradient"]),
        (Large, &[256, 128_256], &["gradient"]),
    ];
    table.add("cross_entropy", EXPONENTIALS, &shapes, inputs::cross_entropy);
}

fn positions(table: &mut Table) {
    let shapes: [Row; 3] = [
        (Decode, &[1, 32, 1, 64], PLAIN),
        (Prefill, &[1, 32, 512, 64], &["", "traditional"]),
        (Large, &[4, 32, 2048, 128], &["", "traditional"]),
    ];
    table.add("rope", ROUNDINGS, &shapes, inputs::rope);
    let shapes: [Row; 2] = [(Decode, &[1, 1, 3072], PLAIN), (Prefill, &[1, 128, 3072], PLAIN)];
    table.add("rope_append", "", &shapes, inputs::rope_append);
    let many: Row = (Large, &[1024, KvLayout::QUERY_POSITIONS, 3072], &["a sequence each"]);
    table.add("rope_append", ROUNDINGS, &[many], inputs::rope_append_batched);
    // The shapes belong to the keys or values of one decoded position, to the keys or values of a
    // prompt, and to weight matrices.
    for (four, eight) in [("4 bits", "8 bits"), ("4 bits back", "8 bits back")] {
        let shapes: [Row; 4] = [
            (Wide, &[1, 16, 1, 64], &[eight]), // the result cannot be the next input
            (Wide, &[1, 16, 512, 64], &[eight]),
            (Wide, &[2048, 2048], &[four]),
            (Large, &[16_384, 2048], &[eight, four]),
        ];
        table.add("quantize", GROUPS, &shapes, inputs::quantize);
    }
}

fn matrices(table: &mut Table) {
    let shapes: [(&str, Row); 7] = [
        (SOFTMAX, (Decode, &[1, 32, 1, 64], &["512 keys", "4096 keys"])),
        (SOFTMAX, (Decode, &[1, 32, 1, 128], &["4096 keys"])),
        (CODES, (Decode, &[1, 32, 1, 64], &["4096 keys, 8 bits"])),
        (SOFTMAX, (Wide, &[1, 32, 512, 64], &["causal", "additive mask", "causal, 8 bits"])),
        (SOFTMAX, (Large, &[1, 32, 1, 64], &["65536 keys"])),
        (CODES, (Large, &[1, 32, 1, 64], &["131072 keys, 8 bits", "131072 keys, 4 bits"])),
        (SOFTMAX, (Large, &[1, 32, 2048, 64], &["causal", "causal, 8 bits"])),
    ];
    for (why, row) in shapes {
        table.add("attention", why, &[row], inputs::attention);
    }
    let shapes: [Row; 7] = [
        (Decode, &[1, 1, 2048], &["", "bias, silu, residual"]),
        (Decode, &[1, 8, 2048], &["8 rows"]),
        (Wide, &[1, 512, 2048], PLAIN),
        (Wide, &[1, 1, 2048], &["up"]),
        (Large, &[1, 1, 2048], &["to 32768"]),
        (Large, &[1, 8, 2048], &["8 rows to 32768"]),
        (Large, &[1, 512, 2048], &["to 16384"]),
    ];
    table.add("linear", SUMS, &shapes, inputs::linear);
    let shapes: [Row; 4] = [
        (Decode, &[1, 1, 2048], PLAIN),
        (Wide, &[1, 512, 2048], PLAIN),
        (Large, &[1, 1, 2048], &["to 32768"]),
        (Large, &[1, 512, 2048], &["to 16384"]),
    ];
    table.add("matmul", COLUMNS, &shapes, inputs::matmul);
    let formats = inputs::FORMATS.map(|(name, ..)| name);
    let shapes: [Row; 6] = [
        (Decode, &[1, 2048], &formats),
        (Wide, &[8, 2048], &["4-bit"]),
        (Wide, &[128, 2048], &["4-bit"]),
        (Large, &[1, 2048, 65_536], &formats),
        (Large, &[8, 2048, 65_536], &["4-bit"]),
        (Large, &[512, 2048, 16_384], &["4-bit", "8-bit", "mxfp4"]),
    ];
    table.add("quantized_linear", SUMS, &shapes, inputs::quantized_linear);
    let shapes: [Row; 2] =
        [(Wide, &[1, 2048, 8192], &["4-bit"]), (Large, &[1, 2048, 32_768], &["4-bit"])];
    table.add("quantized_swiglu", "", &shapes, inputs::quantized_swiglu);
    for (variant, count) in [
        ("4-bit", 4),
        ("plain", 4),
        // In these variants, the peer runs our separate ops one after the other. So the ratio shows
        // only the gain of fusion.
        ("4-bit, by our separate ops", 2),
        ("plain, by our separate ops", 2),
    ] {
        let shapes: [Row; 4] = [
            (Decode, &[1, 2048], &[variant]),
            (Wide, &[1024, 768], &[variant]),
            (Large, &[1, 12_288], &[variant]),
            (Large, &[512, 4096], &[variant]),
        ];
        table.add("lora_linear", "", &shapes[..count], inputs::lora_linear);
    }
}

fn elements(table: &mut Table) {
    let shapes: [Row; 3] = [
        (Decode, &[1, 1, 8192], PLAIN),
        (Prefill, &[1, 512, 2048], PLAIN),
        (Large, &[4, 2048, 4096], PLAIN),
    ];
    // Each entry has a name, a reason, the number of further inputs, whether these inputs are
    // vectors along the last axis, and the call.
    let activations: [(_, _, _, _, Call); 10] = [
        ("relu", "", 0, false, |x, _| ops::relu(x)),
        ("silu", FUNCTIONS, 0, false, |x, _| ops::silu(x)),
        ("gelu", FUNCTIONS, 0, false, |x, _| ops::gelu(x)),
        ("gelu_tanh", FUNCTIONS, 0, false, |x, _| ops::gelu_tanh(x)),
        ("swiglu", FUNCTIONS, 1, false, |x, o| ops::swiglu(x, &o[0])),
        ("geglu", FUNCTIONS, 1, false, |x, o| ops::geglu(x, &o[0])),
        ("geglu_tanh", FUNCTIONS, 1, false, |x, o| ops::geglu_tanh(x, &o[0])),
        ("add_relu", "", 1, false, |x, o| ops::add_relu(x, &o[0])),
        ("mul_relu", "", 1, false, |x, o| ops::mul_relu(x, &o[0])),
        ("affine", "", 2, true, |x, o| ops::affine(x, &o[0], &o[1])),
    ];
    for (op, why, others, vectors, ours) in activations {
        table.add(op, why, &shapes, move |case| {
            let shape = &case.workload.shape[if vectors { 2 } else { 0 }..];
            let others = vec![case.ready(shape, 0.8..1.2)?; others];
            Ok(Inputs::new(case.x()?, others, ours))
        });
    }

    // The result cannot be the next input, so there are no chains and no decode or prefill sizes.
    let shapes: [Row; 4] = [
        (Wide, &[1, 1, 4096], PLAIN),
        (Wide, &[8, 128, 768], PLAIN),
        (Wide, &[1, 512, 2048], &["all"]),
        (Large, &[4, 2048, 4096], &["", "all"]),
    ];
    type Ours = fn(&Array, Option<i32>) -> Result<Array>;
    type Theirs = fn(&Array, &[i32]) -> Result<Array>;
    let reductions: [(_, Ours, Theirs); 5] = [
        ("sum", ops::sum, |x, axes| x.sum(axes)),
        ("mean", ops::mean, |x, axes| x.mean(axes)),
        ("max", ops::max, |x, axes| x.max(axes)),
        ("sum_of_squares", ops::sum_of_squares, |x, axes| x.square()?.sum(axes)),
        ("norm", ops::norm, |x, axes| x.square()?.sum(axes)?.sqrt()),
    ];
    for (op, ours, theirs) in reductions {
        table.add(op, "", &shapes, move |case| {
            let x = case.x()?;
            let (row, axes, theirs_axes): (_, _, &[i32]) = match case.workload.variant {
                "all" => (x.size(), None, &[0, 1, 2]),
                _ => (case.dim(-1) as usize, Some(-1), &[-1]),
            };
            let written = x.nbytes() / row;
            let inputs = Inputs::new(x, [], move |x, _| ours(x, axes));
            Ok(Inputs { written, ..inputs.against(move |x, _| theirs(x, theirs_axes)) })
        });
    }
}
