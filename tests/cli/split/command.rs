//! Tests the command on two ranks (processes that share the work of a model): their output, their
//! input, and their end after a rank fails.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use mlx_primitives::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command::command;
use crate::support::Checked;
use crate::support::models::{checkpoints as root, variant};
use crate::support::ranks::{LIMIT, Ranks};

/// The time within which ranks must end after a fault. The timeout of the commands is 5 seconds.
const END: Duration = Duration::from_secs(60);

/// Runs the command on two ranks, and returns the output of rank 0. Rank 1 must print nothing.
fn printed(arguments: &[&str]) -> Checked<String> {
    let ends = Ranks::start(2, |_| command(arguments))?.ends(LIMIT)?;
    for (rank, (status, _, err)) in ends.iter().enumerate() {
        assert!(status.success(), "rank {rank} of {arguments:?} ended with {status}: {err}");
    }
    assert_eq!((&*ends[1].1, &*ends[1].2), ("", ""), "{arguments:?}");
    Ok(ends[0].1.clone())
}

fn alone(arguments: &[&str]) -> Checked<String> {
    let output = command(arguments).output()?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[test(simulated = never)]
fn rank_0_prints_what_one_process_prints() -> Checked {
    let generate = ["generate", "Once upon a time", "-m", "24"];
    assert_eq!(printed(&generate)?, alone(&generate)?);
    // The environment of the ranks sets one thread. --threads must override it, although the ranks
    // already run kernels when they connect.
    let threads = [&generate[..], &["--threads", "2"]].concat();
    assert_eq!(printed(&threads)?, alone(&generate)?);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../LICENSE-MIT");
    let perplexity = ["perplexity", "--file", file];
    assert_eq!(printed(&perplexity)?, alone(&perplexity)?);

    let bench = ["bench", "-p", "8", "-g", "8", "-n", "1", "--json", "--shares", "3,1"];
    let measured: Value = serde_json::from_str(&printed(&bench)?)?;
    let once: Value = serde_json::from_str(&alone(&bench[..bench.len() - 2])?)?;
    assert!(once["tokens_hash"].is_string());
    assert_eq!(measured["tokens_hash"], once["tokens_hash"]);
    let ranks = measured["ranks"].as_array().context("ranks")?;
    let of = |rank: usize, name: &str| ranks[rank][name].as_f64().unwrap_or(f64::NAN);
    assert_eq!(ranks.len(), 2);
    let share = of(0, "weight_bytes") / (of(0, "weight_bytes") + of(1, "weight_bytes"));
    assert!((0.6..0.8).contains(&share), "{share}");
    assert_eq!(of(1, "exchanges_per_token"), 18.0);
    assert!(of(0, "exchange_seconds_per_token") > 0.0);
    Ok(())
}

#[test(simulated = never)]
fn the_command_takes_a_scheme() -> Checked {
    let generate = ["generate", "Once upon a time", "-m", "24"];
    let expected = alone(&generate)?;
    for (scheme, exchanges) in [("gather", 18.0), ("pipeline", 3.0)] {
        assert_eq!(printed(&[&generate[..], &["--split", scheme]].concat())?, expected);
        let bench = ["bench", "-p", "4", "-g", "4", "-n", "1", "--json", "--split", scheme];
        let measured: Value = serde_json::from_str(&printed(&bench)?)?;
        for rank in 0..2 {
            let rank = &measured["ranks"][rank];
            assert_eq!(rank["exchanges_per_token"].as_f64(), Some(exchanges), "{rank}");
            assert!(rank["exchange_seconds_per_token"].as_f64() > Some(0.0), "{rank}");
        }
    }
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../llama/assets/demo");
    let plan = |scheme: &str| -> Checked<Value> {
        let plan = ["info", "--model", demo, "--ranks", "2", "--link", "0us,1000000Gbit"];
        let of = ["--tokens-per-second", "10", "--json", "--split", scheme];
        let json: Value = serde_json::from_str(&alone(&[&plan[..], &of[..]].concat())?)?;
        Ok(json["ranks"][0].clone())
    };
    for (scheme, exchanges, tps) in [("gather", 18, 19.0), ("pipeline", 3, 10.0)] {
        let plan = plan(scheme)?;
        assert_eq!(plan["exchanges_per_token"], exchanges, "{plan}");
        let predicted = plan["predicted_tokens_per_second"].as_f64().context("a speed")?;
        assert!((tps - 0.1..tps + 1.0).contains(&predicted), "{plan}");
    }
    let refused = command(&["generate", "a", "--split", "pipeline"]).output()?;
    let error = String::from_utf8(refused.stderr)?;
    assert!(error.contains("several ranks for --split pipeline"), "{error}");
    Ok(())
}

/// An MLX that is built for CPUs does not support NCCL, so the command must refuse it.
#[test(simulated = never)]
fn ranks_of_nccl_are_refused_without_it() -> Checked {
    if mlx_primitives_ranks::is_available(mlx_primitives_ranks::Backend::Nccl) {
        eprintln!("not run: the refusal of NCCL by the command, since this MLX has it");
        return Ok(());
    }
    for scheme in ["gather", "pipeline"] {
        let mut rank = command(&["generate", "A", "--split", scheme]);
        rank.env("NCCL_HOST_IP", "127.0.0.1").env("NCCL_PORT", "41001");
        let refused = rank.env("MLX_WORLD_SIZE", "2").env("MLX_RANK", "1").output()?;
        let error = String::from_utf8(refused.stderr)?;
        assert!(error.contains("[join] NCCL needs MLX for CUDA"), "{error}");
        assert_eq!(refused.status.code(), Some(1));
    }
    Ok(())
}

/// With `--split gather`, the ranks share the work of every layer. With `pipeline`, each rank has
/// complete layers. So with `gather` a token needs 15 more exchanges, but about half of the
/// computing time. On the link of this test, an exchange takes a millisecond.
#[test(simulated = never)]
fn info_says_which_scheme_a_link_wants() -> Checked {
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../llama/assets/demo");
    let plan = ["info", "--model", demo, "--ranks", "2", "--link", "1000us,1000000Gbit"];
    for scheme in ["gather", "pipeline"] {
        let said = alone(&[&plan[..], &["--split", scheme, "--json"]].concat())?;
        let json: Value = serde_json::from_str(&said)?;
        let limit = json["ranks"][0]["gather_below_tokens_per_second"].as_f64();
        assert!(limit.is_some_and(|limit| (30.0..33.0).contains(&limit)), "{said}");
        let said = alone(&[&plan[..], &["--split", scheme]].concat())?;
        assert!(
            said.contains("2 ranks want gather where one machine decodes fewer than 3"),
            "{said}"
        );
    }
    for (tps, wanted) in [("10", "want gather: "), ("100", "want pipeline: ")] {
        let said = alone(&[&plan[..], &["--tokens-per-second", tps]].concat())?;
        assert!(said.contains(wanted), "{said}");
    }
    // The model has four layers and four query heads, so it can be split over four ranks.
    let four =
        ["info", "--model", demo, "--ranks", "4", "--link", "0us,1Gbit", "--split", "gather"];
    assert!(alone(&four)?.contains("On this link 4 ranks want "));
    Ok(())
}

#[test(simulated = never)]
fn lines_of_rank_0_reach_all_ranks() -> Checked {
    let lines = "Once upon a time\n\nThe dog\n/reset\nOne day\n";
    let chat = ["chat", "-m", "8"];
    let mut ranks = Ranks::start(2, |_| command(&chat))?;
    let mut stdin = ranks.children[0].stdin.take().context("a pipe")?;
    stdin.write_all(lines.as_bytes())?;
    drop(stdin);
    let ends = ranks.ends(LIMIT)?;
    assert!(ends.iter().all(|(status, ..)| status.success()), "{ends:?}");
    let mut one = command(&chat)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    one.stdin.take().context("a pipe")?.write_all(lines.as_bytes())?;
    let expected = String::from_utf8(one.wait_with_output()?.stdout)?;
    assert_eq!(ends[0].1, expected);
    assert_eq!(ends[1].1, "");
    assert_eq!(expected.lines().count(), 3);
    Ok(())
}

#[test(simulated = never)]
fn ranks_that_differ_refuse_each_other() -> Checked {
    let config = |name: &str| root().join(name).join("config.json").display().to_string();
    let (a, b) = (config("llama-f32"), config("llama-q5-g32"));
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../LICENSE-MIT");
    let cases: [(&str, [Vec<&str>; 2]); 3] = [
        ("the command's options", [vec!["generate", "a"], vec!["generate", "a", "--temp", "1"]]),
        ("the command's options", [vec!["generate", "a"], vec!["perplexity", "--file", file]]),
        ("the model", [vec!["bench", "--config", &a], vec!["bench", "--config", &b]]),
    ];
    for (what, arguments) in cases {
        let ends = Ranks::start(2, |rank| command(&arguments[rank]))?.ends(END)?;
        for (rank, (status, out, err)) in ends.iter().enumerate() {
            assert_eq!(status.code(), Some(1), "rank {rank}: {err}");
            assert!(err.contains(what) && err.contains("rank 1"), "rank {rank}: {err}");
            assert!(err.starts_with(&format!("[rank {rank}] error: ")), "{err}");
            assert_eq!(out, "");
        }
    }
    Ok(())
}

/// The ranks compare their arguments, but not their paths. A path need not be valid UTF-8.
#[test(simulated = never)]
fn arguments_that_are_no_text() -> Checked {
    let missing = OsStr::from_bytes(b"/missing/\xff\xfe");
    for (first, second, expected) in [
        ("a", missing, "there is no such folder"),
        ("a", OsStr::new("/missing/a"), "there is no such folder"),
        ("b", missing, "the command's options"),
    ] {
        let started = |rank: usize| {
            let mut command = command(&["generate", if rank == 0 { first } else { "a" }]);
            command.arg("--model").arg(if rank == 0 { missing } else { second });
            command
        };
        for (rank, (status, out, err)) in Ranks::start(2, started)?.ends(END)?.iter().enumerate() {
            assert_eq!(status.code(), Some(1), "rank {rank}: {err}");
            assert!(err.contains(expected) && !err.contains("panicked"), "rank {rank}: {err}");
            assert_eq!(out, "");
        }
    }
    // A prompt must be valid UTF-8. Otherwise the command exits with the code for wrong usage.
    let prompt = |_| {
        let mut command = command(&["generate"]);
        command.arg(OsStr::from_bytes(b"\xff"));
        command
    };
    for (status, _, err) in Ranks::start(2, prompt)?.ends(END)? {
        assert_eq!(status.code(), Some(2), "{err}");
    }
    Ok(())
}

/// Starts two ranks that generate tokens without an end. The model accepts long sequences and never
/// samples the end token.
fn endless(scheme: &str) -> Checked<(Ranks, TempDir)> {
    let directory = variant(Dtype::Float32, |name, json| {
        if name == "config.json" {
            json["max_position_embeddings"] = json!(1 << 20);
        }
        if name != "tokenizer.json" {
            json["eos_token_id"] = json!(511);
        }
    });
    let model = directory.path().to_str().context("a path")?;
    let mut arguments = vec!["generate", "Once upon a time", "--model", model, "-m", "1000000"];
    arguments.extend(["--logit-bias", "511:-inf", "--max-kv-size", "64", "--peer-timeout", "5"]);
    arguments.extend(["--split", scheme]);
    let mut ranks = Ranks::start(2, |_| command(&arguments))?;
    let start = Instant::now();
    while std::fs::metadata(ranks.output(0, "out"))?.len() < 200 {
        ensure!(start.elapsed() < LIMIT, "no text");
        let ended = ranks.children[0].try_wait()?;
        ensure!(ended.is_none(), "{}", std::fs::read_to_string(ranks.output(0, "err"))?);
        sleep(Duration::from_millis(5));
    }
    Ok((ranks, directory))
}

fn signal(ranks: &Ranks, rank: usize, name: &str) -> Checked {
    let id = ranks.children[rank].id().to_string();
    ensure!(Command::new("kill").args([name, &id]).status()?.success(), "kill {name}");
    Ok(())
}

#[test(simulated = never)]
fn an_interrupted_rank_ends_all() -> Checked {
    for rank in 0..2 {
        let (ranks, _model) = endless("gather")?;
        signal(&ranks, rank, "-INT")?;
        let ends = ranks.ends(END)?;
        assert_eq!(ends[rank].0.code(), Some(130), "{:?}", ends[rank].2);
        let (status, _, err) = &ends[1 - rank];
        assert_eq!(status.code(), Some(1));
        assert!(err.contains(&format!("rank {rank}: interrupted")), "{err}");
    }
    Ok(())
}

#[test(simulated = never)]
fn a_killed_rank_ends_all() -> Checked {
    for (rank, scheme) in [(0, "gather"), (1, "gather"), (0, "pipeline"), (1, "pipeline")] {
        let (ranks, _model) = endless(scheme)?;
        signal(&ranks, rank, "-KILL")?;
        let ends = ranks.ends(END)?;
        let (status, _, err) = &ends[1 - rank];
        assert_eq!(status.code(), Some(1));
        assert!(err.contains(&format!("rank {rank} ended before the others")), "{err}");
    }
    Ok(())
}

#[test(simulated = never)]
fn a_stopped_rank_ends_the_others() -> Checked {
    let (mut ranks, _model) = endless("pipeline")?;
    signal(&ranks, 1, "-STOP")?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = ranks.children[0].try_wait()? {
            break status;
        }
        ensure!(start.elapsed() < END, "rank 0 did not end");
        sleep(Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(1));
    let err = std::fs::read_to_string(ranks.output(0, "err"))?;
    assert!(err.contains("rank 1 has not answered for 5 s"), "{err}");
    Ok(())
}
