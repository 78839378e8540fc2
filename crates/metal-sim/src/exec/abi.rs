//! The callbacks that compiled kernels call through runtime/runtime.cpp.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::ptr;

use super::machine::Machine;

/// The struct `Table` of runtime.cpp.
#[repr(C)]
pub(crate) struct Table {
    access: extern "C" fn(*const c_void, u64, u32, *const c_void),
    threadgroup_barrier: extern "C" fn(u32, *const c_void),
    simdgroup_barrier: extern "C" fn(u32, *const c_void),
    simd_exchange: extern "C" fn(*const c_void, u32, *mut u32, *const c_void) -> *const u8,
    lane: extern "C" fn() -> u32,
    inactive_lane: extern "C" fn(u32, *const c_void),
    threadgroup_variable: extern "C" fn(*const c_void, u64, *const c_char) -> *mut c_void,
    array_bounds: extern "C" fn(u64, *const c_void),
    division_by_zero: extern "C" fn(*const c_void),
    fence: extern "C" fn(u32, u32, u32, *const c_void),
}

pub(crate) static TABLE: Table = Table {
    access,
    threadgroup_barrier,
    simdgroup_barrier,
    simd_exchange,
    lane,
    inactive_lane,
    threadgroup_variable,
    array_bounds,
    division_by_zero,
    fence,
};

thread_local! {
    static CURRENT: Cell<*mut Machine> = const { Cell::new(ptr::null_mut()) };
}

/// Makes `machine` the current machine of this thread while `body` runs. The callbacks of kernels
/// use the current machine.
pub(super) fn with_machine<R>(machine: *mut Machine, body: impl FnOnce() -> R) -> R {
    let before = CURRENT.replace(machine);
    let result = body();
    CURRENT.set(before);
    result
}

/// The current machine of this thread. It is a raw pointer and not a reference, because a callback
/// may suspend its fiber, and then the scheduler uses the machine.
fn machine() -> *mut Machine {
    CURRENT.get()
}

extern "C" fn access(at: *const c_void, size: u64, kind: u32, site: *const c_void) {
    let machine = machine();
    if machine.is_null() {
        return;
    }
    // SAFETY: `with_machine` has set the pointer, and no other reference exists while a kernel
    // runs.
    let stop = unsafe { (*machine).access(at as usize, size as usize, kind, site as usize) };
    if stop {
        // SAFETY: the pointer is valid as above, and the borrow by `access` has ended.
        unsafe { Machine::suspend(machine) };
    }
}

extern "C" fn threadgroup_barrier(flags: u32, site: *const c_void) {
    // SAFETY: only kernels call this function. A kernel runs only inside `with_machine`, which has
    // set the pointer.
    unsafe {
        (*machine()).arrive_at_barrier(flags, site as usize);
        Machine::suspend(machine());
    }
}

extern "C" fn simdgroup_barrier(flags: u32, site: *const c_void) {
    // SAFETY: as in threadgroup_barrier.
    unsafe {
        (*machine()).arrive_at_simd_barrier(flags, site as usize);
        Machine::suspend(machine());
    }
}

extern "C" fn simd_exchange(
    value: *const c_void,
    size: u32,
    active: *mut u32,
    site: *const c_void,
) -> *const u8 {
    // SAFETY: as in `threadgroup_barrier`. In addition, `value` has `size` bytes and `active` is a
    // local variable of the caller. Both are on the stack of the fiber.
    unsafe {
        let shown = std::slice::from_raw_parts(value.cast::<u8>(), size as usize);
        let round = (*machine()).arrive_at_exchange(shown, site as usize);
        Machine::suspend(machine());
        let (slots, mask) = (*machine()).exchanged(round);
        *active = mask;
        slots
    }
}

extern "C" fn lane() -> u32 {
    // SAFETY: as in threadgroup_barrier.
    unsafe { (*machine()).lane() }
}

extern "C" fn inactive_lane(lane: u32, site: *const c_void) {
    // SAFETY: as in threadgroup_barrier.
    unsafe { (*machine()).inactive_lane(lane, site as usize) }
}

extern "C" fn threadgroup_variable(
    key: *const c_void,
    size: u64,
    name: *const c_char,
) -> *mut c_void {
    // SAFETY: as in `threadgroup_barrier`. In addition, the name is a string literal.
    unsafe {
        let name = CStr::from_ptr(name).to_string_lossy();
        let found = (*machine()).variable(key as usize, size as usize, &name);
        match found {
            Some(address) => address as *mut c_void,
            None => {
                Machine::suspend(machine());
                ptr::null_mut()
            }
        }
    }
}

extern "C" fn array_bounds(index: u64, site: *const c_void) {
    let machine = machine();
    if machine.is_null() {
        return;
    }
    // SAFETY: as in access.
    unsafe {
        (*machine).array_bounds(index, site as usize);
        Machine::suspend(machine);
    }
}

extern "C" fn division_by_zero(site: *const c_void) {
    let machine = machine();
    if machine.is_null() {
        return;
    }
    // SAFETY: as in access.
    unsafe {
        (*machine).division_by_zero(site as usize);
        Machine::suspend(machine);
    }
}

extern "C" fn fence(flags: u32, order: u32, scope: u32, site: *const c_void) {
    // SAFETY: as in `threadgroup_barrier`. The fiber is not suspended.
    unsafe { (*machine()).fence(flags, order, scope, site as usize) }
}
