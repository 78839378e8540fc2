//! Catches panics in a caller's code, and in the destructors of a caller's values.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a caller's code. If the code panics, returns the message of the panic.
pub fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(message)
}

pub fn panic_message(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}

/// The message of a panic. The destructor of the payload may panic too. Then the payload of the
/// second panic is leaked.
fn message(payload: Box<dyn Any + Send>) -> String {
    let text = panic_message(&*payload).to_owned();
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another); // its destructor could panic again
    }
    text
}

/// A caller's value that is dropped in a call from C++. A panic of the value's destructor would
/// unwind into C++ and end the process, so `Guarded` catches it.
pub struct Guarded<T>(ManuallyDrop<T>);

impl<T> Guarded<T> {
    pub fn new(value: T) -> Self {
        Self(ManuallyDrop::new(value))
    }

    pub fn get(&self) -> &T {
        &self.0
    }

    pub fn get_mut(&mut self) -> &mut T {
        &mut self.0
    }

    /// Drops the value. If the destructor panics, returns the message of the panic.
    pub fn end(self) -> Result<(), String> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is never dropped, so no other code takes the value.
        let value = unsafe { ManuallyDrop::take(&mut this.0) };
        caught(|| drop(value))
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        // SAFETY: `end` does not drop `self`, so no other code takes the value.
        let value = unsafe { ManuallyDrop::take(&mut self.0) };
        let _ = caught(|| drop(value)); // no caller could receive the message
    }
}
