//! `mlx-primitives ops` compares the latencies of ops, and prints a row as soon as it is measured.
//! If the command is interrupted, the rows printed so far are complete.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::command::{command, stdout};
use crate::support::{Checked, simulated};

/// More time than the slowest machine needs. With --quick, the command plans to take 80 seconds.
const LIMIT: Duration = Duration::from_secs(200);

fn start(arguments: &[&str]) -> Checked<Child> {
    let mut ops = command(&[&["ops"], arguments].concat());
    Ok(ops.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}

fn status(child: &mut Child) -> Checked<Option<i32>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        ensure!(start.elapsed() < LIMIT, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts a comparison of all ops, interrupts it after `lines` lines, and returns the complete
/// stdout and stderr.
fn interrupted(arguments: &[&str], lines: usize) -> Checked<(String, String)> {
    let mut child = start(arguments)?;
    let mut reader = BufReader::new(child.stdout.take().context("a pipe")?);
    let mut text = String::new();
    for _ in 0..lines {
        ensure!(reader.read_line(&mut text)? > 0, "{text}");
    }
    ensure!(child.try_wait()?.is_none(), "the lines came before the end");
    ensure!(Command::new("kill").args(["-INT", &child.id().to_string()]).status()?.success());
    reader.read_to_string(&mut text)?;
    assert_eq!(status(&mut child)?, Some(130), "{text}");
    let mut said = String::new();
    child.stderr.take().context("a pipe")?.read_to_string(&mut said)?;
    Ok((text, said))
}

#[test]
fn interrupted_comparisons_keep_their_rows() -> Checked {
    if simulated() {
        return Ok(()); // it would take minutes in the simulator
    }
    let (text, said) = interrupted(&["--quick", "--json"], 3)?;
    let rows: Vec<Value> = serde_json::from_str(&text).with_context(|| text.clone())?;
    assert!(rows.len() >= 2 && rows.iter().all(|row| row["op"] == "rms_norm"), "{text}");
    assert!(said.contains(&format!("interrupted after {} of ", rows.len())), "{said}");

    let folder = tempfile::tempdir()?;
    let plot = folder.path().join("plot.svg");
    let arguments = ["--quick", "--plot", plot.to_str().context("a path")?];
    let (text, _) = interrupted(&arguments, 4)?;
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0] == "rms_norm" && lines[1].starts_with("shape"), "{text}");
    assert!(lines[2].starts_with("[1,1,4096]") && lines[2].contains('×'), "{text}");
    assert!(std::fs::read_to_string(plot)?.starts_with("<svg"));
    Ok(())
}

/// The columns must be aligned, although the command prints a row before it measures the next row.
#[test]
fn tables_and_objects_have_the_same_rows() -> Checked {
    if simulated() {
        return Ok(()); // it would take minutes in the simulator
    }
    let arguments = ["--quick", "--op", "relu", "sum", "--dtype", "float32"];
    let output = command(&[&["ops"], &arguments[..]].concat()).output()?;
    let table = stdout(&output);
    let parts: Vec<Vec<&str>> = table.split("\n\n").map(|part| part.lines().collect()).collect();
    assert_eq!((parts.len(), parts[0][0], parts[1][0]), (2, "relu", "sum"), "{table}");
    let column = |line: &str, name: &str| line.find(name).map(|at| line[..at].chars().count());
    for part in &parts {
        let at = column(part[1], "dtype");
        assert!(part[2..].iter().all(|row| column(row, "float32") == at), "{table}");
    }
    let output = command(&[&["ops", "--json"], &arguments[..]].concat()).output()?;
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout)?;
    assert_eq!(rows.len(), parts.iter().map(|part| part.len() - 2).sum::<usize>(), "{table}");
    assert_eq!(stdout(&output).lines().count(), rows.len() + 2, "an object on each line");
    // On a busy machine, the command may decide that MLX's op is too slow for the largest case, and
    // skip it.
    let left_out = |row: &&Value| row["builtin_left_out_us"].is_number();
    assert!(rows.iter().filter(left_out).count() < rows.len() / 2, "{rows:?}");
    for row in rows.iter().filter(|row| !left_out(row)) {
        let samples = row["builtin_samples"].as_u64();
        assert!(samples >= Some(1) && row["speedup"].as_f64() > Some(0.0), "{row}");
    }
    Ok(())
}
