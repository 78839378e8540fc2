//! Measures, for each rank of a split model, the bytes of its weights, the exchanges for a decoded
//! token, the bytes that it sends in them, and their time.

use std::time::Instant;

use anyhow::Result;
use mlx_primitives::Array;
use mlx_primitives_llama::Llama;
use serde_json::{Value, json};

use crate::joined;
use crate::model::bytes;
use crate::output::{self, StdoutError};

/// The number of times that the exchanges of a token are timed. The result is the median.
const TRIALS: usize = 21;

/// The figures of one rank.
pub struct Traffic {
    weight_bytes: i64,
    exchanges: i64,
    sent_bytes: i64,
    exchange_ns: i64,
}

/// Returns the figures of each rank; empty if there is only one rank.
pub fn measure(llama: &Llama) -> Result<Vec<Traffic>> {
    let (Some(group), Some(split)) = (joined::group(), joined::split()) else {
        return Ok(Vec::new());
    };
    let (exchanges, sent) = split.traffic(llama)?;
    let mut times = Vec::new();
    for _ in 0..TRIALS {
        let exchanges = split.exchanges_of_a_token(llama)?;
        let start = Instant::now();
        exchanges.eval()?;
        times.push(start.elapsed().as_nanos() as i64);
    }
    times.sort_unstable();
    let own = [
        llama.nbytes() as i64,
        exchanges as i64,
        sent as i64,
        times.get(TRIALS / 2).copied().unwrap_or_default(),
    ];
    let all = group.all_gather(&Array::from_slice(&own, [1, 4])?)?.to_vec::<i64>()?;
    let of_rank = |figures: &[i64]| match *figures {
        [weight_bytes, exchanges, sent_bytes, exchange_ns] => {
            Some(Traffic { weight_bytes, exchanges, sent_bytes, exchange_ns })
        }
        _ => None,
    };
    Ok(all.chunks(4).filter_map(of_rank).collect())
}

/// Returns the figures of the ranks as JSON; an empty list if there is only one rank.
pub fn to_json(ranks: &[Traffic]) -> Value {
    let of_rank = |rank: &Traffic| {
        json!({
            "weight_bytes": rank.weight_bytes,
            "exchanges_per_token": rank.exchanges,
            "sent_bytes_per_token": rank.sent_bytes,
            "exchange_seconds_per_token": rank.exchange_ns as f64 / 1e9,
        })
    };
    ranks.iter().map(of_rank).collect()
}

/// Prints a table of the ranks. `tps` is the measured number of decoded tokens per second.
pub fn print(ranks: &[Traffic], tps: Option<f64>) -> Result<(), StdoutError> {
    if ranks.is_empty() {
        return Ok(());
    }
    let all: i64 = ranks.iter().map(|rank| rank.weight_bytes).sum();
    output::println("")?;
    output::println("of a decoded token; the time is that of its exchanges alone")?;
    output::println(format_args!(
        "{:<6}{:>12}{:>8}{:>11}{:>12}{:>12}{:>12}",
        "rank", "weights", "share", "exchanges", "sent", "take", "the rest"
    ))?;
    for (number, rank) in ranks.iter().enumerate() {
        let share = 100.0 * rank.weight_bytes as f64 / all.max(1) as f64;
        let ms = rank.exchange_ns as f64 / 1e6;
        let rest = tps.map_or("-".to_owned(), |tps| format!("{:.2} ms", (1e3 / tps - ms).max(0.0)));
        output::println(format_args!(
            "{number:<6}{:>12}{share:>6.1} %{:>11}{:>12}{:>12}{rest:>12}",
            bytes(rank.weight_bytes.unsigned_abs()),
            rank.exchanges,
            bytes(rank.sent_bytes.unsigned_abs()),
            format!("{ms:.2} ms"),
        ))?;
    }
    Ok(())
}
