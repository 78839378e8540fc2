//! Nonsensical arguments cause an error or a right answer, never a crash.

use mlx_primitives::{Array, Dtype, concatenate, ops, random, stack, step};

use crate::support::Checked;
use crate::support::input::random32;

/// Accepts an error, or a result with any values. The result's size must match its number of
/// values.
fn settle(result: mlx_primitives::Result<Array>) {
    if let Ok(x) = result {
        // Huge results are not computed.
        if x.nbytes() < 1 << 20 {
            let _ = x.eval();
            if let Ok(values) = x.astype(Dtype::Float32).and_then(|x| x.to_vec::<f32>()) {
                assert_eq!(values.len(), x.size());
            }
        }
    }
}

fn x() -> mlx_primitives::Result<Array> {
    random32(&[2, 3, 4], 1)
}

const EDGES: [i32; 12] =
    [i32::MIN, i32::MIN + 1, -1000, -4, -3, -1, 0, 2, 3, 1000, i32::MAX - 1, i32::MAX];

#[test]
fn impossible_shapes() -> Checked {
    let huge = [
        &[i32::MAX, i32::MAX][..],
        &[i32::MAX; 3],
        &[1 << 30, 1 << 30, 1 << 30, 16],
        &[1 << 16, 1 << 16, 1 << 16, 1 << 16],
    ];
    let negative = [&[-1][..], &[2, -1], &[-2, -3], &[i32::MIN], &[0, -1], &[i32::MAX, -1]];
    for shape in huge.iter().chain(&negative) {
        let is_refused = |result: mlx_primitives::Result<Array>, what: &str| {
            let refused = result.and_then(|x| x.eval());
            assert!(refused.is_err(), "{what} {shape:?}");
        };
        is_refused(Array::zeros::<f32>(shape), "zeros");
        is_refused(Array::ones::<u8>(shape), "ones");
        is_refused(Array::full(shape, 1.0f32), "full");
        is_refused(Array::zeros_of(shape, Dtype::Bfloat16), "zeros_of");
        is_refused(Array::scalar(1.0f32)?.broadcast_to(shape), "broadcast_to");
        is_refused(random::normal::<f32>(shape, None), "normal");
        is_refused(random::uniform::<f32>(0.0, 1.0, shape, None), "uniform");
        is_refused(random::randint(0, 9, shape, None), "randint");
        is_refused(random::normal::<half::f16>(shape, None), "normal");
    }
    for shape in huge {
        assert!(x()?.reshape(shape).is_err(), "{shape:?}");
    }
    for shape in [&[-1, -1][..], &[-2, 12], &[-1, 5], &[0, -1], &[-1, 0], &[i32::MIN, -1], &[]] {
        assert!(x()?.reshape(shape).is_err(), "{shape:?}");
    }
    Ok(())
}

#[test]
fn arrays_larger_than_memory() -> Checked {
    // Arrays of 1 TB (bools) or 4 TB fit in the address space, but not in this machine's memory.
    let shape = &[1 << 20, 1 << 20];
    assert!(Array::zeros::<f32>(shape).and_then(|x| x.eval()).is_err());
    assert!(Array::full(shape, true).and_then(|x| x.eval()).is_err());
    assert!(random::normal::<f32>(shape, None).and_then(|x| x.eval()).is_err());
    assert!(random::uniform::<f32>(0.0, 1.0, shape, None).and_then(|x| x.eval()).is_err());
    assert!(random::randint(0, 9, shape, None).and_then(|x| x.eval()).is_err());
    // A broadcast view of this shape takes no memory.
    let view = Array::ones::<f32>(&[1])?.broadcast_to(shape)?;
    assert_eq!(view.i((5..6, 0..3))?.to_vec::<f32>()?, [1.0; 3]);
    Ok(())
}

#[test]
fn a_lazy_product_of_large_broadcasts() -> Checked {
    // Each array fits in memory, but the result of broadcasting them does not.
    let a = Array::scalar(1.0f32)?.broadcast_to([1 << 20, 1])?;
    let b = Array::scalar(1.0f32)?.broadcast_to([1, 1 << 20])?;
    let c = a.reshape([1 << 20, 1, 1])?;
    let outcome = c.add(&b).and_then(|y| y.broadcast_to([1 << 20, 1 << 20, 1 << 20]));
    assert!(outcome.is_err());
    Ok(())
}

#[test]
fn axes_out_of_range() -> Checked {
    let x = x()?;
    let index = Array::zeros::<i32>(&[1])?;
    for axis in [3, -4, 1000, i32::MAX, i32::MIN, i32::MIN + 1] {
        assert!(x.sum(axis).is_err(), "sum {axis}");
        assert!(x.sum_keepdims([0, axis]).is_err(), "sum {axis}");
        assert!(x.logsumexp(axis).is_err(), "logsumexp {axis}");
        assert!(x.argmax(axis).is_err(), "argmax {axis}");
        assert!(x.argsort(axis).is_err(), "argsort {axis}");
        assert!(x.sort(axis).is_err(), "sort {axis}");
        assert!(x.cumsum(axis).is_err(), "cumsum {axis}");
        assert!(x.take(&index, axis).is_err(), "take {axis}");
        assert!(x.take_along_axis(&index, axis).is_err(), "take_along_axis {axis}");
        assert!(x.put_along_axis(&index, &index, axis).is_err(), "put_along_axis {axis}");
        assert!(x.squeeze([axis]).is_err(), "squeeze {axis}");
        assert!(x.transpose([0, 1, axis]).is_err(), "transpose {axis}");
        assert!(x.slice_axis(axis, ..).is_err(), "slice_axis {axis}");
        assert!(concatenate(&[&x, &x], axis).is_err(), "concatenate {axis}");
        assert!(random::categorical(&x, axis, None).is_err(), "categorical {axis}");
        if axis != 3 && axis != -4 {
            assert!(x.expand_dims([axis]).is_err(), "expand_dims {axis}");
            assert!(stack(&[&x, &x], axis).is_err(), "stack {axis}");
        }
    }
    assert!(x.transpose([0, 1]).is_err() && x.transpose([0, 1, 1]).is_err());
    assert!(x.transpose([0, 1, 2, 0]).is_err());
    assert!(x.sum([0, 0]).is_err() && x.sum([0, -3]).is_err());
    assert!(x.expand_dims([0, 0]).is_err() && x.squeeze([0]).is_err());
    assert!(x.squeeze([0, 0]).is_err());
    Ok(())
}

#[test]
fn empty_arguments() -> Checked {
    let x = x()?;
    assert!(concatenate(&[], 0).is_err() && stack(&[], 0).is_err());
    mlx_primitives::eval([])?;
    mlx_primitives::async_eval([])?;
    let empty = Array::zeros::<f32>(&[0, 3])?;
    assert_eq!(empty.sum(0)?.to_vec::<f32>()?, [0.0; 3]);
    assert!(empty.max(0).and_then(|y| y.eval()).is_err());
    for result in [empty.argmax(0), empty.sort(0), empty.argsort(0), empty.cumsum(0)] {
        settle(result);
    }
    settle(empty.min(1));
    settle(empty.mean(..));
    settle(empty.var(..));
    settle(empty.logsumexp(..));
    settle(empty.matmul(&Array::zeros::<f32>(&[3, 0])?));
    settle(Array::zeros::<f32>(&[3, 0])?.matmul(&empty));
    settle(random::categorical(&empty, 0, None));
    let none: &[i32] = &[];
    assert_eq!(x.sum(none)?.to_vec::<f32>()?, x.to_vec::<f32>()?);
    settle(x.squeeze([]));
    settle(x.expand_dims([]));
    settle(x.transpose([]));
    settle(Array::scalar(1.0f32)?.sort(-1));
    settle(Array::scalar(1.0f32)?.argmax(0));
    settle(Array::scalar(1.0f32)?.cumsum(0));
    settle(Array::scalar(1.0f32)?.matmul(&x));
    Ok(())
}

#[test]
fn slices_at_the_edges_of_i32() -> Checked {
    let x = x()?;
    for start in EDGES {
        for stop in EDGES {
            for every in EDGES {
                let result = x.i((.., step(start..stop, every)));
                if every == 0 {
                    assert!(result.is_err());
                } else {
                    settle(result);
                }
            }
            settle(x.i((start..stop, start.., ..stop)));
            settle(x.slice_update(start..stop, &Array::scalar(1.0f32)?));
        }
        settle(x.i(step(.., start)));
    }
    assert!(x.i((.., .., .., ..)).is_err());
    assert!(x.slice_update(step(.., 2), &x).is_err());
    assert!(x.slice_update(0..1, &random32(&[2, 2], 2)?).is_err());
    Ok(())
}

#[test]
fn ranges_without_end() -> Checked {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for (start, stop, step) in [
        (0.0, 1.0, 0.0),
        (0.0, 1.0, -0.0),
        (0.0, inf, 1.0),
        (-inf, 0.0, 1.0),
        (nan, 1.0, 1.0),
        (0.0, nan, 1.0),
        (0.0, 1.0, nan),
        (0.0, 1e300, 1.0),
        (0.0, 1.0, 1e-300),
        (0.0, 1e18, 1.0),
        (-1e308, 1e308, 1.0),
        (-1e308, 1e308, 1e308),
    ] {
        let all = [
            Array::arange::<f32>(start, stop, step),
            Array::arange::<i32>(start, stop, step),
            Array::arange::<u8>(start, stop, step),
            Array::arange::<half::f16>(start, stop, step),
        ];
        for x in all.into_iter().flatten() {
            assert!(x.size() <= 3, "{start} {stop} {step}: {}", x.size());
            settle(Ok(x));
        }
    }
    settle(Array::arange::<f32>(0.0, 1.0, inf));
    settle(Array::arange::<i32>(0.0, 1e10, 5e9));
    settle(Array::arange::<bool>(0.0, 2.0, 1.0));
    Ok(())
}

#[test]
fn random_arguments() -> Checked {
    let x = x()?;
    let key = random::key(0)?;
    for count in [-1, i32::MIN] {
        assert!(random::split(&key, count).is_err(), "{count}");
    }
    settle(random::split(&key, 0));
    settle(random::split(&key, i32::MAX));
    for bad in [&x, &Array::scalar(1u32)?, &Array::zeros::<u32>(&[3])?] {
        assert!(random::normal::<f32>(&[2], Some(bad)).is_err());
        assert!(random::split(bad, 2).is_err());
    }
    assert!(random::normal::<i32>(&[2], None).is_err());
    assert!(random::uniform::<i32>(0.0, 1.0, &[2], None).is_err());
    settle(random::uniform::<f32>(1.0, 0.0, &[2], None));
    settle(random::uniform::<f32>(f32::NAN, f32::INFINITY, &[2], None));
    settle(random::randint(5, -5, [4], None));
    settle(random::randint(i32::MIN, i32::MAX, [4], None));
    settle(random::categorical(&Array::full([3], f32::NAN)?, 0, None));
    settle(random::categorical(&Array::scalar(1.0f32)?, 0, None));
    settle(random::categorical(&Array::ones::<i32>(&[3])?, 0, None));
    Ok(())
}

#[test]
fn types_that_do_not_fit() -> Checked {
    let x = x()?;
    let complex = x.astype(Dtype::Complex64)?;
    for result in [
        complex.sort(0),
        complex.argmax(0),
        complex.max(0),
        complex.less(&complex),
        complex.matmul(&complex.t()?),
        complex.var(..),
        complex.logsumexp(..),
        complex.sigmoid(),
        complex.erf(),
        complex.cumsum(0),
        Array::ones::<bool>(&[2])?.negative(),
        Array::ones::<bool>(&[2])?.cumsum(0),
        Array::ones::<bool>(&[2])?.subtract(&Array::ones::<bool>(&[2])?),
        Array::ones::<i32>(&[2, 2])?.matmul(&Array::ones::<i32>(&[2, 2])?),
        Array::ones::<i32>(&[2])?.power(-1),
        Array::ones::<i32>(&[2])?.divide(0),
        Array::ones::<u64>(&[2])?.logical_and(&x.i((0..1, 0..1, 0..2))?),
    ] {
        settle(result);
    }
    assert!(complex.to_vec::<f32>().is_err());
    Ok(())
}

/// Random dimensions. Most are small and some are extreme.
fn dims(rng: &mut fastrand::Rng) -> Vec<i32> {
    let dim = |rng: &mut fastrand::Rng| match rng.u8(..11) {
        8 => i32::MAX,
        9 => i32::MIN,
        10 => rng.i32(..),
        _ => rng.i32(-3..6),
    };
    (0..rng.usize(..5)).map(|_| dim(rng)).collect()
}

#[test]
fn any_shape_and_axes() -> Checked {
    let x = x()?;
    let mut rng = fastrand::Rng::with_seed(11);
    for _ in 0..400 {
        let (shape, other, axis) = (dims(&mut rng), dims(&mut rng), rng.i32(-6..6));
        settle(x.reshape(&shape));
        settle(x.broadcast_to(&shape));
        settle(x.transpose(&shape));
        settle(x.expand_dims(&shape));
        settle(x.squeeze(&shape));
        settle(x.sum(&shape));
        settle(x.max_keepdims(&shape));
        settle(x.var(&shape));
        settle(x.sort(axis));
        settle(stack(&[&x, &x], axis));
        settle(Array::from_slice(&[1.0f32; 24], &shape));
        // MLX computes with arrays that have a dimension of 0 as if they had elements, and then
        // writes to memory that it did not allocate. So the other dimensions must be small.
        let small = |shape: &[i32]| shape.iter().all(|&dim| dim < 8);
        if small(&shape)
            && small(&other)
            && let (Ok(a), Ok(b)) = (Array::zeros::<f32>(&shape), Array::ones::<f32>(&other))
        {
            settle(a.add(&b));
            settle(a.matmul(&b));
            settle(concatenate(&[&a, &b], axis));
            settle(a.broadcast_to(&other));
            settle(a.reshape(&other));
            settle(mlx_primitives::select(&a, &b, &x));
            settle(a.astype(Dtype::Int32).and_then(|i| x.take(&i, axis)));
            settle(a.astype(Dtype::Int32).and_then(|i| x.take_along_axis(&i, axis)));
            settle(a.astype(Dtype::Int32).and_then(|i| x.put_along_axis(&i, &b, axis)));
            settle(x.slice_update(0..1, &b));
            settle(ops::rms_norm(&a, Some(&b), 1e-5));
            settle(ops::softmax(&a));
            let rope = ops::Rope { offset: axis.into(), ..ops::Rope::default() };
            settle(ops::rope(&a, ops::Rope { dims: axis, traditional: true, ..rope }));
            let freqs = Some(&b);
            settle(ops::rope(&a, ops::Rope { dims: 2 * axis, base: None, freqs, ..rope }));
        }
    }
    Ok(())
}
