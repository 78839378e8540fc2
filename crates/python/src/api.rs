//! Calls Python's C functions by address. The library links to no symbol of Python, so one file
//! works with every version of Python. All of these functions belong to Python's stable interface.

use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::sync::OnceLock;

use crate::objects::Object;
use crate::refused::Refused;

/// Addresses of Python's functions and objects. The Python package fills them in, in this order.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Api {
    long_as_long_long: unsafe extern "C" fn(Object) -> i64,
    float_as_double: unsafe extern "C" fn(Object) -> f64,
    object_is_true: unsafe extern "C" fn(Object) -> c_int,
    err_occurred: unsafe extern "C" fn() -> Object,
    err_set_string: unsafe extern "C" fn(Object, *const c_char),
    object_call: unsafe extern "C" fn(Object, Object, Object) -> Object,
    tuple_new: unsafe extern "C" fn(isize) -> Object,
    tuple_set_item: unsafe extern "C" fn(Object, isize, Object) -> c_int,
    /// `mx.array`.
    pub array_type: Object,
    pub none: Object,
    /// The arguments of `mx.array` when it makes an array that receives a result.
    array_arguments: Object,
    type_error: Object,
    value_error: Object,
    runtime_error: Object,
}

// SAFETY: the objects live as long as the process, and threads use them only while they hold
// Python's lock.
unsafe impl Send for Api {}
// SAFETY: as for `Send`.
unsafe impl Sync for Api {}

static API: OnceLock<Api> = OnceLock::new();

pub fn begin(api: Api) {
    API.get_or_init(|| api);
}

pub fn api() -> Result<&'static Api, Refused> {
    API.get().ok_or_else(|| Refused::Runtime("the library has not begun".to_owned()))
}

/// The caller of each function holds Python's lock, and passes objects that live during the call.
impl Api {
    /// Reads an integer of 32 bits.
    ///
    /// # Safety
    ///
    /// `object` is a Python object, and this thread holds Python's lock.
    pub unsafe fn int(&self, object: Object, name: &str) -> Result<i32, Refused> {
        // SAFETY: the caller's promise.
        let value = unsafe { (self.long_as_long_long)(object) };
        // SAFETY: the caller's promise.
        if value == -1 && !unsafe { (self.err_occurred)() }.is_null() {
            return Err(Refused::Type(format!("expected {name} to be an int")));
        }
        let refused = |_| Refused::Value(format!("expected {name} to be an int of 32 bits"));
        i32::try_from(value).map_err(refused)
    }

    /// Reads a number.
    ///
    /// # Safety
    ///
    /// `object` is a Python object, and this thread holds Python's lock.
    pub unsafe fn float(&self, object: Object, name: &str) -> Result<f32, Refused> {
        // SAFETY: the caller's promise.
        let value = unsafe { (self.float_as_double)(object) };
        // SAFETY: the caller's promise.
        if value == -1.0 && !unsafe { (self.err_occurred)() }.is_null() {
            return Err(Refused::Type(format!("expected {name} to be a number")));
        }
        Ok(value as f32)
    }

    /// Whether Python treats an object as true.
    ///
    /// # Safety
    ///
    /// `object` is a Python object, and this thread holds Python's lock.
    pub unsafe fn flag(&self, object: Object, name: &str) -> Result<bool, Refused> {
        // SAFETY: the caller's promise.
        match unsafe { (self.object_is_true)(object) } {
            -1 => Err(Refused::Type(format!("expected {name} to be true or false"))),
            answer => Ok(answer != 0),
        }
    }

    /// Makes a new `mx.array`.
    ///
    /// # Safety
    ///
    /// This thread holds Python's lock.
    pub unsafe fn new_array(&self) -> Result<Object, Refused> {
        // SAFETY: the type and the tuple live as long as the process.
        let made =
            unsafe { (self.object_call)(self.array_type, self.array_arguments, ptr::null()) };
        if made.is_null() { Err(Refused::Raised) } else { Ok(made) }
    }

    /// Makes a tuple, which takes over the references to the objects.
    ///
    /// # Safety
    ///
    /// The objects are Python's, and this thread holds Python's lock.
    pub unsafe fn tuple(&self, objects: &[Object]) -> Result<Object, Refused> {
        // SAFETY: the caller's promise. The new tuple has this number of places, and each place is
        // set once.
        unsafe {
            let made = (self.tuple_new)(objects.len() as isize);
            if made.is_null() {
                return Err(Refused::Raised);
            }
            for (place, object) in (0..).zip(objects) {
                (self.tuple_set_item)(made, place, *object);
            }
            Ok(made)
        }
    }

    /// Sets Python's error for this thread, and returns null.
    ///
    /// # Safety
    ///
    /// This thread holds Python's lock.
    pub unsafe fn raise(&self, op: &str, refused: Refused) -> Object {
        let (kind, text) = match refused {
            Refused::Type(text) => (self.type_error, text),
            Refused::Value(text) => (self.value_error, text),
            Refused::Runtime(text) | Refused::Info(text) => (self.runtime_error, text),
            Refused::Raised => return ptr::null(),
        };
        let text = if text.starts_with('[') { text } else { format!("[{op}] {text}") };
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        // SAFETY: the types live as long as the process, and Python copies the text.
        unsafe { (self.err_set_string)(kind, text.as_ptr()) };
        ptr::null()
    }
}
