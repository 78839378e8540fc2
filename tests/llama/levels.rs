//! Computes the logits of packed models with every instruction set of this machine. Compares them
//! with a float64 model on the dequantized weights. An environment variable chooses the instruction
//! set for a whole process, so each one runs in a child process.

use std::collections::HashMap;

use mlx_primitives::ops::{QuantizedMode, QuantizedWeight};
use mlx_primitives::{Array, Dtype, device};
use mlx_primitives_llama::{Cache, Config, Llama, base::Weights};
use serde_json::json;

use crate::reference::{Matrix, Reference, Shape};
use crate::support::input::random32;
use crate::support::{Checked, in_another_process};
use crate::table::inputs::decoded;

const SIMD: &str = "MLX_PRIMITIVES_SIMD";
/// Instruction sets, the best one first. A machine that supports one also supports all after it,
/// except that it may lack `avx2vnni`.
#[cfg(target_arch = "x86_64")]
const LEVELS: [&str; 7] =
    ["amx", "avx512vnni", "avx512bf16", "avx512", "avx2vnni", "avx2", "scalar"];
#[cfg(target_arch = "aarch64")]
const LEVELS: [&str; 4] = ["i8mm", "dotprod", "neon", "scalar"];
const SHAPE: Shape = Shape { hidden: 256, inner: 384, heads: 4, kv_heads: 2, head_dim: 64 };
const LAYERS: usize = 2;
const VOCAB: usize = 96;

#[test(simulated = never)]
fn packed_models_are_exact_at_every_level() -> Checked {
    let own = device::cpu_kernels();
    let below = LEVELS.iter().skip_while(|name| **name != own);
    #[cfg(target_arch = "x86_64")]
    let below = {
        let dots = is_x86_feature_detected!("avxvnni");
        below.filter(move |name| dots || **name != "avx2vnni")
    };
    let mut run = 0;
    for level in below {
        let test = "levels::logits_at_this_level";
        let said = in_another_process(test, |child| child.arg("--ignored").env(SIMD, level))?;
        assert!(said.contains(&format!("logits at {level}")), "{level}: {said}");
        run += 1;
    }
    assert!(run > 0, "{own}");
    Ok(())
}

/// The group size, the number of bits, and the quantization mode.
type Format = (i32, i32, QuantizedMode);

#[test]
#[ignore = "run by packed_models_are_exact_at_every_level"]
fn logits_at_this_level() -> Checked {
    println!("logits at {}", device::cpu_kernels());
    let groups = [32, 64, 128];
    let affine = [2, 3, 4, 5, 6, 8]
        .into_iter()
        .flat_map(|bits| groups.map(|group| (group, bits, QuantizedMode::Affine)));
    let others = QuantizedMode::ALL.into_iter().filter_map(|mode| {
        let (group, bits) = mode.only_layout()?;
        Some((group, bits, mode))
    });
    for format in affine.chain(others) {
        for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
            check(format, dtype)?;
        }
    }
    Ok(())
}

/// Runs a prompt, whose products use tiles of rows. Then runs tokens one by one, as single rows.
fn check(format: Format, dtype: Dtype) -> Checked {
    let (llama, reference) = model(format, dtype)?;
    let tokens: Vec<u32> = (0..15).map(|i| (i * 37 + 11) % VOCAB as u32).collect();
    let expected = reference.logits(&tokens);
    let mut cache = llama.new_cache();
    let mut logits = step(&llama, &tokens[..12], &mut cache)?;
    for token in &tokens[12..] {
        logits.extend(step(&llama, &[*token], &mut cache)?);
    }
    let (mut error, mut size) = (0.0, 0.0);
    for (ours, theirs) in logits.iter().zip(&expected) {
        error += (f64::from(*ours) - theirs).powi(2);
        size += theirs.powi(2);
    }
    let relative = (error / size).sqrt();
    // Two layers round about forty results in sequence. Independent errors of up to a unit add up
    // to the square root of their number, about 6 units, and later layers may double them. In f32,
    // the sums of hundreds of products have errors too.
    let unit = match dtype {
        Dtype::Float16 => 2f64.powi(-11),
        Dtype::Bfloat16 => 2f64.powi(-9),
        _ => 6.0 * 2f64.powi(-24),
    };
    let what = format!("{} {format:?} {dtype}", device::cpu_kernels());
    assert!(logits.len() == expected.len() && size > 0.0, "{what}");
    assert!(relative < 12.0 * unit, "{what}: {:.2} units", relative / unit);
    Ok(())
}

fn step(llama: &Llama, tokens: &[u32], cache: &mut Cache) -> anyhow::Result<Vec<f32>> {
    let tokens = Array::from_slice(tokens, [1, tokens.len() as i32])?;
    Ok(llama.forward(&tokens, cache)?.astype(Dtype::Float32)?.to_vec::<f32>()?)
}

/// A random packed model, and a float64 reference with the same dequantized weights.
fn model(format: Format, dtype: Dtype) -> anyhow::Result<(Llama, Reference)> {
    let (group_size, bits, mode) = format;
    let mut arrays = HashMap::new();
    let mut seed = 0;
    let mut matrix = |name: String, outputs: usize, inputs: usize| -> anyhow::Result<Matrix> {
        seed += 1;
        let scale = (1.0 / (3.0 * inputs as f32)).sqrt();
        let w = random32(&[outputs as i32, inputs as i32], seed)?.multiply(scale)?.astype(dtype)?;
        let packed = QuantizedWeight::quantize(&w, group_size, bits, mode)?;
        let numbers = decoded(&packed, Dtype::Float32)?;
        arrays.insert(format!("{name}.weight"), packed.packed().clone());
        arrays.insert(format!("{name}.scales"), packed.scales().clone());
        if let Some(biases) = packed.biases() {
            arrays.insert(format!("{name}.biases"), biases.clone());
        }
        Ok(Matrix { numbers, inputs })
    };
    let reference = Reference::new(SHAPE, LAYERS, VOCAB, &mut matrix)?;
    for (name, weights) in reference.norms() {
        let weights: Vec<f32> = weights.iter().map(|&w| w as f32).collect();
        arrays.insert(name, Array::from_slice(&weights, [weights.len() as i32])?.astype(dtype)?);
    }
    let config = json!({
        "model_type": "llama", "hidden_size": SHAPE.hidden, "num_hidden_layers": LAYERS,
        "intermediate_size": SHAPE.inner, "num_attention_heads": SHAPE.heads,
        "num_key_value_heads": SHAPE.kv_heads, "head_dim": SHAPE.head_dim, "rms_norm_eps": 1e-5,
        "vocab_size": VOCAB, "tie_word_embeddings": false,
        "quantization": {"group_size": group_size, "bits": bits, "mode": mode.name()},
    });
    Ok((Llama::new(Config::parse(&config.to_string())?, Weights::new(arrays))?, reference))
}
