//! The estimate of a training step's memory differs from the measured memory by at most a fifth.

use std::fs;

use mlx_primitives::{Dtype, memory};
use mlx_primitives_llama::train::{
    Adafactor, Adam, Dataset, Kind, Optimizer, Schedule, Settings, Trainable, Trainer,
};
use mlx_primitives_llama::{Checkpoint, Config, Llama, Quantization};
use serde_json::json;
use tempfile::TempDir;

use crate::support::Checked;

#[derive(Clone, Debug)]
struct Case {
    layers: i32,
    inner: i32,
    vocab: i32,
    kv_heads: i32,
    columns: usize,
    rows: usize,
    dtype: Dtype,
    bits: i32,
    kind: Kind,
    recompute: bool,
}

#[test(alone, simulated = never, seconds = 300)]
fn steps_take_the_estimated_memory() -> Checked {
    let folder = TempDir::new()?;
    let demo = Checkpoint::demo()?;
    let path = folder.path().join("train.jsonl");
    let line = format!("{{\"text\": \"{}\"}}\n", "The wind is north. ".repeat(99));
    fs::write(&path, line.repeat(4))?;
    let data = Dataset::load(&path, &demo, None, false)?;
    let lora = |dropout, dora| Kind::Lora { rank: 8, scale: 2.0, keys: None, dropout, dora };
    let base = Case {
        layers: 3,
        inner: 704,
        vocab: 512,
        kv_heads: 2,
        columns: 256,
        rows: 2,
        dtype: Dtype::Float32,
        bits: 0,
        kind: lora(0.0, false),
        recompute: false,
    };
    let packed = Case { dtype: Dtype::Bfloat16, bits: 4, ..base.clone() };
    let full = Case { kind: Kind::Full, ..base.clone() };
    for case in [
        base.clone(),
        Case { layers: 6, columns: 128, ..base.clone() },
        Case { rows: 4, inner: 352, kv_heads: 4, ..base.clone() },
        Case { vocab: 16384, layers: 1, ..base.clone() },
        Case { vocab: 65536, layers: 1, ..packed.clone() },
        Case { vocab: 65536, layers: 1, ..base.clone() },
        Case { recompute: true, layers: 5, ..packed.clone() },
        packed,
        Case { kind: lora(0.0, true), ..base.clone() },
        Case { kind: lora(0.1, false), ..base },
        Case { dtype: Dtype::Bfloat16, ..full.clone() },
        full,
    ] {
        let config = json!({
            "model_type": "llama", "hidden_size": 256, "num_hidden_layers": case.layers,
            "intermediate_size": case.inner, "num_attention_heads": 4,
            "num_key_value_heads": case.kv_heads, "rms_norm_eps": 1e-5, "vocab_size": case.vocab,
        });
        let to = (case.bits > 0).then(|| Quantization::affine(64, case.bits));
        let llama = Llama::random(Config::parse(&config.to_string())?, case.dtype, to, 1)?;
        let full = case.kind == Kind::Full;
        let settings = Settings {
            optimizer: match full {
                true => Optimizer::Adafactor(Adafactor::default()),
                false => Optimizer::Adam(Adam::default()),
            },
            schedule: Schedule::Constant(1e-4),
            batch_size: case.rows,
            accumulation: if full { 2 } else { 1 },
            max_length: case.columns + 1,
            max_norm: None,
            recompute: case.recompute,
            seed: 1,
        };
        let trainable = Trainable::new(&llama, case.kind.clone(), -1)?;
        let columns = data.columns(case.rows, settings.max_length);
        assert_eq!(columns, case.columns);
        let estimate = trainable.estimate(&llama, &settings, columns)?;
        assert_eq!(estimate.weights, llama.nbytes() as u64);
        memory::clear_cache()?; // whose buffers may be larger than what is asked for
        let empty = memory::active_memory();
        let mut trainer = Trainer::new(&llama, &data, trainable, settings)?;
        let before = memory::active_memory();
        // If steps accumulate gradients, the trainer allocates the sums in the first step, which
        // has not run yet, so add their bytes. Small arrays take more memory than their bytes.
        let sums: usize = trainer.parameters().values().map(|array| array.nbytes()).sum();
        let state = (before - empty + if full { sums } else { 0 }) as f64 / estimate.state as f64;
        assert!((0.95..1.15).contains(&state), "{case:?}: {state} of the state");
        memory::reset_peak_memory();
        trainer.step()?;
        let most = memory::peak_memory() - before;
        let share = most as f64 / estimate.step as f64;
        assert!(
            (1.0 / 1.2..1.2).contains(&share),
            "{case:?}: {most} bytes, {share} of the estimate"
        );
    }
    Ok(())
}
