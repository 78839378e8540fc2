//! Models with random weights have the size of the real model and finite results. Equal seeds give
//! equal models.

use mlx_primitives::ops::QuantizedMode;
use mlx_primitives::{Array, Dtype};
use mlx_primitives_llama::{CacheKind, Config, Llama, Options, Quantization, estimate};
use serde_json::{Value, json};

use crate::support::{Checked, message, simulated};

fn config(edit: impl Fn(&mut Value)) -> Config {
    let mut config = json!({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": 80,
        "tie_word_embeddings": false,
    });
    edit(&mut config);
    Config::parse(&config.to_string()).unwrap()
}

fn logits(llama: &Llama) -> anyhow::Result<Vec<f32>> {
    let tokens = Array::from_slice(&[1u32, 5, 79, 0], [1, 4])?;
    let logits = llama.forward(&tokens, &mut llama.new_cache())?.astype(Dtype::Float32)?;
    Ok(logits.to_vec::<f32>()?)
}

#[test(simulated = once)]
fn every_format_is_finite_lively_and_of_the_estimated_size() -> Checked {
    let mxfp4 = Quantization { group_size: 32, bits: 4, mode: QuantizedMode::Mxfp4 };
    let mxfp8 = Quantization { group_size: 32, bits: 8, mode: QuantizedMode::Mxfp8 };
    let nvfp4 = Quantization { group_size: 16, bits: 4, mode: QuantizedMode::Nvfp4 };
    let formats = [
        None,
        Some(Quantization::affine(32, 2)),
        Some(Quantization::affine(64, 3)),
        Some(Quantization::affine(32, 4)),
        Some(Quantization::affine(64, 6)),
        Some(Quantization::affine(32, 8)),
        Some(mxfp4),
        Some(mxfp8),
        Some(nvfp4),
    ];
    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16] {
        for to in formats {
            // Groups of 64 do not divide rows of 96, so these matrices stay floats.
            let llama = Llama::random(config(|_| {}), dtype, to, 7)?;
            // MLX dequantizes floating-point formats to bfloat16. Together with float16 norms this
            // gives float32.
            let floats = to.is_some_and(|to| to.mode != QuantizedMode::Affine);
            let mixed = floats && dtype == Dtype::Float16;
            assert_eq!(llama.dtype(), if mixed { Dtype::Float32 } else { dtype });
            let sizes = estimate(llama.config(), dtype, to, CacheKind::Plain, 1, 0)?;
            assert_eq!(llama.nbytes() as u64, sizes.weights, "{dtype} {to:?}");
            assert_eq!(llama.parameters(), 2 * (12_288 + 3 * 6144 + 2 * 64) + 64 + 2 * 5120);

            let logits = logits(&llama)?;
            let square = logits.iter().map(|x| x * x).sum::<f32>() / logits.len() as f32;
            assert!(logits.iter().all(|x| x.is_finite()), "{dtype} {to:?}");
            // The hidden states are normalized, and the weights have a variance of 1 / inputs. So
            // logits have a mean square of about 1.
            assert!((0.3..3.0).contains(&square), "{dtype} {to:?}: {square}");
        }
    }
    Ok(())
}

#[test(simulated = once)]
fn k_quants_are_finite_lively_and_of_the_estimated_size() -> Checked {
    let wide = |config: &mut Value| {
        config["hidden_size"] = json!(256);
        config["intermediate_size"] = json!(512);
    };
    for (group_size, bits) in [(32, 4), (32, 5), (16, 6)] {
        let to = Some(Quantization { group_size, bits, mode: QuantizedMode::KQuant });
        let llama = Llama::random(config(wide), Dtype::Float32, to, 7)?;
        let sizes = estimate(llama.config(), Dtype::Float32, to, CacheKind::Plain, 1, 0)?;
        assert_eq!(llama.nbytes() as u64, sizes.weights, "{bits}");
        let logits = logits(&llama)?;
        let square = logits.iter().map(|x| x * x).sum::<f32>() / logits.len() as f32;
        assert!((0.3..3.0).contains(&square), "{bits}: {square}");
    }
    Ok(())
}

#[test(simulated = once)]
fn a_seed_draws_the_same_model() -> Checked {
    for to in [None, Some(Quantization::affine(32, 4))] {
        let draw = |seed| logits(&Llama::random(config(|_| {}), Dtype::Float32, to, seed)?);
        assert_eq!(draw(3)?, draw(3)?);
        assert_ne!(draw(3)?, draw(4)?);
    }
    Ok(())
}

#[test(simulated = once)]
fn biases_overrides_and_generation() -> Checked {
    let biased = config(|config| {
        config["attention_bias"] = json!(true);
        config["mlp_bias"] = json!(true);
    });
    let plain = Llama::random(config(|_| {}), Dtype::Float32, None, 0)?;
    let llama = Llama::random(biased, Dtype::Float32, None, 0)?;
    assert_eq!(llama.parameters() - plain.parameters(), 2 * (64 + 2 * 32 + 64 + 2 * 96 + 64));
    assert!(logits(&llama)?.iter().all(|x| x.is_finite()));

    // Without a quantization as an argument, the model uses its configuration's quantization.
    let overrides = config(|config| {
        config["quantization"] = json!({
            "group_size": 32, "bits": 4, "lm_head": false,
            "model.layers.0.mlp.up_proj": {"group_size": 32, "bits": 8},
        });
    });
    let llama = Llama::random(overrides, Dtype::Float32, None, 0)?;
    let uniform =
        Llama::random(config(|_| {}), Dtype::Float32, Some(Quantization::affine(32, 4)), 0)?;
    // lm_head takes 4 bytes per number instead of 4 / 8 + 8 / 32 bytes. up_proj takes 8 bits per
    // number instead of 4.
    assert_eq!(llama.nbytes() - uniform.nbytes(), 80 * 64 * 13 / 4 + 96 * 64 / 2);
    let options = Options { max_tokens: if simulated() { 2 } else { 20 }, ..Options::default() };
    let tokens: Result<Vec<u32>, _> = llama.generate(&[1, 2, 3], &options)?.collect();
    assert_eq!(tokens?.len(), options.max_tokens);
    Ok(())
}

#[test(simulated = once)]
fn impossible_models_are_refused() {
    let error = |config, dtype, to| message(Llama::random(config, dtype, to, 0));
    assert!(error(config(|_| {}), Dtype::Int32, None).contains("got int32"));
    assert!(error(config(|_| {}), Dtype::Float64, None).contains("got float64"));
    for bad in
        [Quantization::affine(48, 4), Quantization::affine(32, 0), Quantization::affine(0, 4)]
    {
        let error = error(config(|_| {}), Dtype::Float32, Some(bad));
        assert!(error.contains("expected"), "{bad:?}: {error}");
    }
    let huge = config(|config| {
        config["hidden_size"] = json!(1 << 15);
        config["vocab_size"] = json!(1 << 24);
    });
    let error = error(huge, Dtype::Bfloat16, Some(Quantization::affine(32, 4)));
    assert!(error.contains("memory limit"), "{error}");
}
