//! Compares the copy kernel with a loop over every index.

use mlx_primitives_kernels::{CopyCall, copy};

/// The elements that the shape and strides select, in the order of the output.
fn walked<T: Copy>(x: &[T], first: usize, shape: &[i32], strides: &[i64]) -> Vec<T> {
    let count: usize = shape.iter().map(|&size| size as usize).product();
    let of = |mut number: usize| {
        let mut at = first as i64;
        for (&size, &stride) in shape.iter().zip(strides).rev() {
            at += (number % size as usize) as i64 * stride;
            number /= size as usize;
        }
        x[at as usize]
    };
    (0..count).map(of).collect()
}

fn agrees<T: Copy + Default + PartialEq + std::fmt::Debug>(of: impl Fn(usize) -> T) {
    let x: Vec<T> = (0..70_000).map(of).collect();
    let cases: &[(&[i32], &[i64], usize)] = &[
        (&[], &[], 5),
        (&[0, 3], &[3, 1], 0),
        (&[7], &[1], 3),
        (&[7], &[-1], 9),
        (&[3, 4, 5], &[20, 5, 1], 0),
        (&[5, 4, 3], &[1, 5, 20], 0),
        (&[65, 33], &[1, 65], 0),
        (&[33, 65], &[1, 40], 2),
        (&[100, 200], &[1, 100], 0),
        (&[2, 65, 3, 33], &[6435, 1, 65, 195], 0),
        (&[65, 2, 33], &[1, 2145, 65], 0),
        (&[4, 6, 9], &[0, 1, 6], 0),
        (&[4, 6, 9], &[9, 0, 1], 0),
        (&[300, 100], &[1, 0], 0),
        (&[100, 300], &[0, 1], 0),
        (&[4, 1, 9], &[18, 7, 2], 1),
        (&[3, 50, 2], &[200, 2, 1], 0),
        (&[50, 60], &[-1, 50], 49),
        (&[2, 2, 2, 2, 2], &[1, 2, 4, 8, 16], 0),
        (&[200, 150], &[300, 2], 0),
    ];
    for &(shape, strides, first) in cases {
        let want = walked(&x, first, shape, strides);
        let mut got = vec![T::default(); want.len()];
        let call = CopyCall { shape, strides, bytes: size_of::<T>() };
        // SAFETY: the loop in `walked` read the same elements of `x`, and `got` has room for all of
        // them.
        unsafe { copy(x[first..].as_ptr().cast(), got.as_mut_ptr().cast(), &call) };
        assert_eq!(got, want, "{shape:?} {strides:?}");
    }
}

#[test]
fn any_strides() {
    agrees(|i| i as u8);
    agrees(|i| i as u16);
    agrees(|i| i as u32);
    agrees(|i| (i as u64) << 20);
}
