//! One fiber for each thread of a threadgroup, resumed in the order of the schedule.

use std::collections::VecDeque;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use corosensei::stack::{DefaultStack, Stack};
use corosensei::{Coroutine, CoroutineResult, Yielder};

use super::abi;
use super::machine::Machine;
use super::shadow::Loads;
use crate::dispatch::Schedule;
use crate::module::Call;

/// Bytes of a fiber's stack: a thread's private memory on a GPU is far smaller.
const STACK_BYTES: usize = 256 << 10;

/// Of the process: of each thread, those of threads at rest would add up to all the mappings that
/// Linux allows.
static STACKS: Mutex<Vec<DefaultStack>> = Mutex::new(Vec::new());

fn stacks() -> MutexGuard<'static, Vec<DefaultStack>> {
    STACKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of a thread; a waiting thread knows the place where it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    Barrier(usize),
    SimdBarrier(usize),
    Exchange(usize),
    Done,
}

impl State {
    pub(super) fn at_simd(self) -> bool {
        matches!(self, State::SimdBarrier(_) | State::Exchange(_))
    }
}

pub(super) struct Thread {
    pub(super) state: State,
    pub(super) stack: std::ops::Range<usize>,
    pub(super) loads: Loads,
    fiber: Option<Coroutine<(), (), (), DefaultStack>>,
    yielder: *const Yielder<(), ()>,
}

impl Thread {
    /// A thread that will call the kernel. `arguments` must outlive it.
    pub(super) fn new(
        machine: *mut Machine,
        index: usize,
        call: Call,
        arguments: *const abi::Arguments,
    ) -> io::Result<Self> {
        let kept = stacks().pop();
        let stack = match kept {
            Some(stack) => stack,
            None => DefaultStack::new(STACK_BYTES)?,
        };
        let range = stack.limit().get()..stack.base().get();
        let fiber = Coroutine::with_stack(stack, move |yielder, ()| {
            // SAFETY: the machine outlives its threads, and nothing else borrows it now.
            unsafe { (&mut (*machine).threads)[index].yielder = yielder };
            // SAFETY: arguments match the kernel's parameters, as the registry lists them.
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

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(mut fiber) = self.fiber.take() {
            if !fiber.done() {
                // SAFETY: kernels own nothing that would have to be dropped.
                unsafe { fiber.force_reset() };
            }
            stacks().push(fiber.into_stack());
        }
    }
}

/// The threads that can continue.
pub(super) struct Ready {
    queue: VecDeque<usize>,
    schedule: Schedule,
    random: u64,
}

impl Ready {
    pub(super) fn new(schedule: Schedule) -> Self {
        let seed = if let Schedule::Shuffled(seed) = schedule { seed } else { 0 };
        Ready { queue: VecDeque::new(), schedule, random: seed }
    }

    /// splitmix64
    fn below(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.random;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ bits >> 31) % bound as u64) as usize
    }

    fn push(&mut self, thread: usize) {
        self.queue.push_back(thread);
    }

    fn pop(&mut self) -> Option<usize> {
        match self.schedule {
            Schedule::Forward => self.queue.pop_front(),
            Schedule::Reversed => self.queue.pop_back(),
            Schedule::Shuffled(_) if self.queue.is_empty() => None,
            Schedule::Shuffled(_) => {
                let pick = self.below(self.queue.len());
                self.queue.swap_remove_back(pick)
            }
        }
    }

    /// The numbers below `count` in the schedule's order.
    pub(super) fn order(&mut self, count: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count).collect();
        match self.schedule {
            Schedule::Forward => {}
            Schedule::Reversed => order.reverse(),
            Schedule::Shuffled(_) => {
                for i in (1..order.len()).rev() {
                    let other = self.below(i + 1);
                    order.swap(i, other);
                }
            }
        }
        order
    }
}

impl Machine {
    pub(super) fn wake(&mut self, thread: usize) {
        self.threads[thread].state = State::Ready;
        self.ready.push(thread);
    }

    /// Leaves the current fiber until it is resumed.
    ///
    /// # Safety
    /// Must be called on a fiber of `machine`, with no reference to it alive.
    pub(super) unsafe fn suspend(machine: *mut Machine) {
        // SAFETY: the yielder was set when the fiber started, and lives as long as it.
        unsafe {
            let threads = &(*machine).threads;
            let yielder = threads[(*machine).current].yielder;
            (*yielder).suspend(());
        }
    }

    /// Runs the threads of a group until they have returned or cannot continue.
    ///
    /// # Safety
    /// `machine` must be valid, with threads made for it, and no reference to it alive.
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
                let thread = &mut (&mut (*machine).threads)[next];
                thread.fiber = Some(fiber);
                if let CoroutineResult::Return(()) = result {
                    thread.state = State::Done;
                    (*machine).leave();
                }
            }
        }
    }
}
