//! `mlx-primitives verify`: its report, the errors for faults, and bad usage.

use std::fs;
use std::process::{Command, Output};

use mlx_primitives::device::{Device, default_device};
use serde_json::Value;
use tempfile::TempDir;

use crate::command::{command, stderr, stdout};
use crate::support::{Checked, simulated};

/// Runs `mlx-primitives verify` in a new folder.
fn verify(arguments: &[&str], set: impl FnOnce(&mut Command)) -> anyhow::Result<(Output, TempDir)> {
    let folder = tempfile::tempdir()?;
    let mut command = command(&[&["verify", "--quick"], arguments].concat());
    set(command.current_dir(folder.path()));
    Ok((command.output()?, folder))
}

const REPORT: &str = "mlx-primitives-report.md";

#[test(simulated = once)]
fn everything_passes_and_is_reported() -> Checked {
    let (output, folder) = verify(&["--only", "softmax", "facts", "decode"], |_| {})?;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let (said, report) = (stdout(&output), fs::read_to_string(folder.path().join(REPORT))?);
    assert!(said.ends_with(&format!("\nreport: {REPORT}\n")), "{said}");
    let parts = if simulated() { 3 } else { 4 };
    assert_eq!(said.lines().filter(|line| line.contains("       0  ")).count(), parts, "{said}");
    for part in [
        "# mlx-primitives verify\n\nAll ",
        "MLX             0.32.",
        "kernels hash    ",
        "| sums::softmax | passed | ",
        " comparisons | ",
        "| demo | passed | 24 tokens of 2 texts",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
    assert!(!report.contains("Failures") && !report.contains("norms::"), "{report}");
    Ok(())
}

#[test(simulated = once)]
fn programs_read_one_object() -> Checked {
    let arguments = ["--only", "dequantize", "latency relu", "--json", "--output", "other.md"];
    let (output, folder) = verify(&arguments, |_| {})?;
    let object: Value = serde_json::from_str(&stdout(&output))?;
    assert_eq!((&object["passed"], &object["report"]), (&true.into(), &"other.md".into()));
    let device = ["cpu", "gpu"][usize::from(default_device()? == Device::Gpu)];
    assert_eq!(object["device"], if simulated() { "simulated metal" } else { device });
    let steps = object["steps"].as_array().expect("steps");
    assert_eq!(steps[0]["name"], "quantized::dequantize");
    assert!(steps[0]["found"]["comparisons"].as_u64() > Some(20), "{object}");
    if !simulated() {
        assert_eq!(steps[1]["found"][0]["op"], "relu");
    }
    assert!(fs::read_to_string(folder.path().join("other.md"))?.starts_with("# mlx-primitives"));
    Ok(())
}

/// Two processes that each run one share (`--share 1/2` and `2/2`) together make as many
/// comparisons as one process.
#[test(simulated = once)]
fn shares_of_the_cases_are_all_of_them() -> Checked {
    let compared = |share: &[&str]| -> anyhow::Result<u64> {
        let arguments = [&["--only", "dequantize", "--json"], share].concat();
        let object: Value = serde_json::from_str(&stdout(&verify(&arguments, |_| {})?.0))?;
        assert_eq!(object["passed"], true, "{object}");
        Ok(object["steps"][0]["found"]["comparisons"].as_u64().unwrap_or_default())
    };
    let [first, second] = ["1/2", "2/2"].map(|share| compared(&["--share", share]));
    let (first, second) = (first?, second?);
    assert!(first > 0 && second > 0, "{first} {second}");
    assert_eq!(first + second, compared(&[])?);
    Ok(())
}

#[test(simulated = once)]
fn models_of_random_weights_decode_as_by_mlxs_ops() -> Checked {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("config.json");
    fs::write(
        &config,
        r#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
            "intermediate_size": 96, "num_attention_heads": 2, "rms_norm_eps": 1e-5,
            "vocab_size": 96}"#,
    )?;
    let config = config.to_str().expect("a path in UTF-8");
    let arguments = ["--only", "random", "--config", config, "--bits", "4", "--group-size", "32"];
    let (output, folder) = verify(&arguments, |_| {})?;
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report = fs::read_to_string(folder.path().join(REPORT))?;
    assert!(report.contains("| random weights | passed | 8 tokens"), "{report}");
    let (output, _) = verify(&["--bits", "4"], |_| {})?;
    assert!(stderr(&output).contains("expected --config with --bits"), "{}", stderr(&output));
    Ok(())
}

/// In a test build, `verify` can check the Metal kernels in the simulator.
#[cfg(target_os = "linux")]
#[test(simulated = once)]
fn kernels_are_checked_in_the_simulator() -> Checked {
    if default_device()? == Device::Gpu {
        return Ok(()); // it stands in for a GPU that the machine lacks
    }
    let (output, folder) = verify(&["--only", "sums::softmax", "latency", "--json"], |command| {
        command.env("MLX_PRIMITIVES_SIMULATE_METAL", "forward");
    })?;
    let object: Value = serde_json::from_str(&stdout(&output))?;
    assert_eq!((&object["device"], &object["failed"]), (&"simulated metal".into(), &0.into()));
    assert_eq!(object["steps"].as_array().map(Vec::len), Some(1), "no latency");
    let report = fs::read_to_string(folder.path().join(REPORT))?;
    assert!(report.contains("Device: simulated metal, quick."), "{report}");
    Ok(())
}

/// The test replaces MLX's RMSNorm with a function that throws an exception. The report says that
/// the one step that calls this function failed. The other steps run.
#[cfg(target_os = "linux")]
#[test(simulated = once)]
fn a_fault_is_named_and_stops_nothing() -> Checked {
    let directory = tempfile::tempdir()?;
    let [source, library] = ["planted.cpp", "planted.so"].map(|name| directory.path().join(name));
    fs::write(
        &source,
        r#"
        #include <stdexcept>
        extern "C" void rms_norm() asm(
            "_ZN3mlx4core4fast8rms_normERKNS0_5arrayERKSt8optionalIS2_EfSt7variantIJSt9monostate"
            "NS0_6StreamENS0_17ThreadLocalStreamENS0_6DeviceENSD_10DeviceTypeEEE");
        void rms_norm() { throw std::runtime_error("a planted fault"); }
        "#,
    )?;
    let mut compiler = Command::new("c++");
    compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    assert!(compiler.status()?.success());
    let (output, folder) = verify(&["--only", "self-test norms", "sums::softmax"], |command| {
        command.env("LD_PRELOAD", &library);
    })?;
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let (said, report) = (stderr(&output), fs::read_to_string(folder.path().join(REPORT))?);
    assert!(said.contains("failed: self-test norms::rms_norm: "), "{said}");
    assert!(said.ends_with(&format!("error: 1 of 4 steps failed: see {REPORT}\n")), "{said}");
    for part in [
        "1 of 4 steps failed.",
        "- self-test norms::rms_norm\n",
        "a planted fault",
        "| norms::rms_norm | **failed** |",
        "| sums::softmax | passed |",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
    assert!(stdout(&output).contains(&format!("report: {REPORT}")));
    Ok(())
}

#[test(simulated = once)]
fn bad_usage_and_reports_that_cannot_be_written() -> Checked {
    for arguments in [
        &["--only", "frobnicate"][..],
        &["--device", "tpu"],
        &["--frob"],
        &["--only"],
        &["--share", "3/2"],
        &["--share", "0/2"],
        &["--share", "half"],
    ] {
        let (output, folder) = verify(arguments, |_| {})?;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).starts_with("error: "), "{}", stderr(&output));
        assert!(!folder.path().join(REPORT).exists());
    }
    for path in [".", "no/such/folder/report.md"] {
        let (output, _) = verify(&["--only", "decode", "--output", path], |_| {})?;
        assert_eq!(output.status.code(), Some(1), "{path}");
        assert!(stderr(&output).starts_with("error: ") && stderr(&output).contains(path));
        assert!(output.stdout.is_empty());
    }
    Ok(())
}
