//! Mutates inputs: bytes, text, JSON and safetensors files.

use fastrand::Rng;
use serde_json::{Map, Value, json};

/// Numbers that parsers often handle wrong.
const NUMBERS: &str = "0 -0.0 -1 1 2 3 0.5 127 256 65535 65536 2147483647 2147483648 -2147483648 \
    4294967295 4294967296 9223372036854775807 9223372036854775808 -9223372036854775808 \
    18446744073709551615 18446744073709551616 1e-320 1e308 1e999 NaN -Infinity";

/// Strings that parsers often handle wrong.
const TEXTS: [&str; 12] = [
    "",
    " ",
    "a",
    "\0",
    "\u{fffd}",
    "\u{10ffff}",
    "é\u{301}",
    "🦊",
    "../x",
    "__metadata__",
    "a very long text, longer than most that there are, in which nothing is said at all",
    "%s{}{{\\",
];

/// A random item of a list.
pub fn one<'a, T>(rng: &mut Rng, of: &'a [T]) -> &'a T {
    &of[rng.usize(..of.len())]
}

/// A random word of a list.
pub fn word(rng: &mut Rng, of: &[&'static str]) -> &'static str {
    of[rng.usize(..of.len())]
}

/// Draws a part of a text. The separator of the parts is the broken bar `¦`.
pub fn part_of<'a>(rng: &mut Rng, text: &'a str) -> &'a str {
    let parts: Vec<&str> = text.split('¦').map(str::trim).collect();
    parts[rng.usize(..parts.len())]
}

/// A random word of a text.
pub fn word_of<'a>(rng: &mut Rng, text: &'a str) -> &'a str {
    let words: Vec<&str> = text.split(' ').collect();
    words[rng.usize(..words.len())]
}

/// Returns true once in `times` calls, on average.
pub fn once_in(rng: &mut Rng, times: u32) -> bool {
    rng.u32(..times) == 0
}

/// Draws a range within this length. It may be empty.
fn span(rng: &mut Rng, length: usize) -> std::ops::Range<usize> {
    let start = rng.usize(..=length);
    let most = if once_in(rng, 4) { length } else { 16 };
    start..(start + rng.usize(..=most)).min(length)
}

/// Flips, cuts, moves, repeats and replaces bytes.
pub fn bytes(rng: &mut Rng, data: &mut Vec<u8>) {
    for _ in 0..1 + rng.usize(..3) {
        let place = span(rng, data.len());
        match rng.u8(..10) {
            0..=2 if !data.is_empty() => {
                let at = rng.usize(..data.len());
                data[at] ^= 1 << rng.u8(..8);
            }
            3 => data.truncate(place.start),
            4 => drop(data.drain(place)),
            5 => {
                let copy = data[place].to_vec();
                let at = rng.usize(..=data.len());
                data.splice(at..at, copy);
            }
            6 => data[place].iter_mut().for_each(|byte| *byte = rng.u8(..)),
            7 => {
                let random: Vec<u8> = (0..rng.usize(..32)).map(|_| rng.u8(..)).collect();
                data.splice(place, random);
            }
            8 => {
                let number = number_bytes(rng);
                let width = *one(rng, &[1, 2, 4, 8]);
                let end = (place.start + width).min(data.len());
                let count = end - place.start;
                data[place.start..end].copy_from_slice(&number[..count]);
            }
            _ => replace_number(rng, data),
        }
    }
}

fn number_bytes(rng: &mut Rng) -> [u8; 8] {
    let number = match rng.u8(..4) {
        0 => rng.u64(..),
        1 => rng.u64(..40),
        _ => 1 << rng.u32(..64),
    };
    number.wrapping_sub(u64::from(rng.bool())).to_le_bytes()
}

/// Replaces a number in decimal digits by another one.
fn replace_number(rng: &mut Rng, data: &mut Vec<u8>) {
    let from = rng.usize(..=data.len());
    let Some(start) = data[from..].iter().position(u8::is_ascii_digit) else { return };
    let start = from + start;
    let length = data[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    data.splice(start..start + length, word_of(rng, NUMBERS).bytes());
}

/// Mutates a text like [`bytes`], and also inserts words of the input's language. Afterwards it
/// replaces invalid UTF-8.
pub fn text(rng: &mut Rng, text: &str, words: &[&str]) -> String {
    let mut data = text.as_bytes().to_vec();
    for _ in 0..rng.usize(..4) {
        let place = span(rng, data.len());
        let at = place.start;
        let place = if once_in(rng, 3) { place } else { at..at };
        data.splice(place, one(rng, words).bytes());
    }
    if words.is_empty() || rng.bool() {
        bytes(rng, &mut data);
    }
    String::from_utf8_lossy(&data).into_owned()
}

// Prefixes of strings that stand for values that serde_json cannot represent. `written` replaces
// these strings by the values. It removes the prefix `AGAIN`, which makes a key a duplicate.
const NUMBER: &str = "@number@";
const DEEP: &str = "@deep@";
const AGAIN: &str = "@again@";

/// Changes a few parts of a document.
pub fn json(rng: &mut Rng, document: &mut Value) {
    for _ in 0..1 + rng.usize(..3) {
        let other = picked(rng, document).clone();
        let place = picked(rng, document);
        change(rng, place, other);
    }
}

/// Draws the document itself, or a value inside it at any depth.
fn picked<'a>(rng: &mut Rng, value: &'a mut Value) -> &'a mut Value {
    let empty = match &*value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => true,
    };
    if empty || once_in(rng, 4) {
        return value;
    }
    match value {
        Value::Array(items) => {
            let at = rng.usize(..items.len());
            picked(rng, &mut items[at])
        }
        Value::Object(fields) => {
            let name = any_key(rng, fields);
            picked(rng, &mut fields[&name])
        }
        other => other,
    }
}

fn any_key(rng: &mut Rng, fields: &Map<String, Value>) -> String {
    fields.keys().nth(rng.usize(..fields.len())).cloned().unwrap_or_default()
}

fn change(rng: &mut Rng, value: &mut Value, other: Value) {
    // Some formats contain JSON inside a string. Mutate that too.
    if let Value::String(inner) = value
        && let Ok(mut document @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(inner)
    {
        json(rng, &mut document);
        *inner = written(rng, &document);
        return;
    }
    match (rng.u8(..12), &mut *value) {
        (0..=2, Value::Object(fields)) if !fields.is_empty() => {
            let name = any_key(rng, fields);
            let field = fields.remove(&name).unwrap_or_default();
            match rng.u8(..4) {
                0 => {}
                1 => drop(fields.insert((*one(rng, &TEXTS)).to_owned(), field)),
                2 => {
                    let other = any_key_or(rng, fields, &name);
                    let swapped = fields.insert(other, field).unwrap_or_default();
                    fields.insert(name, swapped);
                }
                _ => {
                    fields.insert(format!("{AGAIN}{name}"), field.clone());
                    fields.insert(name, field);
                }
            }
        }
        (0..=2, Value::Array(items)) if !items.is_empty() => {
            let at = rng.usize(..items.len());
            match rng.u8(..4) {
                0 => drop(items.remove(at)),
                1 => items.push(items[at].clone()),
                2 => items.truncate(at),
                _ => {
                    let times = rng.usize(..100);
                    items.extend(vec![items[at].clone(); times]);
                }
            }
        }
        (0..=2, Value::String(text)) => {
            *text = self::text(rng, text, &TEXTS);
        }
        (0..=3, Value::Number(number)) => {
            let near = number.as_i64().unwrap_or(1);
            let step = *one(rng, &[-1, 1, 7, 32]);
            *value = match rng.bool() {
                true => json!(near.saturating_add(step)),
                false => json!(near.saturating_mul(step)),
            };
        }
        (4, _) => *value = json!(one(rng, &TEXTS)),
        (5, _) => *value = one(rng, &[json!(null), json!(true), json!([]), json!({})]).clone(),
        (6, _) => *value = json!(format!("{DEEP}{}", rng.usize(..3000))),
        (7, _) => *value = json!([value.take()]),
        (8, _) => *value = json!({"a": value.take()}),
        (9, _) => *value = other,
        _ => *value = json!(format!("{NUMBER}{}", word_of(rng, NUMBERS))),
    }
}

fn any_key_or(rng: &mut Rng, fields: &Map<String, Value>, default: &str) -> String {
    if fields.is_empty() { default.to_owned() } else { any_key(rng, fields) }
}

/// Writes a document as text. It may contain numbers that no type can represent, duplicate keys and
/// deep nesting.
pub fn written(rng: &mut Rng, document: &Value) -> String {
    let mut text = document.to_string().replace(AGAIN, "");
    while let Some((start, end, inner)) = marked(&text, NUMBER) {
        text.replace_range(start..end, &inner);
    }
    while let Some((start, end, inner)) = marked(&text, DEEP) {
        // Another mutation may have changed the depth. The limit keeps a document under 100 KB.
        let depth = inner.parse().unwrap_or(0).min(10_000);
        let [open, close] = *one(rng, &[["[", "]"], [r#"{"a":"#, "}"], ["[[],", "]"]]);
        let close = if rng.bool() { close.repeat(depth) } else { String::new() };
        text.replace_range(start..end, &format!("{}0{close}", open.repeat(depth)));
    }
    match once_in(rng, 10) {
        true => self::text(rng, &text, &["[", "]", "{", "}", ",", ":", "\"", "null", "\\u"]),
        false => text,
    }
}

/// Finds a string that begins with the mark. Returns its range with the quotes, and the text after
/// the mark.
fn marked(text: &str, mark: &str) -> Option<(usize, usize, String)> {
    let start = text.find(&format!("\"{mark}"))?;
    let inner = start + 1 + mark.len();
    let end = inner + text[inner..].find('"')?;
    // If the string is inside another string, a backslash precedes the quotes. Remove it.
    Some((start, end + 1, text[inner..end].replace('\\', "")))
}

/// Writes a document as text. In most cases it is mutated.
pub fn config(rng: &mut Rng, document: &Value) -> String {
    let mut document = document.clone();
    if !once_in(rng, 8) {
        json(rng, &mut document);
    }
    written(rng, &document)
}

/// Splits a valid safetensors file into its header and its data.
pub fn safetensors_parts(file: &[u8]) -> (Value, &[u8]) {
    let (length, rest) = file.split_first_chunk::<8>().expect("a length");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    (serde_json::from_slice(header).expect("a header of JSON"), data)
}

/// Builds a safetensors file from a header and data.
pub fn safetensors_file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Mutates a valid safetensors file. Many of the results are still valid.
pub fn safetensors(rng: &mut Rng, file: &[u8]) -> Vec<u8> {
    let mut file = file.to_vec();
    match rng.u8(..8) {
        0 => {}
        1 => bytes(rng, &mut file),
        2 | 3 => {
            let (mut header, data) = safetensors_parts(&file);
            json(rng, &mut header);
            file = safetensors_file(&written(rng, &header), data);
        }
        4 => {
            let (mut header, data) = safetensors_parts(&file);
            json(rng, &mut header["__metadata__"]);
            file = safetensors_file(&written(rng, &header), data);
        }
        5 => {
            let (header, data) = safetensors_parts(&file);
            let mut data = data.to_vec();
            let length = data.len();
            bytes(rng, &mut data);
            data.resize(length, 0);
            file = safetensors_file(&header.to_string(), &data);
        }
        _ => {
            let (mut header, data) = safetensors_parts(&file);
            retype(rng, &mut header);
            file = safetensors_file(&header.to_string(), data);
        }
    }
    file
}

/// Changes a tensor: its shape or type with the same size, its name, or the data that it refers to.
fn retype(rng: &mut Rng, header: &mut Value) {
    let Some(fields) = header.as_object_mut() else { return };
    let names: Vec<String> =
        fields.keys().filter(|name| *name != "__metadata__").cloned().collect();
    if names.is_empty() {
        return;
    }
    let (name, other) = (one(rng, &names), one(rng, &names));
    match rng.u8(..5) {
        0 => {
            if let Some(shape) = fields[name]["shape"].as_array_mut() {
                rng.shuffle(shape);
            }
        }
        1 => {
            if let Some(shape) = fields[name]["shape"].as_array_mut() {
                let size = shape.iter().filter_map(Value::as_u64).product::<u64>();
                *shape = one(rng, &[vec![json!(size)], vec![json!(1), json!(size)]]).clone();
            }
        }
        2 => {
            let sizes = [
                &["U8", "I8", "BOOL"][..],
                &["F16", "BF16", "U16", "I16"],
                &["F32", "U32", "I32"],
                &["U64", "I64"],
            ];
            let dtype = fields[name]["dtype"].as_str().unwrap_or_default().to_owned();
            if let Some(same) = sizes.iter().find(|same| same.contains(&dtype.as_str())) {
                fields[name]["dtype"] = json!(one(rng, same));
            }
        }
        3 => {
            let entry = fields.remove(name).unwrap_or_default();
            fields.insert(format!("{name}_"), entry);
        }
        _ => {
            let (a, b) = (fields[name].clone(), fields[other].clone());
            fields[name] = b;
            fields[other] = a;
        }
    }
}
