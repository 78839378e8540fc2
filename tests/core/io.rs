//! Safetensors files: writes files and reads them again, and reads many broken files.

use std::fs;
use std::path::Path;

use half::{bf16, f16};
use mlx_primitives::io::{load_gguf, load_safetensors, load_safetensors_bytes, save_safetensors};
use mlx_primitives::{Array, Dtype, ops};
use tempfile::TempDir;

use crate::support::compare::assert_same;
use crate::support::input::{LAYOUTS, random32};
use crate::support::{Checked, message, safetensors as file};

/// Checks that a file with these bytes is refused with an error that names it.
#[track_caller]
fn refused(dir: &TempDir, name: &str, bytes: &[u8]) -> Checked {
    let path = dir.path().join(name).with_extension("safetensors");
    fs::write(&path, bytes)?;
    let text = message(load_safetensors(&path));
    assert!(text.starts_with(&path.display().to_string()), "{name}: {text}");
    assert!(load_safetensors_bytes(bytes).is_err(), "{name} in memory");
    Ok(())
}

fn one_of_each() -> mlx_primitives::Result<Vec<(&'static str, Array)>> {
    Ok(vec![
        ("bool", Array::from_slice(&[true, false], [2])?),
        ("u8", Array::from_slice(&[1u8, 255], [2])?),
        ("u16", Array::from_slice(&[1u16, u16::MAX], [2])?),
        ("u32", Array::from_slice(&[1u32, u32::MAX], [2])?),
        ("u64", Array::from_slice(&[1u64, u64::MAX], [2])?),
        ("i8", Array::from_slice(&[i8::MIN, 1], [2])?),
        ("i16", Array::from_slice(&[i16::MIN, 1], [2])?),
        ("i32", Array::from_slice(&[i32::MIN, 1], [2])?),
        ("i64", Array::from_slice(&[i64::MIN, 1], [2])?),
        ("f16", Array::from_slice(&[f16::MAX, f16::from_bits(1)], [2])?),
        ("bf16", Array::from_slice(&[bf16::MAX, bf16::from_bits(1)], [2])?),
        ("f32", Array::from_slice(&[f32::MAX, f32::from_bits(1)], [1, 2])?),
    ])
}

#[test]
fn every_type_survives_a_round_trip() -> Checked {
    let dir = TempDir::new()?;
    let path = dir.path().join("all.safetensors");
    let arrays = one_of_each()?;
    let named = || arrays.iter().map(|(name, array)| (*name, array));
    save_safetensors(&path, named(), [("format", "mlx"), ("say \"ä\"", "line\nbreak")])?;
    let loaded = load_safetensors(&path)?;
    let bytes = fs::read(&path)?;
    fs::remove_file(&path)?; // lazy arrays hold the open file
    let in_memory = load_safetensors_bytes(&bytes)?;
    drop(bytes);
    for loaded in [&loaded, &in_memory] {
        assert_eq!(loaded.arrays.len(), arrays.len());
        for (name, want) in named() {
            let got = &loaded.arrays[name];
            assert_eq!((got.shape(), got.dtype()), (want.shape(), want.dtype()), "{name}");
            assert_eq!(got.to_string(), want.to_string(), "{name}");
        }
        assert_eq!(loaded.metadata["format"], "mlx");
        assert_eq!(loaded.metadata["say \"ä\""], "line\nbreak");
    }
    Ok(())
}

#[test]
fn views_lazy_results_empty_ones_and_scalars_are_saved() -> Checked {
    let dir = TempDir::new()?;
    let path = dir.path().join("views.safetensors");
    for layout in LAYOUTS {
        let x = ops::softmax(&layout.make(&[3, 8], Dtype::Float32, 1)?)?.t()?;
        let view = layout.make(&[3, 8], Dtype::Float16, 2)?;
        let empty = Array::zeros::<f32>(&[0, 3])?;
        let scalar = Array::scalar(2.5f32)?;
        let all = [("x", &x), ("view", &view), ("empty", &empty), ("scalar", &scalar)];
        save_safetensors(&path, all, [])?;
        let loaded = load_safetensors(&path)?;
        for (name, want) in all {
            assert_same(&loaded.arrays[name], want, &format!("{layout:?} {name}"))?;
        }
        assert!(!loaded.metadata.contains_key("x"));
    }
    Ok(())
}

#[test]
fn loading_is_lazy() -> Checked {
    let dir = TempDir::new()?;
    let path = dir.path().join("lazy.safetensors");
    let x = random32(&[64, 64], 3)?;
    save_safetensors(&path, [("x", &x)], [])?;
    let loaded = load_safetensors(&path)?.arrays.remove("x").expect("x");
    assert!(!loaded.is_scheduled());
    let y = ops::softmax(&loaded)?;
    drop(loaded);
    assert_same(&y, &ops::softmax(&x)?, "a primitive on a lazy load")?;
    Ok(())
}

#[test]
fn missing_files() -> Checked {
    let dir = TempDir::new()?;
    for path in [dir.path().join("missing.safetensors"), dir.path().to_owned(), "".into()] {
        let text = message(load_safetensors(&path));
        assert!(text.starts_with(&path.display().to_string()), "{text}");
        let text = message(load_gguf(&path));
        assert!(text.starts_with(&path.display().to_string()), "{text}");
    }
    assert!(message(load_safetensors(dir.path().join("missing.safetensors"))).contains("No such"));
    Ok(())
}

#[test]
fn invalid_names_and_paths_are_refused() -> Checked {
    let dir = TempDir::new()?;
    let x = random32(&[2], 4)?;
    let nowhere = dir.path().join("no/such/x.safetensors");
    let folder = dir.path().join("folder.safetensors");
    fs::create_dir(&folder)?;
    for path in [dir.path().join("x.bin"), dir.path().join("x"), nowhere, folder, "".into()] {
        let text = message(save_safetensors(&path, [("x", &x)], []));
        assert!(text.starts_with(&path.display().to_string()), "{text}");
    }
    assert_eq!(fs::read_dir(dir.path())?.count(), 1, "nothing was written under another name");
    Ok(())
}

#[test]
fn broken_files() -> Checked {
    let dir = TempDir::new()?;
    let path = dir.path().join("whole.safetensors");
    save_safetensors(&path, [("x", &random32(&[4], 5)?)], [("a", "b")])?;
    let whole = fs::read(&path)?;
    for length in 0..whole.len() {
        refused(&dir, "truncated", &whole[..length])?;
    }
    refused(&dir, "longer", &[&whole[..], &[0]].concat())?;
    let tensor = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"x":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    for (name, header, data) in [
        ("no-json", "hello".to_owned(), 0),
        ("list", "[]".into(), 0),
        ("unclosed", "{".into(), 0),
        ("number", r#"{"x":3}"#.into(), 0),
        ("dtype", tensor("F99", "[2]", "[0,8]"), 8),
        ("no-dtype", r#"{"x":{"shape":[2],"data_offsets":[0,8]}}"#.into(), 8),
        ("short", tensor("F32", "[2]", "[0,4]"), 4),
        ("backwards", tensor("F32", "[2]", "[8,0]"), 8),
        ("outside", tensor("F32", "[2]", "[0,8]"), 4),
        ("beyond", tensor("F32", "[2]", "[18446744073709551608,0]"), 8),
        ("negative", tensor("F32", "[-2]", "[0,8]"), 8),
        ("huge", tensor("F32", "[9223372036854775807,9223372036854775807]", "[0,8]"), 8),
        ("hole", tensor("F32", "[1]", "[4,8]"), 8),
        ("metadata", r#"{"__metadata__":{"a":1}}"#.into(), 0),
        (
            "overlap",
            r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
               "y":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#
                .into(),
            12,
        ),
    ] {
        refused(&dir, name, &file(&header, data))?;
    }
    for length in [u64::MAX, 1 << 40, 100_000_001, i64::MAX as u64] {
        refused(&dir, "giant-header", &[&length.to_le_bytes()[..], b"{}"].concat())?;
    }
    refused(&dir, "dims-beyond-i32", &file(&tensor("U8", "[0,4294967297]", "[0,0]"), 0))
}

#[test]
fn garbage() -> Checked {
    let dir = TempDir::new()?;
    for seed in 0..200 {
        let values = crate::support::input::values(64, seed, 1.0);
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        refused(&dir, "garbage", &bytes)?;
        // The length of the header is plausible, so the loader reads the rest.
        refused(&dir, "garbage", &[&[100, 0, 0, 0, 0, 0, 0, 0][..], &bytes].concat())?;
    }
    Ok(())
}

/// Flips one bit of a valid file at a time. The file is refused, or loads as consistent arrays.
#[test]
fn flipped_bytes() -> Checked {
    let dir = TempDir::new()?;
    let path = dir.path().join("flipped.safetensors");
    let all = [("x", random32(&[2, 3], 6)?), ("half", random32(&[4], 7)?.astype(Dtype::Float16)?)];
    save_safetensors(&path, all.iter().map(|(n, a)| (*n, a)), [("a", "b")])?;
    let whole = fs::read(&path)?;
    for at in 0..whole.len() {
        for flip in [1, 0x20, 0x80] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            for array in loaded_either_way(&path, &bytes)? {
                array.eval()?;
                assert!(array.nbytes() <= whole.len());
            }
        }
    }
    Ok(())
}

fn loaded_either_way(path: &Path, bytes: &[u8]) -> anyhow::Result<Vec<Array>> {
    fs::write(path, bytes)?;
    let from_file = load_safetensors(path);
    let from_memory = load_safetensors_bytes(bytes);
    assert_eq!(from_file.is_ok(), from_memory.is_ok());
    let both = from_file.into_iter().chain(from_memory);
    Ok(both.flat_map(|tensors| tensors.arrays.into_values()).collect())
}
