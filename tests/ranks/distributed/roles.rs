//! The roles of ranks.

use std::mem::ManuallyDrop;
use std::net::{Shutdown, TcpStream};
use std::os::fd::FromRawFd;
use std::process::ExitCode;
use std::time::Duration;
use std::{env, thread};

use mlx_primitives::device::Device;
use mlx_primitives::{Array, Dtype, Error, transforms};
use mlx_primitives_ranks::{Backend, Group, Options, is_available};

use super::gathers;
use super::ranks::{ROLE, TIMEOUT, limit_this_rank};
use crate::support::{Checked, on_cpu};

/// The environment variable with a port. A rank keeps its connection to this port and cuts all
/// others.
pub const CUT_ALL_BUT: &str = "MLX_PRIMITIVES_TEST_CUT_ALL_BUT";

/// Waits a moment, and then cuts this process's connections, except connections to or from this
/// port.
fn cut_all_but(port: u16) {
    thread::sleep(Duration::from_millis(300));
    for number in 3..1024 {
        // SAFETY: `ManuallyDrop` keeps the descriptor open, as its owner expects. If it is not a
        // socket, the calls return errors.
        let stream = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(number) });
        let ends = [stream.local_addr(), stream.peer_addr()];
        if ends.iter().flatten().count() == 2 && ends.iter().flatten().all(|end| end.port() != port)
        {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// If the environment names a role, joins the group and runs the role.
pub fn role() -> Option<ExitCode> {
    let role = env::var(ROLE).ok()?;
    limit_this_rank();
    let timeout = env::var(TIMEOUT).ok().and_then(|text| text.parse().ok()).unwrap_or(60_000);
    let stall = env::var("MLX_PRIMITIVES_TEST_STALL").ok().and_then(|text| text.parse().ok());
    let options = Options {
        backend: match env::var_os("MLX_HOSTFILE") {
            Some(_) => Backend::Ring,
            None => Backend::Any,
        },
        strict: role == "strict",
        timeout: Duration::from_millis(timeout),
        stall: stall.map(Duration::from_millis),
    };
    let group = match Group::join(options) {
        Ok(group) => group,
        Err(error) => {
            eprintln!("join: {error}");
            return Some(ExitCode::from(2));
        }
    };
    if let Some(port) = env::var(CUT_ALL_BUT).ok().and_then(|text| text.parse().ok()) {
        thread::spawn(move || cut_all_but(port));
    }
    Some(match play(&role, &group).and_then(|()| Ok(group.leave()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            group.fail(&error.to_string());
            // Write the report with a single call, because MLX's threads write to stderr too.
            let report = format!("[rank {}] error: {error:?}\n", group.rank());
            eprint!("{report}");
            ExitCode::FAILURE
        }
    })
}

fn play(role: &str, group: &Group) -> Checked {
    let rank = group.rank();
    match role {
        "join" | "strict" => println!("joined {} of {}", rank, group.size()),
        "values" => {
            values(group)?;
            println!("values are right on {} ranks", group.size());
        }
        "derivatives" => {
            derivatives(group)?;
            println!("derivatives are right");
        }
        "gathers" => {
            on_cpu(|| gathers::gathers(group, &[0, 1]))?;
            if Device::Gpu.is_available()? {
                // On a GPU, gathers use `all_gather`. MLX's `vmap` supports that only for axes
                // after the first.
                gathers::gathers(group, &[1])?;
            }
            println!("gathers are right on {} ranks", group.size());
        }
        "unequal gathers" => on_cpu(|| gathers::unequal(group))?,
        "gather loop" => {
            for step in 0.. {
                let x = Array::full([1, 500], rank as f32)?;
                group.gather_last(&x, &vec![500; group.size()])?.eval()?;
                if step == 3 {
                    println!("running");
                }
            }
        }
        "messages" => {
            messages(group)?;
            println!("messages are right");
        }
        "refusals" => {
            refusals(group)?;
            println!("refused");
        }
        "neighbors" => {
            let x = Array::ones::<f32>(2)?;
            let error = group.send(&x, (rank + 2) % 4).unwrap_err().to_string();
            assert!(error.contains("the neighbors of rank"), "{error}");
            println!("refused");
        }
        "loop" => {
            for step in 0.. {
                let x = group.all_sum(&Array::full(1000, rank as f32)?)?;
                x.eval()?;
                if step == 3 {
                    println!("running");
                }
            }
        }
        "count" => {
            println!("running");
            loop {
                group.all_sum(&Array::ones::<f32>(10)?)?.eval()?;
                println!("step");
                thread::sleep(Duration::from_millis(50));
            }
        }
        "queue" => {
            // Several steps are queued when the test kills a rank.
            let mut x = Array::ones::<f32>(1000)?;
            for step in 0.. {
                let next = group.all_sum(&x)?.multiply(0.5)?;
                mlx_primitives::async_eval([&next])?;
                if step % 8 == 7 {
                    next.eval()?;
                    println!("running");
                }
                x = next;
            }
        }
        "go on" => {
            // This role ignores the error and continues, which a program should not do.
            println!("running");
            let x = Array::ones::<f32>(1000)?;
            let error = loop {
                if let Err(error) = group.all_sum(&x).and_then(|sum| sum.eval()) {
                    break error;
                }
            };
            println!("first: {error}");
            for _ in 0..5 {
                let error = group.all_sum(&x).unwrap_err().to_string();
                assert!(error.contains("an earlier evaluation failed"), "{error}");
                let error = Array::full(3, 2.0f32)?.exp()?.eval().unwrap_err().to_string();
                assert!(error.contains("an earlier evaluation failed"), "{error}");
            }
            println!("refused");
            thread::sleep(Duration::from_secs(50));
        }
        "stall" => {
            if rank != 0 {
                println!("running");
                thread::sleep(Duration::from_secs(50));
            }
            group.all_sum(&Array::ones::<f32>(10)?)?.eval()?;
        }
        "disagree" => {
            let value = if rank == 1 { "0.8" } else { "0.7" };
            group.agree("the seed", "5")?;
            group.agree("the temperature", value)?;
        }
        "out of step" => match rank {
            0 => group.broadcast(b"x").map(drop)?,
            _ => group.agree("x", "y")?,
        },
        "interrupted" => {
            if rank == 1 {
                group.all_sum(&Array::ones::<f32>(10)?)?.eval()?;
                group.fail("interrupted");
                println!("told");
                std::process::exit(7);
            }
            loop {
                group.all_sum(&Array::ones::<f32>(10)?)?.eval()?;
            }
        }
        "ends early" => {
            if rank == 1 {
                std::process::exit(0);
            }
            loop {
                group.all_sum(&Array::ones::<f32>(10)?)?.eval()?;
            }
        }
        "slow to leave" => {
            if rank == 0 {
                thread::sleep(Duration::from_millis(700));
            }
            group.leave()?;
            println!("left");
            group.leave()?;
            if group.size() > 1 {
                let error = group.all_sum(&Array::ones::<f32>(1)?).unwrap_err().to_string();
                assert!(error.contains("has left the group"), "{error}");
            }
            // Evaluations still work without the group.
            assert_eq!(Array::ones::<f32>(2)?.add(1.0)?.to_vec::<f32>()?, [2.0; 2]);
        }
        other => anyhow::bail!("there is no role {other}"),
    }
    Ok(())
}

/// An element of a rank's array: a small integer that every type represents exactly.
fn element(index: usize, rank: usize) -> f32 {
    ((index * 7 + rank * 13) % 31) as f32 - 9.0
}

fn array(shape: &[i32], rank: usize, dtype: Dtype) -> anyhow::Result<Array> {
    let size: i32 = shape.iter().product();
    let values: Vec<f32> = (0..size as usize).map(|index| element(index, rank)).collect();
    let x = Array::from_slice(&values, [size])?.astype(dtype)?;
    Ok(match shape {
        // Return a strided view, whose elements are not in the order of memory.
        [rows, columns] => x.reshape([*columns, *rows])?.transpose([1, 0])?,
        shape => x.reshape(shape)?,
    })
}

fn elements(x: &Array) -> anyhow::Result<Vec<f32>> {
    Ok(x.astype(Dtype::Float32)?.to_vec::<f32>()?)
}

fn values(group: &Group) -> Checked {
    assert!(is_available(Backend::Ring) && is_available(Backend::Any));
    let (rank, size) = (group.rank(), group.size());
    let shapes: [&[i32]; 6] = [&[], &[1], &[3], &[5, 7], &[2, 3, 5], &[70_001]];
    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16, Dtype::Int32] {
        for shape in shapes {
            let name = format!("{dtype} {shape:?}");
            let all = (0..size).map(|r| array(shape, r, dtype)).collect::<Result<Vec<_>, _>>()?;
            let of_ranks = all.iter().map(elements).collect::<anyhow::Result<Vec<_>>>()?;
            let by = |f: fn(f32, f32) -> f32| {
                let one = |i: usize| of_ranks.iter().map(|x| x[i]).reduce(f).unwrap_or(0.0);
                (0..of_ranks[0].len()).map(one).collect::<Vec<f32>>()
            };
            let x = &all[rank];
            let sum = group.all_sum(x)?;
            assert_eq!((sum.shape(), sum.dtype()), (shape, dtype), "{name}");
            assert_eq!(elements(&sum)?, by(|a, b| a + b), "sum, {name}");
            assert_eq!(elements(&group.all_max(x)?)?, by(f32::max), "max, {name}");
            assert_eq!(elements(&group.all_min(x)?)?, by(f32::min), "min, {name}");
            let gathered = group.all_gather(x)?;
            let mut expected = shape.to_vec();
            match expected.first_mut() {
                Some(first) => *first *= size as i32,
                None if size > 1 => expected.push(size as i32),
                None => {}
            }
            assert_eq!((gathered.shape(), gathered.dtype()), (&*expected, dtype), "{name}");
            assert_eq!(elements(&gathered)?, of_ranks.concat(), "gather, {name}");
            if size > 1 {
                let (next, last) = ((rank + 1) % size, (rank + size - 1) % size);
                let pass = || -> anyhow::Result<()> { Ok(group.send(x, next)?.eval()?) };
                if rank == 0 {
                    pass()?;
                }
                let received = group.recv(shape, dtype, last)?;
                assert_eq!(elements(&received)?, of_ranks[last], "recv, {name}");
                if rank != 0 {
                    pass()?;
                }
            }
        }
    }
    Ok(())
}

fn derivatives(group: &Group) -> Checked {
    let (rank, size) = (group.rank(), group.size());
    let x = array(&[3], rank, Dtype::Float32)?;
    // Each rank computes the gradient of its input from its own cotangent alone.
    let cotangent = Array::from_slice(&[1.0f32, 2.0, 3.0], 3)?.multiply((rank + 1) as f32)?;
    let (sum, dx) = transforms::vjp(|x| group.all_sum(&x.square()?), &x, &cotangent)?;
    assert_eq!(sum.size(), 3);
    let expected: Vec<f32> =
        (0..3).map(|i| 2.0 * element(i, rank) * ((i + 1) * (rank + 1)) as f32).collect();
    assert_eq!(elements(&dx)?, expected);
    // The gradient is the part of the cotangent that belongs to this rank's elements.
    let whole: Vec<f32> = (0..3 * size).map(|i| i as f32).collect();
    let cotangent = Array::from_slice(&whole, 3 * size as i32)?;
    let (_, dx) = transforms::vjp(|x| group.all_gather(&x), &x, &cotangent)?;
    assert_eq!(elements(&dx)?, whole[3 * rank..3 * rank + 3]);
    // Tangents are summed over the ranks, as the arrays are.
    let tangent = Array::full(3, (rank + 1) as f32)?;
    let (_, tangents) = transforms::jvp(|x| group.all_sum(&x), &x, &tangent)?;
    assert_eq!(elements(&tangents)?, [(size * (size + 1) / 2) as f32; 3]);
    let rows = array(&[2, 3, 5], rank, Dtype::Float32)?;
    for axis in [0, 2] {
        let sums = transforms::vmap(|x| group.all_sum(&x), &rows, axis, axis)?;
        assert_eq!(elements(&sums)?, elements(&group.all_sum(&rows)?)?);
    }
    let gathered = transforms::vmap(|x| group.all_gather(&x), &rows, 2, 2)?;
    assert_eq!(elements(&gathered)?, elements(&group.all_gather(&rows)?)?);
    Ok(())
}

fn messages(group: &Group) -> Checked {
    let (rank, size) = (group.rank(), group.size());
    let long = "x".repeat(3_000_000);
    for round in 0..5 {
        group.agree("the round", &round.to_string())?;
        let texts = group.gather_text(&format!("rank {rank}\n\"é\""))?;
        assert!(texts.iter().enumerate().all(|(r, t)| *t == format!("rank {r}\n\"é\"")));
        assert_eq!(texts.len(), size);
        let bytes = group.broadcast(if rank == 0 { long.as_bytes() } else { b"no" })?;
        assert!(bytes == long.as_bytes());
        assert!(group.broadcast(&[])?.is_empty());
    }
    // Rank 0 sends and may run ahead of the other ranks.
    for round in 0..200u32 {
        assert_eq!(group.broadcast(&round.to_le_bytes())?.len(), 4);
    }
    // If ranks disagree, each gets the same error, and the group continues.
    let value = format!("{}", rank.min(1));
    let error = group.agree("the split", &value).unwrap_err().to_string();
    let expected =
        "[agree] the split differs on ranks 1 and 2: rank 0 has 0, rank 1 has 1, rank 2 has 1";
    assert_eq!(error, expected);
    group.agree("the end", "reached")?;
    Ok(())
}

fn refusals(group: &Group) -> Checked {
    let x = Array::ones::<f32>(2)?;
    for to in [group.rank(), 2, usize::MAX] {
        for error in [group.send(&x, to).unwrap_err(), group.recv(2, Dtype::Int8, to).unwrap_err()]
        {
            assert!(matches!(error, Error::Argument { .. }), "{error}");
        }
    }
    let other = 1 - group.rank();
    assert!(group.recv(-1, Dtype::Float32, other).is_err());
    let second = Group::join(Options::default())?; // the same group
    assert_eq!((second.rank(), second.size()), (group.rank(), 2));
    assert_eq!(second.all_sum(&x)?.to_vec::<f32>()?, [2.0; 2]);
    if group.rank() == 0 {
        let error = group.broadcast(&vec![0; 17 << 20]).unwrap_err().to_string();
        assert!(error.contains("expected at most"), "{error}");
    }
    Ok(())
}
