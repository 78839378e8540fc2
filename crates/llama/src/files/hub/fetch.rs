//! Requests to the hub. This module follows redirects itself for two reasons: The headers of a
//! redirect contain the ETag and the size of a file, and the access token must not be sent to
//! another host.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use ureq::http::Response;
use ureq::{Agent, Body};

use super::cache;
use super::name::{self, Name};

const HUB: &str = "https://huggingface.co";
/// The time limit for a connection, and the time limit for the hub's answer.
const CONNECT: Duration = Duration::from_secs(20);
const ANSWER: Duration = Duration::from_secs(60);
/// The maximum time to wait for the next bytes of a file.
const SILENCE: Duration = Duration::from_secs(60);
const REDIRECTS: usize = 10;
/// The maximum size of the hub's list of files in bytes.
const LIST: u64 = 64 << 20;
/// The size in bytes of the blocks in which a thread reads a file, and the number of blocks that
/// fit into the channel from this thread to the caller.
const BLOCK: usize = 256 << 10;
const BLOCKS: usize = 4;

pub(super) struct Hub {
    agent: Agent,
    pub endpoint: String,
    token: Option<String>,
}

/// The properties of a file that the hub gives in response headers.
#[derive(Default)]
struct Facts {
    commit: Option<String>,
    etag: Option<String>,
    size: Option<u64>,
}

/// The ETag and the size in bytes of a file in a repository.
pub(super) struct Known {
    pub etag: String,
    pub size: u64,
}

/// The files of a revision.
pub(super) struct Listed {
    pub commit: String,
    pub files: BTreeSet<String>,
}

/// An error. If `passing` is true, the error may be temporary and another attempt makes sense.
pub(super) struct Failure {
    pub reason: String,
    pub passing: bool,
}

fn lasting(reason: impl Into<String>) -> Failure {
    Failure { reason: reason.into(), passing: false }
}

/// Returns the scheme and the host of a URL.
fn origin(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find('/').map_or(url.len(), |at| start + at);
    &url[..end]
}

fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok()
}

impl Hub {
    pub(super) fn of_environment() -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(ANSWER))
            .user_agent(concat!("mlx-primitives/", env!("CARGO_PKG_VERSION")))
            .build();
        let text = |name: &str| std::env::var(name).ok().filter(|text| !text.trim().is_empty());
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| HUB.to_owned());
        let file = || {
            let file = cache::variable("HF_TOKEN_PATH");
            let file = file.or_else(|| cache::home().map(|home| home.join("token")))?;
            fs::read_to_string(file).ok()
        };
        let token = text("HF_TOKEN").or_else(file).map(|token| token.trim().to_owned());
        Self {
            agent: Agent::new_with_config(config),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: token.filter(|token| !token.is_empty()),
        }
    }

    /// Requests a URL, or only a range of its bytes, and follows redirects.
    fn get(&self, url: &str, range: Option<&str>) -> Result<(Response<Body>, Facts), Failure> {
        let (mut url, mut facts) = (url.to_owned(), Facts::default());
        for _ in 0..REDIRECTS {
            let mut request = self.agent.get(&url).header("Accept-Encoding", "identity");
            if let Some(range) = range {
                request = request.header("Range", range);
            }
            if let Some(token) = &self.token
                && origin(&url) == origin(&self.endpoint)
            {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            let response = request.call().map_err(|error| Failure {
                reason: format!("{} cannot be reached: {error}", origin(&url)),
                passing: !matches!(error, ureq::Error::BadUri(_)),
            })?;
            let said = |name: &str| header(&response, name).map(str::to_owned);
            facts.commit = facts.commit.or_else(|| said("x-repo-commit"));
            facts.size = facts.size.or_else(|| said("x-linked-size")?.parse().ok());
            facts.etag = said("x-linked-etag").or(facts.etag).or_else(|| said("etag"));
            if !response.status().is_redirection() {
                return Ok((response, facts));
            }
            let location = said("location").ok_or_else(|| lasting("a redirect leads nowhere"))?;
            let next = match location.starts_with('/') {
                true => format!("{}{location}", origin(&url)),
                false => location,
            };
            let safe = next.starts_with("https://")
                || next.starts_with("http://") && !url.starts_with("https://");
            if !safe {
                return Err(lasting("a redirect leads to an address that is not https"));
            }
            url = next;
        }
        Err(lasting(format!("more than {REDIRECTS} redirects")))
    }

    /// Makes the error for a response in which the hub refuses a request.
    fn refusal(&self, name: &Name, response: &Response<Body>) -> Failure {
        let (repository, revision) = (&name.repository, &name.revision);
        let page = format!("{}/{repository}", self.endpoint);
        let code = header(response, "x-error-code").unwrap_or_default();
        let status = response.status().as_u16();
        let token = match &self.token {
            Some(_) => "the token of HF_TOKEN or `hf auth login` has no right to read it",
            None => "give a token by HF_TOKEN or `hf auth login`",
        };
        let reason = match (status, code) {
            (401 | 403, "GatedRepo") | (403, _) => {
                format!("the model is gated: ask for access at {page}, and {token}")
            }
            (404, "RevisionNotFound") => format!("{page} has no revision {revision}"),
            (401, _) => format!(
                "the hub knows no public model {repository}: check the name, or if it is private, \
                 {token}"
            ),
            (404, _) => format!("the hub knows no model {repository} with the revision {revision}"),
            _ => format!("{} answered with the status {status}: try again later", self.endpoint),
        };
        Failure { reason, passing: matches!(status, 416 | 429 | 500..) }
    }

    pub(super) fn list(&self, name: &Name) -> Result<Listed, Failure> {
        #[derive(Deserialize)]
        struct Info {
            sha: String,
            siblings: Vec<Sibling>,
        }
        #[derive(Deserialize)]
        struct Sibling {
            rfilename: String,
        }
        let revision = name.revision.replace('/', "%2F");
        let url = format!("{}/api/models/{}/revision/{revision}", self.endpoint, name.repository);
        let (response, _) = self.get(&url, None)?;
        if response.status().as_u16() != 200 {
            return Err(self.refusal(name, &response));
        }
        let mut text = String::new();
        let odd = || lasting(format!("{} sent no list of files", self.endpoint));
        let mut body = response.into_body();
        body.as_reader().take(LIST).read_to_string(&mut text).map_err(|_| odd())?;
        let info: Info = serde_json::from_str(&text).map_err(|_| odd())?;
        if !name::is_plain(&info.sha) {
            return Err(odd());
        }
        // The list skips unusual names, such as paths that lead to other folders.
        let files = info.siblings.into_iter().map(|sibling| sibling.rfilename);
        let files = files.filter(|file| file.split('/').all(name::is_plain)).collect();
        Ok(Listed { commit: info.sha, files })
    }

    fn url(&self, name: &Name, commit: &str, file: &str) -> String {
        format!("{}/{}/resolve/{commit}/{file}", self.endpoint, name.repository)
    }

    /// Requests the size and the ETag of a file.
    pub(super) fn facts(&self, name: &Name, commit: &str, file: &str) -> Result<Known, Failure> {
        let (response, facts) = self.get(&self.url(name, commit, file), Some("bytes=0-0"))?;
        let status = response.status().as_u16();
        if !matches!(status, 200 | 206 | 416) {
            return Err(self.refusal(name, &response));
        }
        let total = header(&response, "content-range").and_then(|range| range.rsplit('/').next());
        let length = header(&response, "content-length").filter(|_| status == 200);
        let size = facts.size.or_else(|| total.or(length)?.parse().ok());
        let etag =
            facts.etag.map(|etag| etag.trim_start_matches("W/").trim_matches('"').to_owned());
        let etag = etag.filter(|etag| name::is_plain(etag));
        if facts.commit.is_some_and(|stated| stated != commit) {
            return Err(lasting(format!("the hub sends {file} of another commit than {commit}")));
        }
        match (etag, size) {
            (Some(etag), Some(size)) => Ok(Known { etag, size }),
            _ => Err(lasting(format!("the hub does not say how large {file} is, or its ETag"))),
        }
    }

    /// Returns the position of the first byte that the hub sends, and the blocks of the file from
    /// this position on. The position is `start`, or 0 if the hub does not support range requests.
    pub(super) fn bytes(
        &self,
        name: &Name,
        commit: &str,
        file: &str,
        start: u64,
    ) -> Result<(u64, Blocks), Failure> {
        let range = (start > 0).then(|| format!("bytes={start}-"));
        let (response, _) = self.get(&self.url(name, commit, file), range.as_deref())?;
        let from = match response.status().as_u16() {
            206 => {
                let range = header(&response, "content-range").unwrap_or_default();
                let right = range.strip_prefix("bytes ").and_then(|rest| rest.split_once('-'));
                let from = right.and_then(|(from, _)| from.parse::<u64>().ok());
                from.filter(|from| *from == start)
                    .ok_or_else(|| lasting("the hub sent another part than was asked for"))?
            }
            200 => 0,
            _ => return Err(self.refusal(name, &response)),
        };
        let (send, receive) = sync_channel(BLOCKS);
        let mut reader = response.into_body().into_reader();
        // A read has no time limit, so a separate thread reads. The thread ends when the connection
        // ends, or when nobody receives its blocks.
        let read = move || {
            loop {
                let mut block = vec![0; BLOCK];
                let read = reader.read(&mut block).map(|count| {
                    block.truncate(count);
                    block
                });
                let ended = !matches!(&read, Ok(block) if !block.is_empty());
                if send.send(read).is_err() || ended {
                    return;
                }
            }
        };
        let spawned = thread::Builder::new().name("download".into()).spawn(read);
        spawned.map_err(|error| lasting(format!("no thread for a download: {error}")))?;
        Ok((from, Blocks(receive)))
    }
}

/// Receives the blocks of a file from the thread that reads them.
pub(super) struct Blocks(Receiver<std::io::Result<Vec<u8>>>);

impl Blocks {
    /// Waits for the next block. An empty block marks the end of the file.
    pub(super) fn next(&self) -> Result<Vec<u8>, String> {
        match self.0.recv_timeout(SILENCE) {
            Ok(block) => block.map_err(|error| error.to_string()),
            Err(RecvTimeoutError::Timeout) => Err(format!("nothing came for {SILENCE:?}")),
            Err(RecvTimeoutError::Disconnected) => Err("the connection ended".into()),
        }
    }
}
