//! Threads start and end, each with its arrays and streams.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use mlx_primitives::device::{
    Device, Stream, clear_streams, synchronize, with_device, with_stream,
};
use mlx_primitives::{Array, async_eval, eval, transforms};

use crate::support::compare::assert_same;
use crate::support::input::random32;
use crate::support::{Checked, OPS, message};

const THREADS: u64 = 8;

/// Builds, evaluates and drops arrays for a while; the results depend only on the seed.
fn work(seed: u64, rounds: u64) -> mlx_primitives::Result<Vec<f32>> {
    let mut results = Vec::new();
    for round in 0..rounds {
        let x = random32(&[4, 16, 64], seed + round)?;
        for (_, op, _) in OPS {
            let y = op(&op(&x)?)?;
            let g = transforms::vjp(|p| Ok(vec![op(&p[0])?]), &[&x], &[&y])?.1;
            async_eval([&y, &g[0]])?;
            results.push(y.sum(..)?.item::<f32>()?);
            results.push(g[0].abs()?.max(..)?.item::<f32>()?);
        }
    }
    clear_streams()?;
    Ok(results)
}

#[test(simulated = once)]
fn many_at_once_while_some_panic() -> Checked {
    let alone: Vec<Vec<f32>> = (0..THREADS)
        .map(|seed| thread::spawn(move || work(seed, 20)).join().expect("no panic"))
        .collect::<Result<_, _>>()?;
    let start = &Barrier::new(2 * THREADS as usize);
    let together = thread::scope(|scope| {
        let panicking: Vec<_> = (0..THREADS)
            .map(|seed| {
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..10 {
                        let panicked = catch_unwind(AssertUnwindSafe(|| {
                            let x = random32(&[4, 16, 64], seed).expect("x");
                            let _y = OPS[seed as usize % 3].1(&x).expect("y");
                            panic!("on purpose");
                        }));
                        assert!(panicked.is_err());
                    }
                    panic!("on purpose, the thread too");
                })
            })
            .collect();
        let working: Vec<_> = (0..THREADS)
            .map(|seed| {
                scope.spawn(move || {
                    start.wait();
                    work(seed, 20)
                })
            })
            .collect();
        for thread in panicking {
            assert!(thread.join().is_err());
        }
        working.into_iter().map(|t| t.join().expect("no panic")).collect::<Result<Vec<_>, _>>()
    })?;
    assert_eq!(together, alone);
    Ok(())
}

#[test(simulated = once)]
fn hundreds_one_after_the_other() -> Checked {
    for seed in 0..200 {
        let sums = thread::spawn(move || work(seed % 3, 1)).join().expect("no panic")?;
        assert_eq!(sums.len(), 2 * OPS.len());
    }
    Ok(())
}

/// The number of operating system threads in this process.
#[cfg(target_os = "linux")]
fn system_threads() -> Result<usize, std::io::Error> {
    Ok(std::fs::read_dir("/proc/self/task")?.count())
}

/// Starts many short threads. `endings` runs this in a child process, where no other test starts
/// threads.
#[cfg(target_os = "linux")]
pub fn short_threads() -> Checked {
    let run = |count: u64| -> Checked {
        for seed in 0..count {
            let one = thread::spawn(move || work(seed % 3, 1)).join().expect("no panic")?;
            assert_eq!(one.len(), 2 * OPS.len());
        }
        Ok(())
    };
    run(20)?;
    let (before, memory) = (system_threads()?, crate::support::memory::resident());
    run(1000)?;
    let (after, grown) =
        (system_threads()?, crate::support::memory::resident().saturating_sub(memory));
    println!(
        "1000 short threads: {before} threads of the system, then {after}; {grown} bytes more"
    );
    assert!(after <= before + 4, "{before} threads of the system became {after}");
    assert!(grown < 4 << 20, "resident memory grew by {grown} bytes");
    Ok(())
}

#[test(simulated = once)]
fn arrays_move_to_other_threads() -> Checked {
    let x = random32(&[4, 6], 7)?;
    let want = x.add(1.0)?.to_vec::<f32>()?;
    // Send an array with a single handle, an array with a second handle, and a transposed view.
    let (alone, shared) = (x.add(1.0)?, x.add(1.0)?);
    let address = alone.address()?;
    let (kept, view) = (shared.clone(), x.add(1.0)?.transpose([1, 0])?);
    let sent = [alone.into_send()?, shared.into_send()?, view.into_send()?];
    let moved = thread::spawn(move || -> mlx_primitives::Result<_> {
        let [alone, shared, view] = sent.map(mlx_primitives::SendArray::into_array);
        let address = alone.address()?;
        let sum = alone.add(&shared)?.subtract(&view.transpose([1, 0])?)?;
        Ok((address, sum.to_vec::<f32>()?, shared.address()?))
    });
    let (moved_address, sum, shared_address) = moved.join().expect("no panic")?;
    assert_eq!(moved_address, address, "nothing is copied of an array that is alone");
    assert_ne!(shared_address, kept.address()?, "memory that two arrays use is copied");
    let close = sum.iter().zip(&want).all(|(a, b)| (a - b).abs() <= 1e-5);
    assert!(close && kept.to_vec::<f32>()? == want, "{sum:?}");
    let empty = Array::zeros::<f32>(&[0, 3])?.into_send()?.into_array();
    assert_eq!((empty.shape(), empty.to_vec::<f32>()?.len()), (&[0, 3][..], 0));
    Ok(())
}

#[test(simulated = once)]
fn compiled_functions_on_threads() -> Checked {
    let run = || -> mlx_primitives::Result<Vec<f32>> {
        let f = transforms::compile(|p| Ok(vec![OPS[0].1(&p[0])?]), true)?;
        let mut last = Vec::new();
        for rows in 1..20 {
            last = f.call(&[&random32(&[rows, 3, 8], 1)?])?[0].to_vec::<f32>()?;
        }
        Ok(last)
    };
    let want = run()?;
    let threads: Vec<_> = (0..THREADS).map(|_| thread::spawn(run)).collect();
    for thread in threads {
        assert_eq!(thread.join().expect("no panic")?, want);
    }
    Ok(())
}

#[test(simulated = once)]
fn arrays_that_outlive_their_threads_streams() -> Checked {
    let outlive = |seed: u64, busy: Sender<()>, hold: Receiver<()>| -> Checked {
        // An evaluated array needs no stream, so it stays readable after the thread's streams have
        // ended.
        let y = OPS[1].1(&random32(&[2, 3, 8], seed)?)?;
        y.eval()?;
        drop(busy);
        let _ = hold.recv();
        clear_streams()?;
        assert_eq!(y.to_vec::<f32>()?.len(), 48);
        // `clear_streams` ends the streams that this thread created. The thread gets a default
        // stream again.
        let stream = Stream::new(Device::Cpu)?;
        let lost = with_stream(&stream, || OPS[1].1(&y))?;
        clear_streams()?;
        assert!(message(lost.eval()).contains("tream"));
        assert_eq!(OPS[1].1(&y)?.to_vec::<f32>()?.len(), 48);
        Ok(())
    };
    // This crate lends default streams to threads, and more threads run at once than it has streams
    // to lend. Each thread signals by dropping its end of a channel, which also happens if it
    // fails.
    thread::scope(|scope| {
        let (busy, ready) = channel();
        let start = |seed| {
            let (release, hold) = channel();
            let busy = busy.clone();
            (scope.spawn(move || outlive(seed, busy, hold)), release)
        };
        let (threads, releases): (Vec<_>, Vec<_>) = (0..20).map(start).unzip();
        drop(busy);
        let _ = ready.recv();
        drop(releases);
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

#[test(simulated = once)]
fn streams_of_one_thread_depend_on_each_other() -> Checked {
    let (a, b) = (Stream::new(Device::Cpu)?, Stream::new(Device::Cpu)?);
    assert_ne!(a, b);
    for seed in 0..20 {
        for (name, op, _) in OPS {
            let x = random32(&[8, 64, 64], seed)?;
            let first = with_stream(&a, || op(&x))?;
            let second = with_stream(&b, || op(&first))?;
            let third = with_stream(&a, || op(&second))?;
            async_eval([&third])?;
            a.synchronize()?;
            b.synchronize()?;
            let want = with_device(Device::Cpu, || op(&op(&op(&x)?)?))?;
            assert_same(&third, &want, name)?;
        }
    }
    synchronize()?;
    Ok(())
}

#[test(simulated = once)]
fn the_place_is_restored_and_per_thread() -> Checked {
    let stream = Stream::new(Device::Cpu)?;
    let x = random32(&[2, 3, 8], 3)?;
    let panicked = catch_unwind(AssertUnwindSafe(|| with_stream(&stream, || panic!("inside"))));
    assert!(panicked.is_err());
    with_stream(&stream, || {
        with_device(Device::Cpu, || OPS[0].1(&x)?.eval())?;
        thread::spawn(|| work(4, 1)).join().expect("no panic")?;
        OPS[0].1(&x)?.eval()
    })?;
    eval([&OPS[0].1(&x)?])?;
    Ok(())
}

#[test(simulated = once)]
fn a_missing_gpu_is_an_error() -> Checked {
    assert!(Device::Cpu.is_available()?);
    if Device::Gpu.is_available()? {
        // A GPU is the default device, so the other tests run on it.
        assert_eq!(mlx_primitives::device::default_device()?, Device::Gpu);
        return Ok(());
    }
    assert_eq!(mlx_primitives::device::default_device()?, Device::Cpu);
    message(Stream::new(Device::Gpu));
    let x = random32(&[2, 3, 8], 5)?;
    for (_, ours, theirs) in OPS {
        message(with_device(Device::Gpu, || ours(&x)));
        message(with_device(Device::Gpu, || theirs(&x)));
    }
    message(with_device(Device::Gpu, || x.add(1.0)));
    message(with_device(Device::Gpu, || Array::zeros::<f32>(&[2])?.eval()));
    message(with_device(Device::Gpu, synchronize));
    // The CPU still works.
    OPS[0].1(&x)?.eval()?;
    Ok(())
}
