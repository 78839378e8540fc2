//! The host code of cpp/gpu and cpp/plan, built against a stand-in for MLX that notes what
//! would be encoded. It runs as a program of its own: a wrong plan may crash or never end.

use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::op::{BASE, Case, EPS, Op, SCALE};

/// What the host code encodes for one call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Launch {
    pub kernel: String,
    pub grid: [u64; 3],
    pub group: [u64; 3],
    /// Index and bytes.
    pub threadgroup: Vec<(u32, usize)>,
    /// Index and array: the number of an input, or [`OUT`].
    pub arrays: Vec<(u32, usize)>,
    pub params: (u32, Vec<u8>),
}

pub const OUT: usize = 9;

/// The kernel of a call that there is nothing to do for.
pub const NONE: &str = "none";

pub struct Host {
    program: PathBuf,
    _folder: tempfile::TempDir,
}

/// MLX's headers that the host code includes, and ours that need more of MLX than it does.
const STANDS_FOR: [&str; 7] = [
    "mlx/array.h",
    "mlx/mlx.h",
    "mlx/primitives.h",
    "mlx/backend/metal/device.h",
    "mlx/backend/metal/utils.h",
    "gpu/metallib.h",
    "ops/common.h",
];

impl Host {
    /// Builds the host code of `cpp`; the error is the compiler's.
    pub fn build(cpp: &Path) -> Result<Host, String> {
        let folder = tempfile::tempdir().unwrap();
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/suite/host");
        for header in STANDS_FOR {
            let path = folder.path().join(header);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "#pragma once\n#include \"stand_in.h\"\n").unwrap();
        }
        let program = folder.path().join("host");
        let mut command = compiler();
        command.args(["-std=c++20", "-O0", "-w"]);
        for include in [folder.path(), &ours, cpp] {
            command.arg("-I").arg(include);
        }
        command.arg(ours.join("main.cpp")).arg("-o").arg(&program);
        let output = command.output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(Host { program, _folder: folder })
    }

    /// What is encoded for each case. The error says how the program ended.
    pub fn launches(&self, cases: &[Case]) -> Result<Vec<Result<Launch, String>>, String> {
        let mut input = tempfile::tempfile().unwrap();
        for case in cases {
            writeln!(input, "{}", call(case)).unwrap();
        }
        input.rewind().unwrap();
        let output = Command::new(&self.program).stdin(Stdio::from(input)).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let launches: Vec<_> = text.lines().map(parse).collect();
        if !output.status.success() || launches.len() != cases.len() {
            return Err(format!("{} after {} launches", output.status, launches.len()));
        }
        Ok(launches)
    }
}

/// `CXX`, or any C++ compiler; the clang inside zig brings a library of C++ along.
fn compiler() -> Command {
    if let Some(named) = std::env::var_os("CXX") {
        return Command::new(named);
    }
    let works = |name: &str| {
        let version = Command::new(name).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    let names = ["c++", "clang++-19", "clang++"];
    if let Some(name) = names.iter().find(|name| works(name)) {
        return Command::new(name);
    }
    let mut zig = Command::new(crate::common::compiler().program());
    zig.arg("c++");
    zig
}

fn call(case: &Case) -> String {
    let (dims, traditional, forward, extra, offsets) = match case.op {
        Op::RmsNorm { weighted } => (0, false, true, weighted, 0),
        Op::Softmax => (0, false, true, false, 0),
        Op::Rope { dims, interleaved, freqs, forward, offsets } => {
            (dims, interleaved, forward, freqs, offsets)
        }
    };
    let flags = [case.in_place, traditional, forward, extra].map(u8::from);
    let mut words = vec![
        case.file().to_string(),
        case.dtype.name().to_string(),
        case.limit.to_string(),
        format!("{} {dims} {} {}", flags[0], flags[1], flags[2]),
        format!("{BASE} {SCALE} {EPS} {} {offsets}", flags[3]),
    ];
    words.extend(case.shape.iter().map(usize::to_string));
    words.join(" ")
}

fn parse(line: &str) -> Result<Launch, String> {
    if let Some(error) = line.strip_prefix("error ") {
        return Err(error.to_string());
    }
    let mut launch = Launch::default();
    let mut counts = Vec::new();
    for (i, word) in line.split(' ').enumerate() {
        match word.split_once('=') {
            None if i == 0 => launch.kernel = word.to_string(),
            None => counts.extend(word.parse::<u64>()),
            Some((place, value)) => {
                let index: u32 = place[1..].parse().unwrap_or(u32::MAX);
                let number = value.parse().unwrap_or(usize::MAX);
                match place.as_bytes()[0] {
                    b't' => launch.threadgroup.push((index, number)),
                    b'b' => launch.arrays.push((index, number)),
                    _ => launch.params = (index, unhex(value)),
                }
            }
        }
    }
    if let [gx, gy, gz, tx, ty, tz] = counts[..] {
        (launch.grid, launch.group) = ([gx, gy, gz], [tx, ty, tz]);
    }
    Ok(launch)
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |b: u8| (b as char).to_digit(16).unwrap_or(0) as u8;
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}
