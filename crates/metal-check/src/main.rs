//! Runs a Metal kernel on a CPU, and reports its faults.

#[cfg(target_os = "linux")]
mod case;
#[cfg(target_os = "linux")]
mod check;
#[cfg(target_os = "linux")]
mod command;
#[cfg(target_os = "linux")]
mod cost;
#[cfg(target_os = "linux")]
mod data;
#[cfg(target_os = "linux")]
mod kernels;
#[cfg(target_os = "linux")]
mod report;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    command::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> std::process::ExitCode {
    eprintln!("error: metal-check runs on Linux");
    std::process::ExitCode::FAILURE
}
