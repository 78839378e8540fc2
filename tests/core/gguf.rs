//! GGUF files, written here by hand from the format's specification.

use std::fs;
use std::path::Path;

use half::f16;
use mlx_primitives::Dtype;
use mlx_primitives::io::load_gguf;
use tempfile::TempDir;

use crate::support::{Checked, message};

const ALIGNMENT: usize = 32;

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// A file with one text entry, `f32` [2, 3] named "x" and `f16` [2] named "h".
fn valid() -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes()); // version
    bytes.extend(2u64.to_le_bytes()); // tensors
    bytes.extend(1u64.to_le_bytes()); // entries
    text(&mut bytes, "general.name");
    bytes.extend(8u32.to_le_bytes()); // a string
    text(&mut bytes, "tiny");
    // Dimensions are listed from the last; offsets are within the data.
    let tensors: [(&str, &[u64], u32, u64); 2] = [("x", &[3, 2], 0, 0), ("h", &[2], 1, 32)];
    for (name, dims, dtype, offset) in tensors {
        text(&mut bytes, name);
        bytes.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
        bytes.extend(dtype.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    (1..=6).for_each(|v| bytes.extend((v as f32).to_le_bytes()));
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    [1.0, -2.0].iter().for_each(|&v| bytes.extend(f16::from_f32(v).to_le_bytes()));
    bytes
}

/// A file with one tensor "x" of `f32`.
pub fn of_floats(values: &[f32]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes()); // version
    bytes.extend(1u64.to_le_bytes()); // tensors
    bytes.extend(0u64.to_le_bytes()); // entries
    text(&mut bytes, "x");
    bytes.extend(1u32.to_le_bytes()); // dimensions
    bytes.extend((values.len() as u64).to_le_bytes());
    bytes.extend(0u32.to_le_bytes()); // the type
    bytes.extend(0u64.to_le_bytes()); // the offset
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    values.iter().for_each(|v| bytes.extend(v.to_le_bytes()));
    bytes
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
    // Tensor count, entry count, the length of the first key.
    for at in [8, 16, 24] {
        for giant in [u64::MAX, 1 << 40, 1 << 63, u64::from(u32::MAX)] {
            let mut bytes = valid();
            bytes[at..at + 8].copy_from_slice(&giant.to_le_bytes());
            refused(&path, &bytes)?;
        }
    }
    Ok(())
}

/// Any single changed byte of a valid file: refused, or loaded with consistent arrays.
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

/// A file with two tensors of 32 elements, whose data is zeros, 512 bytes apart.
fn two_tensors(names: [&str; 2], kinds: [u32; 2]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(2u64.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    for ((name, kind), offset) in names.into_iter().zip(kinds).zip([0u64, 512]) {
        text(&mut bytes, name);
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(32u64.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT) + 1024, 0);
    bytes
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

/// The data disappears between the check of the header and the reading of the elements.
#[test]
fn a_file_that_becomes_shorter() -> Checked {
    let dir = TempDir::new()?;
    let path = dir.path().join("shorter.gguf");
    let whole = two_tensors(["x.weight", "y"], [12, 0]);
    // The first tensor as a block of Q4_K, 256 weights.
    let whole = {
        let at = whole.windows(8).position(|eight| eight == 32u64.to_le_bytes());
        let mut whole = whole;
        whole[at.expect("dimensions")..][..8].copy_from_slice(&256u64.to_le_bytes());
        whole
    };
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

/// A file with no tensors and one entry.
fn entry(kind: u32, value: &[u8]) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    text(&mut bytes, "key");
    bytes.extend(kind.to_le_bytes());
    bytes.extend(value);
    bytes
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
        // Without its last byte.
        let short = entry(kind, value);
        refused(&path, &short[..short.len() - 1])?;
    }
    // Lists of lists, and types that the format does not have.
    let nested = [9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    for (kind, value) in [(9, &nested[..]), (13, &[0; 8]), (u32::MAX, &[0; 8])] {
        refused(&path, &entry(kind, value))?;
    }
    // A list that is too long to be kept as text is skipped.
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
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        text(&mut bytes, "x.weight");
        bytes.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| bytes.extend(dim.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT) + 1024, 0);
        bytes
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
