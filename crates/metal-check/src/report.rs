//! Faults as text, JSON, SARIF and annotations of GitHub.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use metal_sim::rules::Violation;
use metal_sim::{Fault, Schedule};
use serde_json::{Value, json};

/// A fault, and the orders of threads in which it was found.
pub struct Found {
    pub fault: Fault,
    pub orders: Vec<String>,
}

/// A path as seen from the current folder, if the file is in it.
pub fn shown(file: &str) -> String {
    let folder = std::env::current_dir().and_then(|folder| folder.canonicalize());
    let inside = folder.ok().and_then(|folder| Path::new(file).strip_prefix(folder).ok());
    inside.map_or_else(|| file.to_owned(), |file| file.display().to_string())
}

/// The name of an order.
pub fn order_name(order: Schedule) -> String {
    match order {
        Schedule::Forward => "forward".to_owned(),
        Schedule::Reversed => "reversed".to_owned(),
        Schedule::Shuffled(seed) => format!("shuffled:{seed}"),
    }
}

/// The result of a check.
pub struct Outcome {
    pub kernel: String,
    pub size: String,
    pub orders: Vec<String>,
    pub found: Vec<Found>,
    /// The rules of the Metal language that the source breaks, though clang compiles it.
    pub broken: Vec<Violation>,
    /// Of the first order.
    pub threads: u64,
    pub barriers: u64,
    pub device_bytes: u64,
}

impl Outcome {
    /// Adds a fault, unless another order has found it already.
    pub fn add(&mut self, fault: Fault, order: &str) {
        let same = |found: &&mut Found| {
            (found.fault.kind, &found.fault.places) == (fault.kind, &fault.places)
        };
        match self.found.iter_mut().find(same) {
            Some(found) if found.orders.last().is_some_and(|last| last == order) => {}
            Some(found) => found.orders.push(order.to_owned()),
            None => self.found.push(Found { fault, orders: vec![order.to_owned()] }),
        }
    }

    /// Gives files the names that the user sees.
    pub fn name_files(&mut self) {
        let places = self.found.iter_mut().flat_map(|found| &mut found.fault.places);
        places.for_each(|place| place.file = shown(&place.file));
        self.broken.iter_mut().for_each(|rule| rule.file = shown(&rule.file));
    }

    pub fn is_clean(&self) -> bool {
        self.found.is_empty() && self.broken.is_empty()
    }

    pub fn text(&self) -> String {
        let Self { kernel, size, orders, found, .. } = self;
        let orders = orders.join(", ");
        if self.is_clean() {
            let (threads, barriers, bytes) = (self.threads, self.barriers, self.device_bytes);
            return format!(
                "{kernel} over {size}: no fault ({orders})\n\
                 {threads} threads, {barriers} barriers, {bytes} bytes of buffers read and written"
            );
        }
        let count = found.len() + self.broken.len();
        let faults = if count == 1 { "fault" } else { "faults" };
        let mut text = format!("{kernel} over {size}: {count} {faults} ({orders})");
        for rule in &self.broken {
            text += &format!("\n\n{rule}");
        }
        let mut files = BTreeMap::new();
        for Found { fault, orders } in found {
            text += &format!("\n\n{fault}\n    in the orders {}", orders.join(", "));
            for place in &fault.places {
                let lines: &mut Vec<String> = files.entry(&place.file).or_insert_with(|| {
                    let text = fs::read_to_string(&place.file).unwrap_or_default();
                    text.lines().map(str::to_owned).collect()
                });
                if let Some(line) = lines.get((place.line as usize).saturating_sub(1)) {
                    text += &format!("\n{:>6} | {line}", place.line);
                }
            }
        }
        text
    }

    pub fn json(&self) -> Value {
        let faults = self.found.iter().map(|Found { fault, orders }| {
            let places = fault.places.iter().map(|at| json!({"file": at.file, "line": at.line}));
            let thread = fault.thread.map(|at| {
                json!({"thread": at.thread, "simdgroup": at.simdgroup, "lane": at.lane,
                       "threadgroup": at.threadgroup})
            });
            json!({"kind": format!("{:?}", fault.kind), "message": fault.message,
                   "places": places.collect::<Vec<_>>(), "thread": thread, "times": fault.times,
                   "orders": orders})
        });
        let broken = self
            .broken
            .iter()
            .map(|rule| json!({"file": rule.file, "line": rule.line, "message": rule.message}));
        json!({"kernel": self.kernel, "size": self.size, "orders": self.orders,
               "threads": self.threads, "barriers": self.barriers,
               "device_bytes": self.device_bytes, "faults": faults.collect::<Vec<_>>(), "broken_rules": broken.collect::<Vec<_>>()})
    }

    /// Annotations of lines, as a workflow of GitHub prints them.
    pub fn github(&self, file: &str) -> String {
        let escaped =
            |text: &str| text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
        let lines = self.found.iter().map(|Found { fault, .. }| {
            let (file, line) = match fault.places.first() {
                Some(place) => (place.file.as_str(), place.line),
                None => (file, 1),
            };
            let message = escaped(&format!("{}: {}", self.kernel, fault.message));
            format!("::error file={file},line={line},title={:?}::{message}", fault.kind)
        });
        let rules = self.broken.iter().map(|rule| {
            let Violation { file, line, message, .. } = rule;
            format!("::error file={file},line={line},title=Rule::{}", escaped(message))
        });
        lines.chain(rules).collect::<Vec<_>>().join("\n")
    }
}

/// The log of a tool in SARIF 2.1.0.
pub fn sarif(outcomes: &[Outcome], file: &str) -> Value {
    let place = |file: &str, line: u32| {
        json!({"physicalLocation": {"artifactLocation": {"uri": file},
                                    "region": {"startLine": line}}})
    };
    let rules = outcomes.iter().flat_map(|outcome| &outcome.broken).map(|rule| {
        json!({"ruleId": "Rule", "level": "error", "message": {"text": rule.message},
               "locations": [place(&rule.file, rule.line)]})
    });
    let all = outcomes.iter().flat_map(|outcome| outcome.found.iter().map(move |it| (outcome, it)));
    let results = all.map(|(outcome, Found { fault, .. })| {
        let mut places = fault.places.iter().map(|at| place(&at.file, at.line));
        let first = places.next().unwrap_or_else(|| place(file, 1));
        json!({"ruleId": format!("{:?}", fault.kind), "level": "error",
               "message": {"text": format!("{}: {}", outcome.kernel, fault.message)},
               "locations": [first], "relatedLocations": places.collect::<Vec<_>>()})
    });
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "metal-check", "version": env!("CARGO_PKG_VERSION")}},
            "results": results.chain(rules).collect::<Vec<_>>(),
        }],
    })
}
