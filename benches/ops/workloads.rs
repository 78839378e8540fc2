//! The table of what is compared: an op, what keeps it from the machine's limit, its shapes, its inputs.

use std::rc::Rc;

use mlx_primitives::ops::{self, Axes, StateLayout};
use mlx_primitives::{Array, Result};

use super::cases::Size::{self, Decode, Large, Prefill, Wide};
use super::cases::{Case, Inputs, Workload};
use super::inputs::{self, Call};
use super::products;

/// A shape, what else tells it from the op's others, and its size.
type Row = (&'static [i32], &'static str, Size);

#[derive(Default)]
struct Table(Vec<Workload>);

impl Table {
    fn add<F>(&mut self, op: &'static str, why: &'static str, rows: &[Row], inputs: F)
    where
        F: Fn(&Case) -> Result<Inputs> + 'static,
    {
        let inputs = Rc::new(inputs);
        self.0.extend(rows.iter().map(|&(shape, variant, size)| {
            let inputs = inputs.clone();
            Workload { op, shape, variant, size, why, inputs }
        }));
    }
}

const EXPONENTIALS: &str = "an exponential for each element takes longer than moving it";
/// Steps are rounded as MLX's composition rounds them.
const ROUNDINGS: &str = "each step is rounded to the type, which takes longer than moving it";
const GROUPS: &str =
    "a group is gone through twice: for its extremes, and for a quotient of each element";
const SOFTMAX: &str = "a softmax stands between the products, of weights that stay float32";
const CODES: &str = "codes become floats for no more than four rows of queries";
const SUMS: &str = "eight rows of x are two times four, all that the registers hold sums for";
const COLUMNS: &str = "columns of w are turned into rows first, out of lines that lie far apart";
/// In 16-bit types all values lie in a table.
const FUNCTIONS: &str =
    "an exponential or erf for each element, or its look-up, takes longer than moving it";

/// Every workload, an op's together and in the order of the reports.
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
        (&[1, 1, 4096], "", Decode),
        (&[8, 128, 768], "", Prefill),
        (&[1, 512, 2048], "", Prefill),
        (&[4, 2048, 4096], "", Large),
    ];
    table.add("rms_norm", ROUNDINGS, &shapes, inputs::rms_norm);
    table.add("layer_norm", ROUNDINGS, &shapes, inputs::layer_norm);
    table.add("rms_norm_residual", "", &shapes, inputs::rms_norm_residual);
    table.add("layer_norm_residual", "", &shapes, inputs::layer_norm_residual);
    let shapes: [Row; 6] = [
        (&[1, 1, 4096], "", Decode),
        (&[1, 32, 1, 512], "", Decode),
        (&[8, 128, 768], "", Prefill),
        (&[1, 512, 2048], "", Wide),
        (&[1, 32, 512, 512], "", Wide),
        (&[4, 2048, 4096], "", Large),
    ];
    table.add("softmax", EXPONENTIALS, &shapes, inputs::softmax);
    let shapes: [Row; 9] = [
        (&[1, 32, 1, 512], "scaled", Decode),
        (&[1, 32, 1, 512], "bool", Decode),
        (&[1, 32, 1, 4096], "sliding", Decode),
        (&[1, 8, 512, 512], "causal", Wide),
        (&[1, 8, 512, 512], "bool", Wide),
        (&[1, 8, 512, 512], "additive", Wide),
        (&[1, 32, 1024, 1024], "causal", Large),
        (&[1, 32, 1024, 1024], "bool", Large),
        (&[1, 32, 1024, 1024], "additive", Large),
    ];
    table.add("masked_softmax", EXPONENTIALS, &shapes, inputs::masked_softmax);
    let shapes = |decode| -> [Row; 4] {
        [
            (&[1, 1, 4096], "", decode),
            (&[1, 1, 128_256], "", Wide),
            (&[1, 512, 2048], "", Wide),
            (&[1, 256, 128_256], "", Large),
        ]
    };
    // The first one's result is no input for the next.
    table.add("logsumexp", EXPONENTIALS, &shapes(Wide), inputs::logsumexp);
    table.add("log_softmax", EXPONENTIALS, &shapes(Decode), inputs::log_softmax);
    let shapes: [Row; 5] = [
        (&[512, 2048], "", Wide),
        (&[64, 32_000], "", Wide),
        (&[256, 128_256], "", Large),
        (&[64, 32_000], "gradient", Wide),
        (&[256, 128_256], "gradient", Large),
    ];
    table.add("cross_entropy", EXPONENTIALS, &shapes, inputs::cross_entropy);
}

fn positions(table: &mut Table) {
    let shapes: [Row; 5] = [
        (&[1, 32, 1, 64], "", Decode),
        (&[1, 32, 512, 64], "", Prefill),
        (&[1, 32, 512, 64], "traditional", Prefill),
        (&[4, 32, 2048, 128], "", Large),
        (&[4, 32, 2048, 128], "traditional", Large),
    ];
    table.add("rope", ROUNDINGS, &shapes, inputs::rope);
    let shapes: [Row; 2] = [(&[1, 1, 3072], "", Decode), (&[1, 128, 3072], "", Prefill)];
    table.add("rope_append", "", &shapes, inputs::rope_append);
    let many: Row = (&[1024, StateLayout::QUERY_POSITIONS, 3072], "a sequence each", Large);
    table.add("rope_append", ROUNDINGS, &[many], inputs::rope_append_batched);
    // Keys and values of a decoded position, of a prompt, and a matrix of weights.
    let shapes = |four, eight| -> [Row; 5] {
        [
            (&[1, 16, 1, 64], eight, Wide), // the result cannot be the next input
            (&[1, 16, 512, 64], eight, Wide),
            (&[2048, 2048], four, Wide),
            (&[16_384, 2048], eight, Large),
            (&[16_384, 2048], four, Large),
        ]
    };
    table.add("quantize", GROUPS, &shapes("4 bits", "8 bits"), inputs::quantize);
    table.add("quantize", GROUPS, &shapes("4 bits back", "8 bits back"), inputs::dequantize);
}

fn matrices(table: &mut Table) {
    let shapes: [(&str, Row); 10] = [
        (SOFTMAX, (&[1, 32, 1, 64], "512 keys", Decode)),
        (SOFTMAX, (&[1, 32, 1, 64], "4096 keys", Decode)),
        (SOFTMAX, (&[1, 32, 1, 128], "4096 keys", Decode)),
        (CODES, (&[1, 32, 1, 64], "4096 keys, 8 bits", Decode)),
        (SOFTMAX, (&[1, 32, 512, 64], "causal", Wide)),
        (SOFTMAX, (&[1, 32, 1, 64], "65536 keys", Large)),
        (CODES, (&[1, 32, 1, 64], "131072 keys, 8 bits", Large)),
        (CODES, (&[1, 32, 1, 64], "131072 keys, 4 bits", Large)),
        (SOFTMAX, (&[1, 32, 2048, 64], "causal", Large)),
        (SOFTMAX, (&[1, 32, 2048, 64], "causal, 8 bits", Large)),
    ];
    for (why, row) in shapes {
        table.add("attention", why, &[row], products::attention);
    }
    let shapes: [Row; 8] = [
        (&[1, 1, 2048], "", Decode),
        (&[1, 1, 2048], "bias, silu, residual", Decode),
        (&[1, 8, 2048], "8 rows", Decode),
        (&[1, 512, 2048], "", Wide),
        (&[1, 1, 2048], "up", Wide),
        (&[1, 1, 2048], "to 32768", Large),
        (&[1, 8, 2048], "8 rows to 32768", Large),
        (&[1, 512, 2048], "to 16384", Large),
    ];
    table.add("linear", SUMS, &shapes, products::linear);
    let shapes: [Row; 4] = [
        (&[1, 1, 2048], "", Decode),
        (&[1, 512, 2048], "", Wide),
        (&[1, 1, 2048], "to 32768", Large),
        (&[1, 512, 2048], "to 16384", Large),
    ];
    table.add("matmul", COLUMNS, &shapes, products::matmul);
    let each =
        |shape: &'static [i32], size| products::FORMATS.map(|(name, ..)| (shape, name, size));
    let quantized: [&[Row]; 4] = [
        &each(&[1, 2048], Decode),
        &[(&[8, 2048], "4-bit", Wide), (&[128, 2048], "4-bit", Wide)],
        &each(&[1, 2048, 65_536], Large),
        &[
            (&[8, 2048, 65_536], "4-bit", Large),
            (&[512, 2048, 16_384], "4-bit", Large),
            (&[512, 2048, 16_384], "8-bit", Large),
            (&[512, 2048, 16_384], "mxfp4", Large),
        ],
    ];
    table.add("quantized_linear", SUMS, &quantized.concat(), products::quantized_linear);
    let shapes: [Row; 2] =
        [(&[1, 2048, 8192], "4-bit", Wide), (&[1, 2048, 32_768], "4-bit", Large)];
    table.add("quantized_swiglu", "", &shapes, products::quantized_swiglu);
    for (variant, count) in [
        ("4-bit", 4),
        ("plain", 4),
        // The same of our separate ops, to see what fusing alone gains.
        ("4-bit, by our separate ops", 2),
        ("plain, by our separate ops", 2),
    ] {
        let shapes: [Row; 4] = [
            (&[1, 2048], variant, Decode),
            (&[1024, 768], variant, Wide),
            (&[1, 12_288], variant, Large),
            (&[512, 4096], variant, Large),
        ];
        table.add("lora_linear", "", &shapes[..count], products::lora_linear);
    }
}

fn elements(table: &mut Table) {
    let shapes: [Row; 3] = [
        (&[1, 1, 8192], "", Decode),
        (&[1, 512, 2048], "", Prefill),
        (&[4, 2048, 4096], "", Large),
    ];
    let of_one: [(_, _, Call); 4] = [
        ("relu", "", |x, _| ops::relu(x)),
        ("silu", FUNCTIONS, |x, _| ops::silu(x)),
        ("gelu", FUNCTIONS, |x, _| ops::gelu(x)),
        ("gelu_tanh", FUNCTIONS, |x, _| ops::gelu_tanh(x)),
    ];
    for (op, why, ours) in of_one {
        table.add(op, why, &shapes, move |case| Ok(Inputs::new(case.x()?, [], ours)));
    }
    let of_two: [(_, _, Call); 5] = [
        ("swiglu", FUNCTIONS, |x, o| ops::swiglu(x, &o[0])),
        ("geglu", FUNCTIONS, |x, o| ops::geglu(x, &o[0])),
        ("geglu_tanh", FUNCTIONS, |x, o| ops::geglu_tanh(x, &o[0])),
        ("add_relu", "", |x, o| ops::add_relu(x, &o[0])),
        ("mul_relu", "", |x, o| ops::mul_relu(x, &o[0])),
    ];
    for (op, why, ours) in of_two {
        table.add(op, why, &shapes, move |case| {
            let other = case.ready(case.workload.shape, 0.8..1.2)?;
            Ok(Inputs::new(case.x()?, [other], ours))
        });
    }
    table.add("affine", "", &shapes, |case| {
        let vector = case.weight()?;
        let ours: Call = |x, o| ops::affine(x, &o[0], &o[1]);
        Ok(Inputs::new(case.x()?, [vector.clone(), vector], ours))
    });

    // The result is no next input: nothing to chain, hence no decode or prefill sizes.
    let shapes: [Row; 5] = [
        (&[1, 1, 4096], "", Wide),
        (&[8, 128, 768], "", Wide),
        (&[1, 512, 2048], "all", Wide),
        (&[4, 2048, 4096], "", Large),
        (&[4, 2048, 4096], "all", Large),
    ];
    type Ours = fn(&Array, Axes, bool) -> Result<Array>;
    type Theirs = fn(&Array, &[i32]) -> Result<Array>;
    let reductions: [(_, Ours, Theirs); 5] = [
        ("sum", ops::sum, |x, axes| x.sum(axes, false)),
        ("mean", ops::mean, |x, axes| x.mean(axes, false)),
        ("max", ops::max, |x, axes| x.max(axes, false)),
        ("sum_of_squares", ops::sum_of_squares, |x, axes| x.square()?.sum(axes, false)),
        ("norm", ops::norm, |x, axes| x.square()?.sum(axes, false)?.sqrt()),
    ];
    for (op, ours, theirs) in reductions {
        table.add(op, "", &shapes, move |case| {
            let x = case.x()?;
            let (row, axes, theirs_axes): (_, _, &[i32]) = match case.workload.variant {
                "all" => (x.size(), Axes::All, &[0, 1, 2]),
                _ => (case.dim(-1) as usize, Axes::Last, &[-1]),
            };
            let written = x.nbytes() / row;
            let inputs = Inputs::new(x, [], move |x, _| ours(x, axes, false)).writes(written);
            Ok(inputs.against(move |x, _| theirs(x, theirs_axes)))
        });
    }
}
