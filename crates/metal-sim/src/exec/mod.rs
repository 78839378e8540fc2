//! Executes a dispatch: binds memory, and then runs one threadgroup after another.

pub(crate) mod abi;
mod arena;
mod faults;
mod machine;
mod memory;
mod order;
mod scheduler;
mod setup;
mod shadow;
mod sync;
mod trace;
mod watch;

use std::hash::{DefaultHasher, Hasher};
use std::ptr;

use machine::Machine;
use memory::{JUNK, Memory, OTHER_JUNK, THREADGROUP_SLOTS};
pub use scheduler::Schedule;
use scheduler::{Barrier, Ready, SIMD_WIDTH, Simd, Thread};
use setup::Tables;
use trace::Trace;
use watch::Watch;

use crate::buffer::Access;
use crate::dispatch::{Dispatch, Grid};
use crate::error::{Error, Result};
use crate::module::Arguments;
use crate::report::{Fault, FaultKind, Report};
use crate::rewrite::BUILTINS;

type Values = [[u32; 4]; BUILTINS.len()];

impl Dispatch<'_> {
    /// Runs the kernel. The report has the faults of the kernel. An error means that the kernel
    /// could not run.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Memory`](crate::Error::Memory) if the host has no memory for the dispatch.
    pub fn run(mut self) -> Result<Report> {
        let mut machine = self.attempt(Watch::default(), JUNK, Trace::counted())?;
        let raced = std::mem::take(&mut machine.raced);
        let reads_junk = machine.faults.has(FaultKind::UninitializedRead) && !machine.stopped;
        let mut is_idle = false;
        if reads_junk || !raced.is_empty() {
            let trace = machine.trace.beside();
            drop(machine); // also drops its permit for an arena
            let others = if reads_junk { self.with_other_junk(trace)? } else { None };
            machine = self.attempt(Watch::new(raced), JUNK, trace)?;
            is_idle = others.is_some_and(|effect| effect == Effect::of(&machine));
        }
        if is_idle {
            let remark = ", and no result, address or branch depends on the value";
            machine.faults.pass(FaultKind::UninitializedRead, &mut machine.notes, remark);
        }
        setup::finish(&mut machine, &mut self);
        let mut report = std::mem::take(&mut machine.report);
        let [faults, notes] = [&mut machine.faults, &mut machine.notes].map(std::mem::take);
        report.faults = faults.finish(&self.kernel.module);
        report.notes = notes.finish(&self.kernel.module);
        let same =
            |one: &Fault, other: &Fault| (one.kind, &one.places) == (other.kind, &other.places);
        report.notes.retain(|note| !report.faults.iter().any(|fault| same(fault, note)));
        Ok(report)
    }

    /// Runs the kernel with other bytes in uninitialized memory, and returns its effect; `None` if
    /// the effect depends on these bytes.
    fn with_other_junk(&mut self, trace: Trace) -> Result<Option<Effect>> {
        let mut known = None;
        for junk in OTHER_JUNK {
            let effect = Effect::of(&self.attempt(Watch::default(), junk, trace)?);
            if known.is_some_and(|known| known != effect) {
                return Ok(None);
            }
            known = Some(effect);
        }
        Ok(known)
    }

    /// Runs the kernel on copies of the buffers.
    fn attempt(&mut self, watch: Watch, junk: u8, trace: Trace) -> Result<Machine> {
        let module = self.kernel.module.clone();
        let ready = Ready::new(self.schedule);
        let image = module.image.clone();
        let memory = Memory::new(watch, junk).map_err(Error::Memory)?;
        let mut machine = Machine::new(ready, image, memory, trace);
        machine.module = Some(module);
        let tables = setup::bind(&mut machine, self).map_err(Error::Memory)?;
        let runnable = setup::grid_is_possible(&mut machine, self) && machine.faults.is_empty();
        if runnable {
            let result = abi::with_machine(&raw mut machine, || {
                // SAFETY: the machine is accessed only through this pointer until the run ends.
                unsafe { run_groups(&raw mut machine, self, &tables) }
            });
            machine.threads.clear();
            result.map_err(Error::Memory)?;
            if !machine.stopped {
                unwritten(&mut machine);
            }
        }
        Ok(machine)
    }
}

/// The effect of a dispatch: its trace, a hash of the bytes that it stored in buffers, and the
/// numbers of faults and notes.
#[derive(PartialEq)]
struct Effect {
    trace: Trace,
    stored: u64,
    found: [usize; 2],
}

impl Effect {
    fn of(machine: &Machine) -> Self {
        let mut stored = DefaultHasher::new();
        machine.memory.hash_stored(&mut stored);
        let found = [machine.faults.len(), machine.notes.len()];
        Effect { trace: machine.trace, stored: stored.finish(), found }
    }
}

/// # Safety
/// `machine` must be valid, and no other reference to it may exist.
unsafe fn run_groups(
    machine: *mut Machine,
    dispatch: &Dispatch<'_>,
    tables: &Tables,
) -> std::io::Result<()> {
    let call = dispatch.kernel.module.kernels[dispatch.kernel.index].call;
    let group = dispatch.group;
    let (groups, grid) = match dispatch.grid {
        Grid::Groups(groups) => (groups, [0, 1, 2].map(|d| groups[d] * group[d])),
        Grid::Threads(threads) => ([0, 1, 2].map(|d| threads[d].div_ceil(group[d])), threads),
    };
    // SAFETY: each borrow of `machine` ends with its statement, and fibers run only inside
    // `run_group`.
    unsafe {
        let count = groups[0] * groups[1] * groups[2];
        for number in (*machine).ready.order(count) {
            let position = [
                number % groups[0],
                number / groups[0] % groups[1],
                number / groups[0] / groups[1],
            ];
            let size = [0, 1, 2].map(|d| group[d].min(grid[d] - position[d] * group[d]));
            let shape = Shape { groups, grid, group, position, size };
            let threads = (size[0] * size[1] * size[2]) as usize;
            (*machine).group = number;
            (*machine).group_position = position;
            (*machine).epochs = [0; 2];
            (*machine).barrier = Barrier::default();
            (*machine).live = threads;
            (*machine).simds = (0..threads.div_ceil(SIMD_WIDTH))
                .map(|simd| Simd::new((threads - simd * SIMD_WIDTH).min(SIMD_WIDTH) as u32))
                .collect();
            (*machine).reset_threadgroup_memory();
            (*machine).memory.order.start_group();
            let values: Vec<Values> = (0..threads as u32).map(|i| shape.values(i)).collect();
            let arguments: Vec<Arguments> = values
                .iter()
                .map(|values| Arguments {
                    buffers: tables.buffers.as_ptr(),
                    threadgroup: tables.threadgroup.as_ptr(),
                    values: values.as_ptr(),
                })
                .collect();
            (*machine).threads.clear();
            for (i, arguments) in arguments.iter().enumerate() {
                let thread = Thread::new(machine, i, call, ptr::from_ref(arguments))?;
                (*machine).threads.push(thread);
            }
            Machine::run_group(machine);
            (*machine).report.threads += threads as u64;
            (*machine).report.threadgroups += 1;
            if (*machine).stopped {
                break;
            }
        }
    }
    Ok(())
}

/// The sizes and positions in the grid that all threads of a threadgroup share.
struct Shape {
    groups: [u32; 3],
    grid: [u32; 3],
    group: [u32; 3],
    position: [u32; 3],
    size: [u32; 3],
}

impl Shape {
    /// The built-in values of thread `i`, in the order of [`BUILTINS`].
    fn values(&self, i: u32) -> Values {
        let size = self.size;
        let local = [i % size[0], i / size[0] % size[1], i / size[0] / size[1]];
        let global = [0, 1, 2].map(|d| self.position[d] * self.group[d] + local[d]);
        let three = |v: [u32; 3]| [v[0], v[1], v[2], 0];
        let one = |v: u32| [v, 1, 1, 0];
        let width = SIMD_WIDTH as u32;
        let count: u32 = size.iter().product();
        let full: u32 = self.group.iter().product();
        [
            three(global),
            three(self.position),
            three(local),
            three(size),
            three(self.grid),
            three(self.groups),
            three(self.group),
            one(i),
            one(i % width),
            one(i / width),
            one(count.div_ceil(width)),
            one(full.div_ceil(width)),
            one(width),
            one(width),
            one(i % 4),
            one(i / 4),
            one(count.div_ceil(4)),
            three([0; 3]),
            three(self.grid),
        ]
    }
}

fn unwritten(machine: &mut Machine) {
    for (slot, region) in machine.memory.regions[..THREADGROUP_SLOTS].iter().enumerate() {
        let Some(region) = region else { continue };
        if region.access == Access::Write
            && let Some((first, count)) = region.unwritten()
        {
            machine.faults.add(FaultKind::UnwrittenOutput, 0, slot as u32, None, || {
                format!("{count} bytes of {} are never written, the first at {first}", region.name)
            });
        }
    }
}
