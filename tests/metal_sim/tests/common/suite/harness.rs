//! Runs a case under every schedule and looks at all that it should and should not do.

use metal_sim::{Access, Buffer, Dispatch, Kernel, Report, Schedule};

use super::host::{Launch, NONE, OUT};
use super::op::{Bounded, Case, Op};
use super::spec;

pub const SCHEDULES: [Schedule; 3] = [Schedule::Forward, Schedule::Reversed, Schedule::Shuffled(7)];

/// How a case failed, and in which words.
#[derive(Clone, Debug)]
pub struct Failure {
    pub kind: &'static str,
    pub text: String,
}

fn fail<T>(kind: &'static str, text: impl Into<String>) -> Result<T, Failure> {
    Err(Failure { kind, text: text.into() })
}

/// Threads of the largest case, and some: a grid beyond that would only take long to fail.
const MOST_THREADS: u64 = 1 << 20;

/// Runs `case` as `launch` says. `kernel` finds kernels by their names.
pub fn run(
    case: &Case,
    launch: &Launch,
    kernel: &dyn Fn(&str) -> Option<Kernel>,
) -> Result<(), Failure> {
    let extents = launch.grid.iter().chain(&launch.group);
    let threads = extents.fold(1u64, |product, extent| product.saturating_mul(*extent));
    if launch.kernel == NONE || threads > MOST_THREADS {
        return fail("launch", format!("{launch:?}"));
    }
    let Some(kernel) = kernel(&launch.kernel) else {
        return fail("launch", format!("there is no kernel {}", launch.kernel));
    };
    let inputs = case.inputs();
    let expected = case.expected(&inputs);
    let mut first: Option<Vec<u8>> = None;
    for schedule in SCHEDULES {
        let (out, report) = dispatch(case, launch, &kernel, &inputs, schedule)?;
        if let Some(fault) = report.faults.first() {
            return fail("fault", fault.to_string());
        }
        match &first {
            None => compare(&case.dtype.decode(&out), &expected)?,
            Some(first) if *first != out => return fail("order", format!("{schedule:?} differs")),
            Some(_) => {}
        }
        if let Err(text) = spec::budget(case, launch, &report) {
            return fail("budget", text);
        }
        first = Some(out);
    }
    let (planned, ideal) = (spec::of(launch), spec::expected(case));
    if planned != ideal {
        return fail("launch", format!("{planned:?}, not {ideal:?}"));
    }
    Ok(())
}

fn dispatch(
    case: &Case,
    launch: &Launch,
    kernel: &Kernel,
    inputs: &[Vec<u8>],
    schedule: Schedule,
) -> Result<(Vec<u8>, Report), Failure> {
    let mut out = if case.in_place { inputs[0].clone() } else { vec![0xa5; inputs[0].len()] };
    let (pointer, bytes) = (out.as_mut_ptr(), out.len());
    // Features that are not rotated stay as they are where x and out are one.
    let partial = matches!(case.op, Op::Rope { .. }) && case.in_place;
    let access = if partial { Access::ReadWrite } else { Access::Write };
    let mut dispatch = Dispatch::new(kernel).schedule(schedule);
    for (index, array) in &launch.arrays {
        // SAFETY: `out` is not used until the dispatch has run.
        let raw = |access| unsafe { Buffer::raw(pointer, bytes, access) };
        let buffer = match array {
            0 if case.in_place => raw(Access::Read),
            &OUT => raw(access),
            _ => match inputs.get(*array) {
                Some(input) => Buffer::input(input),
                None => return fail("launch", format!("there is no input {array}")),
            },
        };
        dispatch = dispatch.buffer(*index, buffer);
    }
    for (index, bytes) in &launch.threadgroup {
        dispatch = dispatch.threadgroup(*index, *bytes);
    }
    let report = dispatch
        .bytes(launch.params.0, &launch.params.1)
        .grid_groups(launch.grid.map(|n| n as u32), launch.group.map(|n| n as u32))
        .run();
    match report {
        Ok(report) => Ok((out, report)),
        Err(error) => fail("fault", error.to_string()),
    }
}

fn compare(got: &[f64], expected: &[Bounded]) -> Result<(), Failure> {
    for (i, (got, (value, bound))) in got.iter().zip(expected).enumerate() {
        let right = if value.is_nan() { got.is_nan() } else { (got - value).abs() <= *bound };
        if !right {
            return fail("result", format!("[{i}]: {got}, not {value} within {bound:.1e}"));
        }
    }
    Ok(())
}
