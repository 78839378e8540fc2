//! Key/value caches of every kind: their visible positions, their memory, and estimates of their
//! memory.

use mlx_primitives::{Array, Dtype, eval, memory, ops};
use mlx_primitives_llama::internals::{
    AttentionInputs, AttentionMask, Heads, KvTensor, LayerCache,
};
use mlx_primitives_llama::{
    Cache, CacheKind, Checkpoint, Config, Options, Quantization,
    base::{RopeFrequencies, RopeScaling},
    estimate,
};
use serde_json::{Value, json};

use crate::support::compare::assert_same;
use crate::support::input::{FLOATS, random};
use crate::support::{Checked, fewer_if_simulated, message};

const HEADS: Heads = Heads { heads: 4, kv_heads: 2, head_dim: 32 };
const WIDTH: i32 = 8 * 32;

fn rope() -> RopeFrequencies {
    RopeFrequencies::new(32, false, 1e4, &RopeScaling::Default, None).unwrap()
}

/// The heads `from..to` of a projection, in the shape `[batch, heads, time, head_dim]`.
fn split(qkv: &Array, from: i32, to: i32) -> anyhow::Result<Array> {
    let shape = [qkv.dim(0)?, qkv.dim(1)?, 8, 32];
    Ok(qkv.reshape(shape)?.transpose([0, 2, 1, 3])?.slice_axis(1, from..to)?)
}

fn plain(stored: &KvTensor) -> &Array {
    match stored {
        KvTensor::Plain(array) => array,
        KvTensor::Quantized { .. } => panic!("quantized"),
    }
}

/// Appends steps of these lengths to a cache. `check` receives the cache, the inputs of all
/// positions, and the arrays that the attention of the last step reads.
fn each_step(
    kind: CacheKind,
    dtype: Dtype,
    steps: &[i32],
    check: impl Fn(&LayerCache, &Array, &AttentionInputs) -> Checked,
) -> Checked {
    let total: i32 = steps.iter().sum();
    let all = random(&[2, total, WIDTH], dtype, 1)?;
    let mut cache = LayerCache::new(kind)?;
    assert!(cache.is_empty());
    let mut end = 0;
    for time in steps {
        let step = all.i((.., end..end + time))?;
        let queries = split(&step, 0, 4)?;
        let seen = cache.append(&step, HEADS, &rope())?;
        assert_same(&seen.queries, &rope().rotate(&queries, end)?, "queries")?;
        end += time;
        assert_eq!(cache.len(), end);
        check(&cache, &all.i((.., ..end))?, &seen)?;
        eval(cache.arrays())?;
    }
    Ok(())
}

const STEPS: [i32; 10] = [3, 1, 1, 8, 9, 230, 1, 3, 1, 2];

#[test(simulated = once)]
fn plain_caches_show_all_positions() -> Checked {
    for dtype in FLOATS {
        each_step(CacheKind::Plain, dtype, &STEPS, |cache, all, seen| {
            let end = cache.len();
            let keys = rope().rotate(&split(all, 4, 6)?, 0)?;
            assert_same(plain(&seen.keys), &keys, "keys")?;
            assert_same(plain(&seen.values), &split(all, 6, 8)?, "values")?;
            let capacity = (end as usize).div_ceil(256) * 256;
            assert_eq!(cache.nbytes(), 2 * (8 * 4 + 2 * 2 * capacity) * 32 * dtype.size());
            Ok(())
        })?;
    }
    Ok(())
}

#[test(simulated = once)]
fn quantized_caches_show_all_positions() -> Checked {
    for (dtype, bits) in [(Dtype::Float32, 8), (Dtype::Bfloat16, 4), (Dtype::Float16, 6)] {
        let kind = CacheKind::Quantized { group_size: 32, bits };
        each_step(kind, dtype, &STEPS, |cache, all, seen| {
            let keys = rope().rotate(&split(all, 4, 6)?, 0)?;
            for (got, whole) in [(&seen.keys, keys), (&seen.values, split(all, 6, 8)?)] {
                let KvTensor::Quantized { packed, scales, biases, group_size, bits } = got else {
                    panic!("plain");
                };
                let want = ops::quantize(&whole, *group_size, *bits)?;
                assert_eq!(packed.to_vec::<u32>()?, want.0.to_vec::<u32>()?);
                assert_same(scales, &want.1, "scales")?;
                assert_same(biases, &want.2, "biases")?;
                let back = ops::dequantize(&want.0, &want.1, &want.2, *group_size, *bits)?;
                assert_same(&got.dequantized()?, &back, "numbers")?;
            }
            let capacity = (cache.len() as usize).div_ceil(256) * 256;
            let vector = 4 * bits as usize + 2 * dtype.size();
            assert_eq!(cache.nbytes(), 2 * 4 * capacity * vector);
            Ok(())
        })?;
    }
    Ok(())
}

/// A mask `[time, seen]` of the visible keys, or `None` if all are visible.
fn mask_of(visible: AttentionMask, time: i32, seen: i32) -> anyhow::Result<Option<Array>> {
    Ok(match visible {
        AttentionMask::All => None,
        AttentionMask::Mask(mask) => Some(mask),
        AttentionMask::Causal => {
            let queries = Array::arange::<i32>(f64::from(seen - time), f64::from(seen), 1.0)?;
            let keys = Array::arange::<i32>(0.0, f64::from(seen), 1.0)?.expand_dims([0])?;
            Some(queries.expand_dims([1])?.greater_equal(&keys)?)
        }
    })
}

#[test(simulated = once)]
fn rotating_caches_show_the_positions_of_mlx_lm() -> Checked {
    let fixture: Value = serde_json::from_str(include_str!("../fixtures/rotating_cache.json"))?;
    let ints = |value: &Value| -> Vec<i32> {
        value.as_array().unwrap().iter().map(|v| v.as_i64().unwrap() as i32).collect()
    };
    for case in fixture["cases"].as_array().unwrap() {
        let [max_size, keep] = ["max_size", "keep"].map(|key| case[key].as_i64().unwrap() as i32);
        let mut cache = LayerCache::new(CacheKind::Rotating { max_size, keep })?;
        let mut end = 0;
        for (i, time) in ints(&case["steps"]).into_iter().enumerate() {
            let what = format!("{max_size} keeping {keep}, step {i}");
            let visible_keys = cache.mask(time)?;
            // The values of each position are the position's number, so that the test can recognize
            // positions.
            let step = Array::arange::<f32>(f64::from(end), f64::from(end + time), 1.0)?
                .reshape([1, time, 1])?
                .broadcast_to([1, time, WIDTH])?;
            end += time;
            let seen = cache.append(&step, HEADS, &rope())?;
            assert_eq!(cache.len(), end, "{what}");
            let values = plain(&seen.values);
            let visible = values.i((.., 1..2, .., 7..8))?.to_vec::<f32>()?;
            let visible: Vec<i32> = visible.into_iter().map(|v| v as i32).collect();
            let mut want = ints(&case["visible"][i]);
            if time == 1 && end > max_size {
                // A full cache stores each position in a fixed slot.
                let slot =
                    |&p: &i32| if p < keep { p } else { keep + (p - keep) % (max_size - keep) };
                want.sort_unstable_by_key(slot);
            }
            assert_eq!(visible, want, "{what}");
            // The rotation of a key depends on its position, not on its slot.
            let ids = Array::from_slice(&visible, [visible.len() as i32])?;
            let whole = Array::arange::<f32>(0.0, f64::from(end), 1.0)?
                .reshape([1, 1, end, 1])?
                .broadcast_to([1, 2, end, 32])?;
            let keys = rope().rotate(&whole, 0)?.take(&ids, 2)?;
            assert_same(plain(&seen.keys), &keys, &what)?;
            let mask = mask_of(visible_keys, time, visible.len() as i32)?;
            if let (Some(mask), Some(rows)) = (mask, case["masks"][i].as_array())
                && !rows.is_empty()
            {
                assert_eq!(mask.shape(), [time, visible.len() as i32], "{what}");
                let bits: String =
                    mask.to_vec::<bool>()?.iter().map(|&b| if b { '1' } else { '0' }).collect();
                let want: String = rows.iter().map(|row| row.as_str().unwrap()).collect();
                assert_eq!(bits, want, "{what}");
            }
        }
    }
    Ok(())
}

#[test(simulated = once)]
fn clones_are_independent() -> Checked {
    for kind in [
        CacheKind::Plain,
        CacheKind::Quantized { group_size: 32, bits: 8 },
        CacheKind::Rotating { max_size: 4, keep: 1 },
    ] {
        let step = |seed| random(&[1, 1, WIDTH], Dtype::Float32, seed);
        let mut one = LayerCache::new(kind)?;
        for seed in 0..6 {
            one.append(&step(seed)?, HEADS, &rope())?;
        }
        let mut other = one.clone();
        let a = one.append(&step(6)?, HEADS, &rope())?;
        let b = other.append(&step(7)?, HEADS, &rope())?;
        let (a, b) = (a.values.dequantized()?, b.values.dequantized()?);
        eval([&a, &b])?;
        let differing = a.not_equal(&b)?.astype(Dtype::Int32)?.sum(..)?.item::<i32>()?;
        assert!((32..=64).contains(&differing), "one position of {kind:?}: {differing}");
    }
    Ok(())
}

#[test(simulated = once)]
fn invalid_caches_and_steps_are_refused() -> Checked {
    for (kind, said) in [
        (CacheKind::Quantized { group_size: 48, bits: 4 }, "groups of 32, 64 or 128, got 48"),
        (CacheKind::Quantized { group_size: 64, bits: 7 }, "2, 3, 4, 5, 6 or 8 bits, got 7"),
        (CacheKind::Rotating { max_size: 0, keep: 0 }, "got 0 and 0"),
        (CacheKind::Rotating { max_size: 8, keep: -1 }, "got 8 and -1"),
        (CacheKind::Rotating { max_size: 8, keep: 8 }, "got 8 and 8"),
    ] {
        let text = message(Cache::new(1, kind));
        assert!(text.starts_with("[cache] expected") && text.contains(said), "{text}");
    }
    let mut cache = LayerCache::new(CacheKind::Quantized { group_size: 64, bits: 4 })?;
    let step = random(&[1, 1, WIDTH], Dtype::Float32, 1)?;
    assert!(message(cache.append(&step, HEADS, &rope())).contains("divide 32 features, got 64"));
    let mut cache = LayerCache::default();
    for shape in [&[1, WIDTH][..], &[1, 1, WIDTH + 1]] {
        let step = random(shape, Dtype::Float32, 1)?;
        assert!(message(cache.append(&step, HEADS, &rope())).contains("[batch, time, 256]"));
    }
    // If a step has another type or batch size, the cache refuses it and does not change.
    let seen = cache.append(&step, HEADS, &rope())?;
    seen.keys.dequantized()?.eval()?;
    assert!(cache.append(&step.astype(Dtype::Float16)?, HEADS, &rope()).is_err());
    assert!(cache.append(&step.broadcast_to([2, 1, WIDTH])?, HEADS, &rope()).is_err());
    assert_eq!(cache.len(), 1);
    cache.append(&step, HEADS, &rope())?;
    let llama = Checkpoint::demo()?.llama;
    assert!(llama.new_cache_of(CacheKind::Quantized { group_size: 128, bits: 4 }).is_err());
    Ok(())
}

#[test(simulated = once)]
fn models_generate_with_every_kind() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = checkpoint.tokenizer.encode("Once upon a time")?;
    let max_tokens = fewer_if_simulated("models_generate_with_every_kind", 48, 8) as usize;
    let tokens = |cache: CacheKind| -> anyhow::Result<Vec<u32>> {
        let options = Options { max_tokens, cache, ..Options::default() };
        Ok(checkpoint.generate(&prompt, &options)?.collect::<Result<_, _>>()?)
    };
    let plain = tokens(CacheKind::Plain)?;
    // A rotating cache drops no position until it is full. Up to that length the tokens are the
    // same.
    assert_eq!(tokens(CacheKind::Rotating { max_size: 64, keep: 4 })?, plain);
    assert_eq!(tokens(CacheKind::Rotating { max_size: 8, keep: 4 })?.len(), plain.len());
    let eight = tokens(CacheKind::Quantized { group_size: 32, bits: 8 })?;
    let same = eight.iter().zip(&plain).take_while(|(a, b)| a == b).count();
    assert!(same >= 4, "8 bits change the text after {same} tokens");
    Ok(())
}

#[test(simulated = once)]
fn estimates_are_the_bytes_of_models_and_caches() -> Checked {
    let llama = Checkpoint::demo()?.llama;
    let config = llama.config();
    let dtype = llama.dtype();
    for kind in [
        CacheKind::Plain,
        CacheKind::Quantized { group_size: 32, bits: 4 },
        CacheKind::Rotating { max_size: 40, keep: 4 },
    ] {
        for positions in [1, 40, 257] {
            let bytes = estimate(config, dtype, None, kind, 2, positions)?;
            assert_eq!(bytes.weights, llama.nbytes() as u64);
            let mut cache = llama.new_cache_of(kind)?;
            let step = if matches!(kind, CacheKind::Rotating { .. }) { 1 } else { positions };
            for _ in 0..positions / step {
                let tokens = Array::zeros::<u32>(&[2, step as i32])?;
                let _ = llama.forward(&tokens, &mut cache)?;
            }
            assert_eq!(bytes.cache, cache.nbytes() as u64, "{kind:?}, {positions} positions");
            assert_eq!(bytes.total(), bytes.weights + bytes.cache);
        }
    }
    assert_eq!(estimate(config, dtype, None, CacheKind::Plain, 0, 9)?.cache, 0);
    assert!(estimate(config, Dtype::Int32, None, CacheKind::Plain, 1, 9).is_err());
    let bad = CacheKind::Quantized { group_size: 5, bits: 4 };
    assert!(estimate(config, dtype, None, bad, 1, 9).is_err());
    let none = Some(Quantization::affine(0, 4));
    assert!(estimate(config, dtype, none, CacheKind::Plain, 1, 9).is_err());
    Ok(())
}

#[test(simulated = once)]
fn estimates_of_quantized_and_biased_weights() -> Checked {
    let config = |tied: bool, bias: bool| {
        let config = json!({
            "model_type": "llama", "hidden_size": 128, "num_hidden_layers": 2,
            "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2,
            "rms_norm_eps": 1e-5, "vocab_size": 100, "tie_word_embeddings": tied,
            "attention_bias": bias, "mlp_bias": bias,
        });
        Config::parse(&config.to_string())
    };
    // The shapes [outputs, inputs] of a layer's matrices, and of the embedding.
    let layer = [[128, 128], [64, 128], [64, 128], [128, 128], [192, 128], [192, 128], [128, 192]];
    let embedding = [100, 128];
    for (tied, bias) in [(true, false), (false, true)] {
        for (group_size, bits) in [(64, 4), (32, 8), (64, 3)] {
            let mut want = 0;
            let mut add = |shape: [i32; 2], times: usize| -> Checked {
                let x = random(&shape, Dtype::Bfloat16, 1)?;
                let (packed, scales, biases) = ops::quantize(&x, group_size, bits)?;
                want += times * (packed.nbytes() + scales.nbytes() + biases.nbytes());
                Ok(())
            };
            layer.into_iter().try_for_each(|shape| add(shape, 2))?;
            add(embedding, if tied { 1 } else { 2 })?;
            let outputs: i32 = layer.iter().map(|shape| shape[0]).sum();
            want += 2 * (128 + 2 * 2 * 128 + if bias { 2 * outputs as usize } else { 0 });
            let format = Some(Quantization::affine(group_size, bits));
            let bytes =
                estimate(&config(tied, bias)?, Dtype::Bfloat16, format, CacheKind::Plain, 1, 0)?;
            assert_eq!((bytes.weights, bytes.cache), (want as u64, 0), "{group_size} {bits}");
        }
    }
    Ok(())
}

#[test(alone, simulated = once)]
fn limits_are_set_and_restored() -> Checked {
    let before = memory::set_memory_limit(1 << 33)?;
    assert_eq!(memory::memory_limit(), 1 << 33);
    assert_eq!(memory::set_memory_limit(before)?, 1 << 33);
    assert_eq!(memory::memory_limit(), before);
    // MLX's memory limit is only a guideline. An array is refused only if the machine lacks the
    // memory.
    let before = memory::set_memory_limit(1)?;
    let sum = Array::ones::<f32>(&[1000])?.sum(..)?.item::<f32>()?;
    memory::set_memory_limit(before)?;
    assert_eq!(sum, 1000.0);
    Ok(())
}
