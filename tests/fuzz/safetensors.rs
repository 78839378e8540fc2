//! Fuzzes safetensors files, in memory and on disk. Compares this crate with the format's crate.

use std::fs;
use std::path::Path;

use fastrand::Rng;
use mlx_primitives::io::{Tensors, load_safetensors, load_safetensors_bytes};
use mlx_primitives::{Array, Dtype, Element, Result};
use safetensors::SafeTensors;
use serde_json::{Map, Value, json};

use super::case::{Case, Fuzzer, Run};
use super::mutation::{self, once_in, one};

pub const FUZZER: Fuzzer = Fuzzer { name: "safetensors", allowance: 4 << 20, prepare };

const TYPES: [(&str, u64); 14] = [
    ("BOOL", 1),
    ("U8", 1),
    ("I8", 1),
    ("U16", 2),
    ("I16", 2),
    ("F16", 2),
    ("BF16", 2),
    ("U32", 4),
    ("I32", 4),
    ("F32", 4),
    ("U64", 8),
    ("I64", 8),
    ("C64", 8),
    ("F64", 8), // MLX does not load it
];

fn prepare(folder: &Path) -> anyhow::Result<Run> {
    let adapters =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/adapters/adapters.safetensors");
    let adapters = fs::read(adapters)?;
    check(&load_safetensors_bytes(&adapters)?, &adapters); // starts MLX, which takes memory once
    let path = folder.join("x.safetensors");
    Ok(Box::new(move |rng| {
        let file = match once_in(rng, 20) {
            true => adapters.clone(),
            false => valid(rng),
        };
        let file = match once_in(rng, 16) {
            true => with_a_name_twice(rng),
            false => mutation::safetensors(rng, &file),
        };
        let loaded = load_safetensors_bytes(&file);
        if once_in(rng, 2) {
            fs::write(&path, &file).expect("a file is written");
            let from_disk = load_safetensors(&path);
            assert_eq!(loaded.is_ok(), from_disk.is_ok(), "in memory or on disk");
            if let Ok(tensors) = from_disk {
                check(&tensors, &file);
            }
        }
        if let Ok(tensors) = &loaded {
            check(tensors, &file);
        }
        Case::new(file.len(), &loaded)
    }))
}

/// A valid file with a few small tensors.
fn valid(rng: &mut Rng) -> Vec<u8> {
    let (mut header, mut end) = (Map::new(), 0);
    if rng.bool() {
        header.insert("__metadata__".to_owned(), json!({"format": "mlx", "é": "\n"}));
    }
    for index in 0..rng.usize(..5) {
        let (dtype, size) = *one(rng, &TYPES[..13]);
        let shape: Vec<u64> = (0..rng.usize(..4)).map(|_| rng.u64(..6)).collect();
        let start = end;
        end += size * shape.iter().product::<u64>();
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
        header.insert(format!("model.{index}"), entry);
    }
    let data: Vec<u8> = (0..end).map(|_| rng.u8(..)).collect();
    mutation::safetensors_file(&Value::Object(header).to_string(), &data)
}

/// A file in which two tensors may have the same name or the same bytes.
fn with_a_name_twice(rng: &mut Rng) -> Vec<u8> {
    let names = ["a", "b", "\\u0061", "__metadata__"];
    let mut start = 0;
    let entries: Vec<String> = (0..2 + rng.usize(..3))
        .map(|_| {
            let entry = json!({"dtype": "U8", "shape": [4], "data_offsets": [start, start + 4]});
            start += if once_in(rng, 4) { rng.usize(..5) } else { 4 };
            format!("\"{}\":{entry}", one(rng, &names))
        })
        .collect();
    mutation::safetensors_file(&format!("{{{}}}", entries.join(",")), &vec![7; start])
}

/// Checks that the loaded tensors equal the tensors that the `safetensors` crate reads.
fn check(tensors: &Tensors, file: &[u8]) {
    let reference = SafeTensors::deserialize(file).expect("a file that the format's reader takes");
    assert_eq!(tensors.arrays.len(), reference.len(), "tensors");
    for (name, view) in reference.tensors() {
        let array = &tensors.arrays[&name];
        let shape: Vec<usize> = array.shape().iter().map(|&dim| dim as usize).collect();
        assert_eq!(shape, view.shape(), "the shape of {name}");
        if array.dtype() == Dtype::Bool {
            let read = array.to_vec::<bool>().expect("bools");
            let bools: Vec<bool> = view.data().iter().map(|&byte| byte != 0).collect();
            assert_eq!(read, bools, "the elements of {name}");
        } else if let Some(read) = bytes_of(array) {
            assert_eq!(read.expect("elements"), view.data(), "the elements of {name}");
        }
    }
}

/// The bytes of an array's elements, or `None` if Rust has no type for them.
fn bytes_of(x: &Array) -> Option<Result<Vec<u8>>> {
    fn read<T: Element, const N: usize>(x: &Array, bytes: fn(T) -> [u8; N]) -> Result<Vec<u8>> {
        Ok(x.to_vec::<T>()?.into_iter().flat_map(bytes).collect())
    }
    Some(match x.dtype() {
        Dtype::Uint8 => read(x, u8::to_le_bytes),
        Dtype::Int8 => read(x, i8::to_le_bytes),
        Dtype::Uint16 => read(x, u16::to_le_bytes),
        Dtype::Int16 => read(x, i16::to_le_bytes),
        Dtype::Float16 => read(x, half::f16::to_le_bytes),
        Dtype::Bfloat16 => read(x, half::bf16::to_le_bytes),
        Dtype::Uint32 => read(x, u32::to_le_bytes),
        Dtype::Int32 => read(x, i32::to_le_bytes),
        Dtype::Float32 => read(x, f32::to_le_bytes),
        Dtype::Uint64 => read(x, u64::to_le_bytes),
        Dtype::Int64 => read(x, i64::to_le_bytes),
        _ => return None,
    })
}
