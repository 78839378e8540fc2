//! `compile` merges two nodes of one type with the same inputs if the primitive's `is_equivalent`
//! says that they are equal. It must not merge nodes that differ in any parameter of a primitive.

mod calls;
mod rows;

use std::collections::BTreeSet;

use mlx_primitives::ops::{
    self, CpuActivations, LinearWeight, QuantizedLinear, QuantizedMode, QuantizedWeight, RowOrder,
    with_row_order,
};
use mlx_primitives::transforms::compile;
use mlx_primitives::{Array, Result, graph};
use regex::Regex;

use calls::Row::{Apart, Fixed};
use calls::Variants;
use rows::rows;

use crate::support::compare::differing;
use crate::support::input::random32;
use crate::support::{Checked, each_device, refs};

/// Checks that the variants give different results, and that a compiled function keeps them
/// separate.
fn stay_apart(shapes: &[&[i32]], variants: Variants) -> Checked {
    let inputs = shapes.iter().zip(40..).map(|(shape, seed)| random32(shape, seed));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    mlx_primitives::eval(&inputs)?;
    let plain = variants(&inputs)?;
    // A variant may be a contiguous copy of a gradient, so ignore copies.
    let kinds = plain.iter().filter_map(Array::primitive).filter(|kind| kind != "Contiguous");
    let kinds: BTreeSet<_> = kinds.collect();
    anyhow::ensure!(kinds.len() <= 1, "several ops: {kinds:?}");
    for (i, a) in plain.iter().enumerate() {
        for (j, b) in plain[..i].iter().enumerate() {
            let differ = a.shape() != b.shape() || differing(a, b)? > 0;
            anyhow::ensure!(differ, "variants {j} and {i} give the same numbers");
        }
    }
    for shapeless in [false, true] {
        // `compile` never merges outputs, so apply another op to each variant.
        let negative = move |p: &[Array]| variants(p)?.iter().map(Array::negative).collect();
        let compiled = compile::<Vec<Array>>(negative, shapeless)?;
        for (i, (got, want)) in compiled.call(&refs(&inputs))?.iter().zip(&plain).enumerate() {
            let want = want.negative()?;
            let same = got.shape() == want.shape() && differing(got, &want)? == 0;
            anyhow::ensure!(same, "compiled, shapeless {shapeless}: variant {i} is another one");
        }
    }
    Ok(())
}

#[test]
fn no_parameter_is_lost() -> Checked {
    each_device(|_| {
        let mut lost = Vec::new();
        for (names, row) in rows() {
            if let Apart(shapes, variants) = row
                && let Err(error) = stay_apart(shapes, variants)
            {
                lost.push(format!("{names:?}: {error}"));
            }
        }
        anyhow::ensure!(lost.is_empty(), "{}", lost.join("\n"));
        Ok(())
    })
}

/// The results of the two products may be equal, so the test does not compare them. It counts the
/// nodes.
#[test]
fn products_that_round_stay_apart() -> Checked {
    let x = random32(&[1, 32], 40)?;
    let w = QuantizedWeight::quantize(&random32(&[8, 32], 41)?, 32, 4, QuantizedMode::Affine)?;
    let [int8, centered] =
        [w.clone().with_activations(CpuActivations::Int8), w.clone().with_centered_codes()];
    for (weights, products) in [
        ([&w, &int8], 2),
        ([&w, &centered], 2),
        ([&w, &w], 1),
        ([&int8, &int8], 1),
        ([&centered, &centered], 1),
    ] {
        let weights = weights.map(Clone::clone);
        let outputs = compile::<Vec<Array>>(
            move |p: &[Array]| {
                let product = |w| ops::quantized_linear(&p[0], w, QuantizedLinear::default());
                weights.iter().map(|w| product(w)?.negative()).collect()
            },
            false,
        )?
        .call(&[&x])?;
        let nodes = graph::nodes(&outputs)?;
        let found = nodes.iter().filter(|node| node.name == "QuantizedMatmul").count();
        assert_eq!(found, products, "{nodes:?}");
    }
    Ok(())
}

/// The results with two values of [`RowOrder`] may be equal, so the test does not compare them. It
/// counts the nodes.
#[test]
fn orders_of_rows_stay_apart() -> Checked {
    use RowOrder::{Prompt, Tokens};
    let x = random32(&[1, 1, 2, 32], 40)?;
    let w = random32(&[8, 32], 41)?;
    let packed = QuantizedWeight::quantize(&w, 32, 4, QuantizedMode::Affine)?;
    let base = LinearWeight::from(&w);
    type Built<'a> = Box<dyn Fn(&Array) -> Result<Array> + 'a>;
    for (orders, count) in [([Tokens, Prompt], 2), ([Tokens, Tokens], 1)] {
        let (w, packed, base) = (w.clone(), packed.clone(), base.clone());
        let outputs = compile::<Vec<Array>>(
            move |p: &[Array]| {
                let ops: [Built<'_>; 4] = [
                    Box::new(|x| ops::attention(x, x, x, ops::Attention::default())),
                    Box::new(|x| ops::linear(x, &w, ops::Linear::default())),
                    Box::new(|x| ops::quantized_linear(x, &packed, QuantizedLinear::default())),
                    Box::new(|x| ops::lora_linear(x, &base, &w, &w.i((.., ..8))?, 1.0)),
                ];
                let built = ops.iter().flat_map(|op| {
                    orders.map(|order| with_row_order(order, || op(&p[0]))?.negative())
                });
                built.collect()
            },
            false,
        )?
        .call(&[&x])?;
        let nodes = graph::nodes(&outputs)?;
        for name in ["Attention", "Linear", "QuantizedMatmul", "LoraLinear"] {
            let found = nodes.iter().filter(|node| node.name == name).count();
            assert_eq!(found, count, "{name} in {orders:?}: {nodes:?}");
        }
    }
    Ok(())
}

/// The names of the fields of a C++ struct or class. Fields that are structs themselves are
/// replaced by their fields.
fn fields(sources: &str, of: &str, prefix: &str) -> Vec<String> {
    let start =
        Regex::new(&format!(r"(?m)^ *(?:class|struct) {of} (?:: [^{{]*)?\{{")).expect("a pattern");
    let Some(start) = start.find(sources) else { return Vec::new() };
    let indent = start.as_str().len() - start.as_str().trim_start().len();
    let body = &sources[start.end()..];
    let end = body.find(&format!("\n{}}};", " ".repeat(indent))).expect("the end of a class");
    let ends = if prefix.contains('.') { "" } else { "_" };
    let field = format!(r"(?m)^ {{{}}}([\w:<>, ]+?) (\w+{ends})(?: = [^;]*)?;", indent + 2);
    let field = Regex::new(&field).expect("a pattern");
    let mut all = Vec::new();
    for found in field.captures_iter(&body[..end]) {
        let (of, name) = (&found[1], format!("{prefix}{}", &found[2]));
        let inner = match of {
            "QuantizedFormat" | "return" => Vec::new(),
            _ => fields(sources, of, &format!("{name}.")),
        };
        match inner.is_empty() {
            true if of != "return" => all.push(name),
            _ => all.extend(inner),
        }
    }
    all
}

/// The full names of the fields in a row's name. After "A::x.a", ".b" is short for "A::x.b", and
/// "::y" for "A::y".
fn named(row: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for name in row.split(", ") {
        let mark = ["::", "."].into_iter().find(|mark| name.starts_with(mark));
        let before = mark.and_then(|mark| all.last()?.split_once(mark));
        all.push(before.map_or_else(|| name.to_owned(), |(start, _)| format!("{start}{name}")));
    }
    all
}

/// Each field of each primitive needs a row, so a new field without a row fails this test.
#[test]
fn every_field_has_a_row() -> Checked {
    let mut sources = String::new();
    for file in std::fs::read_dir("cpp/ops")? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "h") {
            sources += &std::fs::read_to_string(path)?;
        }
    }
    let class = Regex::new(r"(?m)^class (\w+) : public (?:Fused|Composed|Cpu)Primitive")?;
    let mut found = BTreeSet::new();
    let mut classes = 0;
    for name in class.captures_iter(&sources) {
        classes += 1;
        found.extend(fields(&sources, &name[1], &format!("{}::", &name[1])));
    }
    let known: BTreeSet<String> = rows().iter().flat_map(|row| named(row.0)).collect();
    let known: BTreeSet<String> = known.into_iter().filter(|name| !name.contains(' ')).collect();
    anyhow::ensure!(classes > 15, "{classes} primitives");
    let missing: Vec<_> = found.difference(&known).collect();
    let unknown: Vec<_> = known.difference(&found).collect();
    anyhow::ensure!(
        missing.is_empty() && unknown.is_empty(),
        "without a row: {missing:?}; no field: {unknown:?}"
    );
    for (names, row) in rows() {
        if let Fixed(reason) = row {
            anyhow::ensure!(reason.contains(' '), "{names:?}: no reason");
        }
    }
    Ok(())
}
