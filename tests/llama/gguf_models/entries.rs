//! Metadata entries of GGUF files that describe an architecture. The loader applies an entry,
//! ignores it if it has no effect, or refuses it with an error that names it.

use anyhow::{Context, ensure};
use mlx_primitives::Array;
use mlx_primitives_llama::Llama;
use tempfile::TempDir;

use crate::support::gguf::{Entry, Gguf, HIDDEN, bytes_speaker};
use crate::support::{Checked, message};

/// Writes a file that `change` has changed, and loads its model.
fn load(change: impl FnOnce(&mut Gguf)) -> anyhow::Result<mlx_primitives::Result<Llama>> {
    let folder = TempDir::new()?;
    let path = folder.path().join("model.gguf");
    let mut file = bytes_speaker(&[(97, 98)]);
    change(&mut file);
    file.write(&path)?;
    Ok(Llama::load(&path))
}

/// The periods, the scale and the multiplier of the rotary embedding, for a file with these
/// entries. If `freqs` is given, all elements of the tensor `rope_freqs` have this value.
fn rope(entries: &[(&str, Entry)], freqs: Option<f32>) -> anyhow::Result<(Vec<f32>, f32, f32)> {
    let llama = load(|file| {
        for (key, value) in entries {
            file.set(&format!("llama.{key}"), value.clone());
        }
        if let Some(factor) = freqs {
            file.tensor("rope_freqs.weight", &[HIDDEN / 4], vec![factor; HIDDEN as usize / 4]);
        }
    })??;
    let rope = llama.config().rope_frequencies()?;
    Ok((rope.values(1), rope.scale(), rope.multiplier()))
}

/// YaRN as llama.cpp computes it, in double precision. `llama_context` chooses these parameters,
/// and `ggml_rope_yarn` computes the angles.
struct Yarn {
    factor: f64,
    original: f64,
    fast: f64,
    slow: f64,
    attention: f64,
}

impl Yarn {
    fn periods(&self) -> (Vec<f64>, f64) {
        let (dims, base) = (f64::from(HIDDEN / 2), 1e4f64);
        let dim = |turns: f64| {
            dims * (self.original / (turns * std::f64::consts::TAU)).ln() / (2.0 * base.ln())
        };
        let low = dim(self.fast).floor().max(0.0);
        let high = dim(self.slow).ceil().min(dims - 1.0);
        let periods = (0..HIDDEN / 4).map(|pair| {
            let turn = base.powf(-2.0 * f64::from(pair) / dims);
            let ramp = 1.0 - ((f64::from(pair) - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            1.0 / (turn / self.factor * (1.0 - ramp) + turn * ramp)
        });
        (periods.collect(), self.attention * (1.0 + 0.1 * self.factor.ln()))
    }
}

fn close(got: f32, expected: f64) -> bool {
    (f64::from(got) - expected).abs() <= 2e-6 * expected.abs()
}

#[test]
fn linear_scalings_are_llama_cpps() -> Checked {
    let plain = rope(&[], None)?;
    let text = |text: &str| Entry::from(text);
    // If there is no type, a factor means linear scaling. The loader reads the old name of an entry
    // only if the new one is missing.
    for (entries, scale) in [
        (vec![("rope.scaling.factor", 4f32.into())], 0.25),
        (vec![("rope.scale_linear", 2f32.into())], 0.5),
        (vec![("rope.scaling.factor", 4f32.into()), ("rope.scale_linear", 2f32.into())], 0.25),
        (vec![("rope.scaling.type", text("linear")), ("rope.scale_linear", 2f32.into())], 0.5),
        (vec![("rope.scaling.type", text("none")), ("rope.scaling.factor", 4f32.into())], 1.0),
        (vec![("rope.scaling.type", text("linear"))], 1.0),
        (vec![("rope.scaling.factor", 0f32.into())], 1.0),
        (vec![("rope.scaling.finetuned", true.into())], 1.0),
    ] {
        let (periods, found, multiplier) = rope(&entries, None)?;
        assert_eq!((found, multiplier), (scale, 1.0), "{entries:?}");
        assert_eq!(periods, plain.0, "{entries:?}");
    }
    // The tensor `rope_freqs` multiplies the periods, alone and together with a linear factor.
    for (entries, factor) in [
        (vec![], 3.0),
        (vec![("rope.scaling.factor", 4f32.into())], 12.0),
        (vec![("rope.scaling.type", text("none")), ("rope.scaling.factor", 4f32.into())], 3.0),
    ] {
        let (periods, scale, multiplier) = rope(&entries, Some(3.0))?;
        assert_eq!((scale, multiplier), (1.0, 1.0));
        for (got, plain) in periods.iter().zip(&plain.0) {
            ensure!(close(*got, f64::from(*plain) * factor), "{entries:?}: {got}, {plain}");
        }
    }
    Ok(())
}

#[test]
fn yarn_is_llama_cpps() -> Checked {
    let yarn = || ("rope.scaling.type", Entry::from("yarn"));
    let usual = Yarn { factor: 4.0, original: 256.0, fast: 32.0, slow: 1.0, attention: 1.0 };
    let key = |name: &'static str, value: f32| (name, Entry::from(value));
    for (entries, expected) in [
        // If the file has no original length, the loader uses the context length.
        (vec![yarn(), key("rope.scaling.factor", 4.0)], usual),
        (
            vec![
                yarn(),
                key("rope.scaling.factor", 4.0),
                ("rope.scaling.original_context_length", 64u32.into()),
                key("rope.scaling.yarn_beta_fast", 8.0),
                key("rope.scaling.yarn_beta_slow", 2.0),
                key("rope.scaling.yarn_ext_factor", 1.0),
                key("rope.scaling.attn_factor", 1.5),
            ],
            Yarn { factor: 4.0, original: 64.0, fast: 8.0, slow: 2.0, attention: 1.5 },
        ),
        (
            vec![
                yarn(),
                key("rope.scale_linear", 2.0),
                key("rope.scaling.attn_factor", 0.5),
                key("rope.scaling.yarn_attn_factor", 1.0),
                key("rope.scaling.yarn_log_multiplier", 0.0),
            ],
            Yarn { factor: 2.0, original: 256.0, fast: 32.0, slow: 1.0, attention: 0.5 },
        ),
    ] {
        let (periods, scale, multiplier) = rope(&entries, None)?;
        let (wanted, factor) = expected.periods();
        ensure!(scale == 1.0 && close(multiplier, factor), "{multiplier}, expected {factor}");
        for (got, wanted) in periods.iter().zip(&wanted) {
            ensure!(close(*got, *wanted), "{entries:?}: {periods:?}, expected {wanted:?}");
        }
    }
    Ok(())
}

/// llama.cpp allows biases for only some of the projections. The loader then uses zeros for the
/// others.
#[test]
fn missing_biases_are_zeros() -> Checked {
    let logits = |names: &[&str]| -> anyhow::Result<Vec<f32>> {
        let llama = load(|file| {
            for (name, rows) in [("attn_q", 64), ("attn_k", 32), ("attn_v", 32), ("ffn_up", 32)] {
                let value = 0.25 * f32::from(names.contains(&name));
                if names.contains(&name) || names.contains(&"zeros") {
                    let bias = vec![value; rows as usize];
                    file.tensor(&format!("blk.0.{name}.bias"), &[rows], bias);
                }
            }
            // Use random output matrices, so that attention and the feed-forward part change the
            // result.
            let mut rng = fastrand::Rng::with_seed(3);
            let mut random = |count: i32| (0..count).map(|_| rng.f32() - 0.5).collect();
            file.tensor("blk.0.attn_output.weight", &[64, 64], random(64 * 64));
            file.tensor("blk.0.ffn_down.weight", &[64, 32], random(64 * 32));
        })??;
        let ids = Array::from_slice(&[97i32, 98, 99], [1, 3])?;
        Ok(llama.forward(&ids, &mut llama.new_cache())?.to_vec::<f32>()?)
    };
    let without = logits(&[])?;
    assert_eq!(logits(&["zeros"])?, without);
    let some = logits(&["attn_q", "attn_v", "ffn_up"])?;
    assert_ne!(some, without);
    assert_eq!(logits(&["attn_q", "attn_v", "ffn_up", "zeros"])?, some);
    Ok(())
}

#[test]
fn entries_that_change_the_model_are_refused_by_name() -> Checked {
    for (key, value) in [
        ("llama.expert_count", 8u32.into()),
        ("llama.expert_shared_count", 1u32.into()),
        ("llama.attention.sliding_window", 32u32.into()),
        ("llama.logit_scale", 0.5f32.into()),
        ("llama.embedding_scale", 12f32.into()),
        ("llama.residual_scale", 0.22f32.into()),
        ("llama.attention.scale", 0.5f32.into()),
        ("llama.attn_logit_softcapping", 50f32.into()),
        ("llama.final_logit_softcapping", 30f32.into()),
        ("llama.attention.clamp_kqv", 8f32.into()),
        ("llama.attention.max_alibi_bias", 8f32.into()),
        ("llama.attention.causal", false.into()),
        ("llama.use_parallel_residual", true.into()),
        ("llama.hidden_activation", "gelu".into()),
        ("llama.rope.dimension_sections", Entry::I32s(vec![8, 4, 4, 0])),
        ("llama.rope.dimension_count", 16u32.into()),
        ("llama.attention.value_length", 16u32.into()),
        ("llama.rope.scaling.type", "longrope".into()),
        ("llama.rope.scaling.attn_factor", 2f32.into()),
        ("llama.rope.scaling.yarn_ext_factor", 0.5f32.into()),
        ("llama.rope.scaling.yarn_log_multiplier", 0.1f32.into()),
        ("llama.rope.scaling.alpha", 2f32.into()),
        ("llama.rope.freq_base", f32::NAN.into()),
        ("llama.nextn_predict_layers", 1u32.into()),
        ("llama.something_new", 1u32.into()),
        ("llama.attention.head_count_kv", Entry::I32s(vec![1, 2])),
        ("llama.block_count", "x\n".repeat(5000).as_str().into()),
        ("general.type", "adapter".into()),
        ("general.architecture", "gemma2".into()),
    ] {
        let text = message(load(|file| {
            file.set(key, value);
        })?);
        let own = key.rsplit('.').next().context("a name")?;
        ensure!(text.contains(own) && text.contains("model.gguf"), "{key}: {text}");
        ensure!(text.len() < 400 && !text.contains('\n'), "{key}: {text}");
    }
    Ok(())
}

#[test]
fn entries_that_change_nothing_are_accepted() -> Checked {
    for (key, value) in [
        ("llama.expert_count", 0u32.into()),
        ("llama.expert_used_count", 2u32.into()),
        ("llama.attention.sliding_window", 256u32.into()),
        ("llama.attention.sliding_window", 0u32.into()),
        ("llama.logit_scale", 1f32.into()),
        ("llama.attention.scale", (1.0 / (HIDDEN as f32 / 2.0).sqrt()).into()),
        ("llama.attention.causal", true.into()),
        ("llama.use_parallel_residual", false.into()),
        ("llama.vocab_size", 262u32.into()),
        ("llama.tensor_data_layout", "Meta AI original pth".into()),
        ("llama.attention.head_count_kv", Entry::I32s(vec![1, 1])),
        ("llama.feed_forward_length", Entry::I32s(vec![32])),
        ("llama.ssm.conv_kernel", 0u32.into()),
        ("llama.rope.dimension_sections", Entry::I32s(vec![0, 0, 0, 0])),
        ("general.type", "model".into()),
        ("general.size_label", "1B".into()),
        ("qwen2.expert_count", 8u32.into()),
    ] {
        load(|file| {
            file.set(key, value);
        })?
        .with_context(|| key.to_owned())?;
    }
    Ok(())
}

#[test]
fn types_are_refused_by_their_names() -> Checked {
    for (number, name) in [
        (9u32, "Q8_1"),
        (15, "Q8_K"),
        (16, "IQ2_XXS"),
        (19, "IQ1_S"),
        (21, "IQ3_S"),
        (34, "TQ1_0"),
        (39, "MXFP4"),
        (40, "NVFP4"),
        (77, "number 77"),
    ] {
        let folder = TempDir::new()?;
        let path = folder.path().join("model.gguf");
        let mut bytes = bytes_speaker(&[]).bytes();
        let name_of = b"token_embd.weight";
        let at = bytes.windows(name_of.len()).position(|it| it == name_of).context("a tensor")?;
        let at = at + name_of.len() + 4 + 16;
        bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
        std::fs::write(&path, bytes)?;
        let text = message(Llama::load(&path));
        ensure!(text.contains(&format!("got {name} in token_embd.weight")), "{text}");
    }
    Ok(())
}

#[test]
fn headers_that_contradict_themselves_are_refused() -> Checked {
    let folder = TempDir::new()?;
    let path = folder.path().join("model.gguf");
    let refusal = |bytes: &[u8]| -> anyhow::Result<String> {
        std::fs::write(&path, bytes)?;
        Ok(message(Llama::load(&path)))
    };
    let whole = bytes_speaker(&[]);
    let mut twice = whole.clone();
    twice.entries.push(("general.architecture".to_owned(), "qwen2".into()));
    let text = refusal(&twice.bytes())?;
    ensure!(text.contains("got general.architecture twice"), "{text}");
    let mut twice = whole.clone();
    twice.tensors.push(whole.tensors[0].clone());
    let text = refusal(&twice.bytes())?;
    ensure!(text.contains("got token_embd.weight twice"), "{text}");
    // Change the offset of the second tensor, so that it overlaps the first one.
    let mut bytes = whole.bytes();
    let name = b"output.weight";
    let at = bytes.windows(name.len()).position(|it| it == name).context("a tensor")?;
    let at = at + name.len() + 4 + 16 + 4;
    bytes[at..at + 8].copy_from_slice(&32u64.to_le_bytes());
    let text = refusal(&bytes)?;
    ensure!(text.contains("got output.weight within token_embd.weight"), "{text}");
    // The loader refuses wrong counts, a wrong byte order, and a vocabulary whose size differs from
    // the embedding's.
    for (at, expected) in [(8usize, "at most 65536 tensors"), (16, "at most 65536 entries")] {
        let mut bytes = whole.bytes();
        bytes[at..at + 8].copy_from_slice(&70_000u64.to_le_bytes());
        let text = refusal(&bytes)?;
        ensure!(text.contains(expected), "{text}");
    }
    let mut bytes = whole.bytes();
    bytes[4..8].copy_from_slice(&3u32.to_be_bytes());
    let text = refusal(&bytes)?;
    ensure!(text.contains("big-endian"), "{text}");
    let mut fewer = whole.clone();
    fewer.set("tokenizer.ggml.tokens", Entry::Texts(vec!["a".to_owned()]));
    let text = refusal(&fewer.bytes())?;
    ensure!(text.contains("a token for each of 262 embeddings, got 1"), "{text}");
    Ok(())
}
