//! Compares sampling and penalties with plain Rust on small vocabularies. The tests check which
//! tokens remain possible, and how often each is drawn.

use std::collections::BTreeSet;

use mlx_primitives::Array;
use mlx_primitives_llama::{Penalties, Sampling, decode::Sampler};

use crate::support::{Checked, fewer_if_simulated, message};

/// Unsorted probabilities of the tokens.
const PROBS: [f64; 8] = [0.05, 0.30, 0.02, 0.18, 0.25, 0.01, 0.12, 0.07];

fn logits(probs: &[f64]) -> Array {
    // Add an offset, because real logits are not normalized.
    let values: Vec<f32> = probs.iter().map(|p| p.ln() as f32 + 3.0).collect();
    Array::from_slice(&values, [1, values.len() as i32]).unwrap()
}

fn normalized(weights: Vec<f64>) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / total).collect()
}

fn by_probability(probs: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..probs.len()).collect();
    order.sort_by(|&a, &b| probs[b].total_cmp(&probs[a]));
    order
}

/// The distribution from which mlx-lm draws after all its steps. If `cut` is true, XTC removes
/// tokens.
fn reference(s: &Sampling, spared: &[u32], cut: bool) -> Vec<f64> {
    let mut probs = PROBS.to_vec();
    if s.top_p > 0.0 && s.top_p < 1.0 {
        let mut mass = 0.0;
        for i in by_probability(&probs) {
            if mass >= f64::from(s.top_p) {
                probs[i] = 0.0;
            } else {
                mass += probs[i];
            }
        }
    }
    if s.min_p > 0.0 {
        let order = by_probability(&probs);
        let least = probs[order[0]] * f64::from(s.min_p);
        for i in order.into_iter().skip(s.min_tokens_to_keep.max(1) as usize) {
            if probs[i] < least {
                probs[i] = 0.0;
            }
        }
    }
    if cut {
        let scaled = normalized(probs.clone());
        let above = scaled.iter().copied().filter(|p| *p > f64::from(s.xtc_threshold));
        let least = above.fold(f64::INFINITY, f64::min);
        for (i, p) in scaled.iter().enumerate() {
            if *p > least && !spared.contains(&(i as u32)) {
                probs[i] = 0.0;
            }
        }
    }
    if s.top_k > 0 {
        for i in by_probability(&probs).into_iter().skip(s.top_k as usize) {
            probs[i] = 0.0;
        }
    }
    normalized(probs.iter().map(|p| p.powf(1.0 / f64::from(s.temp))).collect())
}

/// Draws many tokens at once, because each row of a batch is drawn independently.
fn draws(s: Sampling, spared: &[u32], rows: i32) -> anyhow::Result<Vec<u32>> {
    let batch = logits(&PROBS).broadcast_to([rows, 8])?;
    Ok(Sampler::new(s)?.sparing(spared).sample(&batch)?.to_vec::<u32>()?)
}

fn assert_drawn_from(expected: &[f64], tokens: &[u32], what: &str) {
    let count = tokens.len() as f64;
    for (token, p) in expected.iter().enumerate() {
        let times = tokens.iter().filter(|&&t| t as usize == token).count() as f64;
        // The bound is five standard deviations of the binomial distribution. One run in a million
        // would exceed it by chance.
        let bound = 5.0 * (count * p * (1.0 - p)).sqrt();
        assert!(
            (times - count * p).abs() <= bound,
            "{what}: token {token}, {times} of {count}, {p}"
        );
    }
}

fn cases() -> Vec<Sampling> {
    let warm = Sampling { temp: 1.0, seed: 11, ..Sampling::default() };
    vec![
        warm,
        Sampling { temp: 0.5, ..warm },
        Sampling { temp: 2.5, ..warm },
        Sampling { top_p: 0.5, ..warm },
        Sampling { top_p: 0.56, temp: 1.5, ..warm },
        Sampling { top_p: 0.999, ..warm },
        Sampling { min_p: 0.3, ..warm },
        Sampling { min_p: 0.9, min_tokens_to_keep: 3, ..warm },
        Sampling { min_p: 0.9, min_tokens_to_keep: 100, ..warm },
        Sampling { top_k: 1, ..warm },
        Sampling { top_k: 3, temp: 0.7, ..warm },
        Sampling { top_k: 8, ..warm },
        Sampling { top_k: 4000, ..warm },
        // With several steps, each step sees only the tokens that the steps before it have kept.
        Sampling { top_p: 0.7, min_p: 0.65, top_k: 2, temp: 1.3, ..warm },
        Sampling { top_p: 0.8, top_k: 3, ..warm },
    ]
}

#[test(simulated = once)]
fn each_step_keeps_the_tokens_of_mlx_lm() -> Checked {
    let rows = fewer_if_simulated("draws", 20_000, 20) as i32;
    for s in cases() {
        let expected = reference(&s, &[], false);
        let tokens = draws(s, &[], rows)?;
        assert_drawn_from(&expected, &tokens, &format!("{s:?}"));
        let drawn: BTreeSet<u32> = tokens.iter().copied().collect();
        for (token, p) in expected.iter().enumerate() {
            // In the many draws, each likely token must appear. Tokens that a step has removed must
            // never appear.
            assert!(*p < 0.02 || drawn.contains(&(token as u32)), "{s:?}: {token} never drawn");
            assert!(*p > 0.0 || !drawn.contains(&(token as u32)), "{s:?}: {token} was cut");
        }
    }
    Ok(())
}

#[test(simulated = once)]
fn xtc_drops_top_choices_as_often_as_requested() -> Checked {
    let warm = Sampling { temp: 1.0, xtc_threshold: 0.1, seed: 4, ..Sampling::default() };
    let rows = fewer_if_simulated("draws", 20_000, 20) as i32;
    let always = Sampling { xtc_probability: 1.0, ..warm };
    for (s, spared) in [
        (always, &[][..]),
        (always, &[1, 4]),
        (always, &[1, 800]),
        (Sampling { xtc_threshold: 0.27, ..always }, &[]),
        (Sampling { xtc_threshold: 0.5, ..always }, &[]),
        (Sampling { xtc_threshold: 0.0, ..always }, &[]),
        // top_p keeps five tokens. After normalization, the last of them is also above XTC's
        // threshold.
        (Sampling { top_p: 0.9, xtc_threshold: 0.075, top_k: 2, ..always }, &[]),
    ] {
        let tokens = draws(s, spared, rows)?;
        assert_drawn_from(&reference(&s, spared, true), &tokens, &format!("{s:?} {spared:?}"));
    }
    // Each call decides once, for all rows, whether XTC removes the top choices. It must do so in
    // 30 % of the calls.
    let often = Sampling { xtc_probability: 0.3, ..warm };
    let mut sampler = Sampler::new(often)?;
    let rounds = fewer_if_simulated("calls", 400, 10) as i32;
    let batch = logits(&PROBS).broadcast_to([200, 8])?;
    let mut cut = 0;
    for _ in 0..rounds {
        // If XTC keeps token 1, whose probability is 30 %, some of the 200 rows practically always
        // draw it.
        cut += i32::from(!sampler.sample(&batch)?.to_vec::<u32>()?.contains(&1));
    }
    let bound = 5.0 * (f64::from(rounds) * 0.3 * 0.7).sqrt();
    assert!((f64::from(cut) - 0.3 * f64::from(rounds)).abs() < bound, "{cut} of {rounds}");
    assert!(cut > 0 && cut < rounds);
    Ok(())
}

#[test(simulated = once)]
fn equal_tokens_at_the_limit_of_top_k_do_not_all_pass() -> Checked {
    let same = Array::zeros::<f32>(&[200, 16])?;
    for top_k in [1, 5] {
        let mut sampler = Sampler::new(Sampling { temp: 1.0, top_k, ..Sampling::default() })?;
        let tokens = sampler.sample(&same)?.to_vec::<u32>()?;
        let distinct: BTreeSet<u32> = tokens.into_iter().collect();
        assert_eq!(distinct.len(), top_k as usize);
    }
    Ok(())
}

#[test(simulated = once)]
fn the_same_seed_draws_the_same_tokens() -> Checked {
    let s = Sampling { temp: 1.0, top_p: 0.9, xtc_probability: 0.5, ..Sampling::default() };
    let sequence = |seed: u64| -> anyhow::Result<Vec<u32>> {
        let mut sampler = Sampler::new(Sampling { seed, ..s })?;
        (0..24).map(|_| Ok(sampler.sample(&logits(&PROBS))?.item::<u32>()?)).collect()
    };
    assert_eq!(sequence(1)?, sequence(1)?);
    assert_ne!(sequence(1)?, sequence(2)?);
    Ok(())
}

/// Applies mlx-lm's penalties, in mlx-lm's order, in plain Rust.
fn penalized(p: &Penalties, tokens: &[u32], logits: &[f32]) -> Vec<f32> {
    let mut logits = logits.to_vec();
    for (token, bias) in &p.logit_bias {
        logits[*token as usize] += bias;
    }
    let window = |size: usize| &tokens[tokens.len().saturating_sub(size)..];
    let known = |t: &&u32| (**t as usize) < logits.len();
    let distinct =
        |size: usize| -> BTreeSet<u32> { window(size).iter().filter(known).copied().collect() };
    let [repeated, present] = [p.repetition_context_size, p.presence_context_size].map(distinct);
    let frequent: Vec<u32> =
        window(p.frequency_context_size).iter().filter(known).copied().collect();
    if p.repetition != 0.0 {
        for t in repeated {
            let l = &mut logits[t as usize];
            *l = if *l < 0.0 { *l * p.repetition } else { *l / p.repetition };
        }
    }
    for t in present {
        logits[t as usize] -= p.presence;
    }
    for t in frequent {
        logits[t as usize] -= p.frequency;
    }
    logits
}

#[test(simulated = once)]
fn penalties_are_mlx_lms() -> Checked {
    let values = [1.5f32, -0.5, 0.0, 3.0, -2.0, 0.25];
    let logits = Array::from_slice(&values, [1, 6])?;
    let none = Penalties::default();
    let tokens = [3u32, 3, 0, 1, 99, 4, 1, 1, 5];
    for p in [
        none.clone(),
        Penalties { repetition: 1.3, ..none.clone() },
        Penalties { repetition: 0.5, repetition_context_size: 3, ..none.clone() },
        Penalties { presence: 0.7, ..none.clone() },
        Penalties { presence: -0.7, presence_context_size: 2, ..none.clone() },
        Penalties { frequency: 0.2, ..none.clone() },
        Penalties { frequency: 0.2, frequency_context_size: 4, ..none.clone() },
        Penalties { frequency: 0.2, frequency_context_size: 0, ..none.clone() },
        Penalties { logit_bias: vec![(0, -1.0), (5, 2.0), (5, 0.5)], ..none.clone() },
        Penalties {
            logit_bias: vec![(1, 1.0), (3, -100.0)],
            repetition: 1.5,
            repetition_context_size: 4,
            presence: 0.3,
            presence_context_size: 9,
            frequency: 0.1,
            frequency_context_size: 6,
        },
    ] {
        for seen in [&tokens[..], &tokens[..1], &[]] {
            let got = p.apply(seen, &logits)?.to_vec::<f32>()?;
            for (got, want) in got.iter().zip(penalized(&p, seen, &values)) {
                // The penalties are a product and two differences, each with a few roundings.
                assert!((got - want).abs() <= 1e-5 * want.abs().max(1.0), "{p:?}: {got} {want}");
            }
        }
    }
    let banned = Penalties { logit_bias: vec![(3, f32::NEG_INFINITY)], ..none };
    let best = banned.apply(&[], &logits)?.argmax(-1)?.item::<u32>()?;
    assert_eq!(best, 0);
    Ok(())
}

#[test(simulated = once)]
fn invalid_probabilities_are_refused() {
    let warm = Sampling { temp: 1.0, ..Sampling::default() };
    for (s, said) in [
        (Sampling { temp: f32::INFINITY, ..warm }, "temp >= 0, got inf"),
        (Sampling { top_p: -0.5, ..warm }, "top_p in 0..=1, got -0.5"),
        (Sampling { min_p: f32::NAN, ..warm }, "min_p in 0..=1, got NaN"),
        (Sampling { xtc_probability: 1.5, ..warm }, "xtc_probability in 0..=1, got 1.5"),
        (Sampling { xtc_threshold: 0.6, ..warm }, "xtc_threshold in 0..=0.5, got 0.6"),
    ] {
        let text = message(Sampler::new(s));
        assert!(text.starts_with("[sampling] expected") && text.contains(said), "{text}");
    }
    let none = Penalties::default();
    for (p, said) in [
        (Penalties { repetition: -1.0, ..none.clone() }, "repetition penalty >= 0, got -1"),
        (Penalties { presence: f32::NAN, ..none.clone() }, "finite presence penalty, got NaN"),
        (Penalties { frequency: f32::INFINITY, ..none.clone() }, "finite frequency penalty"),
        (Penalties { logit_bias: vec![(9, 1.0)], ..none.clone() }, "below 9, got 1 of 9"),
        (Penalties { logit_bias: vec![(1, f32::NAN)], ..none }, "got NaN of 1"),
    ] {
        let text = message(p.check(9));
        assert!(text.starts_with("[penalties] expected") && text.contains(said), "{text}");
    }
}
