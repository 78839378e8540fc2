//! Errors of the build, and the kernels that `scripts/build_metal.sh` compiles on a Mac.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use anyhow::Context;
use mlx_primitives::device;
use tempfile::TempDir;

use crate::support::build::{cmake, embed, marker};
use crate::support::{Checked, root};

mod script;

#[test(simulated = never)]
fn headers_of_another_version_than_the_library_stop_the_build() {
    let (_, version) = device::mlx_versions();
    let directory = tempfile::tempdir().unwrap();
    let output = cmake()
        .arg("-S")
        .arg(root().join("cpp"))
        .arg("-B")
        .arg(directory.path())
        .arg(format!("-DMLX_DIR={}/share/cmake/MLX", device::mlx_prefix()))
        .arg("-DMLX_HEADER_VERSION=0.32.99")
        // Pass the paths of an earlier build, which do not exist.
        .args(["-DMLX_LIBRARY=/gone/libmlx.so", "-DMLX_LIBRARY_FILE=/gone/libmlx.so"])
        .arg(if cfg!(feature = "cuda") { "-DCUDA=ON" } else { "-DCUDA=OFF" })
        .output()
        .expect("the CMake that built this crate");
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr);
    let error = error.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(error.contains("MLX's headers are version 0.32.99"), "{error}");
    assert!(error.contains(&format!("is version {version}")), "{error}");
}

/// MLX passes the embedded source to Metal as ASCII. If one byte is not ASCII, Metal gets no
/// source.
#[test(simulated = never)]
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
        let output = embed(&metal, &embedded)?;
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.success(), line.is_none(), "{error}");
        if let Some(line) = line {
            assert!(error.contains(&format!("own.h is not ASCII: {line}")), "{error}");
        }
    }
    Ok(())
}

/// A program that prints the embedded source of a primitive, for one kernel or for all its kernels.
/// Its first argument is the primitive's stem: the common name of its source files.
#[cfg(target_os = "linux")]
const PRINT: &str = r#"
#include <cstdio>
#include <string>
namespace mlx_primitives {
std::string embedded_metal_source(const std::string& stem, const std::string& kernel);
}
int main(int, char** arguments) {
  std::fputs(mlx_primitives::embedded_metal_source(arguments[1], arguments[2]).c_str(), stdout);
}
"#;

/// The source that Metal compiles for a kernel instantiates only that kernel, and follows the rules
/// of the Metal language.
#[cfg(target_os = "linux")]
#[test(simulated = never)]
fn kernels_are_embedded_one_at_a_time() -> Checked {
    let directory = tempfile::tempdir()?;
    let [embedded, print, program] =
        ["embedded.cpp", "print.cpp", "print"].map(|name| directory.path().join(name));
    let metal = root().join("metal");
    assert!(embed(&metal, &embedded)?.status.success());
    fs::write(&print, PRINT)?;
    let mut compiler = Command::new("c++");
    compiler.arg("-std=c++20").arg("-I").arg(root().join("cpp"));
    compiler.arg("-o").args([&program, &embedded, &print]);
    assert!(compiler.status()?.success());
    let source = |stem: &str, kernel: &str| {
        let output = Command::new(&program).args([stem, kernel]).output()?;
        String::from_utf8(output.stdout).context("source that is ASCII")
    };
    let instances = |text: &str| -> Vec<String> {
        text.lines().filter(|line| line.starts_with("MLXP_KERNEL(")).map(String::from).collect()
    };
    let compiler = metal_sim::Compiler::find()?;
    for entry in fs::read_dir(metal)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Some(stem) = name.strip_suffix(".metal") else { continue };
        let all = instances(&source(stem, "")?);
        for kind in ["_float32", "_float16", "_bfloat16"] {
            assert!(all.iter().any(|instance| instance.contains(kind)), "{stem}: {all:#?}");
        }
        let mut alone = String::new();
        for instance in &all {
            alone = source(stem, instance.split('"').nth(1).context("a name")?)?;
            assert_eq!(instances(&alone), std::slice::from_ref(instance));
        }
        let path = directory.path().join("alone.metal");
        fs::write(&path, alone)?;
        let alone = metal_sim::Source::new(&path);
        let found = metal_sim::rules::check(&alone, &compiler, directory.path())?;
        assert!(found.is_empty(), "{stem}: {found:#?}");
    }
    Ok(())
}

/// A copy of the script and two kernels in a folder that imitates a Mac: stubs replace the system's
/// programs, and MLX's header is there. `xcrun` is the body of the stub for `xcrun`.
fn mac(xcrun: &str) -> anyhow::Result<TempDir> {
    let directory = tempfile::tempdir()?;
    let path = directory.path();
    for folder in ["scripts", "cmake", "metal", "bin", "mlx/include/mlx"] {
        fs::create_dir_all(path.join(folder))?;
    }
    let files = ["mlx_oldest.txt", "mlx_version.txt", "compile_metal.cmake", "metal_hash.cmake"];
    let files = files.map(|file| format!("cmake/{file}"));
    for file in files.iter().map(String::as_str).chain(["scripts/build_metal.sh", "Cargo.toml"]) {
        fs::copy(root().join(file), path.join(file))?;
    }
    for kernel in ["metal/one.metal", "metal/two.metal"] {
        fs::write(path.join(kernel), "kernel void k() {}\n")?;
    }
    write_mlx(&path.join("mlx"), fs::read_to_string(path.join("cmake/mlx_version.txt"))?.trim())?;
    for (tool, body) in [
        ("uname", "echo Darwin"),
        ("sysctl", "case $2 in hw.optional.arm64) echo 1;; *) echo 0;; esac"),
        ("make", ""),
        ("c++", ""),
        ("xcrun", xcrun),
    ] {
        stub(path, tool, body)?;
    }
    // Put the CMake that build.rs would use on the PATH.
    let cmake = cmake();
    if Path::new(cmake.get_program()).is_absolute() {
        std::os::unix::fs::symlink(cmake.get_program(), path.join("bin/cmake"))?;
    }
    Ok(directory)
}

/// Writes MLX's header with this version.
fn write_mlx(prefix: &Path, version: &str) -> std::io::Result<()> {
    let parts = ["MAJOR", "MINOR", "PATCH"].into_iter().zip(version.split('.'));
    let header: String =
        parts.map(|(name, n)| format!("#define MLX_VERSION_{name} {n}\n")).collect();
    fs::write(prefix.join("include/mlx/version.h"), header)
}

/// Writes a shell script that replaces a system program.
fn stub(mac: &Path, name: &str, body: &str) -> std::io::Result<()> {
    let tool = mac.join("bin").join(name);
    fs::write(&tool, format!("#!/bin/sh\n{body}\n"))?;
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755))
}

/// Runs the script on this machine. Returns its output and the metallib, if it wrote one.
fn build_metal(mac: &TempDir) -> anyhow::Result<(Output, Option<String>)> {
    let path = std::env::var("PATH")?;
    let output = Command::new("bash")
        .arg(mac.path().join("scripts/build_metal.sh"))
        .env_remove("CMAKE")
        .env("PATH", format!("{}:{path}", mac.path().join("bin").display()))
        .env("MLX_DIR", mac.path().join("mlx"))
        .output()?;
    let library = mac.path().join(".mlx/mlx_primitives.metallib");
    Ok((output, fs::read_to_string(library).ok()))
}

/// Xcode 26 and later may lack the Metal compiler. `xcrun` then finds a `metal` that does not run.
#[test(simulated = never)]
fn kernels_are_left_for_later_without_a_metal_compiler() -> Checked {
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

#[test(simulated = never)]
fn changed_kernels_are_compiled_with_a_metal_compiler() -> Checked {
    // These stubs of Apple's tools concatenate their inputs. They log the file name of each input
    // and output.
    let runs = "case \"$4\" in --version) exit 0;; esac\n\
        tool=$3; shift 3; names=; from=; for last; do names=\"$names ${last##*/}\"\n\
        case $tool$last in metal/*.metal | metallib*.air) from=\"$from $last\";; esac; done\n\
        echo \"$tool$names\" >>\"$0.log\"; cat $from >\"$last\"";
    let mac = mac(runs)?;
    let (output, library) = build_metal(&mac)?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("/.mlx/mlx_primitives.metallib\n"), "{said}");
    let named = format!("[[kernel]] void {}() {{}}\n", marker(&mac.path().join("metal"))?);
    let (k, library) = ("kernel void k() {}\n", library.unwrap_or_default());
    assert_eq!(library, [k, k, &named].concat());
    let log = fs::read_to_string(mac.path().join("bin/xcrun.log"))?;
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 4, "{log}");
    for (line, stem) in lines.iter().zip(["one", "two", "sources"]) {
        assert!(
            line.starts_with("metal -std=metal3.1 -mmacosx-version-min=14.0 ")
                && line.contains(" -fno-fast-math "),
            "{log}"
        );
        assert!(line.ends_with(&format!(" -c {stem}.metal -o {stem}.air")), "{log}");
    }
    assert_eq!(lines[3], "metallib one.air two.air sources.air -o mlx_primitives.metallib");

    let (output, _) = build_metal(&mac)?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("kernels are up to date"), "{said}");
    assert_eq!(fs::read_to_string(mac.path().join("bin/xcrun.log"))?, log);

    // If the script has compiled the kernels, CMake compiles nothing, and deletes the metallib of
    // its earlier build.
    let built = mac.path().join("built.metallib");
    fs::write(&built, "of other sources")?;
    let path = |name: &str| mac.path().join(name).display().to_string();
    let output = cmake()
        .arg(format!("-DMETAL_DIR={}", path("metal")))
        .arg(format!("-DOUTPUT={}", built.display()))
        .arg(format!("-DINSTEAD={}", path(".mlx/mlx_primitives.metallib")))
        .args(["-P", &path("cmake/compile_metal.cmake")])
        .env("PATH", format!("{}:{}", path("bin"), std::env::var("PATH")?))
        .output()?;
    assert!(output.status.success() && !built.exists(), "{output:?}");
    assert_eq!(fs::read_to_string(mac.path().join("bin/xcrun.log"))?, log);

    // CMake uses a metallib that was built on another Mac if it was built from the same sources.
    let brought = mac.path().join("brought.metallib");
    for (content, said) in [(&*named, "kernels are those of"), ("other sources", "is not used")] {
        fs::write(&brought, content)?;
        let output = cmake()
            .arg(format!("-DMETAL_DIR={}", path("metal")))
            .arg(format!("-DOUTPUT={}", built.display()))
            .arg(format!("-DBROUGHT={}", brought.display()))
            .args(["-P", &path("cmake/compile_metal.cmake")])
            .env("PATH", format!("{}:{}", path("bin"), std::env::var("PATH")?))
            .output()?;
        assert!(String::from_utf8_lossy(&output.stderr).contains(said), "{output:?}");
        assert!(output.status.success(), "{output:?}");
        let now = fs::read_to_string(&built)?;
        assert_eq!(now, if content == named { &named } else { &*library }, "{content}");
        fs::remove_file(&built)?;
        fs::write(mac.path().join("bin/xcrun.log"), &log)?;
    }

    // After a header changes, the script compiles every kernel again, even if the header is older
    // than the metallib.
    fs::write(mac.path().join("metal/one.h"), "// changed\n")?;
    let (_, changed) = build_metal(&mac)?;
    assert!(changed.is_some_and(|changed| changed != library));
    fs::write(mac.path().join("metal/one.h"), "// changed again\n")?;
    fs::write(mac.path().join("bin/xcrun"), "#!/bin/sh\nexit 1\n")?;
    let (output, left) = build_metal(&mac)?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && left.is_none(), "{said}");
    Ok(())
}

#[test(simulated = never)]
fn kernels_that_do_not_compile_are_a_failure() -> Checked {
    let refuses = "case \"$4\" in --version) exit 0;; esac\n\
        echo 'one.metal:1: error: no' >&2; exit 1";
    let (output, library) = build_metal(&mac(refuses)?)?;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("one.metal:1: error: no"), "{said}");
    assert_eq!(library, None);
    Ok(())
}
