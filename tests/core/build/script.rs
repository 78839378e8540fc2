//! The error messages of `scripts/build_metal.sh` on machines where a tool is missing or has a
//! wrong version.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{Checked, root};

use super::{mac, stub, write_mlx};

/// Runs the script with one environment variable set, and returns the last line that it prints. The
/// script must fail without downloading anything.
fn refusal(directory: &Path, setting: (&str, &str)) -> anyhow::Result<String> {
    stub(directory, "python3", "echo fetched >>\"$0.log\"; exit 1")?;
    let output = Command::new("bash")
        .arg(directory.join("scripts/build_metal.sh"))
        .env_remove("CMAKE")
        .env_remove("CXX")
        .env("PATH", format!("{}:{}", directory.join("bin").display(), std::env::var("PATH")?))
        .env("MLX_DIR", directory.join("mlx"))
        .env(setting.0, setting.1)
        .output()?;
    let said = String::from_utf8(output.stderr)?;
    anyhow::ensure!(!output.status.success(), "expected a failure: {said}");
    anyhow::ensure!(!directory.join("bin/python3.log").exists(), "something was fetched: {said}");
    Ok(said.lines().last().unwrap_or_default().to_owned())
}

#[test(simulated = never)]
fn a_version_of_mlx_that_does_not_fit_is_refused_with_those_that_do() -> Checked {
    let pinned = fs::read_to_string(root().join("cmake/mlx_version.txt"))?;
    let oldest = fs::read_to_string(root().join("cmake/mlx_oldest.txt"))?;
    let (line, oldest) = (pinned.trim().rsplit_once('.').unwrap().0, oldest.trim());
    let (_, patch) = oldest.rsplit_once('.').unwrap();
    let older = format!("{line}.{}", patch.parse::<u32>()? - 1);
    for found in [older.as_str(), "0.31.9", "0.33.4", "1.32.4"] {
        let mac = mac("exit 1")?;
        write_mlx(&mac.path().join("mlx"), found)?;
        let said = refusal(mac.path(), ("NONE", ""))?;
        let expected = format!("holds MLX {found}, and MLX {line}.z from {oldest} on is needed");
        assert!(
            said.contains(&expected) && said.ends_with("point it elsewhere or unset it"),
            "{said}"
        );
    }
    for found in [format!("{line}.{}", patch.parse::<u32>()? + 20), oldest.to_owned()] {
        let mac = mac("exit 1")?;
        write_mlx(&mac.path().join("mlx"), &found)?;
        let (output, _) = super::build_metal(&mac)?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}

/// A stub replaces `sysctl`. It fails, because an Intel Mac has no variable hw.optional.arm64, or
/// prints 1 for each variable, as if Rosetta ran the shell on a Mac with Apple silicon.
#[test(simulated = never)]
fn macs_and_shells_for_intel_are_refused_before_anything_is_fetched() -> Checked {
    for (sysctl, expected) in [
        ("exit 1", "error: this Mac has an Intel processor, and MLX is for Apple silicon"),
        ("echo 1", "error: this shell is for Intel, and MLX is for Apple silicon"),
    ] {
        let mac = mac("exit 1")?;
        stub(mac.path(), "sysctl", sysctl)?;
        let said = refusal(mac.path(), ("NONE", ""))?;
        assert!(said.contains(expected), "{said}");
    }
    let mac = mac("exit 1")?;
    let rust = "case $1 in --version) echo 'rustc 1.100.0 (a 2027-03-15)';; *) echo 'host: x86_64-apple-darwin';; esac";
    stub(mac.path(), "rustc", rust)?;
    let said = refusal(mac.path(), ("NONE", ""))?;
    assert!(said.contains("error: this Rust is for Intel"), "{said}");
    Ok(())
}

#[test(simulated = never)]
fn old_tools_are_refused_before_anything_is_fetched() -> Checked {
    let mac = mac("exit 1")?;
    let bin = mac.path();
    stub(bin, "rustc", "echo 'rustc 1.85.1 (4eb161250 2025-03-15)'")?;
    let said = refusal(bin, ("NONE", ""))?;
    assert!(said.contains("error: Rust 1.85.1 is too old, and 1.89 or later is needed"), "{said}");
    assert!(said.ends_with("install it by https://rustup.rs"), "{said}");

    stub(bin, "rustc", "echo 'error: no override and no default toolchain set' >&2; exit 1")?;
    let said = refusal(bin, ("NONE", ""))?;
    assert!(said.contains("error: rustc does not start; install Rust 1.89"), "{said}");

    stub(bin, "rustc", "echo 'rustc 1.100.0 (aaaaaaaaa 2027-03-15)'")?;
    stub(bin, "c++", "exit 1")?;
    let said = refusal(bin, ("NONE", ""))?;
    assert!(said.contains("error: c++ does not compile C++20 as g++ 11 and clang 15 do"), "{said}");
    let said = refusal(bin, ("CXX", "no-such-compiler -m64"))?;
    assert!(said.contains("error: no C++ compiler was found as no-such-compiler"), "{said}");
    assert!(said.contains("apt-get install g++"), "{said}");
    Ok(())
}
