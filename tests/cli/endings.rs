//! Tests that interrupted generations end with success and a report.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use harness::roles::{LIMIT, Player, rounds};

use crate::support::Checked;

/// Waits until a process has installed a handler for SIGINT.
fn wait_for_handler(id: u32) -> Checked {
    let start = Instant::now();
    while start.elapsed() < LIMIT {
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.unwrap_or_default().trim(), 16)?;
        if caught & (1 << (libc::SIGINT - 1)) != 0 {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(1));
    }
    anyhow::bail!("process {id} handles no SIGINT");
}

/// Interrupts the command at random times: while it loads the model, processes the prompt, or
/// generates tokens.
#[test(simulated = never)]
fn interrupted_generations() -> Checked {
    let long_prompt = "Once upon a time there was a little girl. ".repeat(15);
    for round in 0..rounds(6) {
        let prompt = if round % 3 == 0 { &long_prompt } else { "Once upon a time" };
        let player = Player::run(
            "generate",
            Command::new(env!("CARGO_BIN_EXE_mlx-primitives")).args([
                "generate",
                prompt,
                "--verbose",
                "--logit-bias",
                "0:-1000",
                "--max-tokens",
                "100000",
            ]),
        )?;
        wait_for_handler(player.child.id())?;
        thread::sleep(Duration::from_micros(fastrand::u64(0..600_000)));
        player.signal(if round % 2 == 0 { libc::SIGINT } else { libc::SIGTERM })?;
        let (ended, said) = player.finish()?;
        let stopped = said.contains("Generation: ") && said.contains("Peak memory: ");
        assert!(ended.success() && stopped, "round {round}: {ended}, {said}");
    }
    Ok(())
}
