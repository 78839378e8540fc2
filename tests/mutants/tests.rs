//! The tests of this binary, and the worker processes that run mutants.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use harness::workers;
use libtest_mimic::{Arguments, Failed, Trial};
use metal_sim::Library;
use mlx_primitives::simulator::Schedule;
use mlx_primitives::{Dispatched, Planted, with_planted};

use crate::cases::{self, Case};
use crate::check::{self, Failure, Original};
use crate::equivalents::{self, DISPATCHES, KERNELS};
use crate::{dispatches, kernels, traffic};

/// The environment variable with the path of the simulator's log.
const LOG: &str = "MLX_PRIMITIVES_SIMULATE_LOG";

/// The environment variable that is set in a worker.
const ROLE: &str = "METAL_SIM_WORKER";

/// If a mutant runs longer than this, it counts as detected, because it may never end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Without `METAL_SIM_EVERY_MUTANT` and `METAL_SIM_MUTANTS`, one in this many mutants runs.
const SAMPLE: usize = 48;

/// These stems' kernels take longest to compile, so they start first. A stem is the name of a
/// .metal file.
const LONGEST: [&str; 2] = ["attention", "quantized_matmul"];

pub fn main() -> ExitCode {
    if std::env::var_os(ROLE).is_some() {
        let mut worker = Worker::new(cases::all());
        workers::serve(|job| worker.answer(job));
        return ExitCode::SUCCESS;
    }
    // In the log's folder, the simulator also writes the names of all kernels that it compiles.
    let folder = tempfile::tempdir().expect("a folder");
    // SAFETY: this process has no other thread yet.
    unsafe { std::env::set_var(LOG, folder.path().join("log")) };
    let trials = vec![
        Trial::test("every_kernel_is_right_in_any_order", every_kernel),
        Trial::test("mutants_are_noticed", mutants_are_noticed),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Starts a worker: this binary in another process, which runs jobs.
fn worker() -> workers::Worker {
    let mut program = Command::new(std::env::current_exe().expect("a running test"));
    program.env(ROLE, "1").stderr(Stdio::null());
    for name in ["LOG", "METAL", "THREADS"] {
        program.env_remove(format!("MLX_PRIMITIVES_SIMULATE_{name}"));
    }
    workers::Worker::start(&mut program).expect("a worker")
}

/// A worker runs mutants. It keeps the results of cases without a fault.
struct Worker {
    cases: Vec<Case>,
    originals: Vec<Option<Original>>,
    kernels: kernels::Kernels,
    mutants: Vec<kernels::Job>,
}

impl Worker {
    fn new(cases: Vec<Case>) -> Self {
        let originals = cases.iter().map(|_| None).collect();
        Self { cases, originals, kernels: kernels::Kernels::new(), mutants: kernels::jobs() }
    }

    /// Runs the mutant of a job. Returns how it was detected, "missed", or "none" if it does not
    /// compile.
    fn answer(&mut self, job: &str) -> String {
        let (kind, rest) = job.split_once(' ').unwrap_or((job, ""));
        let outcome = match kind {
            "kernel" => self.kernel(rest.parse().expect("a number")),
            _ => self.dispatch(rest),
        };
        match outcome {
            Ok(said) => said.to_owned(),
            Err(failure) => format!("{} {}", failure.kind, failure.text),
        }
    }

    fn kernel(&mut self, number: usize) -> Result<&'static str, Failure> {
        let stems = self.mutants[number].stems;
        let mutant = self.mutants[number].mutant.clone();
        for stem in stems {
            let Ok(library) = self.kernels.compile(&mutant, stem) else {
                return Ok("none");
            };
            let kernels: Vec<_> = library.kernels().expect("kernels");
            for case in 0..self.cases.len() {
                if self.cases[case].stem != *stem {
                    continue;
                }
                // Skip cases whose kernels were not compiled, because they take long to compile.
                let launched = self.original(case)?.dispatched.iter();
                let mut names = launched.map(|dispatched| &dispatched.kernel);
                if names.any(|name| kernels.iter().any(|kernel| kernel.name == *name)) {
                    self.run(case, Planted::Kernels(Library::clone(&library)))?;
                }
            }
        }
        Ok("missed")
    }

    /// Runs a job of the form `<change>: <case>.<dispatch> ...`.
    fn dispatch(&mut self, job: &str) -> Result<&'static str, Failure> {
        let (change, places) = job.split_once(": ").expect("a job");
        let change = dispatches::parse(change);
        for place in places.split(' ') {
            let (case, number) = place.split_once('.').expect("a place");
            let number = number.parse().expect("a number");
            self.run(case.parse().expect("a number"), Planted::Dispatch(number, change))?;
        }
        Ok("missed")
    }

    fn original(&mut self, case: usize) -> Result<&Original, Failure> {
        Ok(match &mut self.originals[case] {
            Some(original) => original,
            empty => empty.insert(check::original(&self.cases[case], &[])?),
        })
    }

    fn run(&mut self, case: usize, planted: Planted) -> Result<(), Failure> {
        self.original(case)?;
        let original = self.originals[case].as_ref().expect("just computed");
        with_planted(planted, || check::mutant(&self.cases[case], original))
    }
}

/// Whether all mutants run, and all cases in every order of threads, as in scripts/verify.sh.
fn every() -> bool {
    std::env::var_os("METAL_SIM_EVERY_MUTANT").is_some()
}

/// The orders of threads for a case: all of them if `every()`. Otherwise forward, and for one case
/// in three also reversed.
fn orders(case: usize) -> &'static [Schedule] {
    match every() {
        true => &Schedule::ALL,
        false => &Schedule::ALL[..1 + usize::from(case.is_multiple_of(3))],
    }
}

/// Runs all cases without a fault. Returns the dispatches or the error of each.
fn originals() -> &'static [Result<Vec<Dispatched>, String>] {
    static ORIGINALS: OnceLock<Vec<Result<Vec<Dispatched>, String>>> = OnceLock::new();
    ORIGINALS.get_or_init(|| {
        let mut stems: Vec<_> = cases::all().iter().map(|case| case.stem).collect();
        let count = stems.len();
        stems.sort_by_key(|stem| (!LONGEST.contains(stem), *stem));
        stems.dedup();
        let (threads, next) =
            (std::thread::available_parallelism().map_or(2, usize::from), AtomicUsize::new(0));
        // Each thread takes all cases of a stem. Otherwise threads would wait for one another to
        // compile the stem's kernels.
        let part = || {
            let of = |number, case: &Case| match check::original(case, &orders(number)[1..]) {
                Ok(original) => Ok(original.dispatched),
                Err(failure) => Err(format!("{}: {failure:?}", case.name)),
            };
            let cases = cases::all();
            let mut done = Vec::new();
            while let Some(stem) = stems.get(next.fetch_add(1, Ordering::Relaxed)) {
                let of_stem = cases.iter().enumerate().filter(|(_, case)| case.stem == *stem);
                done.extend(of_stem.map(|(number, case)| (number, of(number, case))));
            }
            done
        };
        let mut all: Vec<_> = std::thread::scope(|scope| {
            let parts: Vec<_> = (0..threads).map(|_| scope.spawn(part)).collect();
            parts.into_iter().flat_map(|part| part.join().expect("originals")).collect()
        });
        all.sort_by_key(|(number, _)| *number);
        assert_eq!(all.len(), count);
        all.into_iter().map(|(_, original)| original).collect()
    })
}

/// Checks that the cases are correct in every order of threads, and launch every float32 kernel.
fn every_kernel() -> Result<(), Failed> {
    let start = Instant::now();
    let failures: Vec<_> = originals().iter().filter_map(|o| o.as_ref().err()).collect();
    if !failures.is_empty() {
        return Err(format!("{} cases fail: {failures:#?}", failures.len()).into());
    }
    let dispatched = || originals().iter().flatten().flatten();
    let launched: BTreeSet<_> = dispatched().map(|dispatched| &*dispatched.kernel).collect();
    eprintln!(
        "metal-sim: {} kernels in {} dispatches of {} cases, which ran {} times in all, 0 faults; {:.0?}",
        launched.len(),
        dispatched().count(),
        originals().len(),
        (0..originals().len()).map(|case| orders(case).len()).sum::<usize>(),
        start.elapsed()
    );
    let mut least = 0;
    for dispatched in dispatched() {
        least += usize::from(traffic::is_least(dispatched)?);
    }
    if least < 40 {
        return Err(format!("{least} dispatches have a least traffic").into());
    }
    let log = PathBuf::from(std::env::var_os(LOG).unwrap_or_default());
    let names = std::fs::read_to_string(log.with_extension("kernels"))?;
    let float32 = names.lines().filter(|name| !name.contains("float16"));
    let idle: BTreeSet<_> = float32.filter(|name| !launched.contains(name)).collect();
    match idle.is_empty() && names.lines().count() > 300 {
        true => Ok(()),
        false => Err(format!("no case launches {idle:#?}").into()),
    }
}

/// A mutant. `line` describes it to a worker, and `name` to people. `equivalent` is its index in
/// the list of equivalent mutants, if it is there.
struct Job {
    line: String,
    name: String,
    class: String,
    equivalent: Option<usize>,
}

fn jobs() -> Vec<Job> {
    let sources = kernels::jobs().into_iter().enumerate().map(|(number, job)| Job {
        line: format!("kernel {number}"),
        name: job.mutant.name(),
        class: format!("kernel {}", job.mutant.class),
        equivalent: equivalents::of_kernel(&job.mutant),
    });
    let cases = cases::all();
    let originals = originals()
        .iter()
        .zip(&cases)
        .enumerate()
        .filter_map(|(number, (o, case))| Some((case.stem, number, o.as_ref().ok()?.clone())));
    let dispatches = dispatches::jobs(originals).into_iter().map(|job| {
        let change = dispatches::name(job.change);
        let equivalent = equivalents::of_dispatch(&job.of, &change);
        // If the change is known to have no effect, check it in only a few dispatches.
        let most = if equivalent.is_some() { 3 } else { usize::MAX };
        let places = job.places.iter().map(|(c, d)| format!("{c}.{d}"));
        let places: Vec<_> = places.take(most).collect();
        Job {
            line: format!("dispatch {change}: {}", places.join(" ")),
            name: format!("{}: {change}", job.of),
            class: format!("dispatch {}", change.split(' ').next().unwrap_or_default()),
            equivalent,
        }
    });
    sources.chain(dispatches).collect()
}

fn mutants_are_noticed() -> Result<(), Failed> {
    let start = Instant::now();
    let mut jobs = jobs();
    let found = jobs.len();
    let only = std::env::var("METAL_SIM_MUTANTS").ok();
    let every = every();
    match &only {
        Some(only) => jobs.retain(|job| job.class.contains(only) || job.name.contains(only)),
        None if every => {}
        None => jobs = jobs.into_iter().step_by(SAMPLE).collect(),
    }
    let lines: Vec<String> = jobs.iter().map(|job| job.line.clone()).collect();
    let verbose = std::env::var_os("METAL_SIM_VERBOSE").is_some();
    let answers = workers::run(&lines, worker, PATIENCE, |index, answer| {
        if verbose {
            eprintln!("{}: {answer:?}", jobs[index].name);
        }
    });
    let (mut classes, mut kinds) = (BTreeMap::<_, usize>::new(), BTreeMap::<_, usize>::new());
    let (mut survivors, mut used, mut none, mut equal) = (Vec::new(), BTreeSet::new(), 0, 0);
    for (job, answer) in jobs.iter().zip(answers) {
        let answer = answer.unwrap_or_else(str::to_owned);
        match answer.split(' ').next().unwrap_or_default() {
            // Removing a barrier cannot cause a compile error, so such an error is a fault of the
            // mutant.
            "none" if job.class == "kernel barrier" => {
                return Err(format!("{}: it does not compile", job.name).into());
            }
            "none" => none += 1,
            "missed" => match job.equivalent {
                Some(entry) => {
                    used.insert((job.class.starts_with("kernel"), entry));
                    equal += 1;
                }
                None => survivors.push(job.name.clone()),
            },
            kind @ ("reference" | "original") => return Err(format!("{}: {kind}", job.name).into()),
            kind => {
                *kinds.entry(kind.to_owned()).or_default() += 1;
                *classes.entry(job.class.clone()).or_default() += 1;
            }
        }
    }
    let noticed: usize = kinds.values().sum();
    let programs = jobs.len() - none;
    eprintln!(
        "metal-sim: {} of {found} mutants, {none} of them no programs: noticed {noticed} of {}, {equal} change nothing; \
         by {kinds:?} of {classes:?}; {:.0?}",
        jobs.len(),
        programs - equal,
        start.elapsed()
    );
    let crashed = kinds.get("crash").copied().unwrap_or_default();
    if 2 * crashed > noticed {
        return Err(format!("{crashed} of {noticed} crash: do the workers run at all?").into());
    }
    if !survivors.is_empty() {
        return Err(format!("{} survive:\n{}", survivors.len(), survivors.join("\n")).into());
    }
    let tables = [(true, KERNELS.len()), (false, DISPATCHES.len())];
    let entries = tables.iter().flat_map(|&(kernel, len)| (0..len).map(move |i| (kernel, i)));
    let unused: Vec<_> = entries.filter(|entry| !used.contains(entry)).collect();
    match unused.is_empty() || !every || only.is_some() {
        true => Ok(()),
        false => {
            Err(format!("entries of equivalents that none is (kernels?, number): {unused:?}")
                .into())
        }
    }
}
