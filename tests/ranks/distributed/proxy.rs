//! A relay between ranks. A test can break its connections or change their bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::ranks::{LIMIT, free_port};

/// Listens at a port, and relays each connection to another port.
pub struct Proxy {
    pub port: u16,
    /// The two sockets of each relayed connection, in the order in which the connections were
    /// opened.
    connections: Arc<Mutex<Vec<[TcpStream; 2]>>>,
    harm: Arc<Mutex<Option<Harm>>>,
}

/// A change of the next bytes that the relay receives.
#[derive(Clone, Copy)]
pub enum Harm {
    /// Flips a bit of the bytes.
    Flip,
    /// Sends the bytes twice.
    Repeat,
}

fn pass(mut from: TcpStream, mut to: TcpStream, harm: &Mutex<Option<Harm>>) {
    let mut buffer = [0; 65536];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let harm = harm.lock().unwrap_or_else(PoisonError::into_inner).take();
        match harm {
            None => {}
            Some(Harm::Flip) => buffer[count - 1] ^= 1,
            Some(Harm::Repeat) => drop(to.write_all(&buffer[..count])),
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

/// Waits until the target listens, and then connects. The client is already connected to the proxy,
/// and MLX's ring connects only once, so the proxy must wait.
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
        let harm = Arc::new(Mutex::new(None));
        let (known, shared) = (connections.clone(), harm.clone());
        thread::spawn(move || -> std::io::Result<()> {
            for near in listener.incoming() {
                let near = near?;
                let Some(far) = reach(target) else { continue };
                near.set_nodelay(true)?;
                far.set_nodelay(true)?;
                let ends = [near.try_clone()?, far.try_clone()?];
                known.lock().unwrap_or_else(PoisonError::into_inner).push(ends);
                let (near_too, far_too) = (near.try_clone()?, far.try_clone()?);
                let (there, back) = (shared.clone(), shared.clone());
                thread::spawn(move || pass(near, far, &there));
                thread::spawn(move || pass(far_too, near_too, &back));
            }
            Ok(())
        });
        Ok(Self { port, connections, harm })
    }

    /// Changes the next bytes that the relay receives.
    pub fn harm(&self, harm: Harm) {
        *self.harm.lock().unwrap_or_else(PoisonError::into_inner) = Some(harm);
    }

    /// Breaks the most recent connection.
    pub fn cut(&self) -> anyhow::Result<()> {
        let connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        for end in connections.last().ok_or_else(|| anyhow::anyhow!("no such connection"))? {
            // Ignore an error. A rank may notice that the first socket was shut down, and close the
            // second.
            let _ = end.shutdown(Shutdown::Both);
        }
        Ok(())
    }
}
