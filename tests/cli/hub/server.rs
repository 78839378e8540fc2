//! A server on this machine with the protocol of the Hugging Face hub. A test can choose a fault of
//! the server.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub const TOKEN: &str = "hf_right";

/// A fault of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The connection breaks after this number of bytes in each response with weights.
    BreaksAfter(usize),
    /// The weights come slowly.
    Slow,
    /// The response has more bytes of weights than the server announced, or fewer (`Shorter`).
    Longer,
    Shorter,
    /// One byte of the weights is wrong.
    Altered,
    /// The server ignores ranges and sends the full files.
    NoRanges,
    /// The server answers this number of requests with the status 503, and the requests after them
    /// correctly.
    Busy(usize),
    /// The server refuses to send the contents of weights.
    NoWeights,
    /// The next variants are: no ETag; an ETag that is a path outside the cache; a file of another
    /// commit; and a list whose commit is a path outside the cache.
    NoEtag,
    EtagOutside,
    OtherCommit,
    CommitOutside,
    /// The list is not JSON.
    NoList,
    /// The server redirects to the same address, or sends a redirect without an address
    /// (`RedirectNowhere`).
    Redirects,
    RedirectNowhere,
}

struct State {
    files: BTreeMap<String, Vec<u8>>,
    fault: Fault,
    requests: Vec<String>,
    gated: bool,
}

pub struct Server {
    pub address: String,
    state: Arc<Mutex<State>>,
}

struct Request {
    path: String,
    headers: BTreeMap<String, String>,
}

impl Server {
    pub fn start(files: BTreeMap<String, Vec<u8>>) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = format!("http://{}", listener.local_addr()?);
        // On the hub, another host sends the contents of large files, so the test uses a second
        // address.
        let storage =
            TcpListener::bind(("127.0.0.2", 0)).or_else(|_| TcpListener::bind("127.0.0.1:0"))?;
        let elsewhere = format!("http://{}", storage.local_addr()?);
        let (fault, requests) = (Fault::None, Vec::new());
        let state = Arc::new(Mutex::new(State { files, fault, requests, gated: false }));
        for (listener, is_storage) in [(listener, false), (storage, true)] {
            let (state, elsewhere) = (state.clone(), elsewhere.clone());
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let (state, elsewhere) = (state.clone(), elsewhere.clone());
                    thread::spawn(move || answer(&stream, &state, &elsewhere, is_storage));
                }
            });
        }
        Ok(Self { address, state })
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn fail(&self, fault: Fault) {
        self.state().fault = fault;
    }

    /// Makes the server refuse requests without the token.
    pub fn gate(&self) {
        self.state().gated = true;
    }

    /// Returns the paths and ranges of the requests since the last call.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state().requests)
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let path = lines.next()?.ok()?.split(' ').nth(1)?.to_owned();
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    Some(Request { path, headers })
}

fn send(mut stream: &TcpStream, status: &str, headers: &[(&str, String)], body: &[u8]) {
    let mut text = format!("HTTP/1.1 {status}\r\nConnection: close\r\n");
    for (name, value) in headers {
        text += &format!("{name}: {value}\r\n");
    }
    if !headers.iter().any(|(name, _)| *name == "Content-Length") {
        text += &format!("Content-Length: {}\r\n", body.len());
    }
    let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.write_all(b"\r\n"));
    let _ = stream.write_all(body);
}

fn answer(stream: &TcpStream, state: &Mutex<State>, elsewhere: &str, is_storage: bool) {
    let Some(request) = read(stream) else { return };
    let range = request.headers.get("range").cloned().unwrap_or_default();
    let (fault, gated, files) = {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.requests.push(format!("{} {range}", request.path));
        if let Fault::Busy(count) = state.fault {
            state.fault = if count > 1 { Fault::Busy(count - 1) } else { Fault::None };
            drop(state);
            return send(stream, "503 Busy", &[], b"");
        }
        (state.fault, state.gated, state.files.clone())
    };
    let authorization = request.headers.get("authorization");
    if is_storage {
        // A client must send the token only to the hub.
        assert_eq!(authorization, None, "the storage got the token");
        let file = request.path.trim_start_matches("/blob/");
        return bytes(stream, &files[file], &range, fault);
    }
    if gated && authorization.map(String::as_str) != Some(&format!("Bearer {TOKEN}")) {
        let code = [("X-Error-Code", "GatedRepo".to_owned())];
        let status = if authorization.is_some() { "403 Forbidden" } else { "401 Unauthorized" };
        return send(stream, status, &code, b"");
    }
    match fault {
        Fault::Redirects => {
            return send(stream, "302 Found", &[("Location", request.path.clone())], b"");
        }
        Fault::RedirectNowhere => return send(stream, "302 Found", &[], b""),
        _ => {}
    }
    if let Some(name) = request.path.strip_prefix("/api/models/") {
        return list(stream, name, &files, fault);
    }
    let Some((_, file)) = request.path.split_once(&format!("/resolve/{COMMIT}/")) else {
        return send(stream, "404 Not Found", &[("X-Error-Code", "EntryNotFound".into())], b"");
    };
    let Some(content) = files.get(file) else {
        return send(stream, "404 Not Found", &[("X-Error-Code", "EntryNotFound".into())], b"");
    };
    let commit = if fault == Fault::OtherCommit { "fedcba98" } else { COMMIT };
    let large = file.ends_with("safetensors") || file.ends_with("gguf");
    let etag = match fault {
        Fault::EtagOutside => "../../../outside".to_owned(),
        // As on the hub, the ETag of a large file is its SHA-256, and the ETag of other files is a
        // shorter hash.
        _ if large => sha256(content),
        _ => hex(&blake3::hash(content).as_bytes()[..20]),
    };
    let mut headers = vec![("X-Repo-Commit", commit.to_owned())];
    if fault == Fault::NoEtag {
    } else if large {
        headers.push(("X-Linked-Etag", format!("\"{etag}\"")));
        headers.push(("ETag", "\"of-the-redirect\"".into()));
    } else {
        headers.push(("ETag", format!("W/\"{etag}\"")));
    }
    if large {
        headers.push(("X-Linked-Size", content.len().to_string()));
        headers.push(("Location", format!("{elsewhere}/blob/{file}")));
        return send(stream, "302 Found", &headers, b"");
    }
    match part(content.len(), &range) {
        Some((start, end)) => {
            headers.push(("Content-Range", format!("bytes {start}-{}/{}", end - 1, content.len())));
            send(stream, "206 Partial Content", &headers, &content[start..end]);
        }
        None => send(stream, "200 OK", &headers, content),
    }
}

/// The SHA-256 of a file, as the hub writes it.
pub fn sha256(content: &[u8]) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, content).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn list(stream: &TcpStream, name: &str, files: &BTreeMap<String, Vec<u8>>, fault: Fault) {
    let known = ["org/model/revision/main", "org/model/revision/refs%2Fpr%2F1"];
    if name.starts_with("org/model/") && !known.contains(&name) && !name.ends_with(COMMIT) {
        return send(stream, "404 Not Found", &[("X-Error-Code", "RevisionNotFound".into())], b"");
    }
    if !name.starts_with("org/model/") {
        // The hub gives the same response for private models and for models that do not exist.
        return send(stream, "401 Unauthorized", &[("X-Error-Code", "RepoNotFound".into())], b"");
    }
    let siblings: Vec<_> =
        files.keys().map(|file| serde_json::json!({"rfilename": file})).collect();
    let sha = if fault == Fault::CommitOutside { "../outside" } else { COMMIT };
    let text = serde_json::json!({"id": "org/model", "sha": sha, "siblings": siblings}).to_string();
    let text = if fault == Fault::NoList { "<html>\x1b[31m".to_owned() } else { text };
    send(stream, "200 OK", &[], text.as_bytes());
}

/// Parses a range. Returns the index of its first byte, and the index after its last byte.
fn part(length: usize, range: &str) -> Option<(usize, usize)> {
    let (start, end) = range.strip_prefix("bytes=")?.split_once('-')?;
    let start = start.parse().ok()?;
    let end = end.parse::<usize>().map_or(length, |end| length.min(end + 1));
    (start < end).then_some((start, end))
}

fn bytes(stream: &TcpStream, content: &[u8], range: &str, fault: Fault) {
    if fault == Fault::NoWeights && range != "bytes=0-0" {
        return send(stream, "403 Forbidden", &[], b"");
    }
    let content = match fault {
        Fault::Longer => [content, b"more"].concat(),
        Fault::Shorter => content[..content.len() - 4].to_vec(),
        Fault::Altered => {
            let mut content = content.to_vec();
            *content.last_mut().unwrap() ^= 1;
            content
        }
        _ => content.to_vec(),
    };
    let part = part(content.len(), range).filter(|_| fault != Fault::NoRanges);
    if range.starts_with("bytes=") && part.is_none() && fault != Fault::NoRanges {
        return send(stream, "416 Range Not Satisfiable", &[], b"");
    }
    let (start, end) = part.unwrap_or((0, content.len()));
    let status = if part.is_some() { "206 Partial Content" } else { "200 OK" };
    let mut headers = vec![("Content-Length", (end - start).to_string())];
    if part.is_some() {
        headers.push(("Content-Range", format!("bytes {start}-{}/{}", end - 1, content.len())));
    }
    let mut sent = &content[start..end];
    match fault {
        Fault::BreaksAfter(count) if end - start > 1 => sent = &sent[..count.min(sent.len())],
        Fault::Slow if end - start > 1 => {
            send(stream, status, &headers, b"");
            let mut stream = stream;
            for block in sent.chunks(1000) {
                if stream.write_all(block).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(20));
            }
            return;
        }
        _ => {}
    }
    send(stream, status, &headers, sent);
}
