//! The secret of a group: where ranks read it, and when they need it. A greeting's proof is valid
//! on only one connection.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use super::hostile::{self, MAGIC};
use super::ranks::{FILE, Place, Process, SECRET, all_end};
use crate::support::Checked;

pub const WORD: &str = "correct horse battery staple";

#[test(simulated = never)]
fn ranks_with_a_secret() -> Checked {
    let place = Place::new(3)?;
    let file = tempfile::NamedTempFile::new()?;
    fs::write(&file, format!("{WORD}\n"))?;
    let path = file.path().to_str().expect("a path");
    let start = |rank: usize| -> anyhow::Result<Process> {
        let starting = place.rank("values", rank)?;
        if rank == 1 { starting.env(FILE, path) } else { starting.env(SECRET, WORD) }.start()
    };
    all_end(vec![start(0)?, start(1)?, start(2)?], 0, "values are right on 3 ranks")
}

#[test(simulated = never)]
fn ranks_whose_secrets_differ() -> Checked {
    for second in [Some("another secret of someone"), None] {
        let place = Place::new(2)?;
        let start = |rank: usize, secret: Option<&str>| -> anyhow::Result<Process> {
            let starting = place.rank("join", rank)?.timeout(Duration::from_millis(1500));
            match secret {
                Some(word) => starting.env(SECRET, word).start(),
                None => starting.start(),
            }
        };
        let ranks = [start(0, Some(WORD))?, start(1, second)?].map(Process::finish);
        let [first, second] = ranks;
        let reason = "rank 1 did not start within 1.5 s, or did not know the secret of rank 0";
        first?.check(2, reason)?;
        second?.check(2, "rank 0 did not start within 1.5 s, or cannot be reached at")?;
    }
    Ok(())
}

#[test(simulated = never)]
fn addresses_of_a_network_need_a_secret() -> Checked {
    let place = Place::new(2)?;
    let first = format!("127.0.0.1:{}", place.ports[0]);
    let with = |second: &str| format!(r#"[["{first}"], ["{second}"]]"#);
    let network = &with("192.0.2.1:12002");
    let start = |hosts: &str| -> anyhow::Result<super::ranks::Starting> {
        Ok(place.rank_with("join", 0, hosts)?.timeout(Duration::from_millis(300)))
    };
    let refusal = "[join] 192.0.2.1:12002 is reached over a network, where others could take part, so \
                   give every rank the same secret: in a file that MLX_PRIMITIVES_RANK_SECRET_FILE \
                   names, such as `openssl rand -hex 32` writes, or in MLX_PRIMITIVES_RANK_SECRET";
    start(network)?.start()?.finish()?.check(2, refusal)?;
    start(&with("no-such-host.invalid:12002"))?
        .start()?
        .finish()?
        .check(2, "no-such-host.invalid:12002 is reached over")?;
    // With a secret, rank 0 starts and waits for rank 1.
    let known = start(network)?.env(SECRET, WORD).start()?.finish()?;
    known.check(2, "rank 1 did not start within 0.3 s")?;

    let here = &with(&format!("127.0.0.1:{}", place.ports[1]));
    for (name, value, expected) in [
        (SECRET, "", "a secret of 16 to 4096 bytes, such as `openssl rand -hex 32` writes, got 0"),
        (SECRET, "   only 10 ch   ", "got 10"),
        (SECRET, &*"x".repeat(4097), "got 4097"),
        (FILE, "/missing/secret", "/missing/secret: "),
        (FILE, "/dev/null", "/dev/null"),
    ] {
        start(here)?.env(name, value).start()?.finish()?.check(2, expected)?;
    }
    let both = start(here)?.env(SECRET, WORD).env(FILE, "/dev/null").start()?.finish()?;
    both.check(2, "either this or MLX_PRIMITIVES_RANK_SECRET_FILE, got both")
}

/// A stranger records a rank's greeting. The greeting must not be valid for another process.
#[test(simulated = never)]
fn a_greeting_that_was_recorded() -> Checked {
    let place = Place::new(2)?;
    // The stranger listens at rank 0's port first. It sends a nonce to rank 1, which connects.
    let stranger = TcpListener::bind(("127.0.0.1", place.ports[0]))?;
    let dropped = place.rank("values", 1)?.env(SECRET, WORD).start()?;
    let record = |nonce: [u8; 32]| -> anyhow::Result<Vec<u8>> {
        let (mut stream, _) = stranger.accept()?;
        stream.write_all(&[&MAGIC[..], &nonce].concat())?;
        let mut greeting = vec![0; 16 + 4];
        stream.read_exact(&mut greeting)?;
        let length = greeting[16..].iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        let mut more = vec![0; 32 + length + 32];
        stream.read_exact(&mut more)?;
        // The stranger cannot compute a proof. It sends rank 1's proof back, which rank 1 must
        // refuse.
        stream.write_all(&more[32 + length..])?;
        assert_eq!(hostile::rest(&mut stream), b"", "the rank went on");
        Ok([greeting, more].concat())
    };
    let recorded = [record([0; 32])?, record([0; 32])?];
    assert_ne!(recorded[0], recorded[1], "a nonce came twice");
    for greeting in &recorded {
        let text = String::from_utf8_lossy(&greeting[52..greeting.len() - 32]).into_owned();
        let json: serde_json::Value = serde_json::from_str(&text)?;
        let keys: Vec<_> = json.as_object().expect("an object").keys().collect();
        assert_eq!(keys, ["version", "mlx", "size", "rank"]);
    }
    drop((stranger, dropped));
    let first = place.rank("values", 0)?.env(SECRET, WORD).start()?;
    for greeting in recorded {
        let answer = hostile::say(place.ports[0], |_| greeting.clone())?;
        assert_eq!(answer, b"", "rank 0 answered a recorded greeting");
    }
    let second = place.rank("values", 1)?.env(SECRET, WORD).start()?;
    all_end(vec![first, second], 0, "values are right on 2 ranks")
}
