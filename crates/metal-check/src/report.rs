//! The result of a check, as text, JSON, SARIF or annotations for GitHub.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use metal_sim::rules::Violation;
use metal_sim::{Fault, Place, Schedule, ThreadPlace};
use serde_json::{Value, json};

use crate::case::Case;

/// Makes a path relative to the current folder, if the file is in this folder.
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

/// A finding: a fault, a note, a broken rule, a wrong result or a failure.
#[derive(Clone)]
pub struct Found {
    /// The type of the finding: the type of a fault, such as `DataRace`, or `Rule`, `WrongResult`
    /// or `Failed`.
    pub kind: String,
    pub message: String,
    /// The place and the type of the finding, then the message, and then the thread of a fault.
    pub headline: String,
    pub places: Vec<Place>,
    /// The lines of the earlier access, if this is a race.
    pub earlier: Vec<Place>,
    pub thread: Option<ThreadPlace>,
    pub times: u64,
    /// The orders of threads in which the finding occurred; empty if it does not depend on a run.
    pub orders: Vec<String>,
}

impl Found {
    fn at(kind: &str, place: Option<Place>, message: String) -> Self {
        let at = place.as_ref().map(|at| format!("{}:{}: ", at.file, at.line));
        Self {
            kind: kind.to_owned(),
            headline: format!("{}{kind}: {message}", at.unwrap_or_default()),
            message,
            places: place.into_iter().collect(),
            earlier: Vec::new(),
            thread: None,
            times: 1,
            orders: Vec::new(),
        }
    }

    /// Makes a finding from a fault. Paths in the current folder become relative to it.
    pub fn fault(mut fault: Fault, order: &str) -> Self {
        let places = fault.places.iter_mut().chain(&mut fault.earlier);
        places.for_each(|place| place.file = shown(&place.file));
        Self {
            kind: format!("{:?}", fault.kind),
            headline: fault.to_string(),
            message: fault.message,
            places: fault.places,
            earlier: fault.earlier,
            thread: fault.thread,
            times: fault.times,
            orders: vec![order.to_owned()],
        }
    }

    /// Makes a finding from a note, which is an access that looks like a fault but does not change
    /// a result.
    pub fn note(fault: Fault, order: &str) -> Self {
        let note = Self::fault(fault, order);
        Self { headline: format!("note: {}", note.headline), ..note }
    }

    /// Whether two findings have the same type and the same places, and either both depend on a run
    /// or neither does.
    fn is_like(&self, other: &Self) -> bool {
        let key = |it: &Self| (it.kind.clone(), it.places.clone(), it.orders.is_empty());
        key(self) == key(other)
    }

    /// Makes a finding for a broken rule of the Metal language that clang does not report as an
    /// error.
    pub fn rule(rule: Violation) -> Self {
        let place = Place { file: shown(&rule.file), line: rule.line };
        Self::at("Rule", Some(place), rule.message)
    }

    /// Makes a finding for a buffer whose contents differ from the expected contents.
    pub fn wrong(message: String, order: &str) -> Self {
        Self { orders: vec![order.to_owned()], ..Self::at("WrongResult", None, message) }
    }

    /// Makes a finding for a kernel that cannot run. Its place is the first place in the compiler's
    /// messages.
    pub fn failed(message: String) -> Self {
        let place = message.lines().find_map(|line| {
            let (place, _) = line.split_once(": error: ")?;
            let mut parts = place.rsplitn(3, ':');
            let (_, line, file) = (parts.next()?, parts.next()?, parts.next()?);
            if file.contains("/msl/") {
                return None; // a header of the check
            }
            Some(Place { file: shown(file), line: line.parse().ok()? })
        });
        Self::at("Failed", place, message.trim_end().to_owned())
    }
}

/// The result of a check.
pub struct Outcome {
    /// The case's name, or the kernel's name if the case has no name.
    pub name: String,
    pub kernel: String,
    /// The file that was checked.
    pub file: String,
    pub size: String,
    pub orders: Vec<String>,
    pub found: Vec<Found>,
    /// Accesses that look like a fault but do not change a result.
    pub notes: Vec<Found>,
    /// The number of threads that ran in the first order.
    pub threads: u64,
    pub barriers: u64,
    pub device_bytes: u64,
}

impl Outcome {
    /// Makes the outcome of a case before it runs.
    pub fn of(case: &Case, size: String) -> Self {
        let kernel = case.entry.clone().unwrap_or_default();
        let path = case.source.as_ref().map(|source| case.folder.join(source));
        Self {
            name: case.name.clone().unwrap_or_else(|| kernel.clone()),
            kernel,
            file: path.map(|path| path.display().to_string()).unwrap_or_default(),
            size,
            orders: case.orders().into_iter().map(order_name).collect(),
            found: Vec::new(),
            notes: Vec::new(),
            threads: 0,
            barriers: 0,
            device_bytes: 0,
        }
    }

    /// Makes the outcome of a case whose kernel cannot run.
    pub fn failed(case: &Case, error: &anyhow::Error) -> Self {
        let found = vec![Found::failed(format!("{error:#}"))];
        Self { orders: Vec::new(), found, ..Self::of(case, String::new()) }
    }

    /// Adds a fault, and removes notes of the same type and places. If the fault was already found
    /// in another order, only adds the order.
    pub fn add(&mut self, new: Found) {
        self.notes.retain(|note| !note.is_like(&new));
        merge(&mut self.found, new);
    }

    /// Adds a note, unless another order reported the same finding as a fault.
    pub fn note(&mut self, new: Found) {
        if !self.found.iter().any(|found| found.is_like(&new)) {
            merge(&mut self.notes, new);
        }
    }

    pub fn is_clean(&self) -> bool {
        self.found.is_empty()
    }

    pub fn text(&self) -> String {
        let Self { name, size, found, notes, .. } = self;
        let orders = self.orders.join(", ");
        let counted = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            count => format!("{count} {what}s"),
        };
        let faults =
            if self.is_clean() { "no fault".into() } else { counted(found.len(), "fault") };
        let notes_too = format!(", {}", counted(notes.len(), "note"));
        let more = if notes.is_empty() { "" } else { notes_too.as_str() };
        let mut text = match orders.as_str() {
            "" => format!("{name}: it does not run"),
            _ => format!("{name} over {size}: {faults}{more} ({orders})"),
        };
        if self.is_clean() {
            let (threads, barriers, bytes) = (self.threads, self.barriers, self.device_bytes);
            text += &format!(
                "\n{threads} threads, {barriers} barriers, {bytes} bytes of buffers read and written"
            );
        }
        let mut files = BTreeMap::new();
        for found in found.iter().chain(notes) {
            text += &format!("\n\n{}", found.headline);
            if !found.orders.is_empty() {
                text += &format!("\n    in the orders {}", found.orders.join(", "));
            }
            for place in found.places.iter().chain(&found.earlier) {
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
        let shown = |found: &Found| {
            let places = |places: &[Place]| {
                let places = places.iter().map(|at| json!({"file": at.file, "line": at.line}));
                places.collect::<Vec<_>>()
            };
            let thread = found.thread.map(|at| {
                json!({"thread": at.thread, "simdgroup": at.simdgroup, "lane": at.lane,
                       "threadgroup": at.threadgroup})
            });
            json!({"kind": found.kind, "message": found.message,
                   "places": places(&found.places), "earlier": places(&found.earlier),
                   "thread": thread, "times": found.times, "orders": found.orders})
        };
        let all = |list: &[Found]| list.iter().map(shown).collect::<Vec<_>>();
        json!({"name": self.name, "kernel": self.kernel, "file": self.file, "size": self.size,
               "orders": self.orders, "threads": self.threads, "barriers": self.barriers,
               "device_bytes": self.device_bytes, "faults": all(&self.found),
               "notes": all(&self.notes), "text": self.text()})
    }

    /// Iterates over faults and notes with their SARIF levels.
    fn both(&self) -> impl Iterator<Item = (&'static str, &Found)> {
        let faults = self.found.iter().map(|found| ("error", found));
        faults.chain(self.notes.iter().map(|note| ("note", note)))
    }

    /// Formats the findings as annotations in the format of GitHub's workflows.
    fn github(&self) -> Vec<String> {
        let escaped =
            |text: &str| text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
        let lines = self.both().map(|(level, found)| {
            let level = if level == "note" { "notice" } else { level };
            let Place { file, line } = self.place(found);
            let message = escaped(&format!("{}: {}", self.name, found.message));
            format!("::{level} file={file},line={line},title={}::{message}", found.kind)
        });
        lines.collect()
    }

    fn sarif(&self) -> Vec<Value> {
        let place = |at: &Place| {
            json!({"physicalLocation": {"artifactLocation": {"uri": at.file},
                                        "region": {"startLine": at.line}}})
        };
        let results = self.both().map(|(level, found)| {
            let others = found.places.iter().skip(1).chain(&found.earlier).map(place);
            json!({"ruleId": found.kind, "level": level,
                   "message": {"text": format!("{}: {}", self.name, found.message)},
                   "locations": [place(&self.place(found))],
                   "relatedLocations": others.collect::<Vec<_>>()})
        });
        results.collect()
    }

    /// The first place of a finding, or the first line of the file if the finding has no place.
    fn place(&self, found: &Found) -> Place {
        let first = || Place { file: self.file.clone(), line: 1 };
        found.places.first().cloned().unwrap_or_else(first)
    }
}

/// Adds a finding to a list. If the list has the finding already, only adds the order.
fn merge(list: &mut Vec<Found>, new: Found) {
    match list.iter_mut().find(|old| old.is_like(&new)) {
        Some(old) if old.orders.last() == new.orders.last() => {}
        Some(old) => old.orders.extend(new.orders),
        None => list.push(new),
    }
}

/// Formats all outcomes as text. If there are several, adds a line with the number of
/// cases and the number of cases with faults.
pub fn text(outcomes: &[Outcome]) -> String {
    let mut text: Vec<_> = outcomes.iter().map(Outcome::text).collect();
    if outcomes.len() > 1 {
        let faulty = outcomes.iter().filter(|outcome| !outcome.is_clean()).count();
        text.push(format!("{} cases, {faulty} with faults", outcomes.len()));
    }
    text.join("\n\n")
}

/// Formats all outcomes as annotations for GitHub.
pub fn github(outcomes: &[Outcome]) -> String {
    outcomes.iter().flat_map(Outcome::github).collect::<Vec<_>>().join("\n")
}

/// Formats all outcomes as a log in SARIF 2.1.0.
pub fn sarif(outcomes: &[Outcome]) -> Value {
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {"name": "metal-check", "version": env!("CARGO_PKG_VERSION")}},
            "results": outcomes.iter().flat_map(Outcome::sarif).collect::<Vec<_>>(),
        }],
    })
}
