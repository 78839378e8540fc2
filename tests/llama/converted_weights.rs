//! Models whose weights are converted to another type when they are loaded.

use std::fs;
use std::path::Path;

use mlx_primitives::ops::LinearWeight;
use mlx_primitives::{Array, Dtype, Result, io};
use mlx_primitives_llama::base::Weights;
use mlx_primitives_llama::{Adapters, Checkpoint, Config, Llama, Options, PromptCache};

use crate::support::models::{DEMO, checkpoints as root, variant};
use crate::support::{Checked, message, simulated};

const FLOATS: [Dtype; 3] = [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16];

fn converted(path: &Path, dtype: Dtype) -> Result<Llama> {
    Llama::load_part(path, |_, weights| weights.converted_to(dtype), |_| {})
}

/// The logits of a prompt.
fn logits(llama: &Llama) -> Checked<Vec<f32>> {
    let prompt = Array::from_slice(&[3u32, 1, 4, 1, 5, 9, 2, 6], [1, 8])?;
    let logits = llama.forward(&prompt, &mut llama.new_cache())?;
    assert_eq!(logits.dtype(), llama.dtype());
    Ok(logits.astype(Dtype::Float32)?.to_vec::<f32>()?)
}

/// The relative distance of two vectors.
fn distance(a: &[f32], b: &[f32]) -> f32 {
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

/// The model of a folder whose floats were all converted before the model took them.
fn by_hand(folder: &Path, dtype: Dtype) -> Checked<Llama> {
    let config = Config::parse(&fs::read_to_string(folder.join("config.json"))?)?;
    let mut arrays = io::load_safetensors(folder.join("model.safetensors"))?.arrays;
    for array in arrays.values_mut().filter(|array| FLOATS.contains(&array.dtype())) {
        *array = array.astype(dtype)?;
    }
    Ok(Llama::new(config, Weights::new(arrays))?)
}

/// Norms, biases, plain matrices, and the scales and biases of packed weights are converted.
#[test]
fn every_float_of_a_folder_is_converted() -> Checked {
    let names = [
        "qwen2-q4-g32",
        "llama-f32-biases",
        "llama-f16-mha-untied",
        "llama-nvfp4-mixed",
        "gemma-f32",
    ];
    for name in names.into_iter().take(if simulated() { 2 } else { names.len() }) {
        let folder = root().join(name);
        for dtype in FLOATS {
            let (llama, expected) = (converted(&folder, dtype)?, by_hand(&folder, dtype)?);
            assert_eq!((llama.dtype(), llama.nbytes()), (dtype, expected.nbytes()), "{name}");
            // The rows of an embedding in nvfp4 have the type bfloat16, as in MLX, unless the model
            // is converted to another type.
            if expected.dtype() != dtype {
                assert_eq!(name, "llama-nvfp4-mixed");
                continue;
            }
            let (own, theirs) = (logits(&llama)?, logits(&expected)?);
            assert!(own.iter().all(|logit| logit.is_finite()), "{name} {dtype}");
            assert_eq!(own, theirs, "{name} {dtype}");
            // Bfloat16 has eight significant bits, and float16 eleven. The logits of these random
            // models differ by a few units in the last of them.
            let as_stored = logits(&Llama::load(&folder)?)?;
            assert!(distance(&own, &as_stored) < 0.05, "{name} {dtype}");
        }
    }
    Ok(())
}

/// A GGUF file has norms of float32, and scales and plain weights of float16. K-quants have no
/// float tensors except norms.
#[test]
fn gguf_files_have_activations_of_the_type() -> Checked {
    let fixtures = crate::support::root().join("tests/fixtures");
    let files = ["gguf-q4_1", "gguf-qwen2-q8_0", "gguf-f16"]
        .map(|name| root().join(name).join("model.gguf"));
    for file in files.into_iter().chain([fixtures.join("gguf/q4_k_m.gguf")]) {
        let name = file.display();
        let stored = Llama::load(&file)?;
        assert_eq!(stored.dtype(), Dtype::Float32, "{name}");
        // The scales of Q8_0 determine the biases, and so do converted scales.
        let centered = |llama: &Llama| {
            llama.weights().values().any(|weight| match weight {
                LinearWeight::Quantized(packed) => packed.has_centered_codes(),
                LinearWeight::Plain(_) => false,
            })
        };
        let of_q8_0 = file.to_string_lossy().contains("q8_0");
        assert_eq!(centered(&stored), of_q8_0, "{name}");
        for (dtype, tolerance) in [(Dtype::Float16, 0.01), (Dtype::Bfloat16, 0.05)] {
            let llama = converted(&file, dtype)?;
            assert_eq!(centered(&llama), of_q8_0, "{name} {dtype}");
            assert_eq!(llama.dtype(), dtype, "{name}");
            assert!(llama.nbytes() < stored.nbytes(), "{name} {dtype}");
            let far = distance(&logits(&llama)?, &logits(&stored)?);
            assert!(far > 0.0 && far < tolerance, "{name} {dtype}: {far}");
        }
    }
    Ok(())
}

/// A converted model is the model of a folder with weights of that type: it takes the prompt caches
/// of that model, and no others.
#[test]
fn prompt_caches_belong_to_models_of_one_type() -> Checked {
    let parent = tempfile::tempdir()?;
    let cache = parent.path().join("cache.safetensors");
    let folder = variant(Dtype::Bfloat16, |_, _| {});
    let options = Options { max_tokens: 2, ..Options::default() };
    let llama = Llama::load(folder.path())?;
    let mut generation = llama.generate(&[1, 2, 3], &options)?;
    generation.by_ref().collect::<Result<Vec<_>>>()?;
    generation.into_prompt_cache()?.save(&cache)?;
    PromptCache::load(&cache, &converted(Path::new(DEMO), Dtype::Bfloat16)?)?;
    for other in [Llama::load(DEMO)?, converted(Path::new(DEMO), Dtype::Float16)?] {
        let said = message(PromptCache::load(&cache, &other));
        assert!(said.contains("expected a cache of model"), "{said}");
    }
    Ok(())
}

#[test]
fn the_demo_and_adapters_run_in_another_type() -> Checked {
    let to = |_: &Config, weights: Weights| weights.converted_to(Dtype::Float16);
    let Checkpoint { llama, .. } = Checkpoint::demo_part(to)?;
    assert_eq!(llama.dtype(), Dtype::Float16);
    let adapters = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/adapters");
    let adapted = |llama: Llama| -> Checked<Vec<f32>> {
        let adapters = Adapters::load(adapters, &llama)?;
        logits(&llama.adapted(&adapters)?)
    };
    let far = distance(&adapted(llama)?, &adapted(Checkpoint::demo()?.llama)?);
    assert!(far > 0.0 && far < 0.01, "{far}");
    Ok(())
}

#[test]
fn other_types_are_refused() {
    let said = message(converted(Path::new(DEMO), Dtype::Uint32));
    assert!(said.contains("[dtype] expected float32, float16 or bfloat16, got uint32"), "{said}");
}
