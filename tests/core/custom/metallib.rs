//! The checks that a program makes when it opens a metallib, a file of compiled Metal kernels.

use std::io::Write;

use mlx_primitives::custom::{MetalLibrary, MetalVersion};
use mlx_primitives::internals::{check_metallib, has_neural_kernels, release_of, supported_metal};

use crate::support::{Checked, message};

/// A metallib with one function as Apple's tools write it, without the function's bitcode.
pub fn metallib(language: (u16, u16)) -> Vec<u8> {
    let mut tags = Vec::new();
    let mut tag = |name: &[u8], data: &[u8]| {
        tags.extend(name);
        tags.extend((data.len() as u16).to_le_bytes());
        tags.extend(data);
    };
    tag(b"NAME", b"kernel_of_it\0");
    tag(b"TYPE", &[2]);
    tag(b"HASH", &[7; 32]);
    tag(b"OFFT", &[0; 24]);
    let version = [2, 6, language.0, language.1].map(u16::to_le_bytes).concat();
    tag(b"VERS", &version);
    tag(b"MDSZ", &16u64.to_le_bytes());
    tags.extend(b"ENDT");
    let mut list = 1u32.to_le_bytes().to_vec();
    list.extend((tags.len() as u32 + 4).to_le_bytes());
    list.extend(tags);
    let (list_at, end) = (88, 88 + list.len() as u64);
    let mut file = b"MTLB\x01\x80\x02\x00\x07\x00\x00\x81\x0e\x00\x00\x00".to_vec();
    let words = [end + 32, list_at, list.len() as u64 - 4, end, 8, end + 8, 8, end + 16, 16];
    file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    file.extend(list);
    file.extend([0; 32]);
    file
}

#[test]
fn metallibs_are_checked() -> Checked {
    let good = metallib((3, 1));
    let version = MetalLibrary::from_bytes(good.clone())?.version();
    assert_eq!(version, Some(MetalVersion { major: 3, minor: 1 }));

    let said = message(MetalLibrary::from_bytes(metallib((99, 7))));
    assert!(said.contains("got one of Metal 99.7") && said.contains("-std=metal"), "{said}");
    let refused = |bytes: Vec<u8>| message(MetalLibrary::from_bytes(bytes));
    for end in 0..good.len() {
        assert!(refused(good[..end].to_vec()).contains("[metal_library] expected"), "{end}");
    }
    assert!(refused([&good[..], &[0]].concat()).contains("size"));
    assert!(refused(b"not a library at all".to_vec()).contains("header"));
    let with = |at: usize, bytes: &[u8]| {
        let mut spoiled = good.clone();
        spoiled[at..at + bytes.len()].copy_from_slice(bytes);
        refused(spoiled)
    };
    assert!(with(0, b"MTLX").contains("header"));
    assert!(with(11, &[0x82]).contains("system"));
    for (at, expected) in [(24, "functions"), (32, "functions"), (40, "sections"), (72, "sections")]
    {
        assert!(with(at, &u64::MAX.to_le_bytes()).contains(expected), "{at}");
        assert!(with(at, &(good.len() as u64 + 1).to_le_bytes()).contains(expected), "{at}");
    }
    for (at, what) in [(88, "count"), (92, "size"), (100, "length of a tag")] {
        assert!(with(at, &[0xff, 0xff]).contains("functions"), "{what}");
    }
    // A wrong byte may cause an error, but no crash.
    for at in 0..good.len() {
        for byte in [0, 1, 0x7f, 0xff] {
            let mut spoiled = good.clone();
            spoiled[at] = byte;
            let _ = MetalLibrary::from_bytes(spoiled);
        }
    }
    Ok(())
}

/// A metallib names the macOS version that it was compiled for. This version can be too new even if
/// the version of the Metal language is not.
#[test]
fn libraries_for_a_later_system_are_refused() -> Checked {
    let mut library = metallib((3, 1));
    assert!(check_metallib(&library, Some(14)).is_ok());
    let said = message(check_metallib(&library, Some(13)));
    for part in ["that macOS 13 runs", "for macOS 14.0 and later", "-mmacosx-version-min=13.0"] {
        assert!(said.contains(part), "{said}");
    }
    library[12..16].copy_from_slice(&[26, 0, 2, 0]);
    for release in [14, 15, 25] {
        let said = message(check_metallib(&library, Some(release)));
        assert!(said.contains("for macOS 26.2 and later"), "{release}: {said}");
    }
    for release in [Some(26), Some(27), Some(99), None] {
        assert!(check_metallib(&library, release).is_ok(), "{release:?}");
    }
    // To programs that were built for older versions, macOS 26 reports version 16.
    for (said, release) in [
        ("14.5", Some(14)),
        ("15.6.1\0", Some(15)),
        ("16.0", Some(26)),
        ("26.2", Some(26)),
        ("27", Some(27)),
        ("", None),
        ("a Mac", None),
    ] {
        assert_eq!(release_of(said), release, "{said:?}");
    }
    Ok(())
}

#[test]
fn kernels_for_neural_accelerators_are_looked_for_by_name() -> Checked {
    let file = tempfile::NamedTempFile::new()?;
    let without = metallib((4, 0));
    std::fs::write(&file, &without)?;
    assert!(!has_neural_kernels(file.path())?);
    let at = without.windows(12).position(|part| part == b"kernel_of_it").expect("the name");
    let mut with = without.clone();
    with[at..at + 12].copy_from_slice(b"gemm_nax_f16");
    std::fs::write(&file, &with)?;
    assert!(has_neural_kernels(file.path())?);
    // `has_neural_kernels` looks only at the names of kernels. It returns an error for a file that
    // is not a metallib.
    let last = without.len() - 3;
    let elsewhere = [&without[..last], b"nax"].concat();
    std::fs::write(&file, elsewhere)?;
    assert!(!has_neural_kernels(file.path())?);
    for broken in [&b"nax"[..], &b"nax".repeat(40)] {
        std::fs::write(&file, broken)?;
        assert!(has_neural_kernels(file.path()).is_err());
    }
    Ok(())
}

#[test]
fn metallibs_are_files_too() -> Checked {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("own.metallib");
    assert!(message(MetalLibrary::from_path(&path)).contains("own.metallib"));
    std::fs::write(&path, metallib((3, 1)))?;
    let library = MetalLibrary::from_path(&path)?;
    std::fs::write(&path, b"changed")?;
    assert_eq!(library.version(), Some(MetalVersion { major: 3, minor: 1 }));
    let said = message(MetalLibrary::from_path(&path));
    assert!(said.contains("own.metallib") && said.contains("header"), "{said}");
    assert_eq!(MetalLibrary::from_build(&[], "// source")?.version(), None);
    Ok(())
}

/// Reads MLX's kernels for two releases of macOS, which `scripts/cross_link.sh` downloads.
#[test]
fn metallibs_that_apple_compiled_are_accepted() -> Checked {
    let brought = concat!(env!("CARGO_MANIFEST_DIR"), "/.mlx/cross");
    let mut found = 0;
    for folder in std::fs::read_dir(brought).into_iter().flatten() {
        let path = folder?.path().join("mlx/lib/mlx.metallib");
        if path.is_file() {
            let version = MetalLibrary::from_path(&path)?.version();
            let known = (3..=4).contains(&version.map_or(0, |version| version.major));
            assert!(known, "{}: {version:?}", path.display());
            // MLX has kernels for the GPU's neural accelerators only in its build for macOS 26.
            let later = check_metallib(&std::fs::read(&path)?, Some(15)).is_err();
            assert_eq!(has_neural_kernels(&path)?, later, "{}", path.display());
            found += 1;
        }
    }
    if found == 0 {
        // Write directly to stderr, because libtest captures the output of a passing test.
        let mut stderr = std::io::stderr();
        writeln!(stderr, "not run: Apple's metallibs; scripts/cross_link.sh brings them")?;
    }
    Ok(())
}

#[test]
fn a_release_runs_its_own_and_earlier_versions() {
    let version = |major, minor| Some(MetalVersion { major, minor });
    for (release, expected) in [
        (Some(12), version(3, 0)),
        (Some(14), version(3, 1)),
        (Some(25), version(3, 2)),
        (Some(26), version(4, 0)),
        (Some(27), version(4, 1)),
        (Some(28), None), // Metal itself refuses libraries that this release cannot run
        (None, version(4, 1)),
    ] {
        assert_eq!(supported_metal(release), expected, "{release:?}");
    }
}
