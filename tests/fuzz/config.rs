//! Fuzzes `config.json`. Builds a model with random weights from each accepted config if it is
//! small.

use std::fs;
use std::path::Path;

use fastrand::Rng;
use mlx_primitives::{Array, Dtype};
use mlx_primitives_llama::{CacheKind, Config, Llama, estimate};
use serde_json::{Value, json};

use super::case::{Case, Fuzzer, Run};
use super::mutation::{self, once_in, one};

pub const FUZZER: Fuzzer = Fuzzer { name: "config", allowance: 16 << 20, prepare };

/// A model is built only if its weights take at most this many bytes, and if it has at most eight
/// layers.
const SMALL: u64 = 1 << 17;

fn prepare(_: &Path) -> anyhow::Result<Run> {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/checkpoints");
    let mut samples = Vec::new();
    for folder in fs::read_dir(fixtures)? {
        if let Ok(text) = fs::read_to_string(folder?.path().join("config.json")) {
            samples.push(serde_json::from_str::<Value>(&text)?);
        }
    }
    samples.sort_by_key(Value::to_string);
    anyhow::ensure!(samples.len() > 20, "{} configurations", samples.len());
    Ok(Box::new(move |rng| {
        let sample = match rng.bool() {
            true => one(rng, &samples).clone(),
            false => small(rng),
        };
        let text = mutation::config(rng, &sample);
        let config = Config::parse(&text);
        if let Ok(config) = &config {
            check(rng, config);
        }
        Case::new(text.len(), &config)
    }))
}

/// A random configuration of a small model.
fn small(rng: &mut Rng) -> Value {
    let mut config = json!({
        "model_type": one(rng, &["llama", "mistral", "qwen2", "qwen3", "gemma"]),
        "hidden_size": 32,
        "num_hidden_layers": 1 + rng.u32(..2),
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1 + rng.u32(..2),
        "head_dim": one(rng, &[16, 32, 2, 6]),
        "rms_norm_eps": 1e-5,
        "vocab_size": 8,
        "max_position_embeddings": 64,
    });
    let scalings = [
        json!(null),
        json!({"type": "linear", "factor": 2.0}),
        json!({"type": "dynamic", "factor": 2.0}),
        json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 32}),
        json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
        json!({"type": "longrope", "short_factor": [1.0], "long_factor": [2.0],
               "original_max_position_embeddings": 32, "attention_factor": 1.5}),
        json!({"rope_type": "yarn", "factor": null, "truncate": false, "attention_factor": 0.9,
               "mscale": 0.7, "mscale_all_dim": 1.2, "original_max_position_embeddings": 16}),
        json!({"type": "mrope", "mrope_section": [2, 3, 3]}),
        json!({"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e4}}),
    ];
    let key = *one(rng, &["rope_scaling", "rope_parameters"]);
    config[key] = one(rng, &scalings).clone();
    if rng.bool() {
        config["hidden_act"] =
            json!(one(rng, &["gelu", "gelu_new", "relu", "relu2", "quick_gelu"]));
    }
    if once_in(rng, 3) {
        config["use_sliding_window"] = json!(rng.bool());
        config["max_window_layers"] = json!(rng.u32(..3));
        config["sliding_window"] = json!(1 + rng.u32(..8));
    }
    if once_in(rng, 8) {
        let keys = ["partial_rotary_factor", "residual_multiplier", "logits_scaling"];
        config[*one(rng, &keys)] = json!(1.0);
        let off = ["clip_qkv", "final_logit_softcapping", "num_experts", "no_rope_layers"];
        config[*one(rng, &off)] = one(rng, &[json!(null), json!(0), json!([])]).clone();
    }
    if once_in(rng, 4) {
        config["eos_token_id"] =
            one(rng, &[json!(-1), json!(3), json!([1, -1]), json!("1")]).clone();
    }
    if once_in(rng, 4) {
        config["quantization"] = json!({"group_size": 32, "bits": one(rng, &[2, 3, 4, 5, 6, 8])});
    }
    if once_in(rng, 4) {
        config["num_hidden_layers"] = json!(2);
        config["layer_types"] = json!(["full_attention", "sliding_attention"]);
        config["sliding_window"] = json!(1 + rng.u32(..8));
    }
    config["tie_word_embeddings"] = one(rng, &[json!(true), json!(false), json!(null)]).clone();
    config["attention_bias"] = json!(rng.bool());
    config
}

fn check(rng: &mut Rng, config: &Config) {
    config.kind().expect("a type");
    assert!(config.head_dim() > 0 && config.kv_heads() > 0);
    let length = *one(rng, &[0, 1, 1000, i32::MAX]);
    let rope = config.rope_frequencies().expect("frequencies");
    assert_eq!(rope.values(length).len() as i32, rope.dims() / 2);
    let packed = config.quantization_of("").expect("a quantization");
    let dtype = *one(rng, &[Dtype::Float32, Dtype::Float16, Dtype::Bfloat16]);
    let bytes = estimate(config, dtype, packed, CacheKind::Plain, 1, 1).expect("an estimate");
    if bytes.weights > SMALL || config.num_hidden_layers > 8 {
        return;
    }
    let Ok(llama) = Llama::random(config.clone(), dtype, None, 1) else { return };
    let ids = Array::from_slice(&[0i32, 0], [1, 2]).expect("tokens");
    let logits = llama.forward(&ids, &mut llama.new_cache());
    // The kernels may return an error for sizes that they do not support.
    if let Ok(logits) = logits {
        assert_eq!(logits.shape(), [1, 2, config.vocab_size]);
        logits.eval().expect("logits are computed");
    }
}
