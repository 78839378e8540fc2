//! Writes GGUF files of small Llamas, from the format's specification.

use std::fs;
use std::path::Path;

const ALIGNMENT: usize = 32;

/// The value of an entry.
#[derive(Clone, Debug)]
pub enum Entry {
    Bool(bool),
    U16(u16),
    U32(u32),
    I32(i32),
    F32(f32),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Bytes(Vec<u8>),
    /// A type number, and bytes that need not be a value of this type.
    Raw(u32, Vec<u8>),
}

impl From<&str> for Entry {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<u32> for Entry {
    fn from(number: u32) -> Self {
        Self::U32(number)
    }
}

impl From<f32> for Entry {
    fn from(number: f32) -> Self {
        Self::F32(number)
    }
}

impl From<bool> for Entry {
    fn from(flag: bool) -> Self {
        Self::Bool(flag)
    }
}

/// A GGUF file of metadata entries and float32 tensors.
#[derive(Clone, Default)]
pub struct Gguf {
    pub entries: Vec<(String, Entry)>,
    pub tensors: Vec<(String, Vec<i32>, Vec<f32>)>,
}

impl Gguf {
    /// Sets an entry.
    pub fn set(&mut self, key: &str, value: impl Into<Entry>) -> &mut Self {
        self.entries.retain(|(known, _)| known != key);
        self.entries.push((key.to_owned(), value.into()));
        self
    }

    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.entries.retain(|(known, _)| known != key);
        self
    }

    pub fn tensor(&mut self, name: &str, shape: &[i32], values: Vec<f32>) -> &mut Self {
        self.tensors.retain(|(known, ..)| known != name);
        self.tensors.push((name.to_owned(), shape.to_vec(), values));
        self
    }

    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        fs::write(path, self.bytes())
    }

    pub fn bytes(&self) -> Vec<u8> {
        let (mut heads, mut data) = (Vec::new(), Vec::new());
        for (name, shape, values) in &self.tensors {
            let dims = shape.iter().rev().map(|dim| *dim as u64).collect();
            heads.push((name.as_str(), dims, 0, data.len() as u64));
            values.iter().for_each(|value| data.extend(value.to_le_bytes()));
            data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
        }
        let entries: Vec<_> =
            self.entries.iter().map(|(key, value)| (key.as_str(), value.bytes())).collect();
        [header(3, ALIGNMENT, &entries, &heads), data].concat()
    }
}

/// A tensor's header: its name, its dimensions with the last one first, its type, and the offset of
/// its elements in the data.
pub type Head<'a> = (&'a str, Vec<u64>, u32, u64);

/// Encodes a file up to its data. Each entry is given as the bytes of its type and value.
pub fn header(
    version: u32,
    alignment: usize,
    entries: &[(&str, Vec<u8>)],
    tensors: &[Head<'_>],
) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((entries.len() as u64).to_le_bytes());
    for (key, value) in entries {
        text(&mut bytes, key);
        bytes.extend(value);
    }
    for (name, dims, kind, offset) in tensors {
        text(&mut bytes, name);
        bytes.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(alignment), 0);
    bytes
}

/// Writes a text with its length.
pub fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// Encodes numbers one after the other.
fn numbers<const N: usize, T: Copy>(values: &[T], bytes: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|value| bytes(*value)).collect()
}

impl Entry {
    /// The type and the value as bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let of = |kind: u32, value: &[u8]| [&kind.to_le_bytes(), value].concat();
        let list = |kind: u32, count: usize, items: Vec<u8>| {
            of(9, &[&kind.to_le_bytes()[..], &(count as u64).to_le_bytes(), &items].concat())
        };
        let mut texts = Vec::new();
        match self {
            Self::Bool(flag) => of(7, &[(*flag).into()]),
            Self::U16(number) => of(2, &number.to_le_bytes()),
            Self::U32(number) => of(4, &number.to_le_bytes()),
            Self::I32(number) => of(5, &number.to_le_bytes()),
            Self::F32(number) => of(6, &number.to_le_bytes()),
            Self::Text(value) => {
                text(&mut texts, value);
                of(8, &texts)
            }
            Self::Texts(values) => {
                values.iter().for_each(|value| text(&mut texts, value));
                list(8, values.len(), texts)
            }
            Self::I32s(values) => list(5, values.len(), numbers(values, i32::to_le_bytes)),
            Self::F32s(values) => list(6, values.len(), numbers(values, f32::to_le_bytes)),
            Self::Bytes(values) => list(0, values.len(), values.clone()),
            Self::Raw(kind, value) => of(*kind, value),
        }
    }
}

/// The hidden size of [`speaker`]'s model. Each of its two heads has half as many features.
pub const HIDDEN: i32 = 64;

/// A Llama with one layer whose attention and feed-forward part add zero. The next token therefore
/// depends only on the last token. `next` lists pairs of a token and its successor. The file has no
/// vocabulary.
pub fn speaker(vocabulary: usize, next: &[(u32, u32)]) -> Gguf {
    let mut file = Gguf::default();
    file.set("general.architecture", "llama")
        .set("llama.embedding_length", HIDDEN as u32)
        .set("llama.block_count", 1u32)
        .set("llama.feed_forward_length", 32u32)
        .set("llama.attention.head_count", 2u32)
        .set("llama.attention.head_count_kv", 1u32)
        .set("llama.attention.layer_norm_rms_epsilon", 1e-5f32)
        .set("llama.rope.freq_base", 1e4f32)
        .set("llama.rope.dimension_count", HIDDEN as u32 / 2)
        .set("llama.context_length", 256u32);
    let width = HIDDEN as usize;
    let mut rng = fastrand::Rng::with_seed(7);
    let mut embedding = Vec::new();
    for _ in 0..vocabulary {
        let row: Vec<f32> = (0..width).map(|_| rng.f32() * 2.0 - 1.0).collect();
        let norm = row.iter().map(|v| v * v).sum::<f32>().sqrt();
        embedding.extend(row.iter().map(|v| 8.0 * v / norm));
    }
    let mut head = vec![0f32; vocabulary * width];
    for (from, to) in next {
        let (from, to) = (*from as usize * width, *to as usize * width);
        for index in 0..width {
            head[to + index] += embedding[from + index];
        }
    }
    let rows = vocabulary as i32;
    file.tensor("token_embd.weight", &[rows, HIDDEN], embedding);
    file.tensor("output.weight", &[rows, HIDDEN], head);
    for (name, rows, columns) in [
        ("attn_q", HIDDEN, HIDDEN),
        ("attn_k", HIDDEN / 2, HIDDEN),
        ("attn_v", HIDDEN / 2, HIDDEN),
        ("attn_output", HIDDEN, HIDDEN),
        ("ffn_gate", 32, HIDDEN),
        ("ffn_up", 32, HIDDEN),
        ("ffn_down", HIDDEN, 32),
    ] {
        let silent = ["attn_output", "ffn_down"].contains(&name);
        let values = (0..rows * columns).map(|_| if silent { 0.0 } else { rng.f32() - 0.5 });
        let values = values.collect();
        file.tensor(&format!("blk.0.{name}.weight"), &[rows, columns], values);
    }
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        file.tensor(&format!("{name}.weight"), &[HIDDEN], vec![1.0; width]);
    }
    file
}

/// The special tokens of [`bytes_speaker`]. In its vocabulary they come after a token for each
/// byte.
pub const SPECIAL: [&str; 6] =
    ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>"];

/// A [`speaker`] with a byte-level vocabulary that has no merges.
pub fn bytes_speaker(next: &[(u32, u32)]) -> Gguf {
    let mut file = speaker(256 + SPECIAL.len(), next);
    let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut tokens = Vec::new();
    let mut others = 256u32..;
    for byte in 0..256u32 {
        let code = if printable(byte) { Some(byte) } else { others.next() };
        tokens.push(code.and_then(char::from_u32).into_iter().collect::<String>());
    }
    tokens.extend(SPECIAL.map(str::to_owned));
    let types = [vec![1; 256], vec![3; SPECIAL.len()]].concat();
    file.set("tokenizer.ggml.model", "gpt2")
        .set("tokenizer.ggml.pre", "gpt-2")
        .set("tokenizer.ggml.tokens", Entry::Texts(tokens))
        .set("tokenizer.ggml.token_type", Entry::I32s(types))
        .set("tokenizer.ggml.merges", Entry::Texts(Vec::new()))
        .set("tokenizer.ggml.bos_token_id", 256u32)
        .set("tokenizer.ggml.eos_token_id", 257u32);
    file
}
