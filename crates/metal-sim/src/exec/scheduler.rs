//! The threads of a threadgroup. Each thread is a fiber, and the scheduler keeps the order in which
//! they run and the places where they wait.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, Yielder};

use super::shadow::Loads;

/// The number of lanes of a SIMD group on every Apple GPU.
pub(super) const SIMD_WIDTH: usize = 32;
/// The maximum size in bytes of a value that lanes exchange.
pub(super) const SLOT_BYTES: usize = 32;

/// The stacks that no fiber uses, shared by the whole process. If each host thread had its own
/// list, the stacks of idle host threads would use up all the mappings that Linux allows a process.
static STACKS: Mutex<Vec<DefaultStack>> = Mutex::new(Vec::new());

pub(super) fn stacks() -> MutexGuard<'static, Vec<DefaultStack>> {
    STACKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of a thread. A waiting state holds the return address of the call that waits.
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
    pub(super) fiber: Option<Coroutine<(), (), (), DefaultStack>>,
    pub(super) yielder: *const Yielder<(), ()>,
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(mut fiber) = self.fiber.take() {
            if !fiber.done() {
                // SAFETY: no value on a kernel's stack has to be dropped.
                unsafe { fiber.force_reset() };
            }
            stacks().push(fiber.into_stack());
        }
    }
}

/// The order in which the threads of a threadgroup run, and in which the threadgroups run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// From the first to the last.
    #[default]
    Forward,
    /// From the last to the first.
    Reversed,
    /// A random order, the same for the same seed.
    Shuffled(u64),
}

impl Schedule {
    /// One schedule of each kind. A kernel should give correct results with all of them.
    pub const ALL: [Self; 3] = [Self::Forward, Self::Reversed, Self::Shuffled(1)];
}

/// The threads that can continue.
pub(super) struct Ready {
    pub(super) queue: VecDeque<usize>,
    schedule: Schedule,
    random: u64,
}

impl Ready {
    pub(super) fn new(schedule: Schedule) -> Self {
        let seed = if let Schedule::Shuffled(seed) = schedule { seed } else { 0 };
        Ready { queue: VecDeque::new(), schedule, random: seed }
    }

    /// Returns a random number below `bound`, from the generator splitmix64.
    fn below(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.random;
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ bits >> 31) % bound as u64) as usize
    }

    pub(super) fn push(&mut self, thread: usize) {
        self.queue.push_back(thread);
    }

    pub(super) fn pop(&mut self) -> Option<usize> {
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

    /// Returns the numbers below `count`, in the order of the schedule.
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

/// The state of a threadgroup barrier that some threads of the group have reached.
#[derive(Default)]
pub(super) struct Barrier {
    pub(super) arrived: usize,
    pub(super) flags: u32,
    pub(super) site: usize,
}

/// The number of exchange buffers of a SIMD group, which are used in rotation: a lane may publish
/// its next value before all other lanes have read its last one. A matrix product uses two at a
/// time.
pub(super) const ROUNDS: usize = 4;

/// One exchange buffer: the values that the lanes published, and the mask of these lanes.
#[derive(Clone)]
pub(super) struct Round {
    pub(super) slots: [u8; SIMD_WIDTH * SLOT_BYTES],
    pub(super) mask: u32,
}

/// A SIMD group.
#[derive(Clone)]
pub(super) struct Simd {
    /// The number of SIMD-group barriers passed, for device memory and for threadgroup memory.
    pub(super) epochs: [u32; 2],
    pub(super) live: u32,
    pub(super) lanes: u32,
    pub(super) arrived: u32,
    pub(super) round: usize,
    pub(super) rounds: [Round; ROUNDS],
    pub(super) site: usize,
    pub(super) flags: u32,
    pub(super) bytes: usize,
}

impl Simd {
    pub(super) fn new(live: u32) -> Self {
        let round = Round { slots: [0; SIMD_WIDTH * SLOT_BYTES], mask: 0 };
        Simd {
            epochs: [0; 2],
            live,
            lanes: live,
            arrived: 0,
            round: 0,
            rounds: std::array::from_fn(|_| round.clone()),
            site: 0,
            flags: 0,
            bytes: 0,
        }
    }
}
