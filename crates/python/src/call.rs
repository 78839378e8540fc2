//! How a call ends: with its results, or with the text of an error.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use mlx_primitives::device::{self, Device};
use mlx_primitives::ops::{RowOrder, with_row_order};
use mlx_primitives::{Array, Result, panics};

use crate::objects::{Place, layout};
use crate::refused::Refused;

thread_local! {
    static TEXT: RefCell<CString> = RefCell::default();
    static ROW_ORDER: Cell<RowOrder> = const { Cell::new(RowOrder::ByCount) };
}

/// Whether there is a GPU for which this build has no kernels.
static REFUSES_GPU: AtomicBool = AtomicBool::new(false);

pub fn begin(refuses_gpu: bool) {
    REFUSES_GPU.store(refuses_gpu, Ordering::Relaxed);
}

pub fn set_row_order(order: RowOrder) -> RowOrder {
    ROW_ORDER.replace(order)
}

/// Runs `f`, and returns null or the text of its error. No panic leaves it.
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
    };
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    let keep = |place: &RefCell<CString>| {
        let mut place = place.borrow_mut();
        *place = text;
        place.as_ptr()
    };
    // While the thread ends, there may be no place for the text.
    TEXT.try_with(keep).unwrap_or(c"Rthe thread is ending".as_ptr())
}

/// Builds an op in the thread's order of rows, unless it would run where it has no kernels.
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

/// The results of an op.
pub trait Results<const N: usize> {
    fn all(self) -> [Array; N];
}

impl Results<1> for Array {
    fn all(self) -> [Array; 1] {
        [self]
    }
}

impl Results<2> for (Array, Array) {
    fn all(self) -> [Array; 2] {
        self.into()
    }
}

impl Results<3> for (Array, Array, Array) {
    fn all(self) -> [Array; 3] {
        self.into()
    }
}

/// Makes the arrays at `places` the results.
///
/// # Safety
///
/// The places are Python objects that no other thread uses.
pub unsafe fn store<const N: usize>(
    results: impl Results<N>,
    places: [Place; N],
) -> Result<(), Refused> {
    let layout = layout()?;
    for (array, place) in results.all().iter().zip(places) {
        // SAFETY: the caller promises that these are objects.
        unsafe { layout.assign(place, array) }?;
    }
    Ok(())
}
