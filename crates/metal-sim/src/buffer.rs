//! Memory that a dispatch binds to the arguments of a kernel.

use std::marker::PhantomData;

/// How a kernel may access a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The kernel only reads; a store is a fault.
    Read,
    /// The kernel reads and writes.
    ReadWrite,
    /// An output. It is uninitialized, and the kernel must write every byte.
    Write,
}

/// Types without padding and without invalid bit patterns.
///
/// # Safety
/// Every bit pattern must be a value of the type, and none of its bytes may be padding.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($kind:ty),*) => {
        // SAFETY: a number of 1 to 8 bytes has no padding, and all of its bit patterns are valid.
        $(unsafe impl Plain for $kind {})*
    };
}
plain!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);
#[cfg(feature = "half")]
plain!(half::f16, half::bf16);
// SAFETY: arrays have no padding between elements.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Memory for a kernel argument. It is borrowed, or owned by the dispatch.
///
/// Buffers of one dispatch may overlap, for example if a kernel works in place. [`Buffer::raw`]
/// makes such buffers.
#[derive(Debug)]
pub struct Buffer<'a> {
    pub(crate) memory: Memory,
    pub(crate) access: Access,
    /// The offset of the byte whose address the kernel gets.
    pub(crate) offset: usize,
    borrow: PhantomData<&'a mut [u8]>,
}

#[derive(Debug)]
pub(crate) enum Memory {
    Borrowed(*mut u8, usize),
    Owned(Vec<u8>),
}

impl<'a> Buffer<'a> {
    /// Borrows memory that the kernel reads.
    pub fn input<T: Plain>(data: &'a [T]) -> Self {
        let memory = Memory::Borrowed(data.as_ptr().cast_mut().cast(), size_of_val(data));
        Buffer { memory, access: Access::Read, offset: 0, borrow: PhantomData }
    }

    /// Borrows memory for an output. The kernel must write every byte.
    pub fn output<T: Plain>(data: &'a mut [T]) -> Self {
        let memory = Memory::Borrowed(data.as_mut_ptr().cast(), size_of_val(data));
        Buffer { memory, access: Access::Write, offset: 0, borrow: PhantomData }
    }

    /// Borrows memory that the kernel reads and writes.
    pub fn in_out<T: Plain>(data: &'a mut [T]) -> Self {
        Buffer { access: Access::ReadWrite, ..Self::output(data) }
    }

    /// Makes a buffer with a copy of `data` that the kernel reads.
    pub fn owned<T: Plain>(data: &[T]) -> Self {
        Buffer::with(bytes_of(data), Access::Read)
    }

    /// Makes a buffer that owns `bytes`, with the given access. After the dispatch,
    /// [`crate::Report::contents`] has the contents of the buffer.
    pub fn with(bytes: Vec<u8>, access: Access) -> Self {
        Buffer { memory: Memory::Owned(bytes), access, offset: 0, borrow: PhantomData }
    }

    /// Gives the kernel the address of the byte at `offset`, as `setBuffer` with an offset does.
    /// The kernel may also access the bytes before this address, for example in a view with
    /// negative strides.
    pub fn from_offset(mut self, offset: usize) -> Self {
        self.offset = offset;
        self
    }

    /// Makes a buffer that owns an output of `bytes` bytes.
    pub fn zeroed(bytes: usize) -> Self {
        Buffer::with(vec![0; bytes], Access::Write)
    }

    /// Makes a buffer from the address of memory in this process. The memory may overlap other
    /// buffers.
    ///
    /// # Safety
    /// `bytes` bytes at `pointer` must be valid for the access until the dispatch has run. Only the
    /// dispatch may access them in this time.
    pub unsafe fn raw(pointer: *mut u8, bytes: usize, access: Access) -> Self {
        let memory = Memory::Borrowed(pointer, bytes);
        Buffer { memory, access, offset: 0, borrow: PhantomData }
    }

    pub(crate) fn range(&self) -> (usize, usize) {
        match &self.memory {
            Memory::Borrowed(pointer, bytes) => (*pointer as usize, *bytes),
            Memory::Owned(bytes) => (bytes.as_ptr() as usize, bytes.len()),
        }
    }
}

/// The bytes of plain data.
pub(crate) fn bytes_of<T: Plain>(data: &[T]) -> Vec<u8> {
    // SAFETY: plain data has no padding, so all of its bytes are initialized.
    unsafe { std::slice::from_raw_parts(data.as_ptr().cast::<u8>(), size_of_val(data)) }.to_vec()
}
