use crate::testing::*;
use mlx_primitives_kernels::rope::rope_on;
use mlx_primitives_kernels::rope_append::*;
use mlx_primitives_kernels::rope_append_heads::heads_on;
use mlx_primitives_kernels::{Frequencies, RopeShape};

const SHAPE: AppendShape = AppendShape {
    batch: 2,
    heads: 6,
    kv_heads: 2,
    time: 3,
    head_dim: 64,
    capacity: 11,
    dims: 64,
    traditional: false,
    forward: true,
    scale: 1.0,
    multiplier: 1.0,
};

/// Multiplies the first `dims` features of a vector by `multiplier`, and rotates them. In the
/// backward pass, rotates them back and then multiplies them.
fn turn<T: Sample>(vector: &mut [T], shape: &AppendShape, frequencies: Frequencies, position: i32) {
    let AppendShape { head_dim, dims, traditional, forward, scale, .. } = *shape;
    let factor = rounded::<T>(shape.multiplier);
    let multiply = |vector: &mut [T]| {
        for v in &mut vector[..dims] {
            *v = T::from_f32(v.to_f32() * factor);
        }
    };
    if forward {
        multiply(vector);
    }
    let one = RopeShape { batch: 1, heads: 1, seq: 1, head_dim, dims, traditional, forward, scale };
    let place = vector.as_mut_ptr();
    // SAFETY: the buffer holds one vector, which is both input and output.
    unsafe { rope_on(machines()[0], place, place, &one, frequencies, &[position]) };
    if !forward {
        multiply(vector);
    }
}

/// Writes the step `qkv` into `state` vector by vector: rotates each query and key, and copies each
/// vector to its row. In the backward pass, `state` has the derivatives with respect to the new
/// state, and the results are the derivatives with respect to the old state and to `qkv`.
fn reference<T: Sample>(
    state: &[T],
    qkv: &[T],
    shape: &AppendShape,
    frequencies: Frequencies,
    offsets: &[i32],
    slots: &[i32],
) -> [Vec<T>; 2] {
    let AppendShape { heads, kv_heads, time, head_dim, capacity, forward, .. } = *shape;
    let (mut out, mut of_step) = (state.to_vec(), qkv.to_vec());
    for (index, step) in of_step.chunks_exact_mut(head_dim).enumerate() {
        let head = index % shape.all_heads();
        let t = index / shape.all_heads() % time;
        let batch = index / shape.all_heads() / time;
        let of = |numbers: &[i32]| numbers[if numbers.len() > 1 { batch } else { 0 }];
        let slot = i64::from(of(slots)) + t as i64;
        let row = if head < heads {
            (time <= QUERY_POSITIONS).then_some(head * time + t)
        } else {
            let slot = (0..capacity as i64).contains(&slot).then_some(slot as usize);
            slot.map(|slot| shape.area() + (head - heads) * capacity + slot)
        };
        let Some(row) = row else {
            if !forward {
                step.fill(T::default());
            }
            continue;
        };
        let at = (batch * shape.rows() + row) * head_dim;
        let row = &mut out[at..at + head_dim];
        let mut vector = if forward { step.to_vec() } else { row.to_vec() };
        if head < heads + kv_heads {
            turn(&mut vector, shape, frequencies, of(offsets) + t as i32);
        }
        if forward {
            row.copy_from_slice(&vector);
        } else {
            step.copy_from_slice(&vector);
            row.fill(T::default());
        }
    }
    [out, of_step]
}

fn check<T: Sample>(shape: &AppendShape, frequencies: Frequencies, offsets: &[i32], slots: &[i32]) {
    let state = values::<T>(shape.batch * shape.rows() * shape.head_dim, 1.0);
    let qkv = values::<T>(shape.batch * shape.time * shape.all_heads() * shape.head_dim, 4.0);
    for shape in [AppendShape { forward: false, ..*shape }, *shape] {
        let [expected, of_step] = reference(&state, &qkv, &shape, frequencies, offsets, slots);
        for machine in machines() {
            let what = format!("{:?} {shape:?} {slots:?}", machine.level);
            let (mut got, mut step) = (state.clone(), qkv.clone());
            let (out, qkv) = (got.as_mut_ptr(), step.as_mut_ptr());
            // SAFETY: the buffers hold the shape's elements.
            unsafe { append_on(machine, out, qkv, &shape, frequencies, offsets, slots) };
            assert_same(&got, &expected, &what);
            assert_same(&step, &of_step, &format!("the step of {what}"));
        }
    }
}

/// Checks each vector of a step after it was split into heads, and the derivatives.
fn check_heads<T: Sample>(shape: &AppendShape, frequencies: Frequencies, offsets: &[i32]) {
    let AppendShape { batch, heads, kv_heads, time, head_dim, .. } = *shape;
    let counts = [heads, kv_heads, kv_heads];
    let parts = counts.map(|heads| values::<T>(batch * heads * time * head_dim, 1.0));
    let qkv = values::<T>(batch * time * shape.all_heads() * head_dim, 4.0);
    for shape in [AppendShape { forward: false, ..*shape }, *shape] {
        let (mut expected, mut of_step) = (parts.clone(), qkv.clone());
        for (index, step) in of_step.chunks_exact_mut(head_dim).enumerate() {
            let (head, t) = (index % shape.all_heads(), index / shape.all_heads() % time);
            let entry = index / shape.all_heads() / time;
            let (part, own) = match head {
                _ if head < heads => (0, head),
                _ if head < heads + kv_heads => (1, head - heads),
                _ => (2, head - heads - kv_heads),
            };
            let at = ((entry * counts[part] + own) * time + t) * head_dim;
            let vector = &mut expected[part][at..at + head_dim];
            let (from, to) = if shape.forward { (step, vector) } else { (vector, step) };
            to.copy_from_slice(from);
            if part < 2 {
                let offset = offsets[if offsets.len() > 1 { entry } else { 0 }];
                turn(to, &shape, frequencies, offset + t as i32);
            }
        }
        for machine in machines() {
            let what = format!("heads, {:?} {shape:?}", machine.level);
            let (mut got, mut step) = (parts.clone(), qkv.clone());
            let places = got.each_mut().map(Vec::as_mut_ptr);
            // SAFETY: the buffers hold the shape's elements.
            unsafe { heads_on(machine, places, step.as_mut_ptr(), &shape, frequencies, offsets) };
            for (got, expected) in got.iter().zip(&expected) {
                assert_same(got, expected, &what);
            }
            assert_same(&step, &of_step, &format!("the step of {what}"));
        }
    }
}

fn check_types(shape: &AppendShape, frequencies: Frequencies, offsets: &[i32], slots: &[i32]) {
    check::<f32>(shape, frequencies, offsets, slots);
    check::<F16>(shape, frequencies, offsets, slots);
    check::<Bf16>(shape, frequencies, offsets, slots);
    check_heads::<f32>(shape, frequencies, offsets);
    check_heads::<F16>(shape, frequencies, offsets);
    check_heads::<Bf16>(shape, frequencies, offsets);
}

#[test]
fn shapes() {
    for (head_dim, dims) in [(64, 64), (80, 32), (6, 4), (7, 2), (1040, 1030)] {
        for (traditional, multiplier) in [(false, 1.0), (true, 1.0), (false, 1.19), (true, 1.19)] {
            for time in [1, 3, 8, 9] {
                let shape = AppendShape { head_dim, dims, traditional, multiplier, time, ..SHAPE };
                check_types(&shape, Frequencies::Base(1e4), &[5], &[2]);
            }
        }
    }
}

#[test]
fn positions_and_slots() {
    for slots in [[0, 8], [-2, 9], [11, -5], [i32::MAX, i32::MIN]] {
        check_types(&SHAPE, Frequencies::Base(1e4), &[700, 3], &slots);
        check_types(&SHAPE, Frequencies::Base(1e4), &[700], &slots);
        check_types(&SHAPE, Frequencies::Base(1e4), &[700, 3], &slots[..1]);
    }
    let periods: Vec<f32> = (0..32).map(|i| 1.0 + i as f32).collect();
    check_types(&SHAPE, Frequencies::Explicit(&periods), &[4], &[4]);
    check_types(&AppendShape { scale: 0.25, ..SHAPE }, Frequencies::Base(5e5), &[4], &[4]);
}

#[test]
fn head_counts_and_empty_axes() {
    for (heads, kv_heads) in [(1, 1), (4, 4), (8, 1), (0, 2), (3, 0)] {
        check_types(&AppendShape { heads, kv_heads, ..SHAPE }, Frequencies::Base(1e4), &[1], &[1]);
    }
    for shape in [
        AppendShape { batch: 0, ..SHAPE },
        AppendShape { time: 0, ..SHAPE },
        AppendShape { capacity: 0, ..SHAPE },
    ] {
        check_types(&shape, Frequencies::Base(1e4), &[1], &[1]);
    }
}

#[test]
fn long_steps_are_shared() {
    let shape = AppendShape { time: 300, capacity: 320, batch: 1, ..SHAPE };
    check_types(&shape, Frequencies::Base(1e4), &[1], &[1]);
    check_types(&AppendShape { batch: 2, ..shape }, Frequencies::Base(1e4), &[1, 9], &[1]);
}
