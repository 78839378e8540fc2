//! Fuzzes `tokenizer.json` with every part of the format. Tokenizes texts and decodes them again.

use std::fs;
use std::path::Path;

use fastrand::Rng;
use mlx_primitives::Result;
use mlx_primitives_llama::Tokenizer;
use serde_json::{Map, Value, json};

use super::case::{Case, Fuzzer, Run};
use super::mutation::{self, once_in, one, word};

pub const FUZZER: Fuzzer = Fuzzer { name: "tokenizer", allowance: 32 << 20, prepare };

const TEXTS: [&str; 8] = [
    "the foxes don't, do they? (10,000)",
    "Zoë saw a 🦊 and said “你好”.",
    "e\u{301} n\u{303} 👩‍👩‍👧‍👦 日本語와 العربية",
    "  two spaces, a\ttab,\r\n\nlines  ",
    "\u{10ffff}\u{7ff}\u{800}\u{ffff}\u{0}",
    "<s>a</s><unk><0x41>[UNK]▁x",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!",
    "",
];

fn prepare(folder: &Path) -> anyhow::Result<Run> {
    let folder = folder.to_owned();
    Ok(Box::new(move |rng| {
        let tokenizer = valid(rng);
        let mut text = mutation::config(rng, &tokenizer);
        let tokenizer = match once_in(rng, 3) {
            true => beside(rng, &folder, &mut text),
            false => Tokenizer::parse(text.as_bytes()),
        };
        if let Ok(tokenizer) = &tokenizer {
            let text = match rng.bool() {
                true => word(rng, &TEXTS).to_owned(),
                false => {
                    let words = ["the", " ", "fox", "<s>", "é", "\u{fffd}", "\n", "1"];
                    let text = word(rng, &TEXTS);
                    mutation::text(rng, text, &words)
                }
            };
            // For any text, the tokenizer may return tokens or an `Err`.
            let _ = there_and_back(rng, tokenizer, &text);
        }
        Case::new(text.len(), &tokenizer)
    }))
}

/// Loads the tokenizer from a folder with other files that name special tokens.
fn beside(rng: &mut Rng, folder: &Path, text: &mut String) -> Result<Tokenizer> {
    let words = ["<s>", "fox", "new", "", "<|new|>", "é", "<unk>", "the fox"];
    let token = |rng: &mut Rng| match rng.bool() {
        true => json!(word(rng, &words)),
        false => json!({"content": word(rng, &words), "lstrip": rng.bool(), "rstrip": rng.bool(),
                        "single_word": rng.bool(), "normalized": rng.bool(), "special": rng.bool()}),
    };
    let list = |rng: &mut Rng| json!([token(rng), token(rng)]);
    let mut config = json!({"eos_token": token(rng), "image_token": token(rng)});
    let names = ["additional_special_tokens", "extra_special_tokens", "bos_token", "pad_token"];
    let name = word(rng, &names);
    config[name] = if name.ends_with('s') { list(rng) } else { token(rng) };
    let number = 38 + rng.u32(..6);
    if rng.bool() {
        config["added_tokens_decoder"] = json!({(number.to_string()): token(rng)});
    }
    let named = json!({"eos_token": token(rng), "extra_special_tokens": {"a": token(rng)}});
    let added = json!({(word(rng, &words)): number, "new": number + 1});
    let files = [
        ("tokenizer_config.json", config),
        ("special_tokens_map.json", named),
        ("added_tokens.json", added),
    ];
    let tokenizer = text.clone();
    let written = |name: &str, content: &str| {
        // If the file cannot be written, the case runs without it.
        let _ = fs::write(folder.join(name), content);
    };
    written("tokenizer.json", &tokenizer);
    for (name, content) in files {
        let content = match once_in(rng, 4) {
            true => mutation::config(rng, &content),
            false => content.to_string(),
        };
        text.push_str(&content);
        written(name, &content);
    }
    let loaded = Tokenizer::load(folder);
    if let Ok(tokenizer) = &loaded {
        let _ = tokenizer.eos();
    }
    loaded
}

fn there_and_back(rng: &mut Rng, tokenizer: &Tokenizer, text: &str) -> Result<()> {
    let mut tokens = match rng.bool() {
        true => tokenizer.encode(text)?,
        false => tokenizer.encode_verbatim(text)?,
    };
    tokenizer.decode(&tokens)?;
    // Decode also tokens that are not in the text, and numbers that are not tokens.
    tokens.truncate(64);
    (0..rng.usize(..20)).for_each(|_| tokens.push(rng.u32(..40)));
    tokens.push(*one(rng, &[u32::MAX, 1 << 31, 1000]));
    rng.shuffle(&mut tokens);
    let mut stream = tokenizer.stream();
    let mut pieces = String::new();
    for &token in &tokens {
        let _ = tokenizer.token(token).map(|text| tokenizer.token_id(&text));
        let _ = tokenizer.is_special(token);
        pieces += &stream.push(token)?;
    }
    pieces += &stream.finish()?;
    tokenizer.decode(&tokens)?;
    Ok(())
}

/// A random tokenizer that follows the structure of the format.
fn valid(rng: &mut Rng) -> Value {
    let maybe = |rng: &mut Rng, part: fn(&mut Rng, u32) -> Value| match once_in(rng, 3) {
        true => json!(null),
        false => part(rng, 2),
    };
    let special = |id: u32, content: &str, flag: bool| {
        json!({"id": id, "content": content, "single_word": flag, "lstrip": flag, "rstrip": flag,
               "normalized": flag, "special": !flag})
    };
    let mut added = vec![special(0, "<unk>", false), special(1, "<s>", false)];
    if rng.bool() {
        added.push(special(40 + rng.u32(..3), "fox", rng.bool()));
    }
    let truncation = json!({"direction": "Right", "max_length": rng.u32(..5),
        "strategy": "LongestFirst", "stride": rng.u32(..3)});
    let padding = json!({"strategy": {"Fixed": rng.u32(..9)}, "direction": "Left",
        "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>"});
    json!({
        "version": "1.0",
        "truncation": if once_in(rng, 8) { truncation } else { json!(null) },
        "padding": if once_in(rng, 8) { padding } else { json!(null) },
        "added_tokens": added,
        "normalizer": maybe(rng, normalizer),
        "pre_tokenizer": maybe(rng, pre_tokenizer),
        "post_processor": maybe(rng, post_processor),
        "decoder": maybe(rng, decoder),
        "model": model(rng),
    })
}

/// Draws up to three parts. `depth` limits how deeply they nest.
fn several(rng: &mut Rng, depth: u32, part: fn(&mut Rng, u32) -> Value) -> Vec<Value> {
    (0..rng.usize(..4)).map(|_| part(rng, depth - 1)).collect()
}

fn pattern(rng: &mut Rng) -> Value {
    let strings = [" ", "a", "", "fox", "▁"];
    let regexes = [
        r"\s+",
        r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+",
        "",
        "(a*)*b",
        "(?i:'s|'t)|(?=x)",
        "(",
        r"(?<!a)b|^|$",
        "a{1000}",
        r"(\w+) \1",
        ".",
    ];
    match rng.bool() {
        true => json!({"String": one(rng, &strings)}),
        false => json!({"Regex": one(rng, &regexes)}),
    }
}

fn text(rng: &mut Rng) -> &'static str {
    word(rng, &["▁", " ", "", "a", "##", "é", "aa", "<s>"])
}

fn normalizer(rng: &mut Rng, depth: u32) -> Value {
    match rng.u8(..12) {
        0 if depth > 0 => {
            json!({"type": "Sequence", "normalizers": several(rng, depth, normalizer)})
        }
        1 => json!({"type": "Prepend", "prepend": text(rng)}),
        2 => json!({"type": "Replace", "pattern": pattern(rng), "content": text(rng)}),
        3 => {
            json!({"type": "BertNormalizer", "clean_text": rng.bool(), "handle_chinese_chars": rng.bool(),
                    "strip_accents": rng.bool(), "lowercase": rng.bool()})
        }
        4 => json!({"type": "Strip", "strip_left": rng.bool(), "strip_right": rng.bool()}),
        5 => json!({"type": "StripAccents"}),
        6 => json!({"type": one(rng, &["NFC", "NFD", "NFKC", "NFKD"])}),
        7 => json!({"type": "Lowercase"}),
        8 => json!({"type": "Nmt"}),
        9 => json!({"type": "ByteLevel"}),
        10 => json!({"type": "Precompiled", "precompiled_charsmap": charsmap(rng)}),
        _ => json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
    }
}

/// Base64 of random bytes, which the format does not check.
fn charsmap(rng: &mut Rng) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    // The table's length comes first, in four bytes. In base64, AAAA and AA are zeros.
    let start = *one(rng, &["", "AAAAAA", "BAAAAA", "AAQAAA"]);
    let rest = 4 * rng.usize(..12) + if start.is_empty() { 0 } else { 2 };
    let digits = (0..rest).map(|_| char::from(*one(rng, DIGITS)));
    start.chars().chain(digits).collect()
}

fn behavior(rng: &mut Rng) -> &'static str {
    word(rng, &["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"])
}

fn metaspace(rng: &mut Rng) -> Value {
    let scheme = one(rng, &["always", "never", "first"]);
    json!({"type": "Metaspace", "replacement": one(rng, &["▁", " ", "a"]), "prepend_scheme": scheme,
           "split": rng.bool(), "add_prefix_space": true})
}

fn byte_level(rng: &mut Rng) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": rng.bool(), "trim_offsets": rng.bool(),
           "use_regex": rng.bool()})
}

fn pre_tokenizer(rng: &mut Rng, depth: u32) -> Value {
    match rng.u8(..12) {
        0 if depth > 0 => {
            json!({"type": "Sequence", "pretokenizers": several(rng, depth, pre_tokenizer)})
        }
        1 => json!({"type": "BertPreTokenizer"}),
        2 => json!({"type": "CharDelimiterSplit", "delimiter": one(rng, &[" ", "é", "o"])}),
        3 => metaspace(rng),
        4 => json!({"type": one(rng, &["Whitespace", "WhitespaceSplit", "UnicodeScripts"])}),
        5 => json!({"type": "Punctuation", "behavior": behavior(rng)}),
        6 => json!({"type": "Digits", "individual_digits": rng.bool()}),
        7 => json!({"type": "FixedLength", "length": rng.u32(..6)}),
        8 | 9 => json!({"type": "Split", "pattern": pattern(rng), "behavior": behavior(rng),
                        "invert": rng.bool()}),
        _ => byte_level(rng),
    }
}

fn post_processor(rng: &mut Rng, depth: u32) -> Value {
    match rng.u8(..6) {
        0 if depth > 0 => {
            json!({"type": "Sequence", "processors": several(rng, depth, post_processor)})
        }
        1 => json!({"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", rng.u32(..3)]}),
        2 => json!({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1],
                    "trim_offsets": rng.bool(), "add_prefix_space": rng.bool()}),
        3 => byte_level(rng),
        _ => json!({
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                       {"Sequence": {"id": one(rng, &["A", "A", "B"]), "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1, 99], "tokens": ["<s>", "x"]}},
        }),
    }
}

fn decoder(rng: &mut Rng, depth: u32) -> Value {
    match rng.u8(..10) {
        0 if depth > 0 => json!({"type": "Sequence", "decoders": several(rng, depth, decoder)}),
        1 => json!({"type": "BPEDecoder", "suffix": text(rng)}),
        2 => byte_level(rng),
        3 => json!({"type": "WordPiece", "prefix": text(rng), "cleanup": rng.bool()}),
        4 => metaspace(rng),
        5 => json!({"type": "CTC", "pad_token": text(rng), "word_delimiter_token": text(rng),
                    "cleanup": rng.bool()}),
        6 => json!({"type": "Replace", "pattern": pattern(rng), "content": text(rng)}),
        7 => json!({"type": "Fuse"}),
        8 => json!({"type": "Strip", "content": one(rng, &[" ", "a", "é"]), "start": rng.u32(..4),
                    "stop": rng.u32(..4)}),
        _ => json!({"type": "ByteFallback"}),
    }
}

fn model(rng: &mut Rng) -> Value {
    let pieces = [
        "<unk>", "<s>", "</s>", "▁", "a", "b", "the", "fox", "##es", "é", "o", "x", "fo", "aa",
        " ", "▁a", "\u{fffd}", "Ġ", "1", ".", "<0x41>", "<0xE2>", "<0x96>",
    ];
    let vocab: Map<String, Value> =
        pieces.iter().enumerate().map(|(id, piece)| ((*piece).to_owned(), json!(id))).collect();
    match rng.u8(..8) {
        0 => {
            json!({"type": "WordLevel", "vocab": vocab, "unk_token": one(rng, &["<unk>", "none"])})
        }
        1 => json!({"type": "WordPiece", "unk_token": one(rng, &["<unk>", "none"]), "vocab": vocab,
                    "continuing_subword_prefix": text(rng), "max_input_chars_per_word": rng.u32(..101)}),
        2 | 3 => {
            let scored: Vec<Value> = pieces
                .iter()
                .map(|piece| json!([piece, if once_in(rng, 9) { 1e300 } else { -rng.f64() }]))
                .collect();
            let unknown =
                one(rng, &[json!(0), json!(0), json!(null), json!(22), json!(23)]).clone();
            json!({"type": "Unigram", "unk_id": unknown, "vocab": scored, "byte_fallback": rng.bool()})
        }
        _ => {
            let prefix = one(rng, &[json!(null), json!(null), json!("##"), json!("")]).clone();
            let suffix = one(rng, &[json!(null), json!(null), json!("</w>"), json!("")]).clone();
            let merges = match rng.bool() {
                true => json!(["f o", "fo x", "a a", "▁ a"]),
                false => json!([["f", "o"], ["a", "a"], ["▁", "a"]]),
            };
            let mut vocab = vocab;
            vocab.insert("f".to_owned(), json!(30));
            vocab.insert("fox".to_owned(), json!(31));
            json!({"type": "BPE", "dropout": one(rng, &[json!(null), json!(null), json!(0.5)]),
                   "unk_token": one(rng, &[json!("<unk>"), json!(null), json!("none")]),
                   "continuing_subword_prefix": prefix, "end_of_word_suffix": suffix,
                   "fuse_unk": rng.bool(), "byte_fallback": rng.bool(), "ignore_merges": rng.bool(),
                   "vocab": vocab, "merges": if once_in(rng, 3) { merges } else { json!([]) }})
        }
    }
}
