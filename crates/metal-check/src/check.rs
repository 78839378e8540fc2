//! Runs a case (a kernel with its data) with its threads in forward, reversed and shuffled order,
//! or only in the order that the case names.

use std::collections::BTreeMap;
use std::sync::mpsc::RecvTimeoutError::Timeout;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use metal_sim::{
    Access, Argument, ArgumentKind, Buffer, Dispatch, Error, Kernel, Report, Schedule,
};

use crate::case::{Case, usage};
use crate::data::{self, Contents};
use crate::kernels::Files;
use crate::report::{Found, Outcome, order_name};

/// Parses the sizes along the three axes. A missing size is 1.
fn extents(given: &[u32], what: &str) -> Result<[u32; 3]> {
    ensure!(
        given.len() <= 3 && !given.contains(&0),
        "{what}: expected one to three numbers above 0"
    );
    let mut all = [1; 3];
    all[..given.len()].copy_from_slice(given);
    Ok(all)
}

/// A buffer that will be bound to an argument of the kernel.
struct Bound {
    index: u32,
    /// The index of the buffer that owns the memory, which may be this buffer or another buffer.
    owner: u32,
    /// The contents before the kernel runs, if this buffer owns the memory.
    bytes: Vec<u8>,
    offset: usize,
    access: Access,
}

/// Finds the kernel's argument to which a buffer is bound.
fn argument<'a>(kernel: &'a Kernel, index: u32, text: &str) -> Result<&'a Argument> {
    let of_kernel = |it: &&Argument| it.kind == ArgumentKind::Buffer && it.index == index;
    let found = kernel.arguments().iter().find(of_kernel);
    found.with_context(|| {
        format!("{text}: the kernel has no buffer {index}; run metal-check without --entry")
    })
}

fn buffers(kernel: &Kernel, case: &Case) -> Result<Vec<Bound>> {
    let mut all: Vec<Bound> = Vec::new();
    for (number, text) in (0..).zip(&case.buffer) {
        let (index, rest) = data::indexed(text)?;
        let argument = argument(kernel, index, text)?;
        if let Some(other) = rest.strip_prefix("buffer:") {
            let owner = all.iter().find(|it| it.index.to_string() == other && it.owner == it.index);
            let owner = owner.with_context(|| format!("{text}: no --buffer {other}=... before"))?;
            let access = if argument.writable { Access::ReadWrite } else { Access::Read };
            let (owner, bytes) = (owner.index, Vec::new());
            all.push(Bound { index, owner, bytes, offset: 0, access });
            continue;
        }
        let contents = data::buffer(rest, case.seed.wrapping_add(number), &case.folder);
        let contents = contents.with_context(|| text.clone())?;
        let access = match (argument.writable, contents.filled) {
            (true, true) => Access::ReadWrite,
            (true, false) => Access::Write,
            (false, true) => Access::Read,
            (false, false) => bail!(
                "{text}: the kernel only reads {}, so it needs contents, such as {text}:random",
                argument.name
            ),
        };
        all.push(Bound { index, owner: index, bytes: contents.bytes, offset: 0, access });
    }
    for text in &case.offset {
        let (index, bytes) = data::indexed(text)?;
        let bound = all.iter_mut().find(|bound| bound.index == index);
        let bound = bound.with_context(|| format!("{text}: there is no --buffer {index}=..."))?;
        bound.offset = bytes.parse().with_context(|| format!("{text}: expected bytes"))?;
    }
    Ok(all)
}

/// Parses the contents that buffers must have after the run.
fn expected(case: &Case, buffers: &[Bound]) -> Result<Vec<(u32, Contents)>> {
    let mut all = Vec::new();
    for text in &case.expect {
        let (index, rest) = data::indexed(text)?;
        let contents = data::buffer(rest, case.seed, &case.folder).with_context(|| text.clone())?;
        ensure!(contents.filled, "{text}: expected contents, such as {text}:zeros");
        let bound = buffers.iter().find(|it| it.index == index && it.owner == index);
        let bound = bound.with_context(|| format!("{text}: there is no --buffer {index}=..."))?;
        let (want, has) = (contents.bytes.len(), bound.bytes.len());
        ensure!(want == has, "{text}: {want} bytes are expected, and the buffer has {has}");
        all.push((index, contents));
    }
    Ok(all)
}

/// The arguments and the sizes of a case's dispatch.
struct Bindings {
    grid: [u32; 3],
    by_groups: bool,
    group: [u32; 3],
    buffers: Vec<Bound>,
    by_value: Vec<(u32, Vec<u8>)>,
    memory: Vec<(u32, usize)>,
}

impl Bindings {
    fn new(kernel: &Kernel, case: &Case) -> Result<Self> {
        let by_groups = !case.groups.is_empty();
        let grid = match by_groups {
            true => extents(&case.groups, "--groups")?,
            false => extents(&case.grid, "--grid")?,
        };
        let mut by_value = Vec::new();
        for text in &case.bytes {
            let (index, values) = data::indexed(text)?;
            by_value.push((index, data::values(values)?));
        }
        let mut memory = Vec::new();
        for text in &case.memory {
            let (index, bytes) = data::indexed(text)?;
            memory.push((index, bytes.parse().with_context(|| format!("{text}: expected bytes"))?));
        }
        let group = extents(&case.threadgroup, "--threadgroup")?;
        let buffers = buffers(kernel, case)?;
        for text in &case.save {
            let (index, _) = data::indexed(text)?;
            let bound = buffers.iter().any(|it| it.index == index && it.owner == index);
            ensure!(bound, "{text}: there is no --buffer {index}=...");
        }
        Ok(Self { grid, by_groups, group, buffers, by_value, memory })
    }

    fn size(&self) -> String {
        let ([x, y, z], [group_x, group_y, group_z]) = (self.grid, self.group);
        let unit = if self.by_groups { "threadgroups" } else { "threads" };
        format!("{x}x{y}x{z} {unit}, {group_x}x{group_y}x{group_z} a group")
    }

    /// Runs the kernel. Returns the report and the memory after the run. The keys of the map are
    /// the indices of the buffers that own memory.
    fn run(&self, kernel: &Kernel, order: Schedule) -> Result<(Report, BTreeMap<u32, Vec<u8>>)> {
        let owners = self.buffers.iter().filter(|it| it.owner == it.index);
        let mut all: BTreeMap<_, _> = owners.map(|it| (it.index, it.bytes.clone())).collect();
        let mut dispatch = Dispatch::new(kernel).schedule(order);
        dispatch = match self.by_groups {
            true => dispatch.grid_groups(self.grid, self.group),
            false => dispatch.threads(self.grid, self.group),
        };
        for Bound { index, owner, offset, access, .. } in &self.buffers {
            let Some(bytes) = all.get_mut(owner) else { continue };
            let (at, count) = (bytes.as_mut_ptr(), bytes.len());
            // SAFETY: only the dispatch uses the memory in `all` until the dispatch has run.
            let buffer = unsafe { Buffer::raw(at, count, *access) };
            dispatch = dispatch.buffer(*index, buffer.from_offset(*offset));
        }
        for (index, bytes) in &self.by_value {
            dispatch = dispatch.bytes(*index, bytes);
        }
        for &(index, bytes) in &self.memory {
            dispatch = dispatch.threadgroup(index, bytes);
        }
        match dispatch.run() {
            Ok(report) => Ok((report, all)),
            Err(Error::Faults(faults)) => {
                let mut report = Report::default();
                report.faults = faults;
                Ok((report, BTreeMap::new()))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Ends the process with an error after a number of seconds, unless this value is dropped earlier.
/// A running kernel cannot be interrupted in another way.
struct Watchdog {
    _ends: Sender<()>,
}

impl Watchdog {
    fn new(seconds: u32, kernel: String) -> Result<Self> {
        let (_ends, ended) = channel();
        let watch = move || {
            if ended.recv_timeout(Duration::from_secs(seconds.into())) == Err(Timeout) {
                eprintln!(
                    "error: {kernel} has run for {seconds} s and was stopped: a thread may wait for \
                     another one's store, or --timeout is too short"
                );
                std::process::exit(1);
            }
        };
        std::thread::Builder::new().name("watchdog".to_owned()).spawn(watch)?;
        Ok(Self { _ends })
    }
}

/// Runs a case. Returns an error if the arguments are wrong or the kernel does not compile.
pub fn check(files: &mut Files, case: &Case) -> Result<Outcome> {
    let (kernel, broken) = files.kernel(case)?;
    let bindings = usage(Bindings::new(&kernel, case))?;
    let expected = usage(expected(case, &bindings.buffers))?;
    let mut outcome = Outcome::of(case, bindings.size());
    outcome.found = broken;
    for (number, order) in (0..).zip(case.orders()) {
        let name = order_name(order);
        let watchdog = Watchdog::new(case.timeout, format!("{} ({name})", outcome.name))?;
        let (report, memory) = bindings.run(&kernel, order)?;
        drop(watchdog);
        if number == 0 {
            outcome.threads = report.threads;
            outcome.barriers = report.threadgroup_barriers;
            outcome.device_bytes = report.device_bytes();
            save(case, &memory)?;
        }
        report.faults.into_iter().for_each(|fault| outcome.add(Found::fault(fault, &name)));
        report.notes.into_iter().for_each(|note| outcome.note(Found::note(note, &name)));
        for (index, want) in &expected {
            let got = memory.get(index); // `None` if a binding was refused
            if let Some(difference) = got.and_then(|got| want.difference(got, case.tolerance)) {
                outcome.add(Found::wrong(format!("buffer {index}: {difference}"), &name));
            }
        }
    }
    Ok(outcome)
}

/// Writes buffers to files, as the entries `save` of the case request.
fn save(case: &Case, memory: &BTreeMap<u32, Vec<u8>>) -> Result<()> {
    for text in &case.save {
        let (index, file) = usage(data::indexed(text))?;
        if let Some(contents) = memory.get(&index) {
            let path = case.folder.join(file);
            std::fs::write(&path, contents).with_context(|| path.display().to_string())?;
        }
    }
    Ok(())
}
