//! Tests the tests. A mutant is a kernel, or the data of a dispatch, with one planted fault. Every
//! op runs through `eval_gpu` in the simulator, and a check must detect every mutant.

#[cfg(target_os = "linux")]
mod cases;
#[cfg(target_os = "linux")]
mod check;
#[cfg(target_os = "linux")]
mod dispatches;
#[cfg(target_os = "linux")]
mod equivalents;
#[cfg(target_os = "linux")]
mod kernels;
#[cfg(target_os = "linux")]
mod mutate;
#[cfg(target_os = "linux")]
mod rules;
#[cfg(target_os = "linux")]
mod tests;
#[cfg(target_os = "linux")]
mod traffic;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    tests::main()
}

/// The simulator replaces Metal's device only on Linux.
#[cfg(not(target_os = "linux"))]
fn main() {
    println!("mutants: not run: the simulator of Metal is for Linux");
}
