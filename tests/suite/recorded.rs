//! The decoder layers of a token as one recorded node: the same bits as when their graph is built.

use mlx_primitives::transforms::vmap;
use mlx_primitives::{Array, Result, graph, tune};
use mlx_primitives_llama::{Cache, CacheKind, Checkpoint, Llama, Options, Quantization};

use crate::checkpoints::{names, root};
use crate::support::compare::assert_same;
use crate::support::{Checked, on_cpu};

fn token(id: u32) -> Result<Array> {
    Array::from_slice(&[id], [1, 1])
}

/// The logits of the next token, whose graph is built.
fn built(llama: &Llama, token: &Array, cache: &mut Cache) -> Result<Array> {
    tune::asked(|| llama.forward(token, cache)).0
}

fn is_recorded(logits: &Array, cache: &Cache) -> Result<bool> {
    let nodes = graph::nodes([logits].into_iter().chain(cache.arrays()))?;
    Ok(nodes.iter().any(|node| node.name == "Replay"))
}

/// Runs tokens by recorded graphs and by built ones, and returns how many were recorded.
fn same_bits(llama: &Llama, kind: CacheKind, tokens: u32) -> anyhow::Result<usize> {
    let vocabulary = llama.config().vocab_size.unsigned_abs();
    let (mut ours, mut theirs) = (llama.new_cache_of(kind)?, llama.new_cache_of(kind)?);
    let mut recorded = 0;
    for i in 0..tokens {
        let next = token((7 * i + 3) % vocabulary)?;
        let got = llama.forward(&next, &mut ours)?;
        recorded += usize::from(is_recorded(&got, &ours)?);
        let want = built(llama, &next, &mut theirs)?;
        assert_same(&got, &want, &format!("token {i}"))?;
    }
    for (got, want) in ours.arrays().zip(theirs.arrays()) {
        assert_same(got, want, "a buffer")?;
    }
    Ok(recorded)
}

#[test]
fn logits_have_the_same_bits() -> Checked {
    on_cpu(|| {
        let plain = Checkpoint::demo()?.llama;
        let packed = plain.quantized(Quantization::affine(32, 4))?;
        // The buffers grow after 256 positions. The first token finds none, and the first of each
        // size is the one that is recorded.
        for llama in [&plain, &packed] {
            assert_eq!(same_bits(llama, CacheKind::Plain, 300)?, 300 - 4);
        }
        for kind in [
            CacheKind::Quantized { group_size: 32, bits: 8 },
            CacheKind::Rotating { max_size: 12, keep: 2 },
        ] {
            assert_eq!(same_bits(&packed, kind, 20)?, 0, "{kind:?}");
        }
        Ok(())
    })
}

#[test]
fn checkpoints_of_every_kind_have_the_same_bits() -> Checked {
    on_cpu(|| {
        let mut recorded = 0;
        for name in names()? {
            let path = root().join(&name);
            let model = std::fs::read_dir(&path)?
                .filter_map(|entry| Some(entry.ok()?.path()))
                .find(|path| path.extension().is_some_and(|extension| extension == "gguf"));
            let llama = Llama::load(model.unwrap_or(path))?;
            recorded += usize::from(same_bits(&llama, CacheKind::Plain, 5)? > 0);
        }
        assert!(recorded >= 10, "{recorded}");
        Ok(())
    })
}

#[test]
fn caches_that_are_copied_and_trimmed() -> Checked {
    on_cpu(|| {
        let llama = Checkpoint::demo()?.llama;
        let mut ours = llama.new_cache();
        // Nothing is recorded before the weights are computed.
        for i in 0..4 {
            assert!(!is_recorded(&llama.forward(&token(20 + i)?, &mut ours)?, &ours)?);
        }
        llama.forward(&token(24)?, &mut ours)?.eval()?;
        let _ = llama.forward(&token(25)?, &mut ours)?;
        let mut theirs = ours.clone();
        // Both go on from the same buffers, in turn and with other tokens.
        let mut kept = Vec::new();
        for i in 0..6 {
            let got = llama.forward(&token(40 + i)?, &mut ours)?;
            let other = llama.forward(&token(90 + i)?, &mut theirs)?;
            assert!(is_recorded(&got, &ours)? && is_recorded(&other, &theirs)?);
            kept.push((got, other));
        }
        ours.trim(3)?;
        let last = llama.forward(&token(1)?, &mut ours)?;
        let (mut first, mut second) = (llama.new_cache(), llama.new_cache());
        for i in 0..6 {
            let _ = built(&llama, &token(20 + i)?, &mut first)?;
            let _ = built(&llama, &token(20 + i)?, &mut second)?;
        }
        for (i, (got, other)) in (0..).zip(&kept) {
            assert_same(got, &built(&llama, &token(40 + i)?, &mut first)?, "the first copy")?;
            assert_same(other, &built(&llama, &token(90 + i)?, &mut second)?, "the second copy")?;
        }
        first.trim(3)?;
        assert_same(&last, &built(&llama, &token(1)?, &mut first)?, "after trimming")?;
        Ok(())
    })
}

#[test]
fn batches_have_the_same_bits() -> Checked {
    on_cpu(|| {
        let llama = Checkpoint::demo()?.llama.quantized(Quantization::affine(32, 4))?;
        let (mut ours, mut theirs) = (llama.new_cache(), llama.new_cache());
        for i in 0..6u32 {
            let next = Array::from_slice(&[i, i + 100, 3 * i], [3, 1])?;
            let got = llama.forward(&next, &mut ours)?;
            assert_eq!(is_recorded(&got, &ours)?, i > 1, "token {i}");
            assert_same(&got, &built(&llama, &next, &mut theirs)?, "a batch")?;
        }
        Ok(())
    })
}

#[test]
fn traced_functions_build_their_graph() -> Checked {
    on_cpu(|| {
        let llama = Checkpoint::demo()?.llama;
        let mut cache = llama.new_cache();
        for i in 0..4 {
            llama.forward(&token(20 + i)?, &mut cache)?.eval()?;
        }
        let tokens = Array::from_slice(&[9u32, 77], [2, 1, 1])?;
        let before = cache.clone();
        let got = vmap(|x: Array| llama.forward(&x, &mut before.clone()), &tokens, 0, 0)?;
        for (i, id) in [(0, 9), (1, 77)] {
            let want = built(&llama, &token(id)?, &mut cache.clone())?;
            // MLX's ops run the map, and round in other places.
            let apart = got.i(i)?.subtract(&want)?.abs()?.max(..)?.item::<f32>()?;
            assert!(apart < 1e-3, "{apart}");
        }
        Ok(())
    })
}

#[test]
fn generation_is_the_same() -> Checked {
    on_cpu(|| {
        let checkpoint = Checkpoint::demo()?;
        let prompt = checkpoint.tokenizer.encode("Once upon a time")?;
        let options = Options { max_tokens: 60, ..Options::default() };
        let generate = || checkpoint.generate(&prompt, &options)?.collect::<Result<Vec<_>>>();
        let want = tune::asked(generate).0?;
        assert!(want.len() > 20);
        for _ in 0..3 {
            assert_eq!(generate()?, want);
        }
        Ok(())
    })
}
