//! Hidden states, and the embeddings that are pooled from them.

use mlx_primitives::device::default_device;
use mlx_primitives::{Array, Dtype};
use mlx_primitives_llama::{
    Checkpoint, Llama, Quantization,
    decode::{Embedding, Pooling},
};

use crate::checkpoints;
use crate::support::compare::{assert_close, assert_same, is_nvidia, numbers, ulp};
use crate::support::models::variant;
use crate::support::{Checked, message, simulated};

fn texts() -> anyhow::Result<(Checkpoint, Vec<Vec<u32>>)> {
    let demo = Checkpoint::demo()?;
    let texts = ["Once upon a time, there was a girl.", "One day", "The dog was happy."];
    let texts = texts.map(|text| demo.tokenizer.encode(text));
    let texts = texts.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok((demo, texts))
}

fn matrix(tokens: &[u32]) -> mlx_primitives::Result<Array> {
    Array::from_slice(tokens, [1, tokens.len() as i32])
}

#[test(simulated = once)]
fn projected_hidden_states_are_the_logits_bit_for_bit() -> Checked {
    let demo = Checkpoint::demo()?.llama;
    let half = variant(Dtype::Bfloat16, |_, _| {});
    let mut models: Vec<(String, Llama)> = vec![
        ("in 4 bits".into(), demo.quantized(Quantization::affine(32, 4))?),
        ("demo".into(), demo),
        ("bfloat16".into(), Checkpoint::load(half.path())?.llama),
    ];
    let kinds =
        ["llama-f16-mha-untied", "llama-f32-biases", "gemma-f32", "llama-mxfp4", "qwen3-f32"];
    for name in &kinds[..if simulated() { 2 } else { 5 }] {
        models.push(((*name).into(), checkpoints::load(name)?));
    }
    for (name, llama) in models {
        for count in [1, 7, 40] {
            let tokens: Vec<u32> = (0..count).map(|i| (i * 37 + 11) % 60).collect();
            let tokens = matrix(&tokens)?;
            let logits = llama.forward(&tokens, &mut llama.new_cache())?;
            let mut cache = llama.new_cache();
            let hidden = llama.hidden(&tokens, &mut cache)?;
            assert_eq!(hidden.shape(), [1, count as i32, llama.config().hidden_size], "{name}");
            assert_eq!(cache.len(), count as i32, "{name}");
            let (projected, what) = (llama.project(&hidden)?, format!("{name}, {count} tokens"));
            if !is_nvidia(default_device()?) {
                assert_same(&projected, &logits, &what)?;
                continue;
            }
            // An NVIDIA GPU computes the last norm as a separate op in one case, and in the
            // projection's kernel in the other. Each number may then be rounded differently, by a
            // unit. In a logit these errors add up like a random walk, to about one unit of the
            // logits. A bound of 8 units is generous.
            let (got, want) = (numbers(&projected)?, numbers(&logits)?);
            let bound = 8.0 * ulp(checkpoints::largest(&want), logits.dtype());
            let apart = checkpoints::apart(&got, &want);
            assert!(apart <= bound, "{what}: {apart:e} apart, at most {bound:e}");
        }
    }
    Ok(())
}

#[test(simulated = once)]
fn the_tokens_continue_the_cache() -> Checked {
    let (demo, texts) = texts()?;
    let (llama, text) = (&demo.llama, &texts[0]);
    let whole = llama.hidden(&matrix(text)?, &mut llama.new_cache())?;
    let mut cache = llama.new_cache();
    let _ = llama.hidden(&matrix(&text[..3])?, &mut cache)?;
    let rest = llama.hidden(&matrix(&text[3..])?, &mut cache)?;
    let want = numbers(&whole.i((.., 3..))?)?;
    assert_close(&numbers(&rest)?, &want, 1e-4, "the rest of the text");
    let other = Array::zeros::<i32>([3])?;
    assert!(message(llama.hidden(&other, &mut llama.new_cache())).contains("[batch, time]"));
    assert!(llama.project(&Array::zeros::<f32>([1, 5])?).is_err());
    Ok(())
}

/// A reference in float64: pools the rows of `[time, features]`.
fn by_hand(hidden: &[f64], features: usize, length: usize, options: Embedding) -> Vec<f64> {
    let rows: Vec<&[f64]> = hidden.chunks(features).take(length).collect();
    let pooled: Vec<f64> = match options.pooling {
        Pooling::Last => rows[length - 1].to_vec(),
        Pooling::Mean => (0..features)
            .map(|i| rows.iter().map(|row| row[i]).sum::<f64>() / length as f64)
            .collect(),
    };
    let norm = pooled.iter().map(|v| v * v).sum::<f64>().sqrt().max(1e-12);
    let by = if options.normalize { norm } else { 1.0 };
    pooled.iter().map(|v| v / by).collect()
}

const ALL: [Embedding; 4] = [
    Embedding { pooling: Pooling::Mean, normalize: false },
    Embedding { pooling: Pooling::Mean, normalize: true },
    Embedding { pooling: Pooling::Last, normalize: false },
    Embedding { pooling: Pooling::Last, normalize: true },
];

#[test(simulated = once)]
fn pooling_is_that_by_hand() -> Checked {
    let (batch, time, features) = (3usize, 5usize, 7usize);
    let mut values: Vec<f32> = (0..batch * time * features).map(|i| (i as f32).sin()).collect();
    // Padding may contain any values. A vector of zeros cannot be normalized.
    values[(2 * features)..(5 * features)].fill(f32::NAN);
    values[(5 * features)..(6 * features)].fill(0.0);
    let lengths = [2, 1, 5];
    let shape = [batch as i32, time as i32, features as i32];
    let hidden = Array::from_slice(&values, shape)?;
    let values: Vec<f64> = values.into_iter().map(f64::from).collect();
    for options in ALL {
        let pooled = options.pool(&hidden, &lengths)?;
        assert_eq!((pooled.shape(), pooled.dtype()), (&[3, 7][..], Dtype::Float32));
        let rows = values.chunks(time * features).zip(lengths);
        let want: Vec<f64> =
            rows.flat_map(|(row, length)| by_hand(row, features, length, options)).collect();
        assert_close(&numbers(&pooled)?, &want, 1e-6, &format!("{options:?}"));
    }
    for lengths in [&[2, 1][..], &[2, 0, 5], &[2, 1, 6]] {
        let text = message(ALL[0].pool(&hidden, lengths));
        assert!(text.starts_with("[embedding] expected 3 lengths from 1 to 5"), "{text}");
    }
    assert!(ALL[0].pool(&hidden.i(0)?, &[1]).is_err(), "two axes");
    Ok(())
}

#[test(simulated = once)]
fn texts_side_by_side_are_those_alone() -> Checked {
    let (demo, texts) = texts()?;
    let llama = &demo.llama;
    for options in ALL {
        let together = llama.embeddings(&texts, options)?;
        let features = llama.config().hidden_size as usize;
        assert_eq!(together.shape(), [3, features as i32]);
        for (at, text) in texts.iter().enumerate() {
            let alone = llama.embeddings(std::slice::from_ref(text), options)?;
            let beside = together.i(at as i32..at as i32 + 1)?;
            assert_same(&beside, &alone, &format!("{options:?}, alone"))?;
            let got = &numbers(&beside)?;
            let hidden = numbers(&llama.hidden(&matrix(text)?, &mut llama.new_cache())?)?;
            let want = by_hand(&hidden, features, text.len(), options);
            assert_close(got, &want, 1e-4, &format!("{options:?}"));
        }
    }
    // With dynamic scaling, the rotary frequencies depend on the length, so each text runs
    // separately.
    let scaled = checkpoints::load("llama-f16-dynamic")?;
    let texts = vec![vec![1, 2, 3, 4, 5, 6, 7, 8, 9], vec![5, 6]];
    let together = scaled.embeddings(&texts, Embedding::default())?;
    let alone = scaled.embeddings(&texts[1..], Embedding::default())?;
    assert_same(&together.i(1..)?, &alone, "apart")?;
    Ok(())
}

#[test(simulated = once)]
fn texts_that_cannot_be_run_are_refused() -> Checked {
    let llama = Checkpoint::demo()?.llama;
    for (texts, said) in [
        (vec![], "at least one text"),
        (vec![vec![1], vec![]], "a text of 1 to 256 tokens, got 0"),
        (vec![vec![1; 257]], "a text of 1 to 256 tokens, got 257"),
        (vec![vec![512]], "tokens below 512, got 512"),
    ] {
        let text = message(llama.embeddings(&texts, Embedding::default()));
        assert!(text.starts_with("[embedding] expected ") && text.contains(said), "{text}");
    }
    Ok(())
}
