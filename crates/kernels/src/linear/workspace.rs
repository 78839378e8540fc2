//! Memory for packed matrices. Buffers are kept between calls, since the allocation of new pages
//! takes a large part of a product's time.

use std::sync::Mutex;

/// The largest number of floats in all kept buffers together.
const KEPT: usize = 32 << 20;
/// The largest number of buffers that are kept.
const BUFFERS: usize = 4;

static SPARE: Mutex<Vec<Vec<f32>>> = Mutex::new(Vec::new());

/// Calls `body` with room for `floats` uninitialized floats, aligned to a cache line.
pub fn with(floats: usize, body: &dyn Fn(*mut f32)) {
    const LINE: usize = 64 / size_of::<f32>();
    let mut buffer = take(floats + LINE).unwrap_or_else(|| Vec::with_capacity(floats + LINE));
    let start = buffer.as_mut_ptr();
    body(start.wrapping_add(start.align_offset(64)));
    keep(buffer);
}

/// Takes the smallest spare buffer that is large enough. Returns `None` if there is no such buffer
/// or another thread holds the lock.
fn take(floats: usize) -> Option<Vec<f32>> {
    let mut spare = SPARE.try_lock().ok()?;
    let enough = spare.iter().enumerate().filter(|(_, buffer)| buffer.capacity() >= floats);
    let (index, _) = enough.min_by_key(|(_, buffer)| buffer.capacity())?;
    Some(spare.swap_remove(index))
}

/// Keeps a buffer for later calls, unless it is too large or another thread holds the lock. If the
/// kept buffers are then too many or too large together, drops the smallest ones.
fn keep(buffer: Vec<f32>) {
    let Ok(mut spare) = SPARE.try_lock() else { return };
    if buffer.capacity() > KEPT {
        return;
    }
    spare.push(buffer);
    spare.sort_unstable_by_key(|buffer| std::cmp::Reverse(buffer.capacity()));
    spare.truncate(BUFFERS);
    let mut total = 0;
    spare.retain(|buffer| {
        total += buffer.capacity();
        total <= KEPT
    });
}
