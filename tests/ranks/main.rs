//! Tests of groups of ranks, and of models that are split among ranks. A rank is a process of the
//! group.

// `#[test]` in these files is an attribute of the crate `harness`, which registers the test.
#[macro_use]
extern crate harness;

#[cfg(unix)]
mod distributed;
#[cfg(unix)]
mod split;

#[cfg(unix)]
use harness::support;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    let _ = harness::start(); // `main` reports an error
    distributed::role().unwrap_or_else(|| harness::main(split::play, Vec::new()))
}

#[cfg(not(unix))]
fn main() {}
