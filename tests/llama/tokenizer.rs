//! Encodes texts and decodes them again, with byte-level, SentencePiece-like and WordPiece
//! vocabularies. Also decodes streams of tokens piece by piece.

use mlx_primitives_llama::{Checkpoint, Tokenizer};
use serde_json::{Value, json};

use crate::support::{Checked, message};

/// Texts whose characters take one to four bytes each, or are combined from several code points.
const TEXTS: [&str; 8] = [
    "Zoë saw a 🦊 and said “你好”.",
    "e\u{301} n\u{303} — combining, 👩‍👩‍👧‍👦 and 🏳️‍🌈 joined",
    "日本語と한국어、العربية",
    "  two spaces, a\ttab,\n\nlines  ",
    "🦊🦊🦊",
    "\u{10ffff}\u{7ff}\u{800}\u{ffff}\u{10000}\u{0}",
    "a legitimate \u{fffd} in between",
    "",
];

fn parse(json: &Value) -> Tokenizer {
    Tokenizer::parse(json.to_string().as_bytes()).unwrap()
}

/// A vocabulary like Llama 2's. Words start with `▁`, byte tokens represent unknown characters, and
/// `<s>` precedes every text.
fn sentencepiece() -> Value {
    let mut vocab = serde_json::Map::new();
    let mut add = |token: String| {
        let id = vocab.len();
        vocab.entry(token).or_insert(json!(id));
    };
    ["<unk>", "<s>", "</s>"].into_iter().for_each(|token| add(token.to_owned()));
    (0..=255).for_each(|byte| add(format!("<0x{byte:02X}>")));
    let letters = (' '..='~').filter(|c| *c != ' ' && *c != '<').map(|c| c.to_string());
    letters.chain(["▁".to_owned(), "▁a".to_owned(), "▁s".to_owned()]).for_each(&mut add);
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false,
               "rstrip": false, "normalized": false, "special": true})
    };
    json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": null,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "vocab": vocab,
            "merges": ["▁ a", "▁ s"]},
    })
}

fn wordpiece() -> Value {
    let words = ["[UNK]", "the", "fox", "##es", "##\u{fffd}", ".", ",", "do", "n't", "'", "é"];
    let vocab: serde_json::Map<String, Value> =
        words.iter().enumerate().map(|(id, word)| ((*word).to_owned(), json!(id))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab},
    })
}

/// Decodes a stream. Returns a piece for each token, and then the rest that the stream has held
/// back.
fn pieces(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<String> {
    let mut stream = tokenizer.stream();
    let mut pieces: Vec<String> = tokens.iter().map(|&t| stream.push(t).unwrap()).collect();
    pieces.push(stream.finish().unwrap());
    assert_eq!(stream.finish().unwrap(), "", "held-back text comes only once");
    pieces
}

fn ids(tokenizer: &Tokenizer, tokens: &[&str]) -> Vec<u32> {
    tokens.iter().map(|token| tokenizer.token_id(token).expect(token)).collect()
}

#[test(simulated = once)]
fn streams_give_the_text_in_whole_characters() -> Checked {
    let byte_level = Checkpoint::demo()?.tokenizer;
    for (name, tokenizer) in [("byte level", byte_level), ("bytes", parse(&sentencepiece()))] {
        for text in TEXTS {
            let tokens = tokenizer.encode(text)?;
            let pieces = pieces(&tokenizer, &tokens);
            assert_eq!(pieces.concat(), text, "{name}");
            // The stream holds back the text of byte tokens until another kind of token comes.
            let last = tokens.last().and_then(|last| tokenizer.token(*last));
            let held = last.is_some_and(|last| last.starts_with("<0x"));
            assert_eq!(
                pieces.last().is_some_and(|last| !last.is_empty()),
                held,
                "{name}: {text:?}"
            );
            for piece in &pieces {
                // A piece never contains a part of a character, so it has a replacement character
                // only if the text has one.
                let replaced = piece.contains('\u{fffd}');
                assert!(!replaced || text.contains('\u{fffd}'), "{name}: {pieces:?}");
            }
        }
    }
    Ok(())
}

#[test(simulated = once)]
fn invalid_bytes_are_replaced_and_never_held_for_long() -> Checked {
    let tokenizer = parse(&sentencepiece());
    let texts = |tokens: &[&str]| {
        let ids = ids(&tokenizer, tokens);
        let pieces = pieces(&tokenizer, &ids);
        assert_eq!(pieces.concat(), tokenizer.decode(&ids).unwrap());
        pieces
    };
    let fox = ["<0xF0>", "<0x9F>", "<0xA6>", "<0x8A>"];
    assert_eq!(texts(&fox), ["", "", "", "", "🦊"]);
    assert_eq!(texts(&[&fox[..], &["x", "y"]].concat()), ["", "", "", "", "🦊x", "y", ""]);
    // The last of a character's four bytes is missing.
    assert_eq!(texts(&fox[..3]), ["", "", "", "\u{fffd}\u{fffd}\u{fffd}"]);
    assert_eq!(texts(&["<0xE4>", "x"]), ["", "\u{fffd}x", ""]);
    assert_eq!(texts(&["<0xFF>", "<0xFF>", "x"]), ["", "", "\u{fffd}\u{fffd}x", ""]);
    // If a sequence of byte tokens is not valid UTF-8, each of its bytes is replaced, even the
    // bytes of complete characters.
    assert_eq!(texts(&["<0xE4>", "<0x41>"]), ["", "", "\u{fffd}\u{fffd}"]);
    let four = "\u{fffd}".repeat(4);
    assert_eq!(texts(&["<0xE4>", "<0xE4>", "<0xBD>", "<0xA0>"]), ["", "", "", "", &four]);
    // A special token between two byte tokens does not end the sequence.
    assert_eq!(texts(&["<0xE4>", "</s>", "<0xBD>", "<0xA0>", "x"]), ["", "", "", "", "你x", ""]);
    assert_eq!(texts(&["<s>", "▁s", "</s>", "y"]), ["", "s", "", "y", ""]);

    let tokenizer = Checkpoint::demo()?.tokenizer;
    // The tokens are the incomplete bytes F0 9F, and later a single byte A6.
    let tokens = ids(&tokenizer, &["ð", "Ł", "a", "¦", "b", "ð", "Ł"]);
    let shown = ["", "", "\u{fffd}a", "\u{fffd}", "b", "", "", "\u{fffd}"];
    assert_eq!(pieces(&tokenizer, &tokens), shown);
    assert_eq!(tokenizer.decode(&tokens)?, shown.concat());
    // A number that is not a token adds nothing to the text, in a stream and in `decode`.
    assert_eq!(pieces(&tokenizer, &[70, 9999, 71]).concat(), tokenizer.decode(&[70, 9999, 71])?);
    Ok(())
}

#[test(simulated = once)]
fn decoders_that_look_at_words_stream_too() -> Checked {
    let tokenizer = parse(&wordpiece());
    let words = ["the", "fox", "##es", ",", "do", "n't", ".", "the", "é"];
    let tokens = ids(&tokenizer, &words);
    assert_eq!(tokenizer.decode(&tokens)?, "the foxes, don't. the é");
    assert_eq!(pieces(&tokenizer, &tokens).concat(), "the foxes, don't. the é");
    // The text ends in a replacement character after each token. The stream must not hold it back
    // forever.
    let tokens = ids(&tokenizer, &[&["fox"][..], &["##\u{fffd}"; 30]].concat());
    let pieces = pieces(&tokenizer, &tokens);
    assert_eq!(pieces.concat(), tokenizer.decode(&tokens)?);
    assert!(pieces[..12].concat().contains('\u{fffd}'));
    Ok(())
}

/// Draws random tokens. Most of their bytes are invalid UTF-8.
#[test(simulated = once)]
fn any_byte_level_tokens_stream_as_they_decode() -> Checked {
    let tokenizer = Checkpoint::demo()?.tokenizer;
    let mut rng = fastrand::Rng::with_seed(1);
    for _ in 0..200 {
        let tokens: Vec<u32> = (0..rng.usize(..40)).map(|_| rng.u32(..512)).collect();
        assert_eq!(pieces(&tokenizer, &tokens).concat(), tokenizer.decode(&tokens)?, "{tokens:?}");
    }
    Ok(())
}

/// Draws random tokens: text tokens, valid and invalid sequences of byte tokens, and special
/// tokens. Decodes them with each decoder for vocabularies with byte tokens.
#[test(simulated = once)]
fn any_sentencepiece_tokens_stream_as_they_decode() -> Checked {
    let tokenizers: Vec<Tokenizer> = decoders().iter().map(parse).collect();
    let mut rng = fastrand::Rng::with_seed(2);
    let part = |rng: &mut fastrand::Rng| match rng.u8(..5) {
        0 => vec![rng.u32(..360)],
        1 => vec![rng.u32(3..259)],
        2 => rng.char(..).to_string().bytes().map(|byte| 3 + u32::from(byte)).collect(),
        3 => vec![3 + u32::from(b' ')],
        _ => vec![353], // a word's beginning alone
    };
    for _ in 0..200 {
        let tokens: Vec<u32> = (0..rng.usize(..16)).flat_map(|_| part(&mut rng)).collect();
        for (at, tokenizer) in tokenizers.iter().enumerate() {
            let decoded = tokenizer.decode(&tokens)?;
            assert_eq!(pieces(tokenizer, &tokens).concat(), decoded, "{at}: {tokens:?}");
        }
    }
    Ok(())
}

/// Copies of the tokenizer of [`sentencepiece`] with the decoders of Llama 2, Gemma and others.
fn decoders() -> Vec<Value> {
    let metaspace = |scheme: &str| json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false});
    let sequence = |first: Value, last: &[Value]| {
        let bytes = [json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        let parts: Vec<Value> =
            [first].into_iter().chain(bytes).chain(last.iter().cloned()).collect();
        json!({"type": "Sequence", "decoders": parts})
    };
    let replace = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
    let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
    let decoders = [
        sequence(replace.clone(), &[strip]),
        sequence(replace, &[]),
        sequence(metaspace("first"), &[]),
        sequence(metaspace("never"), &[]),
        json!({"type": "ByteFallback"}),
        metaspace("always"),
        json!(null),
    ];
    let with = |decoder| {
        let mut json = sentencepiece();
        json["decoder"] = decoder;
        json
    };
    decoders.into_iter().map(with).collect()
}

#[test(simulated = once)]
fn special_tokens_are_added_once() -> Checked {
    let tokenizer = parse(&sentencepiece());
    let [begin, word] = [1, tokenizer.token_id("▁a").unwrap()];
    assert_eq!(tokenizer.encode("a")?, [begin, word]);
    assert_eq!(tokenizer.encode_verbatim("a")?, [word]);
    // The output of a chat template already contains special tokens.
    assert_eq!(tokenizer.encode_verbatim("<s>a</s>")?.first(), Some(&begin));
    assert_eq!(tokenizer.encode_verbatim("<s>a</s>")?.last(), Some(&2));
    assert_eq!(tokenizer.encode("<s>a")?[..2], [begin, begin]);
    // The file truncates texts to five tokens. This crate ignores that.
    assert!(tokenizer.encode("a whole sentence of many words")?.len() > 20);
    assert!(tokenizer.is_special(1) && !tokenizer.is_special(word) && !tokenizer.is_special(9999));
    assert_eq!(tokenizer.token(word).as_deref(), Some("▁a"));
    assert_eq!((tokenizer.token(9999), tokenizer.token_id("nowhere")), (None, None));
    Ok(())
}

#[test(simulated = once)]
fn invalid_tokenizers_are_refused() {
    for json in ["", "{}", "[1]", r#"{"model": {"type": "Other"}}"#, "\u{0}"] {
        let text = message(Tokenizer::parse(json.as_bytes()));
        assert!(text.starts_with("[tokenizer] expected a usable tokenizer"), "{text}");
    }
}

/// A WordPiece tokenizer in which one part is replaced.
fn with_part(name: &str, part: Value) -> mlx_primitives::Result<Tokenizer> {
    let mut json = wordpiece();
    json[name] = part;
    Tokenizer::parse(json.to_string().as_bytes())
}

#[test(simulated = once)]
fn parts_that_make_the_tokenizer_panic_are_refused() -> Checked {
    let fixed = with_part("pre_tokenizer", json!({"type": "FixedLength", "length": 0}))?;
    assert!(message(fixed.encode("the fox")).contains("chunk size must be non-zero"));
    assert_eq!(fixed.encode("")?, [0u32; 0], "and goes on");
    let charsmap = |text: &str| json!({"type": "Precompiled", "precompiled_charsmap": text});
    // The parser reads the charsmap before it notices that the file is truncated.
    let cut = json!({"normalizer": charsmap("////fwAA")}).to_string();
    assert!(message(Tokenizer::parse(&cut.as_bytes()[..cut.len() - 1])).contains("EOF"));
    for (text, said) in [
        ("AAAAAA==", "a panic"),       // a length of 0: an empty table
        ("////fwAA", "a part of one"), // a length of 2 GB
        ("AAAA", "a part of one"),     // less than a length
        ("AA AA", "of base64"),
    ] {
        let text = message(with_part("normalizer", charsmap(text)).and_then(|t| t.encode("the")));
        assert!(text.starts_with("[tokenizer] expected"), "{text}");
        assert!(text.contains(said), "{text}");
    }
    let deep = wordpiece().to_string();
    let nested = "[".repeat(300) + &"]".repeat(300);
    let deep = deep.replace("\"prefix\":\"##\"", &format!(r#""prefix":{nested}"#));
    message(Tokenizer::parse(deep.as_bytes()));
    Ok(())
}

#[test(simulated = once)]
fn parts_that_multiply_a_text_are_refused() -> Checked {
    let double = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let sequence = |part: &Value, of: &str, count: usize| {
        let parts = vec![part.clone(); count];
        json!({"type": "Sequence", of: parts})
    };
    for (name, of, part) in [
        ("normalizer", "normalizers", double.clone()),
        ("normalizer", "normalizers", json!({"type": "ByteLevel"})),
        (
            "pre_tokenizer",
            "pretokenizers",
            json!({"type": "ByteLevel", "add_prefix_space": true,
            "trim_offsets": true, "use_regex": false}),
        ),
        ("decoder", "decoders", double),
        (
            "post_processor",
            "processors",
            json!({"type": "TemplateProcessing", "pair": [],
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "special_tokens": {}}),
        ),
    ] {
        let text = message(with_part(name, sequence(&part, of, 60)));
        assert!(
            text.contains("parts that make a text at most 4096 times as long"),
            "{name}: {text}"
        );
        let few = with_part(name, sequence(&part, of, 3));
        assert!(few.is_ok(), "{name}: {:?}", few.err());
    }
    Ok(())
}

/// Some regular expressions and templates take time or memory that grows faster than their length.
#[test(simulated = once)]
fn parts_that_take_long_are_refused() -> Checked {
    let split = |pattern: &str| {
        let pattern = json!({"Regex": pattern});
        let split =
            json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false});
        with_part("pre_tokenizer", split)
    };
    let written_out = "a".repeat(2_001);
    for pattern in [
        "(?:(?:a{0,50}){0,50}){0,50}",
        "(?:(?:a{0,50})?{0,50}){0,50}",
        "(?:[a-z]{50}){50}",
        r"\p{L}{50}{50}",
        "{(?:a{50}){50}",
        "]{50}{50}",
        "(((((((a{9}){9}){9}){9}){9}){9}){9})",
        &written_out,
    ] {
        let text = message(split(pattern));
        assert!(text.contains("a regular expression of at most 2000 parts"), "{pattern}: {text}");
    }
    // Llama 3's expression is accepted. Braces that are not a repetition count are accepted too.
    for pattern in [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"[a-z]{1,100}|\{|\}",
    ] {
        assert!(split(pattern)?.encode("the the")?.len() >= 2, "{pattern}");
    }
    let token = json!({"SpecialToken": {"id": "[UNK]", "type_id": 0}});
    let mut single = vec![token; 1_001];
    single.push(json!({"Sequence": {"id": "A", "type_id": 0}}));
    let template = json!({"type": "TemplateProcessing", "single": single, "pair": [],
                          "special_tokens": {"[UNK]": {"id": "[UNK]", "ids": [0], "tokens": ["[UNK]"]}}});
    let text = message(with_part("post_processor", template));
    assert!(text.contains("a template of at most 1000 pieces, got 1002"), "{text}");
    Ok(())
}
