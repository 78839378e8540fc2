//! Runs the command in a folder.

use std::path::Path;
use std::process::Command;

pub struct Ran {
    pub status: Option<i32>,
    pub out: String,
    pub err: String,
}

pub fn run(folder: &Path, arguments: &[&str]) -> Ran {
    let mut program = Command::new(env!("CARGO_BIN_EXE_metal-check"));
    program.current_dir(folder).args(arguments);
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let output = program.env("XDG_CACHE_HOME", cache).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { status: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}
