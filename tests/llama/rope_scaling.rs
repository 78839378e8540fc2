//! Compares the rotary frequencies for every kind of rope_scaling with mlx-lm's.

use mlx_primitives::{Array, Dtype, ops};
use mlx_primitives_llama::{
    Config,
    base::{RopeFrequencies, RopeScaling},
};
use serde_json::{Value, json};

use crate::support::Checked;
use crate::support::compare::{assert_same, ulp};
use crate::support::input::random;

fn made(case: &Value) -> anyhow::Result<RopeFrequencies> {
    Ok(RopeFrequencies::new(
        case["dims"].as_i64().unwrap() as i32,
        false,
        case["base"].as_f64().unwrap() as f32,
        &RopeScaling::parse(&case["rope_scaling"])?,
        Some(case["max_position_embeddings"].as_i64().unwrap() as i32),
    )?)
}

#[test]
fn frequencies_are_those_of_mlx_lm() -> Checked {
    let fixture: Value = serde_json::from_str(include_str!("../fixtures/rope_scaling.json"))?;
    let mut compared = 0;
    for case in fixture["cases"].as_array().unwrap() {
        let rope = made(case)?;
        let what = format!("{} of {}", case["rope_scaling"], case["dims"]);
        // For longrope, mlx-lm always uses the factors for long texts.
        let values =
            rope.values(if case["rope_scaling"]["type"] == "longrope" { i32::MAX } else { 1 });
        let expected = case["freqs"].as_array().unwrap();
        assert_eq!(values.len(), expected.len(), "{what}");
        for (got, want) in values.iter().zip(expected) {
            // The power functions of the two libraries differ by an ulp. The longest formula rounds
            // five more times.
            let (got, want) = (f64::from(*got), want.as_f64().unwrap());
            let error = (got - want).abs() / ulp(want, Dtype::Float32);
            assert!(error <= 4.0, "{what}: {got} {want}");
            compared += 1;
        }
        assert_eq!(rope.scale(), case["scale"].as_f64().unwrap() as f32, "{what}");
        assert_eq!(rope.multiplier(), case["multiplier"].as_f64().unwrap() as f32, "{what}");
        for (length, base) in case["bases"].as_object().unwrap() {
            let got = rope.base(length.parse()?);
            assert_eq!(got, base.as_f64().unwrap() as f32, "{what} at {length}");
        }
    }
    assert!(compared > 400, "{compared}");
    Ok(())
}

#[test]
fn rotations_use_the_frequencies() -> Checked {
    let fixture: Value = serde_json::from_str(include_str!("../fixtures/rope_scaling.json"))?;
    for case in fixture["cases"].as_array().unwrap() {
        let rope = made(case)?;
        let what = case["rope_scaling"].to_string();
        for dtype in [Dtype::Float32, Dtype::Bfloat16] {
            // Add six features that are not rotated. The positions are beyond the limit of dynamic
            // scaling.
            let x = random(&[2, 2, 3, rope.dims() + 6], dtype, 1)?;
            let (offset, dims) = (9000, rope.dims());
            let turned = x.slice_axis(-1, ..dims)?.multiply(rope.multiplier())?;
            let rotation = rope.rotation(offset, offset + 3).rope;
            assert_eq!((rotation.dims, rotation.scale), (dims, rope.scale()), "{what}");
            let want = ops::rope(&turned, rotation)?;
            let got = rope.rotate(&x, offset)?;
            assert_same(&got.slice_axis(-1, ..dims)?, &want, &what)?;
            assert_same(&got.slice_axis(-1, dims..)?, &x.slice_axis(-1, dims..)?, &what)?;
        }
        let explicit = Array::from_slice(&rope.values(9003), [rope.dims() / 2])?;
        let given = rope.rotation(0, 9003).rope;
        assert!(given.base.is_some() != given.freqs.is_some(), "{what}");
        if let Some(freqs) = given.freqs {
            assert_same(freqs, &explicit, &what)?;
        }
    }
    Ok(())
}

#[test]
fn invalid_scalings_are_refused() {
    let with = |scaling: Value| -> mlx_primitives::Result<RopeFrequencies> {
        let parsed = RopeScaling::parse(&scaling)?;
        RopeFrequencies::new(64, false, 10_000.0, &parsed, Some(8192))
    };
    let list = |count: usize| json!(vec![1.0; count]);
    let original = "original_max_position_embeddings";
    for good in [
        Value::Null,
        json!({}),
        json!({"type": null, "rope_type": "linear", "factor": 2}),
        json!({"type": "mrope", "rope_type": "default", "mrope_section": [8, 12, 12]}),
        json!({"type": "su", "short_factor": list(32), "long_factor": list(32), original: 4096}),
        json!({"type": "longrope", "short_factor": 1.0, "long_factor": 2.0, original: 4096}),
        // If there is no original length, the model's maximum length is used.
        json!({"type": "longrope", "short_factor": list(32), "long_factor": list(32)}),
    ] {
        assert!(with(good.clone()).is_ok(), "{good}");
    }
    for bad in [
        json!("linear"),
        json!({"type": "mystery", "factor": 2.0}),
        json!({"type": "default", "rope_type": "yarn"}),
        json!({"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}),
        json!({"type": 3}),
        json!({"type": "linear"}),
        json!({"type": "linear", "factor": "2"}),
        json!({"type": "linear", "factor": 0}),
        json!({"type": "linear", "factor": -4.0}),
        json!({"type": "linear", "factor": 1e-300}),
        json!({"type": "dynamic", "factor": -1.0}),
        json!({"type": "llama3", "factor": 0.0}),
        json!({"type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}),
        json!({"type": "llama3", "factor": 8.0, "low_freq_factor": 0.0}),
        json!({"type": "llama3", "factor": 8.0, original: -8192}),
        json!({"type": "llama3", "factor": 1e38}),
        json!({"type": "yarn", "factor": 0}),
        json!({"type": "yarn", "factor": 4.0, original: 0}),
        json!({"type": "yarn", "factor": 4.0, "beta_fast": -32}),
        json!({"type": "yarn", "factor": 4.0, "mscale": -1e9, "mscale_all_dim": 1.0}),
        json!({"type": "yarn", "factor": 4.0, "attention_factor": -1.0}),
        json!({"type": "yarn", "factor": 4.0, "truncate": "no"}),
        json!({"type": "yarn", "factor": 1e300}),
        json!({"type": "longrope", "short_factor": list(31), "long_factor": list(32), original: 4096}),
        json!({"type": "longrope", "short_factor": list(31), "long_factor": list(31), original: 4096}),
        json!({"type": "longrope", "short_factor": [], "long_factor": [], original: 4096}),
        json!({"type": "longrope", "short_factor": 1.0, "long_factor": [1.0, "2"], original: 4096}),
        json!({"type": "longrope", "short_factor": 1.0, "long_factor": -2.0, original: 4096}),
        json!({"type": "longrope", "short_factor": 1.0, "long_factor": 2.0, original: 0}),
        json!({"type": "longrope", "short_factor": 1.0, "long_factor": 2.0, original: 1}),
    ] {
        let said = with(bad.clone()).expect_err(&bad.to_string()).to_string();
        assert!(said.starts_with("[rope_scaling] expected"), "{bad}: {said}");
    }
    let nan = RopeScaling::Linear { factor: f64::NAN };
    assert!(RopeFrequencies::new(64, false, 1e4, &nan, None).is_err());
    for (dims, base) in [(63, 1e4), (0, 1e4), (64, 0.0), (64, f32::NAN), (64, -1.0)] {
        assert!(RopeFrequencies::new(dims, false, base, &RopeScaling::Default, None).is_err());
    }
    let dynamic = RopeScaling::Dynamic { factor: 2.0 };
    assert!(RopeFrequencies::new(2, false, 1e4, &dynamic, Some(8)).is_err(), "no exponent");
    assert!(RopeFrequencies::new(64, false, 1e4, &dynamic, None).is_err(), "no limit");
    let yarn = json!({"type": "yarn", "factor": 4.0});
    let yarn = RopeScaling::parse(&yarn).unwrap();
    assert!(RopeFrequencies::new(64, false, 1.0, &yarn, None).is_err(), "no logarithm");
}

#[test]
fn configs_accept_scalings() {
    let parse = |scaling: Value| {
        let config = json!({
            "model_type": "llama", "hidden_size": 128, "num_hidden_layers": 2,
            "intermediate_size": 256, "num_attention_heads": 2, "rms_norm_eps": 1e-5,
            "vocab_size": 100, "max_position_embeddings": 8192, "rope_scaling": scaling,
        });
        Config::parse(&config.to_string())
    };
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0});
    let rope = parse(llama3).unwrap().rope_frequencies().unwrap();
    assert_eq!((rope.dims(), rope.rotation(0, 1).rope.freqs.is_some()), (64, true));
    assert!(parse(json!({"rope_type": "llama3", "factor": -8.0})).is_err());
}
