//! Memory for packed matrices, kept between calls: new pages would cost a good part of a product.

use std::sync::Mutex;

/// What is kept at most, in floats.
const KEPT: usize = 16 << 20;

static SPARE: Mutex<Vec<f32>> = Mutex::new(Vec::new());

/// Calls `body` with room for `floats` uninitialised floats, aligned to a cache line.
pub fn with(floats: usize, body: &dyn Fn(*mut f32)) {
    const LINE: usize = 64 / size_of::<f32>();
    // A second caller, or one after a panic, makes do with memory of its own.
    let mut buffer =
        SPARE.try_lock().map(|mut spare| std::mem::take(&mut *spare)).unwrap_or_default();
    if buffer.capacity() < floats + LINE {
        buffer = Vec::with_capacity(floats + LINE);
    }
    let start = buffer.as_mut_ptr();
    body(start.wrapping_add(start.align_offset(64)));
    if buffer.capacity() <= KEPT
        && let Ok(mut spare) = SPARE.try_lock()
        && spare.capacity() < buffer.capacity()
    {
        *spare = buffer;
    }
}
