//! Checks the results of a build script. A shell script replaces Xcode's `xcrun`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use mlx_primitives_build::{Error, Metal, flatten};
use tempfile::TempDir;

type Checked = Result<(), Box<dyn std::error::Error>>;

/// Makes a folder with a source, two headers, and an output folder for the library.
fn package() -> Result<TempDir, std::io::Error> {
    let folder = tempfile::tempdir()?;
    fs::create_dir_all(folder.path().join("metal/shared"))?;
    fs::create_dir(folder.path().join("out"))?;
    let source = "#include <metal_stdlib>\n# include \"two.h\"\n#include \"shared/one.h\"\nkernel void k() {}\n";
    fs::write(folder.path().join("metal/own.metal"), source)?;
    fs::write(folder.path().join("metal/shared/one.h"), "#pragma once\n// one\n")?;
    fs::write(folder.path().join("metal/two.h"), "#include \"one.h\" // by the folder\n// two\n")?;
    Ok(folder)
}

/// Writes a script that replaces `xcrun`. The script's third argument is the tool to run, and the
/// arguments of the tool follow.
fn xcrun(folder: &Path, script: &str) -> Result<PathBuf, std::io::Error> {
    let path = folder.join("xcrun");
    fs::write(&path, format!("#!/bin/sh\n{script}\n"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// A script whose tools succeed. Each tool logs its arguments and writes some text to its output
/// file.
const WORKS: &str = "case \"$4\" in --version) exit 0;; esac\n\
    for last; do :; done\necho \"$@\" >>\"$0.log\"\necho compiled >\"$last\"";

fn metal(folder: &Path, os: &str) -> Metal {
    Metal::new(folder.join("metal/own.metal"))
        .include_dir(folder.join("metal/shared"))
        .out_dir(folder.join("out"))
        .target_os(os)
}

fn read(folder: &Path, name: &str) -> Result<String, std::io::Error> {
    fs::read_to_string(folder.join("out").join(name))
}

#[test]
fn the_source_is_left_as_one_file() -> Checked {
    let folder = package()?;
    let folder = folder.path();
    metal(folder, "linux").name("mine").build()?;
    let want = "#include <metal_stdlib>\n// one\n// two\nkernel void k() {}\n";
    assert_eq!(read(folder, "mine.metal")?, want);
    assert_eq!(read(folder, "mine.metallib")?, "");
    let text = flatten(folder.join("metal/own.metal"), &[folder.join("metal/shared")])?;
    assert_eq!(text, want);
    Ok(())
}

#[test]
fn with_xcode_it_is_compiled() -> Checked {
    let folder = package()?;
    let folder = folder.path();
    let xcrun = xcrun(folder, WORKS)?;
    metal(folder, "macos")
        .xcrun(&xcrun)
        .flag("-Werror")
        .standard("metal3.2")
        .deployment_target("15.0")
        .build()?;
    assert_eq!(read(folder, "own.metallib")?, "compiled\n");
    let log = fs::read_to_string(folder.join("xcrun.log"))?;
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 2, "{log}");
    let plain = metal(folder, "macos").xcrun(&xcrun);
    plain.build()?;
    let again = fs::read_to_string(folder.join("xcrun.log"))?;
    assert!(again[log.len()..].contains("-std=metal3.1 -mmacosx-version-min=14.0 "), "{again}");
    for part in [
        "--sdk macosx metal ",
        "-std=metal3.2",
        "-mmacosx-version-min=15.0",
        "-fno-fast-math",
        "-Werror",
        "own.metal -o ",
    ] {
        assert!(lines[0].contains(part), "{log}");
    }
    assert!(
        lines[1].contains("--sdk macosx metallib ") && lines[1].contains("own.air -o "),
        "{log}"
    );
    Ok(())
}

#[test]
fn without_xcode_it_says_what_to_do() -> Checked {
    let folder = package()?;
    let folder = folder.path();
    let missing = "echo 'xcrun: error: unable to find utility \"metal\"' >&2; exit 72";
    // In this script, `xcrun --find` finds the tool, but running the compiler fails.
    let no_toolchain = "case \"$3\" in --find) exit 0;; esac\n\
        echo \"error: cannot execute tool 'metal'\" >&2; exit 1";
    for (script, said) in
        [(missing, "unable to find utility"), (no_toolchain, "cannot execute tool")]
    {
        let xcrun = xcrun(folder, script)?;
        fs::write(folder.join("out/own.metallib"), "an old one")?;
        metal(folder, "macos").xcrun(&xcrun).build()?;
        assert_eq!(read(folder, "own.metallib")?, "");
        let error = metal(folder, "macos").xcrun(&xcrun).require_xcode().build();
        let text = error.map_or_else(|error| error.to_string(), |()| String::new());
        for part in ["install Xcode", "downloadComponent MetalToolchain", said] {
            assert!(text.contains(part), "{text}");
        }
    }
    let nowhere = metal(folder, "macos").xcrun(folder.join("absent")).require_xcode().build();
    assert!(matches!(nowhere, Err(Error::NoXcode(_))), "{nowhere:?}");
    Ok(())
}

#[test]
fn mistakes_are_errors() -> Checked {
    let folder = package()?;
    let folder = folder.path();
    let fails =
        "case \"$4\" in --version) exit 0;; esac\necho 'own.metal:1: error: no' >&2; exit 1";
    let refused = metal(folder, "macos").xcrun(xcrun(folder, fails)?).build();
    let text = refused.map_or_else(|error| error.to_string(), |()| String::new());
    assert!(text.contains("own.metal:1: error: no"), "{text}");

    let absent = Metal::new(folder.join("absent.metal")).out_dir(folder).target_os("linux").build();
    assert!(matches!(absent, Err(Error::File { .. })), "{absent:?}");
    fs::write(folder.join("metal/two.h"), "// two\n// x\u{b2}\n")?;
    let planted = metal(folder, "linux").build();
    let text = planted.map_or_else(|error| error.to_string(), |()| String::new());
    assert!(text.contains("two.h: line 2 is not ASCII"), "{text}");
    fs::write(folder.join("metal/own.metal"), "#include \"absent.h\"\n")?;
    let text =
        metal(folder, "linux").build().map_or_else(|error| error.to_string(), |()| String::new());
    assert!(text.contains("own.metal") && text.contains("absent.h"), "{text}");
    Ok(())
}
