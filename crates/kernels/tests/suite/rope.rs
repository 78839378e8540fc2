use crate::testing::*;
use mlx_primitives_kernels::math::{exp_like_mlx, sin_cos};
use mlx_primitives_kernels::rope::*;
use mlx_primitives_kernels::simd::{Kernel, Level};

const SHAPE: RopeShape = RopeShape {
    batch: 2,
    heads: 3,
    seq: 5,
    head_dim: 64,
    dims: 64,
    traditional: false,
    forward: true,
    scale: 1.0,
};

fn run<T: Sample>(x: &[T], shape: &RopeShape, frequencies: Frequencies, offsets: &[i32]) -> Vec<T> {
    in_place(x, |on, from, to| {
        // SAFETY: both buffers hold the shape's elements.
        unsafe { rope_on(on, from, to, shape, frequencies, offsets) };
    })
}

/// Computes the sine and cosine of one angle with the portable vectors.
struct One<'a>(f32, &'a mut (f32, f32));

impl Kernel for One<'_> {
    const BF16: bool = true;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        let (sin, cos) = sin_cos(V::splat(self.0));
        *self.1 = (sin.reduce_max(), cos.reduce_max());
    }
}

/// Computes MLX's composition one element at a time, and rounds every operation to the element
/// type.
fn reference<T: Sample>(
    x: &[T],
    shape: &RopeShape,
    frequencies: Frequencies,
    offsets: &[i32],
) -> Vec<T> {
    let half = shape.dims / 2;
    let round = rounded::<T>;
    let mut out = x.to_vec();
    for (index, vector) in x.chunks_exact(shape.head_dim).enumerate() {
        let batch = index / (shape.heads * shape.seq);
        let offset = offsets[if offsets.len() > 1 { batch } else { 0 }];
        let position = ((index % shape.seq) as f32 + offset as f32) * shape.scale;
        for i in 0..half {
            let inverse = match frequencies {
                Frequencies::Base(base) => exp_like_mlx(-(i as f32) * (base.ln() / half as f32)),
                Frequencies::Explicit(periods) => 1.0 / periods[i],
            };
            let mut turn = (0.0, 0.0);
            // SAFETY: every machine supports the scalar level.
            unsafe { Level::Scalar.run(One(position * inverse, &mut turn)) };
            let (sin, cos) = (round(turn.0), round(turn.1));
            let (first, second) =
                if shape.traditional { (2 * i, 2 * i + 1) } else { (i, i + half) };
            let (a, b) = (vector[first].to_f32(), vector[second].to_f32());
            let turned = if shape.forward {
                (round(a * cos) - round(b * sin), round(a * sin) + round(b * cos))
            } else {
                (round(b * sin) + round(a * cos), round(b * cos) - round(a * sin))
            };
            out[index * shape.head_dim + first] = T::from_f32(turned.0);
            out[index * shape.head_dim + second] = T::from_f32(turned.1);
        }
    }
    out
}

fn check<T: Sample>(shape: &RopeShape, frequencies: Frequencies, offsets: &[i32]) {
    let x = values::<T>(shape.batch * shape.heads * shape.seq * shape.head_dim, 4.0);
    let expected = reference(&x, shape, frequencies, offsets);
    assert_same(&run(&x, shape, frequencies, offsets), &expected, &format!("{shape:?}"));
}

fn check_all(shape: &RopeShape, frequencies: Frequencies, offsets: &[i32]) {
    for (traditional, forward) in [(false, true), (false, false), (true, true), (true, false)] {
        let shape = RopeShape { traditional, forward, ..*shape };
        check::<f32>(&shape, frequencies, offsets);
        check::<F16>(&shape, frequencies, offsets);
        check::<Bf16>(&shape, frequencies, offsets);
    }
}

#[test]
fn every_width_of_the_turning_part() {
    for head_dim in [2, 6, 16, 30, 64, 80, 128] {
        for dims in [2, 6, 16, 30, 32, 64, 80, 128] {
            if dims <= head_dim {
                check_all(&RopeShape { head_dim, dims, ..SHAPE }, Frequencies::Base(1e4), &[7]);
            }
        }
    }
}

#[test]
fn more_columns_than_a_table_holds_at_once() {
    for dims in [512, 1100, 2 * TABLE + 6] {
        let shape = RopeShape { head_dim: dims + 2, dims, seq: 3, ..SHAPE };
        check_all(&shape, Frequencies::Base(1e4), &[3]);
    }
}

#[test]
fn decoding_a_batch_at_its_own_offsets() {
    for seq in [1, 2, 9] {
        let shape = RopeShape { batch: 3, seq, ..SHAPE };
        check_all(&shape, Frequencies::Base(5e5), &[0, 1000, -3]);
        check_all(&shape, Frequencies::Base(5e5), &[41]);
    }
}

#[test]
fn explicit_frequencies_and_scale() {
    let periods: Vec<f32> = (0..32).map(|i| 1.0 + i as f32 * i as f32).collect();
    let shape = RopeShape { scale: 0.25, ..SHAPE };
    check_all(&shape, Frequencies::Explicit(&periods), &[100]);
    // If all periods are zero, angles are infinite and results are NaN, as in MLX.
    check_all(&shape, Frequencies::Explicit(&[0.0; 32]), &[0]);
}

#[test]
fn sequences_long_enough_to_share() {
    for (heads, seq) in [(32, 129), (4, 1000), (256, 8)] {
        let shape = RopeShape { batch: 2, heads, seq, head_dim: 72, ..SHAPE };
        check::<f32>(&shape, Frequencies::Base(1e4), &[i32::MAX - 4]);
        check::<F16>(&shape, Frequencies::Base(1e4), &[1, 2]);
    }
}

#[test]
fn nothing_to_do() {
    for shape in [RopeShape { seq: 0, ..SHAPE }, RopeShape { batch: 0, ..SHAPE }] {
        check::<f32>(&shape, Frequencies::Base(1e4), &[0]);
    }
}

#[test]
fn forward_then_back_returns() {
    let x = values::<f32>(2 * 3 * 5 * 64, 1.0);
    let there = run(&x, &SHAPE, Frequencies::Base(1e4), &[9]);
    let back = RopeShape { forward: false, ..SHAPE };
    let back = run(&there, &back, Frequencies::Base(1e4), &[9]);
    let expected: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
    assert_close(&back, &expected, 1e-5, 1e-6, "there and back");
}
