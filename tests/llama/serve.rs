//! Tests the example server: complete and streamed answers, and refused requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use mlx_primitives_llama::{Checkpoint, Options};
use serde_json::{Value, json};

use crate::support::Checked;

/// The server may open this many files and connections.
const FILES: usize = 64;

struct Server(Child, String);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Server {
    fn start() -> anyhow::Result<Self> {
        let mut program = std::env::current_exe()?;
        program.pop();
        program.pop();
        program.push("examples/serve");
        if !program.exists() {
            // Cargo has built the example only if it built all targets. Otherwise build it.
            let build = ["build", "-p", "mlx-primitives-llama", "--example", "serve"];
            ensure!(Command::new(env!("CARGO")).args(build).status()?.success(), "{build:?}");
        }
        let mut server = Command::new("sh")
            .args(["-c", &format!("ulimit -n {FILES} && exec \"$0\" 127.0.0.1:0")])
            .arg(&program)
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| program.display().to_string())?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().context("its stdout")?).read_line(&mut line)?;
        let address = line.trim().trim_start_matches("http://").trim_end_matches("/v1");
        Ok(Self(server, address.to_owned()))
    }

    /// Sends a request. Returns the status and the body of the answer.
    fn ask(&self, body: &Value) -> anyhow::Result<(u32, String)> {
        let mut connection = TcpStream::connect(&self.1)?;
        connection.set_read_timeout(Some(Duration::from_secs(60)))?;
        let body = body.to_string();
        write!(
            connection,
            "POST /v1/chat/completions HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").context("a head and a body")?;
        Ok((head.split(' ').nth(1).context("a status")?.parse()?, body.to_owned()))
    }
}

#[test(seconds = 1800, simulated = never)]
fn answers_are_texts_of_the_model() -> Checked {
    let checkpoint = Checkpoint::demo()?;
    let prompt = checkpoint.tokenizer.encode("Once upon a time")?;
    let options = Options { max_tokens: 12, ..Options::default() };
    let mut expected = String::new();
    for piece in checkpoint.generate_text(&prompt, &options)? {
        expected += &piece?.text;
    }

    let server = Server::start()?;
    let mut request = json!({
        "messages": [{"role": "user", "content": "Once upon a time"}],
        "max_tokens": 12, "temperature": 0,
    });
    let (status, body) = server.ask(&request)?;
    let body: Value = serde_json::from_str(&body)?;
    let choice = &body["choices"][0];
    assert_eq!((status, &choice["message"]["content"]), (200, &json!(expected)));
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(body["usage"]["total_tokens"], prompt.len() + 12);

    request["stream"] = json!(true);
    let (_, events) = server.ask(&request)?;
    let mut text = String::new();
    for line in events.lines().filter_map(|line| line.strip_prefix("data: {")) {
        let chunk: Value = serde_json::from_str(&format!("{{{line}"))?;
        text += chunk["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
    }
    assert_eq!(text, expected);
    assert!(events.contains("data: [DONE]"));

    request["tools"] = json!([]);
    let (status, body) = server.ask(&request)?;
    assert!(status == 400 && body.contains("unknown field `tools`"), "{status} {body}");
    let (status, body) = server.ask(&json!({"messages": []}))?;
    assert!(
        status == 400 && body.contains("a prompt of 1 to 256 tokens, got 0"),
        "{status} {body}"
    );
    Ok(())
}

/// If there are too many connections, the server waits until some are closed. It does not end.
#[test(seconds = 1800, simulated = never)]
fn more_connections_than_it_may_open_do_not_end_it() -> Checked {
    let server = Server::start()?;
    let connect = |_| TcpStream::connect(&server.1);
    let silent: Vec<TcpStream> = (0..2 * FILES).map(connect).collect::<Result<_, _>>()?;
    std::thread::sleep(Duration::from_millis(200));
    drop(silent);
    let message = json!({"role": "user", "content": "Once upon a time"});
    let (status, body) = server.ask(&json!({"messages": [message], "max_tokens": 2}))?;
    assert_eq!(status, 200, "{body}");
    Ok(())
}
