//! Reads and writes `mx.array` objects by address.
//!
//! nanobind stores a C++ value inside the Python object. Two 32-bit words follow Python's header:
//! the offset of the value from the object's address, and flags. Both words are equal for all
//! arrays that MLX makes. An object with the type, offset and flags of the probe array therefore
//! holds an array.

use std::sync::OnceLock;

use mlx_primitives::Array;
use mlx_primitives::support::guest;

use crate::refused::Refused;

/// The address of a Python object that this library reads.
pub type Object = *const u8;
/// The address of an `mx.array` of Python that receives a result.
pub type Place = *mut u8;

/// The flag bits that tell whether the object holds a value, and where.
const FLAGS: u64 = 0xf;

/// The layout of a Python object that holds an array.
#[derive(Clone, Copy)]
pub struct Layout {
    /// The size of Python's header. The type is the last field of the header.
    head: usize,
    array_type: Object,
    none: Object,
    offset: usize,
    flags: u64,
}

// SAFETY: the addresses of the type and of None are only compared with others.
unsafe impl Send for Layout {}
// SAFETY: as for `Send`.
unsafe impl Sync for Layout {}

static LAYOUT: OnceLock<Layout> = OnceLock::new();

pub fn begin(layout: Layout) {
    LAYOUT.get_or_init(|| layout);
}

/// The layout of this process.
pub fn layout() -> Result<&'static Layout, Refused> {
    LAYOUT.get().ok_or_else(|| Refused::Runtime("the library has not begun".to_owned()))
}

/// Returns the type of an object, and the offset and flags that follow its header.
///
/// # Safety
///
/// `object` is a Python object of `head` + 8 bytes at least.
unsafe fn words(object: Object, head: usize) -> (Object, usize, u64) {
    // SAFETY: the caller promises that these bytes belong to the object, which Python aligns.
    unsafe {
        let kind = object.add(head - 8).cast::<Object>().read();
        let word = object.add(head).cast::<u64>().read();
        (kind, word as u32 as usize, (word >> 32) & FLAGS)
    }
}

impl Layout {
    /// Reads the layout from `probe`, an array of `size` bytes.
    ///
    /// # Safety
    ///
    /// `probe` is a Python object of this size, and `head` is the size of Python's header.
    pub unsafe fn of(
        head: usize,
        size: usize,
        array_type: Object,
        none: Object,
        probe: Object,
    ) -> Result<Self, String> {
        if !(16..=64).contains(&head) || size < head + 8 + size_of::<[usize; 2]>() {
            return Err(format!("an mx.array has {size} bytes, too few to hold an array"));
        }
        // SAFETY: the object has these bytes.
        let (kind, offset, flags) = unsafe { words(probe, head) };
        let within = head + 8 <= offset && offset + size_of::<[usize; 2]>() <= size;
        if kind != array_type || !within || !offset.is_multiple_of(align_of::<usize>()) {
            return Err(format!("an mx.array of {size} bytes does not hold its array at {offset}"));
        }
        Ok(Self { head, array_type, none, offset, flags })
    }

    /// Returns the address of the array in an object; `None` if the object is no `mx.array`.
    ///
    /// # Safety
    ///
    /// `object` is a Python object.
    pub unsafe fn address(&self, object: Object) -> Option<*const ()> {
        // SAFETY: every object has a header, and objects of this type have the bytes after it.
        unsafe {
            if object.add(self.head - 8).cast::<Object>().read() != self.array_type {
                return None;
            }
            let (_, offset, flags) = words(object, self.head);
            let same = (offset, flags) == (self.offset, self.flags);
            same.then(|| object.add(offset).cast())
        }
    }

    /// Returns the array of an argument.
    ///
    /// # Safety
    ///
    /// `object` is a Python object that no other thread changes.
    pub unsafe fn array(&self, object: Object, name: &str) -> Result<Array, Refused> {
        // SAFETY: the caller promises that this is a Python object.
        match unsafe { self.address(object) } {
            // SAFETY: an object whose words equal the probe's holds an array at this address.
            Some(address) => Ok(unsafe { guest::array_at(address) }),
            None => Err(Refused::Type(format!("expected {name} to be an mx.array"))),
        }
    }

    /// Returns the array of an argument that may be None.
    ///
    /// # Safety
    ///
    /// `object` is a Python object that no other thread changes.
    pub unsafe fn optional(&self, object: Object, name: &str) -> Result<Option<Array>, Refused> {
        if object == self.none {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        unsafe { self.array(object, name) }.map(Some)
    }

    /// Makes the array in the object at `place` equal to `array`.
    ///
    /// # Safety
    ///
    /// `place` is a Python object that no other thread uses.
    pub unsafe fn assign(&self, place: Place, array: &Array) -> Result<(), Refused> {
        // SAFETY: the caller promises that this is a Python object.
        let Some(address) = (unsafe { self.address(place) }) else {
            return Err(Refused::Type("expected an mx.array for a result".to_owned()));
        };
        // SAFETY: an object whose words equal the probe's holds an array at this address.
        unsafe { guest::assign(address.cast_mut(), array) };
        Ok(())
    }
}
