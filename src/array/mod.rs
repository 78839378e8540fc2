//! The array handle: what it describes, how it is evaluated and read.

#[cfg(feature = "llama")]
mod block;
mod create;
mod index;
mod math;
mod operand;
mod send;
mod shape;
mod text;
mod view;

use cxx::{CxxVector, UniquePtr};

use crate::dtype::{Dtype, Element};
use crate::error::{Error, Result};
use crate::ffi::bridge as ffi;

#[cfg(feature = "llama")]
pub use block::{Block, LINE};
pub use index::{Ellipsis, Index, IntoIndex, NewAxis, step};
pub use operand::Operand;
pub use send::SendArray;
pub use shape::{IntoAxes, IntoShape};
pub use view::{concatenate, select, stack};

/// A lazy, n-dimensional array of MLX: a node of a computation that runs when it is read.
///
/// Building an op evaluates nothing; [`eval`], [`Array::to_vec`], [`Array::item`] and printing
/// do. Cloning shares the node. Shapes, axes and indices are `i32`, as in MLX; negative axes
/// count from the last.
///
/// `+`, `-`, `*`, `/` and unary `-` take arrays and references to arrays, which broadcast, and numbers on
/// either side. Since building an op can fail, they return `Result<Array>`, which one side of an operator
/// may be too:
///
/// ```
/// use mlx_primitives::Array;
///
/// let x = Array::from_slice(&[1.0f32, 3.0], 2)?;
/// let mean = x.mean(..)?;
/// let y = (&x - &mean)? * 2.0;
/// assert_eq!(y?.to_vec::<f32>()?, [-2.0, 2.0]);
/// let z = (&x - &mean) * &x + &mean;
/// assert_eq!(z?.to_vec::<f32>()?, [1.0, 5.0]);
/// let opposite = -(1.0 - &x)?;
/// assert_eq!(opposite?.to_vec::<f32>()?, [0.0, 2.0]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
///
/// Rust lets a crate implement an operator only where one side is a type of the crate. A `Result` is not,
/// so an operator whose sides are two results, a result and a number, or one result alone (`-`) takes a
/// `?` first: `((&a + &b)? * 2.0)?`.
///
/// MLX's streams belong to the thread that made them, so an array stays on its thread. One that is
/// evaluated can move to another by [`Array::into_send`].
///
/// ```compile_fail,E0277
/// let x = mlx_primitives::Array::ones::<f32>(&[2]).unwrap();
/// std::thread::spawn(move || x.to_vec::<f32>());
/// ```
///
/// ```compile_fail,E0277
/// let x = mlx_primitives::Array::ones::<f32>(&[2]).unwrap();
/// std::thread::scope(|s| { s.spawn(|| x.shape().len()); });
/// ```
#[must_use = "an array is lazy: nothing is computed until it is evaluated or read"]
pub struct Array {
    /// Never null.
    handle: UniquePtr<ffi::MlxArray>,
}

impl Array {
    pub(crate) fn new(handle: UniquePtr<ffi::MlxArray>) -> Self {
        debug_assert!(!handle.is_null());
        Self { handle }
    }

    /// Wraps what a bridge function returned.
    pub(crate) fn from_bridge(
        result: std::result::Result<UniquePtr<ffi::MlxArray>, cxx::Exception>,
    ) -> Result<Self> {
        Ok(Self::new(result?))
    }

    pub(crate) fn from_ref(array: &ffi::MlxArray) -> Self {
        Self::new(ffi::share(array))
    }

    pub(crate) fn raw(&self) -> &ffi::MlxArray {
        &self.handle
    }

    /// The length of each dimension; empty for a scalar.
    pub fn shape(&self) -> &[i32] {
        ffi::shape(self.raw())
    }

    /// The length of dimension `axis`, which may be negative; an error outside the rank.
    pub fn dim(&self, axis: i32) -> Result<i32> {
        let rank = self.ndim() as i32;
        let index = if axis < 0 { axis + rank } else { axis };
        self.shape().get(usize::try_from(index).unwrap_or(usize::MAX)).copied().ok_or_else(|| {
            Error::out_of_range("dim", format_args!("an axis within rank {rank}"), axis)
        })
    }

    /// The number of dimensions.
    pub fn ndim(&self) -> usize {
        self.shape().len()
    }

    /// The number of elements.
    pub fn size(&self) -> usize {
        self.shape().iter().fold(1, |size, &dim| size.saturating_mul(dim as usize))
    }

    /// The bytes that the elements take when laid out without gaps.
    pub fn nbytes(&self) -> usize {
        self.size().saturating_mul(self.dtype().size())
    }

    /// Elements to step over in memory for each dimension. Known only once evaluated: before,
    /// these are those of a row-major array.
    pub fn strides(&self) -> Vec<i64> {
        ffi::strides(self.raw())
    }

    /// The type of the elements.
    pub fn dtype(&self) -> Dtype {
        ffi::dtype(self.raw()).into()
    }

    /// Whether the computation of this array has been handed to its device.
    pub fn is_scheduled(&self) -> bool {
        ffi::is_scheduled(self.raw())
    }

    /// Whether the elements lie in memory in row-major order without gaps; see [`Array::strides`].
    pub fn is_row_contiguous(&self) -> bool {
        ffi::is_row_contiguous(self.raw())
    }

    /// The name of the primitive that will compute this array; none for data and evaluated arrays.
    pub fn primitive(&self) -> Option<String> {
        Some(ffi::primitive_name(self.raw())).filter(|name| !name.is_empty())
    }

    /// Computes this array and what it depends on.
    pub fn eval(&self) -> Result<()> {
        eval([self])
    }

    /// Evaluates, and says where in memory the first element lies: arrays that share a buffer
    /// say the same. An error for an array that is not row-contiguous.
    pub fn address(&self) -> Result<usize> {
        self.eval()?;
        if !self.is_row_contiguous() {
            return Err(Error::argument("address", "a row-contiguous array, got a strided view"));
        }
        let contents = ffi::contents(self.raw())?;
        Ok(ffi::data(&contents).addr())
    }

    /// Evaluates and copies the elements out in row-major order.
    ///
    /// An error if `T` is not the array's type; convert first with [`Array::astype`].
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[1i32, 2, 3], &[3])?;
    /// assert_eq!(x.to_vec::<i32>()?, [1, 2, 3]);
    /// assert!(x.to_vec::<f32>().is_err());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype() {
            return Err(Error::dtype(
                "to_vec",
                format_args!("an array of {}", T::DTYPE),
                self.dtype(),
            ));
        }
        let contents = ffi::contents(self.raw())?;
        let data = ffi::data(&contents);
        if data.is_null() {
            return Ok(Vec::new());
        }
        // SAFETY: `contents` is evaluated and row-contiguous, so its size * itemsize bytes lie at
        // `data`, and it stays alive until after the copy.
        let bytes = unsafe { std::slice::from_raw_parts(data, self.nbytes()) };
        Ok(T::copy_from(bytes))
    }

    /// The value of an array of one element; an error for other sizes or another type.
    pub fn item<T: Element>(&self) -> Result<T> {
        if self.size() != 1 {
            return Err(Error::shape("item", "an array of one element", self.shape()));
        }
        Ok(self.to_vec()?[0])
    }
}

impl Clone for Array {
    fn clone(&self) -> Self {
        Self::from_ref(self.raw())
    }
}

/// Computes several arrays together and waits for them.
///
/// # Errors
/// One of the arrays, or what it is computed from, failed now or in an earlier evaluation. What failed
/// stays so; arrays that are not computed from it are results, also those of the same evaluation.
///
/// ```
/// # use mlx_primitives::{Array, eval};
/// let x = Array::ones::<f32>(&[3])?;
/// let (a, b) = (x.add(1.0)?, x.multiply(2.0)?);
/// eval([&a, &b])?;
/// assert!(a.is_scheduled() && b.is_scheduled());
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn eval<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    Ok(ffi::eval(&to_list(arrays))?)
}

/// Starts computing several arrays and returns; reading one of them waits for it.
///
/// # Errors
/// As [`eval`], for what fails before the work has started. Later failures are errors of whoever
/// reads one of the arrays, or computes with it, and of nobody else.
pub fn async_eval<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    Ok(ffi::async_eval(&to_list(arrays))?)
}

/// Refuses negative dimensions, and sizes beyond what a 64-bit machine addresses (2^47 bytes),
/// where MLX would compute with a null pointer.
pub(crate) fn require_addressable(op: &str, shape: &[i32], dtype: Dtype) -> Result<()> {
    let bytes = shape.iter().try_fold(dtype.size() as u64, |bytes, &dim| {
        bytes.checked_mul(u64::try_from(dim).ok()?).filter(|&bytes| bytes < 1 << 47)
    });
    bytes.map(|_| ()).ok_or_else(|| Error::shape(op, "a shape that memory can hold", shape))
}

pub(crate) type List = UniquePtr<CxxVector<ffi::MlxArray>>;

pub(crate) fn to_list<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> List {
    let mut list = ffi::new_list();
    for array in arrays {
        ffi::push(list.pin_mut(), array.raw());
    }
    list
}

pub(crate) fn from_list(list: &CxxVector<ffi::MlxArray>) -> Vec<Array> {
    list.iter().map(Array::from_ref).collect()
}

/// A pointer for the bridge's optional arguments: null for none.
pub(crate) fn or_null(array: Option<&Array>) -> *const ffi::MlxArray {
    array.map_or(std::ptr::null(), |array| array.raw())
}
