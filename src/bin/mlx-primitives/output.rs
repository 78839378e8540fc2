//! What the command writes: the result on stdout, all else on stderr. A write that fails is an error
//! to return, never a panic, so nothing here is one of the standard library's macros.

use std::fmt::{self, Display};
use std::io::{self, Write};

/// stdout could not be written to.
#[derive(Debug)]
pub struct StdoutError(io::Error);

impl StdoutError {
    /// Whether nobody reads stdout any more, as after `head` has seen enough: no failure.
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

/// Writes a part of the result, at once.
pub fn print(part: impl Display) -> Result<(), StdoutError> {
    let mut stdout = io::stdout().lock();
    write!(stdout, "{part}").and_then(|()| stdout.flush()).map_err(StdoutError)
}

/// Has `write` write the result to stdout.
pub fn printed(write: impl FnOnce() -> io::Result<()>) -> Result<(), StdoutError> {
    check_stdout()?;
    write().and_then(|()| io::stdout().flush()).map_err(StdoutError)
}

/// Writes a line of the result, at once.
pub fn println(line: impl Display) -> Result<(), StdoutError> {
    print(format_args!("{line}\n"))
}

/// Writes to stderr. Where that fails there is nobody to tell.
pub fn eprint(part: impl Display) {
    let _ = write!(io::stderr().lock(), "{part}");
}

/// Writes a line to stderr. Where that fails there is nobody to tell.
pub fn eprintln(line: impl Display) {
    eprint(format_args!("{line}\n"));
}

/// An error if the command was started with stdout closed, as `>&-` does.
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

    /// Runs before `main`, because the standard library opens /dev/null in the place of a closed stdout
    /// before it calls `main`: what is written there would be lost without an error.
    // SAFETY: the section holds pointers to functions of this type, which the system's loader calls
    // once, before `main`, on the only thread.
    #[used]
    #[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
    #[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array"))]
    static LOOK: extern "C" fn() = look;

    extern "C" fn look() {
        // SAFETY: asks for a number's flags, whether or not a file is open under it.
        let closed = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) } == -1;
        STDOUT_IS_CLOSED.store(closed, Ordering::Relaxed);
        // SAFETY: no handler of ours runs. A file that grows beyond what the process may write is
        // then an error of the write instead of the end of the process.
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
