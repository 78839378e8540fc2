//! Helpers of the kernels' tests: element types, inputs, machines, comparisons.

use half::{bf16, f16};

use std::sync::atomic::Ordering::Relaxed;

use mlx_primitives_kernels::output::BEYOND_CACHES;
use mlx_primitives_kernels::pool::Pool;
use mlx_primitives_kernels::simd::Level;

pub use mlx_primitives_kernels::Machine;
pub use mlx_primitives_kernels::element::{Bf16, Element, F16, Float};
pub use mlx_primitives_kernels::simd::{F32x16, LANES};

/// In these tests, results of at least this many bytes bypass the caches, if each row is aligned
/// and the results overwrite no input.
pub const FEW_BYTES: usize = 1 << 12;
pub const AXES: [usize; 17] =
    [0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 100, 768, 1000, 4096, 4097, 16384];
pub const ROWS: [usize; 4] = [0, 1, 3, 67];

/// All combinations of [`ROWS`] and [`AXES`], except shapes with more than `most` elements.
pub fn rows_and_axes(most: usize) -> impl Iterator<Item = (usize, usize)> {
    let all = AXES.into_iter().flat_map(|axis| ROWS.map(|rows| (rows, axis)));
    all.filter(move |(rows, axis)| rows * axis <= most)
}

/// Defines a test for each element type, from functions that have the type as a parameter.
macro_rules! each_type {
    ($($test:ident)+) => {$(
        mod $test {
            #[test]
            fn f32() {
                super::$test::<f32>();
            }
            #[test]
            fn f16() {
                super::$test::<crate::testing::F16>();
            }
            #[test]
            fn bf16() {
                super::$test::<crate::testing::Bf16>();
            }
        }
    )+};
}

/// An element type with conversions to and from f32. The `half` crate converts the 16-bit types.
pub trait Sample: Float + Default {
    /// The largest relative difference between neighboring values of the type.
    const EPSILON: f32;
    fn from_f32(value: f32) -> Self;
    fn to_f32(self) -> f32;
}

impl Sample for f32 {
    const EPSILON: f32 = f32::EPSILON;
    fn from_f32(value: f32) -> Self {
        value
    }
    fn to_f32(self) -> f32 {
        self
    }
}

impl Sample for F16 {
    const EPSILON: f32 = 1.0 / 1024.0;
    fn from_f32(value: f32) -> Self {
        F16(f16::from_f32(value).to_bits())
    }
    fn to_f32(self) -> f32 {
        f16::from_bits(self.0).to_f32()
    }
}

impl Sample for Bf16 {
    const EPSILON: f32 = 1.0 / 128.0;
    fn from_f32(value: f32) -> Self {
        Bf16(bf16::from_f32(value).to_bits())
    }
    fn to_f32(self) -> f32 {
        bf16::from_bits(self.0).to_f32()
    }
}

pub fn rounded<T: Sample>(value: f32) -> f32 {
    T::from_f32(value).to_f32()
}

/// Random values in [-scale, scale), which are the same in every run.
pub fn values<T: Sample>(count: usize, scale: f32) -> Vec<T> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ count as u64;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| T::from_f32(next() * scale)).collect()
}

/// Overwrites the second half of each row by the first half.
pub fn repeat_halves<E: Copy>(elements: &mut [E], rows: usize) {
    let axis = elements.len() / rows;
    if axis > 0 {
        elements.chunks_exact_mut(axis).for_each(|row| row.copy_within(..axis / 2, axis / 2));
    }
}

/// Overwrites the second half of each row by the negated first half. Then the exact products with
/// rows of equal halves are zero, and the computed products are rounding errors. The errors show
/// whether the order of additions changes.
pub fn with_opposite_halves<T: Sample>(mut x: Vec<T>, rows: usize) -> Vec<T> {
    let axis = x.len() / rows;
    repeat_halves(&mut x, rows);
    for row in x.chunks_exact_mut(axis) {
        let half = row.len() / 2;
        row[half..].iter_mut().for_each(|x| *x = T::from_f32(-x.to_f32()));
    }
    x
}

/// Makes kernels bypass the caches even for small results.
pub fn go_past_the_caches() {
    BEYOND_CACHES.store(FEW_BYTES, Relaxed);
}

/// Every instruction set ("level") of this machine with one and with eight threads, and the default
/// level with two threads.
pub fn machines() -> Vec<Machine> {
    go_past_the_caches();
    static POOLS: std::sync::OnceLock<[&Pool; 3]> = std::sync::OnceLock::new();
    let pools = POOLS.get_or_init(|| [Pool::leak(1), Pool::leak_on(8, 8), Pool::leak_on(2, 2)]);
    let with = |level| [pools[0], pools[1]].map(|pool| Machine { level, pool });
    let two = Machine { level: Level::current(), pool: pools[2] };
    Level::available().flat_map(with).chain([two]).collect()
}

/// The machine with one thread instead of its pool.
pub fn with_one_thread(machine: Machine) -> Machine {
    Machine { pool: machines()[0].pool, ..machine }
}

/// The machines of [`machines`], and scalar machines that compute products of tiles by loops.
pub fn machines_and_tiles() -> Vec<Machine> {
    let mut machines = machines();
    let scalar = machines.iter().filter(|machine| machine.level == Level::Scalar);
    let tiles: Vec<_> =
        scalar.map(|machine| Machine { level: Level::ScalarTiles, ..*machine }).collect();
    machines.extend(tiles);
    machines
}

pub fn wide<T: Sample>(values: &[T]) -> Vec<f64> {
    values.iter().map(|v| f64::from(v.to_f32())).collect()
}

/// Runs a function on every machine, checks that the results are the same, and returns the result.
pub fn same<T: Sample>(run: impl Fn(Machine) -> Vec<T>) -> Vec<T> {
    let mut all = machines().into_iter().map(|machine| (machine, run(machine)));
    let (_, first) = all.next().expect("a machine");
    for (machine, got) in all {
        assert_same(&got, &first, &format!("{:?}", machine.level));
    }
    first
}

/// Runs a kernel that writes one element for each element of `x`. Checks that the results are the
/// same in place and on every machine.
pub fn in_place<T: Sample>(x: &[T], run: impl Fn(Machine, *const T, *mut T)) -> Vec<T> {
    same(|machine| {
        let (mut out, mut place) = (vec![T::default(); x.len()], x.to_vec());
        run(machine, x.as_ptr(), out.as_mut_ptr());
        let at = place.as_mut_ptr();
        run(machine, at.cast_const(), at);
        assert_same(&place, &out, &format!("in place on {:?}", machine.level));
        out
    })
}

/// The address of the elements, or null if the slice is empty.
pub fn pointer<T>(values: &[T]) -> *const T {
    if values.is_empty() { std::ptr::null() } else { values.as_ptr() }
}

/// Checks that results are equal bit for bit, except that any NaN equals any other NaN.
pub fn assert_same<T: Sample>(got: &[T], expected: &[T], what: &str) {
    assert_eq!(got.len(), expected.len());
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let (got, expected) = (got.to_f32(), expected.to_f32());
        let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
        assert!(same, "{what}: {got:e} at {index}, expected {expected:e}");
    }
}

/// Checks that errors are within `relative` of the expected value or within `absolute`, whichever
/// is larger.
pub fn assert_close<T: Sample>(
    got: &[T],
    expected: &[f64],
    relative: f64,
    absolute: f64,
    what: &str,
) {
    assert_eq!(got.len(), expected.len());
    for (index, (got, &expected)) in got.iter().zip(expected).enumerate() {
        let got = f64::from(got.to_f32());
        let close = (got - expected).abs() <= (expected.abs() * relative).max(absolute);
        assert!(
            close || got.is_nan() && expected.is_nan() || got == expected,
            "{what}: {got:e} at {index}, expected {expected:e}"
        );
    }
}
