//! A program may end in any way while work is running. It must then end at once, with the right
//! status, and without a double free. Each case is a child process: this test binary, with an
//! environment variable that names its role, which is the case.

use std::thread;
use std::time::Duration;

use harness::roles::{Player, ends, rounds};
use mlx_primitives::custom::{CustomPrimitive, View, ViewMut, apply_one};
use mlx_primitives::device::{Device, Stream, with_stream};
use mlx_primitives::{Array, Result, async_eval, eval};

use crate::support::custom::Computed;
use crate::support::{Checked, on_cpu};

/// A primitive whose CPU kernel calls `exit`, or never returns.
fn odd(exits: bool) -> impl CustomPrimitive {
    Computed("odd", move |_: &[View<'_>], _: &mut [ViewMut<'_>]| {
        if exits {
            std::process::exit(5);
        }
        loop {
            thread::sleep(Duration::from_secs(1));
        }
    })
}

/// Builds a graph that takes a while to evaluate. Before that, evaluates and drops arrays of many
/// sizes, so that MLX's cache holds buffers of many sizes.
fn long_graph(ops: usize) -> Result<Array> {
    let x = Array::ones::<f32>(&[64, 64])?;
    for _ in 0..20 {
        let many = (1..100).map(|i| x.i(0..1 + i % 64)?.multiply(0.01 * i as f32)?.exp());
        eval(&many.collect::<Result<Vec<_>>>()?)?;
    }
    let mut y = x.clone();
    for _ in 0..ops {
        y = y.multiply(1.01)?.add(&y.sum(0)?)?.tanh()?;
    }
    Ok(y)
}

/// Runs a role in the child process. `main` then returns this status.
pub fn play(role: &str) -> Checked<u8> {
    match role {
        "return" => async_eval([&long_graph(400)?])?,
        "exit" => {
            async_eval([&long_graph(400)?])?;
            std::process::exit(7);
        }
        "panic" => {
            async_eval([&long_graph(400)?])?;
            panic!("on purpose");
        }
        "streams" => {
            let (a, b) = (Stream::new(Device::Cpu)?, Stream::new(Device::Cpu)?);
            let x = long_graph(200)?;
            let y = with_stream(&a, || x.multiply(2.0))?;
            async_eval([&with_stream(&b, || y.add(&x))?, &y])?;
        }
        "busy thread" => {
            let (started, wait) = std::sync::mpsc::channel();
            thread::spawn(move || -> Checked {
                loop {
                    long_graph(50)?.eval()?;
                    let _ = started.send(());
                }
            });
            wait.recv()?;
            thread::sleep(Duration::from_micros(u64::from(std::process::id()) % 20_000));
        }
        "thread that ends first" => {
            let thread = thread::spawn(|| async_eval([&long_graph(400)?]));
            thread.join().expect("no panic")?;
        }
        "exit in a kernel" => {
            let x = Array::ones::<f32>(&[16])?;
            on_cpu(|| Ok(apply_one(odd(true), &[&x])?.eval()?))?;
        }
        "endless kernel" => {
            let x = Array::ones::<f32>(&[16])?;
            on_cpu(|| Ok(async_eval([&apply_one(odd(false), &[&x])?])?))?;
        }
        "signal" => loop {
            async_eval([&long_graph(50)?])?;
        },
        #[cfg(target_os = "linux")]
        "short threads" => crate::threads::short_threads()?,
        "failures" => crate::failures::on_the_main_thread()?,
        other => match other.split_once(' ') {
            #[cfg(unix)]
            Some(("late", role)) => crate::late::play(role)?,
            _ => anyhow::bail!("there is no role {other}"),
        },
    }
    Ok(0)
}

#[test(simulated = never)]
fn return_from_main() -> Checked {
    ends("return", 0, rounds(5))
}

#[test(simulated = never)]
fn process_exit() -> Checked {
    ends("exit", 7, rounds(5))
}

#[test(simulated = never)]
fn panic_in_main() -> Checked {
    ends("panic", 101, rounds(5))
}

#[test(simulated = never)]
fn work_on_several_streams() -> Checked {
    ends("streams", 0, rounds(5))
}

#[test(simulated = never)]
fn another_thread_evaluates() -> Checked {
    ends("busy thread", 0, rounds(5))
}

#[test(simulated = never)]
fn the_thread_that_evaluates_ends_first() -> Checked {
    ends("thread that ends first", 0, rounds(5))
}

#[test(simulated = never)]
fn exit_in_a_kernel() -> Checked {
    ends("exit in a kernel", 5, rounds(5))
}

#[test(simulated = never)]
fn a_kernel_that_never_ends() -> Checked {
    ends("endless kernel", 0, rounds(3))
}

#[test(simulated = never)]
#[cfg(target_os = "linux")]
fn short_threads_leave_nothing() -> Checked {
    ends("short threads", 0, 1)
}

/// A signal without a handler ends the process.
#[test(simulated = never)]
#[cfg(unix)]
fn signals() -> Checked {
    use std::os::unix::process::ExitStatusExt;

    for round in 0..rounds(5) {
        for signal in [libc::SIGINT, libc::SIGTERM] {
            let player = Player::start("signal")?;
            thread::sleep(Duration::from_millis(u64::from(round) * 37 % 400));
            player.signal(signal)?;
            let (ended, said) = player.finish()?;
            assert_eq!(ended.signal(), Some(signal), "round {round}: {ended}, {said}");
        }
    }
    Ok(())
}
