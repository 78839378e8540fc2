//! Plans a model on several machines: the memory that each machine needs, and a predicted speed. A
//! scheme is a way to split the model among ranks: `gather` or `pipeline`.

use anyhow::{Result, ensure};
use mlx_primitives_llama::Llama;
use mlx_primitives_ranks::{Scheme, Split};
use serde_json::{Value, json};

use super::args::{Args, Link};
use crate::model::bytes;
use crate::output::{self, StdoutError};

/// The cost of a model that is split among a given number of ranks by one scheme.
#[derive(Clone, Copy)]
struct Cost {
    /// The bytes of weights on the rank with the most weights.
    weights: usize,
    exchanges: u64,
    sent: u64,
}

/// The plan for a number of ranks.
pub struct Plan {
    ranks: u32,
    cost: Cost,
    /// The largest share of the weights on one rank, as a fraction of all weights.
    share: f64,
    tps: Option<f64>,
    /// If one machine alone is slower than this, in tokens per second, `gather` is the faster
    /// scheme. Infinite if `gather` is always faster.
    gather_below: f64,
}

/// Returns a plan for each number of ranks in the arguments.
pub fn plans(args: &Args, whole: &Llama) -> Result<Vec<Plan>> {
    ensure!(
        args.tokens_per_second.is_none_or(|tps| tps > 0.0 && tps.is_finite()),
        "expected --tokens-per-second above 0"
    );
    if args.source.model.is_none() {
        return Ok(Vec::new());
    }
    let share = |cost: Cost| cost.weights as f64 / whole.nbytes().max(1) as f64;
    let time = |cost: Cost| time_of(args.link, cost.exchanges, cost.sent);
    let plan = |&ranks: &u32| {
        let cost = cost(args, ranks, args.split)?;
        // If only one scheme can split the model, the plan recommends this scheme at any speed.
        let other = |scheme| match args.split == scheme {
            true => Some(cost),
            false => self::cost(args, ranks, scheme).ok(),
        };
        let gather_below = match (other(Scheme::Gather), other(Scheme::Pipeline)) {
            (Some(gather), Some(pipeline)) => {
                gather_below(share(gather), time(gather) - time(pipeline))
            }
            (Some(_), None) => f64::INFINITY,
            (None, _) => 0.0,
        };
        let tps = args.tokens_per_second.map(|alone| {
            let computes = if args.split == Scheme::Pipeline { 1.0 } else { share(cost) };
            1.0 / (computes / alone + time(cost))
        });
        Ok(Plan { ranks, cost, share: share(cost), tps, gather_below })
    };
    args.ranks.iter().map(plan).collect()
}

/// Returns the speed of one machine, in tokens per second, below which `gather` is faster than
/// `pipeline`. In `gather`, the ranks compute at the same time, and each computes the fraction
/// `share` of a token. In `pipeline`, the ranks compute one after the other. The exchanges of
/// `gather` take `longer` seconds more.
fn gather_below(share: f64, longer: f64) -> f64 {
    if longer > 0.0 { (1.0 - share).max(0.0) / longer } else { f64::INFINITY }
}

/// Returns the cost of a scheme: the most weights on a rank, and the exchanges for a token.
fn cost(args: &Args, ranks: u32, scheme: Scheme) -> Result<Cost> {
    let shares = vec![1; ranks as usize];
    let mut all = Cost { weights: 0, exchanges: 0, sent: 0 };
    for rank in 0..shares.len() {
        let split = Split::planned(&shares, rank)?.with_scheme(scheme);
        let llama = args.model(Some(&split))?;
        all.weights = all.weights.max(llama.nbytes());
        let (exchanges, bytes) = split.traffic(&llama)?;
        all.exchanges = exchanges;
        // The ranks of a pipeline send one after the other, so their bytes add up.
        all.sent = match scheme {
            Scheme::Pipeline => all.sent + bytes,
            _ => all.sent.max(bytes),
        };
    }
    Ok(all)
}

/// Returns the seconds for the exchanges of a token. In an exchange of `gather`, each rank sends
/// its part to all other ranks at the same time.
fn time_of(link: Link, exchanges: u64, sent: u64) -> f64 {
    exchanges as f64 * link.latency + sent as f64 / link.bandwidth
}

/// The plans as JSON.
pub fn to_json(plans: &[Plan]) -> Value {
    let of_plan = |plan: &Plan| {
        json!({
            "ranks": plan.ranks,
            "weight_bytes": plan.cost.weights,
            "exchanges_per_token": plan.cost.exchanges,
            "sent_bytes_per_token": plan.cost.sent,
            "predicted_tokens_per_second": plan.tps,
            // JSON cannot express infinity. `null` means that `gather` is faster at any speed.
            "gather_below_tokens_per_second": plan.gather_below,
        })
    };
    plans.iter().map(of_plan).collect()
}

/// Prints a table of the plans.
pub fn print(plans: &[Plan], args: &Args) -> Result<(), StdoutError> {
    if plans.is_empty() {
        return Ok(());
    }
    output::println(format_args!(
        "\n{:>5}{:>20}{:>10}{:>18}{:>14}{:>18}{:>9}",
        "ranks",
        "weights of a rank",
        "exchanges",
        "sent a token",
        "of them",
        "tokens a second",
        "ratio"
    ))?;
    for plan in plans {
        let time = time_of(args.link, plan.cost.exchanges, plan.cost.sent);
        let tps = plan.tps.map_or("-".to_owned(), |tps| format!("{tps:.1}"));
        let ratio = plan.tps.zip(args.tokens_per_second);
        let ratio = ratio.map_or("-".to_owned(), |(tps, alone)| format!("{:.2}", tps / alone));
        output::println(format_args!(
            "{:>5}{:>13} {:>4.1} %{:>10}{:>18}{:>14}{tps:>18}{ratio:>9}",
            plan.ranks,
            bytes(plan.cost.weights as u64),
            100.0 * plan.share,
            plan.cost.exchanges,
            bytes(plan.cost.sent),
            format!("{:.2} ms", 1e3 * time),
        ))?;
    }
    let computes = match args.split {
        Scheme::Pipeline => "on one machine, since one rank computes at a time",
        _ => "on one machine, divided",
    };
    output::println(format_args!(
        "\nThe speeds are predictions: decoding {computes}, and the exchanges."
    ))?;
    for plan in plans {
        output::println(format_args!("{}", wanted(plan, args.tokens_per_second)))?;
    }
    Ok(())
}

/// Returns a line that says which scheme is faster on the link.
fn wanted(plan: &Plan, alone: Option<f64>) -> String {
    let (ranks, below) = (plan.ranks, plan.gather_below);
    let link = format!("On this link {ranks} ranks want");
    match alone {
        _ if below == f64::INFINITY => format!("{link} gather."),
        _ if below == 0.0 => format!("{link} pipeline."),
        None => format!(
            "{link} gather where one machine decodes fewer than {below:.1} tokens a second, and \
             pipeline where it decodes more."
        ),
        Some(alone) => {
            let scheme = if alone < below { "gather" } else { "pipeline" };
            format!(
                "{link} {scheme}: gather is faster below {below:.1} tokens a second of one machine."
            )
        }
    }
}
