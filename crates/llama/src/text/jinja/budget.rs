//! Limits the memory and the time of a template. The strings and lists among a template's values
//! grow through [`Buffer`] and [`Items`]. These types take bytes from one budget before they
//! allocate. The bytes are given back when the value is dropped. So most filters and operators need
//! no separate limit.

use std::cell::Cell;
use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;

/// The reason why a template cannot be rendered.
#[derive(Debug)]
pub struct Fault(pub String);

pub type Outcome<T> = Result<T, Fault>;

/// Returns a fault with this reason.
pub fn fault<T>(text: impl Display) -> Outcome<T> {
    Err(Fault(text.to_string()))
}

/// The maximum time for a template: processor time on Unix, elapsed time on other systems. Ordinary
/// templates take milliseconds.
const TIME: Duration = Duration::from_millis(500);

/// The number of steps between two checks of the time.
const STEPS: i64 = 5_000;

/// The maximum nesting depth of lists and dictionaries. The limit is needed because comparing,
/// printing and dropping them is recursive.
pub const MOST_NESTED: u32 = 200;

/// The memory and time that a template can still use.
#[derive(Clone)]
pub struct Budget(Rc<Left>);

struct Left {
    bytes: Cell<usize>,
    most: usize,
    steps: Cell<i64>,
    until: Duration,
}

impl Budget {
    /// Makes a budget that allows at most `bytes` bytes of text and values at a time.
    pub fn new(bytes: usize) -> Self {
        let until = spent().saturating_add(TIME);
        let bytes = Cell::new(bytes);
        Self(Rc::new(Left { most: bytes.get(), bytes, steps: Cell::new(STEPS), until }))
    }

    /// Counts `count` steps of a few nanoseconds each, and returns a fault if no time is left.
    pub fn steps(&self, count: usize) -> Outcome<()> {
        let left = self.0.steps.get().saturating_sub(i64::try_from(count).unwrap_or(i64::MAX));
        self.0.steps.set(left);
        if left > 0 {
            return Ok(());
        }
        self.0.steps.set(STEPS);
        match spent() < self.0.until {
            true => Ok(()),
            false => fault("one that does not end within half a second"),
        }
    }

    fn take(&self, bytes: usize) -> Outcome<()> {
        self.steps(1 + bytes / 64)?;
        match self.0.bytes.get().checked_sub(bytes) {
            Some(left) => {
                self.0.bytes.set(left);
                Ok(())
            }
            None => fault(format_args!("more than {} bytes of text and values", self.0.most)),
        }
    }

    fn give(&self, bytes: usize) {
        self.0.bytes.set(self.0.bytes.get() + bytes);
    }
}

/// Bytes taken from the budget. They are given back when the `Charge` is dropped.
pub struct Charge {
    budget: Budget,
    bytes: usize,
}

impl Charge {
    pub fn new(budget: &Budget, bytes: usize) -> Outcome<Self> {
        budget.take(bytes)?;
        Ok(Self { budget: budget.clone(), bytes })
    }

    fn add(&mut self, bytes: usize) -> Outcome<()> {
        self.budget.take(bytes)?;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.give(self.bytes);
    }
}

/// The bytes that a value needs in addition to its text or items.
const OVERHEAD: usize = 64;

/// A string that grows within the budget.
pub struct Buffer {
    text: String,
    charge: Charge,
}

impl Buffer {
    pub fn new(budget: &Budget) -> Outcome<Self> {
        Ok(Self { text: String::new(), charge: Charge::new(budget, OVERHEAD)? })
    }

    pub fn push(&mut self, text: &str) -> Outcome<()> {
        self.charge.add(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    pub fn character(&mut self, c: char) -> Outcome<()> {
        self.push(c.encode_utf8(&mut [0; 4]))
    }

    /// Adds `text` `count` times.
    pub fn repeat(&mut self, text: &str, count: usize) -> Outcome<()> {
        let bytes = text.len().checked_mul(count);
        self.charge.add(bytes.unwrap_or(usize::MAX / 2))?;
        let portion = (4096 / text.len().max(1)).clamp(1, count.max(1));
        let portions = text.repeat(portion);
        for _ in 0..if text.is_empty() { 0 } else { count / portion } {
            self.text.push_str(&portions);
        }
        self.text.push_str(&text.repeat(count % portion));
        Ok(())
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn into_parts(self) -> (String, Charge) {
        (self.text, self.charge)
    }
}

/// A list of values that grows within the budget.
pub struct Items<T> {
    items: Vec<T>,
    charge: Charge,
}

impl<T> Items<T> {
    pub fn new(budget: &Budget) -> Outcome<Self> {
        Ok(Self { items: Vec::new(), charge: Charge::new(budget, OVERHEAD)? })
    }

    pub fn push(&mut self, item: T) -> Outcome<()> {
        // A filter can make copies of a list, so each item counts four times.
        self.charge.add(4 * size_of::<T>())?;
        self.items.push(item);
        Ok(())
    }

    pub fn items(&self) -> &[T] {
        &self.items
    }

    pub fn items_mut(&mut self) -> &mut Vec<T> {
        &mut self.items
    }

    pub fn into_parts(self) -> (Vec<T>, Charge) {
        (self.items, self.charge)
    }
}

/// Returns the processor time of this thread. It does not include the time of other programs, so an
/// ordinary template stays within the limit on a busy machine too.
#[cfg(unix)]
fn spent() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `clock_gettime` writes one `timespec` to `time`, which has this type.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) } != 0;
    match (failed, u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec)) {
        (false, Ok(seconds), Ok(nanoseconds)) => Duration::new(seconds, nanoseconds),
        _ => Duration::MAX, // if the clock fails, the template stops
    }
}

#[cfg(not(unix))]
fn spent() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;

    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}
