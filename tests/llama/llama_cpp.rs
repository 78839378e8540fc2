//! GGUF files that llama.cpp's quantizer wrote. The tests compare them with the results of
//! llama.cpp and its dequantizers, which `tests/fixtures/gguf/generate.py` writes.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use mlx_primitives::Array;
use mlx_primitives::io::{KQuants, Tensors, gguf_types, load_gguf};
use mlx_primitives_llama::Llama;
use serde_json::Value;

use crate::checkpoints::{apart, floats, follow, ids, largest, mean_nll, perplexity_error, tokens};
use crate::support::compare::numbers;
use crate::support::{Checked, simulated};

/// The files. For each, the most bits per weight that the model may take in memory, in two cases:
/// all its matrices are in MLX's affine layout, or Q4_K, Q5_K and Q6_K are in the layout of
/// `KQuants::Own`.
const FILES: [(&str, f64, f64); 9] = [
    ("q2_k", 8.0, 8.0),
    ("q3_k", 10.0, 10.0),
    ("q4_k_m", 8.1, 5.7),
    ("q5_k", 7.0, 5.63),
    ("q6_k", 10.0, 6.63),
    ("iq4_xs", 10.0, 10.0),
    ("iq4_nl", 10.0, 10.0),
    ("q5_0", 7.0, 7.0),
    ("q5_1", 7.0, 7.0),
];

fn path(name: &str) -> PathBuf {
    let folder = crate::support::root().join("tests/fixtures/gguf");
    folder.join(format!("{name}.gguf"))
}

fn expected(name: &str) -> anyhow::Result<Value> {
    let all: Value =
        serde_json::from_str(&fs::read_to_string(path(name).with_file_name("expected.json"))?)?;
    all["files"].get(name).cloned().context("a file that is expected")
}

/// The number of bits of a code after conversion to the affine layout, and whether the conversion
/// is exact.
fn layout(kind: &str) -> (usize, bool) {
    match kind {
        "Q4_K" => (4, true),
        "Q5_K" | "Q5_0" | "Q5_1" => (5, true),
        "IQ4_NL" | "IQ4_XS" | "Q3_K" => (8, true),
        "Q6_K" => (8, false),
        _ => (6, false),
    }
}

/// Dequantizes a packed tensor in float64.
fn weights(tensors: &Tensors, name: &str, bits: usize) -> anyhow::Result<Vec<f64>> {
    let stem = name.strip_suffix(".weight").context("a weight")?;
    let part = |part: &str| -> &Array { &tensors.arrays[&format!("{stem}.{part}")] };
    let words = part("weight").to_vec::<u32>()?;
    let (scales, biases) = (part("scales").to_vec::<f32>()?, part("biases").to_vec::<f32>()?);
    ensure!(words.len() == scales.len() * bits, "{name}: {} words", words.len());
    let bit = |at: usize| words[at / 32] >> (at % 32) & 1;
    let code = |i: usize| (0..bits).map(|b| bit(i * bits + b) << b).sum::<u32>();
    Ok((0..32 * scales.len())
        .map(|i| f64::from(scales[i / 32]) * f64::from(code(i)) + f64::from(biases[i / 32]))
        .collect())
}

#[test]
fn weights_are_those_of_the_dequantizers() -> Checked {
    for (name, ..) in FILES {
        let (tensors, want) = (load_gguf(path(name))?, expected(name)?);
        let mut checked = 0;
        for (tensor, want) in want["tensors"].as_object().context("tensors")? {
            let kind = want["type"].as_str().context("a type")?;
            let (bits, exact) = layout(kind);
            let got = weights(&tensors, tensor, bits)?;
            let what = format!("{name}, {tensor} of {kind}");
            let columns = 32 * tensors.arrays[&tensor.replace("weight", "scales")].shape()[1];
            let row = floats(&want["second_row"]);
            let off = apart(&got[columns as usize..][..row.len()], &row);
            let size = largest(&got);
            // llama.cpp's dequantizers round a product and a sum to float32. If the conversion is
            // inexact, the error is a small part of the largest weight.
            let allowed = size * if exact { 1e-7 } else { 0.02 };
            assert!(off <= allowed, "{what}: {off:e} of {size}, {allowed:e} allowed");
            let weighted: f64 = got.iter().enumerate().map(|(i, v)| v * (i as f64).cos()).sum();
            let total: f64 = got.iter().map(|v| v.abs()).sum();
            for (got, want) in [(got.iter().sum(), &want["sum"]), (weighted, &want["weighted"])] {
                let off = (got - want.as_f64().context("a sum")?).abs();
                let allowed = total * if exact { 1e-7 } else { 1e-3 };
                assert!(off <= allowed, "{what}: sums {off:e} apart, {allowed:e} allowed");
            }
            checked += 1;
        }
        assert_eq!(checked, 8, "{name}");
    }
    Ok(())
}

/// Compares a model with two results of llama.cpp. One is for the file, and llama.cpp's CPU kernels
/// round activations to eight bits. The other is for the same weights in float32, without such
/// rounding.
fn runs_as_in_llama_cpp(name: &str) -> anyhow::Result<()> {
    let (llama, want) = (Llama::load(path(name))?, expected(name)?);
    let (text, wide) = (ids(&want["text"]), &want["float32"]);
    let prompt = &text[..want["prompt"].as_u64().context("a length")? as usize];
    // In float32 only the order of sums differs. The conversion of Q2_K changes weights by two
    // percent, and five matrices in sequence multiply this error.
    let (exact, part) = match name {
        "q2_k" => (false, 0.1),
        _ => (true, 2e-5),
    };

    let logits = numbers(&llama.forward(&tokens(prompt)?, &mut llama.new_cache())?)?;
    let last = &logits[logits.len() - llama.config().vocab_size as usize..];
    let reference = floats(&wide["last_logits"]);
    let off = apart(last, &reference);
    let allowed = largest(&reference) * part;
    ensure!(off <= allowed, "logits {off:e} apart, {allowed:e} allowed");
    let decided = follow(&llama, wide, prompt, allowed)?;
    let mut said = format!("logits {off:.1e} of {allowed:.1e}, {decided} tokens decided");
    if simulated() {
        return Ok(());
    }
    ensure!(decided >= if name == "q2_k" { 4 } else { 12 }, "{said}");
    let nll = mean_nll(&llama, &text)?;
    for (whose, least) in [("llama.cpp", 5e-3), ("float32", if exact { 1e-5 } else { 5e-3 })] {
        let off = perplexity_error(nll, want[whose]["mean_nll"].as_f64().context("a number")?);
        said += &format!("; perplexity {off:.1e} off {whose}'s");
        ensure!(off <= least, "{said}");
    }
    eprintln!("{name}: perplexity {:.4}, {said}", nll.exp());
    Ok(())
}

#[test]
fn files_run_as_in_llama_cpp() -> Checked {
    let mut wrong = Vec::new();
    // The simulator is slow, so run only one file in it.
    for (name, ..) in FILES.iter().filter(|(name, ..)| !simulated() || *name == "q4_k_m") {
        if let Err(error) = runs_as_in_llama_cpp(name) {
            wrong.push(format!("{name}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

#[test]
fn packed_weights_stay_packed_in_memory() -> Checked {
    for (name, affine, at_own_size) in FILES {
        for (k_quants, most) in [(KQuants::Affine, affine), (KQuants::Own, at_own_size)] {
            let llama = match k_quants {
                KQuants::Own => Llama::load(path(name))?,
                KQuants::Affine => k_quants.with(|| Llama::load(path(name)))?,
            };
            let bits = 8.0 * llama.nbytes() as f64 / llama.parameters() as f64;
            if most < affine {
                let stored = fs::metadata(path(name))?.len();
                let most = stored + stored / 20;
                assert!(llama.nbytes() as u64 <= most, "{name}: {stored} in the file");
            }
            // The norms are float32, and are a hundredth of these small models.
            assert!((4.0..most * 1.04).contains(&bits), "{name}: {bits} bits a weight");
        }
    }
    Ok(())
}

#[test]
fn types_are_reported() -> Checked {
    let told = gguf_types(path("q4_k_m"))?;
    let told: Vec<_> =
        told.iter().map(|it| (it.name, it.tensors, it.bytes, it.bits, it.rounding)).collect();
    assert_eq!(gguf_types(path("q4_k_m"))?.iter().filter_map(|it| it.own_bits).sum::<i32>(), 4 + 6);
    let [f32s, q4, q6] = told[..] else { panic!("{told:?}") };
    assert_eq!(f32s, ("F32", 3, 3 * 256 * 4, None, None));
    assert_eq!((q4.0, q4.3, q4.4), ("Q4_K", Some(4), None));
    assert_eq!((q6.0, q6.3, q6.4), ("Q6_K", Some(8), Some("1/6 of a step")));
    assert_eq!(q4.1 + q6.1, 8);
    // A block of 256 weights takes 144 bytes in one format, and 210 in the other.
    let weights = q4.2 / 144 * 256 + q6.2 / 210 * 256;
    assert_eq!(weights, 64 * 256 + 2 * 256 * 256 + 2 * 32 * 256 + 3 * 256 * 256);
    Ok(())
}
