//! Elementwise activations. They round intermediate results in the same places as MLX's composition
//! of ops.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::OnceLock;

use super::element::{Element, Float, with_element};
use super::math::{erf_of_mlx, sigmoid, tanh};
use super::output::Output;
use super::simd::{F32x16, Kernel, LANES};
use super::{Machine, Shared};
pub mod affine;
mod gradient;
mod slopes;
mod table;

pub use affine::{AffineShape, affine};
pub use gradient::{combination_grad, combination_grad_on};
use slopes::{gelu_slope, gelu_tanh_slope, relu_slope, silu_slope};
use table::{ALL, Table};

/// The smallest number of elements for which a table of all 16-bit values is worth computing.
const ENOUGH: usize = ALL;

/// A function that is applied to each element. C++ has constants with the same numbers; there, 0
/// means no function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Activation {
    Relu = 1,
    Gelu,
    GeluTanh,
    Silu,
}

/// A function of pairs of elements. The numbers continue after the last [`Activation`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Combination {
    Swiglu = 5,
    Geglu,
    GegluTanh,
    AddRelu,
    MulRelu,
    /// This variant and the variants below multiply the derivative of an [`Activation`] at the
    /// first element by the second element.
    ReluSlope,
    GeluSlope,
    GeluTanhSlope,
    SiluSlope,
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

/// Computes `max(x, 0)`. The result for -0 is 0, and the result for NaN is NaN.
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

/// A function of one element.
trait Function: Sync {
    /// The index of the function's table for 16-bit types, or `None` if computing the function is
    /// faster than looking it up.
    const TABLE: Option<usize>;
    fn of<V: F32x16, T: Float>(x: V) -> V;
}

/// A function of two elements, which may ignore the second element.
trait Map: Sync {
    fn of<V: F32x16, T: Float>(a: V, b: V) -> V;
}

struct Relu;
struct Gelu;
struct GeluTanh;
struct Silu;
struct ReluSlope;
struct GeluSlope;
struct GeluTanhSlope;
struct SiluSlope;

macro_rules! functions {
    ($($name:ident, $table:expr, $x:ident => $call:expr;)*) => {$(
        impl Function for $name {
            const TABLE: Option<usize> = $table;
            #[inline(always)]
            fn of<V: F32x16, T: Float>($x: V) -> V {
                $call
            }
        }
    )*};
}

functions! {
    Relu, None, x => relu(x);
    Gelu, Some(0), x => gelu::<V, T>(x);
    GeluTanh, Some(1), x => gelu_tanh::<V, T>(x);
    Silu, Some(2), x => silu::<V, T>(x);
    ReluSlope, None, x => relu_slope(x);
    GeluSlope, Some(3), x => T::round(gelu_slope(x));
    GeluTanhSlope, Some(4), x => T::round(gelu_tanh_slope(x));
    SiluSlope, Some(5), x => T::round(silu_slope(x));
}

/// Applies the function to the first element and ignores the second element.
struct Alone<F>(PhantomData<F>);
/// Multiplies the function of the first element by the second element.
struct Gated<F>(PhantomData<F>);
struct AddRelu;
struct MulRelu;

impl<F: Function> Map for Alone<F> {
    #[inline(always)]
    fn of<V: F32x16, T: Float>(a: V, _: V) -> V {
        F::of::<V, T>(a)
    }
}

impl<F: Function> Map for Gated<F> {
    #[inline(always)]
    fn of<V: F32x16, T: Float>(a: V, b: V) -> V {
        F::of::<V, T>(a) * b
    }
}

impl Map for AddRelu {
    #[inline(always)]
    fn of<V: F32x16, T: Float>(a: V, b: V) -> V {
        relu(T::round_number(a + b))
    }
}

impl Map for MulRelu {
    #[inline(always)]
    fn of<V: F32x16, T: Float>(a: V, b: V) -> V {
        relu(T::round_number(a * b))
    }
}

/// # Safety
/// `x` and `out` must hold `size` elements each, and be aligned to the element type. `out` must be
/// `x` or must not overlap `x`.
pub unsafe fn activation(
    element: Element,
    kind: Activation,
    x: *const u8,
    out: *mut u8,
    size: usize,
) {
    let machine = Machine::current();
    // SAFETY: the caller keeps the contract, and `machine` describes this machine.
    with_element!(element, T => unsafe {
        activation_on::<T>(machine, kind, x.cast(), out.cast(), size)
    })
}

/// # Safety
/// `a`, `b` and `out` must hold `size` elements each, and be aligned to the element type. `out`
/// must be `a` or `b`, or must not overlap them.
pub unsafe fn combination(
    element: Element,
    kind: Combination,
    a: *const u8,
    b: *const u8,
    out: *mut u8,
    size: usize,
) {
    let machine = Machine::current();
    // SAFETY: the caller keeps the contract, and `machine` describes this machine.
    with_element!(element, T => unsafe {
        combination_on::<T>(machine, kind, a.cast(), b.cast(), out.cast(), size)
    })
}

pub unsafe fn activation_on<T: Float>(
    machine: Machine,
    kind: Activation,
    x: *const T,
    out: *mut T,
    size: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        match kind {
            Activation::Relu => alone::<T, Relu>(machine, x, out, size, 1),
            Activation::Gelu => alone::<T, Gelu>(machine, x, out, size, 4),
            Activation::GeluTanh => alone::<T, GeluTanh>(machine, x, out, size, 4),
            Activation::Silu => alone::<T, Silu>(machine, x, out, size, 2),
        }
    }
}

pub unsafe fn combination_on<T: Float>(
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
            Combination::Swiglu => gated::<T, Silu>(machine, a, b, out, size, 3),
            Combination::Geglu => gated::<T, Gelu>(machine, a, b, out, size, 5),
            Combination::GegluTanh => gated::<T, GeluTanh>(machine, a, b, out, size, 5),
            Combination::AddRelu => map::<T, AddRelu>(machine, a, b, out, size, 1),
            Combination::MulRelu => map::<T, MulRelu>(machine, a, b, out, size, 1),
            Combination::ReluSlope => gated::<T, ReluSlope>(machine, a, b, out, size, 1),
            Combination::GeluSlope => gated::<T, GeluSlope>(machine, a, b, out, size, 6),
            Combination::GeluTanhSlope => gated::<T, GeluTanhSlope>(machine, a, b, out, size, 6),
            Combination::SiluSlope => gated::<T, SiluSlope>(machine, a, b, out, size, 3),
        }
    }
}

/// Returns the table of `F` for `T`, if `F` has one, `T` has 16 bits, and there are enough
/// elements.
fn table<T: Float, F: Function>(machine: Machine, size: usize) -> Option<&'static Table> {
    static TABLES: [[OnceLock<Box<Table>>; 2]; 6] = [const { [const { OnceLock::new() }; 2] }; 6];
    if size_of::<T>() != size_of::<u16>() || size < ENOUGH {
        return None;
    }
    let of_type = TABLES.get(F::TABLE?)?;
    Some(of_type[usize::from(T::IS_BF16)].get_or_init(|| make::<T, F>(machine)))
}

fn make<T: Float, F: Function>(machine: Machine) -> Box<Table> {
    let mut values: Box<Table> = vec![0; ALL].try_into().unwrap_or_else(|_| Box::new([0; ALL]));
    for (pattern, value) in values.iter_mut().enumerate() {
        *value = pattern as u16;
    }
    let place = values.as_mut_ptr().cast::<T>();
    let kernel = Mapped {
        a: place,
        b: place,
        out: Output::near(place),
        range: 0..ALL,
        map: PhantomData::<Alone<F>>,
    };
    // SAFETY: the table has as many elements as the range, and `Mapped` may work in place.
    unsafe { machine.level.run(kernel) };
    values
}

unsafe fn alone<T: Float, F: Function>(
    machine: Machine,
    x: *const T,
    out: *mut T,
    size: usize,
    work: usize,
) {
    let Some(table) = table::<T, F>(machine, size) else {
        // SAFETY: the caller's contract.
        return unsafe { map::<T, Alone<F>>(machine, x, x, out, size, work) };
    };
    let out = Output::new(out, &[x], size, BLOCK);
    let x = Shared(x.cast_mut());
    machine.pool.for_each(size.div_ceil(BLOCK), BLOCK, &|blocks| {
        let range = blocks.start * BLOCK..size.min(blocks.end * BLOCK);
        // SAFETY: the caller keeps the contract, the ranges are disjoint, and T has 16 bits.
        unsafe { table::map::<T>(machine, table, x.get(), out, range) }
    });
}

unsafe fn gated<T: Float, F: Function>(
    machine: Machine,
    a: *const T,
    b: *const T,
    out: *mut T,
    size: usize,
    work: usize,
) {
    let Some(table) = table::<T, F>(machine, size) else {
        // SAFETY: the caller's contract.
        return unsafe { map::<T, Gated<F>>(machine, a, b, out, size, work) };
    };
    let out = Output::new(out, &[a, b], size, BLOCK);
    let (a, b) = (Shared(a.cast_mut()), Shared(b.cast_mut()));
    machine.pool.for_each(size.div_ceil(BLOCK), BLOCK, &|blocks| {
        let range = blocks.start * BLOCK..size.min(blocks.end * BLOCK);
        // SAFETY: the caller keeps the contract, the ranges are disjoint, and T has 16 bits.
        unsafe { table::gated::<T>(machine, table, [a.get(), b.get()], out, range) }
    });
}

/// The number of elements in an item of a job.
const BLOCK: usize = 1024;

/// Applies a function to all elements. `work` is the time per element in tenths of a nanosecond.
unsafe fn map<T: Float, M: Map>(
    machine: Machine,
    a: *const T,
    b: *const T,
    out: *mut T,
    size: usize,
    work: usize,
) {
    let out = Output::new(out, &[a, b], size, BLOCK);
    let (a, b) = (Shared(a.cast_mut()), Shared(b.cast_mut()));
    machine.pool.for_each(size.div_ceil(BLOCK), BLOCK * work, &|blocks| {
        let range = blocks.start * BLOCK..size.min(blocks.end * BLOCK);
        let kernel = Mapped { a: a.get(), b: b.get(), out, range, map: PhantomData::<M> };
        // SAFETY: the caller keeps the contract, and the ranges are disjoint.
        unsafe { machine.level.run(kernel) }
    });
}

struct Mapped<T, M> {
    a: *const T,
    b: *const T,
    out: Output<T>,
    range: Range<usize>,
    map: PhantomData<M>,
}

impl<T: Float, M: Map> Kernel for Mapped<T, M> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let Self { a, b, out, range, map: PhantomData } = self;
        let mut at = range.start;
        // SAFETY: every access is within the range, and the code reads elements before it
        // overwrites them.
        unsafe {
            if V::SMALL {
                for at in range.clone().step_by(LANES) {
                    let count = LANES.min(range.end - at);
                    let (a, b) = (T::load_block(a.add(at), count), T::load_block(b.add(at), count));
                    out.put_block::<V>(M::of::<V, T>(a, b), at, count);
                }
                return;
            }
            while at + LANES <= range.end {
                let (a, b): (V, V) = (T::load_mixed(a.add(at)), T::load_mixed(b.add(at)));
                out.put_mixed(M::of::<V, T>(a, b), at);
                at += LANES;
            }
            let count = range.end - at;
            if count > 0 {
                let (a, b) = (T::load_first(a.add(at), count), T::load_first(b.add(at), count));
                out.put_first::<V>(M::of::<V, T>(a, b), at, count);
            }
        }
    }
}
