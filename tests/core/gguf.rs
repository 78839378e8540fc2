//! GGUF files that the tests write from the format's specification.

use std::fs;
use std::path::Path;

use half::f16;
use mlx_primitives::Dtype;
use mlx_primitives::io::gguf::GgufTensors;
use mlx_primitives::io::{KQuants, gguf_tensors, load_gguf};
use tempfile::TempDir;

use crate::support::compare::assert_same;
use crate::support::gguf::{Entry, Head, header, text};
use crate::support::{Checked, message};

/// Encodes a file with these metadata entries, tensors and data.
fn file(entries: &[(&str, Vec<u8>)], tensors: &[Head<'_>], data: &[u8]) -> Vec<u8> {
    [&header(3, 32, entries, tensors), data].concat()
}

/// A file with one metadata entry and two tensors: "x", `f32` [2, 3], and "h", `f16` [2].
fn valid() -> Vec<u8> {
    let entries = [("general.name", Entry::from("tiny").bytes())];
    // GGUF lists the last dimension first. Offsets count from the start of the data.
    let tensors = [("x", vec![3, 2], 0, 0), ("h", vec![2], 1, 32)];
    let mut data: Vec<u8> = (1..=6).flat_map(|v| (v as f32).to_le_bytes()).collect();
    data.resize(32, 0);
    data.extend([1.0, -2.0].into_iter().flat_map(|v| f16::from_f32(v).to_le_bytes()));
    file(&entries, &tensors, &data)
}

/// A file with one tensor "x" of `f32`.
pub fn of_floats(values: &[f32]) -> Vec<u8> {
    let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    file(&[], &[("x", vec![values.len() as u64], 0, 0)], &data)
}

#[track_caller]
fn refused(path: &Path, bytes: &[u8]) -> Checked {
    fs::write(path, bytes)?;
    let text = message(load_gguf(path));
    assert!(text.starts_with(&path.display().to_string()), "{text}");
    Ok(())
}

#[test]
fn a_valid_file() -> Checked {
    let dir = TempDir::new()?;
    let path = dir.path().join("tiny.gguf");
    fs::write(&path, valid())?;
    let loaded = load_gguf(&path)?;
    fs::remove_file(&path)?;
    assert_eq!(loaded.metadata["general.name"], "tiny");
    assert_eq!(loaded.arrays.len(), 2);
    let (x, h) = (&loaded.arrays["x"], &loaded.arrays["h"]);
    assert_eq!((x.shape(), x.dtype()), (&[2, 3][..], Dtype::Float32));
    assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(h.to_vec::<f16>()?, [f16::from_f32(1.0), f16::from_f32(-2.0)]);
    Ok(())
}

#[test]
fn files_of_another_kind() -> Checked {
    let dir = TempDir::new()?;
    let path = dir.path().join("other.gguf");
    for bytes in [&b""[..], b"G", b"GGU", b"GGML", b"hello, world", &[0; 100]] {
        refused(&path, bytes)?;
    }
    Ok(())
}

#[test]
fn truncated_anywhere() -> Checked {
    let dir = TempDir::new()?;
    let path = dir.path().join("short.gguf");
    let whole = valid();
    for length in 0..whole.len() {
        refused(&path, &whole[..length])?;
    }
    Ok(())
}

#[test]
fn giant_counts() -> Checked {
    let dir = TempDir::new()?;
    let path = dir.path().join("giant.gguf");
    // The byte offsets of the number of tensors, the number of entries, and the length of the first
    // key.
    for at in [8, 16, 24] {
        for giant in [u64::MAX, 1 << 40, 1 << 63, u64::from(u32::MAX)] {
            let mut bytes = valid();
            bytes[at..at + 8].copy_from_slice(&giant.to_le_bytes());
            refused(&path, &bytes)?;
        }
    }
    Ok(())
}

/// Flips one bit of a valid file at a time. The file is refused, or loads as consistent arrays.
#[test]
fn flipped_bytes() -> Checked {
    let dir = TempDir::new()?;
    let path = dir.path().join("flipped.gguf");
    let whole = valid();
    for at in 0..whole.len() {
        for flip in [1, 2, 4, 8, 0x80] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            fs::write(&path, &bytes)?;
            for array in load_gguf(&path).into_iter().flat_map(|t| t.arrays.into_values()) {
                array.eval()?;
                assert!(array.nbytes() <= whole.len());
            }
        }
    }
    Ok(())
}

/// A file with two tensors of 32 elements, 512 bytes apart. All their data is zero.
fn two_tensors(names: [&str; 2], kinds: [u32; 2]) -> Vec<u8> {
    let tensor = |i: usize| (names[i], vec![32], kinds[i], 512 * i as u64);
    file(&[], &[tensor(0), tensor(1)], &[0; 1024])
}

#[test]
fn colliding_names() -> Checked {
    let dir = TempDir::new()?;
    let path = dir.path().join("names.gguf");
    fs::write(&path, two_tensors(["x.weight", "y.scales"], [2, 0]))?;
    assert_eq!(load_gguf(&path)?.arrays.len(), 4);
    for (names, kinds) in [
        (["x.weight", "x.weight"], [0, 0]),
        (["x.weight", "x.scales"], [2, 0]),
        (["x.biases", "x.weight"], [0, 2]),
        (["x", "x.weight"], [2, 2]),
    ] {
        refused(&path, &two_tensors(names, kinds))?;
    }
    Ok(())
}

/// The file is truncated after its header was checked and before its elements are read.
#[test]
fn a_file_that_becomes_shorter() -> Checked {
    let dir = TempDir::new()?;
    let path = dir.path().join("shorter.gguf");
    // The first tensor is a block of Q4_K, 256 weights.
    let tensors = [("x.weight", vec![256], 12, 0), ("y", vec![32], 0, 512)];
    let whole = file(&[], &tensors, &[0; 1024]);
    fs::write(&path, &whole)?;
    let loaded = load_gguf(&path)?;
    let file = fs::File::options().write(true).open(&path)?;
    file.set_len(whole.len() as u64 - 1024)?;
    for name in ["x.weight", "x.scales", "x.biases", "y"] {
        let text = message(loaded.arrays[name].eval());
        assert!(text.contains("shorter.gguf") && text.contains(name), "{text}");
    }
    Ok(())
}

/// A file without tensors and with one metadata entry.
fn entry(kind: u32, value: &[u8]) -> Vec<u8> {
    // An alignment of 1 byte adds no padding.
    header(3, 1, &[("key", [&kind.to_le_bytes(), value].concat())], &[])
}

#[test]
fn entries_of_every_type() -> Checked {
    let dir = TempDir::new()?;
    let path = dir.path().join("entry.gguf");
    let (mut words, mut empty) = (Vec::new(), Vec::new());
    words.extend([8, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
    text(&mut words, "a");
    text(&mut words, "bc");
    text(&mut empty, "");
    let numbers = [&[5, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0][..], &[7, 0, 0, 0, 8, 0, 0, 0]].concat();
    for (kind, value, shown) in [
        (0, &[7][..], Some("7")),
        (3, &[7, 0], Some("7")),
        (5, &[7, 0, 0, 0], Some("7")),
        (6, &[0, 0, 0xc0, 0x3f], Some("1.5")),
        (7, &[1], Some("True")),
        (8, &empty, Some("")),
        (9, &numbers, Some("[7, 8]")),
        (9, &words, None),
        (11, &[7, 0, 0, 0, 0, 0, 0, 0], Some("7")),
        (12, &1.5f64.to_le_bytes(), Some("1.5")),
    ] {
        fs::write(&path, entry(kind, value))?;
        let loaded = load_gguf(&path)?;
        assert_eq!(loaded.metadata.get("key").map(String::as_str), shown, "{kind}");
        // Omit the last byte.
        let short = entry(kind, value);
        refused(&path, &short[..short.len() - 1])?;
    }
    // Lists of lists, and types that the format does not define.
    let nested = [9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    for (kind, value) in [(9, &nested[..]), (13, &[0; 8]), (u32::MAX, &[0; 8])] {
        refused(&path, &entry(kind, value))?;
    }
    // The loader skips lists of more than 1000 elements.
    let long = |count: u64| [&5u32.to_le_bytes()[..], &count.to_le_bytes(), &[1; 4004]].concat();
    fs::write(&path, entry(9, &long(1001)))?;
    assert!(load_gguf(&path)?.metadata.is_empty());
    refused(&path, &entry(9, &long(1002)))?;
    refused(&path, &entry(9, &long(u64::MAX)))
}

#[test]
fn impossible_tensors() -> Checked {
    let dir = TempDir::new()?;
    let path = dir.path().join("tensor.gguf");
    let file = |dims: &[u64], kind: u32, offset: u64| {
        file(&[], &[("x.weight", dims.to_vec(), kind, offset)], &[0; 1024])
    };
    // Every supported type, with 256 elements each.
    for kind in [0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 24, 25, 26, 27, 30] {
        let size = if kind == 27 { 2048 } else { 0 };
        fs::write(&path, [file(&[256], kind, 0), vec![0; size]].concat())?;
        let loaded = load_gguf(&path)?;
        assert!(loaded.arrays.contains_key("x.weight"), "type {kind}");
        refused(&path, &file(&[1 << 20], kind, 0))?;
        refused(&path, &file(&[256], kind, 1024))?;
    }
    for (dims, kind, offset) in [
        (&[][..], 0, 0),
        (&[1; 5], 0, 0),
        (&[1 << 32, 1 << 32], 0, 0),
        (&[u64::MAX], 0, 0),
        (&[0, 1 << 33], 0, 0),
        (&[1 << 30, 1 << 30, 16], 0, 0),
        (&[33], 2, 0),
        (&[256], 4, 0),
        (&[256], 31, 0),
        (&[256], u32::MAX, 0),
        (&[4], 0, 3),
        (&[4], 0, u64::MAX - 31),
        (&[4], 0, 1 << 40),
    ] {
        refused(&path, &file(dims, kind, offset))?;
    }
    Ok(())
}

/// The biases that loading calls centered are the scales times minus half of the number of codes.
#[test(simulated = never)]
fn biases_of_blocks_without_a_least_value_are_centered() -> Checked {
    for (name, factor) in [
        ("checkpoints/gguf-q4_0/model", Some(-8.0f32)),
        ("checkpoints/gguf-q8_0/model", Some(-128.0)),
        ("gguf/q5_0", Some(-16.0)),
        ("checkpoints/gguf-q4_1/model", None),
        ("gguf/q5_1", None),
    ] {
        let file = crate::support::root().join(format!("tests/fixtures/{name}.gguf"));
        let GgufTensors { arrays, centered, .. } = gguf_tensors(&file, KQuants::Affine)?;
        assert_eq!(centered.is_empty(), factor.is_none(), "{name}");
        for (name, factor) in centered.iter().zip(factor.into_iter().cycle()) {
            let scales = &arrays[&name.replace(".biases", ".scales")];
            let computed = scales.multiply(factor)?.astype(scales.dtype())?;
            assert_same(&arrays[name], &computed, name)?;
        }
    }
    Ok(())
}
