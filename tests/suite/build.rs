//! What the build refuses, and what `scripts/build_metal.sh` makes of the kernels on a Mac.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use mlx_primitives::device;
use tempfile::TempDir;

use crate::support::Checked;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The CMake that build.rs would take.
fn cmake() -> Command {
    let brought = Path::new(ROOT).join(".mlx/python/cmake/data/bin/cmake");
    match std::env::var_os("CMAKE") {
        Some(path) => Command::new(path),
        None if brought.exists() => Command::new(brought),
        None => Command::new("cmake"),
    }
}

#[test]
fn headers_of_another_version_than_the_library_stop_the_build() {
    let (_, version) = device::mlx_versions();
    let directory = tempfile::tempdir().unwrap();
    let output = cmake()
        .arg("-S")
        .arg(Path::new(ROOT).join("cpp"))
        .arg("-B")
        .arg(directory.path())
        .arg(format!("-DMLX_DIR={}/share/cmake/MLX", device::mlx_prefix()))
        .arg("-DMLX_HEADER_VERSION=0.32.99")
        .output()
        .expect("the CMake that built this crate");
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    let error = error.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(error.contains("MLX's headers are version 0.32.99"), "{error}");
    assert!(error.contains(&format!("is version {version}")), "{error}");
}

/// What is embedded goes to Metal as ASCII: with one other byte there would be no source at all.
#[test]
fn kernels_that_are_not_ascii_stop_the_build() -> Checked {
    let directory = tempfile::tempdir()?;
    let (metal, embedded) = (directory.path().join("metal"), directory.path().join("embedded.cpp"));
    fs::create_dir(&metal)?;
    fs::write(metal.join("own.metal"), "#include \"own.h\"\nkernel void own() {}\n")?;
    for (header, line) in [
        (&b"// plain\n"[..], None),
        (b"int i;\n// x\xc2\xb2 of i\n", Some("// x\u{b2} of i")), // in UTF-8
        (b"// x\xb2 of i\n", Some("// x\u{fffd} of i")),           // in Latin-1
    ] {
        fs::write(metal.join("own.h"), header)?;
        let output = cmake()
            .arg(format!("-DMETAL_DIR={}", metal.display()))
            .arg(format!("-DOUTPUT={}", embedded.display()))
            .arg("-P")
            .arg(Path::new(ROOT).join("cmake/embed_metal.cmake"))
            .output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), line.is_none(), "{error}");
        if let Some(line) = line {
            assert!(error.contains(&format!("own.h is not ASCII: {line}")), "{error}");
        }
    }
    Ok(())
}

/// A copy of the script with two kernels, where a system that calls itself macOS has an MLX and the
/// tools of the build; `xcrun` is the body of its `xcrun`.
fn mac(xcrun: &str) -> anyhow::Result<TempDir> {
    let directory = tempfile::tempdir()?;
    let path = directory.path();
    for folder in ["scripts", "cmake", "metal", "bin", "mlx/include/mlx"] {
        fs::create_dir_all(path.join(folder))?;
    }
    for file in ["scripts/build_metal.sh", "cmake/mlx_version.txt"] {
        fs::copy(Path::new(ROOT).join(file), path.join(file))?;
    }
    for kernel in ["metal/one.metal", "metal/two.metal"] {
        fs::write(path.join(kernel), "kernel void k() {}\n")?;
    }
    let pinned = fs::read_to_string(path.join("cmake/mlx_version.txt"))?;
    let parts = ["MAJOR", "MINOR", "PATCH"].into_iter().zip(pinned.trim().split('.'));
    let header: String =
        parts.map(|(name, n)| format!("#define MLX_VERSION_{name} {n}\n")).collect();
    fs::write(path.join("mlx/include/mlx/version.h"), header)?;
    for (tool, body) in [
        ("uname", "echo Darwin"),
        ("cmake", "echo cmake version 4.0.0"),
        ("make", ""),
        ("c++", ""),
        ("xcrun", xcrun),
    ] {
        let tool = path.join("bin").join(tool);
        fs::write(&tool, format!("#!/bin/sh\n{body}\n"))?;
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755))?;
    }
    Ok(directory)
}

/// Runs the script there; its output and the metallib, if it left one.
fn build_metal(mac: &TempDir) -> anyhow::Result<(Output, Option<String>)> {
    let path = std::env::var("PATH")?;
    let output = Command::new("bash")
        .arg(mac.path().join("scripts/build_metal.sh"))
        .env("PATH", format!("{}:{path}", mac.path().join("bin").display()))
        .env("MLX_DIR", mac.path().join("mlx"))
        .output()?;
    let library = mac.path().join(".mlx/mlx_primitives.metallib");
    Ok((output, fs::read_to_string(library).ok()))
}

/// An Xcode without its Metal compiler, from version 26 on, finds a `metal` that does not run.
#[test]
fn without_a_metal_compiler_that_runs_kernels_are_left_for_later() -> Checked {
    let absent = "echo 'xcrun: error: unable to find utility \"metal\"' >&2; exit 72";
    let stub = "case \"$*\" in *--find*) exit 0;; esac\n\
        echo \"error: cannot execute tool 'metal'\" >&2; exit 1";
    for xcrun in [absent, stub] {
        let (output, library) = build_metal(&mac(xcrun)?)?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert!(said.contains("the kernels will be compiled when first used"), "{said}");
        assert!(said.contains("-downloadComponent MetalToolchain"), "{said}");
        assert!(said.ends_with("ready: cargo build\n"), "{said}");
        assert_eq!(library, None);
    }
    Ok(())
}

#[test]
fn with_a_metal_compiler_kernels_are_compiled_when_they_changed() -> Checked {
    // What is compiled or linked is told by its name: the last part of its path.
    let runs = "case \"$4\" in --version) exit 0;; esac\n\
        tool=$3; shift 3; names=; for last; do names=\"$names ${last##*/}\"; done\n\
        echo \"$tool$names\" >>\"$0.log\"; echo \"$tool\" >\"$last\"";
    let mac = mac(runs)?;
    let (output, library) = build_metal(&mac)?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("wrote .mlx/"), "{said}");
    assert_eq!(library.as_deref(), Some("metallib\n"));
    let log = fs::read_to_string(mac.path().join("bin/xcrun.log"))?;
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 3, "{log}");
    for (line, stem) in lines.iter().zip(["one", "two"]) {
        assert!(
            line.starts_with("metal -std=metal3.1 ") && line.contains(" -fno-fast-math "),
            "{log}"
        );
        assert!(line.ends_with(&format!(" -c {stem}.metal -o {stem}.air")), "{log}");
    }
    assert_eq!(lines[2], "metallib one.air two.air -o mlx_primitives.metallib");

    let (output, _) = build_metal(&mac)?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("kernels are up to date"), "{said}");
    assert_eq!(fs::read_to_string(mac.path().join("bin/xcrun.log"))?, log);
    Ok(())
}

#[test]
fn kernels_that_do_not_compile_are_a_failure() -> Checked {
    let refuses = "case \"$4\" in --version) exit 0;; esac\n\
        echo 'one.metal:1: error: no' >&2; exit 1";
    let (output, library) = build_metal(&mac(refuses)?)?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("one.metal:1: error: no"), "{said}");
    assert_eq!(library, None);
    Ok(())
}
