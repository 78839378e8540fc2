//! Fuzzes folders of adapters for a small model.

use std::fs;
use std::path::Path;

use fastrand::Rng;
use mlx_primitives::ops::Lora;
use mlx_primitives::{Array, Dtype, io};
use mlx_primitives_llama::{Adapters, Llama};
use serde_json::{Value, json};

use super::case::{Case, Fuzzer, Run};
use super::mutation::{self, once_in};
use super::prompt_cache::model;

pub const FUZZER: Fuzzer = Fuzzer { name: "adapters", allowance: 16 << 20, prepare };

const PATHS: [&str; 4] = [
    "model.layers.0.self_attn.q_proj",
    "model.layers.1.self_attn.v_proj",
    "model.layers.1.mlp.down_proj",
    "model.layers.0.mlp.up_proj",
];

fn prepare(folder: &Path) -> anyhow::Result<Run> {
    let llama = model(Dtype::Float32)?;
    let updates = PATHS.map(|path| {
        let shape = llama.projection_shape(path)?;
        let update = Lora::initial(shape, 2, 3.0)?;
        let update = update.with_magnitude(Array::ones::<f32>([shape[0]])?)?;
        Ok((path.to_owned(), update))
    });
    let adapters: Adapters = updates.into_iter().collect::<mlx_primitives::Result<_>>()?;
    adapters.save(folder, &llama)?;
    let (config, tensors) =
        (folder.join("adapter_config.json"), folder.join("adapters.safetensors"));
    let valid_config: Value = serde_json::from_slice(&fs::read(&config)?)?;
    let valid_tensors = fs::read(&tensors)?;
    let folder = folder.to_owned();
    // PEFT's files have another name, other names of tensors, and transposed matrices.
    let of_peft = folder.join("adapter_model.safetensors");
    let peft_config = json!({
        "peft_type": "LORA", "r": 2, "lora_alpha": 6.0, "use_rslora": false, "bias": "none",
        "target_modules": ["q_proj", "v_proj", "down_proj", "up_proj"], "modules_to_save": null,
        "rank_pattern": {"up_proj": 2}, "alpha_pattern": {r"layers\.\d+\.mlp\..*": 3.0, "q_proj": 6},
        "use_dora": false, "init_lora_weights": true,
    });
    let stored = io::load_safetensors(&tensors)?.arrays;
    let of_lora = stored.iter().filter(|(name, _)| !name.ends_with(".m"));
    let renamed = of_lora.map(|(name, array)| {
        let name = name.replace(".lora_a", ".lora_A.weight").replace(".lora_b", ".lora_B.weight");
        Ok((format!("base_model.model.{name}"), array.t()?.contiguous()?))
    });
    let renamed: Vec<(String, Array)> = renamed.collect::<mlx_primitives::Result<_>>()?;
    io::save_safetensors(&of_peft, renamed.iter().map(|(name, a)| (name.as_str(), a)), [])?;
    let peft_tensors = fs::read(&of_peft)?;
    Ok(Box::new(move |rng| {
        let is_peft = once_in(rng, 2);
        let (valid_config, valid_tensors, tensors) = match is_peft {
            true => (&peft_config, &peft_tensors, &of_peft),
            false => (&valid_config, &valid_tensors, &tensors),
        };
        let (mut text, mut file) = (valid_config.to_string(), valid_tensors.clone());
        match rng.u8(..5) {
            0 | 1 => text = mutation::config(rng, valid_config),
            2 | 3 => file = mutation::safetensors(rng, valid_tensors),
            _ => {
                text = mutation::config(rng, valid_config);
                file = mutation::safetensors(rng, valid_tensors);
            }
        }
        fs::write(&config, &text).expect("a file is written");
        fs::write(tensors, &file).expect("a file is written");
        let adapters = Adapters::load(&folder, &llama);
        if let Ok(adapters) = &adapters {
            run(rng, &llama, adapters);
        }
        Case::new(text.len() + file.len(), &adapters)
    }))
}

/// Runs a model with the updates, either separate from its weights or merged into them.
fn run(rng: &mut Rng, llama: &Llama, adapters: &Adapters) {
    let updated = match once_in(rng, 2) {
        true => llama.merged(adapters).expect("a merged model"),
        false => model(Dtype::Float32).and_then(|llama| llama.adapted(adapters)).expect("a model"),
    };
    let ids = Array::from_slice(&[1i32, 2], [1, 2]).expect("tokens");
    let logits = updated.forward(&ids, &mut updated.new_cache()).expect("logits");
    assert_eq!(logits.to_vec::<f32>().expect("numbers").len(), 32);
}
