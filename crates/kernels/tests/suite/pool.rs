use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use mlx_primitives_kernels::pool::Pool;

/// Enough work for any job to be shared.
const HEAVY: usize = 1 << 40;

#[test]
fn every_item_runs_once() {
    for threads in [1, 2, 5] {
        let pool = Pool::leak(threads);
        for items in [0, 1, 2, 3, 7, 8, 9, 100, 1001] {
            for _ in 0..50 {
                let counts: Vec<_> = (0..items).map(|_| AtomicUsize::new(0)).collect();
                pool.for_each(items, HEAVY / 1024, &|range| {
                    counts[range].iter().for_each(|count| _ = count.fetch_add(1, Relaxed));
                });
                assert!(counts.iter().all(|count| count.load(Relaxed) == 1));
            }
        }
    }
}

#[test]
fn several_callers_share_a_pool() {
    let pool = Pool::leak(3);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    let sum = AtomicUsize::new(0);
                    pool.for_each(100, HEAVY / 1024, &|range| {
                        sum.fetch_add(range.sum::<usize>(), Relaxed);
                    });
                    assert_eq!(sum.load(Relaxed), 4950);
                }
            });
        }
    });
}

#[test]
fn a_guest_helps_until_done() {
    let pool = Pool::leak(2);
    let (done, sum) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2000 {
                pool.for_each(100, HEAVY, &|range| {
                    sum.fetch_add(range.len(), Relaxed);
                });
            }
            done.store(1, Relaxed);
        });
        while done.load(Relaxed) == 0 {
            pool.lend(&|| done.load(Relaxed) == 1);
        }
    });
    assert_eq!(sum.load(Relaxed), 200_000);
    assert_eq!(pool.guests.load(Relaxed), 0);
}

#[test]
fn parked_helpers_wake_and_nested_calls_run() {
    let pool = Pool::leak(2);
    for _ in 0..20 {
        std::thread::sleep(std::time::Duration::from_millis(1));
        let sum = AtomicUsize::new(0);
        pool.for_each(16, HEAVY, &|outer| {
            pool.for_each(outer.len(), HEAVY, &|inner| {
                sum.fetch_add(inner.len(), Relaxed);
            });
        });
        assert_eq!(sum.load(Relaxed), 16);
    }
}
