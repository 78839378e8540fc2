//! Strangers: programs that connect to rank 0's port without knowing the secret. They can neither
//! end nor delay the group, and they learn nothing.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::hostile::{self, connect, greeting, say, text};
use super::ranks::{LIMIT, Place, Process, SECRET, all_end};
use super::secrets::WORD;
use crate::support::Checked;

/// Maps rank 0's nonce to the bytes that a stranger answers.
type Answer<'a> = &'a dyn Fn(&[u8]) -> Vec<u8>;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Starts rank 0 of a group of two ranks with a secret.
fn first_of_two() -> anyhow::Result<(Place, Process)> {
    let place = Place::new(2)?;
    let first = place.rank("values", 0)?.env(SECRET, WORD).start()?;
    Ok((place, first))
}

fn joined(place: &Place, first: Process) -> Checked {
    let second = place.rank("values", 1)?.env(SECRET, WORD).start()?;
    all_end(vec![first, second], 0, "values are right on 2 ranks")
}

/// A stranger cannot become rank 1 without the secret. If its greeting names a wrong version, size
/// or rank, the group does not end either.
#[test(simulated = never)]
fn greetings_of_strangers() -> Checked {
    let (place, first) = first_of_two()?;
    let port = place.ports[0];
    let texts = [
        text(VERSION, 2, 1),
        text("9.9.9", 2, 1),
        text(VERSION, 3, 1),
        text(VERSION, 2, 0),
        text(VERSION, 2, 7),
        "[".repeat(1500),
        String::new(),
    ];
    for text in &texts {
        for secret in [&b""[..], b"another secret of someone"] {
            let answer = say(port, |nonce| greeting(secret, nonce, text))?;
            assert_eq!(String::from_utf8_lossy(&answer), "", "rank 0 answers {text}");
        }
    }
    // In the first three greetings, the proof is correct for another nonce, text or role. In the
    // others, a byte follows the proof, the proof is zero, or the text's length is too large.
    let right = text(VERSION, 2, 1);
    let word = WORD.as_bytes();
    let cases: [Answer<'_>; 6] = [
        &|_| greeting(word, &[0; 32], &right),
        &|nonce| {
            let other = greeting(word, nonce, &text(VERSION, 2, 0));
            let mut bytes = greeting(word, nonce, &right);
            let end = bytes.len() - 32;
            bytes.splice(end.., other[other.len() - 32..].iter().copied());
            bytes
        },
        &|nonce| {
            let mut bytes = greeting(word, nonce, &right);
            let end = bytes.len() - 32;
            let parts = [nonce, &[7; 32], right.as_bytes()];
            bytes.splice(end.., hostile::proof(word, "rank 0 greets a rank", &parts));
            bytes
        },
        &|nonce| [greeting(word, nonce, &right), vec![0]].concat(),
        &|nonce| {
            let bytes = greeting(word, nonce, &right);
            let end = bytes.len() - 32;
            [&bytes[..end], &[0; 32]].concat()
        },
        &|nonce| [&greeting(word, nonce, &right)[..16], &u32::MAX.to_le_bytes(), &[0; 99]].concat(),
    ];
    for (index, bytes) in cases.iter().enumerate() {
        assert_eq!(say(port, bytes)?, b"", "rank 0 answers case {index}");
    }
    joined(&place, first)
}

/// Rank 0 closes connections that are silent or slow or send nonsense: after a timeout, or earlier
/// if it needs room for other connections.
#[test(simulated = never)]
fn strangers_at_the_port() -> Checked {
    let (place, first) = first_of_two()?;
    let port = place.ports[0];
    let silent = connect(port)?;
    let mut talkers = Vec::new();
    for text in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0xff; 100_000],
        b"mlx-primitives 1\x02\x10\0\0\0{\"rank\": 1}".to_vec(),
        b"mlx-primitives 2".to_vec(),
        b"mlx".to_vec(),
    ] {
        let mut stream = connect(port)?;
        let _ = stream.write_all(&text);
        talkers.push(stream);
    }
    let start = Instant::now();
    let slow = connect(port)?;
    let mut drip = slow.try_clone()?;
    thread::spawn(move || {
        while drip.write_all(b"m").is_ok() {
            thread::sleep(Duration::from_millis(300));
        }
    });
    for stream in talkers.into_iter().chain([silent, slow]) {
        let mut stream = stream;
        let heard = hostile::rest(&mut stream);
        assert!(heard.len() <= hostile::CHALLENGE, "{heard:?}");
    }
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    let many = (0..400).map(|_| connect(port)).collect::<Result<Vec<_>, _>>()?;
    joined(&place, first)?;
    for mut stream in many {
        assert!(hostile::rest(&mut stream).len() <= hostile::CHALLENGE);
    }
    Ok(())
}

/// Two threads that keep opening connections. One of them leaves some connections open.
struct Flood {
    ended: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Flood {
    fn start(port: u16) -> Self {
        let (ended, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let flood = |keeps: bool| {
            let (ended, count) = (ended.clone(), count.clone());
            let address = ([127, 0, 0, 1], port).into();
            thread::spawn(move || {
                let mut kept = std::collections::VecDeque::new();
                while !ended.load(Ordering::Relaxed) {
                    let limit = Duration::from_millis(200);
                    let Ok(mut stream) = TcpStream::connect_timeout(&address, limit) else {
                        continue;
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                    if keeps {
                        let _ = stream.write_all(b"mlx-primitives 2");
                        kept.push_back(stream);
                        kept.drain(..kept.len().saturating_sub(300));
                    }
                }
            })
        };
        let threads = vec![flood(false), flood(true)];
        Self { ended, count, threads }
    }

    /// Stops the threads. Returns how many connections they opened.
    fn end(self) -> usize {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let _ = thread.join();
        }
        self.count.load(Ordering::Relaxed)
    }
}

#[test(simulated = never)]
fn a_flood_does_not_keep_a_rank_out() -> Checked {
    let (place, first) = first_of_two()?;
    drop(connect(place.ports[0])?);
    let flood = Flood::start(place.ports[0]);
    thread::sleep(Duration::from_millis(300));
    let result = joined(&place, first);
    let count = flood.end();
    result?;
    assert!(count > 20, "{count} connections are no flood");
    Ok(())
}

#[test(simulated = never)]
fn a_flood_does_not_hold_rank_0_beyond_its_timeout() -> Checked {
    let place = Place::new(2)?;
    let start = Instant::now();
    let first =
        place.rank("values", 0)?.env(SECRET, WORD).timeout(Duration::from_secs(2)).start()?;
    drop(connect(place.ports[0])?);
    let flood = Flood::start(place.ports[0]);
    let ended = first.finish();
    let took = start.elapsed();
    flood.end();
    ended?.check(2, "rank 1 did not start within 2 s")?;
    assert!(took < Duration::from_secs(20), "rank 0 ended after {took:?}");
    Ok(())
}

/// A stranger listens at rank 0's port before rank 0 starts. It learns nothing, and the group still
/// starts.
#[test(simulated = never)]
fn a_stranger_in_the_place_of_rank_0() -> Checked {
    let place = Place::new(2)?;
    let stranger = TcpListener::bind(("127.0.0.1", place.ports[0]))?;
    let second = place.rank("values", 1)?.env(SECRET, WORD).start()?;
    let said: [&[u8]; 5] = [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n and some more text, to fill it up",
        &[hostile::MAGIC, &[1u8; 32][..]].concat(),
        &[hostile::MAGIC, &[1u8; 64][..]].concat(),
        &[hostile::MAGIC, &[1u8; 32][..], &[2; 4000]].concat(),
    ];
    for bytes in said {
        let (mut stream, _) = stranger.accept()?;
        stream.set_read_timeout(Some(LIMIT))?;
        let _ = stream.write_all(bytes);
        let mut heard = [0; 1000];
        if bytes.starts_with(hostile::MAGIC) {
            let count = stream.read(&mut heard)?;
            assert!(heard[..count].starts_with(hostile::MAGIC));
        }
    }
    drop(stranger);
    let first = place.rank("values", 0)?.env(SECRET, WORD).start()?;
    all_end(vec![first, second], 0, "values are right on 2 ranks")
}

/// Without a secret, any program on the machine can join a group, and end it with a message. Rank 0
/// removes control characters before it prints the message.
#[test(simulated = never)]
fn texts_of_ranks_are_cleaned() -> Checked {
    let place = Place::new(2)?;
    let first = place.rank("join", 0)?.start()?;
    let evil = format!("\u{1b}]0;t\u{7}{}\n\u{9b}31m", "x".repeat(900));
    let answer = say(place.ports[0], |nonce| greeting(b"", nonce, &text(&evil, 2, 1)))?;
    assert!(answer.len() > 32, "rank 0 did not tell why");
    let ended = first.finish()?;
    ended.check(2, "rank 1 runs mlx-primitives  ]0;t xxx")?;
    let line = ended.said.lines().find(|line| line.contains("rank 1 runs")).unwrap_or_default();
    assert!(!line.contains(char::is_control) && line.len() < 300, "{line:?}");
    Ok(())
}
