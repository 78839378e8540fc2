//! Low-rank adapters of mlx-lm: the files in `tests/fixtures/adapters`, which `conversions.py`
//! writes. Logits and fused weights must equal mlx-lm's. Some adapters must be refused.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use mlx_primitives::device::{Device, with_device};
use mlx_primitives::ops::Lora;
use mlx_primitives::{Array, Dtype, io, random};
use mlx_primitives_llama::{Adapters, Checkpoint, ModelFiles, Options};
use serde_json::{Value, json};

use crate::conversions::{assert_logits, digests, last_logits};
use crate::support::models::{DEMO, conversions as fixture};
use crate::support::{Checked, message, simulated};

pub const ADAPTERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/adapters");

#[test(simulated = once)]
fn adapted_logits_equal_mlx_lms() -> Checked {
    let fixture = fixture();
    let adapted = &fixture["adapted"];
    let llama = Checkpoint::demo()?.llama;
    let adapters = Adapters::load(ADAPTERS, &llama)?;
    assert_eq!((adapters.len(), adapters.is_empty()), (6, false));
    assert_eq!(adapters.iter().next().unwrap().0, "model.layers.2.mlp.down_proj");

    let plain = last_logits(&llama, &fixture)?;
    assert_logits(&plain, &adapted["plain"], 2e-4, "without");
    let merged = last_logits(&llama.merged(&adapters)?, &fixture)?;
    let beside = last_logits(&llama.adapted(&adapters)?, &fixture)?;
    assert_logits(&beside, &adapted["logits"], 2e-4, "beside");
    assert_logits(&merged, &adapted["logits"], 2e-4, "merged");
    let moved = plain.iter().zip(&beside).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(moved > 0.1, "the adapters change logits by {moved}");
    Ok(())
}

#[test(simulated = once)]
fn adapters_beside_packed_and_short_weights_equal_mlx_lms() -> Checked {
    let fixture = fixture();
    // The tolerances are the same as for these models without adapters.
    for (entry, tolerance) in [(0, 2e-4), (2, 0.05), (3, 0.4), (4, 0.4)] {
        let entry = &fixture["quantized"][entry];
        let format = &entry["quantization"];
        let number = |name: &str| format[name].as_i64().unwrap() as i32;
        let mut to =
            mlx_primitives_llama::Quantization::affine(number("group_size"), number("bits"));
        if format["mode"] == "mxfp4" {
            to.mode = mlx_primitives::ops::QuantizedMode::Mxfp4;
        }
        let all = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];
        let dtype = *all.iter().find(|dtype| entry["dtype"] == dtype.name()).unwrap();
        let parent = tempfile::tempdir()?;
        let directory = parent.path().join("packed");
        // mlx-lm quantized its weights on a CPU. There, MLX rounds ties to even. On a GPU, it
        // rounds ties away from zero.
        with_device(Device::Cpu, || {
            ModelFiles::open(DEMO)?.quantized(to, Some(dtype), |_, _| {})?.save(&directory)
        })?;
        let llama = Checkpoint::load(&directory)?.llama;
        let llama = { Adapters::load(ADAPTERS, &llama).map(|a| llama.adapted(&a)) }??;
        let logits = last_logits(&llama, &fixture)?;
        assert_logits(&logits, &entry["adapted"], tolerance, &format.to_string());
    }
    Ok(())
}

/// A model with adapters generates the tokens of the merged model, and its score is mlx-lm's.
#[test(simulated = once)]
fn an_adapted_model_scores_and_generates_adapted() -> Checked {
    let fixture = fixture();
    let mut demo = Checkpoint::demo()?;
    let prompt: Vec<u32> = serde_json::from_value(fixture["prompt"].clone())?;
    let adapters = Adapters::load(ADAPTERS, &demo.llama)?;
    let merged = demo.llama.merged(&adapters)?;
    demo.llama = demo.llama.adapted(&adapters)?;
    let options = Options { max_tokens: if simulated() { 3 } else { 24 }, ..Options::default() };
    let tokens: Result<Vec<u32>, _> = demo.llama.generate(&prompt, &options)?.collect();
    let expected: Result<Vec<u32>, _> = merged.generate(&prompt, &options)?.collect();
    assert_eq!(tokens?, expected?);
    if simulated() {
        return Ok(());
    }
    let tokens = demo.tokenizer.encode(fixture["story"].as_str().unwrap())?;
    let score = demo.llama.score(&tokens, |_| {})?;
    let theirs = fixture["adapted"]["perplexity"]["mean_nll"].as_f64().unwrap();
    assert!((score.mean_nll - theirs).abs() < 1e-5, "{score:?} {theirs}");
    // Quantizing a model keeps its adapters.
    let packed = demo.llama.quantized(mlx_primitives_llama::Quantization::affine(32, 8))?;
    let score = packed.score(&tokens, |_| {})?;
    assert!((score.mean_nll - theirs).abs() < 0.05, "{score:?} {theirs}");
    Ok(())
}

/// For float weights and for packed weights, each tensor equals the tensor that `mlx_lm.fuse`
/// writes on a CPU, bit for bit.
#[test(simulated = once)]
fn fused_checkpoints_are_mlx_lms() -> Checked {
    with_device(Device::Cpu, fused_checkpoints)
}

fn fused_checkpoints() -> Checked {
    let fixture = fixture();
    let parent = tempfile::tempdir()?;
    let packed = parent.path().join("packed");
    let four_bits = mlx_primitives_llama::Quantization::affine(32, 4);
    ModelFiles::open(DEMO)?.quantized(four_bits, None, |_, _| {})?.save(&packed)?;
    for (base, changed) in [(Path::new(DEMO), "fused"), (&packed, "fused_packed")] {
        let out = parent.path().join(changed);
        let files = ModelFiles::open(base)?;
        let adapters = Adapters::load(ADAPTERS, &files.llama()?)?;
        let mut last = (0, 1);
        files.fused(&adapters, false, |done, total| last = (done, total))?.save(&out)?;
        assert_eq!(last.0, last.1);
        let (before, after) = (digests(base), digests(&out));
        let theirs = fixture["adapted"][changed].as_object().unwrap();
        assert_eq!(after.len(), before.len());
        for (name, tensor) in &after {
            assert_eq!(tensor, theirs.get(name).unwrap_or(&before[name]), "{changed} {name}");
        }
        assert!(Checkpoint::load(&out).is_ok());
    }

    // With dequantization, the result is the dequantized weights plus the update.
    let out = parent.path().join("floats");
    let files = ModelFiles::open(&packed)?;
    let adapters = Adapters::load(ADAPTERS, &files.llama()?)?;
    files.fused(&adapters, true, |_, _| {})?.save(&out)?;
    let config: Value = serde_json::from_slice(&fs::read(out.join("config.json"))?)?;
    assert!(config.get("quantization").is_none() && config.get("quantization_config").is_none());
    let floats = last_logits(&Checkpoint::load(&out)?.llama, &fixture)?;
    assert_logits(&floats, &fixture["quantized"][0]["adapted"], 2e-4, "dequantized");
    Ok(())
}

#[test(simulated = once)]
fn saved_adapters_load_as_they_were() -> Checked {
    let llama = Checkpoint::demo()?.llama;
    let directory = tempfile::tempdir()?;
    let update = |name: &str, scale: f32| -> anyhow::Result<(String, Lora)> {
        let [outputs, inputs] = llama.projection_shape(name)?;
        let a = random::normal::<f32>(&[3, inputs], None)?;
        let b = random::normal::<f32>(&[outputs, 3], None)?;
        Ok((name.to_owned(), Lora::new(a, b, scale)?))
    };
    let names = ["model.layers.1.self_attn.o_proj", "model.layers.3.mlp.gate_proj"];
    let adapters: Adapters =
        names.iter().map(|name| update(name, 1.5)).collect::<anyhow::Result<_>>()?;
    adapters.save(directory.path(), &llama)?;
    let config: Value =
        serde_json::from_slice(&fs::read(directory.path().join("adapter_config.json"))?)?;
    assert_eq!(
        config,
        json!({"fine_tune_type": "lora", "num_layers": 3, "lora_parameters": {
            "rank": 3, "scale": 1.5, "dropout": 0.0, "keys": ["mlp.gate_proj", "self_attn.o_proj"],
        }})
    );
    let loaded = Adapters::load(directory.path(), &llama)?;
    assert_eq!(loaded.iter().map(|(name, _)| name).collect::<Vec<_>>(), names);
    for (name, update) in loaded.iter() {
        let before = adapters.get(name).unwrap();
        assert_eq!(update.scale(), 1.5);
        for (x, y) in [(update.a(), before.a()), (update.b(), before.b())] {
            assert_eq!((x.shape(), x.to_vec::<f32>()?), (y.shape(), y.to_vec::<f32>()?));
        }
    }

    assert!(message(Adapters::default().save(directory.path(), &llama)).contains("got none"));
    let mixed: Adapters = [update(names[0], 1.0)?, update(names[1], 2.0)?].into_iter().collect();
    assert!(message(mixed.save(directory.path(), &llama)).contains("one rank, scale and kind"));
    let outputs = llama.projection_shape(names[0])?[0];
    let scaled = update(names[0], 1.0)?.1.with_magnitude(Array::ones::<f32>([outputs])?)?;
    let scaled: Adapters =
        [(names[0].to_owned(), scaled), update(names[1], 1.0)?].into_iter().collect();
    assert!(message(scaled.save(directory.path(), &llama)).contains("one rank, scale and kind"));
    let unknown: Adapters =
        [("model.norm".to_owned(), Lora::initial([8, 8], 2, 1.0)?)].into_iter().collect();
    assert!(message(unknown.save(directory.path(), &llama)).contains("model.norm"));
    let large: Adapters =
        [(names[0].to_owned(), Lora::initial([8, 8], 2, 1.0)?)].into_iter().collect();
    let tokens = Array::from_slice(&[1u32, 2], (1, 2))?;
    for (adapters, said) in [(&unknown, "model.norm"), (&large, "got a of [2, 8]")] {
        let refused = llama.forward_adapted(&tokens, &mut llama.new_cache(), Some(adapters));
        assert!(message(refused).contains(said), "{said}");
    }
    Ok(())
}

type Tensors = HashMap<String, Array>;
type Edit<'a> = &'a dyn Fn(&mut Tensors);

/// Copies the fixture's adapters. `config` edits the configuration, and `tensors` edits the
/// weights.
fn edited(config: impl Fn(&mut Value), tensors: impl Fn(&mut Tensors)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let from = PathBuf::from(ADAPTERS);
    let mut json: Value =
        serde_json::from_slice(&fs::read(from.join("adapter_config.json")).unwrap()).unwrap();
    config(&mut json);
    fs::write(directory.path().join("adapter_config.json"), json.to_string()).unwrap();
    let mut arrays = io::load_safetensors(from.join("adapters.safetensors")).unwrap().arrays;
    tensors(&mut arrays);
    let named = arrays.iter().map(|(name, array)| (name.as_str(), array));
    io::save_safetensors(directory.path().join("adapters.safetensors"), named, []).unwrap();
    directory
}

#[test(simulated = once)]
fn adapters_that_do_not_fit_are_refused_by_file_and_tensor() -> Checked {
    let llama = Checkpoint::demo()?.llama;
    let error = |directory: &Path| message(Adapters::load(directory, &llama));
    let q = "model.layers.3.self_attn.q_proj";

    for (key, value, part) in [
        ("fine_tune_type", json!("dora"), "a tensor model.layers.2.mlp.down_proj.m, got none"),
        ("fine_tune_type", json!("full"), "got \"full\""),
        ("fine_tune_type", json!(3), "got 3"),
        ("peft_type", json!("IA3"), "peft_type LORA"),
        ("num_layers", json!("two"), "num_layers"),
        ("num_layers", json!(1), "model.layers.2."),
        ("lora_parameters", json!(null), "lora_parameters"),
        ("lora_parameters", json!({"rank": 2, "alpha": 16}), "scale"),
        ("lora_parameters", json!({"rank": 0, "scale": 1}), "a rank above 0, got 0"),
        ("lora_parameters", json!({"rank": -1, "scale": 1}), "a rank above 0, got -1"),
        ("lora_parameters", json!({"rank": 2, "scale": 1e300}), "a finite scale"),
        ("lora_parameters", json!({"rank": 3, "scale": 1}), "of shape"),
        ("lora_parameters", json!({"rank": 2, "scale": 1, "keys": []}), "got model.layers."),
        ("lora_parameters", json!({"rank": 2, "scale": 1, "keys": ["mlp"]}), "got model.layers."),
    ] {
        let directory = edited(|config| config[key] = value.clone(), |_| {});
        let error = error(directory.path());
        let file = if part.contains("model.layers.") || part.contains("shape") {
            "adapters.safetensors: [adapters] expected"
        } else {
            "adapter_config.json: [adapters] expected"
        };
        assert!(error.contains(file) && error.contains(part), "{key} {value}: {error}");
    }

    let a = format!("{q}.lora_a");
    let cases: [(Edit, String); 5] = [
        (&|t| drop(t.remove(&a)), format!("a tensor {a}, got none")),
        (&|t| drop(t.remove(&format!("{q}.lora_b"))), format!("a tensor {q}.lora_b, got none")),
        (
            &|t| *t.get_mut(&a).unwrap() = Array::zeros::<f32>(&[2, 128]).unwrap(),
            format!("{a} of shape [128, 2]"),
        ),
        (
            &|t| *t.get_mut(&a).unwrap() = Array::zeros::<i32>(&[128, 2]).unwrap(),
            "int32".to_owned(),
        ),
        (
            &|t| drop(t.insert(format!("{q}.m"), Array::zeros::<f32>(&[128]).unwrap())),
            format!("got {q}.m"),
        ),
    ];
    for (edit, part) in cases {
        let error = error(edited(|_| {}, edit).path());
        assert!(error.contains("adapters.safetensors") && error.contains(&part), "{error}");
    }

    // The configuration may say that adapters are on all layers, and may list the adapted modules.
    for (layers, keys) in [
        (-1, json!(["self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"])),
        (0, json!(null)),
        (100, json!(null)),
    ] {
        let directory = edited(
            |config| {
                config["num_layers"] = json!(layers);
                config["lora_parameters"]["keys"] = keys.clone();
            },
            |_| {},
        );
        assert_eq!(Adapters::load(directory.path(), &llama)?.len(), 6);
    }

    let empty = tempfile::tempdir()?;
    assert!(error(empty.path()).contains("adapter_config.json"));
    fs::copy(
        Path::new(ADAPTERS).join("adapter_config.json"),
        empty.path().join("adapter_config.json"),
    )?;
    assert!(error(empty.path()).contains("adapters.safetensors"));
    fs::write(empty.path().join("adapters.safetensors"), b"half a file")?;
    assert!(error(empty.path()).contains("adapters.safetensors"));
    fs::write(empty.path().join("adapter_config.json"), "{")?;
    assert!(error(empty.path()).contains("adapter_config.json"));

    let misfit = Lora::initial([8, 8], 2, 1.0)?;
    let misfit: Adapters = [(q.to_owned(), misfit)].into_iter().collect();
    assert!(message(llama.adapted(&misfit)).contains(q));
    Ok(())
}
