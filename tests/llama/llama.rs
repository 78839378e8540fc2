//! Compares the Llama model with texts that mlx-lm generated, and tests the errors for invalid
//! input.

mod embedding;

use std::fs;
use std::path::Path;

use mlx_primitives::{Array, Dtype, Error};
use mlx_primitives_llama::{Checkpoint, Config, Options, Sampling, decode::FinishReason};
use serde_json::{Value, json};

use crate::support::models::{DEMO, fixture, ids, variant};
use crate::support::{fewer_if_simulated, simulated};

pub fn greedy(checkpoint: &Checkpoint, prompt: &[u32], max_tokens: usize) -> Vec<u32> {
    let options = Options { max_tokens, ..Options::default() };
    checkpoint.generate(prompt, &options).unwrap().map(Result::unwrap).collect()
}

fn load_error(directory: &Path) -> String {
    match Checkpoint::load(directory) {
        Ok(_) => panic!("loaded"),
        Err(error) => error.to_string(),
    }
}

/// Compares our greedy tokens with mlx-lm's. Stops at the first step whose two largest logits
/// differ by `margin` or less. There, rounding may change the token and all later ones.
fn assert_follows_mlx_lm(checkpoint: &Checkpoint, dtype: &str, margin: f64) -> usize {
    let fixture = fixture();
    let mut compared = 0;
    let limit = fewer_if_simulated("tokens that follow mlx-lm's", 96, 8) as usize;
    let prompts = fewer_if_simulated("prompts that follow mlx-lm's", 8, 3) as usize;
    for entry in fixture["prompts"].as_array().unwrap().iter().take(prompts) {
        let (prompt, reference) = (ids(&entry["prompt_ids"]), &entry[dtype]);
        let text = entry["prompt"].as_str().unwrap();
        assert_eq!(checkpoint.tokenizer.encode(text).unwrap(), prompt, "{text:?}");

        let mut expected = ids(&reference["ids"]);
        let margins = reference["margins"].as_array().unwrap();
        let decided = margins.iter().take_while(|m| m.as_f64().unwrap() > margin).count();
        expected.truncate(decided.min(limit));
        expected.retain(|&id| !checkpoint.eos.contains(&id));
        let mut ours = greedy(checkpoint, &prompt, limit);
        ours.truncate(expected.len());
        assert_eq!(ours, expected, "{dtype}, {text:?}");
        compared += expected.len();
    }
    compared
}

#[test(simulated = once)]
fn greedy_tokens_equal_mlx_lms_in_float32() {
    // Float32 logits have errors of about 1e-5, and every margin of the fixture is larger.
    let compared = assert_follows_mlx_lm(&Checkpoint::demo().unwrap(), "float32", 1e-3);
    let whole = if simulated() { 2 * 12 } else { 7 * 96 + 65 };
    assert_eq!(compared, whole, "the whole of every continuation");
}

#[test(simulated = once)]
fn greedy_tokens_follow_mlx_lms_in_float16() {
    // The largest logits are about 20 and have steps of 2^-6. The errors are a few steps.
    let directory = variant(Dtype::Float16, |_, _| {});
    let checkpoint = Checkpoint::load(directory.path()).unwrap();
    assert_eq!(checkpoint.llama.dtype(), Dtype::Float16);
    let least = if simulated() { 12 } else { 600 };
    assert!(assert_follows_mlx_lm(&checkpoint, "float16", 0.05) > least);
}

#[test(simulated = once)]
fn greedy_tokens_follow_mlx_lms_in_bfloat16() {
    // The largest logits are about 20 and have steps of 2^-3. The errors are a few steps.
    let directory = variant(Dtype::Bfloat16, |_, _| {});
    let checkpoint = Checkpoint::load(directory.path()).unwrap();
    let least = if simulated() { 4 } else { 100 };
    assert!(assert_follows_mlx_lm(&checkpoint, "bfloat16", 0.4) > least);
}

#[test(simulated = once)]
fn logits_equal_mlx_lms() {
    let fixture = fixture();
    let prompt = ids(&fixture["prompts"][0]["prompt_ids"]);
    let llama = Checkpoint::demo().unwrap().llama;
    let tokens = Array::from_slice(&prompt, [1, prompt.len() as i32]).unwrap();
    let logits = llama.forward(&tokens, &mut llama.new_cache()).unwrap();
    let row = logits.i((.., -1..)).unwrap().to_vec::<f32>().unwrap();
    let reference = fixture["first_logits"].as_array().unwrap();
    assert_eq!(row.len(), reference.len());
    for (ours, theirs) in row.iter().zip(reference) {
        // The fixture has six digits of numbers up to 20. In addition, sums of 352 products have
        // another order.
        let theirs = theirs.as_f64().unwrap() as f32;
        assert!((ours - theirs).abs() < 2e-4, "{ours} {theirs}");
    }
}

#[test(simulated = once)]
fn chunked_prefill_and_cache_growth_change_no_logit_beyond_rounding() {
    let llama = Checkpoint::demo().unwrap().llama;
    // There are more tokens than the cache holds before it grows, and more than in the texts on
    // which the model was trained.
    let tokens: Vec<u32> = (0..300).map(|i| (i * 37 + 11) % 512).collect();
    let whole = Array::from_slice(&tokens, [1, 300]).unwrap();
    let mut cache = llama.new_cache();
    let expected = llama.forward(&whole, &mut cache).unwrap().i((.., -1..)).unwrap();
    assert_eq!((cache.len(), cache.is_empty()), (300, false));

    let mut cache = llama.new_cache();
    let mut last = None;
    for chunk in [&tokens[..1], &tokens[1..8], &tokens[8..255], &tokens[255..258], &tokens[258..]] {
        let chunk = Array::from_slice(chunk, [1, chunk.len() as i32]).unwrap();
        last = Some(llama.forward(&chunk, &mut cache).unwrap().i((.., -1..)).unwrap());
    }
    assert_eq!(cache.len(), 300);
    let alone = llama.forward_last(&whole, &mut llama.new_cache()).unwrap();
    assert_eq!(alone.shape(), [1, 1, 512]);
    assert!(
        alone.subtract(&expected).unwrap().abs().unwrap().max(..).unwrap().item::<f32>().unwrap()
            < 1e-3
    );
    let difference = expected.subtract(last.unwrap()).unwrap().abs().unwrap();
    let worst = difference.max(..).unwrap().item::<f32>().unwrap();
    assert!(worst < 1e-3, "{worst}");
}

#[test(simulated = once)]
fn batches_decode_as_their_rows() {
    let llama = Checkpoint::demo().unwrap().llama;
    let rows = [[423u32, 424, 259, 384], [5, 6, 7, 8]];
    let both = Array::from_slice(&rows.concat(), [2, 4]).unwrap();
    let both = llama.forward(&both, &mut llama.new_cache()).unwrap();
    for (i, row) in rows.iter().enumerate() {
        let alone = Array::from_slice(row, [1, 4]).unwrap();
        let alone = llama.forward(&alone, &mut llama.new_cache()).unwrap();
        let i = i as i32;
        let same = both.i(i..i + 1).unwrap().subtract(alone).unwrap().abs().unwrap();
        assert!(same.max(..).unwrap().item::<f32>().unwrap() < 1e-4);
    }
}

#[test(simulated = once)]
fn sampling_is_reproducible_and_bounded() {
    let checkpoint = Checkpoint::demo().unwrap();
    let prompt = checkpoint.tokenizer.encode("Once upon a time").unwrap();
    let max_tokens = fewer_if_simulated("sampled tokens", 24, 4) as usize;
    let draw = |sampling: Sampling| -> Vec<u32> {
        let options = Options { max_tokens, sampling, ..Options::default() };
        checkpoint.generate(&prompt, &options).unwrap().map(Result::unwrap).collect()
    };
    let warm = Sampling { temp: 1.0, seed: 3, ..Sampling::default() };
    assert_eq!(draw(warm), draw(warm));
    let seeds: std::collections::HashSet<_> =
        (0..8).map(|seed| draw(Sampling { seed, ..warm })).collect();
    assert!(seeds.len() > 1, "every seed drew the same text");

    let greedy = greedy(&checkpoint, &prompt, max_tokens);
    for seed in 0..fewer_if_simulated("seeds", 4, 4) {
        let hot = Sampling { temp: 5.0, seed, ..Sampling::default() };
        assert_eq!(draw(Sampling { top_k: 1, ..hot }), greedy);
        assert_eq!(draw(Sampling { top_p: 1e-6, ..hot }), greedy);
        assert_eq!(draw(Sampling { min_p: 1.0, ..hot }), greedy);
    }
}

#[test(simulated = never)]
fn generation_ends_for_a_reason() {
    let checkpoint = Checkpoint::demo().unwrap();
    let prompt = checkpoint.tokenizer.encode("Once upon a time").unwrap();
    let run = |max_tokens| {
        let options = Options { max_tokens, ..Options::default() };
        let mut generation = checkpoint.generate(&prompt, &options).unwrap();
        let count = generation.by_ref().map(Result::unwrap).count();
        assert!(generation.next().is_none());
        (count, generation.finish_reason(), generation.statistics())
    };
    let (count, reason, statistics) = run(0);
    assert_eq!((count, reason), (0, Some(FinishReason::Length)));
    assert_eq!((statistics.prompt_tokens, statistics.generated_tokens), (4, 0));
    assert_eq!(run(5).0, 5);
    assert_eq!(run(5).1, Some(FinishReason::Length));
    let (count, reason, statistics) = run(10_000);
    assert_eq!(reason, Some(FinishReason::Stop));
    assert_eq!(statistics.generated_tokens, count);
    assert!(statistics.peak_memory > 0 && statistics.generation_tps() > 0.0);

    // If the model never draws an end token, the text continues to the end of the context.
    let options = Options { max_tokens: 10_000, ..Options::default() };
    let mut generation = checkpoint.llama.generate(&prompt, &options).unwrap();
    assert_eq!(generation.by_ref().map(Result::unwrap).count(), 256 + 1 - prompt.len());
    assert_eq!(generation.finish_reason(), Some(FinishReason::Length));
}

#[test(simulated = once)]
fn streamed_text_is_the_decoded_text_in_whole_characters() {
    let checkpoint = Checkpoint::demo().unwrap();
    let text = "Zoë saw a 🦊 and said “你好”.";
    let tokens = checkpoint.tokenizer.encode(text).unwrap();
    assert_eq!(checkpoint.tokenizer.decode(&tokens).unwrap(), text);
    let mut stream = checkpoint.tokenizer.stream();
    let pieces: Vec<String> = tokens.iter().map(|&t| stream.push(t).unwrap()).collect();
    assert_eq!(pieces.concat(), text);
    assert!(pieces.iter().any(String::is_empty), "the fox takes several tokens");
    assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')));
}

#[test(simulated = once)]
fn bad_prompts_and_sampling_are_errors() {
    let checkpoint = Checkpoint::demo().unwrap();
    let error = |prompt: &[u32], sampling: Sampling| {
        let options = Options { max_tokens: 1, sampling, ..Options::default() };
        checkpoint.generate(prompt, &options).err().expect("refused").to_string()
    };
    let greedy = Sampling::default();
    assert!(error(&[], greedy).contains("expected a prompt of 1 to 256 tokens, got 0"));
    assert!(error(&[1; 257], greedy).contains("got 257"));
    assert!(error(&[512], greedy).contains("expected tokens below 512, got 512"));
    for bad in [
        Sampling { temp: -1.0, ..greedy },
        Sampling { temp: f32::NAN, ..greedy },
        Sampling { top_p: 1.5, ..greedy },
        Sampling { min_p: -0.1, ..greedy },
    ] {
        assert!(error(&[1], bad).starts_with("[sampling] expected"));
    }
    let tokens = Array::from_slice(&[1u32], [1]).unwrap();
    let llama = &checkpoint.llama;
    assert!(llama.forward(&tokens, &mut llama.new_cache()).is_err(), "rank 1");
}

#[test(simulated = once)]
fn configurations_that_cannot_run_are_refused() {
    let base: Value =
        serde_json::from_str(&fs::read_to_string(format!("{DEMO}/config.json")).unwrap()).unwrap();
    let with = |key: &str, value: Value| {
        let mut config = base.clone();
        config[key] = value;
        Config::parse(&config.to_string())
    };
    assert!(with("rope_scaling", json!({"rope_type": "default"})).is_ok());
    for (key, value) in [
        ("model_type", json!("mamba")),
        ("hidden_size", json!(0)),
        ("hidden_size", json!(i32::MAX)),
        ("hidden_size", json!("many")),
        ("num_attention_heads", json!(3)),
        ("num_attention_heads", json!(0)),
        ("num_key_value_heads", json!(0)),
        ("head_dim", json!(31)),
        ("vocab_size", json!(-5)),
        ("rms_norm_eps", json!(-1.0)),
        ("rope_theta", json!(0.0)),
        ("layer_types", json!(["full_attention", "linear_attention"])),
        ("quantization", json!({"bits": 7, "group_size": 64})),
        ("quantization", json!({"bits": 4, "group_size": 48})),
        ("quantization", json!({"bits": 4, "group_size": 64, "mode": "other"})),
        ("layer_types", json!(["sliding_attention"])),
    ] {
        let error = with(key, value.clone()).expect_err(key).to_string();
        assert!(error.starts_with("[config] expected"), "{key}: {value}: {error}");
    }
}

#[test(simulated = once)]
fn broken_checkpoints_name_the_file() {
    let missing = tempfile::tempdir().unwrap();
    let error = load_error(missing.path());
    assert!(error.contains("config.json"), "{error}");

    let wrong_width = variant(Dtype::Float32, |name, json| {
        if name == "config.json" {
            json["intermediate_size"] = json!(353);
        }
    });
    let error = load_error(wrong_width.path());
    assert!(error.contains("gate_proj.weight of shape [353, 128]"), "{error}");

    let too_many = variant(Dtype::Float32, |name, json| {
        if name == "config.json" {
            json["num_hidden_layers"] = json!(3);
        }
    });
    assert!(load_error(too_many.path()).contains("model.layers.3."));

    let untied = variant(Dtype::Float32, |name, json| {
        if name == "config.json" {
            json["tie_word_embeddings"] = json!(false);
        }
    });
    assert!(load_error(untied.path()).contains("lm_head.weight"));

    let whole = variant(Dtype::Float32, |_, _| {});
    let weights = whole.path().join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    for length in [0, 7, 8, 100, bytes.len() - 1] {
        fs::write(&weights, &bytes[..length]).unwrap();
        let error = load_error(whole.path());
        assert!(error.contains("model.safetensors"), "{length}: {error}");
    }
    fs::remove_file(&weights).unwrap();
    assert!(load_error(whole.path()).contains("model*.safetensors"));
    fs::write(whole.path().join("tokenizer.json"), "{}").unwrap();
    assert!(matches!(Checkpoint::load(whole.path()), Err(Error::File { .. })));
}
