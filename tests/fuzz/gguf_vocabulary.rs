//! Draws the GGUF metadata entries that describe a tokenizer.

use fastrand::Rng;
use harness::support::gguf::{Entry, text};

use super::gguf::list;
use super::mutation::{once_in, one};

const TEXTS: &str = "<s> </s> <unk> a b ab aab ▁ ▁a ▁ab <0x0A> <0x61> Ġ Ċ Ġa é Ã © Ã© 1 x \
    <|im_end|> <|end|> <|call|> <|return|> [PAD] aaaaaaaaaaaaaaaa <0xFF>";

const TEMPLATES: [&str; 4] = [
    "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
    "{{ raise_exception('no') }}",
    "{% for",
    "",
];

fn of_kind(kind: u32, count: usize, items: Vec<u8>) -> Entry {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend((count as u64).to_le_bytes());
    bytes.extend(items);
    Entry::Raw(9, bytes)
}

fn texts(all: &[String]) -> Entry {
    let mut items = Vec::new();
    all.iter().for_each(|it| text(&mut items, it));
    of_kind(8, all.len(), items)
}

/// Draws the entries for `count` tokens. In about one vocabulary in three, an entry is missing or
/// replaced. Single tokens, scores, types and IDs may be invalid too.
pub fn vocabulary(rng: &mut Rng, count: usize) -> Vec<(String, Entry)> {
    let all = TEXTS.split(' ').chain(["", " "]);
    let mut tokens: Vec<String> = all.map(str::to_owned).collect();
    rng.shuffle(&mut tokens[3..]);
    tokens.truncate(count);
    while tokens.len() < count {
        tokens.push(format!("t{}", tokens.len()));
    }
    if once_in(rng, 20) {
        tokens[0] = tokens[count - 1].clone();
    }
    if once_in(rng, 30) {
        tokens[0] = "ab".repeat(rng.usize(..20_000));
    }
    let kind = *one(rng, &["llama", "llama", "gpt2", "gpt2", "t5", "none", "bert"]);
    let scores = (0..count).flat_map(|_| {
        let special = [f32::NAN, f32::INFINITY, 0.0, -1e30];
        let score = if once_in(rng, 60) { *one(rng, &special) } else { -10.0 * rng.f32() };
        score.to_le_bytes()
    });
    let scores: Vec<u8> = scores.collect();
    let types: Vec<u8> = (0..count)
        .flat_map(|id| {
            let usual = if id < 3 { [3, 3, 2][id] } else { 1 };
            let kind = if once_in(rng, 12) { rng.i32(-1..9) } else { usual };
            kind.to_le_bytes()
        })
        .collect();
    // A merge joins two tokens. The joined text is a token too, except in rare damaged merges.
    let mut merges = Vec::new();
    for left in &tokens {
        for right in &tokens {
            let wrong = once_in(rng, 2000);
            if !left.is_empty()
                && !right.is_empty()
                && (wrong || tokens.contains(&format!("{left}{right}")))
            {
                merges.push(format!("{left} {right}"));
            }
        }
    }
    let mut entries = vec![
        ("model", Entry::Text(kind.to_owned())),
        ("tokens", texts(&tokens)),
        ("scores", of_kind(6, count, scores)),
        ("token_type", of_kind(5, count, types)),
        ("merges", texts(&merges)),
    ];
    if rng.bool() {
        let names = ["default", "llama-bpe", "qwen2", "tekken", "deepseek-llm", "bloom", "other"];
        entries.push(("pre", Entry::Text((*one(rng, &names)).to_owned())));
    }
    for name in ["bos", "eos", "eot", "unknown", "padding", "fim_pad"] {
        if rng.bool() {
            let id = if once_in(rng, 25) { rng.u32(..) } else { rng.u32(..count as u32) };
            let key = ["bos_token_id", "eos_token_id", "eot_token_id", "unknown_token_id"];
            let key = key.into_iter().find(|key| key.starts_with(name));
            entries.push((key.unwrap_or("padding_token_id"), Entry::U32(id)));
        }
    }
    // Keys must be unique, so keep only the first entry of each.
    let mut seen = Vec::new();
    entries.retain(|(name, _)| {
        !seen.contains(name) && {
            seen.push(name);
            true
        }
    });
    for name in ["add_bos_token", "add_eos_token", "add_space_prefix", "remove_extra_whitespaces"] {
        if rng.bool() {
            entries.push((name, Entry::Raw(7, vec![rng.u8(..2)])));
        }
    }
    if once_in(rng, 4) {
        let length = rng.u32(..40);
        let said = if rng.bool() { length } else { rng.u32(..) };
        let mut map = said.to_le_bytes().to_vec();
        map.extend((0..length).map(|_| rng.u8(..)));
        entries.push(("precompiled_charsmap", of_kind(0, map.len(), map)));
    }
    if once_in(rng, 3) {
        let at = rng.usize(..entries.len());
        match rng.u8(..3) {
            0 => drop(entries.remove(at)),
            1 => entries[at].1 = Entry::U32(rng.u32(..9)),
            _ => entries[at].1 = list(rng),
        }
    }
    let mut all: Vec<(String, Entry)> = entries
        .into_iter()
        .map(|(name, entry)| (format!("tokenizer.ggml.{name}"), entry))
        .collect();
    if rng.bool() {
        let template = (*one(rng, &TEMPLATES)).to_owned();
        all.push(("tokenizer.chat_template".to_owned(), Entry::Text(template)));
    }
    all
}
