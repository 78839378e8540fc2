//! How a group starts and ends, and starts that are refused.

use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use super::LONG;
use super::ranks::{Place, Process, all_end};
use crate::support::Checked;

/// Prepares a single rank with this host file.
fn alone(role: &str, rank: usize, hosts: &str) -> anyhow::Result<super::ranks::Starting> {
    Ok(Place::new(1)?.rank_with(role, rank, hosts)?.timeout(Duration::from_secs(1)))
}

#[test(simulated = never)]
fn one_rank_needs_no_connection() -> Checked {
    for hosts in ["", " \n", r#"[["127.0.0.1:1"]]"#] {
        alone("join", 0, hosts)?.start()?.finish()?.check(0, "joined 0 of 1")?;
        let ended = alone("strict", 0, hosts)?.start()?.finish()?;
        ended.check(2, "[join] expected several ranks")?;
    }
    Ok(())
}

#[test(simulated = never)]
fn wrong_variables_and_files() -> Checked {
    let two = r#"[["127.0.0.1:12001"], ["127.0.0.1:12002"]]"#;
    for (rank, expected) in [
        ("2", "[MLX_RANK] expected a rank from 0 to 1"),
        ("-1", "[MLX_RANK]"),
        ("one", "got \"one\""),
        ("", "[MLX_RANK]"),
    ] {
        let starting = alone("join", 0, two)?.env("MLX_RANK", rank);
        starting.start()?.finish()?.check(2, expected)?;
    }
    for (hosts, expected) in [
        ("[", ".json: not a JSON list"),
        ("{}", ".json: not a JSON list"),
        ("\"127.0.0.1:1\"", "not a JSON list"),
        ("[]", ".json: the list has no ranks"),
        ("[1, 2]", ".json: rank 0: expected a list of addresses"),
        ("[[], []]", ".json: rank 0: expected at least one address"),
        (r#"[["127.0.0.1:1"], [2]]"#, ".json: rank 1: expected an address as text"),
        (r#"[["127.0.0.1:1"], ["127.0.0.1"]]"#, ".json: rank 1: expected an address such as"),
        (r#"[["127.0.0.1:1"], ["127.0.0.1:70000"]]"#, "got \"127.0.0.1:70000\""),
        (r#"[["127.0.0.1:1"], [":1"]]"#, "got \":1\""),
        (r#"[["127.0.0.1:1"], ["a:1", "b:2"]]"#, "rank 0 has 1 addresses, but rank 1 has 2"),
    ] {
        alone("join", 0, hosts)?.start()?.finish()?.check(2, expected)?;
    }
    let missing = alone("join", 0, two)?.env("MLX_HOSTFILE", "/missing/hosts.json");
    missing.start()?.finish()?.check(2, "/missing/hosts.json: ")?;
    let unset = alone("join", 0, two)?.env("MLX_HOSTFILE", "");
    unset.start()?.finish()?.check(2, "[MLX_HOSTFILE] expected the path of a file")
}

#[test(simulated = never)]
fn ranks_that_start_late() -> Checked {
    for first in 0..2 {
        let place = Place::new(2)?;
        let early = place.rank("values", first)?.start()?;
        thread::sleep(Duration::from_millis(1500));
        let late = place.rank("values", 1 - first)?.start()?;
        all_end(vec![early, late], 0, "values are right")?;
    }
    Ok(())
}

#[test(simulated = never)]
fn ranks_that_never_start() -> Checked {
    let place = Place::new(4)?;
    let start = |rank: usize, millis| -> anyhow::Result<Process> {
        place.rank("join", rank)?.timeout(Duration::from_millis(millis)).start()
    };
    let ranks = vec![start(0, 1500)?, start(2, 60_000)?];
    all_end(ranks, 2, "join: [join] ranks 1 and 3 did not start within 1.5 s")?;
    let expected =
        "join: [join] rank 0 did not start within 1.5 s, or cannot be reached at 127.0.0.1:";
    start(1, 1500)?.finish()?.check(2, expected)
}

#[test(simulated = never)]
fn ranks_of_different_versions() -> Checked {
    let place = Place::new(3)?;
    let mut ranks = vec![place.rank("join", 0)?.start()?, place.rank("join", 1)?.start()?];
    ranks.push(place.rank("join", 2)?.env("MLX_PRIMITIVES_TEST_VERSION", "9.9.9").start()?);
    let expected = format!(
        "join: [join] rank 2 runs mlx-primitives 9.9.9, but rank 0 runs {}",
        env!("CARGO_PKG_VERSION")
    );
    all_end(ranks, 2, &expected)
}

#[test(simulated = never)]
fn other_versions_of_mlx() -> Checked {
    const MLX: &str = "MLX_PRIMITIVES_TEST_MLX_VERSION";
    let place = Place::new(2)?;
    let (_, version) = mlx_primitives::device::mlx_versions();
    let first = place.rank("join", 0)?.start()?;
    let second = place.rank("join", 1)?.env(MLX, "0.33.0.dev1").start()?;
    let expected = format!("rank 1 runs MLX 0.33.0.dev1, but rank 0 runs MLX {version}");
    all_end(vec![first, second], 2, &expected)?;
    for old in ["0.32.0", "0.31.9.dev2026", "0.4.10"] {
        let expected = format!(
            "needs MLX 0.32.1 or later, in which a rank notices that another one \
                                is lost (ml-explore/mlx#4060), but this is MLX {old}"
        );
        place.rank("join", 0)?.env(MLX, old).start()?.finish()?.check(2, &expected)?;
        // A single rank accepts any version of MLX.
        alone("join", 0, "")?.env(MLX, old).start()?.finish()?.check(0, "joined 0 of 1")?;
    }
    Ok(())
}

#[test(simulated = never)]
fn groups_of_different_sizes() -> Checked {
    let place = Place::new(2)?;
    let first = place.rank("join", 0)?.start()?;
    let three = super::ranks::hosts(&[place.ports[0], place.ports[1], 12_345]);
    let second = place.rank_with("join", 1, &three)?.start()?;
    all_end(vec![first, second], 2, "join: [join] rank 1 expects 3 ranks, but rank 0 expects 2")
}

#[test(simulated = never)]
fn two_processes_with_one_rank() -> Checked {
    let place = Place::new(3)?;
    let ranks = [0, 1, 1].map(|rank| place.rank("join", rank)?.start());
    let ranks = ranks.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    all_end(ranks, 2, "join: [join] two processes have rank 1")
}

#[test(simulated = never)]
fn a_rank_that_starts_again_while_the_others_wait() -> Checked {
    let place = Place::new(3)?;
    let first = place.rank("values", 0)?.start()?;
    let dropped = place.rank("values", 1)?.start()?;
    thread::sleep(Duration::from_millis(600));
    drop(dropped);
    let ranks = vec![first, place.rank("values", 1)?.start()?, place.rank("values", 2)?.start()?];
    all_end(ranks, 0, "values are right on 3 ranks")
}

#[test(simulated = never)]
fn ports_that_are_in_use() -> Checked {
    let place = Place::new(2)?;
    let _foreign = TcpListener::bind(("127.0.0.1", place.ports[0]))?;
    let expected = format!("[join] rank 0 cannot listen at 127.0.0.1:{}: ", place.ports[0]);
    place.rank("join", 0)?.start()?.finish()?.check(2, &expected)?;

    // Only rank 0 listens at its port in the host file. MLX's ring uses other ports.
    let place = Place::new(2)?;
    let _foreign = TcpListener::bind(("127.0.0.1", place.ports[1]))?;
    all_end(place.start("values", LONG)?, 0, "values are right on 2 ranks")
}

#[test(simulated = never)]
fn ranks_leave_together() -> Checked {
    let start = Instant::now();
    let ranks = Place::new(2)?.start("slow to leave", LONG)?;
    all_end(ranks, 0, "left")?;
    assert!(start.elapsed() >= Duration::from_millis(700));
    all_end(Place::new(1)?.start("slow to leave", LONG)?, 0, "left")
}
