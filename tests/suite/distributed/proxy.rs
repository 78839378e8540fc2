//! A relay between ranks whose connections a test can break.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::ranks::{LIMIT, free_port};

/// Listens at a port and passes each connection on to another port.
pub struct Proxy {
    pub port: u16,
    /// Both ends of each connection, in the order in which they came.
    connections: Arc<Mutex<Vec<[TcpStream; 2]>>>,
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

/// Connects as soon as the target listens: the client takes the proxy for it, and MLX's ring connects
/// only once.
fn reach(target: u16) -> Option<TcpStream> {
    let start = Instant::now();
    loop {
        match TcpStream::connect(("127.0.0.1", target)) {
            Ok(stream) => return Some(stream),
            Err(_) if start.elapsed() < LIMIT => thread::sleep(Duration::from_millis(5)),
            Err(_) => return None,
        }
    }
}

impl Proxy {
    pub fn to(target: u16) -> anyhow::Result<Self> {
        let port = free_port();
        let listener = TcpListener::bind(("127.0.0.1", port))?;
        let connections = Arc::new(Mutex::new(Vec::new()));
        let known = connections.clone();
        thread::spawn(move || -> std::io::Result<()> {
            for near in listener.incoming() {
                let near = near?;
                let Some(far) = reach(target) else { continue };
                near.set_nodelay(true)?;
                far.set_nodelay(true)?;
                let ends = [near.try_clone()?, far.try_clone()?];
                known.lock().unwrap_or_else(PoisonError::into_inner).push(ends);
                let (near_too, far_too) = (near.try_clone()?, far.try_clone()?);
                thread::spawn(move || pass(near, far));
                thread::spawn(move || pass(far_too, near_too));
            }
            Ok(())
        });
        Ok(Self { port, connections })
    }

    /// Breaks a connection, or the last one.
    pub fn cut(&self, index: Option<usize>) -> anyhow::Result<()> {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let last = connections.len().checked_sub(1);
        let ends = index.or(last).and_then(|index| connections.get(index));
        for end in ends.ok_or_else(|| anyhow::anyhow!("no such connection"))? {
            // A rank that has noticed the first end may have closed the second.
            let _ = end.shutdown(Shutdown::Both);
        }
        Ok(())
    }
}
