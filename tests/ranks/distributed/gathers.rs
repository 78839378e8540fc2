//! Tests `gather_last`, which joins the parts of an array that the ranks hold along the last axis.

use mlx_primitives::{Array, Dtype, transforms};
use mlx_primitives_ranks::Group;

use crate::support::Checked;

/// The length of each rank's part: `scale` times 1, 3, 5, and so on.
fn lengths(group: &Group, scale: i32) -> Vec<i32> {
    (0..group.size() as i32).map(|rank| (2 * rank + 1) * scale).collect()
}

/// The part of a rank. Its elements depend on the rank, the row and the position. They are small
/// enough for every type.
fn part(rank: usize, rows: i32, length: i32, dtype: Dtype) -> Checked<Array> {
    let count = rows * length;
    let numbers: Vec<f32> = (0..count).map(|i| (rank as i32 * 60 + i % 59) as f32).collect();
    Ok(Array::from_slice(&numbers, [rows, length])?.astype(dtype)?)
}

fn whole(rows: i32, lengths: &[i32]) -> Vec<f32> {
    let mut numbers = Vec::new();
    for row in 0..rows {
        for (rank, &length) in lengths.iter().enumerate() {
            let of_row = row * length..(row + 1) * length;
            numbers.extend(of_row.map(|i| (rank as i32 * 60 + i % 59) as f32));
        }
    }
    numbers
}

/// Tests gathers and their transforms. `axes` are the axes for `vmap`: 0 and 1 on a CPU, and 1 on a
/// GPU. Only a CPU refuses types other than floats and uint32.
pub fn gathers(group: &Group, axes: &[i32]) -> Checked {
    let rank = group.rank();
    // In the last case, the data does not fit in a connection's buffers.
    for (rows, scale) in [(1, 1), (3, 7), (1, 4096), (17, 33), (64, 20_000)] {
        let lengths = lengths(group, scale);
        for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16, Dtype::Uint32] {
            if rows == 64 && dtype != Dtype::Float32 {
                continue;
            }
            let x = part(rank, rows, lengths[rank], dtype)?;
            let y = group.gather_last(&x, &lengths)?;
            assert_eq!(y.dtype(), dtype);
            assert_eq!(y.shape(), [rows, lengths.iter().sum()]);
            let y = y.astype(Dtype::Float32)?.to_vec::<f32>()?;
            assert!(y == whole(rows, &lengths), "{dtype} {rows} {scale}");
        }
    }
    // Gather strided views, which must be copied first. Gathers in a chain must run in order.
    let lengths = lengths(group, 2);
    let wide = part(rank, 3, 2 * lengths[rank], Dtype::Float32)?;
    let mut x = wide.i((.., mlx_primitives::step(.., 2)))?;
    let own: i32 = lengths[..rank].iter().sum();
    for _ in 0..50 {
        let y = group.gather_last(&x, &lengths)?;
        x = y.slice_axis(-1, own..own + lengths[rank])?.add(1.0)?;
    }
    let expected = wide.i((.., mlx_primitives::step(.., 2)))?.add(50.0)?;
    assert_eq!(x.to_vec::<f32>()?, expected.to_vec::<f32>()?);

    // The function multiplies the result by a scale for each feature. So the gradient of a rank's
    // part consists of the scales of its features.
    let x = part(rank, 2, lengths[rank], Dtype::Float32)?;
    let all: i32 = lengths.iter().sum();
    let scales = Array::arange::<f32>(1.0, f64::from(all) + 1.0, 1.0)?;
    let f = |x: Array| group.gather_last(&x, &lengths)?.multiply(&scales);
    let (_, gradient) = transforms::vjp(f, &x, &Array::ones::<f32>([2, all])?)?;
    let own_scales = scales.i(own..own + lengths[rank])?.broadcast_to(x.shape())?;
    assert_eq!(gradient.to_vec::<f32>()?, own_scales.to_vec::<f32>()?);
    let (_, tangent) = transforms::jvp(f, &x, &Array::ones::<f32>(x.shape())?)?;
    assert_eq!(tangent.to_vec::<f32>()?, scales.broadcast_to([2, all])?.to_vec::<f32>()?);
    // Map the gather over each axis.
    let x = part(rank, 3, lengths[rank], Dtype::Float32)?;
    for &axis in axes {
        let turned = if axis == 0 { x.clone() } else { x.t()? };
        let mapped =
            transforms::vmap(|x: Array| group.gather_last(&x, &lengths), &turned, axis, 0)?;
        assert_eq!(mapped.to_vec::<f32>()?, whole(3, &lengths));
    }

    let refused = |x: &Array, lengths: &[i32]| {
        let error = group.gather_last(x, lengths).unwrap_err().to_string();
        assert!(error.contains("a length above 0 for each rank"), "{error}");
    };
    refused(&x, &lengths[1..]);
    refused(&Array::ones::<f32>([2, lengths[rank] + 1])?, &lengths);
    refused(&Array::scalar(1.0f32)?, &lengths);
    let doubles = Array::ones::<i32>([2, lengths[rank]])?;
    let error = group.gather_last(&doubles, &lengths);
    if group.size() > 1 && axes.contains(&0) {
        let error = error.unwrap_err().to_string();
        assert!(error.contains("a float or uint32, got int32"), "{error}");
    }
    Ok(())
}

/// Each rank passes a different length for the parts. On a CPU, every rank gets an error. With
/// MLX's ring, the ranks would wait forever.
pub fn unequal(group: &Group) -> Checked {
    let length = 4 + group.rank() as i32;
    let x = Array::ones::<f32>([1, length])?;
    group.gather_last(&x, &vec![length; group.size()])?.eval()?;
    Ok(())
}
