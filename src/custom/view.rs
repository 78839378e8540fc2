//! The inputs and outputs of `eval_cpu`.

use std::marker::PhantomData;

use crate::array::Array;
use crate::custom::bridge::ffi;
use crate::dtype::{Dtype, Element};
use crate::error::{Error, Result};

/// The shape and type of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The length of each dimension.
    pub shape: Vec<i32>,
    /// The type of the elements.
    pub dtype: Dtype,
}

impl Spec {
    /// The description of an array of this shape and type.
    pub fn new(shape: impl Into<Vec<i32>>, dtype: Dtype) -> Self {
        Self { shape: shape.into(), dtype }
    }

    /// The description of an array.
    pub fn of(array: &Array) -> Self {
        Self::new(array.shape(), array.dtype())
    }

    /// The number of elements.
    pub fn size(&self) -> usize {
        self.shape.iter().fold(1, |size, &dim| size.saturating_mul(dim as usize))
    }
}

impl std::fmt::Display for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.dtype, self.shape)
    }
}

impl From<Spec> for ffi::CustomOutput {
    fn from(spec: Spec) -> Self {
        Self { shape: spec.shape, dtype: spec.dtype.into() }
    }
}

/// The memory of an evaluated array: address, shape, strides and type.
#[derive(Clone, Copy)]
pub(super) struct Evaluated<'a> {
    data: *mut u8,
    shape: &'a [i32],
    strides: &'a [i64],
    dtype: Dtype,
    row_contiguous: bool,
}

impl<'a> Evaluated<'a> {
    pub(super) fn new(array: &ffi::CustomView, shape: &'a [i32], strides: &'a [i64]) -> Self {
        let ffi::CustomView { data, row_contiguous, .. } = *array;
        Self { data, shape, strides, dtype: array.dtype.into(), row_contiguous }
    }

    fn size(&self) -> usize {
        self.shape.iter().map(|&dim| dim as usize).product()
    }

    /// The address of the first element, or `None` if it is null or not aligned for `T`.
    fn data<T>(&self) -> Option<*mut T> {
        let data = self.data.cast::<T>();
        (data.is_aligned() && !data.is_null()).then_some(data)
    }
}

/// An evaluated input of [`CustomPrimitive::eval_cpu`](super::CustomPrimitive::eval_cpu).
pub struct View<'a> {
    op: &'a str,
    index: usize,
    array: Evaluated<'a>,
    taken: bool,
}

impl<'a> View<'a> {
    /// A view of an evaluated array. Its memory is valid for `'a`. Nothing writes to the memory
    /// during `'a`, unless `taken` tells that an output took it over.
    pub(super) fn new(op: &'a str, index: usize, array: Evaluated<'a>, taken: bool) -> Self {
        Self { op, index, array, taken }
    }

    /// The length of each dimension.
    pub fn shape(&self) -> &'a [i32] {
        self.array.shape
    }

    /// The distance in memory, in elements, between neighbors along each dimension.
    pub fn strides(&self) -> &'a [i64] {
        self.array.strides
    }

    /// The type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.array.dtype
    }

    /// The number of elements.
    pub fn size(&self) -> usize {
        self.array.size()
    }

    /// The elements in row-major order, in place.
    ///
    /// # Errors
    ///
    /// Returns an error if `T` is not the type of the input, if output 0 has taken over its memory,
    /// or if the input is not row-contiguous, which happens only with
    /// [`Layout::Any`](super::Layout::Any).
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T]> {
        let data = self.data::<T>()?;
        if !self.array.row_contiguous {
            return Err(
                self.expected("row-contiguous", format_args!("strides {:?}", self.strides()))
            );
        }
        if self.size() == 0 {
            return Ok(&[]);
        }
        // SAFETY: an evaluated row-contiguous array has its elements at `data`, aligned and of type
        // T. All bits are valid for T, and nothing writes the elements for 'a.
        Ok(unsafe { std::slice::from_raw_parts(data, self.size()) })
    }

    /// An iterator over the elements in row-major order, for any layout.
    ///
    /// # Errors
    ///
    /// Returns an error if `T` is not the type of the input, or output 0 has taken over its memory.
    pub fn elements<T: Element>(&self) -> Result<Elements<'a, T>> {
        Ok(self.walk(self.data::<T>()?))
    }

    fn walk<T>(&self, data: *const T) -> Elements<'a, T> {
        let shape = self.shape();
        Elements {
            data,
            shape,
            strides: self.strides(),
            at: vec![0; shape.len()],
            left: self.size(),
            lives: PhantomData,
        }
    }

    fn data<T: Element>(&self) -> Result<*const T> {
        if self.taken {
            return Err(self.expected("read in output 0", "it read in its own view"));
        }
        if T::DTYPE != self.dtype() {
            return Err(self.expected(T::DTYPE, self.dtype()));
        }
        if self.size() == 0 {
            return Ok(std::ptr::dangling());
        }
        let Some(data) = self.array.data::<T>() else {
            let got = format_args!("{:?}", self.array.data);
            return Err(self.expected("aligned to its elements", got));
        };
        let data = data.cast_const();
        // Bytes other than 0 and 1 are not valid bools in Rust.
        if T::DTYPE == Dtype::Bool && self.walk(data.cast::<u8>()).any(|byte| byte > 1) {
            return Err(self.expected("of bools", "other bytes than 0 and 1"));
        }
        Ok(data)
    }

    fn expected(&self, what: impl std::fmt::Display, got: impl std::fmt::Display) -> Error {
        Error::argument(self.op, format_args!("input {} to be {what}, got {got}", self.index))
    }
}

/// An iterator over the elements of an input in row-major order; see [`View::elements`].
pub struct Elements<'a, T> {
    data: *const T,
    shape: &'a [i32],
    strides: &'a [i64],
    at: Vec<i32>,
    left: usize,
    lives: PhantomData<&'a T>,
}

impl<T: Copy> Iterator for Elements<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.left = self.left.checked_sub(1)?;
        // SAFETY: MLX's strides lead to an element of the array for every index within its shape,
        // and `checked_sub` showed that another index follows.
        let element = unsafe { *self.data };
        if self.left > 0 {
            let mut step = 0;
            for axis in (0..self.at.len()).rev() {
                self.at[axis] += 1;
                step += self.strides[axis];
                if self.at[axis] < self.shape[axis] {
                    break;
                }
                step -= i64::from(self.at[axis]) * self.strides[axis];
                self.at[axis] = 0;
            }
            self.data = self.data.wrapping_offset(step as isize);
        }
        Some(element)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<T: Copy> ExactSizeIterator for Elements<'_, T> {}

/// An output for [`CustomPrimitive::eval_cpu`](super::CustomPrimitive::eval_cpu) to fill.
pub struct ViewMut<'a> {
    op: &'a str,
    index: usize,
    array: Evaluated<'a>,
}

impl<'a> ViewMut<'a> {
    /// # Safety
    /// The array's memory is allocated, row-contiguous and, for `'a`, used by this view alone. If
    /// `filled`, it holds the elements of an input.
    pub(super) unsafe fn new(
        op: &'a str,
        index: usize,
        array: Evaluated<'a>,
        filled: bool,
    ) -> Self {
        let view = Self { op, index, array };
        let bool = view.dtype() == Dtype::Bool;
        if view.size() > 0 && (bool || !filled && cfg!(debug_assertions)) {
            let bytes = view.size() * view.dtype().size();
            // SAFETY: the caller promises a row-contiguous array, so it has this many bytes.
            let memory = unsafe { std::slice::from_raw_parts_mut(array.data, bytes) };
            match (bool, filled) {
                // Bytes other than 0 and 1 are not valid bools in Rust.
                (true, true) => memory.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0)),
                (true, false) => memory.fill(1),
                // In debug builds, if `eval_cpu` does not write an element, all its bits stay 1.
                // This is NaN for floats, and shows the mistake.
                (false, _) => memory.fill(0xff),
            }
        }
        view
    }

    /// The length of each dimension.
    pub fn shape(&self) -> &'a [i32] {
        self.array.shape
    }

    /// The type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.array.dtype
    }

    /// The number of elements.
    pub fn size(&self) -> usize {
        self.array.size()
    }

    /// The elements in row-major order. If `in_place` names an input, output 0 has its elements at
    /// first. All other values are unspecified before the first write; in debug builds all bits are
    /// 1, which is NaN for floats, except in bools.
    ///
    /// # Errors
    ///
    /// Returns an error if `T` is not the type of the output.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        if T::DTYPE != self.dtype() {
            let expected =
                format_args!("output {} to be {}, got {}", self.index, T::DTYPE, self.dtype());
            return Err(Error::argument(self.op, expected));
        }
        if self.size() == 0 {
            return Ok(&mut []);
        }
        let Some(data) = self.array.data::<T>() else {
            let got = format_args!("aligned memory, got {:?}", self.array.data);
            return Err(Error::argument(self.op, got));
        };
        // SAFETY: the caller of `new` promised that the memory is used by this view only. It is
        // aligned, and its bits are values of T: for bools, `new` has written valid bytes.
        Ok(unsafe { std::slice::from_raw_parts_mut(data, self.size()) })
    }
}
