//! Selections by index, as in NumPy.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use super::Array;
use crate::error::{Error, Result};
use crate::ffi::bridge as ffi;

mod sealed {
    pub trait Sealed {}
}

/// In an index: stands for all axes that no other part selects from, and selects all their
/// elements; see [`Array::i`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ellipsis;

/// In an index: a new axis of length 1 in the result; see [`Array::i`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewAxis;

/// One part of an index, for an index whose number of parts is known only at run time; see
/// [`Array::i`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Index(Part);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    At(i32),
    Range { start: Option<i32>, stop: Option<i32>, step: i32 },
    Ellipsis,
    NewAxis,
}

/// Every `n`th element of a range; see [`Array::i`].
///
/// With a negative `n` the range runs backwards, from its start to before its end. Without a start
/// it begins at the last element, and without an end it includes the first.
///
/// ```
/// use mlx_primitives::{Array, step};
///
/// let x = Array::arange::<i32>(0.0, 6.0, 1.0)?;
/// assert_eq!(x.i(step(1.., 2))?.to_vec::<i32>()?, [1, 3, 5]);
/// assert_eq!(x.i(step(.., -1))?.to_vec::<i32>()?, [5, 4, 3, 2, 1, 0]);
/// assert_eq!(x.i(step(4..1, -2))?.to_vec::<i32>()?, [4, 2]);
/// # Ok::<(), mlx_primitives::Error>(())
/// ```
pub fn step(range: impl Into<Index>, n: i32) -> Index {
    Index(match range.into().0 {
        Part::Range { start, stop, step } => {
            Part::Range { start, stop, step: step.saturating_mul(n) }
        }
        other => other,
    })
}

macro_rules! ranges {
    ($($range:ty: |$value:ident| $start:expr, $stop:expr;)*) => {$(
        impl From<$range> for Index {
            fn from($value: $range) -> Self {
                Self(Part::Range { start: $start, stop: $stop, step: 1 })
            }
        }
    )*};
}

ranges! {
    RangeFull: |_range| None, None;
    Range<i32>: |range| Some(range.start), Some(range.end);
    RangeFrom<i32>: |range| Some(range.start), None;
    RangeTo<i32>: |range| None, Some(range.end);
    RangeInclusive<i32>: |range| Some(*range.start()), after(*range.end());
    RangeToInclusive<i32>: |range| None, after(range.end);
}

/// The exclusive end of a range whose last element is `last`. Returns `None`, the end of the axis,
/// if `last` is -1.
fn after(last: i32) -> Option<i32> {
    last.checked_add(1).filter(|&end| end != 0)
}

impl From<i32> for Index {
    fn from(at: i32) -> Self {
        Self(Part::At(at))
    }
}

impl From<Ellipsis> for Index {
    fn from(_: Ellipsis) -> Self {
        Self(Part::Ellipsis)
    }
}

impl From<NewAxis> for Index {
    fn from(_: NewAxis) -> Self {
        Self(Part::NewAxis)
    }
}

/// An index: one part, a tuple of up to six, or an array or a slice of [`Index`]; see [`Array::i`].
///
/// The trait is sealed.
pub trait IntoIndex: sealed::Sealed {
    /// The parts of the index, from the first axis on.
    #[doc(hidden)]
    fn parts(self) -> Vec<Index>;
}

macro_rules! one_part {
    ($($part:ty),*) => {$(
        impl sealed::Sealed for $part {}
        impl IntoIndex for $part {
            fn parts(self) -> Vec<Index> {
                vec![self.into()]
            }
        }
    )*};
}

one_part!(
    i32,
    RangeFull,
    Range<i32>,
    RangeFrom<i32>,
    RangeTo<i32>,
    RangeInclusive<i32>,
    RangeToInclusive<i32>,
    Ellipsis,
    NewAxis,
    Index
);

macro_rules! tuples {
    ($($($part:ident)*;)*) => {$(
        impl<$($part: Into<Index>),*> sealed::Sealed for ($($part,)*) {}
        impl<$($part: Into<Index>),*> IntoIndex for ($($part,)*) {
            #[allow(non_snake_case)] // a type and its value have one name
            fn parts(self) -> Vec<Index> {
                let ($($part,)*) = self;
                vec![$($part.into()),*]
            }
        }
    )*};
}

tuples! {
    ;
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
}

impl sealed::Sealed for &[Index] {}
impl IntoIndex for &[Index] {
    fn parts(self) -> Vec<Index> {
        self.to_vec()
    }
}

impl<const N: usize> sealed::Sealed for [Index; N] {}
impl<const N: usize> IntoIndex for [Index; N] {
    fn parts(self) -> Vec<Index> {
        self.to_vec()
    }
}

/// The arguments of MLX's `slice` for an index, and the axes to remove from and add to its result.
#[derive(Default)]
struct Selection {
    start: Vec<i32>,
    stop: Vec<i32>,
    steps: Vec<i32>,
    /// Axes of the array at which the index is a number: the result does not have them.
    dropped: Vec<i32>,
    /// The positions of the new axes in the result.
    new: Vec<i32>,
}

impl Selection {
    fn of(op: &str, shape: &[i32], parts: &[Index]) -> Result<Self> {
        let taken =
            parts.iter().filter(|Index(part)| !matches!(part, Part::Ellipsis | Part::NewAxis));
        let taken = taken.count();
        if taken > shape.len() {
            return Err(Error::argument(
                op,
                format_args!("at most {} selections, got {taken}", shape.len()),
            ));
        }
        let ellipses = parts.iter().filter(|Index(part)| *part == Part::Ellipsis).count();
        if ellipses > 1 {
            return Err(Error::argument(op, format_args!("at most one Ellipsis, got {ellipses}")));
        }
        let mut selection = Self::default();
        for Index(part) in parts {
            match *part {
                Part::NewAxis => selection.new.push(selection.rank()),
                Part::Ellipsis => selection.keep(shape, shape.len() - taken),
                Part::At(at) => selection.at(op, shape, at)?,
                Part::Range { start, stop, step } => {
                    selection.range(op, shape, start, stop, step)?
                }
            }
        }
        selection.keep(shape, shape.len() - selection.start.len());
        Ok(selection)
    }

    /// The rank of the result so far.
    fn rank(&self) -> i32 {
        (self.start.len() - self.dropped.len() + self.new.len()) as i32
    }

    fn push(&mut self, start: i32, stop: i32, step: i32) {
        self.start.push(start);
        self.stop.push(stop);
        self.steps.push(step);
    }

    fn keep(&mut self, shape: &[i32], axes: usize) {
        for _ in 0..axes {
            self.push(0, shape[self.start.len()], 1);
        }
    }

    fn at(&mut self, op: &str, shape: &[i32], at: i32) -> Result<()> {
        let axis = self.start.len();
        let dim = shape[axis];
        if at >= dim || at < -dim {
            let expected = format_args!("an index within the {dim} elements of axis {axis}");
            return Err(Error::out_of_range(op, expected, at));
        }
        let at = if at < 0 { at + dim } else { at };
        self.dropped.push(axis as i32);
        self.push(at, at + 1, 1);
        Ok(())
    }

    /// Adds a range by Python's rules: bounds outside the axis are clamped to it.
    fn range(
        &mut self,
        op: &str,
        shape: &[i32],
        start: Option<i32>,
        stop: Option<i32>,
        step: i32,
    ) -> Result<()> {
        if step == 0 {
            return Err(Error::argument(op, "steps other than zero, got 0"));
        }
        let dim = shape[self.start.len()];
        // For a negative step, -1 is the position before the first element.
        let (lowest, highest) = if step < 0 { (-1, dim - 1) } else { (0, dim) };
        let within = |bound: i32| {
            let bound = if bound < 0 { bound.saturating_add(dim) } else { bound };
            bound.clamp(lowest, highest)
        };
        let (first, last) = if step < 0 { (highest, lowest) } else { (lowest, highest) };
        let (start, stop) = (start.map_or(first, within), stop.map_or(last, within));
        let empty = if step < 0 { start <= stop } else { start >= stop };
        // A step at least as long as the axis selects one element, so long steps are shortened.
        let step = step.clamp(-dim.max(1), dim.max(1));
        match stop {
            _ if empty => self.push(0, 0, 1),
            // MLX would interpret -1 as the last element.
            -1 => self.push(start, -dim - 1, step),
            _ => self.push(start, stop, step),
        }
        Ok(())
    }
}

/// Selections by index.
impl Array {
    /// The elements that `index` selects. Its parts select from the axes in order, from the first
    /// axis on. All elements of axes without a part are selected.
    ///
    /// | part | selects |
    /// |---|---|
    /// | `2`, `-1` | one element, without the axis; a negative number counts from the end |
    /// | `..`, `1..3`, `1..`, `..-1`, `1..=3` | a range, cut to the axis as in Python |
    /// | [`step`]`(1..9, 2)`, `step(.., -1)` | every second element of a range, a reversed axis |
    /// | [`Ellipsis`] | all elements of the axes that no other part selects from |
    /// | [`NewAxis`] | a new axis of length 1 |
    ///
    /// The result is lazy and differentiable. It is a view, so its evaluation copies no elements.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for a number outside its axis; [`Error::Argument`] for more numbers
    /// and ranges than axes, a step of zero, or more than one [`Ellipsis`].
    ///
    /// ```
    /// use mlx_primitives::{Array, Ellipsis, Error, NewAxis, step};
    ///
    /// let x = Array::arange::<i32>(0.0, 24.0, 1.0)?.reshape((2, 3, 4))?;
    /// assert_eq!(x.i((0, 1..3, -1))?.to_vec::<i32>()?, [7, 11]);
    /// assert_eq!(x.i((Ellipsis, 0))?.shape(), [2, 3]);
    /// assert_eq!(x.i((.., NewAxis, step(.., -2)))?.shape(), [2, 1, 2, 4]);
    /// assert!(matches!(x.i(2), Err(Error::OutOfRange { got: 2, .. })));
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn i(&self, index: impl IntoIndex) -> Result<Array> {
        let s = Selection::of("i", self.shape(), &index.parts())?;
        let mut array = Array::from_bridge(ffi::slice(self.raw(), &s.start, &s.stop, &s.steps))?;
        if !s.dropped.is_empty() {
            array = array.squeeze(&s.dropped)?;
        }
        if s.new.is_empty() { Ok(array) } else { array.expand_dims(&s.new) }
    }

    /// Selects elements of one axis by a range, a [`step`] of a range, or a number. The result
    /// keeps the axis, even for a number. A negative axis counts from the last.
    ///
    /// If the axis is known at compile time, [`Array::i`] is shorter.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] for an axis outside the rank, and an error in the cases of
    /// [`Array::i`].
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::arange::<i32>(0.0, 6.0, 1.0)?.reshape((2, 3))?;
    /// for axis in 0..2 {
    ///     assert_eq!(x.slice_axis(axis, 1..)?.dim(axis)?, x.dim(axis)? - 1);
    /// }
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn slice_axis(&self, axis: i32, range: impl Into<Index>) -> Result<Array> {
        self.dim(axis)?;
        let axis = if axis < 0 { axis + self.ndim() as i32 } else { axis } as usize;
        let mut index = vec![Index::from(..); axis];
        index.push(range.into());
        let s = Selection::of("slice_axis", self.shape(), &index)?;
        Array::from_bridge(ffi::slice(self.raw(), &s.start, &s.stop, &s.steps))
    }

    /// A copy of the array with `update` written where `index` selects. MLX writes in place if
    /// nothing else uses the array.
    ///
    /// `update` broadcasts to the shape of `self.i(index)`, and is converted to the type of `self`.
    /// Steps other than 1 are not supported.
    ///
    /// # Errors
    ///
    /// Returns an error in the cases of [`Array::i`], for steps other than 1, and for an update
    /// that does not broadcast.
    ///
    /// ```
    /// # use mlx_primitives::Array;
    /// let x = Array::zeros::<i32>(4)?;
    /// let y = x.slice_update(1..3, &Array::scalar(7)?)?;
    /// assert_eq!(y.to_vec::<i32>()?, [0, 7, 7, 0]);
    /// # Ok::<(), mlx_primitives::Error>(())
    /// ```
    pub fn slice_update(&self, index: impl IntoIndex, update: &Array) -> Result<Array> {
        let s = Selection::of("slice_update", self.shape(), &index.parts())?;
        if s.steps.iter().any(|&step| step != 1) {
            return Err(Error::argument(
                "slice_update",
                format_args!("steps of 1, got {:?}", s.steps),
            ));
        }
        let mut update = update.clone();
        if !s.dropped.is_empty() || !s.new.is_empty() {
            let whole: Vec<i32> =
                s.start.iter().zip(&s.stop).map(|(start, stop)| stop - start).collect();
            let axes = (0..).zip(&whole).filter(|(axis, _)| !s.dropped.contains(axis));
            let mut selected: Vec<i32> = axes.map(|(_, &dim)| dim).collect();
            s.new.iter().for_each(|&axis| selected.insert(axis as usize, 1));
            update = update.broadcast_to(selected)?.reshape(whole)?;
        }
        Array::from_bridge(ffi::slice_update(self.raw(), update.raw(), &s.start, &s.stop))
    }
}
