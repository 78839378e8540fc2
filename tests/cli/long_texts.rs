//! The tokenizer splits long strings into parts. The tokens of the parts must equal the tokens that
//! the `tokenizers` crate computes for the complete string. The tokenizer also computes a lower
//! bound of the number of tokens, which must not exceed the actual number.

use std::collections::BTreeMap;

use mlx_primitives_llama::Tokenizer;
use serde_json::{Value, json};

use crate::command::{piped, stderr};
use crate::support::Checked;

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Returns the character that represents a byte in GPT-2's vocabularies.
fn written(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let before = (0..byte).filter(|byte| !printable(*byte)).count() as u32;
    if printable(byte) { char::from(byte) } else { char::from_u32(0x100 + before).unwrap() }
}

/// Makes a byte-pair model. Its vocabulary has all bytes, and for each pair the merged token.
fn model(bytes: bool, pairs: &[(&str, &str)]) -> Value {
    let mut vocab: BTreeMap<String, usize> = BTreeMap::new();
    let mut add = |token: String| {
        let next = vocab.len();
        vocab.entry(token).or_insert(next);
    };
    ["<s>", "</s>"].into_iter().for_each(|token| add(token.to_owned()));
    match bytes {
        true => (0..=255).for_each(|byte| add(written(byte).to_string())),
        false => {
            (0..=255).for_each(|byte| add(format!("<0x{byte:02X}>")));
            ('!'..='~').chain(['▁', 'é', '\n']).for_each(|c| add(c.to_string()));
        }
    }
    pairs.iter().for_each(|(a, b)| add(format!("{a}{b}")));
    let merges: Vec<[&str; 2]> = pairs.iter().map(|(a, b)| [*a, *b]).collect();
    json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
           "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": !bytes,
           "ignore_merges": false, "vocab": vocab, "merges": merges})
}

fn token(id: u32, content: &str) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
           "normalized": false, "special": true})
}

fn tokenizer(normalizer: Value, pre_tokenizer: Value, model: Value) -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [token(0, "<s>"), token(1, "</s>")],
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                       {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]},
                               "</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}},
        "model": model,
    })
}

fn split(pattern: &str, behavior: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior,
           "invert": behavior == "Removed"})
}

fn byte_level(regex: bool, prefix: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": regex})
}

fn pre_tokenizers(parts: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": parts})
}

const WORDS: [(&str, &str); 9] = [
    ("Ġ", "t"),
    ("h", "e"),
    ("Ġt", "he"),
    ("Ġ", "Ġ"),
    ("Ċ", "Ċ"),
    ("1", "2"),
    ("12", "3"),
    (".", "Ċ"),
    ("Ã", "©"),
];

/// Returns named tokenizers of the kinds that Llama models have. The last value is true if our
/// tokenizer can compute a useful lower bound of the number of tokens.
fn tokenizers() -> Vec<(&'static str, Value, bool)> {
    let words = |more: &[(&'static str, &'static str)]| model(true, &[&WORDS, more].concat());
    let spaces = |more: &[(&'static str, &'static str)]| {
        let words = WORDS.map(|(a, b)| (a.replace('Ġ', "▁"), b.replace('Ġ', "▁")));
        let words: Vec<(&str, &str)> =
            words[..7].iter().filter(|(a, _)| a != "Ċ").map(|(a, b)| (&**a, &**b)).collect();
        model(false, &[&words[..], more].concat())
    };
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let prepend = json!({"type": "Prepend", "prepend": "▁"});
    let metaspace = |scheme: &str, split: bool| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split});
    let llama3 = pre_tokenizers(&[split(LLAMA3, "Isolated"), byte_level(false, false)]);
    let mut eats_spaces = tokenizer(json!(null), byte_level(true, false), words(&[]));
    eats_spaces["added_tokens"][1]["content"] = json!("the");
    eats_spaces["added_tokens"][1]["rstrip"] = json!(true);
    eats_spaces["model"]["vocab"] = {
        let mut vocab = eats_spaces["model"]["vocab"].as_object().unwrap().clone();
        let id = vocab.remove("</s>").unwrap();
        vocab.insert("the".into(), id);
        json!(vocab)
    };
    eats_spaces["post_processor"] = json!(null);
    vec![
        ("GPT-2", tokenizer(json!(null), byte_level(true, false), words(&[])), true),
        (
            "a space in front",
            tokenizer(json!({"type": "NFC"}), byte_level(true, true), words(&[])),
            true,
        ),
        ("Llama 3", tokenizer(json!(null), llama3.clone(), words(&[])), true),
        (
            "matches alone",
            tokenizer(
                json!({"type": "NFC"}),
                pre_tokenizers(&[split(LLAMA3, "Removed"), byte_level(false, false)]),
                words(&[]),
            ),
            false,
        ),
        (
            "digits",
            tokenizer(
                json!(null),
                pre_tokenizers(&[
                    json!({"type": "Digits", "individual_digits": true}),
                    json!({"type": "Punctuation", "behavior": "Isolated"}),
                    byte_level(true, false),
                ]),
                words(&[]),
            ),
            true,
        ),
        (
            "Llama 2",
            tokenizer(
                json!({"type": "Sequence", "normalizers": [prepend, replace]}),
                json!(null),
                spaces(&[]),
            ),
            true,
        ),
        (
            "Gemma",
            tokenizer(
                replace,
                json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                       "invert": false}),
                spaces(&[]),
            ),
            true,
        ),
        ("Metaspace", tokenizer(json!(null), metaspace("first", false), spaces(&[])), true),
        (
            "Metaspace of words",
            tokenizer(json!(null), metaspace("always", true), spaces(&[])),
            true,
        ),
        // Tokens of the next tokenizers may contain a space or a line break, so the string must not
        // be split there.
        (
            "joined words",
            tokenizer(json!(null), metaspace("first", false), spaces(&[("e", "▁"), ("e▁", "t")])),
            true,
        ),
        (
            "joined lines",
            tokenizer(json!(null), byte_level(false, false), words(&[("e", "Ċ"), ("eĊ", "t")])),
            true,
        ),
        (
            "words in pairs",
            tokenizer(
                json!(null),
                pre_tokenizers(&[split(r"\w+ \w+|\w+|\W", "Isolated"), byte_level(false, false)]),
                words(&[("e", "Ġ"), ("he", "Ġ"), ("heĠt", "he"), ("heĠ", "t")][..2]),
            ),
            false,
        ),
        (
            "a look behind",
            tokenizer(
                json!(null),
                pre_tokenizers(&[
                    split(r"(?<=the) \w+|\w+|\W", "Isolated"),
                    byte_level(false, false),
                ]),
                words(&[]),
            ),
            false,
        ),
        ("a token that takes spaces", eats_spaces, true),
        (
            "stripped",
            tokenizer(
                json!({"type": "Strip", "strip_left": true, "strip_right": true}),
                byte_level(true, false),
                words(&[]),
            ),
            false,
        ),
    ]
}

/// Makes a random string of words, numbers, spaces, line breaks, special tokens and other scripts.
fn text(random: &mut fastrand::Rng, length: usize) -> String {
    let parts = [
        "the",
        " the",
        "he",
        " ",
        "  ",
        "   ",
        "\n",
        "\n\n",
        "\r\n",
        "\t",
        "123",
        "12",
        " 7",
        ".",
        ",",
        ".\n",
        "<s>",
        "</s>",
        "é",
        "你好",
        " 你",
        "e\u{301}",
        "🦊",
        "'s",
        "'",
        " a",
        "b ",
        "X",
        "▁",
        "Ġ",
        "\u{a0}",
        " Привет",
        "мир ",
        "-",
        "=====",
        "thethe",
    ];
    let mut text = String::new();
    while text.len() < length {
        text += parts[random.usize(..parts.len())];
    }
    text
}

#[test(simulated = never)]
fn parts_have_the_tokens_of_the_whole() -> Checked {
    let mut random = fastrand::Rng::with_seed(51);
    for (name, json, known) in tokenizers() {
        let json = json.to_string();
        let ours = Tokenizer::parse(json.as_bytes())?;
        let whole = tokenizers::Tokenizer::from_bytes(&json).unwrap();
        // The string is longer than one part.
        let long = text(&mut random, 70_000);
        for special in [true, false] {
            let expected = whole.encode_fast(&*long, special).unwrap();
            let tokens = if special { ours.encode(&long)? } else { ours.encode_verbatim(&long)? };
            let at = tokens.iter().zip(expected.get_ids()).position(|(a, b)| a != b);
            assert_eq!((at, tokens.len()), (None, expected.len()), "{name}, {special}");
        }
        for text in
            [text(&mut random, 3000), "the ".repeat(900), "=".repeat(999), "\n \n".repeat(9)]
        {
            let (fewest, tokens) = (ours.fewest_tokens(&text)?, ours.encode_verbatim(&text)?.len());
            assert!(fewest <= tokens, "{name}: {fewest} of {tokens}");
        }
        let fewest = ours.fewest_tokens(&"the ".repeat(10_000))?;
        assert_eq!(fewest > 5_000, known, "{name}: {fewest}");
    }
    Ok(())
}

/// `generate` and `chat` refuse a prompt of ten megabytes before they tokenize it.
#[test(simulated = never)]
fn prompts_that_cannot_fit_are_refused_at_once() {
    for prompt in ["a".repeat(10_000_000), "Once upon a time, ".repeat(550_000)] {
        for command in ["generate", "chat"] {
            let started = std::time::Instant::now();
            let arguments = [command, "-p", "-"];
            let output = piped(&arguments[..if command == "chat" { 1 } else { 3 }], &prompt);
            assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
            let said = stderr(&output);
            assert!(said.contains("expected a prompt of 1 to 256 tokens, got at least "), "{said}");
            // In a debug build, it would take minutes to tokenize the prompt.
            assert!(started.elapsed().as_secs() < 30, "{command}: {:?}", started.elapsed());
        }
    }
}
