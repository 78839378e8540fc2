use crate::testing::*;
use mlx_primitives_kernels::take_grad::take_grad_on;

/// Adds up the gradients of each row's copies, in f32 and in the order of the copies.
fn reference<T: Sample>(g: &[T], ids: &[u32], [rows, axis]: [usize; 2]) -> Vec<T> {
    let mut sums = vec![0.0f32; rows * axis];
    for (id, g) in ids.iter().zip(g.chunks_exact(axis)) {
        let at = *id as usize * axis;
        for (sum, g) in sums.get_mut(at..at + axis).into_iter().flatten().zip(g) {
            *sum += g.to_f32();
        }
    }
    sums.into_iter().map(T::from_f32).collect()
}

fn sums<T: Sample>() {
    go_past_the_caches();
    // The ids leave out some rows, take some rows twice and one row most often. Some ids are beyond
    // the matrix.
    let ids = |count: usize, rows: u32| -> Vec<u32> {
        let of =
            |i: u32| if i.is_multiple_of(3) { rows / 2 } else { i.wrapping_mul(7919) % (rows + 2) };
        (0..count as u32).map(of).collect()
    };
    for (count, rows, axis) in [(1, 1, 1), (9, 4, 33), (300, 70, 16), (64, 500, 100), (0, 3, 7)] {
        let (ids, g) = (ids(count, rows), values::<T>(count * axis, 1.0));
        let shape = [rows as usize, axis];
        let got = same(|on| {
            let mut out = vec![T::from_f32(9.0); rows as usize * axis];
            // SAFETY: the buffers hold the shape's elements.
            unsafe { take_grad_on(on, g.as_ptr(), &ids, out.as_mut_ptr(), shape) };
            out
        });
        assert_same(&got, &reference(&g, &ids, shape), &format!("{count} of {shape:?}"));
    }
}

each_type!(sums);
