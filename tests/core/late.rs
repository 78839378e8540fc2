//! Some ops are called too late: while a thread or the process ends, or in the child of a fork.
//! They return errors that say so, and read nothing that MLX has destroyed. Each case is a child
//! process: this test binary, with an environment variable that names its role, which is the case.
//! `scripts/sanitize.sh` runs the roles under valgrind.

use std::cell::RefCell;
use std::sync::Mutex;
use std::thread;

use mlx_primitives::custom::apply_one;
use mlx_primitives::device::{self, Device, Stream, with_stream};
use mlx_primitives::transforms::{self, checkpoint, compile, grad, jvp, vjp, vmap};
use mlx_primitives::{Array, Dtype, Result, SendArray, async_eval, graph, io, memory, ops, random};

use crate::support::Checked;
use crate::support::custom::{Computed, same};
use crate::table::ops::OPS;
use harness::roles::{ended, rounds};

/// The arguments of the calls in `call`. They are created while ops still work.
struct Made {
    x: Array,
    lazy: Array,
    waiting: Array,
    compiled: transforms::Compiled,
    stream: Stream,
    inputs: Vec<(&'static str, Vec<Array>)>,
}

impl Made {
    fn new() -> Checked<Self> {
        let x = Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], (2, 2))?;
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("x.safetensors");
        io::save_safetensors(&file, [("x", &x)], [])?;
        let waiting = io::load_safetensors(&file)?.arrays["x"].clone();
        let compiled = compile(|x| Ok(vec![x[0].add(1.0)?]), false)?;
        let inputs = OPS.iter().map(|op| Ok((op.name, op.inputs(2, 0)?)));
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        for (_, inputs) in &inputs {
            mlx_primitives::eval(inputs)?;
        }
        Ok(Self {
            lazy: x.multiply(2.0)?,
            x,
            waiting,
            compiled,
            stream: Stream::new(Device::Cpu)?,
            inputs,
        })
    }

    /// Calls every function that needs a stream. Returns the name and the result of each.
    fn call(&self) -> Vec<(&'static str, Result<()>)> {
        let Self { x, lazy, waiting, compiled, stream, .. } = self;
        let mut said: Vec<(&'static str, Result<()>)> = Vec::new();
        for (op, (name, inputs)) in OPS.iter().zip(&self.inputs) {
            said.push((name, (op.run)(inputs).map(drop)));
        }
        let mut add = |name, result: Result<()>| said.push((name, result));
        add("unary", x.exp().map(drop));
        add("binary", x.add(1.0).map(drop));
        add("reduce", x.prod(..).map(drop));
        add("matmul", x.matmul(x).map(drop));
        add("reshape", x.reshape(4).map(drop));
        add("transpose", x.t().map(drop));
        add("index", x.i(0).map(drop));
        add("astype", x.astype(Dtype::Float16).map(drop));
        add("contiguous", x.contiguous().map(drop));
        add("concatenate", mlx_primitives::concatenate(&[x, x], 0).map(drop));
        add("sort", x.sort(0).map(drop));
        add("full", Array::full(3, 1.0f32).map(drop));
        add("arange", Array::arange::<f32>(0.0, 4.0, 1.0).map(drop));
        add("eval", lazy.eval());
        add("async_eval", async_eval([lazy]));
        add("to_vec", lazy.to_vec::<f32>().map(drop));
        add("to_vec of a file", waiting.to_vec::<f32>().map(drop));
        add("vjp", vjp(|x| x.exp(), x, x).map(drop));
        add("jvp", jvp(|x| x.exp(), x, x).map(drop));
        add("grad", grad(|x| Ok(x.clone()), &x.sum(..).unwrap_or(x.clone())).map(drop));
        add("vmap", vmap(Ok, x, 0, 0).map(drop));
        add("compile", compile(|x| Ok(vec![x[0].clone()]), false).map(drop));
        add("a compiled function", compiled.call(x).map(drop));
        add("checkpoint", checkpoint(Ok, x).map(drop));
        add("uniform", random::uniform::<f32>(0.0, 1.0, 3, None).map(drop));
        add("seed", random::seed(1));
        add("key", random::key(1).map(drop));
        add("synchronize", device::synchronize());
        add("a new stream", Stream::new(Device::Cpu).map(drop));
        add("a stream", with_stream(stream, || x.add(1.0)).map(drop));
        add("clear_cache", memory::clear_cache());
        add("a custom primitive", apply_one(Computed("same", same), &[x]).map(drop));
        add("graph::nodes", graph::nodes([lazy]).map(drop));
        let folder = std::env::temp_dir().join(format!("late-{}.safetensors", std::process::id()));
        add("save", io::save_safetensors(&folder, [("x", lazy)], []));
        let text = lazy.to_string();
        let error = text.contains('<').then(|| mlx_primitives::Error::from(text));
        add("print", error.map_or(Ok(()), Err));
        add("clear_streams", device::clear_streams());
        said
    }

    /// Checks that every call returns an error with this reason. Computed arrays must stay
    /// readable.
    fn refused(&self, reason: &str) -> Checked {
        for (name, said) in self.call() {
            let Err(error) = said else { anyhow::bail!("{name}: no error") };
            anyhow::ensure!(error.to_string().contains(reason), "{name}: {error}");
        }
        anyhow::ensure!(self.x.to_vec::<f32>()? == [1.0, 2.0, 3.0, 4.0], "another x");
        Ok(())
    }

    fn works(&self) -> Checked {
        for (name, said) in self.call() {
            said.map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
        }
        anyhow::ensure!(ops::softmax(&self.x)?.sum(..)?.item::<f32>()? > 1.99, "another sum");
        Ok(())
    }
}

/// Reports the outcome. A failure ends the process with status 3, because a panic at this point
/// would not change the status.
fn done(outcome: Checked) {
    if let Err(error) = outcome {
        eprintln!("{error:#}");
        // SAFETY: `_exit` only ends the process.
        unsafe { libc::_exit(3) };
    }
    eprintln!("checked");
}

/// A thread-local value. Its destructor calls every function of `Made::call`.
struct Last {
    made: Option<Made>,
    works: bool,
}

impl Drop for Last {
    fn drop(&mut self) {
        if let Some(made) = &self.made {
            done(if self.works { made.works() } else { made.refused("thread is ending") });
        }
    }
}

thread_local! {
    static LAST: RefCell<Last> = const { RefCell::new(Last { made: None, works: false }) };
}

/// The array that the exit handler uses, and the reason that its ops must report.
static MADE: Mutex<Option<(SendArray, &'static str)>> = Mutex::new(None);

extern "C" fn at_exit() {
    let made = MADE.lock().map(|mut made| made.take());
    if let Ok(Some((x, reason))) = made {
        let x = x.into_array();
        let said = [x.add(1.0).map(drop), ops::softmax(&x).map(drop), random::key(3).map(drop)];
        let right = said
            .iter()
            .all(|said| said.as_ref().is_err_and(|error| error.to_string().contains(reason)));
        done(if right { Ok(()) } else { Err(anyhow::anyhow!("{said:?}, not {reason}")) });
    }
}

fn hand_over(reason: &'static str) -> Checked {
    let x = Array::from_slice(&[1.0f32, 2.0], 2)?.into_send()?;
    *MADE.lock().expect("no panic") = Some((x, reason));
    Ok(())
}

fn register() {
    // SAFETY: the handler is a function of this program, and it neither panics nor unwinds.
    unsafe { libc::atexit(at_exit) };
}

/// Forks, runs `child` in the child process, and checks that it exits with 0 within a minute.
fn in_fork(child: impl FnOnce() -> Checked) -> Checked {
    // SAFETY: the child calls only the functions under test, and then `exit`, which runs exit
    // handlers.
    match unsafe { libc::fork() } {
        -1 => anyhow::bail!("no fork: {}", std::io::Error::last_os_error()),
        0 => {
            let outcome = child();
            if let Err(error) = &outcome {
                eprintln!("{error:#}");
            }
            std::process::exit(if outcome.is_ok() { 0 } else { 4 });
        }
        id => {
            let start = std::time::Instant::now();
            let mut status = 0;
            // SAFETY: `waitpid` and `kill` get the ID of the child that this function forked.
            while unsafe { libc::waitpid(id, &mut status, libc::WNOHANG) } == 0 {
                if start.elapsed().as_secs() > 60 {
                    unsafe { libc::kill(id, libc::SIGKILL) };
                    anyhow::bail!("the child hangs");
                }
                thread::sleep(std::time::Duration::from_millis(2));
            }
            anyhow::ensure!(status == 0, "the child's status is {status}");
            Ok(())
        }
    }
}

/// Runs a role. The outcome is the output of `done`, or the returned error.
pub fn play(role: &str) -> Checked {
    let thread_ends = |before: bool, works: bool| {
        let run = move || -> Checked {
            if before {
                LAST.with(|_| ());
            }
            if works {
                Array::ones::<f32>(2)?.eval()?; // the thread has its stream, and nothing else
                LAST.with(|_| ());
            }
            let made = Made::new()?;
            made.works()?;
            let made = Made::new()?;
            LAST.with_borrow_mut(|last| *last = Last { made: Some(made), works });
            Ok(())
        };
        thread::spawn(run).join().expect("no panic")
    };
    match role {
        "thread" => thread_ends(true, false)?,
        "thread, while it works" => thread_ends(false, true)?,
        "main thread" => {
            LAST.with(|_| ());
            let made = Made::new()?;
            LAST.with_borrow_mut(|last| *last = Last { made: Some(made), works: false });
            std::process::exit(0);
        }
        "handler after" => {
            Array::ones::<f32>(2)?.eval()?;
            hand_over("thread is ending")?;
            register();
        }
        "handler before" => {
            register();
            Array::ones::<f32>(2)?.eval()?;
            hand_over("is ending")?;
        }
        "handler before, another thread's ops" => {
            register();
            thread::spawn(|| Array::ones::<f32>(2)?.eval()).join().expect("no panic")?;
            let made = thread::spawn(|| hand_over("process is ending"));
            made.join().expect("no panic")?;
        }
        "fork" => {
            let made = Made::new()?;
            made.works()?;
            let made = Made::new()?;
            in_fork(|| made.refused("fork"))?;
            in_fork(|| {
                thread::spawn(|| Array::ones::<f32>(2)?.add(1.0).map(drop))
                    .join()
                    .expect("no panic")
                    .expect_err("no error");
                Ok(())
            })?;
            made.works()?;
            eprintln!("checked");
        }
        "fork before" => {
            in_fork(|| Made::new()?.works())?;
            Made::new()?.works()?;
            eprintln!("checked");
        }
        other => anyhow::bail!("there is no role {other}"),
    }
    Ok(())
}

fn checked(role: &str) -> Checked {
    for round in 0..rounds(3) {
        let (status, said) = ended(&format!("late {role}"))?;
        anyhow::ensure!(
            status.success() && said.contains("checked"),
            "{role}, round {round}: {status}, {said}"
        );
    }
    Ok(())
}

#[test]
fn a_thread_that_ends() -> Checked {
    checked("thread")
}

/// MLX's stream of a thread still exists when the destructor of this thread-local value runs, so
/// ops work. They also work if MLX creates more values for the thread in the meantime.
#[test]
fn a_thread_that_does_not_end_yet() -> Checked {
    checked("thread, while it works")
}

#[test]
fn the_main_thread_that_ends() -> Checked {
    checked("main thread")
}

#[test]
fn handlers_of_the_end() -> Checked {
    checked("handler after")?;
    checked("handler before")?;
    checked("handler before, another thread's ops")
}

/// In a forked child, ops would wait for threads that exist only in the parent. They return errors.
#[test]
fn the_child_of_a_fork() -> Checked {
    checked("fork")?;
    checked("fork before")
}
