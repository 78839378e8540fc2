//! Keeps the messages of panics for the reports of failed tests. Nothing else prints them, because
//! many tests panic on purpose.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::{panic, thread};

/// The number of panic messages that are kept.
const KEPT: usize = 8;

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

static RECENT: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Installs a panic hook that keeps each message and does not print it.
pub fn keep() {
    panic::set_hook(Box::new(|info| {
        let thread = thread::current();
        let text = format!("thread '{}': {info}", thread.name().unwrap_or("without a name"));
        let mut recent = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
        recent.push_back(text.clone());
        if recent.len() > KEPT {
            recent.pop_front();
        }
        let _ = LAST.try_with(|last| last.replace(text));
    }));
}

/// The message of the last panic on this thread.
pub fn last_of_this_thread() -> String {
    LAST.with(RefCell::take)
}

/// The messages of the last panics on all threads. Some may belong to tests that ran at the same
/// time.
pub fn of_other_threads() -> String {
    let recent = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
    let lines: Vec<_> = recent.iter().map(|text| format!("  {text}\n")).collect();
    format!("The last panics in this process, some of them on purpose:\n{}", lines.concat())
}
