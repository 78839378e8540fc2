//! Fine-tunes of the demo model: their data, their losses, and how they end and go on.

use std::fs;
use std::path::{Path, PathBuf};

use mlx_primitives::ops::{self, CrossEntropy, Lora};
use mlx_primitives::{Array, transforms};
use mlx_primitives_llama::train::{
    Adam, Dataset, Kind, Optimizer, Parameters, Schedule, Settings, Trainable, Trainer, evaluate,
};
use mlx_primitives_llama::{Adapters, ChatTemplate, Checkpoint, Llama, Quantization};
use tempfile::TempDir;

use crate::support::compare::numbers;
use crate::support::{Checked, message};

const KEYS: [&str; 3] = ["self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"];

/// A file of texts of several lengths.
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
    Kind::Lora { rank: 4, scale: 4.0, keys }
}

fn losses(trainer: &mut Trainer, steps: usize) -> mlx_primitives::Result<Vec<f32>> {
    (0..steps).map(|_| Ok(trainer.step()?.loss)).collect()
}

fn bits(parameters: &Parameters) -> anyhow::Result<Vec<Vec<u32>>> {
    let bits = |array: &Array| Ok(array.to_vec::<f32>()?.into_iter().map(f32::to_bits).collect());
    parameters.values().map(bits).collect()
}

/// The losses of a trainer are those of a loop of the library's calls, bit for bit.
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

/// A run that ends in the middle of an accumulation, a pass and a report goes on as one that never
/// ended; layers that run again and packed weights change no more than they do in a step.
#[test(simulated = never)]
fn resumed_runs_have_the_bits_of_whole_ones() -> Checked {
    let folder = TempDir::new()?;
    let demo = Checkpoint::demo()?;
    let data = Dataset::load(&texts(folder.path())?, &demo, None, false)?;
    let packed = demo.llama.quantized(Quantization::affine(32, 4))?;
    let options = Settings { accumulation: 2, max_norm: Some(0.5), ..settings() };
    for (at, (llama, kind, recompute)) in
        [(&demo.llama, lora(), true), (&packed, lora(), false), (&demo.llama, Kind::Full, true)]
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
            // The first gradients are the same with layers that keep their results.
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
        Kind::Lora { rank, scale: 1.0, keys }
    };
    assert!(part(&packed, Kind::Full, 1).contains("got a packed model.layers.3"));
    assert!(part(&demo.llama, lora(), 5).contains("at most 4 layers, got 5"));
    assert!(part(&demo.llama, with(0, &KEYS), 1).contains("a rank of 1 to 128, got 0"));
    assert!(part(&demo.llama, with(129, &KEYS), 1).contains("got 129"));
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

const TEMPLATE: &str = r#"{"chat_template": "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}{% if tools %}{{ tools | length }} tools{% endif %}"}"#;

#[test(simulated = never)]
fn layouts_become_tokens() -> Checked {
    let folder = TempDir::new()?;
    let demo = Checkpoint::demo()?;
    let template = ChatTemplate::parse(TEMPLATE)?;
    let chat = "<user>Hello\n<assistant>Hi there\n";
    let messages = r#"{"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi there"}]"#;
    let completion = r#"{"prompt": "Hello", "completion": "Hi there", "text": "not read"}"#;
    let end = demo.eos[0];
    let plain =
        [demo.tokenizer.encode("Hello")?, demo.tokenizer.encode_verbatim("Hi there")?, vec![end]];
    let text = [demo.tokenizer.encode("Hello you")?, vec![end]].concat();
    let conversation = demo.tokenizer.encode_verbatim(chat)?;
    let tools = demo.tokenizer.encode_verbatim(&format!("{chat}2 tools"))?;
    let prompt = demo.tokenizer.encode_verbatim("<user>Hello\n<assistant>")?.len();
    let path = folder.path().join("data.jsonl");
    for (line, templated, masks, tokens, from) in [
        (r#"{"text": "Hello you"}"#.to_owned(), true, false, text, 0),
        (completion.to_owned(), false, false, plain.concat(), 0),
        (completion.to_owned(), false, true, plain.concat(), plain[0].len()),
        (completion.to_owned(), true, true, conversation.clone(), prompt),
        (format!("{messages}}}"), true, false, conversation.clone(), 0),
        (format!("{messages}, \"tools\": null}}"), true, true, conversation, prompt),
        (format!("{messages}, \"tools\": [1, 2]}}"), true, false, tools, 0),
    ] {
        fs::write(&path, &line)?;
        let template = template.as_ref().filter(|_| templated);
        let data = Dataset::load(&path, &demo, template, masks)?;
        let batch = data.batch(0, 1, 100)?;
        let length = (tokens.len().div_ceil(32) * 32) as i32;
        assert_eq!(
            (batch.inputs.shape(), batch.targets.shape()),
            (&[1, length][..], &[1, length][..])
        );
        let padded = |at: usize| tokens.get(at).copied().unwrap_or(0);
        let inputs: Vec<u32> = (0..length as usize).map(padded).collect();
        assert_eq!(batch.inputs.to_vec::<u32>()?, inputs, "{line}");
        let wanted = |at: usize| (at >= from && at <= tokens.len()).then(|| padded(at) as i32);
        let targets: Vec<i32> = (1..=length as usize).map(|at| wanted(at).unwrap_or(-1)).collect();
        assert_eq!(batch.targets.to_vec::<i32>()?, targets, "{line}");
        assert_eq!(batch.tokens, targets.iter().filter(|&&target| target >= 0).count());
        let cut = data.batch(0, 1, 4)?;
        assert_eq!(
            (cut.inputs.shape(), cut.truncated, batch.truncated),
            (&[1, 3][..], true, false)
        );
        assert!(data.batch(1, 1, 100).is_err() && data.batch(usize::MAX, 2, 100).is_err());
    }
    // Each batch comes once in a pass, and passes differ.
    let data = Dataset::load(&texts(folder.path())?, &demo, None, false)?;
    let orders: Vec<_> = (0..4).map(|pass| data.order(1, 5, pass)).collect();
    for order in &orders {
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..12).collect::<Vec<_>>());
    }
    assert!(orders[0] != orders[1] && orders[1] != orders[2]);
    assert_eq!(data.order(5, 0, 0).len(), 2);
    let widths = (0..12).map(|number| Ok(data.batch(number, 1, 99)?.tokens));
    assert!(widths.collect::<anyhow::Result<Vec<_>>>()?.is_sorted());
    Ok(())
}

#[test(simulated = never)]
fn malformed_lines_are_refused_by_their_numbers() -> Checked {
    let folder = TempDir::new()?;
    let demo = Checkpoint::demo()?;
    let template = ChatTemplate::parse(TEMPLATE)?;
    let path = folder.path().join("data.jsonl");
    let good = [
        r#"{"text": "a"}"#,
        r#"{"messages": [{"role": "user", "content": "a"}]}"#,
        r#"{"prompt": "a", "completion": "b"}"#,
    ];
    let long = format!(r#"{{"text": "{}"}}"#, "a".repeat(17 << 20));
    for (first, second, templated, masks, expected) in [
        (good[0], "", true, false, "line 2: [config] expected a JSON object"),
        (good[0], "[1]", true, false, "line 2: [config] expected a JSON object"),
        (good[0], r#"{"text": 1}"#, true, false, r#"line 2: [data] expected a string "text""#),
        (good[0], good[1], true, false, r#"line 2: [data] expected a string "text""#),
        (good[0], &long, true, false, "line 2: expected a line of less than 16 MiB"),
        (good[0], "\u{0}", true, false, "line 2: "),
        (good[1], r#"{"messages": []}"#, true, false, "line 2: [data] expected a list of messages"),
        (good[1], r#"{"messages": [{"role": 1}]}"#, true, false, "each with a role"),
        (
            good[1],
            r#"{"messages": [{"role": "user"}], "tools": 3}"#,
            true,
            false,
            "a list of tools",
        ),
        (good[1], good[1], false, false, "line 1: [data] expected a model with a chat template"),
        (good[2], r#"{"prompt": "a"}"#, true, false, r#"a string "completion""#),
        (good[0], good[0], true, true, "line 1: [data] expected prompts to mask"),
        (
            r#"{"x": "a"}"#,
            good[0],
            true,
            false,
            "line 1: [data] expected a string \"text\" (text, or prompt",
        ),
    ] {
        fs::write(&path, format!("{first}\n{second}\n"))?;
        let template = template.as_ref().filter(|_| templated);
        let error = message(Dataset::load(&path, &demo, template, masks).map(drop));
        assert!(error.contains("data.jsonl: line ") && error.contains(expected), "{error}");
    }
    let mut random = fastrand::Rng::with_seed(5);
    for round in 0..200 {
        let mut bytes = format!("{}\n{}\n", good[round % 3], good[round % 3]).into_bytes();
        let at = random.usize(..bytes.len());
        match round % 2 {
            0 => bytes[at] = random.u8(..),
            _ => drop(bytes.splice(at.., random.choose_multiple(bytes.clone(), 9))),
        }
        fs::write(&path, &bytes)?;
        if let Err(error) = Dataset::load(&path, &demo, template.as_ref(), false) {
            assert!(error.to_string().contains("data.jsonl: line "), "{error}");
        }
    }
    fs::write(&path, b"{\"text\": \"\xff\"}\n")?;
    assert!(message(Dataset::load(&path, &demo, None, false).map(drop)).contains("line 1: "));
    fs::write(&path, "")?;
    let empty = Dataset::load(&path, &demo, None, false)?;
    assert!(empty.is_empty() && empty.batch(0, 1, 9).is_err());
    assert!(evaluate(&demo.llama, &empty, 1, 9, None, || {}).is_err());
    Ok(())
}
