//! Writes the command's result to stdout, and everything else to stderr. A failed write must be an
//! error, but the standard library's macros such as `println!` would panic. So this module does not
//! use them.

use std::fmt::{self, Display};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use mlx_primitives::printable;

use crate::joined;

/// The error of a failed write to stdout.
#[derive(Debug)]
pub struct StdoutError(io::Error);

impl StdoutError {
    /// Returns whether the reader of stdout has closed it, as `head` does. In this case the command
    /// has not failed.
    pub fn is_broken_pipe(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

impl Display for StdoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fix = match self.0.kind() {
            io::ErrorKind::StorageFull => "free space, or write to another disk",
            _ => "let it lead to a file, a pipe or a terminal",
        };
        write!(f, "cannot write the result to stdout: {}: {fix}", self.0)
    }
}

impl std::error::Error for StdoutError {}

/// Writes a part of the result and flushes stdout. Only rank 0 writes.
pub fn print(part: impl Display) -> Result<(), StdoutError> {
    if !joined::is_first() {
        return Ok(());
    }
    let mut stdout = io::stdout().lock();
    write!(stdout, "{part}").and_then(|()| stdout.flush()).map_err(StdoutError)
}

/// Calls `write`, which must write the result to stdout, and then flushes stdout.
pub fn printed(write: impl FnOnce() -> io::Result<()>) -> Result<(), StdoutError> {
    check_stdout()?;
    write().and_then(|()| io::stdout().flush()).map_err(StdoutError)
}

/// Writes a line of the result and flushes stdout.
pub fn println(line: impl Display) -> Result<(), StdoutError> {
    print(format_args!("{line}\n"))
}

static QUIET: AtomicBool = AtomicBool::new(false);

/// Sets whether the command writes only errors to stderr.
pub fn quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Writes a note to stderr on rank 0 unless the command is quiet. Ignores a failed write, because
/// there is no other place to report it.
pub fn eprint(part: impl Display) {
    if !is_quiet() {
        answer(part);
    }
}

/// Writes a reply to the user, or an error, to stderr on rank 0, even if the command is quiet.
pub fn answer(part: impl Display) {
    if joined::is_first() {
        let _ = write!(io::stderr().lock(), "{part}");
    }
}

/// Writes an error to stderr. Adds the rank's number if there are several ranks.
pub fn error(reason: impl Display) {
    let rank = joined::group().map(|group| format!("[rank {}] ", group.rank())).unwrap_or_default();
    // Write the line in a single call, because MLX's threads also write to stderr.
    let reason = printable::lines(&reason.to_string());
    let line = format!("{rank}error: {reason}\n");
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// Writes a note like [`eprint`], and a line break.
pub fn eprintln(line: impl Display) {
    eprint(format_args!("{line}\n"));
}

/// Returns an error if stdout was closed when the command started, for example by `>&-` in a shell.
pub fn check_stdout() -> Result<(), StdoutError> {
    match startup::stdout_is_closed() {
        true => Err(StdoutError(io::Error::other("it is closed"))),
        false => Ok(()),
    }
}

#[cfg(unix)]
mod startup {
    use std::sync::atomic::{AtomicBool, Ordering};

    static STDOUT_IS_CLOSED: AtomicBool = AtomicBool::new(false);

    /// Makes the loader run `look` before `main`. The standard library opens /dev/null in place of
    /// a closed stdout before it calls `main`, and the result would be lost there without an error.
    // SAFETY: this section holds pointers to functions of this type. The system's loader calls them
    // once, before `main`, on the only thread.
    #[used]
    #[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
    #[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array"))]
    static LOOK: extern "C" fn() = look;

    extern "C" fn look() {
        // SAFETY: the call only reads the flags of a descriptor. It returns an error if the
        // descriptor is not open.
        let closed = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } == -1;
        STDOUT_IS_CLOSED.store(closed, Ordering::Relaxed);
        // SAFETY: the call installs no handler. It makes a write fail, instead of ending the
        // process, when a file exceeds the process's size limit.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    }

    pub fn stdout_is_closed() -> bool {
        STDOUT_IS_CLOSED.load(Ordering::Relaxed)
    }
}

#[cfg(not(unix))]
mod startup {
    pub fn stdout_is_closed() -> bool {
        false
    }
}
