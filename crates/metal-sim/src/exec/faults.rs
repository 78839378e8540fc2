//! Collects faults. Faults with the same type, place and detail (such as the buffer) are kept once
//! and counted. The source lines of faults are looked up at the end.

use std::collections::HashMap;

use crate::module::{Lines, Module};
use crate::report::{Fault, FaultKind, ThreadPlace};

/// The maximum number of distinct faults that are kept. More faults rarely add information.
const MOST: usize = 200;

#[derive(Default)]
pub(super) struct Faults {
    /// The faults. Each has the return address of its access and, if it is a race, the return
    /// address of the earlier access.
    list: Vec<(Fault, (usize, Option<usize>))>,
    index: HashMap<(FaultKind, usize, u32), usize>,
}

impl Faults {
    /// Records a fault at the return address `site`. The address is 0 if the fault belongs to the
    /// dispatch and not to an access. `detail` distinguishes faults with the same type and place.
    pub(super) fn add(
        &mut self,
        kind: FaultKind,
        site: usize,
        detail: u32,
        thread: Option<ThreadPlace>,
        message: impl FnOnce() -> String,
    ) {
        self.add_pair(kind, (site, None), detail, thread, message);
    }

    /// Records a fault like [`Self::add`], and also the return address of an earlier access.
    /// Returns `true` if the fault was added, `false` if it is known already or the list is full.
    pub(super) fn add_pair(
        &mut self,
        kind: FaultKind,
        (site, earlier): (usize, Option<usize>),
        detail: u32,
        thread: Option<ThreadPlace>,
        message: impl FnOnce() -> String,
    ) -> bool {
        if let Some(&known) = self.index.get(&(kind, site, detail)) {
            self.list[known].0.times += 1;
            return false;
        }
        let is_new = self.list.len() < MOST;
        if is_new {
            self.index.insert((kind, site, detail), self.list.len());
            let (message, places, earlier_places) = (message(), Vec::new(), Vec::new());
            let fault = Fault { kind, message, places, earlier: earlier_places, thread, times: 1 };
            self.list.push((fault, (site, earlier)));
        }
        is_new
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn has(&self, kind: FaultKind) -> bool {
        self.list.iter().any(|(fault, _)| fault.kind == kind)
    }

    /// Moves the faults of one type to another list, and adds a remark to their messages.
    pub(super) fn pass(&mut self, kind: FaultKind, to: &mut Faults, remark: &str) {
        let moved = self.list.extract_if(.., |(fault, _)| fault.kind == kind);
        to.list.extend(moved.map(|(mut fault, sites)| {
            fault.message += remark;
            (fault, sites)
        }));
    }

    pub(super) fn finish(self, module: &Module) -> Vec<Fault> {
        if self.list.is_empty() {
            return Vec::new();
        }
        let lines: Lines = module.lines();
        let located = self.list.into_iter().map(|(mut fault, (site, earlier))| {
            fault.places = lines.find(site);
            fault.earlier = earlier.map_or_else(Vec::new, |site| lines.find(site));
            fault
        });
        located.collect()
    }
}
