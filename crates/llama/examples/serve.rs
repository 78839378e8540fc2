//! OpenAI's chat completions, streamed or whole, from an engine that continues the texts of all
//! clients together: what to start a server from.
//!
//! ```sh
//! cargo run --release -p mlx-primitives-llama --example serve -- [ADDRESS [MODEL]]
//! curl localhost:8080/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hi"}]}'
//! ```
//!
//! Fields of a request that it does not know are refused by name. A client that hangs up ends its
//! text.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use mlx_primitives_llama::decode::{Engine, EngineOptions, FinishReason};
use mlx_primitives_llama::{
    ChatOptions, ChatTemplate, Checkpoint, Options, Sampling, TextGeneration,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_stream::{StreamExt, wrappers::ReceiverStream};

struct Server {
    engine: Engine,
    template: Option<ChatTemplate>,
    model: String,
    answers: AtomicU64,
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
    stop: Option<Stop>,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Several(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
}

/// The messages of a text while it is written.
enum Part {
    Text(String),
    /// OpenAI's name of the reason.
    End(&'static str),
    Usage(Value),
    Failed(String),
}

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let address = args.next().unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let model = args.next();
    let template = model.as_ref().map(ChatTemplate::load).transpose()?.flatten();
    let path = model.clone();
    let load = move || path.map_or_else(Checkpoint::demo, Checkpoint::load);
    let engine = Engine::start(load, EngineOptions::default())?;
    let model = model.unwrap_or_else(|| "demo".to_owned());
    let server = Arc::new(Server { engine, template, model, answers: AtomicU64::new(0) });
    let models = json!({"object": "list", "data": [{"id": server.model, "object": "model"}]});
    let routes = Router::new()
        .route("/v1/models", get(|| async { Json(models) }))
        .route("/v1/chat/completions", post(complete))
        .with_state(server);
    // A thread for each text that waits or runs.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(1024)
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(&address).await?;
        println!("http://{}/v1", listener.local_addr()?);
        axum::serve(listener, routes).await
    })?;
    Ok(())
}

async fn complete(State(server): State<Arc<Server>>, body: String) -> Response {
    let request: Request = match serde_json::from_str(&body) {
        Ok(request) => request,
        Err(error) => return refused(&error.to_string()),
    };
    if request.model.as_ref().is_some_and(|model| *model != server.model) {
        return refused(&format!("the model here is {}", server.model));
    }
    let number = server.answers.fetch_add(1, Ordering::Relaxed);
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (id, model) = (format!("chatcmpl-{number}"), server.model.clone());
    let answer = move |kind: &str, choices: Value, usage: &Value| {
        let object = format!("chat.completion{kind}");
        json!({"id": id, "object": object, "created": created, "model": model,
               "choices": choices, "usage": usage})
    };
    let usage_wanted = request.stream_options.as_ref().is_some_and(|it| it.include_usage);
    let stream = request.stream;
    let (parts, mut received) = mpsc::channel(16);
    tokio::task::spawn_blocking(move || {
        if let Err(error) = write(&server, number, request, &parts) {
            let _ = parts.blocking_send(Part::Failed(error.to_string()));
        }
    });
    // An error before the first token is a separate answer, streamed or not.
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

/// Writes the text that a request asks for, until nobody listens.
fn write(
    server: &Server,
    number: u64,
    request: Request,
    parts: &mpsc::Sender<Part>,
) -> anyhow::Result<()> {
    let tokenizer = server.engine.tokenizer();
    let prompt = match &server.template {
        Some(template) => tokenizer
            .encode_verbatim(&template.render(&request.messages, &ChatOptions::default())?)?,
        None => {
            let contents = request.messages.iter().map(|message| message["content"].as_str());
            let contents: Option<Vec<&str>> = contents.collect();
            tokenizer.encode(&contents.context("a message without text")?.join("\n"))?
        }
    };
    let stop = request.stop.map_or(Vec::new(), |stop| match stop {
        Stop::One(one) => vec![one],
        Stop::Several(all) => all,
    });
    let options = Options {
        max_tokens: request.max_tokens.unwrap_or(1024),
        sampling: Sampling {
            temp: request.temperature.unwrap_or(1.0),
            top_p: request.top_p.unwrap_or(1.0),
            seed: request.seed.unwrap_or(number),
            ..Sampling::default()
        },
        ..Options::default()
    };
    let generated = server.engine.generate(&prompt, &options, None);
    let mut text = TextGeneration::new(generated, tokenizer, &stop)?;
    let mut count = 0;
    for piece in text.by_ref() {
        let piece = piece?;
        count += usize::from(piece.token.is_some());
        let end = piece.finish_reason.map(|reason| match reason {
            FinishReason::Length => Part::End("length"),
            _ => Part::End("stop"),
        });
        for part in [Part::Text(piece.text)].into_iter().chain(end) {
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
