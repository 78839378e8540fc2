//! Ends a call: returns its results or its error. The functions that ctypes calls return an error
//! as text.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use mlx_primitives::device::{self, Device};
use mlx_primitives::ops::{RowOrder, with_row_order};
use mlx_primitives::{Array, Result, panics};

use crate::api::api;
use crate::objects::{Object, layout};
use crate::refused::Refused;

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
    static ROW_ORDER: Cell<RowOrder> = const { Cell::new(RowOrder::ByCount) };
}

/// Whether the machine has a GPU for which this build has no kernels.
static REFUSES_GPU: AtomicBool = AtomicBool::new(false);

pub fn begin(refuses_gpu: bool) {
    REFUSES_GPU.store(refuses_gpu, Ordering::Relaxed);
}

pub fn set_row_order(order: RowOrder) -> RowOrder {
    ROW_ORDER.replace(order)
}

/// Runs `f`, and returns null or the text of its error. Panics become errors.
pub fn finish(f: impl FnOnce() -> Result<(), Refused>) -> *const c_char {
    let refused = match panics::caught(f) {
        Ok(Ok(())) => return ptr::null(),
        Ok(Err(refused)) => refused,
        Err(why) => Refused::Runtime(format!("[mlx_primitives] a panic, which is a fault: {why}")),
    };
    let text = match refused {
        Refused::Type(text) => format!("T{text}"),
        Refused::Value(text) => format!("V{text}"),
        Refused::Runtime(text) => format!("R{text}"),
        Refused::Info(text) => format!("I{text}"),
        Refused::Raised => "Ra function of Python failed".to_owned(),
    };
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    let keep = |place: &RefCell<CString>| {
        let mut place = place.borrow_mut();
        *place = text;
        place.as_ptr()
    };
    // While the thread ends, the thread-local text may not exist.
    TEXT.try_with(keep).unwrap_or(c"Rthe thread is ending".as_ptr())
}

/// Builds an op with this thread's setting for the order of rows (`mlx_primitives_row_order`).
/// Returns an error if the op would run on a GPU for which this build has no kernels.
pub fn built<R>(op: &str, build: impl FnOnce() -> Result<R>) -> Result<R, Refused> {
    if REFUSES_GPU.load(Ordering::Relaxed) && device::current()? == Device::Gpu {
        let cure = "pass stream=mx.cpu, or make it the default device";
        let text = format!("[{op}] this build has no kernels for the GPU of this machine: {cure}");
        return Err(Refused::Runtime(text));
    }
    Ok(match ROW_ORDER.get() {
        RowOrder::ByCount => build(),
        order => with_row_order(order, build),
    }?)
}

/// Runs an op and returns its result to Python, or sets Python's error and returns null. Panics
/// become errors.
///
/// # Safety
///
/// This thread holds Python's lock.
pub unsafe fn answer(op: &str, run: impl FnOnce() -> Result<Object, Refused>) -> Object {
    let refused = match panics::caught(run) {
        Ok(Ok(object)) => return object,
        Ok(Err(refused)) => refused,
        Err(why) => Refused::Runtime(format!("a panic, which is a fault: {why}")),
    };
    match api() {
        // SAFETY: the caller's promise.
        Ok(api) => unsafe { api.raise(op, refused) },
        Err(_) => ptr::null(), // Python has no function before it has begun
    }
}

/// Returns the arguments of a call, or an error if their number is not `N`.
///
/// # Safety
///
/// There are `count` objects at `arguments`.
pub unsafe fn exactly<const N: usize>(
    arguments: *const Object,
    count: isize,
) -> Result<[Object; N], Refused> {
    if usize::try_from(count) != Ok(N) {
        return Err(Refused::Type(format!("expected {N} arguments, got {count}")));
    }
    // SAFETY: the caller's promise.
    Ok(std::array::from_fn(|i| unsafe { *arguments.add(i) }))
}

/// The results of an op, in the form that Python gets.
pub trait Results {
    /// Makes an array, or a tuple of arrays.
    ///
    /// # Safety
    ///
    /// This thread holds Python's lock.
    unsafe fn into_object(self) -> Result<Object, Refused>;
}

impl Results for Array {
    unsafe fn into_object(self) -> Result<Object, Refused> {
        // SAFETY: the caller's promise. No other code has the new object.
        unsafe {
            let made = api()?.new_array()?;
            layout()?.assign(made.cast_mut(), &self)?;
            Ok(made)
        }
    }
}

impl<const N: usize> Results for [Array; N] {
    unsafe fn into_object(self) -> Result<Object, Refused> {
        let mut objects = [ptr::null(); N];
        for (object, array) in objects.iter_mut().zip(self) {
            // SAFETY: the caller's promise.
            *object = unsafe { array.into_object() }?;
        }
        // SAFETY: the caller's promise.
        unsafe { api()?.tuple(&objects) }
    }
}

impl Results for (Array, Array) {
    unsafe fn into_object(self) -> Result<Object, Refused> {
        // SAFETY: the caller's promise.
        unsafe { <[Array; 2]>::from(self).into_object() }
    }
}

impl Results for (Array, Array, Array) {
    unsafe fn into_object(self) -> Result<Object, Refused> {
        // SAFETY: the caller's promise.
        unsafe { <[Array; 3]>::from(self).into_object() }
    }
}
