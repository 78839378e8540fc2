//! Runs the threads of a threadgroup. They wait for each other at barriers, and when the lanes of a
//! SIMD group exchange values.

use std::io;

use corosensei::stack::{DefaultStack, Stack};
use corosensei::{Coroutine, CoroutineResult};

use super::machine::Machine;
use super::scheduler::{Barrier, ROUNDS, SIMD_WIDTH, SLOT_BYTES, State, Thread, stacks};
use super::shadow::Loads;
use crate::module::{Arguments, Call};
use crate::report::FaultKind;

/// The size of a fiber's stack in bytes. A thread's private memory on a GPU is far smaller.
const STACK_BYTES: usize = 256 << 10;

const MEM_DEVICE: u32 = 1;
const MEM_THREADGROUP: u32 = 2;

/// Values of `memory_order` and `thread_scope`, as in include/msl/atomic.h and types.h.
const ACQUIRE: u32 = 1;
const RELEASE: u32 = 2;
const ACQUIRE_RELEASE: u32 = 3;
const SEQUENTIAL: u32 = 4;
const DEVICE_SCOPE: u32 = 3;

fn advance(epochs: &mut [u32; 2], flags: u32) {
    epochs[0] += u32::from(flags & MEM_DEVICE != 0);
    epochs[1] += u32::from(flags & MEM_THREADGROUP != 0);
}

impl Thread {
    /// Creates a thread that will call the kernel. `arguments` must outlive it.
    pub(super) fn new(
        machine: *mut Machine,
        index: usize,
        call: Call,
        arguments: *const Arguments,
    ) -> io::Result<Self> {
        let kept = stacks().pop();
        let stack = match kept {
            Some(stack) => stack,
            None => DefaultStack::new(STACK_BYTES)?,
        };
        let range = stack.limit().get()..stack.base().get();
        let fiber = Coroutine::with_stack(stack, move |yielder, ()| {
            // SAFETY: the machine outlives its threads, and nothing else borrows it at this time.
            unsafe { (&mut (*machine).threads)[index].yielder = yielder };
            // SAFETY: the arguments match the parameters in the kernel's entry (msl/registry.h).
            unsafe { call(arguments) };
        });
        Ok(Thread {
            state: State::Ready,
            stack: range,
            loads: Loads::default(),
            fiber: Some(fiber),
            yielder: std::ptr::null(),
        })
    }
}

impl Machine {
    pub(super) fn wake(&mut self, thread: usize) {
        self.threads[thread].state = State::Ready;
        self.ready.push(thread);
    }

    /// Suspends the current fiber until the scheduler resumes it.
    ///
    /// # Safety
    /// Must be called on a fiber of `machine`, while no reference to the machine is alive.
    pub(super) unsafe fn suspend(machine: *mut Machine) {
        // SAFETY: the yielder was set when the fiber started, and lives as long as the fiber.
        unsafe {
            let threads = &(*machine).threads;
            let yielder = threads[(*machine).current].yielder;
            (*yielder).suspend(());
        }
    }

    /// Runs the threads of a group until they have returned or cannot continue.
    ///
    /// # Safety
    /// `machine` must be valid and have its threads, and no reference to it may be alive.
    pub(super) unsafe fn run_group(machine: *mut Machine) {
        // SAFETY: every borrow of the machine ends before a fiber is resumed.
        unsafe {
            (*machine).ready.queue.clear();
            for thread in 0..(*machine).threads.len() {
                (*machine).ready.push(thread);
            }
            while (*machine).live > 0 && !(*machine).stopped {
                let Some(next) = (*machine).ready.pop() else {
                    (*machine).stuck();
                    break;
                };
                (*machine).current = next;
                let Some(mut fiber) = (&mut (*machine).threads)[next].fiber.take() else { break };
                let result = fiber.resume(());
                if (*machine).overwrite.is_some() {
                    (*machine).settle();
                }
                let thread = &mut (&mut (*machine).threads)[next];
                thread.fiber = Some(fiber);
                if let CoroutineResult::Return(()) = result {
                    thread.state = State::Done;
                    (*machine).leave();
                }
            }
        }
    }

    pub(super) fn lane(&self) -> u32 {
        (self.current % SIMD_WIDTH) as u32
    }

    fn lanes(&self) -> std::ops::Range<usize> {
        let first = self.current / SIMD_WIDTH * SIMD_WIDTH;
        first..(first + SIMD_WIDTH).min(self.threads.len())
    }

    /// Whether two return addresses are on the same source lines. The addresses may differ for one
    /// call in the source, since the compiler may duplicate the call.
    fn same_place(&mut self, one: usize, other: usize) -> bool {
        if one == other {
            return true;
        }
        if let Some(&known) = self.same_places.get(&(one, other)) {
            return known;
        }
        let same = self.module.as_ref().is_some_and(|module| {
            let lines = module.lines();
            lines.find(one) == lines.find(other)
        });
        self.same_places.insert((one, other), same);
        same
    }

    pub(super) fn arrive_at_barrier(&mut self, flags: u32, site: usize) {
        self.step(site, flags as usize);
        if self.barrier.arrived == 0 {
            self.barrier = Barrier { arrived: 0, flags, site };
        } else if self.barrier.flags != flags || !self.same_place(self.barrier.site, site) {
            self.fault(FaultKind::DivergentBarrier, site, || {
                "threads of a group meet at different barriers".to_string()
            });
        }
        self.barrier.arrived += 1;
        self.threads[self.current].state = State::Barrier(site);
        self.threads[self.current].loads.wait();
        if self.barrier.arrived == self.threads.len() {
            self.barrier.arrived = 0;
            self.report.threadgroup_barriers += 1;
            advance(&mut self.epochs, flags);
            self.memory.order.barrier(flags & MEM_DEVICE != 0);
            for thread in 0..self.threads.len() {
                self.wake(thread);
            }
        }
    }

    /// Executes a fence, with Metal's values of `mem_flags`, `memory_order` and `thread_scope`. A
    /// fence that does not include device memory, or whose scope is not the device, is ignored, so
    /// accesses that only such a fence orders are reported as races.
    pub(super) fn fence(&mut self, flags: u32, order: u32, scope: u32, site: usize) {
        self.step(site, order as usize);
        if flags & MEM_DEVICE == 0 || scope != DEVICE_SCOPE {
            return;
        }
        let now = self.stamps()[0];
        if matches!(order, ACQUIRE | ACQUIRE_RELEASE | SEQUENTIAL) {
            self.memory.order.acquire(now);
        }
        if matches!(order, RELEASE | ACQUIRE_RELEASE | SEQUENTIAL) {
            self.memory.order.release(now);
        }
    }

    /// Records that a lane arrives at a SIMD-group function. Returns whether it is the last lane of
    /// its SIMD group to arrive.
    fn meet(&mut self, state: State, site: usize, what: u32, bytes: usize) -> bool {
        self.step(site, bytes);
        let group = self.current / SIMD_WIDTH;
        let simd = &mut self.simds[group];
        let first = simd.arrived == 0;
        if first {
            (simd.site, simd.flags, simd.bytes) = (site, what, bytes);
        }
        let expected = (simd.site, simd.flags, simd.bytes);
        let returned = simd.lanes - simd.live;
        simd.arrived += 1;
        let last = simd.arrived == simd.live;
        if last {
            simd.arrived = 0;
        }
        let different = (expected.1, expected.2) != (what, bytes);
        if !first && (different || !self.same_place(expected.0, site)) {
            self.fault(FaultKind::DivergentSimd, site, || {
                "lanes of a SIMD group meet at different SIMD-group functions".to_string()
            });
        }
        if first && returned > 0 {
            self.fault(FaultKind::DivergentSimd, site, || {
                format!("{returned} lanes of the SIMD group have returned already")
            });
        }
        self.threads[self.current].state = state;
        self.threads[self.current].loads.wait();
        if last {
            for lane in self.lanes() {
                if self.threads[lane].state.at_simd() {
                    self.wake(lane);
                }
            }
        }
        last
    }

    pub(super) fn arrive_at_simd_barrier(&mut self, flags: u32, site: usize) {
        if self.meet(State::SimdBarrier(site), site, flags, 0) {
            self.report.simdgroup_barriers += 1;
            advance(&mut self.simds[self.current / SIMD_WIDTH].epochs, flags);
        }
    }

    /// Publishes a value to the SIMD group. Returns the index of the exchange buffer that has the
    /// values.
    pub(super) fn arrive_at_exchange(&mut self, value: &[u8], site: usize) -> usize {
        let (lane, group) = (self.current % SIMD_WIDTH, self.current / SIMD_WIDTH);
        let simd = &mut self.simds[group];
        let number = simd.round;
        let fresh = simd.arrived == 0;
        let round = &mut simd.rounds[number];
        if fresh {
            round.mask = 0;
            round.slots.fill(0xfb);
        }
        round.mask |= 1 << lane;
        round.slots[lane * SLOT_BYTES..][..value.len()].copy_from_slice(value);
        if self.meet(State::Exchange(site), site, u32::MAX, value.len()) {
            self.report.simd_operations += 1;
            self.simds[group].round = (number + 1) % ROUNDS;
        }
        number
    }

    pub(super) fn exchanged(&self, round: usize) -> (*const u8, u32) {
        let round = &self.simds[self.current / SIMD_WIDTH].rounds[round];
        (round.slots.as_ptr(), round.mask)
    }

    pub(super) fn inactive_lane(&mut self, lane: u32, site: usize) {
        self.fault(FaultKind::InactiveLane, site, || {
            format!("reads the value of lane {lane}, which takes no part")
        });
    }

    /// Records that a thread has returned. SIMD-group functions then wait only for the other lanes,
    /// but threadgroup barriers still wait for all threads.
    pub(super) fn leave(&mut self) {
        self.live -= 1;
        let group = self.current / SIMD_WIDTH;
        self.simds[group].live -= 1;
        let simd = &self.simds[group];
        if simd.arrived > 0 {
            let site = simd.site;
            self.fault(FaultKind::DivergentSimd, site, || {
                "a lane returns while others of its SIMD group wait for it here".to_string()
            });
            self.stopped = true;
        }
    }

    /// Reports a fault because threads wait and none of them can continue.
    pub(super) fn stuck(&mut self) {
        self.stopped = true;
        let (mut at_barrier, mut in_simd, mut returned) = (Vec::new(), Vec::new(), 0);
        for (i, thread) in self.threads.iter().enumerate() {
            match thread.state {
                State::Barrier(site) => at_barrier.push((i, site)),
                State::Exchange(site) | State::SimdBarrier(site) => in_simd.push((i, site)),
                _ => returned += 1,
            }
        }
        let counts = format!(
            "{} threads wait at a threadgroup barrier, {} in a SIMD-group function, {returned} have \
             returned",
            at_barrier.len(),
            in_simd.len()
        );
        let (kind, waiting) = if in_simd.is_empty() {
            (FaultKind::DivergentBarrier, at_barrier)
        } else {
            (FaultKind::DivergentSimd, in_simd)
        };
        if let Some(&(thread, site)) = waiting.first() {
            self.current = thread;
            self.fault(kind, site, || counts);
        }
    }
}
