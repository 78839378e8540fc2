//! The array handle: its description, its evaluation and reading its elements.

mod create;
pub mod guest;
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

pub use index::{Ellipsis, Index, IntoIndex, NewAxis, step};
pub use operand::Operand;
pub use send::SendArray;
pub use shape::{IntoAxes, IntoShape};
pub use view::{concatenate, select, stack};

/// A lazy, n-dimensional array of MLX: a node of a graph, computed when it is read.
///
/// Building an op does not compute it. [`eval`], [`Array::to_vec`], [`Array::item`] and printing
/// compute it. Cloning shares the node. Shapes, axes and indices are `i32`, as in MLX; negative
/// axes count from the last.
///
/// `+`, `-`, `*`, `/` and unary `-` take arrays and references to arrays, which broadcast, and
/// numbers on either side. The operators return `Result<Array>`, since building an op can fail. One
/// side of an operator may itself be a `Result<Array>`:
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
/// Rust lets a crate implement an operator only if one side is a type of the crate, and `Result` is
/// not. So a `?` is needed if both sides are results, if one is a result and the other a number,
/// and for `-` of a result: `((&a + &b)? * 2.0)?`.
///
/// MLX's streams belong to the thread that made them, so an array stays on its thread.
/// [`Array::into_send`] moves an evaluated array to another thread.
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

    /// Wraps the result of a bridge function.
    pub(crate) fn from_bridge(
        result: std::result::Result<UniquePtr<ffi::MlxArray>, cxx::Exception>,
    ) -> Result<Self> {
        Ok(Self::new(result?))
    }

    pub(crate) fn from_ref(array: &ffi::MlxArray) -> Self {
        Self::new(ffi::share(array))
    }

    #[doc(hidden)]
    pub fn raw(&self) -> &ffi::MlxArray {
        &self.handle
    }

    /// The length of each dimension; empty for a scalar.
    ///
    /// ```
    /// # use mlx_primitives::{Array, Dtype};
    /// let x = Array::zeros::<f32>((2, 3))?;
    /// assert_eq!((x.shape(), x.ndim()), (&[2, 3][..], 2));
    /// assert_eq!((x.dim(0)?, x.dim(-1)?), (2, 3));
    /// assert_eq!((x.size(), x.nbytes(), x.dtype()), (6, 24, Dtype::Float32));
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn shape(&self) -> &[i32] {
        ffi::shape(self.raw())
    }

    /// The length of dimension `axis`; a negative axis counts from the last. See [`Array::shape`].
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for an axis outside the rank.
    pub fn dim(&self, axis: i32) -> Result<i32> {
        let rank = self.ndim() as i32;
        let index = if axis < 0 { axis + rank } else { axis };
        self.shape().get(usize::try_from(index).unwrap_or(usize::MAX)).copied().ok_or_else(|| {
            Error::out_of_range("dim", format_args!("an axis within rank {rank}"), axis)
        })
    }

    /// The number of dimensions. [`Array::shape`] has an example.
    pub fn ndim(&self) -> usize {
        self.shape().len()
    }

    /// The number of elements. [`Array::shape`] has an example.
    pub fn size(&self) -> usize {
        self.shape().iter().fold(1, |size, &dim| size.saturating_mul(dim as usize))
    }

    /// The bytes that the elements take when laid out without gaps. See [`Array::shape`].
    pub fn nbytes(&self) -> usize {
        self.size().saturating_mul(self.dtype().size())
    }

    /// The distance in memory, in elements, between neighbors along each dimension. MLX knows the
    /// strides only after the evaluation. Before, this returns the strides of a row-major array.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[1i32, 2, 3, 4, 5, 6], (2, 3))?;
    /// assert!(x.strides() == [3, 1] && x.is_row_contiguous());
    /// let y = x.t()?;
    /// y.eval()?;
    /// assert!(y.strides() == [1, 3] && !y.is_row_contiguous());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn strides(&self) -> Vec<i64> {
        ffi::strides(self.raw())
    }

    /// The type of the elements. [`Array::shape`] has an example.
    pub fn dtype(&self) -> Dtype {
        ffi::dtype(self.raw()).into()
    }

    /// Whether MLX has handed the computation of this array to the device; also true after the
    /// computation has ended, and for an array made from data. [`Array::primitive`] has an example.
    pub fn is_scheduled(&self) -> bool {
        ffi::is_scheduled(self.raw())
    }

    /// Whether the elements lie in memory in row-major order without gaps. MLX knows this only
    /// after the evaluation. [`Array::strides`] has an example.
    pub fn is_row_contiguous(&self) -> bool {
        ffi::is_row_contiguous(self.raw())
    }

    /// The name of the primitive that will compute this array; `None` for data and evaluated
    /// arrays.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let y = Array::scalar(1.0f32)?.exp()?;
    /// assert_eq!((y.is_scheduled(), y.primitive().as_deref()), (false, Some("Exp")));
    /// y.eval()?;
    /// assert_eq!((y.is_scheduled(), y.primitive()), (true, None));
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn primitive(&self) -> Option<String> {
        Some(ffi::primitive_name(self.raw())).filter(|name| !name.is_empty())
    }

    /// Computes this array and the arrays that it depends on. [`eval()`] computes several arrays
    /// together, and has an example.
    ///
    /// # Errors
    ///
    /// Returns an error in the cases of [`eval()`].
    pub fn eval(&self) -> Result<()> {
        eval([self])
    }

    /// Evaluates the array and returns the address of its first element, which shows whether arrays
    /// share memory.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for an array that is not row-contiguous, and an error if the evaluation
    /// fails.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::from_slice(&[1.0f32, 2.0], 2)?;
    /// assert_eq!(x.reshape((2, 1))?.address()?, x.address()?);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn address(&self) -> Result<usize> {
        self.eval()?;
        if !self.is_row_contiguous() {
            return Err(Error::argument("address", "a row-contiguous array, got a strided view"));
        }
        let contents = ffi::contents(self.raw())?;
        Ok(ffi::data(&contents).addr())
    }

    /// Evaluates the array and copies its elements out in row-major order.
    ///
    /// # Errors
    ///
    /// [`Error::Dtype`] if `T` is not the array's type ([`Array::astype`] converts an array); an
    /// error if the evaluation fails.
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

    /// Evaluates the array and calls `read` with the bytes of its elements, in row-major order.
    #[doc(hidden)]
    pub fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let contents = ffi::contents(self.raw())?;
        let data = ffi::data(&contents);
        if data.is_null() {
            return Ok(read(&[]));
        }
        // SAFETY: `contents` is evaluated and row-contiguous, so its size * itemsize bytes lie at
        // `data`, which are initialized, and it stays alive until `read` has returned. Arrays do
        // not change: nothing writes to its memory while `contents` refers to it.
        Ok(read(unsafe { std::slice::from_raw_parts(data, self.nbytes()) }))
    }

    /// Evaluates an array of one element, of any rank, and returns the element.
    ///
    /// # Errors
    ///
    /// [`Error::Shape`] for another number of elements, and an error in the cases of
    /// [`Array::to_vec`].
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// assert_eq!(Array::full((1, 1), 2.5f32)?.item::<f32>()?, 2.5);
    /// assert!(Array::zeros::<f32>(2)?.item::<f32>().is_err());
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
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
///
/// Returns an error if one of the arrays, or an input of its computation, fails now or failed in an
/// earlier evaluation. A failed array stays failed. Arrays that do not depend on it are usable,
/// even if they belong to the same evaluation.
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
///
/// Returns an error for a failure before the work has started. After a later failure, only the
/// calls that read one of the arrays, or compute with it, return an error.
///
/// ```
/// # use mlx_primitives::{Array, async_eval};
/// let x = Array::ones::<f32>(3)?.add(1.0)?;
/// async_eval([&x])?; // and other work in the meantime
/// assert_eq!(x.to_vec::<f32>()?, [2.0; 3]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn async_eval<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    Ok(ffi::async_eval(&to_list(arrays))?)
}

/// Refuses negative lengths, and sizes beyond the address space of a 64-bit machine (2^47 bytes),
/// for which MLX would compute with a null pointer.
///
/// # Errors
///
/// Returns an error for such shapes.
pub fn require_addressable(op: &str, shape: &[i32], dtype: Dtype) -> Result<()> {
    let bytes = shape.iter().try_fold(dtype.size() as u64, |bytes, &dim| {
        bytes.checked_mul(u64::try_from(dim).ok()?).filter(|&bytes| bytes < 1 << 47)
    });
    bytes.map(|_| ()).ok_or_else(|| Error::shape(op, "a shape that memory can hold", shape))
}

pub type List = UniquePtr<CxxVector<ffi::MlxArray>>;

/// A list of the arrays, in the type that the bridge takes.
pub fn to_list<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> List {
    let mut list = ffi::new_list();
    for array in arrays {
        ffi::push(list.pin_mut(), array.raw());
    }
    list
}

/// The arrays of a list from the bridge.
pub fn from_list(list: &CxxVector<ffi::MlxArray>) -> Vec<Array> {
    list.iter().map(Array::from_ref).collect()
}

/// A pointer for the bridge's optional arguments, null for `None`.
pub(crate) fn or_null(array: Option<&Array>) -> *const ffi::MlxArray {
    array.map_or(std::ptr::null(), |array| array.raw())
}
