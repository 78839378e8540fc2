//! A small server for OpenAI's chat completions, with or without streaming, as a starting point for
//! a real one. One engine decodes the sequences of all clients in a batch.
//!
//! ```sh
//! cargo run --release -p mlx-primitives-llama --example serve -- [ADDRESS [MODEL]]
//! curl localhost:8080/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hi"}]}'
//! ```
//!
//! If a request has an unknown field, the server returns an error that names the field. If a client
//! closes its connection, the server stops generating for the client.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use mlx_primitives_llama::decode::{Engine, EngineOptions, FinishReason};
use mlx_primitives_llama::{ChatOptions, ChatTemplate, Checkpoint, Options, TextGeneration};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};

struct Server {
    engine: Engine,
    template: Option<ChatTemplate>,
    model: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    messages: Vec<Value>,
    model: Option<String>,
    #[serde(alias = "max_completion_tokens")]
    max_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    seed: Option<u64>,
    #[serde(default)]
    stop: Value, // a text or several
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

/// A message from the generating thread to the HTTP handler.
enum Part {
    Text(String),
    End(&'static str), // OpenAI's name of the reason
    Usage(Value),
    Failed(String),
}

type Parts = mpsc::Sender<Part>;

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let address = args.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let path = args.next();
    let template = path.as_ref().map(ChatTemplate::load).transpose()?.flatten();
    let model = path.clone().unwrap_or_else(|| "demo".to_owned());
    let load = move || path.map_or_else(Checkpoint::demo, Checkpoint::load);
    let engine = Engine::start(load, EngineOptions::default())?;
    let server = Arc::new(Server { engine, template, model });
    let models = json!({"object": "list", "data": [{"id": server.model, "object": "model"}]});
    let routes = Router::new().route("/v1/models", get(|| async { Json(models) }));
    let routes = routes.route("/v1/chat/completions", post(complete)).with_state(server);
    // Each request takes a blocking thread while it waits or runs.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(1).max_blocking_threads(1024).enable_all();
    runtime.build()?.block_on(async {
        let listener = tokio::net::TcpListener::bind(&address).await?;
        println!("http://{}/v1", listener.local_addr()?);
        Ok(axum::serve(listener, routes).await?)
    })
}

async fn complete(State(server): State<Arc<Server>>, body: String) -> Response {
    let request: Request = match serde_json::from_str(&body) {
        Ok(request) => request,
        Err(error) => return refused(&error.to_string()),
    };
    if request.model.as_ref().is_some_and(|model| *model != server.model) {
        return refused(&format!("the model here is {}", server.model));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (number, model) = (now.as_nanos() as u64, server.model.clone());
    let answer = move |kind: &str, choices: Value, usage: &Value| {
        json!({"id": format!("chatcmpl-{number}"), "object": format!("chat.completion{kind}"),
               "created": now.as_secs(), "model": model, "choices": choices, "usage": usage})
    };
    let usage_wanted = request.stream_options.as_ref().is_some_and(|it| it.include_usage);
    let stream = request.stream;
    let (parts, mut received) = mpsc::channel(16);
    tokio::task::spawn_blocking(move || {
        if let Err(error) = write(&server, number, request, &parts) {
            let _ = parts.blocking_send(Part::Failed(error.to_string()));
        }
    });
    // If an error occurs before the first token, the response is an HTTP error, with or without
    // streaming.
    let first = match received.recv().await {
        Some(Part::Failed(reason)) => return refused(&reason),
        first => first,
    };
    let mut parts = tokio_stream::iter(first).chain(ReceiverStream::new(received));
    if stream {
        let chunks = parts.filter_map(move |part| {
            let chunk = |delta: Value, reason: Option<&str>| {
                let choice = json!({"index": 0, "delta": delta, "finish_reason": reason});
                answer(".chunk", json!([choice]), &Value::Null)
            };
            Some(match part {
                Part::Text(text) => chunk(json!({"role": "assistant", "content": text}), None),
                Part::End(reason) => chunk(json!({}), Some(reason)),
                Part::Usage(_) if !usage_wanted => return None,
                Part::Usage(usage) => answer(".chunk", json!([]), &usage),
                Part::Failed(reason) => error(&reason),
            })
        });
        let events =
            chunks.map(|chunk| chunk.to_string()).chain(tokio_stream::once("[DONE]".to_owned()));
        return Sse::new(events.map(|data| Ok::<_, Infallible>(Event::default().data(data))))
            .into_response();
    }
    let (mut text, mut ended) = (String::new(), None);
    while let Some(part) = parts.next().await {
        match part {
            Part::Text(more) => text += &more,
            Part::End(reason) => ended = Some(reason),
            Part::Failed(reason) => return refused(&reason),
            Part::Usage(usage) => {
                let message = json!({"role": "assistant", "content": text});
                let choice = json!({"index": 0, "message": message, "finish_reason": ended});
                return Json(answer("", json!([choice]), &usage)).into_response();
            }
        }
    }
    (StatusCode::INTERNAL_SERVER_ERROR, Json(error("the text has no end"))).into_response()
}

/// Generates the text for a request and sends it in parts, until the text ends or the client has
/// disconnected.
fn write(server: &Server, seed: u64, request: Request, parts: &Parts) -> anyhow::Result<()> {
    let (tokenizer, messages) = (server.engine.tokenizer(), &request.messages);
    let prompt = if let Some(template) = &server.template {
        tokenizer.encode_verbatim(&template.render(messages, &ChatOptions::default())?)?
    } else {
        let contents = messages.iter().map(|message| message["content"].as_str());
        let contents = contents.collect::<Option<Vec<_>>>().context("a message without text")?;
        tokenizer.encode(&contents.join("\n"))?
    };
    let stop = match request.stop {
        Value::Null => Vec::new(),
        Value::String(one) => vec![one],
        several => serde_json::from_value(several).context("stop is neither a text nor texts")?,
    };
    let max_tokens = request.max_tokens.unwrap_or(1024);
    let mut options = Options { max_tokens, ..Options::default() };
    options.sampling.temp = request.temperature.unwrap_or(1.0);
    options.sampling.top_p = request.top_p.unwrap_or(1.0);
    options.sampling.seed = request.seed.unwrap_or(seed);
    let generated = server.engine.generate(&prompt, &options, None);
    let mut text = TextGeneration::new(generated, tokenizer, &stop)?;
    let mut count = 0;
    for piece in text.by_ref() {
        let piece = piece?;
        count += usize::from(piece.token.is_some());
        let is_full = |reason| matches!(reason, FinishReason::Length);
        let end = piece.finish_reason.map(|it| if is_full(it) { "length" } else { "stop" });
        for part in [Part::Text(piece.text)].into_iter().chain(end.map(Part::End)) {
            if parts.blocking_send(part).is_err() {
                return Ok(()); // the client hung up
            }
        }
    }
    let usage = json!({"prompt_tokens": prompt.len(), "completion_tokens": count,
                       "total_tokens": prompt.len() + count});
    let _ = parts.blocking_send(Part::Usage(usage));
    Ok(())
}

fn error(reason: &str) -> Value {
    json!({"error": {"message": reason, "type": "invalid_request_error"}})
}

fn refused(reason: &str) -> Response {
    (StatusCode::BAD_REQUEST, Json(error(reason))).into_response()
}
