//! Activations, element by element, each step rounded where MLX's composition rounds.

use std::marker::PhantomData;
use std::ops::Range;

use super::element::{Element, Float, with_element};
use super::math::{erf_of_mlx, sigmoid, tanh};
use super::simd::{F32x16, Kernel, LANES};
use super::{Machine, Shared};

/// What is applied to each element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    Relu,
    Gelu,
    GeluTanh,
    Silu,
}

/// What is made of two elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Combination {
    Swiglu,
    Geglu,
    GegluTanh,
    AddRelu,
    MulRelu,
}

impl Activation {
    #[inline(always)]
    pub(super) fn apply<V: F32x16, T: Float>(self, x: V) -> V {
        match self {
            Self::Relu => relu(x),
            Self::Gelu => gelu::<V, T>(x),
            Self::GeluTanh => gelu_tanh::<V, T>(x),
            Self::Silu => silu::<V, T>(x),
        }
    }
}

/// `max(x, 0)`, where -0 counts as 0 and NaN stays.
#[inline(always)]
pub(super) fn relu<V: F32x16>(x: V) -> V {
    let zero = V::splat(0.0);
    zero.max(x) + zero
}

/// `x * sigmoid(x)`
#[inline(always)]
pub(super) fn silu<V: F32x16, T: Float>(x: V) -> V {
    T::round(x * sigmoid::<V, T>(x))
}

/// `x * (1 + erf(x / sqrt 2)) / 2`
#[inline(always)]
pub(super) fn gelu<V: F32x16, T: Float>(x: V) -> V {
    let root: V = T::round(V::splat(std::f32::consts::SQRT_2));
    let erf = T::round(erf_of_mlx(T::round(x / root)));
    let y = T::round(x * T::round(V::splat(1.0) + erf));
    T::round(y * V::splat(0.5))
}

/// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³)))`
#[inline(always)]
pub(super) fn gelu_tanh<V: F32x16, T: Float>(x: V) -> V {
    let factor: V = T::round(V::splat(0.797_884_6));
    let cubic: V = T::round(V::splat(0.044_715));
    let cube: V = T::round(x * x * x);
    let inner = T::round(factor * T::round(x + T::round(cubic * cube)));
    let outer = T::round(V::splat(1.0) + T::round(tanh(inner)));
    T::round(T::round(V::splat(0.5) * x) * outer)
}

/// A function of two elements, the second of which it may ignore.
trait Map: Sync {
    fn of<V: F32x16, T: Float>(a: V, b: V) -> V;
}

macro_rules! maps {
    ($($name:ident: $a:ident, $b:pat => $call:expr;)*) => {$(
        struct $name;
        impl Map for $name {
            #[inline(always)]
            fn of<V: F32x16, T: Float>($a: V, $b: V) -> V {
                $call
            }
        }
    )*};
}

maps! {
    Relu: a, _ => relu(a);
    Gelu: a, _ => gelu::<V, T>(a);
    GeluTanh: a, _ => gelu_tanh::<V, T>(a);
    Silu: a, _ => silu::<V, T>(a);
    Swiglu: a, b => silu::<V, T>(a) * b;
    Geglu: a, b => gelu::<V, T>(a) * b;
    GegluTanh: a, b => gelu_tanh::<V, T>(a) * b;
    AddRelu: a, b => relu(T::round(a + b));
    MulRelu: a, b => relu(T::round(a * b));
}

/// # Safety
/// `x` and `out` hold `size` elements, aligned to the element. `out` is `x` itself or overlaps
/// nothing.
pub unsafe fn activation(
    element: Element,
    kind: Activation,
    x: *const u8,
    out: *mut u8,
    size: usize,
) {
    let machine = Machine::current();
    // SAFETY: the caller's contract, and the machine is this one.
    with_element!(element, T => unsafe {
        activation_on::<T>(machine, kind, x.cast(), out.cast(), size)
    })
}

/// # Safety
/// `a`, `b` and `out` hold `size` elements, aligned to the element. `out` is one of the others or
/// overlaps nothing.
pub unsafe fn combination(
    element: Element,
    kind: Combination,
    a: *const u8,
    b: *const u8,
    out: *mut u8,
    size: usize,
) {
    let machine = Machine::current();
    // SAFETY: the caller's contract, and the machine is this one.
    with_element!(element, T => unsafe {
        combination_on::<T>(machine, kind, a.cast(), b.cast(), out.cast(), size)
    })
}

unsafe fn activation_on<T: Float>(
    machine: Machine,
    kind: Activation,
    x: *const T,
    out: *mut T,
    size: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match kind {
            Activation::Relu => map::<T, Relu>(machine, x, x, out, size, 1),
            Activation::Gelu => map::<T, Gelu>(machine, x, x, out, size, 4),
            Activation::GeluTanh => map::<T, GeluTanh>(machine, x, x, out, size, 4),
            Activation::Silu => map::<T, Silu>(machine, x, x, out, size, 2),
        }
    }
}

unsafe fn combination_on<T: Float>(
    machine: Machine,
    kind: Combination,
    a: *const T,
    b: *const T,
    out: *mut T,
    size: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match kind {
            Combination::Swiglu => map::<T, Swiglu>(machine, a, b, out, size, 3),
            Combination::Geglu => map::<T, Geglu>(machine, a, b, out, size, 5),
            Combination::GegluTanh => map::<T, GegluTanh>(machine, a, b, out, size, 5),
            Combination::AddRelu => map::<T, AddRelu>(machine, a, b, out, size, 1),
            Combination::MulRelu => map::<T, MulRelu>(machine, a, b, out, size, 1),
        }
    }
}

/// Elements that one item of a job stands for.
const BLOCK: usize = 1024;

/// `work`: tenths of a nanosecond an element.
unsafe fn map<T: Float, M: Map>(
    machine: Machine,
    a: *const T,
    b: *const T,
    out: *mut T,
    size: usize,
    work: usize,
) {
    let (a, b, out) = (Shared(a.cast_mut()), Shared(b.cast_mut()), Shared(out));
    machine.pool.for_each(size.div_ceil(BLOCK), BLOCK * work, &|blocks| {
        let range = blocks.start * BLOCK..size.min(blocks.end * BLOCK);
        let kernel =
            Mapped { a: a.get(), b: b.get(), out: out.get(), range, map: PhantomData::<M> };
        // SAFETY: the caller's contract; the ranges are disjoint.
        unsafe { machine.level.run(kernel) }
    });
}

struct Mapped<T, M> {
    a: *const T,
    b: *const T,
    out: *mut T,
    range: Range<usize>,
    map: PhantomData<M>,
}

impl<T: Float, M: Map> Kernel for Mapped<T, M> {
    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let PhantomData = self.map;
        let mut at = self.range.start;
        // SAFETY: every access is within the range, and reads come before the write to their place.
        unsafe {
            while at + LANES <= self.range.end {
                let (a, b): (V, V) = (T::load(self.a.add(at)), T::load(self.b.add(at)));
                T::store(M::of::<V, T>(a, b), self.out.add(at));
                at += LANES;
            }
            let count = self.range.end - at;
            if count > 0 {
                let a: V = T::load_first(self.a.add(at), count);
                let b: V = T::load_first(self.b.add(at), count);
                T::store_first(M::of::<V, T>(a, b), self.out.add(at), count);
            }
        }
    }
}

/// The extents of [`affine`]; scale and shift have one column or all of them.
#[derive(Clone, Copy, Debug)]
pub struct AffineShape {
    pub rows: usize,
    pub columns: usize,
    pub scale_columns: usize,
    pub shift_columns: usize,
}

/// `x * scale + shift`, the product rounded first.
///
/// # Safety
/// `x` and `out` hold `rows * columns` elements, `scale` and `shift` what the shape says, aligned
/// to the element. `out` is `x` itself or overlaps nothing.
pub unsafe fn affine(
    element: Element,
    x: *const u8,
    scale: *const u8,
    shift: *const u8,
    out: *mut u8,
    shape: &AffineShape,
) {
    let machine = Machine::current();
    // SAFETY: the caller's contract, and the machine is this one.
    with_element!(element, T => unsafe {
        affine_on::<T>(machine, x.cast(), scale.cast(), shift.cast(), out.cast(), shape)
    })
}

unsafe fn affine_on<T: Float>(
    machine: Machine,
    x: *const T,
    scale: *const T,
    shift: *const T,
    out: *mut T,
    shape: &AffineShape,
) {
    let mut shape = *shape;
    if shape.scale_columns == 1 && shape.shift_columns == 1 {
        // Rows mean nothing then; of a fair size they make good items.
        let size = shape.rows * shape.columns;
        (shape.rows, shape.columns) = (size.div_ceil(BLOCK), BLOCK);
        let (x, out) = (Shared(x.cast_mut()), Shared(out));
        let (scale, shift) = (Shared(scale.cast_mut()), Shared(shift.cast_mut()));
        machine.pool.for_each(shape.rows, BLOCK, &|rows| {
            let flat = rows.start * BLOCK..size.min(rows.end * BLOCK);
            let count = flat.len();
            // SAFETY: the range lies within the buffers; the ranges are disjoint.
            unsafe {
                let (x, out) = (x.get().add(flat.start), out.get().add(flat.start));
                let one = AffineShape { rows: 1, columns: count, ..shape };
                let (scale, shift) = (scale.get(), shift.get());
                machine.level.run(Affine { x, scale, shift, out, rows: 0..1, shape: one });
            }
        });
        return;
    }
    let (x, out) = (Shared(x.cast_mut()), Shared(out));
    let (scale, shift) = (Shared(scale.cast_mut()), Shared(shift.cast_mut()));
    machine.pool.for_each(shape.rows, shape.columns, &|rows| {
        let (x, out) = (x.get(), out.get());
        let kernel = Affine { x, scale: scale.get(), shift: shift.get(), out, rows, shape };
        // SAFETY: the caller's contract; the ranges of rows are disjoint.
        unsafe { machine.level.run(kernel) }
    });
}

struct Affine<T> {
    x: *const T,
    scale: *const T,
    shift: *const T,
    out: *mut T,
    rows: Range<usize>,
    shape: AffineShape,
}

impl<T: Float> Kernel for Affine<T> {
    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let columns = self.shape.columns;
        for row in self.rows.clone() {
            for at in (0..columns).step_by(LANES) {
                let count = LANES.min(columns - at);
                // SAFETY: within the row, and the read comes before the write to its place.
                unsafe {
                    let x: V = part::<V, T>(self.x.add(row * columns + at), count);
                    let scale = self.factor::<V>(self.scale, self.shape.scale_columns, at, count);
                    let shift = self.factor::<V>(self.shift, self.shape.shift_columns, at, count);
                    let y = T::round(x * scale) + shift;
                    let to = self.out.add(row * columns + at);
                    if count == LANES { T::store(y, to) } else { T::store_first(y, to, count) }
                }
            }
        }
    }
}

impl<T: Float> Affine<T> {
    #[inline(always)]
    unsafe fn factor<V: F32x16>(&self, of: *const T, columns: usize, at: usize, count: usize) -> V {
        // SAFETY: one element, or as many as the row has.
        unsafe {
            if columns == 1 {
                let mut first = [0.0; LANES];
                T::load_first::<V>(of, 1).store(first.as_mut_ptr());
                return V::splat(first[0]);
            }
            part::<V, T>(of.add(at), count)
        }
    }
}

/// # Safety
/// `count <= 16` elements are readable.
#[inline(always)]
unsafe fn part<V: F32x16, T: Float>(from: *const T, count: usize) -> V {
    // SAFETY: the caller's contract.
    unsafe { if count == LANES { T::load(from) } else { T::load_first(from, count) } }
}

#[cfg(test)]
mod tests;
