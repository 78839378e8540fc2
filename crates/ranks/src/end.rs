//! Ends a process whose group is broken. A thread that waits inside MLX for a lost rank cannot be
//! stopped, so the process ends without unwinding and without destructors.

/// Writes a line to stderr, if stderr accepts it within 0.2 s, and ends the process with status 1.
#[cfg(unix)]
pub(super) fn now(line: &str) -> ! {
    const LONGEST: usize = 4000; // a pipe that can be written to takes this at once
    let mut text: Vec<u8> = line.bytes().take(LONGEST).collect();
    text.push(b'\n');
    let mut stderr = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    // The code takes no lock of the standard library, since a stopped thread may hold it.
    // SAFETY: both pointers point to local values of the given lengths.
    unsafe {
        if libc::poll(&mut stderr, 1, 200) > 0 {
            libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len());
        }
    }
    // SAFETY: the call ends the process and has no conditions.
    unsafe { libc::_exit(1) }
}

/// Writes a line to stderr and ends the process with status 1.
#[cfg(not(unix))]
pub(super) fn now(line: &str) -> ! {
    eprintln!("{line}");
    std::process::exit(1)
}
