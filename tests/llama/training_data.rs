//! Training texts: the supported formats, and the lines that are refused.

use std::fs;

use mlx_primitives_llama::train::{Dataset, evaluate};
use mlx_primitives_llama::{ChatTemplate, Checkpoint};
use tempfile::TempDir;

use crate::support::{Checked, message};
use crate::training::texts;

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
    // Each pass over the data contains each batch once, in a new order.
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
