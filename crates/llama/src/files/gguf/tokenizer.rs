//! Makes a tokenizer from the entries `tokenizer.ggml.*`. The tokenizer produces the same tokens as
//! llama.cpp, except in the case that the module `spm` describes.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::models::unigram::Unigram;
use tokenizers::normalizers::precompiled::Precompiled;
use tokenizers::{
    AddedToken, DecoderWrapper, ModelWrapper, NormalizerWrapper, PostProcessorWrapper,
    PreTokenizerWrapper, Tokenizer,
};

use mlx_primitives::Result;
use mlx_primitives::io::gguf::{Entries, brief};

use super::keys::{flag, refused, text};
use super::pre_tokenizer::{self, PreTokenizer};
use super::spm;
use super::vocabulary::{self, Special, Token, Vocabulary, VocabularyKind};

/// The character that stands for a space in SentencePiece's tokens.
const SPACE: &str = "▁";

/// Makes the tokenizer that the entries of a file describe.
pub(super) fn of(entries: &Entries) -> Result<Tokenizer> {
    let vocabulary = Vocabulary::of(entries)?;
    let special = Special::of(entries)?;
    let mut tokenizer = match vocabulary.kind {
        VocabularyKind::Spm => pairs_by_score(entries, &vocabulary, &special)?,
        VocabularyKind::Bpe => byte_pairs(entries, &vocabulary)?,
        VocabularyKind::Unigram => unigrams(entries, &vocabulary, &special)?,
    };
    let added: Vec<AddedToken> = vocabulary
        .texts
        .iter()
        .zip(&vocabulary.tokens)
        .filter_map(|(text, token)| {
            let special = match token {
                Token::Control | Token::Unknown => true,
                Token::UserDefined => false,
                Token::Normal | Token::Unused | Token::Byte => return None,
            };
            Some(AddedToken::from(text.as_str(), special).normalized(false))
        })
        .collect();
    tokenizer.add_tokens(&added);
    if let Some(processor) = additions(&vocabulary, &special) {
        tokenizer.with_post_processor(Some(part::<PostProcessorWrapper>(processor)?));
    }
    Ok(tokenizer)
}

/// Parses a part of a tokenizer in the format of `tokenizer.json`.
fn part<T: DeserializeOwned>(json: Value) -> Result<T> {
    serde_json::from_value(json).map_err(unusable)
}

fn unusable(error: impl std::fmt::Display) -> mlx_primitives::Error {
    refused(format_args!("a usable tokenizer, got {}", brief(&error.to_string())))
}

/// Makes a tokenizer that merges neighboring tokens. It first merges the pair whose merged token
/// has the highest score. Characters without a token become byte tokens.
fn pairs_by_score(
    entries: &Entries,
    vocabulary: &Vocabulary,
    special: &Special,
) -> Result<Tokenizer> {
    let key = "tokenizer.ggml.scores";
    let scores = vocabulary::numbers(entries, key, vocabulary.texts.len())?
        .ok_or_else(|| refused(format_args!("{key}, got none")))?;
    let model = BPE::builder()
        .vocab_and_merges(ids(vocabulary), spm::merges(&vocabulary.texts, &scores)?)
        .byte_fallback(true)
        .fuse_unk(true);
    let model = match special.unk.and_then(|id| vocabulary.texts.get(id as usize)) {
        Some(unknown) => model.unk_token(unknown.clone()),
        None => model,
    };
    let mut tokenizer = Tokenizer::new(ModelWrapper::BPE(model.build().map_err(unusable)?));
    let prefix = flag(entries, "tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let mut normalizers = vec![spaces];
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": SPACE}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let normalizer = json!({"type": "Sequence", "normalizers": normalizers});
    tokenizer.with_normalizer(Some(part::<NormalizerWrapper>(normalizer)?));
    let decoder = json!({"type": "Sequence", "decoders": decoders});
    tokenizer.with_decoder(Some(part::<DecoderWrapper>(decoder)?));
    Ok(tokenizer)
}

/// Makes a tokenizer that splits a text into pieces and merges the bytes of each piece in the order
/// of a list.
fn byte_pairs(entries: &Entries, vocabulary: &Vocabulary) -> Result<Tokenizer> {
    let key = "tokenizer.ggml.merges";
    let single = |(text, token): (&String, &Token)| {
        !matches!(token, Token::Normal) || text.chars().nth(1).is_none()
    };
    let lines = match vocabulary::owned_texts(entries, key)? {
        Some(lines) => lines,
        // Some programs that write GGUF files leave out empty lists.
        None if vocabulary.texts.iter().zip(&vocabulary.tokens).all(single) => Vec::new(),
        None => return Err(refused(format_args!("{key}, got none"))),
    };
    let merges: Option<Vec<(String, String)>> = lines
        .iter()
        .map(|line| {
            // A space separates the two tokens of a pair. A space at the start of the line belongs
            // to the first token.
            let first = line.chars().next().map_or(0, char::len_utf8);
            let (start, rest) = line.split_at(first);
            let (left, right) = rest.split_once(' ')?;
            Some((format!("{start}{left}"), right.to_owned()))
        })
        .collect();
    let merges =
        merges.ok_or_else(|| refused(format_args!("pairs in {key}, got a line of one")))?;
    drop(lines);
    let PreTokenizer { patterns, ignore_merges } =
        pre_tokenizer::by_name(text(entries, "tokenizer.ggml.pre")?)?;
    let model = BPE::builder()
        .vocab_and_merges(ids(vocabulary), merges)
        .ignore_merges(ignore_merges)
        .build()
        .map_err(unusable)?;
    let mut tokenizer = Tokenizer::new(ModelWrapper::BPE(model));
    let mut parts: Vec<Value> = patterns
        .iter()
        .map(|pattern| {
            json!({
                "type": "Split",
                "pattern": {"Regex": pattern},
                "behavior": "Isolated",
                "invert": false,
            })
        })
        .collect();
    let bytes = json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": true,
        "use_regex": false,
    });
    parts.push(bytes.clone());
    let splits = json!({"type": "Sequence", "pretokenizers": parts});
    tokenizer.with_pre_tokenizer(Some(part::<PreTokenizerWrapper>(splits)?));
    tokenizer.with_decoder(Some(part::<DecoderWrapper>(bytes)?));
    Ok(tokenizer)
}

/// Makes a tokenizer that splits a text into the tokens with the highest sum of scores.
fn unigrams(entries: &Entries, vocabulary: &Vocabulary, special: &Special) -> Result<Tokenizer> {
    let key = "tokenizer.ggml.scores";
    let scores = vocabulary::numbers(entries, key, vocabulary.texts.len())?
        .filter(|scores| scores.iter().all(|score| score.is_finite()))
        .ok_or_else(|| refused(format_args!("finite {key}, got none")))?;
    let normal = |id: usize| matches!(vocabulary.tokens.get(id), Some(Token::Normal));
    let least = scores.iter().enumerate().filter(|(id, _)| normal(*id)).map(|(_, score)| *score);
    let least = least.fold(f64::INFINITY, f64::min).min(0.0);
    let texts = vocabulary.texts.iter().zip(&vocabulary.tokens).zip(scores);
    let model = texts.map(|((text, token), score)| {
        let score = match token {
            Token::Normal | Token::Unused => score,
            // The tokenizer finds special tokens before its unigram model runs, so the model does
            // not use their scores. Special tokens get the lowest normal score, because the model
            // derives the score of an unknown character from the lowest score of all tokens.
            _ => least,
        };
        (text.clone(), score)
    });
    let unknown =
        special.unk.ok_or_else(|| refused("tokenizer.ggml.unknown_token_id, got none"))?;
    let model = Unigram::from(model.collect(), Some(unknown as usize), false).map_err(unusable)?;
    let mut tokenizer = Tokenizer::new(ModelWrapper::Unigram(model));
    let says = |name: &str| flag(entries, &format!("tokenizer.ggml.{name}"));
    let prefix = says("add_space_prefix")?.unwrap_or(false);
    let merged = says("remove_extra_whitespaces")?.unwrap_or(false);
    let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
    if let Some(map) = vocabulary::bytes(entries, "tokenizer.ggml.precompiled_charsmap")?
        && !map.is_empty()
    {
        let said = map.first_chunk::<4>().map(|said| u64::from(u32::from_le_bytes(*said)));
        if said.is_none_or(|said| said.saturating_add(4) >= map.len() as u64) {
            return Err(refused("a whole tokenizer.ggml.precompiled_charsmap, got a part of one"));
        }
        let map = Precompiled::from(map).map_err(|error| unusable(format!("{error:?}")))?;
        normalizers.push(NormalizerWrapper::Precompiled(map));
    }
    let replace = |pattern: Value, content: &str| {
        part(json!({"type": "Replace", "pattern": pattern, "content": content}))
    };
    if merged {
        normalizers.push(replace(json!({"Regex": "^ +| +$"}), "")?);
        normalizers.push(replace(json!({"Regex": " {2,}"}), " ")?);
    }
    if prefix || merged {
        // The pattern adds a space only to a text that has a character other than a space.
        normalizers.push(replace(json!({"Regex": "^(?= *[^ ])"}), " ")?);
    }
    normalizers.push(replace(json!({"String": " "}), SPACE)?);
    let all = tokenizers::normalizers::Sequence::new(normalizers);
    tokenizer.with_normalizer(Some(NormalizerWrapper::Sequence(all)));
    let scheme = if prefix || merged { "always" } else { "never" };
    let decoder = json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": false});
    tokenizer.with_decoder(Some(part::<DecoderWrapper>(decoder)?));
    Ok(tokenizer)
}

fn ids(vocabulary: &Vocabulary) -> Vocab {
    vocabulary.texts.iter().cloned().zip(0u32..).collect()
}

/// Returns the post-processor that adds a first or last token to every text; `None` if the model
/// adds neither.
fn additions(vocabulary: &Vocabulary, special: &Special) -> Option<Value> {
    let named = |add: bool, id: Option<u32>| {
        let id = id.filter(|_| add)?;
        Some((id, vocabulary.texts.get(id as usize)?))
    };
    let (begin, end) = (named(special.add_bos, special.bos), named(special.add_eos, special.eos));
    if begin.is_none() && end.is_none() {
        return None;
    }
    let token = |(_, text): (u32, &String), kind: u8| json!({"SpecialToken": {"id": text, "type_id": kind}});
    let sequence = |name: &str, kind: u8| json!({"Sequence": {"id": name, "type_id": kind}});
    let around = |name: &str, kind: u8| -> Vec<Value> {
        let begin = begin.map(|begin| token(begin, kind));
        let end = end.map(|end| token(end, kind));
        begin.into_iter().chain([sequence(name, kind)]).chain(end).collect()
    };
    let entry = |(id, text): (u32, &String)| {
        (text.clone(), json!({"id": text, "ids": [id], "tokens": [text]}))
    };
    let tokens: serde_json::Map<String, Value> = begin.into_iter().chain(end).map(entry).collect();
    let pair = [around("A", 0), around("B", 1)].concat();
    Some(json!({
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": pair,
        "special_tokens": tokens,
    }))
}
