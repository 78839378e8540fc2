//! Checks that memory use does not grow over many rounds of work.
//!
//! MLX counts memory per process, so each measurement runs in a child process: this test binary,
//! with the name of one test and an environment variable.

use std::time::Duration;
use std::{env, fs, thread};

use mlx_primitives::device::{default_device, synchronize};
use mlx_primitives::memory;

use super::compare::is_nvidia;
use super::{Checked, fewer_if_simulated, in_another_process};

const CHILD: &str = "MLX_PRIMITIVES_TEST_MEMORY";
/// Resident memory may grow by this much because of fragmentation and the allocator's buffers. A
/// leaked array is found even if it is smaller, because MLX's active memory must not grow at all.
const SLACK: usize = 4 << 20;

/// The resident bytes of this process, or 0 if the system does not report them.
pub fn resident() -> usize {
    let pages = fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|statm| statm.split_whitespace().nth(1)?.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

/// In the parent process, runs the test `memory::<test>` in a child process and returns false. In
/// the child, returns true, and the caller measures.
pub fn measures_here(test: &str) -> anyhow::Result<bool> {
    if env::var_os(CHILD).is_some() {
        return Ok(true);
    }
    let said = in_another_process(&format!("memory::{test}"), |child| child.env(CHILD, "1"))?;
    println!("{}", said.lines().find(|line| line.contains(" bytes")).unwrap_or_default());
    Ok(false)
}

/// The bytes of arrays in use. On an NVIDIA GPU, a thread of MLX frees memory soon after a result
/// is ready, so the function waits and takes the minimum.
fn held() -> mlx_primitives::Result<usize> {
    synchronize()?;
    memory::clear_cache()?;
    let mut least = memory::active_memory();
    if is_nvidia(default_device()?) {
        for _ in 0..50 {
            thread::sleep(Duration::from_millis(10));
            least = least.min(memory::active_memory());
        }
    }
    Ok(least)
}

/// Runs `round` many times in a child process, and checks that memory does not grow. Before that,
/// it runs a tenth as many rounds to warm up.
pub fn stays_flat(test: &str, rounds: u64, round: impl Fn(u64) -> anyhow::Result<()>) -> Checked {
    let rounds = fewer_if_simulated(test, rounds, 50);
    if !measures_here(test)? {
        return Ok(());
    }
    let round = |i: u64| {
        // The simulator records the dispatches of a thread until the record is read. Discard the
        // record.
        #[cfg(target_os = "linux")]
        drop(mlx_primitives::dispatched());
        round(i)
    };
    for i in 0..(rounds / 10).max(2) {
        round(i)?;
    }
    let active = held()?;
    // On a busy machine, the allocator's arenas and the threads' stacks may grow once. A leak grows
    // in each of the three tries.
    let mut grown = usize::MAX;
    for _ in 0..3 {
        let before = resident();
        for i in 0..rounds {
            round(i)?;
        }
        let now = held()?;
        grown = grown.min(resident().saturating_sub(before));
        println!("\n{rounds} rounds: {active} bytes active, then {now}; resident {grown} more");
        assert_eq!(now, active, "active memory");
        if grown < SLACK {
            return Ok(());
        }
    }
    panic!("resident memory grew by {grown} bytes or more each time");
}
