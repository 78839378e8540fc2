//! Prepares a dispatch and finishes it: checks and binds the arguments before the kernel runs, and
//! copies the results back after it.

use std::ffi::c_void;
use std::io;

use super::machine::Machine;
use super::memory::THREADGROUP_SLOTS;
use crate::buffer::{Access, Memory};
use crate::dispatch::{Dispatch, Grid};
use crate::module::{Argument, ArgumentKind};
use crate::report::FaultKind;

const MOST_THREADS: u64 = 1024; // of a threadgroup, on every Apple GPU
const MOST_BUFFERS: u32 = 31;

impl Machine {
    fn argument_fault(&mut self, kind: FaultKind, index: u32, message: String) {
        self.faults.add(kind, 0, index, None, || message);
    }
}

/// The addresses that a kernel gets for its buffers and its threadgroup memory.
pub(super) struct Tables {
    pub(super) buffers: [*mut c_void; THREADGROUP_SLOTS],
    pub(super) threadgroup: [*mut c_void; THREADGROUP_SLOTS],
}

/// A range of the caller's memory that one buffer or several overlapping buffers cover.
struct Union {
    low: usize,
    high: usize,
    members: Vec<u32>,
}

/// Checks the arguments, and maps the memory of all buffers.
pub(super) fn bind(machine: &mut Machine, dispatch: &mut Dispatch<'_>) -> io::Result<Tables> {
    let mut tables = Tables {
        buffers: [std::ptr::null_mut(); THREADGROUP_SLOTS],
        threadgroup: [std::ptr::null_mut(); THREADGROUP_SLOTS],
    };
    let arguments = dispatch.kernel.arguments().to_vec();
    let find = |kind: ArgumentKind, index: u32| {
        arguments.iter().find(|argument| argument.kind == kind && argument.index == index)
    };
    for argument in arguments.iter().filter(|argument| argument.required) {
        missing(machine, dispatch, argument);
    }
    for (&index, buffer) in &dispatch.buffers {
        let bytes = buffer.range().1.saturating_sub(buffer.offset);
        match find(ArgumentKind::Buffer, index) {
            Some(argument) if bytes < argument.size as usize && bytes > 0 && !argument.writable => {
                let text = format!(
                    "buffer({index}) '{}' has {bytes} bytes, one element has {}",
                    argument.name, argument.size
                );
                machine.argument_fault(FaultKind::Argument, index, text);
            }
            Some(_) if index < MOST_BUFFERS => {}
            _ => {
                let text = format!("buffer({index}) is bound, but the kernel has no such argument");
                machine.argument_fault(FaultKind::Argument, index, text);
            }
        }
    }
    for union in unions(dispatch) {
        let lead = union.low % 16; // keeps the alignment that the caller's memory has
        let storage = machine.memory.storage(lead + union.high - union.low)?;
        for &index in union.members.iter().filter(|index| **index < MOST_BUFFERS) {
            let Some(buffer) = dispatch.buffers.get(&index) else { continue };
            let (address, bytes) = buffer.range();
            let start = lead + address - union.low;
            let argument = find(ArgumentKind::Buffer, index);
            let name = format!("buffer({index}) '{}'", argument.map_or("", |a| &a.name));
            let align = argument.map_or(1, |argument| argument.align as usize);
            let slot = index as usize;
            let at = machine.memory.bind(
                slot,
                storage,
                start..start + bytes,
                name,
                buffer.access,
                align,
            )?;
            tables.buffers[slot] = at.wrapping_add(buffer.offset) as *mut _;
            if buffer.access == Access::Write {
                if union.members.len() == 1 {
                    machine.memory.spoil_at(at, bytes);
                }
                continue;
            }
            machine.memory.give(storage, start..start + bytes);
            // SAFETY: the caller's memory is valid, and the binding was just mapped.
            unsafe { std::ptr::copy_nonoverlapping(address as *const u8, at as *mut u8, bytes) };
        }
    }
    for (&index, &bytes) in &dispatch.threadgroup {
        let Some(argument) = find(ArgumentKind::Threadgroup, index) else {
            let text =
                format!("threadgroup({index}) is bound, but the kernel has no such argument");
            machine.argument_fault(FaultKind::ThreadgroupMemory, index, text);
            continue;
        };
        if bytes % 16 != 0 || bytes == 0 {
            let text = format!(
                "threadgroup({index}) '{}' has {bytes} bytes; Metal wants a multiple of 16",
                argument.name
            );
            machine.argument_fault(FaultKind::ThreadgroupMemory, 100 + index, text);
        }
        let slot = THREADGROUP_SLOTS + index as usize;
        let name = format!("threadgroup({index}) '{}'", argument.name);
        let at = machine.threadgroup_memory(slot, bytes, name, argument.align as usize)?;
        tables.threadgroup[index as usize] = at as *mut _;
    }
    Ok(tables)
}

fn missing(machine: &mut Machine, dispatch: &Dispatch<'_>, argument: &Argument) {
    let Argument { kind, index, name, .. } = argument;
    let (bound, fault, what) = match kind {
        ArgumentKind::Buffer => {
            (dispatch.buffers.contains_key(index), FaultKind::Argument, "buffer")
        }
        ArgumentKind::Threadgroup => {
            (dispatch.threadgroup.contains_key(index), FaultKind::ThreadgroupMemory, "threadgroup")
        }
    };
    if !bound {
        machine.argument_fault(fault, *index, format!("{what}({index}) '{name}' is not bound"));
    }
}

fn unions(dispatch: &Dispatch<'_>) -> Vec<Union> {
    let mut spans: Vec<(usize, usize, u32)> = dispatch
        .buffers
        .iter()
        .map(|(&index, buffer)| {
            let (address, bytes) = buffer.range();
            (address, address + bytes, index)
        })
        .collect();
    spans.sort_unstable();
    let mut unions: Vec<Union> = Vec::new();
    for (low, high, index) in spans {
        match unions.last_mut() {
            Some(last) if low < last.high => {
                last.high = last.high.max(high);
                last.members.push(index);
            }
            _ => unions.push(Union { low, high, members: vec![index] }),
        }
    }
    unions
}

pub(super) fn grid_is_possible(machine: &mut Machine, dispatch: &Dispatch<'_>) -> bool {
    let threads: u64 = dispatch.group.iter().map(|&n| u64::from(n)).product();
    let entry = &dispatch.kernel.module.kernels[dispatch.kernel.index];
    let limit = match entry.max_threads {
        0 => MOST_THREADS,
        limit => u64::from(limit).min(MOST_THREADS),
    };
    let sizes = match dispatch.grid {
        Grid::Groups(sizes) | Grid::Threads(sizes) => sizes,
    };
    let text = if threads > limit {
        format!("a threadgroup of {threads} threads; this kernel takes at most {limit}")
    } else if threads == 0 || sizes.contains(&0) {
        format!("an empty grid: {sizes:?} of {:?}", dispatch.group)
    } else if sizes.iter().map(|&n| u64::from(n)).product::<u64>() >= 1 << 32 {
        format!("a grid of {sizes:?} is too large to run here")
    } else {
        return true;
    };
    machine.argument_fault(FaultKind::GridSize, 0, text);
    false
}

/// Writes the counters to the report, and the results to the caller's memory.
pub(super) fn finish(machine: &mut Machine, dispatch: &mut Dispatch<'_>) {
    for (slot, region) in machine.memory.regions.iter().enumerate() {
        let Some(region) = region else { continue };
        if region.threadgroup {
            let (sum, add) = (&mut machine.report.threadgroup, region.traffic);
            sum.loads += add.loads;
            sum.stores += add.stores;
            sum.read_bytes += add.read_bytes;
            sum.fetched_bytes += add.fetched_bytes;
            sum.written_bytes += add.written_bytes;
            continue;
        }
        machine.report.buffers.insert(slot as u32, region.total());
        let Some(buffer) = dispatch.buffers.get_mut(&(slot as u32)) else { continue };
        if buffer.access == Access::Read {
            continue;
        }
        // SAFETY: the region is mapped until the machine is dropped.
        let result = unsafe {
            std::slice::from_raw_parts(region.low as *const u8, region.high - region.low)
        };
        match &mut buffer.memory {
            Memory::Borrowed(pointer, bytes) => {
                debug_assert_eq!(*bytes, result.len());
                // SAFETY: the caller has promised `bytes` writable bytes.
                unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), *pointer, *bytes) };
            }
            Memory::Owned(_) => {
                machine.report.contents.insert(slot as u32, result.to_vec());
            }
        }
    }
}
