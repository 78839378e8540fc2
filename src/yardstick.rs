//! What the kernels' speed is held against: memory that is copied, read and written, registers that are
//! multiplied, and jobs that are shared, all on the threads of the CPU kernels.
//!
//! Everything here is done even if no result of it is used; the caller takes the time.

use std::ops::Range;

use crate::cpu::{self, yardstick};
use crate::dtype::{Dtype, Element};
use crate::error::{Error, Result};
use crate::memory;

/// So many bytes that have been written, in pages of 2 MB as far as the system grants them.
///
/// ```
/// assert_eq!(mlx_primitives::yardstick::buffer(5), [1; 5]);
/// ```
pub fn buffer(bytes: usize) -> Vec<u8> {
    let mut buffer: Vec<u8> = Vec::with_capacity(bytes);
    memory::advise_huge_pages(buffer.as_ptr().expose_provenance(), bytes);
    buffer.resize(bytes, 1);
    buffer
}

/// Copies `from` to `to`, split as the kernels split a job: the most that a kernel which reads its
/// input once and writes its output once could reach. An error unless both are equally long.
///
/// ```
/// let mut to = [0; 3];
/// mlx_primitives::yardstick::copy(&[1, 2, 3], &mut to)?;
/// assert_eq!(to, [1, 2, 3]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn copy(from: &[u8], to: &mut [u8]) -> Result<()> {
    if from.len() != to.len() {
        let expected = format_args!("{} bytes to write, got {}", from.len(), to.len());
        return Err(Error::argument("copy", expected));
    }
    // SAFETY: both slices have this length, and a unique borrow overlaps no other.
    unsafe { yardstick::copy(from.as_ptr(), to.as_mut_ptr(), from.len()) };
    std::hint::black_box(to);
    Ok(())
}

/// The CPU kernel of [`ops::rms_norm`](crate::ops::rms_norm) on slices: what a hosted primitive
/// would call, to see what hosting itself takes.
///
/// `out` holds rows of `axis` elements, and so does `x`; without one, the rows are those in `out`.
/// `weight` holds `axis`. An error otherwise, and for other types than float32, float16 and bfloat16.
///
/// ```
/// let mut y = [0.0f32; 2];
/// mlx_primitives::yardstick::rms_norm(Some(&[3.0, 4.0]), None, &mut y, 2, 0.0)?;
/// assert!((y[0] - 3.0 / 12.5f32.sqrt()).abs() < 1e-6);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn rms_norm<T: Element>(
    x: Option<&[T]>,
    weight: Option<&[T]>,
    out: &mut [T],
    axis: usize,
    eps: f32,
) -> Result<()> {
    let element = match T::DTYPE {
        Dtype::Float32 => cpu::Element::F32,
        Dtype::Float16 => cpu::Element::F16,
        Dtype::Bfloat16 => cpu::Element::BF16,
        other => {
            return Err(Error::argument("rms_norm", format_args!("a kernel dtype, got {other}")));
        }
    };
    let fits = axis > 0 && out.len().is_multiple_of(axis) && x.is_none_or(|x| x.len() == out.len());
    if !fits || weight.is_some_and(|weight| weight.len() != axis) {
        let got = format_args!("rows of {axis} elements and as many weights, got {}", out.len());
        return Err(Error::argument("rms_norm", got));
    }
    let weight = weight.map_or(std::ptr::null(), |weight| weight.as_ptr().cast());
    let (rows, out) = (out.len() / axis, out.as_mut_ptr().cast::<u8>());
    let x = x.map_or(out.cast_const(), |x| x.as_ptr().cast());
    // SAFETY: the lengths were checked, slices are aligned, and a unique borrow overlaps no other;
    // the kernel works in place too.
    unsafe { cpu::rms_norm(element, x, weight, out, rows, axis, eps) };
    Ok(())
}

/// Loads all of `from` into registers: the most that a kernel which writes next to nothing could reach.
///
/// ```
/// mlx_primitives::yardstick::read(&[1; 1000]);
/// ```
pub fn read(from: &[u8]) {
    // SAFETY: the slice is readable.
    unsafe { yardstick::read(from.as_ptr(), from.len()) }
}

/// Fills `to` with ones: the most that a kernel which reads next to nothing could reach.
///
/// ```
/// let mut to = [0; 3];
/// mlx_primitives::yardstick::fill(&mut to);
/// assert_eq!(to, [1; 3]);
/// ```
pub fn fill(to: &mut [u8]) {
    // SAFETY: the slice is writable, and borrowed by nobody else.
    unsafe { yardstick::fill(to.as_mut_ptr(), to.len()) };
    std::hint::black_box(to);
}

/// What [`multiply`] multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// float32 numbers.
    Float32,
    /// bfloat16 numbers, added up in float32, by the processor's instruction for it; float32 numbers
    /// where there is none.
    Bfloat16,
}

/// Multiplies and adds in registers alone for about `rounds` times ten microseconds, and returns how many
/// floating-point operations that was: over their time, the most that a product of matrices could reach.
///
/// ```
/// use mlx_primitives::yardstick::{Product, multiply};
///
/// assert!(multiply(Product::Float32, 10) > 1e6);
/// assert_eq!(multiply(Product::Bfloat16, 0), 0.0);
/// ```
pub fn multiply(product: Product, rounds: usize) -> f64 {
    yardstick::multiply(product == Product::Bfloat16, rounds)
}

/// Threads of their own that share jobs as those of the kernels do, to time what sharing costs.
///
/// They sleep when there is nothing to do, and live as long as the process.
#[derive(Clone, Copy)]
pub struct Team(yardstick::Team);

impl Team {
    /// So many threads, the caller's included. An error unless there are 1 to 1024.
    pub fn new(threads: usize) -> Result<Self> {
        if !(1..=cpu::MAX_THREADS).contains(&threads) {
            let expected = format_args!("1 to {} threads, got {threads}", cpu::MAX_THREADS);
            return Err(Error::argument("Team::new", expected));
        }
        Ok(Self(yardstick::Team::new(threads)))
    }

    /// Calls `body` with ranges that together are `0..items`, on several threads if `nanoseconds`, what
    /// all of it takes one thread, are worth it. It must not panic: that ends the process.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    ///
    /// let sum = AtomicUsize::new(0);
    /// let team = mlx_primitives::yardstick::Team::new(2)?;
    /// team.run(100, 1_000_000, &|range| _ = sum.fetch_add(range.sum(), Ordering::Relaxed));
    /// assert_eq!(sum.into_inner(), 4950);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn run(&self, items: usize, nanoseconds: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        self.0.run(items, nanoseconds, body);
    }
}
