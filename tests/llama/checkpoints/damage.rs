//! Damages a checkpoint's files. The seed of a random generator determines the damage.

use std::fs;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use serde_json::{Map, Value, json};

/// A random item of a list.
fn one<'a, T>(draw: &mut Rng, of: &'a [T]) -> &'a T {
    &of[draw.usize(..of.len())]
}

/// A description of the damage, and names that the error message must contain.
pub struct Damage {
    pub what: String,
    /// The checkpoint may load in spite of the damage.
    pub harmless: bool,
    pub names: Vec<String>,
}

impl Damage {
    fn new(what: String, harmless: bool, names: &[&str]) -> Self {
        Self { what, harmless, names: names.iter().map(|name| (*name).to_owned()).collect() }
    }
}

/// Values that are usually invalid as a dimension, an offset or a size.
const HOSTILE: [&str; 12] = [
    "-1",
    "0",
    "1",
    "2147483647",
    "2147483648",
    "4294967297",
    "9223372036854775807",
    "18446744073709551615",
    "1e308",
    "1e999",
    "NaN",
    "\"many\"",
];

const EXTENTS: [&str; 8] = [
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "vocab_size",
    "rms_norm_eps",
    "max_position_embeddings",
];

/// The weight files of a folder, which may be damaged.
fn weight_files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "safetensors" || e == "gguf"))
        .collect();
    files.sort();
    files
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// Parses the header of a safetensors file, and returns it with the data.
fn parts(bytes: &[u8]) -> (Map<String, Value>, &[u8]) {
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + length]).unwrap(), &bytes[8 + length..])
}

fn joined(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// The number of kinds of damage. The cases cycle through them.
pub const KINDS: usize = 12;

pub fn spoil(folder: &Path, kind: usize, draw: &mut Rng) -> Damage {
    let files = weight_files(folder);
    let path = one(draw, &files).clone();
    let file = name(&path);
    let mut bytes = fs::read(&path).unwrap();
    let gguf = file.ends_with("gguf");
    let config = folder.join("config.json");
    match kind {
        0 => {
            let length = draw.usize(..bytes.len().max(1));
            bytes.truncate(length);
            fs::write(&path, bytes).unwrap();
            Damage::new(format!("{file} cut to {length} bytes"), false, &[&file])
        }
        1 | 2 => {
            // Flip a bit. For kind 1 the bit is in the header, and with a probability of 1/4 in the
            // first 12 bytes of the file. For kind 2 the bit is after the header.
            let header = match gguf {
                true => 1500,
                false => 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize,
            };
            let at = match kind {
                1 if draw.usize(..4) == 0 => draw.usize(..12),
                1 => draw.usize(..header.max(1)),
                _ => header + draw.usize(..(bytes.len() - header).max(1)),
            };
            let bit = draw.usize(..8);
            bytes[at] ^= 1 << bit;
            fs::write(&path, bytes).unwrap();
            Damage::new(format!("{file} with bit {bit} of byte {at} flipped"), true, &[])
        }
        3..=6 if !gguf => spoil_entry(&path, &bytes, kind, draw),
        7 => {
            let length = *one(draw, &[u64::MAX, 1 << 62, 1 << 40, u64::from(u32::MAX), 0, 1]);
            let at = if gguf { 8 + 8 * draw.usize(..2) } else { 0 };
            let harmless = gguf && length < 2 && at == 16;
            bytes[at..at + 8].copy_from_slice(&length.to_le_bytes());
            fs::write(&path, bytes).unwrap();
            Damage::new(format!("{file} with a count of {length} at {at}"), harmless, &[&file])
        }
        8 | 9 if !gguf => {
            let key = *one(draw, &EXTENTS);
            let value = *one(draw, &HOSTILE);
            set(&config, key, value);
            // The shapes of tensors do not depend on these two keys. For other keys, only the value
            // 1 may be harmless.
            let harmless =
                value == "1" || ["max_position_embeddings", "rms_norm_eps"].contains(&key);
            Damage::new(format!("{key} of {value}"), harmless, &[])
        }
        10 if !gguf => {
            let (key, value) = *one(
                draw,
                &[
                    ("rope_theta", "NaN"),
                    ("rope_theta", "-1e308"),
                    ("rope_theta", "0"),
                    ("rope_scaling", r#"{"type": "linear", "factor": 0}"#),
                    ("rope_scaling", r#"{"type": "linear", "factor": -1e300}"#),
                    ("rope_scaling", r#"{"type": "yarn", "factor": 1e999}"#),
                    ("rope_scaling", r#"{"type": "llama3"}"#),
                    (
                        "rope_scaling",
                        r#"{"type": "longrope", "long_factor": [], "short_factor": []}"#,
                    ),
                    ("rope_scaling", r#"["linear"]"#),
                    ("head_dim", "1073741824"),
                    ("head_dim", "-16"),
                    ("model_type", "\"mamba\""),
                    ("model_type", "[]"),
                    ("quantization", r#"{"group_size": 1073741824, "bits": 4}"#),
                    ("quantization", r#"{"group_size": 0, "bits": 0}"#),
                    ("quantization", r#"{"group_size": 32, "bits": -4}"#),
                    ("layer_types", r#"["none"]"#),
                    ("tie_word_embeddings", "\"maybe\""),
                ],
            );
            set(&config, key, value);
            let harmless = key == "layer_types"; // some model types do not read it
            Damage::new(format!("{key} of {value}"), harmless, &["config.json"])
        }
        11 if !gguf => {
            let mut text = fs::read(&config).unwrap();
            let at = draw.usize(..text.len().max(1));
            let cut = draw.usize(..2) == 0;
            if cut {
                text.truncate(at);
            } else {
                text[at] ^= 1 << draw.usize(..8);
            }
            fs::write(&config, text).unwrap();
            let what = if cut { "cut" } else { "flipped" };
            Damage::new(format!("config.json {what} at {at}"), !cut, &[])
        }
        _ => {
            // In a GGUF file, this range contains metadata entries, and the names and dimensions of
            // tensors.
            let at = 24 + draw.usize(..3000);
            let run = 1 + draw.usize(..8);
            for byte in &mut bytes[at..at + run] {
                *byte = draw.u8(..);
            }
            fs::write(&path, bytes).unwrap();
            Damage::new(format!("{file} with {run} other bytes at {at}"), true, &[])
        }
    }
}

/// Sets a key of config.json to this text, which may be invalid JSON.
fn set(config: &Path, key: &str, value: &str) {
    let mut map: Map<String, Value> = serde_json::from_slice(&fs::read(config).unwrap()).unwrap();
    map.insert(key.to_owned(), json!("@value@"));
    let text = Value::Object(map).to_string().replace("\"@value@\"", value);
    fs::write(config, text).unwrap();
}

/// Damages the entry of one tensor in a safetensors header.
fn spoil_entry(path: &Path, bytes: &[u8], kind: usize, draw: &mut Rng) -> Damage {
    let (mut header, data) = parts(bytes);
    let file = name(path);
    let tensors: Vec<String> =
        header.keys().filter(|key| *key != "__metadata__").cloned().collect();
    let tensor = one(draw, &tensors).clone();
    let entry = header[&tensor].clone();
    // Errors about packed weights name the module, not the tensor.
    let module = tensor.rsplit_once('.').unwrap().0.to_owned();
    let mut names = vec![file.as_str(), module.as_str()];
    let mut harmless = false;
    let what;
    let text = match kind {
        3 => {
            let mut shape = entry["shape"].as_array().unwrap().clone();
            let axis = draw.usize(..shape.len().max(1));
            let value = *one(draw, &HOSTILE);
            shape[axis] = json!("@value@");
            header[&tensor]["shape"] = json!(shape);
            what = format!("{tensor} with dimension {axis} of {value}");
            names.truncate(if ["1e999", "NaN"].contains(&value) { 1 } else { 2 });
            Value::Object(header).to_string().replace("\"@value@\"", value)
        }
        4 => {
            let old = entry["dtype"].as_str().unwrap();
            let others: Vec<&str> = ["F64", "F32", "F16", "BF16", "U8", "I64", "F4", "", "U32"]
                .into_iter()
                .filter(|other| *other != old)
                .collect();
            let other = *one(draw, &others);
            header[&tensor]["dtype"] = json!(other);
            harmless = [old, other].iter().all(|dtype| ["F16", "BF16"].contains(dtype));
            what = format!("{tensor} of type {other:?}");
            Value::Object(header).to_string()
        }
        5 => {
            let at = draw.usize(..2);
            let value = *one(draw, &HOSTILE[3..]);
            header[&tensor]["data_offsets"][at] = json!("@value@");
            what = format!("{tensor} with offset {at} of {value}");
            names.truncate(if ["1e999", "NaN"].contains(&value) { 1 } else { 2 });
            Value::Object(header).to_string().replace("\"@value@\"", value)
        }
        _ => {
            // Remove the tensor's entry, rename it, or write it twice.
            header.remove(&tensor);
            let way = draw.usize(..3);
            what = format!("{tensor} {}", ["removed", "renamed", "twice"][way]);
            let mut text = match way {
                0 => {
                    names.truncate(1); // only a gap in the data is visible
                    Value::Object(header.clone()).to_string()
                }
                _ => {
                    header.insert(format!("{tensor}_"), entry.clone());
                    Value::Object(header.clone()).to_string()
                }
            };
            if way == 2 {
                let again = format!(",{}:{}}}", json!(tensor), entry);
                text.truncate(text.len() - 1);
                text += &again;
                names.truncate(1);
            }
            text
        }
    };
    fs::write(path, joined(&text, data)).unwrap();
    Damage::new(what, harmless, &names)
}
