//! Fuzzes GGUF files: files of random tensors and metadata entries, and files of small models with
//! tokenizers.

use std::fs;
use std::path::Path;

use fastrand::Rng;
use harness::support::gguf::{Entry, header, text};
use mlx_primitives::Array;
use mlx_primitives::io::load_gguf;
use mlx_primitives_llama::{ChatTemplate, Checkpoint, Llama};

use super::case::{Case, Fuzzer, Run};
use super::gguf_vocabulary::vocabulary;
use super::mutation::{self, once_in, one};

pub const FUZZER: Fuzzer = Fuzzer { name: "gguf", allowance: 16 << 20, prepare };

/// The number of each tensor type, and the number of elements and bytes of its block. The last type
/// is not supported.
const TYPES: [(u32, u64, u64); 19] = [
    (0, 1, 4),
    (1, 1, 2),
    (24, 1, 1),
    (25, 1, 2),
    (26, 1, 4),
    (30, 1, 2),
    (2, 32, 18),
    (3, 32, 20),
    (8, 32, 34),
    (14, 256, 210),
    (6, 32, 22),
    (7, 32, 24),
    (10, 256, 84),
    (11, 256, 110),
    (12, 256, 144),
    (13, 256, 176),
    (20, 32, 18),
    (23, 256, 136),
    (16, 256, 66),
];

fn prepare(folder: &Path) -> anyhow::Result<Run> {
    let path = folder.join("x.gguf");
    Ok(Box::new(move |rng| {
        let model = once_in(rng, 3);
        let file = if model { Gguf::model(rng) } else { Gguf::any(rng) };
        let bytes = file.damaged(rng);
        fs::write(&path, &bytes).expect("a file is written");
        let loaded = load_gguf(&path);
        for (name, array) in loaded.iter().flat_map(|tensors| &tensors.arrays) {
            array.eval().expect(name);
            assert!(array.nbytes() <= 8 * bytes.len() + 64, "{name}: {} bytes", array.nbytes());
        }
        let llama = Llama::load(&path);
        if let Ok(llama) = &llama {
            assert!(loaded.is_ok(), "a model of a file that does not load");
            let ids = Array::from_slice(&[0i32, 1], [1, 2]).expect("tokens");
            let logits = llama.forward(&ids, &mut llama.new_cache()).expect("logits");
            assert_eq!(logits.shape()[..2], [1, 2]);
            logits.eval().expect("logits are computed");
        }
        let checkpoint = Checkpoint::load(&path);
        if let Ok(Checkpoint { tokenizer, eos, .. }) = &checkpoint {
            assert!(llama.is_ok(), "a checkpoint of a file that is no model");
            for text in ["", "ab aab <s>b</s>\n1 é", "  x  "] {
                let tokens = tokenizer.encode(text).and_then(|_| tokenizer.encode_verbatim(text));
                let _ = tokens.and_then(|tokens| tokenizer.decode(&tokens));
            }
            assert!(eos.iter().all(|id| *id < 20), "{eos:?}");
        }
        let _ = ChatTemplate::load(&path);
        match model {
            true if llama.is_ok() => Case::new(bytes.len(), &checkpoint),
            true => Case::new(bytes.len(), &llama),
            false => Case::new(bytes.len(), &loaded),
        }
    }))
}

struct Tensor {
    name: String,
    /// GGUF lists the last dimension first.
    dims: Vec<u64>,
    kind: u32,
    bytes: u64,
}

struct Gguf {
    version: u32,
    alignment: u64,
    entries: Vec<(String, Entry)>,
    tensors: Vec<Tensor>,
}

impl Gguf {
    fn any(rng: &mut Rng) -> Self {
        let mut entries = vec![("general.name".to_owned(), Entry::Text("é".to_owned()))];
        for index in 0..rng.u32(..4) {
            let entry = match rng.u8(..4) {
                0 => Entry::U32(rng.u32(..)),
                1 => Entry::F32(f32::from_bits(rng.u32(..))),
                2 => Entry::Raw(rng.u32(..14), (0..rng.usize(..24)).map(|_| rng.u8(..)).collect()),
                _ => list(rng),
            };
            entries.push((format!("entry.{index}"), entry));
        }
        let alignment = *one(rng, &[32, 32, 32, 1, 8, 64]);
        if alignment != 32 {
            entries.push(("general.alignment".to_owned(), Entry::U32(alignment as u32)));
        }
        let mut tensors = Vec::new();
        for index in 0..rng.usize(..4) {
            let last = if once_in(rng, 15) { TYPES.len() } else { TYPES.len() - 1 };
            let (kind, elements, bytes) = *one(rng, &TYPES[..last]);
            let mut dims: Vec<u64> = (0..rng.usize(..3)).map(|_| rng.u64(..4)).collect();
            dims.insert(0, elements * rng.u64(1..3));
            let blocks = dims.iter().product::<u64>() / elements;
            let name =
                (*one(rng, &["x", "blk.0.ffn_up.weight", "x.scales", "weight", ""])).to_owned();
            let name = if rng.bool() { name } else { format!("{name}{index}") };
            tensors.push(Tensor { name, dims, kind, bytes: blocks * bytes });
        }
        Self { version: 3, alignment, entries, tensors }
    }

    /// A Llama with one layer.
    fn model(rng: &mut Rng) -> Self {
        let architecture = *one(rng, &["llama", "qwen2", "qwen3"]);
        // If a type's blocks have 256 weights, a row must have at least 256 weights.
        let (kinds, hidden) = match once_in(rng, 10) {
            true => (&[9, 12, 13, 14, 15, 17][..], 256u64),
            false => (&[0, 1, 5, 6, 8, 10, 11, 16][..], 32u64),
        };
        let (kind, elements, bytes) = TYPES[*one(rng, kinds)];
        let (wide, heads, kv_heads, vocab) = (hidden, 2u64, 1u64, rng.u64(4..20));
        let head = hidden / heads;
        let number =
            |key: &str, value: u64| (format!("{architecture}.{key}"), Entry::U32(value as u32));
        let mut entries = vec![
            ("general.architecture".to_owned(), Entry::Text(architecture.to_owned())),
            number("embedding_length", hidden),
            number("block_count", 1),
            number("feed_forward_length", wide),
            number("attention.head_count", heads),
            number("attention.head_count_kv", kv_heads),
            number("context_length", 64),
            (format!("{architecture}.attention.layer_norm_rms_epsilon"), Entry::F32(1e-5)),
            (format!("{architecture}.rope.freq_base"), Entry::F32(1e4)),
        ];
        if once_in(rng, 3) {
            let kind = (*one(rng, &["linear", "yarn", "none", "other"])).to_owned();
            entries.push((format!("{architecture}.rope.scaling.type"), Entry::Text(kind)));
            entries.push((format!("{architecture}.rope.scaling.factor"), Entry::F32(2.0)));
            entries.push(number("rope.scaling.original_context_length", 32));
        }
        if once_in(rng, 3) {
            let key = *one(
                rng,
                &[
                    "rope.scaling.attn_factor",
                    "rope.scale_linear",
                    "rope.dimension_count",
                    "attention.value_length",
                    "attention.sliding_window",
                    "expert_count",
                    "attention.scale",
                    "rope.scaling.yarn_beta_fast",
                ],
            );
            entries.push(match rng.bool() {
                true => number(key, *one(rng, &[0, 1, 16, 64])),
                false => (format!("{architecture}.{key}"), Entry::F32(rng.f32() * 2.0)),
            });
        }
        if once_in(rng, 8) {
            entries.push(("split.count".to_owned(), Entry::U32(rng.u32(..4))));
            entries.push(("split.no".to_owned(), Entry::U32(rng.u32(..4))));
        }
        if !once_in(rng, 4) {
            entries.extend(vocabulary(rng, vocab as usize));
        }
        let mut tensors = Vec::new();
        let mut matrix = |name: &str, rows: u64, columns: u64| {
            let bytes = rows * columns / elements * bytes;
            tensors.push(Tensor {
                name: format!("{name}.weight"),
                dims: vec![columns, rows],
                kind,
                bytes,
            });
        };
        matrix("token_embd", vocab, hidden);
        matrix("blk.0.attn_q", hidden, hidden);
        matrix("blk.0.attn_k", kv_heads * head, hidden);
        matrix("blk.0.attn_v", kv_heads * head, hidden);
        matrix("blk.0.attn_output", hidden, hidden);
        matrix("blk.0.ffn_gate", wide, hidden);
        matrix("blk.0.ffn_up", wide, hidden);
        matrix("blk.0.ffn_down", hidden, wide);
        let mut vector = |name: &str, length: u64| {
            let (name, dims) = (name.to_owned(), vec![length]);
            tensors.push(Tensor { name, dims, kind: 0, bytes: 4 * length });
        };
        ["output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"]
            .iter()
            .for_each(|name| vector(name, hidden));
        match architecture {
            "qwen2" => {
                vector("blk.0.attn_q.bias", hidden);
                vector("blk.0.attn_k.bias", kv_heads * head);
                vector("blk.0.attn_v.bias", kv_heads * head);
            }
            "qwen3" => {
                vector("blk.0.attn_q_norm.weight", head);
                vector("blk.0.attn_k_norm.weight", head);
            }
            _ => {}
        }
        if once_in(rng, 4) {
            vector("rope_freqs.weight", head / 2);
        }
        Self { version: 3, alignment: 32, entries, tensors }
    }

    /// Encodes the file. In most cases it is damaged.
    fn damaged(mut self, rng: &mut Rng) -> Vec<u8> {
        match rng.u8(..8) {
            0 => self.version = rng.u32(..5),
            1 if !self.entries.is_empty() => {
                let at = rng.usize(..self.entries.len());
                match rng.u8(..3) {
                    0 => drop(self.entries.remove(at)),
                    1 => self.entries[at].1 = Entry::U32(*one(rng, &[0, 1, 7, 1 << 20, u32::MAX])),
                    _ => self.entries[at].1 = list(rng),
                }
            }
            2 if !self.tensors.is_empty() => {
                let at = rng.usize(..self.tensors.len());
                let tensor = &mut self.tensors[at];
                match rng.u8(..5) {
                    0 => tensor.kind = rng.u32(..32),
                    1 => tensor.dims.reverse(),
                    2 => tensor.dims[0] = *one(rng, &[0, 1, 1 << 31, 1 << 32, 1 << 62, u64::MAX]),
                    3 => {
                        tensor.name = (*one(rng, &["blk.0.", "blk.9.x.weight", "x", ""])).to_owned()
                    }
                    _ => drop(self.tensors.remove(at)),
                }
            }
            _ => {}
        }
        let offset = once_in(rng, 12).then(|| *one(rng, &[1, 32, 1 << 20, u64::MAX - 31, 1 << 63]));
        let mut bytes = self.written(rng, offset);
        if once_in(rng, 3) {
            // Damage only the start of the file, which contains the header.
            let header = bytes.len().min(if rng.bool() { 64 } else { 1200 });
            let rest = bytes.split_off(header);
            mutation::bytes(rng, &mut bytes);
            bytes.extend(rest);
        }
        bytes
    }

    /// Encodes the file. Some tensors get `offset` in place of the right offset.
    fn written(&self, rng: &mut Rng, offset: Option<u64>) -> Vec<u8> {
        let entries: Vec<_> =
            self.entries.iter().map(|(key, value)| (key.as_str(), value.bytes())).collect();
        let (mut heads, mut end) = (Vec::new(), 0u64);
        for Tensor { name, dims, kind, bytes } in &self.tensors {
            let wrong = offset.filter(|_| once_in(rng, 2));
            heads.push((name.as_str(), dims.clone(), *kind, wrong.unwrap_or(end)));
            end = (end + bytes).next_multiple_of(self.alignment);
        }
        let mut bytes = header(self.version, self.alignment as usize, &entries, &heads);
        bytes.extend((0..end).map(|_| rng.u8(..)));
        bytes
    }
}

/// A list of numbers or strings. In most cases its type and length are correct.
pub fn list(rng: &mut Rng) -> Entry {
    let count = rng.u64(..5);
    let (kind, items): (u32, Vec<u8>) = match rng.bool() {
        true => (5, (0..4 * count).map(|_| rng.u8(..)).collect()),
        false => {
            let mut items = Vec::new();
            (0..count).for_each(|_| text(&mut items, "ab"));
            (8, items)
        }
    };
    let kind = if once_in(rng, 6) { rng.u32(..14) } else { kind };
    let count = if once_in(rng, 6) { *one(rng, &[0, 1 << 31, u64::MAX]) } else { count };
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(count.to_le_bytes());
    bytes.extend(items);
    Entry::Raw(9, bytes)
}
