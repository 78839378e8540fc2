use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{ScopedJoinHandle, scope, sleep};
use std::time::{Duration, Instant};

use mlx_primitives_kernels::pool::coming::{Ahead, BYTES, Coming, Read, STEP};
use mlx_primitives_kernels::pool::{Pool, Worth};

/// So much estimated work that the pool always shares the job among its threads.
const HEAVY: usize = 1 << 40;

/// A pool that uses all its threads on any machine.
fn team(threads: usize) -> &'static Pool {
    Pool::leak_on(threads, threads)
}

/// Joins the threads of a scope explicitly. ThreadSanitizer recognizes a join, but not the end of a
/// scope.
fn join(threads: Vec<ScopedJoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// A random number generator with the same sequence in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % end
    }
}

/// Checks that a job runs each item exactly once. The job calls `during` with the first item of
/// each range.
fn check(pool: &Pool, items: usize, work: usize, during: &(dyn Fn(usize) + Sync)) {
    let counts: Vec<_> = (0..items).map(|_| AtomicUsize::new(0)).collect();
    pool.for_each(items, work, &|range| {
        assert!(!range.is_empty(), "an empty range");
        during(range.start);
        counts[range].iter().for_each(|count| _ = count.fetch_add(1, Relaxed));
    });
    assert!(counts.iter().all(|count| count.load(Relaxed) == 1), "{items} items of {work}");
}

#[test]
fn every_item_runs_once() {
    for threads in [1, 2, 3, 5, 16, 64] {
        let pool = team(threads);
        for items in [0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 100, 1001] {
            // The work ranges from just enough for two threads to enough for all threads.
            for total in [25_000, 50_000, 100_000, 200_000, 400_000, 2_000_000, HEAVY] {
                for _ in 0..if threads > 8 { 3 } else { 20 } {
                    check(pool, items, total / items.max(1) + 1, &|_| ());
                }
            }
        }
    }
}

#[test]
fn shares_of_the_largest_jobs_do_not_overflow() {
    let pool = team(3);
    let sum = AtomicUsize::new(0);
    pool.for_each(usize::MAX, 1, &|range| {
        sum.fetch_add(range.len(), Relaxed);
    });
    assert_eq!(sum.load(Relaxed), usize::MAX);
}

#[test]
fn threads_beyond_the_cores_take_no_part() {
    let pool = Pool::leak_on(64, 2);
    assert_eq!(pool.threads(), 64);
    assert_eq!(pool.ranges(HEAVY), team(2).ranges(HEAVY));
    assert_eq!(Pool::leak_on(64, 1).ranges(HEAVY), 1);
    check(pool, 100, HEAVY / 1024, &|_| ());
}

#[test]
fn small_jobs_have_few_ranges() {
    let pool = team(16);
    assert_eq!(pool.ranges(0), 1);
    let counts: Vec<_> = (0..12).map(|log| pool.ranges(400_000 << log)).collect();
    assert!(counts.is_sorted() && counts[0] > 1, "{counts:?}");
    assert_eq!(counts.last(), Some(&pool.ranges(HEAVY)));
}

#[test]
fn several_callers_share_a_pool() {
    for threads in [2, 3, 16] {
        let pool = team(threads);
        scope(|scope| {
            let caller = |seed| {
                scope.spawn(move || {
                    let mut random = Random(seed);
                    for _ in 0..500 {
                        let items = random.below(200);
                        check(pool, items, 25_000 << random.below(22), &|_| ());
                    }
                })
            };
            join((0..4).map(caller).collect());
        });
    }
}

#[test]
fn a_guest_helps_until_done() {
    for threads in [2, 3] {
        let pool = team(threads);
        let (done, sum) = (AtomicUsize::new(0), AtomicUsize::new(0));
        scope(|scope| {
            let caller = scope.spawn(|| {
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
            join(vec![caller]);
        });
        assert_eq!(sum.load(Relaxed), 200_000);
        assert_eq!(pool.guests.load(Relaxed), 0);
    }
}

#[test]
fn a_guest_of_a_pool_without_helpers_waits_for_a_while() {
    let pool = team(1);
    let looks = AtomicUsize::new(0);
    let look = |last: usize| looks.fetch_add(1, Relaxed) == last;
    pool.lend(&|| look(usize::MAX)); // ends, although nothing is ever done
    assert!(looks.swap(0, Relaxed) > 0);
    pool.lend(&|| look(0));
    assert_eq!(looks.load(Relaxed), 1);
}

#[test]
fn guests_may_be_more_than_helpers() {
    let pool = team(2);
    let done = AtomicUsize::new(0);
    scope(|scope| {
        let guest = |_| {
            scope.spawn(|| {
                while done.load(Relaxed) == 0 {
                    pool.lend(&|| done.load(Relaxed) == 1);
                }
            })
        };
        let guests = (0..4).map(guest).collect();
        for items in 0..300 {
            check(pool, items, HEAVY / 1024, &|_| ());
        }
        done.store(1, Relaxed);
        join(guests);
    });
    assert_eq!(pool.guests.load(Relaxed), 0);
}

#[test]
fn parked_helpers_wake_and_nested_calls_run() {
    for threads in [2, 9] {
        let pool = team(threads);
        for _ in 0..20 {
            sleep(Duration::from_millis(1));
            let sum = AtomicUsize::new(0);
            pool.for_each(16, HEAVY, &|outer| {
                pool.for_each(outer.len(), HEAVY, &|inner| {
                    sum.fetch_add(inner.len(), Relaxed);
                });
            });
            assert_eq!(sum.load(Relaxed), 16);
        }
    }
}

/// Checks that all helper threads take part, including helpers that other helpers have to wake.
#[test]
fn every_helper_wakes() {
    let threads = 12;
    let pool = team(threads);
    for _ in 0..5 {
        sleep(Duration::from_millis(5));
        let (inside, start) = (AtomicUsize::new(0), Instant::now());
        pool.for_each(threads, HEAVY, &|range| {
            inside.fetch_add(range.len(), Relaxed);
            // A thread stays in its item until all items have begun, so each item needs another
            // thread.
            while inside.load(Relaxed) < threads && start.elapsed() < Duration::from_secs(60) {
                std::thread::yield_now();
            }
        });
        assert!(start.elapsed() < Duration::from_secs(60), "some helpers slept");
    }
}

#[test]
fn jobs_of_any_size_survive_sleepers() {
    for (seed, threads) in [2, 4, 16, 64].into_iter().enumerate() {
        let (pool, mut random) = (team(threads), Random(seed as u64));
        for _ in 0..300 {
            let (items, work) = (1 + random.below(300), 1 << random.below(24));
            // One range sleeps or is slow, so that its thread arrives late at the next job.
            let (slow, pause) = (random.below(items), random.below(100));
            check(pool, items, work, &|start| {
                if start == slow && pause < 5 {
                    sleep(Duration::from_micros(50 * pause as u64));
                } else if start % 16 == slow % 16 {
                    (0..10 * pause).for_each(|_| std::hint::spin_loop());
                }
            });
            if pause == 99 {
                sleep(Duration::from_micros(300));
            }
        }
    }
}

/// Runs `jobs` jobs of `work` in a simulation: a job takes `alone` nanoseconds on one thread, or
/// `shared` nanoseconds on several. Returns the number of shared jobs, of timed jobs, and of timed
/// jobs that were shared.
fn simulate(worth: &Worth, work: usize, jobs: usize, alone: u128, shared: u128) -> [usize; 3] {
    let mut counts = [0; 3];
    for _ in 0..jobs {
        let choice = worth.choose(work);
        counts[0] += usize::from(choice.shared);
        if choice.timed {
            counts[1] += 1;
            counts[2] += usize::from(choice.shared);
            worth.record(work, choice.shared, if choice.shared { shared } else { alone });
        }
    }
    counts
}

#[test]
fn short_jobs_run_as_they_were_faster() {
    let worth = Worth::new(1000);
    for work in [1000, 1999, 2000, 7999] {
        for (alone, shared) in [(100, 60), (100, 140), (100, 60), (5000, 5001)] {
            simulate(&worth, work, 2000, alone, shared);
            let [all, timed, timed_shared] = simulate(&worth, work, 1300, alone, shared);
            let untimed = all - timed_shared;
            assert_eq!(untimed, if shared < alone { 1200 } else { 0 }, "{work}: {alone}, {shared}");
            assert_eq!(timed, 100);
            assert!((25..=75).contains(&timed_shared), "{timed_shared} of 100 were shared");
        }
    }
}

#[test]
fn a_class_of_jobs_is_measured_for_itself() {
    let worth = Worth::new(1000);
    simulate(&worth, 1500, 2000, 100, 200);
    simulate(&worth, 3000, 2000, 200, 100);
    for (work, most_are_shared) in [(1500, false), (3000, true)] {
        let [all, ..] = simulate(&worth, work, 130, 100, if most_are_shared { 50 } else { 200 });
        assert_eq!(all > 65, most_are_shared, "{work}: {all} of 130 were shared");
    }
}

#[test]
fn long_jobs_are_shared_and_never_timed() {
    let worth = Worth::new(1000);
    for work in [8000, 8001, 1 << 40, usize::MAX] {
        assert_eq!(simulate(&worth, work, 100, 1, 1000), [100, 0, 0]);
    }
    assert_eq!(simulate(&worth, 999, 100, 1, 1000), [0; 3]);
    assert_eq!(simulate(&worth, 0, 100, 1, 1000), [0; 3]);
}

#[test]
fn one_slow_job_does_not_decide() {
    let worth = Worth::new(1000);
    simulate(&worth, 1000, 2000, 100, 60);
    // A measurement that the operating system interrupted.
    worth.record(1000, true, u128::from(u64::MAX));
    let [all, _, timed_shared] = simulate(&worth, 1000, 13, 100, 60);
    assert_eq!(all - timed_shared, 12);
}

#[test]
fn a_pool_times_its_short_jobs() {
    let spin = |micros| {
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_micros(micros) {}
    };
    // The microseconds of an unshared job, and of each range of a shared job.
    for (alone, range) in [(2, 40), (200, 1)] {
        let pool = team(2);
        // If a guest (a thread lent to the pool) helps, the pool does not check whether its own
        // helper is awake before it shares a job.
        pool.guests.store(1, Relaxed);
        let run = || {
            let ranges = AtomicUsize::new(0);
            pool.for_each(8, 4000, &|items| {
                ranges.fetch_add(1, Relaxed);
                spin(if items.len() == 8 { alone } else { range });
            });
            usize::from(ranges.into_inner() > 1)
        };
        (0..400).for_each(|_| _ = run());
        let shared: usize = (0..130).map(|_| run()).sum();
        assert_eq!(shared > 65, alone > range, "{shared} of 130 jobs were shared");
    }
}

#[test]
fn long_jobs_end_in_short_parts() {
    let largest = AtomicUsize::new(0);
    team(4).for_each(4 * 127, HEAVY, &|items| _ = largest.fetch_max(items.len(), Relaxed));
    // The largest range is a quarter of a thread's share, which is 127 items.
    assert!((1..=32).contains(&largest.into_inner()));
}

fn read(address: usize, bytes_of_item: usize, items: std::ops::Range<usize>) -> Read {
    Read { address, bytes_of_item, items }
}

#[test]
fn a_share_of_the_coming_job_is_read_from_its_first_item_on() {
    let coming = Coming::none();
    assert_eq!(coming.of_share(0).count(), 0);
    coming.set(64, 4, [read(1 << 20, 1024, 0..64)].into_iter());
    for share in 0..4 {
        let at = |i| (1 << 20) + share * 16384 + i * STEP;
        let want: Vec<_> = (0..16384 / STEP).map(at).collect();
        assert_eq!(coming.of_share(share).collect::<Vec<_>>(), want);
    }
    assert_eq!(coming.of_share(4).count(), 0, "no thread has this share");
    // The second thread's share begins in the first matrix and ends in the second.
    coming.set(8, 2, [read(4096, STEP, 0..5), read(65536, STEP, 5..8)].into_iter());
    let mut both: Vec<_> = coming.of_share(1).collect();
    both.sort_unstable();
    assert_eq!(both, [4096 + 4 * STEP, 65536, 65536 + STEP, 65536 + 2 * STEP]);
    // If items read both matrices, prefetches alternate between them.
    coming.set(8, 2, [read(4096, STEP, 0..8), read(65536, STEP, 0..8)].into_iter());
    let first: Vec<_> = coming.of_share(0).take(2).collect();
    assert_eq!(first, [65536, 4096]);
}

#[test]
fn little_of_a_coming_job_is_prefetched_whatever_it_is() {
    let coming = Coming::none();
    let most = usize::MAX;
    for values in [[1, 4096, 0, most], [most, most, 0, most], [most, 1, 7, 3], [0, 0, most, most]] {
        let [address, bytes, first, end] = values;
        for (items, threads) in [(1 << 20, 4), (most, most), (most, 2), (0, 1), (5, 0)] {
            let reads = [read(address, bytes, first..end), read(address, bytes, first..end)];
            coming.set(items, threads, reads.into_iter());
            for share in [0, 1, 3, most] {
                assert!(coming.of_share(share).count() <= BYTES / STEP);
            }
        }
    }
}

#[test]
fn a_description_is_prefetched_once() {
    let (described, coming) = (Coming::none(), Coming::none());
    described.set(8, 2, [read(4096, STEP, 0..8)].into_iter());
    let mut ahead = Ahead::after(coming.number());
    for _ in 0..2 {
        coming.copy(&described);
        assert_eq!([coming.of_caller().count(), coming.of_caller().count()], [4, 0]);
        coming.update(1, &mut ahead);
        assert_eq!(ahead.by_ref().take(2).count(), 2);
        // The pool has run and finished another job.
        coming.update(1, &mut ahead);
        assert_eq!(ahead.by_ref().collect::<Vec<_>>(), [4096 + 6 * STEP, 4096 + 7 * STEP]);
        coming.update(1, &mut ahead);
        assert_eq!(ahead.next(), None);
    }
}
