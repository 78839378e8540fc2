//! Copies an array of any strides into a row-contiguous array.

use crate::{Machine, Shared};

/// A matrix is transposed in blocks of this many rows and columns. A row of floats in a block is
/// two cache lines.
const BLOCK: usize = 32;

/// The shape of the input, its strides in elements, and the bytes of an element: 1, 2, 4 or 8.
pub struct CopyCall<'a> {
    pub shape: &'a [i32],
    pub strides: &'a [i64],
    pub bytes: usize,
}

/// An axis of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    size: usize,
    stride: isize,
}

/// Returns the axes that have more than one element. Merges two neighboring axes if a single stride
/// covers both.
fn collapsed(copy: &CopyCall<'_>) -> Vec<Axis> {
    let mut axes: Vec<Axis> = Vec::with_capacity(copy.shape.len());
    for (&size, &stride) in copy.shape.iter().zip(copy.strides) {
        let axis = Axis { size: size as usize, stride: stride as isize };
        match axes.last_mut() {
            _ if axis.size == 1 => {}
            Some(last) if last.stride == axis.stride * axis.size as isize => {
                *last = Axis { size: last.size * axis.size, stride: axis.stride };
            }
            _ => axes.push(axis),
        }
    }
    axes
}

/// Copies `x` to `out`. `x` is the address of the shape's first element.
///
/// # Safety
/// Every element of the shape, reached from `x` by the strides, is readable. `out` has room for the
/// elements of the shape, and does not overlap the elements of `x`.
pub unsafe fn copy(x: *const u8, out: *mut u8, copy: &CopyCall<'_>) {
    // SAFETY: the caller's contract; the byte arrays have the size of an element.
    unsafe {
        match copy.bytes {
            1 => copy_of(Machine::current(), x, out, copy),
            2 => copy_of(Machine::current(), x.cast::<[u8; 2]>(), out.cast(), copy),
            4 => copy_of(Machine::current(), x.cast::<[u8; 4]>(), out.cast(), copy),
            _ => copy_of(Machine::current(), x.cast::<[u8; 8]>(), out.cast(), copy),
        }
    }
}

/// Steps through the rows of the input. `at` is the offset of the current row in elements.
struct Rows<'a> {
    axes: &'a [Axis],
    index: Vec<usize>,
    at: isize,
}

impl<'a> Rows<'a> {
    fn from(axes: &'a [Axis], mut row: usize) -> Self {
        let mut index = vec![0; axes.len()];
        let mut at = 0;
        for (place, axis) in index.iter_mut().zip(axes).rev() {
            *place = row % axis.size;
            row /= axis.size;
            at += *place as isize * axis.stride;
        }
        Self { axes, index, at }
    }

    fn step(&mut self) {
        for (place, axis) in self.index.iter_mut().zip(self.axes).rev() {
            *place += 1;
            self.at += axis.stride;
            if *place < axis.size {
                return;
            }
            self.at -= axis.size as isize * axis.stride;
            *place = 0;
        }
    }
}

/// # Safety
/// The contract of [`copy`]. Elements need not be aligned, since `T` is made of bytes.
unsafe fn copy_of<T: Copy>(machine: Machine, x: *const T, out: *mut T, copy: &CopyCall<'_>) {
    if copy.shape.contains(&0) {
        return;
    }
    let mut axes = collapsed(copy);
    let last = axes.pop().unwrap_or(Axis { size: 1, stride: 1 });
    // If the columns of a matrix are contiguous and its rows are not, read it along its columns.
    let column = axes.iter().rposition(|axis| axis.stride == 1).filter(|_| last.stride.abs() > 1);
    let (x, out) = (Shared(x.cast_mut()), Shared(out));
    let Some(column) = column else {
        let rows = axes.iter().map(|axis| axis.size).product();
        machine.pool.for_each(rows, work(last.size, size_of::<T>(), last.stride), &|range| {
            let mut row = Rows::from(&axes, range.start);
            for number in range {
                let from = x.get().cast_const().wrapping_offset(row.at);
                let to = out.get().wrapping_add(number * last.size);
                // SAFETY: the caller's contract; each row is written once.
                unsafe { copy_row(from, to, last) };
                row.step();
            }
        });
        return;
    };
    // The axis `column` and the last axis form a matrix. Each combination of indices of
    // the other axes selects a matrix.
    let pitch = axes[column + 1..].iter().map(|axis| axis.size).product::<usize>() * last.size;
    let columns = axes[column].size;
    let blocks = columns.div_ceil(BLOCK);
    axes[column] = Axis { size: blocks, stride: BLOCK as isize };
    let parts = axes.iter().map(|axis| axis.size).product();
    let each = work(BLOCK.min(columns) * last.size, size_of::<T>(), last.stride);
    machine.pool.for_each(parts, each, &|range| {
        let mut part = Rows::from(&axes, range.start);
        for _ in range {
            let block = part.index[column];
            let count = BLOCK.min(columns - block * BLOCK);
            // The index of the first output row of this block.
            let mut to = 0;
            for (i, axis) in axes.iter().enumerate() {
                let (size, index) = match i {
                    _ if i == column => (columns, block * BLOCK),
                    _ => (axis.size, part.index[i]),
                };
                to = to * size + index;
            }
            let from = x.get().cast_const().wrapping_offset(part.at);
            let to = out.get().wrapping_add(to * last.size);
            // SAFETY: the caller's contract; each block is written once.
            unsafe { transpose(from, to, count, pitch, last) };
            part.step();
        }
    });
}

/// Estimates the time to copy a row, in tenths of a nanosecond, from its bytes and its stride.
fn work(elements: usize, bytes: usize, stride: isize) -> usize {
    match stride {
        0 | 1 => (elements * bytes).div_ceil(2),
        _ => elements * 10,
    }
}

/// # Safety
/// The elements of the axis, which begins at `x`, are readable, and `out` has room for them.
#[inline(always)]
unsafe fn copy_row<T: Copy>(x: *const T, out: *mut T, axis: Axis) {
    // SAFETY: the caller's contract.
    unsafe {
        match axis.stride {
            1 => std::ptr::copy_nonoverlapping(x, out, axis.size),
            0 => {
                let value = *x;
                for i in 0..axis.size {
                    out.add(i).write(value);
                }
            }
            stride => {
                for i in 0..axis.size {
                    out.add(i).write(*x.offset(i as isize * stride));
                }
            }
        }
    }
}

/// Copies neighboring columns into `count` rows of the output, which are `pitch` elements apart.
///
/// # Safety
/// The columns, which begin at `x`, are readable, and the rows, which begin at `out`, are writable.
#[inline(always)]
unsafe fn transpose<T: Copy>(x: *const T, out: *mut T, count: usize, pitch: usize, axis: Axis) {
    for start in (0..axis.size).step_by(BLOCK) {
        let end = (start + BLOCK).min(axis.size);
        for row in 0..count {
            for i in start..end {
                // SAFETY: the caller's contract.
                unsafe {
                    let from = x.offset(row as isize + i as isize * axis.stride);
                    out.add(row * pitch + i).write(*from);
                }
            }
        }
    }
}
