//! Counts the dispatches of a decoder layer's backward pass.

use std::collections::BTreeMap;
use std::fs;

use mlx_primitives::{Dtype, graph};
use mlx_primitives_llama::train::{
    Adam, Dataset, Kind, Optimizer, Schedule, Settings, Trainable, Trainer,
};
use mlx_primitives_llama::{Checkpoint, Config, Llama, Quantization};
use serde_json::json;
use tempfile::TempDir;

use crate::support::{Checked, simulated};

type Nodes = BTreeMap<String, i64>;

/// Counts the dispatches of a training step for a model with this number of layers. The keys are
/// the names of nodes. The first map is for the forward pass, and the second includes the backward
/// pass. The last number counts the trained arrays.
fn nodes(layers: i32, bits: i32, dtype: Dtype, kind: &Kind) -> Checked<([Nodes; 2], i64)> {
    let folder = TempDir::new()?;
    let demo = Checkpoint::demo()?;
    let path = folder.path().join("train.jsonl");
    let line = format!("{{\"text\": \"{}\"}}\n", "The wind is north. ".repeat(99));
    fs::write(&path, line.repeat(2))?;
    let data = Dataset::load(&path, &demo, None, false)?;
    let config = json!({
        "model_type": "llama", "hidden_size": 256, "num_hidden_layers": layers,
        "intermediate_size": 704, "num_attention_heads": 4, "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5, "vocab_size": 512,
    });
    let to = (bits > 0).then(|| Quantization::affine(64, bits));
    let llama = Llama::random(Config::parse(&config.to_string())?, dtype, to, 1)?;
    let settings = Settings {
        optimizer: Optimizer::Adam(Adam::default()),
        schedule: Schedule::Constant(1e-4),
        batch_size: 2,
        accumulation: 1,
        max_length: 129,
        max_norm: None,
        recompute: false,
        seed: 1,
    };
    let trainable = Trainable::new(&llama, kind.clone(), -1)?;
    let mut trainer = Trainer::new(&llama, &data, trainable, settings)?;
    let (loss, gradients, _) = trainer.gradients()?;
    let count = |nodes: Vec<graph::Node>| {
        let mut all = BTreeMap::new();
        for node in nodes.iter().filter(|node| node.dispatches > 0) {
            let whose = if node.ours { "our " } else { "" };
            *all.entry(format!("{whose}{}", node.name)).or_default() += i64::from(node.dispatches);
        }
        all
    };
    let forward = count(graph::nodes([&loss])?);
    let both = count(graph::nodes([&loss].into_iter().chain(gradients.values()))?);
    Ok(([forward, both], i64::try_from(gradients.len())?))
}

/// The counts are for a GPU, where views are free. With 16-bit weights, the trainer keeps its
/// parameters in float32, so it converts each gradient at the end. These conversions are counted
/// separately. The number after each bound is the count for mlx-lm's layer in MLX 0.32.4's CPU
/// graph, which has no fused norms and attention.
#[test(simulated = once)]
fn a_layer_takes_few_dispatches_backward() -> Checked {
    if !simulated() {
        return Ok(()); // a CPU's graph has products that no GPU runs
    }
    let lora = |keys: Option<[&str; 2]>, dora| Kind::Lora {
        rank: 8,
        scale: 2.0,
        keys: keys.map(|keys| keys.map(|key| format!("self_attn.{key}")).to_vec()),
        dropout: 0.0,
        dora,
    };
    let (all, two) = (lora(None, false), lora(Some(["q_proj", "v_proj"]), false));
    for (kind, bits, dtype, most, of_mlx) in [
        (&all, 4, Dtype::Bfloat16, 64, 139),
        (&all, 0, Dtype::Bfloat16, 64, 139),
        (&all, 0, Dtype::Float32, 64, 121),
        (&two, 4, Dtype::Bfloat16, 33, 99),
        (&lora(None, true), 4, Dtype::Bfloat16, 92, 174),
        (&Kind::Full, 0, Dtype::Float32, 20, 90),
        (&Kind::Full, 0, Dtype::Bfloat16, 20, 94),
    ] {
        let (two, trained) = nodes(2, bits, dtype, kind)?;
        let (three, more_trained) = nodes(3, bits, dtype, kind)?;
        let backward = |[forward, both]: &[Nodes; 2], name: Option<&str>| {
            let sum = |nodes: &Nodes| -> i64 {
                nodes
                    .iter()
                    .filter(|node| name.is_none_or(|name| name == node.0))
                    .map(|it| it.1)
                    .sum()
            };
            sum(both) - sum(forward)
        };
        let layer = |name| backward(&three, name) - backward(&two, name);
        let casts = layer(Some("AsType"));
        let expected = if dtype == Dtype::Float32 { 0 } else { more_trained - trained };
        let kernels = layer(None) - casts;
        assert!(
            casts == expected && kernels <= most && layer(None) < of_mlx,
            "{kind:?}, {bits} bits, {dtype}: {kernels} and {casts} casts\n{three:?}"
        );
    }
    Ok(())
}
