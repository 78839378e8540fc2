//! The section "Cost" of an op's documentation must agree with the dispatches of the op's node.

use std::collections::BTreeMap;
use std::fs;

use mlx_primitives::ops::{
    self, Attention, KvLayout, LinearCrossEntropy, LinearWeight, QuantizedLinear, QuantizedMode,
    QuantizedRows, QuantizedWeight, Rope,
};
use mlx_primitives::{Array, Dtype, Result, eval, graph};

use crate::support::input::random32;
use crate::support::{Checked, root};

/// Maps the name of each public function of `src/ops/` to its documentation.
fn documented() -> anyhow::Result<BTreeMap<String, String>> {
    let folder = root().join("src/ops");
    let exports = fs::read_to_string(folder.join("mod.rs"))?;
    let exports = exports.split_once("pub use").map_or("", |(_, rest)| rest);
    let exports: Vec<&str> = exports.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let (text, mut docs) = (fs::read_to_string(entry?.path())?, String::new());
        for line in text.lines() {
            if let Some(line) = line.strip_prefix("///") {
                docs += &format!("{}\n", line.trim());
            } else if let Some(rest) = line.strip_prefix("pub fn ") {
                let name = rest.split(['(', '<']).next().unwrap_or_default();
                if exports.contains(&name) {
                    all.insert(name.to_owned(), std::mem::take(&mut docs));
                }
            } else if !line.starts_with("#[") {
                docs.clear();
            }
        }
    }
    Ok(all)
}

fn section(docs: &str) -> Option<&str> {
    Some(docs.split("# Cost\n\n").nth(1)?.split("\n\n").next()?.trim())
}

/// Public functions that build no node, and so have no cost.
const NO_OPS: [&str; 2] = ["row_order", "with_row_order"];

#[test(simulated = never)]
fn every_op_states_its_cost() -> Checked {
    let all = documented()?;
    let without = all.iter().filter(|(_, docs)| section(docs).is_none());
    let without: Vec<&str> = without.map(|(name, _)| &**name).collect();
    assert_eq!(without, NO_OPS);
    for op in crate::table::ops::OPS {
        assert!(all.contains_key(op.name), "{} has no documentation", op.name);
    }
    assert!(all.len() > 40, "{}", all.len());
    Ok(())
}

/// Evaluates a formula such as `2 r n + s b / 32`.
fn value(formula: &str, sizes: &[(&str, i64)]) -> i64 {
    let of = |factor: &str| {
        let known = sizes.iter().find(|(name, _)| *name == factor).map(|(_, size)| *size);
        known.or_else(|| factor.parse().ok()).unwrap_or_else(|| panic!("{factor} of {formula}"))
    };
    let term = |term: &str| {
        let (above, below) = term.split_once(" / ").unwrap_or((term, "1"));
        above.split(' ').map(of).product::<i64>() / of(below)
    };
    formula.split(" + ").map(term).sum()
}

/// The results of a call, with the number of its kernels and the sizes in its cost formula.
struct Call {
    name: &'static str,
    sizes: Vec<(&'static str, i64)>,
    kernels: u32,
    results: Vec<Array>,
}

fn call(
    name: &'static str,
    sizes: &[(&'static str, i64)],
    kernels: u32,
    results: impl Into<Vec<Array>>,
) -> Call {
    Call { name, sizes: sizes.to_vec(), kernels, results: results.into() }
}

fn known(shape: &[i32]) -> Result<Array> {
    let x = random32(shape, 1)?;
    x.eval()?;
    Ok(x)
}

fn of_rows(rows: i32, axis: i32) -> Result<Vec<Call>> {
    let (x, y, v) = (known(&[rows, axis])?, known(&[rows, axis])?, known(&[axis])?);
    let targets = Array::zeros::<i32>(rows)?;
    targets.eval()?;
    let sizes = [("r", rows.into()), ("n", axis.into()), ("s", i64::from(rows) * i64::from(axis))];
    let one = |name, y: Array| call(name, &sizes, 1, [y]);
    let mut all = vec![
        one("rms_norm", ops::rms_norm(&x, Some(&v), 1e-5)?),
        one("layer_norm", ops::layer_norm(&x, Some(&v), Some(&v), 1e-5)?),
        call("rms_norm_residual", &sizes, 1, {
            <[Array; 2]>::from(ops::rms_norm_residual(&x, &y, Some(&v), 1e-5)?)
        }),
        call("layer_norm_residual", &sizes, 1, {
            <[Array; 2]>::from(ops::layer_norm_residual(&x, &y, Some(&v), Some(&v), 1e-5)?)
        }),
        one("softmax", ops::softmax(&x)?),
        one("logsumexp", ops::logsumexp(&x)?),
        one("logsumexp_keepdims", ops::logsumexp_keepdims(&x)?),
        one("log_softmax", ops::log_softmax(&x)?),
        one("masked_softmax", ops::masked_softmax(&x, Default::default())?),
        one("cross_entropy", ops::cross_entropy(&x, &targets, Default::default())?),
        one("affine", ops::affine(&x, &v, &v)?),
    ];
    type One = fn(&Array) -> Result<Array>;
    let of_one: [(&str, One); 4] = [
        ("relu", ops::relu),
        ("silu", ops::silu),
        ("gelu", ops::gelu),
        ("gelu_tanh", ops::gelu_tanh),
    ];
    for (name, op) in of_one {
        all.push(one(name, op(&x)?));
    }
    type Two = fn(&Array, &Array) -> Result<Array>;
    let of_two: [(&str, Two); 5] = [
        ("swiglu", ops::swiglu),
        ("geglu", ops::geglu),
        ("geglu_tanh", ops::geglu_tanh),
        ("add_relu", ops::add_relu),
        ("mul_relu", ops::mul_relu),
    ];
    for (name, op) in of_two {
        all.push(one(name, op(&x, &y)?));
    }
    let reductions: [(&str, One); 5] = [
        ("sum", |x| ops::sum(x, -1)),
        ("mean", |x| ops::mean(x, -1)),
        ("max", |x| ops::max(x, -1)),
        ("sum_of_squares", |x| ops::sum_of_squares(x, -1)),
        ("norm", |x| ops::norm(x, -1)),
    ];
    for (name, op) in reductions {
        // If there are fewer than 256 rows, and they are longer than 16,384 elements, the kernel
        // splits each row into pieces. A second kernel then combines the results of the pieces,
        // so the cost differs.
        if axis <= 16_384 || rows >= 256 {
            all.push(one(name, op(&x)?));
        }
    }
    Ok(all)
}

fn products(m: i32) -> Result<Vec<Call>> {
    let (k, n, r) = (256, 128, 8);
    let (x, w) = (known(&[m, k])?, known(&[n, k])?);
    let (a, b) = (known(&[r, k])?, known(&[n, r])?);
    let targets = Array::zeros::<i32>(m)?;
    let packed = QuantizedWeight::quantize(&w, 32, 4, QuantizedMode::Affine)?;
    eval(packed.arrays().chain([&targets]))?;
    let words = packed.nbytes() as i64 / 4;
    let sizes = |n: i32, w: i64, r: i32| {
        [("m", m.into()), ("k", k.into()), ("n", i64::from(n)), ("w", w), ("r", r.into())]
    };
    let plain = sizes(n, words, r);
    let norm = known(&[k])?;
    let normed = QuantizedLinear { norm: Some((&norm, 1e-5)), ..Default::default() };
    let more = if m > 8 { 2 } else { 1 };
    let normed = ops::quantized_linear(&x, &packed, normed)?;
    assert_eq!(graph::total(&graph::nodes([&normed])?).dispatches, more, "{m} rows with a norm");
    let codes = i64::from(n) * i64::from(k);
    let (q, s, z) = ops::quantize(&w, 32, 4)?;
    let format = [("s", codes), ("b", 4), ("g", 32)];
    let unpacked = packed.biases().map(|biases| {
        ops::dequantize(packed.packed(), packed.scales(), biases, packed.group_size(), 4)
    });
    Ok(vec![
        call("linear", &plain, 1, [ops::linear(&x, &w, Default::default())?]),
        call("matmul_nt", &plain, 1, [ops::matmul_nt(&x, &w)?]),
        call("matmul", &plain, 1, [ops::matmul(&x, &known(&[k, n])?)?]),
        call("quantized_linear", &plain, 1, {
            [ops::quantized_linear(&x, &packed, Default::default())?]
        }),
        call("quantized_linears", &sizes(2 * n, 2 * words, r), 1, {
            [ops::quantized_linears(&x, &[&packed, &packed], None)?]
        }),
        call("quantized_swiglu", &sizes(n, 2 * words, r), 1, {
            [ops::quantized_swiglu(&x, &packed, &packed, None)?]
        }),
        call("lora_linear", &plain, 3, {
            [ops::lora_linear(&x, &LinearWeight::from(&w), &a, &b, 1.5)?]
        }),
        call("linear_cross_entropy", &sizes(n, words, m), 2, {
            [ops::linear_cross_entropy(&x, &w, &targets, LinearCrossEntropy::default())?]
        }),
        call("quantize", &format, 1, [q, s, z]),
        call("dequantize", &format, 1, unpacked.transpose()?.into_iter().collect::<Vec<_>>()),
    ])
}

fn heads(queries: i32, keys: i32, kernels: u32) -> Result<Vec<Call>> {
    let (h, g, d) = (4, 2, 64);
    let (q, k) = (known(&[1, h, queries, d])?, known(&[1, g, keys, d])?);
    let [l, s] = [queries, keys].map(i64::from);
    let packed = ops::quantize(&k, 32, 4)?;
    eval([&packed.0, &packed.1, &packed.2])?;
    let rows = QuantizedRows { packed: &packed.0, scales: &packed.1, biases: &packed.2 };
    let words =
        [&packed.0, &packed.1, &packed.2].map(|part| part.size() as i64).iter().sum::<i64>();
    let width = i64::from((h + 2 * g) * d);
    let sizes = [
        ("h", h.into()),
        ("g", g.into()),
        ("d", d.into()),
        ("e", d.into()),
        ("l", l),
        ("s", s),
        ("p", 2 * words),
        ("t", l),
        ("w", width),
    ];
    let layout = KvLayout { heads: h, kv_heads: g, head_dim: d, capacity: 512 };
    let (state, qkv) = (layout.zeros(1, Dtype::Float32)?, known(&[1, queries, width as i32])?);
    state.eval()?;
    let rope = Rope { dims: d, ..Rope::default() };
    let mut all = vec![
        call("rope", &[("s", l * i64::from(h * d))], 1, [ops::rope(&q, rope)?]),
        call("rope_heads", &sizes, 1, ops::rope_heads(&qkv, layout, rope.into())?),
        call("rope_append", &sizes, 1, [ops::rope_append(&state, &qkv, layout, rope.into())?]),
    ];
    if kernels == 1 {
        let plain = ops::attention(&q, &k, &k, Attention::default())?;
        let packed = ops::attention_quantized(&q, rows, rows, 4, 32, Attention::default())?;
        all.push(call("attention", &sizes, 1, [plain]));
        all.push(call("attention_quantized", &sizes, 1, [packed]));
    }
    Ok(all)
}

/// The graph's nodes launch as many kernels and move as many elements as the documentation states.
#[test(simulated = never)]
fn costs_are_as_stated() -> Checked {
    let docs = documented()?;
    let mut calls = Vec::new();
    for (rows, axis) in [(6, 100), (70, 1000), (3, 20_000), (300, 33)] {
        calls.extend(of_rows(rows, axis)?);
    }
    for rows in [1, 8, 9, 40] {
        calls.extend(products(rows)?);
    }
    calls.extend(heads(1, 50, 1)?);
    calls.extend(heads(5, 50, 1)?);
    for Call { name, sizes, kernels, results } in &calls {
        let section = docs.get(*name).and_then(|docs| section(docs)).unwrap_or_default();
        let numbers = [("One kernel ", 1), ("Two kernels ", 2), ("Three kernels ", 3)];
        let stated = numbers.iter().find(|(start, _)| section.starts_with(start));
        assert_eq!(stated.map(|(_, number)| number), Some(kernels), "{name}: {section}");
        let formula = section.split('`').nth(1).unwrap_or_default();
        let total = graph::total(&graph::nodes(results)?);
        assert_eq!(total.dispatches, *kernels, "{name} {sizes:?}");
        let elements = value(formula, sizes);
        assert_eq!(total.device_bytes as i64, 4 * elements, "{name} {sizes:?}: {formula}");
    }
    Ok(())
}
