//! Compares scoring, quantizing and saving with mlx-lm's results for the demo model, which
//! `tests/fixtures/conversions.py` writes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mlx_primitives::device::{Device, with_device};
use mlx_primitives::ops::QuantizedMode;
use mlx_primitives::{Array, Dtype, io};
use mlx_primitives_llama::{Checkpoint, Llama, ModelFiles, Quantization, decode::Score};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::support::models::{DEMO, conversions as fixture, variant};
use crate::support::{Checked, message, simulated};

fn dtype(name: &Value) -> Dtype {
    let all = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];
    *all.iter().find(|dtype| name == dtype.name()).unwrap()
}

fn quantization(value: &Value) -> Quantization {
    let mode = match value["mode"].as_str() {
        Some("mxfp4") => QuantizedMode::Mxfp4,
        _ => QuantizedMode::Affine,
    };
    let number = |name: &str| value[name].as_i64().unwrap() as i32;
    Quantization { group_size: number("group_size"), bits: number("bits"), mode }
}

/// The first 64 logits after the fixture's prompt.
pub fn last_logits(llama: &Llama, fixture: &Value) -> anyhow::Result<Vec<f32>> {
    let prompt: Vec<u32> = serde_json::from_value(fixture["prompt"].clone())?;
    let tokens = Array::from_slice(&prompt, [1, prompt.len() as i32])?;
    let logits = llama.forward(&tokens, &mut llama.new_cache())?;
    let row = logits.i((.., -1.., ..64))?.astype(Dtype::Float32)?;
    Ok(row.to_vec::<f32>()?)
}

#[track_caller]
pub fn assert_logits(ours: &[f32], theirs: &Value, tolerance: f32, what: &str) {
    let theirs: Vec<f32> = serde_json::from_value(theirs.clone()).unwrap();
    assert_eq!(ours.len(), theirs.len());
    let worst = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    eprintln!("{what}: {worst:.1e} of {tolerance:.1e}");
    assert!(worst < tolerance, "{what}: {worst}");
    assert!(theirs.iter().any(|logit| logit.abs() > 1.0), "{what}: nothing to compare");
}

/// A checksum of each tensor in a folder's safetensors files, as in the fixture: the type, the
/// shape, and the sum of each byte times its position from 1.
pub fn digests(directory: &Path) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        let bytes = fs::read(path).unwrap();
        for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
            let sum = (tensor.data().iter().zip(1u64..))
                .fold(0u64, |sum, (&byte, place)| sum.wrapping_add(u64::from(byte) * place));
            let kind = match tensor.dtype() {
                safetensors::Dtype::F32 => "float32",
                safetensors::Dtype::F16 => "float16",
                safetensors::Dtype::BF16 => "bfloat16",
                safetensors::Dtype::U32 => "uint32",
                safetensors::Dtype::U8 => "uint8",
                other => panic!("{other:?} of {name}"),
            };
            found.insert(name, json!([kind, tensor.shape(), sum]));
        }
    }
    found
}

/// Checks that the perplexity is within `percent` of mlx-lm's. mlx-lm rounds the last bits of
/// activations differently.
#[track_caller]
fn assert_score(checkpoint: &Checkpoint, text: &str, theirs: &Value, percent: f64) {
    let tokens = checkpoint.tokenizer.encode(text).unwrap();
    let mut told = 0;
    let score = checkpoint.llama.score(&tokens, |scored| told = scored).unwrap();
    assert_eq!((told, json!(score.tokens)), (tokens.len() - 1, theirs["tokens"].clone()));
    let expected = theirs["mean_nll"].as_f64().unwrap();
    assert_eq!(score.perplexity(), score.mean_nll.exp());
    let off = (score.perplexity() / expected.exp() - 1.0).abs() * 100.0;
    assert!(off < percent, "{score:?} {theirs}: {off}%");
}

#[test(simulated = once)]
fn perplexity_equals_mlx_lms() {
    let fixture = fixture();
    let (story, theirs) = (fixture["story"].as_str().unwrap(), &fixture["perplexity"]);
    let demo = Checkpoint::demo().unwrap();
    assert_score(&demo, story, &theirs["float32"], 0.001);
    if simulated() {
        return eprintln!("thinned for the simulator: perplexity, float32 alone");
    }
    // The repeated text is longer than a chunk of logits, and longer than the model's maximum
    // position.
    assert_score(&demo, &story.repeat(7), &theirs["long"], 0.001);
    // A text longer than the score window is divided into windows. Their scores equal the scores of
    // separate texts.
    let (window, llama) = (demo.llama.score_window(), &demo.llama);
    assert_eq!(window, 8192);
    let tokens: Vec<u32> = (0..window as u32 + 300).map(|i| (i * i + 7 * i) % 512).collect();
    let first = llama.score(&tokens[..=window], |_| {}).unwrap();
    let rest = llama.score(&tokens[window..], |_| {}).unwrap();
    let mut told = Vec::new();
    let whole = llama.score(&tokens, |scored| told.push(scored)).unwrap();
    assert_eq!((whole.tokens, told.last()), (tokens.len() - 1, Some(&(tokens.len() - 1))));
    assert!(told.is_sorted() && told.len() > 3, "{told:?}");
    let sum = |score: Score| score.mean_nll * score.tokens as f64;
    let mean = (sum(first) + sum(rest)) / whole.tokens as f64;
    assert!((whole.mean_nll / mean - 1.0).abs() < 1e-9, "{whole:?} {mean}");
    for (dtype, percent) in [(Dtype::Float16, 0.2), (Dtype::Bfloat16, 1.0)] {
        let directory = variant(dtype, |_, _| {});
        let checkpoint = Checkpoint::load(directory.path()).unwrap();
        assert_score(&checkpoint, story, &theirs[dtype.name()], percent);
    }
}

#[test(simulated = once)]
fn texts_that_cannot_be_scored_are_refused() {
    let llama = Checkpoint::demo().unwrap().llama;
    let error = |tokens: &[u32]| message(llama.score(tokens, |_| {}));
    assert!(error(&[]).starts_with("[score] expected a text of two tokens or more, got 0"));
    assert!(error(&[7]).contains("got 1"));
    assert!(error(&[7, 512]).contains("tokens below 512, got 512"));
}

/// For every format, the tensors equal the tensors that `mlx_lm.convert -q` writes, bit for bit.
/// The logits and scores agree too.
#[test(simulated = once)]
fn quantized_checkpoints_are_mlx_lms() -> Checked {
    let fixture = fixture();
    for entry in fixture["quantized"].as_array().unwrap() {
        let (to, dtype) = (quantization(&entry["quantization"]), dtype(&entry["dtype"]));
        let parent = tempfile::tempdir()?;
        let directory = parent.path().join("quantized");
        let mut steps = Vec::new();
        let files = ModelFiles::open(DEMO)?;
        // mlx-lm wrote its files on a CPU. There, MLX rounds ties to even. On a GPU, it rounds ties
        // away from zero.
        with_device(Device::Cpu, || -> Checked {
            let packed =
                files.quantized(to, Some(dtype), |done, total| steps.push((done, total)))?;
            Ok(packed.save(&directory)?)
        })?;
        assert_eq!((steps.len(), steps.last()), (38, Some(&(38, 38))), "a step for each tensor");

        let ours = digests(&directory);
        if let Value::Object(theirs) = &entry["tensors"] {
            for (name, tensor) in theirs {
                assert_eq!(ours.get(name), Some(tensor), "{to:?} {name}");
            }
            assert_eq!(ours.len(), theirs.len());
        }
        let sum = ours.values().fold(0u64, |sum, e| sum.wrapping_add(e[2].as_u64().unwrap()));
        assert_eq!(json!(sum), entry["digest"], "{to:?}");

        let config: Value = serde_json::from_slice(&fs::read(directory.join("config.json"))?)?;
        for key in ["group_size", "bits", "mode"] {
            assert_eq!(config["quantization"][key], entry["quantization"][key]);
        }
        assert_eq!(config["quantization"], config["quantization_config"]);
        // Groups of 32 divide rows of 352 numbers, but groups of 64 or 128 do not. Matrices
        // whose rows cannot be divided stay floats.
        let unquantized = config["quantization"].as_object().unwrap().values();
        let unquantized = unquantized.filter(|value| **value == json!(false)).count();
        assert_eq!(unquantized, if to.group_size == 32 { 0 } else { 4 });

        let checkpoint = Checkpoint::load(&directory)?;
        assert_eq!(checkpoint.llama.dtype(), dtype);
        // The largest logits are about 20. With 16-bit types, these and all activations before are
        // rounded.
        let tolerance = [(Dtype::Float32, 2e-4), (Dtype::Float16, 0.05), (Dtype::Bfloat16, 0.4)];
        let tolerance = tolerance.iter().find(|(of, _)| *of == dtype).unwrap().1;
        let logits = last_logits(&checkpoint.llama, &fixture)?;
        assert_logits(&logits, &entry["logits"], tolerance, &format!("{to:?}"));
        if !simulated() {
            let story = fixture["story"].as_str().unwrap();
            assert_score(&checkpoint, story, &entry["perplexity"], 1.0);
        }
    }
    Ok(())
}

#[test(simulated = once)]
fn shards_have_an_index_and_load() -> Checked {
    let parent = tempfile::tempdir()?;
    let directory = parent.path().join("sharded");
    let files = ModelFiles::open(DEMO)?;
    let (bytes, parameters) = (files.nbytes(), files.parameters()?);
    files.save_sharded(&directory, 1 << 20)?;
    let index: Value =
        serde_json::from_slice(&fs::read(directory.join("model.safetensors.index.json"))?)?;
    assert_eq!(index["metadata"], json!({"total_size": bytes, "total_parameters": parameters}));
    let mut files: Vec<&str> =
        index["weight_map"].as_object().unwrap().values().map(|f| f.as_str().unwrap()).collect();
    files.sort_unstable();
    files.dedup();
    assert!(
        files.len() > 2 && files[0] == format!("model-00001-of-{:05}.safetensors", files.len())
    );
    for (name, file) in index["weight_map"].as_object().unwrap() {
        let path = directory.join(file.as_str().unwrap());
        assert!(fs::metadata(&path)?.len() < (1 << 20) + (1 << 14), "{file}");
        let shard = io::load_safetensors(&path)?;
        assert!(shard.arrays.contains_key(name), "{name} in {file}");
        assert_eq!(shard.metadata.get("format").map(String::as_str), Some("mlx"));
    }
    assert_eq!(digests(&directory), digests(Path::new(DEMO)));
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"] {
        assert_eq!(fs::read(directory.join(name))?, fs::read(format!("{DEMO}/{name}"))?, "{name}");
    }
    let loaded = Checkpoint::load(&directory)?;
    assert_eq!((loaded.llama.nbytes() as u64, loaded.llama.parameters()), (bytes, parameters));
    assert_eq!(fs::read_dir(parent.path())?.count(), 1, "nothing is left beside it");
    Ok(())
}

#[test(simulated = once)]
fn invalid_conversions_are_refused() -> Checked {
    let parent = tempfile::tempdir()?;
    let four_bits = Quantization::affine(32, 4);
    let open = || ModelFiles::open(DEMO).unwrap();
    let error = message(ModelFiles::open(parent.path()));
    assert!(error.contains("config.json"), "{error}");

    let taken = parent.path().join("taken");
    fs::create_dir(&taken)?;
    open().save(&taken)?; // empty
    let before = digests(&taken);
    let error = message(open().quantized(four_bits, None, |_, _| {})?.save(&taken));
    assert!(error.contains("taken") && error.contains("a new directory"), "{error}");
    assert_eq!(digests(&taken), before);
    assert_eq!(fs::read_dir(parent.path())?.count(), 1, "no partial output is left");

    let packed = parent.path().join("packed");
    open().quantized(four_bits, None, |_, _| {})?.save(&packed)?;
    let error = message(ModelFiles::open(&packed)?.quantized(four_bits, None, |_, _| {}));
    assert!(error.contains("packed") && error.contains("expected float weights"), "{error}");
    for bad in [
        Quantization::affine(48, 4),
        Quantization::affine(0, 4),
        Quantization::affine(-32, 4),
        Quantization::affine(32, 9),
        Quantization { group_size: 32, bits: i32::MIN, mode: QuantizedMode::Affine },
        Quantization { group_size: 64, bits: 4, mode: QuantizedMode::Mxfp4 },
    ] {
        let error = message(open().quantized(bad, None, |_, _| {}));
        let said = error.contains("expected") || error.contains("requires group size 32");
        assert!(said, "{bad:?}: {error}");
    }

    // If a tensor is missing, the model is not converted.
    let broken = variant(Dtype::Float32, |name, json| {
        if name == "config.json" {
            json["num_hidden_layers"] = json!(5);
        }
    });
    assert!(message(ModelFiles::open(broken.path())).contains("model.layers.4."));
    Ok(())
}
