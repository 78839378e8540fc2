//! Faults while ranks (the processes of a group) run. Every rank must end in time, with a message
//! that names the faulty rank and the reason.

use std::time::{Duration, Instant};

use super::LONG;
use super::proxy::{Harm, Proxy};
use super::ranks::{LIMIT, Place, Process, all_end, hosts};
use super::roles::CUT_ALL_BUT;
use crate::support::Checked;

/// Starts ranks with this role, and waits until all are running.
fn running(place: &Place, role: &str, timeout: Duration) -> anyhow::Result<Vec<Process>> {
    let mut ranks = place.start(role, timeout)?;
    for rank in &mut ranks {
        rank.wait_for("running")?;
    }
    Ok(ranks)
}

fn error(rank: usize, reason: &str) -> String {
    format!("[rank {rank}] error: {reason}\n")
}

#[test(simulated = never)]
fn a_rank_is_killed() -> Checked {
    for victim in 0..3 {
        let mut ranks = running(&Place::new(3)?, "loop", LONG)?;
        let lost = ranks.remove(victim);
        lost.signal(libc::SIGKILL)?;
        let survivors = (0..3).filter(|rank| *rank != victim);
        for (rank, process) in survivors.zip(ranks) {
            let reason = format!("rank {victim} ended before the others");
            let ended = process.finish()?;
            ended.check(1, &error(rank, &reason))?;
            // MLX's ring prints its messages in pieces. The rank's report may be between two pieces
            // of a message, so count reports, not lines.
            let reports = ended.said.matches("[rank ").count();
            anyhow::ensure!(reports == 1, "{ended:?}");
        }
        assert_eq!(lost.finish()?.signal, Some(libc::SIGKILL));
    }
    Ok(())
}

#[test(simulated = never)]
fn a_rank_is_killed_while_steps_are_queued() -> Checked {
    let mut ranks = running(&Place::new(2)?, "queue", LONG)?;
    ranks[1].signal(libc::SIGKILL)?;
    ranks.remove(0).finish()?.check(1, &error(0, "rank 1 ended before the others"))
}

#[test(simulated = never)]
fn a_rank_is_stopped() -> Checked {
    for victim in 0..2 {
        let place = Place::new(3)?;
        let mut ranks = running(&place, "loop", Duration::from_secs(2))?;
        let lost = ranks.remove(victim);
        lost.signal(libc::SIGSTOP)?;
        let survivors = (0..3).filter(|rank| *rank != victim);
        for (rank, process) in survivors.zip(ranks) {
            let reason =
                format!("rank {victim} has not answered for 2 s; it may be stopped or unreachable");
            process.finish()?.check(1, &error(rank, &reason))?;
        }
        // Let the stopped rank continue. It notices that the other ranks have ended.
        lost.signal(libc::SIGCONT)?;
        let ended = lost.finish()?;
        assert_eq!(ended.status, Some(1), "{ended:?}");
    }
    Ok(())
}

/// Stops all ranks and lets them continue, as Ctrl-Z and `fg` do in a terminal. They go on.
#[test(simulated = never)]
fn ranks_that_are_stopped_together_go_on() -> Checked {
    let ranks = running(&Place::new(2)?, "count", Duration::from_secs(1))?;
    for signal in [libc::SIGSTOP, libc::SIGCONT] {
        ranks.iter().try_for_each(|rank| rank.signal(signal))?;
        std::thread::sleep(Duration::from_millis(1600));
    }
    let said = ranks[0].said();
    let mut ranks = ranks;
    ranks[0].wait_for(&format!("{}step", said))?;
    ranks[1].signal(libc::SIGKILL)?;
    ranks.remove(0).finish()?.check(1, &error(0, "rank 1 ended before the others"))
}

#[test(simulated = never)]
fn a_rank_ends_without_leaving() -> Checked {
    let mut ranks = Place::new(2)?.start("ends early", LONG)?;
    let last = ranks.pop().expect("two ranks");
    ranks.remove(0).finish()?.check(1, &error(0, "rank 1 ended before the others"))?;
    last.finish()?.check(0, "")
}

#[test(simulated = never)]
fn a_rank_that_never_joins_an_operation() -> Checked {
    let place = Place::new(2)?;
    let start = |rank| -> anyhow::Result<Process> {
        place.rank("stall", rank)?.env("MLX_PRIMITIVES_TEST_STALL", "1500").start()
    };
    let ranks = vec![start(0)?, start(1)?];
    all_end(ranks, 1, "error: rank 0: an evaluation has waited for 1.5 s for the other ranks\n")
}

/// Starts two ranks. Rank 1 connects to rank 0 through a relay.
fn behind_a_relay() -> anyhow::Result<(Proxy, Vec<Process>)> {
    let place = Place::new(2)?;
    let proxy = Proxy::to(place.ports[0])?;
    let first = place.rank("loop", 0)?.start()?;
    let second = hosts(&[proxy.port, place.ports[1]]);
    let mut ranks = vec![first, place.rank_with("loop", 1, &second)?.start()?];
    for rank in &mut ranks {
        rank.wait_for("running")?;
    }
    Ok((proxy, ranks))
}

#[test(simulated = never)]
fn the_control_connection_breaks() -> Checked {
    let (proxy, mut ranks) = behind_a_relay()?;
    proxy.cut()?;
    ranks.remove(0).finish()?.check(1, &error(0, "rank 1 ended before the others"))?;
    ranks.remove(0).finish()?.check(1, &error(1, "rank 0 ended before the others"))
}

/// A relay in the network changes a message, or sends one twice. A rank must notice this.
#[test(simulated = never)]
fn the_control_connection_is_tampered_with() -> Checked {
    for harm in [Harm::Flip, Harm::Repeat] {
        let (proxy, ranks) = behind_a_relay()?;
        proxy.harm(harm);
        let ended = ranks.into_iter().map(Process::finish).collect::<Result<Vec<_>, _>>()?;
        // One rank notices the change, and tells the other one.
        let noticed = |rank: usize| {
            let reason = error(rank, &format!("rank {} sent what no rank sends", 1 - rank));
            ended[rank].said.contains(&reason)
        };
        anyhow::ensure!(noticed(0) || noticed(1), "{ended:?}");
        ended.iter().try_for_each(|end| end.check(1, " sent what no rank sends"))?;
    }
    Ok(())
}

/// MLX's ring breaks while both ranks run. Only MLX can notice this fault.
#[test(simulated = never)]
fn the_ring_breaks() -> Checked {
    for role in ["loop", "go on"] {
        let place = Place::new(2)?;
        let start = |rank| -> anyhow::Result<Process> {
            let starting = place.rank(role, rank)?.env("MLX_PRIMITIVES_TEST_RING", "1");
            let port = place.ports[0].to_string();
            // Rank 1 cuts its connections, except the control connection to this port.
            if rank == 1 { starting.env(CUT_ALL_BUT, &port) } else { starting }.start()
        };
        let mut ranks = vec![start(0)?, start(1)?];
        for rank in &mut ranks {
            rank.wait_for("running")?;
        }
        if role == "loop" {
            // Each rank waits for the other rank's reason. The first rank that stops waiting
            // reports its reason.
            let ended: Vec<_> = ranks.into_iter().map(Process::finish).collect::<Result<_, _>>()?;
            for (rank, ended) in ended.iter().enumerate() {
                ended.check(1, &format!("[rank {rank}] error: "))?;
                ended.check(1, "connection to a peer was lost")?;
            }
        } else {
            // One rank notices the fault, but ignores it and reports no reason. The other rank may
            // already have sent its part, and then waits forever for the first rank's part.
            let noticed = |rank: &&Process| rank.said().contains("refused");
            let start = Instant::now();
            while ranks.iter().find(noticed).is_none() {
                anyhow::ensure!(start.elapsed() < LIMIT, "no rank notices");
                std::thread::sleep(Duration::from_millis(5));
            }
            let said = ranks.iter().find(noticed).map(Process::said).unwrap_or_default();
            anyhow::ensure!(said.contains("connection to a peer was lost"), "{said}");
        }
    }
    Ok(())
}

#[test(simulated = never)]
fn texts_that_differ() -> Checked {
    let reason = "[agree] the temperature differs on rank 1: rank 0 has 0.7, rank 1 has 0.8";
    let ranks = Place::new(3)?.start("disagree", LONG)?;
    all_end(ranks, 1, reason)
}

#[test(simulated = never)]
fn ranks_out_of_step() -> Checked {
    let ranks = Place::new(2)?.start("out of step", LONG)?;
    let reason = "rank 0 is at broadcast, the control message 2, \
                  but rank 1 at agree, the control message 2";
    all_end(ranks, 1, reason)
}

#[test(simulated = never)]
fn a_rank_says_why_it_ends() -> Checked {
    let mut ranks = Place::new(3)?.start("interrupted", LONG)?;
    let second = ranks.remove(1);
    for (rank, process) in [0, 2].into_iter().zip(ranks) {
        process.finish()?.check(1, &error(rank, "rank 1: interrupted"))?;
    }
    second.finish()?.check(7, "told")
}

#[test(simulated = never)]
fn a_rank_is_lost_between_gathers() -> Checked {
    for (signal, reason) in [
        (libc::SIGKILL, "rank 1 ended before the others"),
        (libc::SIGSTOP, "rank 1 has not answered for 2 s; it may be stopped or unreachable"),
    ] {
        let mut ranks = running(&Place::new(3)?, "gather loop", Duration::from_secs(2))?;
        let lost = ranks.remove(1);
        lost.signal(signal)?;
        for (rank, process) in [0, 2].into_iter().zip(ranks) {
            process.finish()?.check(1, &error(rank, reason))?;
        }
        lost.signal(libc::SIGKILL)?;
        assert_eq!(lost.finish()?.signal, Some(libc::SIGKILL));
    }
    Ok(())
}

#[test(simulated = never)]
fn gathers_of_other_lengths() -> Checked {
    for rank in Place::new(2)?.start("unequal gathers", LONG)? {
        rank.finish()?
            .check(1, "the ranks differ in shapes or in the order of their operations")?;
    }
    Ok(())
}
