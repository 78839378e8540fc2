//! A case: a kernel and the data that it runs on. Cases come from the options of the command or
//! from a TOML file.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{ArgAction, Args, ValueEnum};
use metal_sim::Schedule;
use serde::{Deserialize, Deserializer};

/// The order in which threads run. `All` means one run in each of the other three orders.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    #[default]
    All,
    Forward,
    Reversed,
    Shuffled,
}

const SEED: u64 = 1;
const TOLERANCE: f32 = 0.001;
const TIMEOUT: u32 = 120;

/// The options that describe a run of a kernel. In a file of cases, the keys have the same names.
#[derive(Args, Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct Case {
    /// The name of the case in the report. Only a file of cases has this key.
    #[arg(skip)]
    pub name: Option<String>,
    /// The file with the kernel. Only a file of cases has this key.
    #[arg(skip)]
    pub source: Option<PathBuf>,
    /// The kernel to run.
    #[arg(long, value_name = "NAME")]
    pub entry: Option<String>,
    /// Threads along each axis, as dispatchThreads counts them.
    #[arg(long, value_name = "X[,Y[,Z]]", value_delimiter = ',', conflicts_with = "groups")]
    #[serde(deserialize_with = "one_or_more")]
    pub grid: Vec<u32>,
    /// Threadgroups along each axis, as dispatchThreadgroups counts them.
    #[arg(long, value_name = "X[,Y[,Z]]", value_delimiter = ',')]
    #[serde(deserialize_with = "one_or_more")]
    pub groups: Vec<u32>,
    /// Threads of a threadgroup along each axis.
    #[arg(long, value_name = "X[,Y[,Z]]", value_delimiter = ',')]
    #[serde(deserialize_with = "one_or_more")]
    pub threadgroup: Vec<u32>,
    /// A buffer: a type (f32, f16, bf16, i8 to u64, bool), a number of elements and, if it is
    /// not only an output, its contents: random, zeros, iota, numbers, or @FILE. buffer:INDEX is
    /// the memory of another buffer, for a kernel that works in place.
    #[arg(long, value_name = "INDEX=TYPE:COUNT[:CONTENTS]")]
    pub buffer: Vec<String>,
    /// The byte of a buffer whose address the kernel gets.
    #[arg(long, value_name = "INDEX=BYTES")]
    pub offset: Vec<String>,
    /// Numbers that a kernel takes by value. For a struct with fields of several types, join the
    /// lists with +, as in 0=u32:4,5+f32:0.5.
    #[arg(long, value_name = "INDEX=TYPE:VALUE[,VALUE]")]
    pub bytes: Vec<String>,
    /// The bytes of a threadgroup argument.
    #[arg(long, value_name = "INDEX=BYTES")]
    pub memory: Vec<String>,
    /// A function constant.
    #[arg(long, value_name = "INDEX=TYPE:VALUE")]
    pub constant: Vec<String>,
    /// The contents that a buffer must have after the kernel, in every order of threads.
    #[arg(long, value_name = "INDEX=TYPE:COUNT:CONTENTS")]
    pub expect: Vec<String>,
    /// The allowed difference of a float, relative to the expected value, or to 1 if that is
    /// smaller.
    #[arg(long, default_value_t = TOLERANCE)]
    pub tolerance: f32,
    /// A file for the contents of a buffer after the first order of threads.
    #[arg(long, value_name = "INDEX=FILE")]
    pub save: Vec<String>,
    /// The order of threads.
    #[arg(long, value_enum, default_value_t)]
    pub order: Order,
    /// The seed of random contents and of the shuffled order.
    #[arg(long, default_value_t = SEED)]
    pub seed: u64,
    /// The most seconds that the kernel may run in one order of threads. A kernel that waits for
    /// another thread's store, without a barrier, never ends.
    #[arg(long, value_name = "SECONDS", default_value_t = TIMEOUT)]
    pub timeout: u32,
    /// A folder of files that the source includes.
    #[arg(short = 'I', long, value_name = "FOLDER")]
    pub include: Vec<PathBuf>,
    /// A macro of the preprocessor.
    #[arg(short = 'D', long, value_name = "NAME[=VALUE]")]
    pub define: Vec<String>,
    /// Whether to look for code that clang compiles and the Metal language forbids.
    #[arg(long, default_value_t = true, action = ArgAction::Set)]
    pub rules: bool,
    /// The folder to which the paths of the case are relative.
    #[arg(skip)]
    #[serde(skip)]
    pub folder: PathBuf,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            name: None,
            source: None,
            entry: None,
            grid: Vec::new(),
            groups: Vec::new(),
            threadgroup: Vec::new(),
            buffer: Vec::new(),
            offset: Vec::new(),
            bytes: Vec::new(),
            memory: Vec::new(),
            constant: Vec::new(),
            expect: Vec::new(),
            tolerance: TOLERANCE,
            save: Vec::new(),
            order: Order::All,
            seed: SEED,
            timeout: TIMEOUT,
            include: Vec::new(),
            define: Vec::new(),
            rules: true,
            folder: PathBuf::new(),
        }
    }
}

impl Case {
    /// The orders of threads in which the kernel runs.
    pub fn orders(&self) -> Vec<Schedule> {
        let shuffled = Schedule::Shuffled(self.seed);
        match self.order {
            Order::All => vec![Schedule::Forward, Schedule::Reversed, shuffled],
            Order::Forward => vec![Schedule::Forward],
            Order::Reversed => vec![Schedule::Reversed],
            Order::Shuffled => vec![shuffled],
        }
    }
}

/// An error for arguments that are malformed or do not fit the kernel.
#[derive(Debug)]
pub struct BadUsage(String);

impl std::fmt::Display for BadUsage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadUsage {}

/// Turns an error into a [`BadUsage`].
pub fn usage<T>(result: Result<T>) -> Result<T> {
    result.map_err(|error| BadUsage(format!("{error:#}")).into())
}

/// The contents of a file of cases.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    source: Option<PathBuf>,
    #[serde(default)]
    include: Vec<PathBuf>,
    #[serde(default)]
    define: Vec<String>,
    case: Vec<Case>,
}

/// Reads the cases of a TOML file.
pub fn read(path: &Path) -> Result<Vec<Case>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| shown.to_string())?;
    let file: File = toml::from_str(&text).with_context(|| shown.to_string())?;
    ensure!(!file.case.is_empty(), "{shown} has no [[case]]");
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut cases = file.case;
    for (number, case) in (1..).zip(&mut cases) {
        case.folder = folder.to_path_buf();
        case.source = case.source.take().or_else(|| file.source.clone());
        case.include.splice(..0, file.include.iter().cloned());
        case.define.splice(..0, file.define.iter().cloned());
        let both = case.grid.is_empty() || case.groups.is_empty();
        ensure!(case.source.is_some(), "{shown}: case {number} names no source");
        ensure!(case.entry.is_some(), "{shown}: case {number} names no entry");
        ensure!(both, "{shown}: case {number} has a grid and groups; give one of them");
    }
    Ok(cases)
}

/// Reads a number or a list of numbers.
fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a whole number, or a list of them")]
    enum Numbers {
        One(u32),
        More(Vec<u32>),
    }
    Ok(match Numbers::deserialize(deserializer)? {
        Numbers::One(number) => vec![number],
        Numbers::More(numbers) => numbers,
    })
}
