//! Faults are collected once for each kind and place, and given their lines at the end.

use std::collections::HashMap;

use crate::module::{Lines, Module};
use crate::report::{Fault, FaultKind, ThreadPlace};

/// The most distinct faults that are kept, since more say nothing new.
const MOST: usize = 200;

#[derive(Default)]
pub(super) struct Faults {
    list: Vec<(Fault, usize)>,
    index: HashMap<(FaultKind, usize, u32), usize>,
}

impl Faults {
    /// Records a fault at a return address (0 for the dispatch as a whole); `detail` tells
    /// faults of one kind and place apart.
    pub(super) fn add(
        &mut self,
        kind: FaultKind,
        site: usize,
        detail: u32,
        thread: Option<ThreadPlace>,
        message: impl FnOnce() -> String,
    ) {
        if let Some(&known) = self.index.get(&(kind, site, detail)) {
            self.list[known].0.times += 1;
        } else if self.list.len() < MOST {
            self.index.insert((kind, site, detail), self.list.len());
            let fault = Fault { kind, message: message(), places: Vec::new(), thread, times: 1 };
            self.list.push((fault, site));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn finish(self, module: &Module) -> Vec<Fault> {
        if self.list.is_empty() {
            return Vec::new();
        }
        let lines: Lines = module.lines();
        let located = self.list.into_iter().map(|(mut fault, site)| {
            fault.places = lines.find(site);
            fault
        });
        located.collect()
    }
}
