//! Fine-tuning the demo model: its losses, and how a run ends and resumes.

use std::fs;
use std::path::{Path, PathBuf};

use mlx_primitives::ops::{self, CrossEntropy, LinearWeight, Lora};
use mlx_primitives::{Array, transforms};
use mlx_primitives_llama::train::{
    Adam, Dataset, Kind, Optimizer, Parameters, Schedule, Settings, Sgd, Trainable, Trainer,
    evaluate,
};
use mlx_primitives_llama::{Adapters, Checkpoint, Llama, Quantization};
use tempfile::TempDir;

use crate::support::compare::numbers;
use crate::support::{Checked, message};

const KEYS: [&str; 3] = ["self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"];

/// Writes a training file with texts of several lengths.
pub fn texts(folder: &Path) -> std::io::Result<PathBuf> {
    let line = |number: usize| {
        let sea = ["calm", "rough", "heavy"][number % 3].repeat(1 + number % 4);
        format!(
            "{{\"text\": \"Log of the ship {number}. The wind is north and the sea {sea}.\"}}\n"
        )
    };
    let path = folder.join("train.jsonl");
    fs::write(&path, (0..12).map(line).collect::<String>())?;
    Ok(path)
}

fn settings() -> Settings {
    Settings {
        optimizer: Optimizer::Adam(Adam::default()),
        schedule: Schedule::Constant(1e-3).after_warmup(1e-4, 2),
        batch_size: 4,
        accumulation: 1,
        max_length: 64,
        max_norm: None,
        recompute: false,
        seed: 7,
    }
}

fn lora() -> Kind {
    let keys = Some(KEYS.map(str::to_owned).to_vec());
    Kind::Lora { rank: 4, scale: 4.0, keys, dropout: 0.0, dora: false }
}

/// Low-rank updates with magnitudes (DoRA) and with dropout.
fn dora() -> Kind {
    let keys = Some(KEYS.map(str::to_owned).to_vec());
    Kind::Lora { rank: 4, scale: 4.0, keys, dropout: 0.25, dora: true }
}

fn losses(trainer: &mut Trainer, steps: usize) -> mlx_primitives::Result<Vec<f32>> {
    (0..steps).map(|_| Ok(trainer.step()?.loss)).collect()
}

fn bits(parameters: &Parameters) -> anyhow::Result<Vec<Vec<u32>>> {
    let bits = |array: &Array| Ok(array.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect());
    parameters.values().map(bits).collect()
}

/// A trainer has the same losses as a loop that calls the library's functions, bit for bit.
#[test(simulated = never)]
fn a_trainer_is_the_loop_that_it_stands_for() -> Checked {
    let folder = TempDir::new()?;
    let demo = Checkpoint::demo()?;
    let llama = &demo.llama;
    let data = Dataset::load(&texts(folder.path())?, &demo, None, false)?;
    assert_eq!((data.len(), data.is_empty()), (12, false));
    let trainable = Trainable::new(llama, lora(), 2)?;
    let mut trainer = Trainer::new(llama, &data, trainable, settings())?;

    let names: Vec<String> = trainer.parameters().keys().cloned().collect();
    assert_eq!(names.len(), 2 * 2 * KEYS.len());
    let mut arrays: Vec<Array> = trainer.parameters().values().cloned().collect();
    let zeros = || arrays.iter().map(|array| array.multiply(0.0)).collect::<Result<Vec<_>, _>>();
    let (mut m, mut v) = (zeros()?, zeros()?);
    for (step, rate) in (0..6).zip([1e-4f32, 5.5e-4, 1e-3, 1e-3, 1e-3, 1e-3]) {
        let number = data.order(4, 7, step / 3)[step as usize % 3];
        let batch = data.batch(number, 4, 64)?;
        let loss = |arrays: Vec<Array>| {
            let updates = names.chunks(2).zip(arrays.chunks(2)).map(|(names, pair)| {
                let name = names[0].trim_end_matches(".lora_a").to_owned();
                Ok((name, Lora::new(pair[0].clone(), pair[1].clone(), 4.0)?))
            });
            let adapters: Adapters = updates.collect::<mlx_primitives::Result<_>>()?;
            let cache = &mut llama.new_cache();
            let logits = llama.forward_adapted(&batch.inputs, cache, Some(&adapters))?;
            let options = CrossEntropy { ignore_index: Some(-1), ..Default::default() };
            let losses = ops::cross_entropy(&logits, &batch.targets, options)?;
            losses.sum(..)?.divide(batch.tokens as f32)
        };
        let (value, gradients) = transforms::value_and_grad(loss, &arrays)?;
        for (at, g) in gradients.iter().enumerate() {
            m[at] = m[at].multiply(0.9)?.add(g.multiply((1.0 - 0.9f64) as f32)?)?;
            v[at] = v[at].multiply(0.999)?.add(g.square()?.multiply((1.0 - 0.999f64) as f32)?)?;
            let step = m[at].multiply(rate)?.divide(v[at].sqrt()?.add(1e-8)?)?;
            arrays[at] = arrays[at].subtract(step)?;
        }
        let done = trainer.step()?;
        assert_eq!(done.loss.to_bits(), value.item::<f32>()?.to_bits(), "step {step}");
        assert_eq!((done.tokens, done.rate as f32), (batch.tokens, rate));
    }
    assert_eq!((trainer.steps(), trainer.curve()), (6, &[][..]));
    let mean = trainer.report();
    assert_eq!(trainer.curve(), [(6, mean.unwrap())]);
    assert_eq!(trainer.report(), None);
    let (before, after) = (
        evaluate(llama, &data, 4, 64, None, || {})?,
        evaluate(&trainer.model()?, &data, 4, 64, None, || {})?,
    );
    assert!(after < before - 0.05, "{before} {after}");
    Ok(())
}

/// A run is saved in the middle of an accumulation, of a pass over the data, and of the steps whose
/// losses the next report averages. It then resumes with the same bits as a run without
/// interruption. This also holds with recomputed layers and with packed weights.
#[test(simulated = never)]
fn resumed_runs_have_the_bits_of_whole_ones() -> Checked {
    let folder = TempDir::new()?;
    let demo = Checkpoint::demo()?;
    let data = Dataset::load(&texts(folder.path())?, &demo, None, false)?;
    let packed = demo.llama.quantized(Quantization::affine(32, 4))?;
    let options = Settings { accumulation: 2, max_norm: Some(0.5), ..settings() };
    for (at, (llama, kind, recompute)) in [
        (&demo.llama, lora(), true),
        (&packed, lora(), false),
        (&demo.llama, Kind::Full, true),
        (&packed, dora(), true),
    ]
    .into_iter()
    .enumerate()
    {
        let trainable = Trainable::new(llama, kind, 2)?;
        let new = |recompute| {
            let options = Settings { recompute, ..options.clone() };
            Trainer::new(llama, &data, trainable.clone(), options)
        };
        let mut whole = new(recompute)?;
        let expected = losses(&mut whole, 6)?;
        assert!(expected[4..].iter().sum::<f32>() < expected[..2].iter().sum(), "{expected:?}");
        let saved = folder.path().join(format!("run {at}"));
        let mut first = new(recompute)?;
        assert!(!first.resume(&saved)?);
        let mut got = losses(&mut first, 1)?;
        let reported = first.report();
        got.extend(losses(&mut first, 2)?);
        first.save(&saved, true)?;
        losses(&mut first, 1)?; // is lost
        let mut second = new(recompute)?;
        assert!(second.resume(&saved)?);
        assert_eq!(second.steps(), 3);
        got.extend(losses(&mut second, 3)?);
        assert_eq!(got, expected);
        assert_eq!(bits(second.parameters())?, bits(whole.parameters())?);
        assert_eq!(second.trained_tokens(), whole.trained_tokens());
        assert_eq!(second.curve(), [(1, reported.unwrap())]);
        assert_eq!((second.report().unwrap() as f32).to_bits(), {
            let sum: f64 = expected[1..].iter().map(|&loss| f64::from(loss)).sum();
            ((sum / 5.0) as f32).to_bits()
        });
        if recompute {
            // Layers that are recomputed give the same gradients as layers that keep their results.
            let mut kept = new(false)?;
            losses(&mut kept, 6)?;
            assert_eq!(bits(kept.parameters())?, bits(whole.parameters())?);
        }

        let mut third = new(recompute)?;
        third.load_adapters(saved.join("0000003_adapters.safetensors"))?;
        let mut other = new(recompute)?;
        other.resume(&saved)?;
        let tolerance = 1e-6; // of Gemma's norms alone
        for (own, theirs) in third.parameters().values().zip(other.parameters().values()) {
            for (own, theirs) in numbers(own)?.iter().zip(numbers(theirs)?) {
                assert!((own - theirs).abs() <= tolerance);
            }
        }
    }
    Ok(())
}

/// With DoRA, each row of a weight is scaled so that its norm equals a trained magnitude. The
/// magnitudes start as the norms of the rows. Dropout changes the losses of steps, but not of
/// evaluations.
#[test(simulated = never)]
fn magnitudes_are_norms_and_zeros_are_drawn_in_steps_alone() -> Checked {
    let folder = TempDir::new()?;
    let demo = Checkpoint::demo()?;
    let data = Dataset::load(&texts(folder.path())?, &demo, None, false)?;
    let keys = Some(vec!["mlp.down_proj".to_owned()]);
    let new = |dropout, seed, optimizer| {
        let kind = Kind::Lora { rank: 4, scale: 4.0, keys: keys.clone(), dropout, dora: true };
        let options = Settings { batch_size: 12, seed, optimizer, ..settings() };
        Trainer::new(&demo.llama, &data, Trainable::new(&demo.llama, kind, 1)?, options)
    };
    let run = |dropout, seed| {
        let mut trainer = new(dropout, seed, settings().optimizer)?;
        let losses = losses(&mut trainer, 5)?;
        anyhow::Ok((losses, trainer))
    };
    let ((plain, trainer), (dropped, other)) = (run(0.0, 1)?, run(0.5, 1)?);
    // In the first step the matrix B is zero, so the rows still have their original norms.
    let first = evaluate(&demo.llama, &data, 12, 64, None, || {})? as f32;
    for loss in [plain[0], dropped[0]] {
        assert!((loss - first).abs() < 1e-4, "{loss} {first}");
    }
    let apart = |a: f32, b: f32| (a - b).abs();
    assert!(
        plain[4] < plain[0] - 0.1 && apart(plain[4], dropped[4]) > 1e-5,
        "{plain:?} {dropped:?}"
    );
    assert!(apart(plain[4], dropped[4]) < 0.1, "{plain:?} {dropped:?}");
    assert_eq!(run(0.5, 1)?.0, dropped);
    // Averaged over many seeds, B's first gradient with dropout equals the gradient without
    // dropout.
    let sgd = Optimizer::Sgd(Sgd::default());
    let start = folder.path().join("start");
    new(0.0, 1, sgd)?.save(&start, false)?;
    let first = |dropout, seed| {
        let mut trainer = new(dropout, seed, sgd)?;
        trainer.load_adapters(start.join("adapters.safetensors"))?;
        trainer.step()?;
        numbers(&trainer.parameters()["model.layers.3.mlp.down_proj.lora_b"])
    };
    let expected = first(0.0, 0)?;
    let dot = |a: &[f64]| a.iter().zip(&expected).map(|(a, b)| a * b).sum::<f64>();
    let shares = (0..24).map(|seed| Ok(dot(&first(0.5, seed)?) / dot(&expected)));
    let shares = shares.collect::<anyhow::Result<Vec<f64>>>()?;
    let mean = shares.iter().sum::<f64>() / 24.0;
    assert!((mean - 1.0).abs() < 0.1 && shares[0] != shares[1], "{shares:?}");
    let model = other.model()?;
    let judge = || evaluate(&model, &data, 4, 64, None, || {});
    assert_eq!(judge()?, judge()?);

    // Compute the adapted weights from the saved files by DoRA's definition.
    trainer.save(folder.path(), false)?;
    let adapters = Adapters::load(folder.path(), &demo.llama)?;
    let name = "model.layers.3.mlp.down_proj";
    let (update, weights) = (adapters.get(name).unwrap(), demo.llama.weights());
    let magnitude = update.magnitude().unwrap();
    assert_eq!(
        bits(trainer.parameters())?[2],
        bits(&[("m".to_owned(), magnitude.clone())].into())?[0]
    );
    let LinearWeight::Plain(w) = &weights[&format!("{name}.weight")] else { panic!("packed") };
    let (rank, [n, k]) = (4, [128, 352]);
    let [a, b, w, m] = [update.a(), update.b(), w, magnitude].map(numbers);
    let (a, b, w, m) = (a?, b?, w?, m?);
    let mut expected = Vec::new();
    for row in 0..n {
        let delta = |at: usize| (0..rank).map(|r| b[row * rank + r] * a[r * k + at]).sum::<f64>();
        let moved: Vec<f64> = (0..k).map(|at| w[row * k + at] + 4.0 * delta(at)).collect();
        let norm = moved.iter().map(|x| x * x).sum::<f64>().sqrt();
        expected.extend(moved.into_iter().map(|x| x * m[row] / norm));
    }
    let merged = demo.llama.merged(&adapters)?;
    let LinearWeight::Plain(w) = &merged.weights()[&format!("{name}.weight")] else { panic!() };
    for (got, want) in numbers(w)?.iter().zip(&expected) {
        assert!((got - want).abs() < 1e-5, "{got} {want}");
    }
    let trained = evaluate(&trainer.model()?, &data, 4, 64, None, || {})?;
    assert!((evaluate(&merged, &data, 4, 64, None, || {})? - trained).abs() < 1e-4);
    let beside = Checkpoint::demo()?.llama.adapted(&adapters)?;
    assert!((evaluate(&beside, &data, 4, 64, None, || {})? - trained).abs() < 1e-5);
    Ok(())
}

#[test(simulated = never)]
fn states_of_other_runs_and_damaged_ones_are_refused() -> Checked {
    let folder = TempDir::new()?;
    let demo = Checkpoint::demo()?;
    let data = Dataset::load(&texts(folder.path())?, &demo, None, false)?;
    let new = |kind, settings| {
        Trainer::new(&demo.llama, &data, Trainable::new(&demo.llama, kind, 1)?, settings)
    };
    let mut trainer = new(lora(), settings())?;
    trainer.step()?;
    trainer.save(folder.path(), false)?;
    let mut other = new(lora(), Settings { seed: 8, ..settings() })?;
    let error = message(other.resume(folder.path()));
    assert!(error.contains("training_state.safetensors: expected a run of model"), "{error}");
    let error = message(other.load_adapters(folder.path().join("train.jsonl")));
    assert!(error.contains("train.jsonl"), "{error}");
    let mut whole = new(Kind::Full, settings())?;
    let error = message(whole.load_adapters(folder.path().join("adapters.safetensors")));
    assert!(error.contains("of the trained shape, got none"), "{error}");

    let path = folder.path().join("training_state.safetensors");
    let good = fs::read(&path)?;
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..60 {
        let mut bytes = good.clone();
        match random.u8(0..3) {
            0 => bytes.truncate(random.usize(..bytes.len())),
            _ => bytes[random.usize(..4000)] ^= 1 << random.u8(..8),
        }
        fs::write(&path, &bytes)?;
        let mut resumed = new(lora(), settings())?;
        if let Err(error) = resumed.resume(folder.path()) {
            assert!(error.to_string().contains("training_state.safetensors"), "{error}");
        }
    }
    Ok(())
}

#[test(simulated = never)]
fn what_cannot_be_trained_is_refused() -> Checked {
    let folder = TempDir::new()?;
    let demo = Checkpoint::demo()?;
    let data = Dataset::load(&texts(folder.path())?, &demo, None, false)?;
    let packed = demo.llama.quantized(Quantization::affine(32, 4))?;
    let part = |llama: &Llama, kind, layers| message(Trainable::new(llama, kind, layers));
    let with = |rank, keys: &[&str]| {
        let keys = Some(keys.iter().map(|&key| key.to_owned()).collect());
        Kind::Lora { rank, scale: 1.0, keys, dropout: 0.0, dora: false }
    };
    assert!(part(&packed, Kind::Full, 1).contains("got a packed model.layers.3"));
    assert!(part(&demo.llama, lora(), 5).contains("at most 4 layers, got 5"));
    assert!(part(&demo.llama, with(0, &KEYS), 1).contains("a rank of 1 to 128, got 0"));
    assert!(part(&demo.llama, with(129, &KEYS), 1).contains("got 129"));
    let all = Kind::Lora { rank: 1, scale: 1.0, keys: None, dropout: 1.0, dora: true };
    assert!(part(&demo.llama, all, 1).contains("a dropout of 0 to below 1, got 1"));
    assert!(part(&demo.llama, with(1, &["self_attn.r_proj"]), 1).contains("got self_attn.r_proj"));
    for (settings, expected) in [
        (Settings { batch_size: 13, ..settings() }, "a batch of 1 to 12 texts, got 13"),
        (Settings { batch_size: 0, ..settings() }, "a batch of 1 to 12 texts, got 0"),
        (Settings { accumulation: 0, ..settings() }, "at least 1 batch an update"),
        (Settings { max_length: 1, ..settings() }, "2 tokens a text"),
    ] {
        let trainable = Trainable::new(&demo.llama, lora(), 1)?;
        let error = message(Trainer::new(&demo.llama, &data, trainable, settings).map(drop));
        assert!(error.contains(expected), "{error}");
    }
    let trainable = Trainable::new(&demo.llama, Kind::Full, 4)?;
    let schedule = Schedule::Constant(1e30);
    let settings = Settings { schedule, ..settings() };
    let mut trainer = Trainer::new(&demo.llama, &data, trainable, settings)?;
    let error = message(losses(&mut trainer, 3));
    assert!(error.contains("a loss that is a number"), "{error}");
    Ok(())
}
