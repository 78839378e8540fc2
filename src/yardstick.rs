//! What the latency comparison holds the kernels' bandwidth against.

use crate::cpu;
use crate::dtype::{Dtype, Element};
use crate::error::{Error, Result};

/// Copies `from` to `to` on the threads of the CPU kernels, split as they split a job: the most
/// that a kernel which reads its input once and writes its output once could reach.
///
/// The copy is always done, even if `to` is never read. An error unless both are equally long.
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
    unsafe { cpu::parallel_copy(from.as_ptr(), to.as_mut_ptr(), from.len()) };
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
