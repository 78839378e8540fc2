//! Memory that stays resident for a GPU: with a stand-in for MLX's limit, since no other system
//! than macOS has one.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use mlx_primitives::memory::{Ledger, Limits, recommended_working_set, wire};
use mlx_primitives::{Error, Result};

use crate::support::Checked;

const GB: usize = 1 << 30;

/// A GPU whose limit is `now`, and which refuses more than `most`.
struct Gpu {
    recommended: Option<usize>,
    most: usize,
    now: Mutex<usize>,
}

impl Gpu {
    fn ledger(
        recommended: Option<usize>,
        most: usize,
        now: usize,
    ) -> (Ledger<&'static Self>, &'static Self) {
        let gpu: &'static Self =
            Box::leak(Box::new(Self { recommended, most, now: Mutex::new(now) }));
        (Ledger::new(gpu), gpu)
    }

    fn now(&self) -> usize {
        *self.now.lock().expect("no test panics with the lock")
    }
}

impl Limits for &Gpu {
    fn recommended(&self) -> Result<Option<usize>> {
        Ok(self.recommended)
    }

    fn set(&self, bytes: usize) -> Result<usize> {
        if bytes > self.most {
            return Err(Error::argument("set", format_args!("at most {} bytes", self.most)));
        }
        Ok(std::mem::replace(&mut *self.now.lock().expect("no test panics with the lock"), bytes))
    }
}

#[test(simulated = once)]
fn users_add_up_to_what_is_recommended_and_give_it_back() -> Checked {
    let (ledger, gpu) = Gpu::ledger(Some(10 * GB), 10 * GB, 0);
    let weights = ledger.wire(4 * GB)?;
    assert_eq!((gpu.now(), weights.limit()), (4 * GB, 4 * GB));
    let cache = ledger.wire(GB)?;
    assert_eq!(gpu.now(), 5 * GB);
    let more = ledger.wire(usize::MAX)?;
    assert_eq!((gpu.now(), more.limit()), (10 * GB, 10 * GB));
    // In any order.
    drop(weights);
    assert_eq!(gpu.now(), 10 * GB);
    drop(more);
    assert_eq!(gpu.now(), GB);
    drop(cache);
    assert_eq!(gpu.now(), 0);
    let again = ledger.wire(2 * GB)?;
    assert_eq!(gpu.now(), 2 * GB);
    drop(again);
    assert_eq!(gpu.now(), 0);
    Ok(())
}

#[test(simulated = once)]
fn the_limit_of_the_program_is_kept_and_restored() -> Checked {
    let (ledger, gpu) = Gpu::ledger(Some(10 * GB), 12 * GB, 3 * GB);
    let weights = ledger.wire(4 * GB)?;
    assert_eq!(gpu.now(), 7 * GB);
    drop(weights);
    assert_eq!(gpu.now(), 3 * GB);
    // A program may ask for more than is recommended; nothing takes that away.
    let (ledger, gpu) = Gpu::ledger(Some(10 * GB), 12 * GB, 11 * GB);
    let weights = ledger.wire(4 * GB)?;
    assert_eq!(gpu.now(), 11 * GB);
    drop(weights);
    assert_eq!(gpu.now(), 11 * GB);
    Ok(())
}

#[test(simulated = once)]
fn errors_and_panics_give_it_back() -> Checked {
    let (ledger, gpu) = Gpu::ledger(Some(10 * GB), 10 * GB, GB);
    let fails = || -> Result<()> {
        let _weights = ledger.wire(4 * GB)?;
        assert_eq!(gpu.now(), 5 * GB);
        Err(Error::argument("text", format_args!("a shorter prompt")))
    };
    assert!(fails().is_err());
    assert_eq!(gpu.now(), GB);
    let panics = || {
        let _weights = ledger.wire(4 * GB);
        std::panic::resume_unwind(Box::new("a planted panic"));
    };
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    assert_eq!(gpu.now(), GB);
    Ok(())
}

#[test(simulated = once)]
fn what_the_system_refuses_changes_nothing() -> Checked {
    let (ledger, gpu) = Gpu::ledger(Some(10 * GB), 5 * GB, GB);
    assert!(ledger.wire(6 * GB).is_err());
    assert_eq!(gpu.now(), GB);
    let weights = ledger.wire(3 * GB)?;
    assert!(ledger.wire(3 * GB).is_err());
    assert_eq!(gpu.now(), 4 * GB);
    drop(weights);
    assert_eq!(gpu.now(), GB);
    Ok(())
}

#[test(simulated = once)]
fn without_such_a_gpu_nothing_is_set() -> Checked {
    let (ledger, gpu) = Gpu::ledger(None, 0, 7);
    let weights = ledger.wire(4 * GB)?;
    assert_eq!((gpu.now(), weights.limit()), (7, 0));
    drop(weights);
    assert_eq!(gpu.now(), 7);
    Ok(())
}

/// The real limit: at most what is recommended, on whatever this machine has.
#[test(simulated = once)]
fn mlxs_limit_is_within_what_the_gpu_recommends() -> Checked {
    let recommended = recommended_working_set()?;
    let wired = wire(1 << 20)?;
    match recommended {
        None => assert_eq!(wired.limit(), 0),
        Some(most) => assert!((1 << 20..=most).contains(&wired.limit())),
    }
    Ok(())
}
