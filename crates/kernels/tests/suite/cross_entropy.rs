//! Compares `cross_entropy` with f64, on every instruction set and with several numbers of threads.

use crate::testing::*;
use mlx_primitives_kernels::cross_entropy::*;

/// Computes the losses and the gradients.
fn run<T: Sample>(x: &[T], g: &[T], targets: Targets, axis: usize) -> (Vec<T>, Vec<T>) {
    let rows = targets.classes.len();
    let losses = |on, kept: &mut Vec<f32>| {
        let mut loss = vec![T::default(); rows];
        let (out, kept) = (loss.as_mut_ptr(), kept.as_mut_ptr());
        // SAFETY: the buffers have the sizes that the number of rows and the axis require.
        unsafe {
            if targets.smoothing > 0.0 {
                loss_on::<T, true>(on, x.as_ptr(), targets, out, kept, axis);
            } else {
                loss_on::<T, false>(on, x.as_ptr(), targets, out, kept, axis);
            }
        }
        loss
    };
    let kept_by = |on| {
        let mut kept = vec![0.0; 2 * rows];
        losses(on, &mut kept);
        kept
    };
    let (loss, kept) = (same(|on| losses(on, &mut vec![0.0; 2 * rows])), same(kept_by));
    let grad = in_place(x, |on, from, to| {
        // SAFETY: as in `losses`.
        unsafe { grad_on(on, [from, g.as_ptr()], targets, kept.as_ptr(), to, axis) };
    });
    (loss, grad)
}

/// Computes losses and gradients in f64.
fn reference<T: Sample>(x: &[T], g: &[T], targets: Targets, axis: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut losses, mut grads) = (Vec::new(), Vec::new());
    let smoothing = f64::from(targets.smoothing);
    for (row, &class) in targets.classes.iter().enumerate() {
        let x: Vec<f64> = x[row * axis..][..axis].iter().map(|v| f64::from(v.to_f32())).collect();
        let g = f64::from(g[row].to_f32());
        if targets.ignored == Some(class) {
            losses.push(0.0);
            grads.extend(vec![0.0; axis]);
            continue;
        }
        if class < 0 || class as usize >= axis {
            losses.push(f64::NAN);
            grads.extend(vec![f64::NAN; axis]);
            continue;
        }
        let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = x.iter().map(|v| (v - max).exp()).sum();
        let mean = x.iter().sum::<f64>() / axis as f64;
        let score = (1.0 - smoothing) * x[class as usize] + smoothing * mean;
        losses.push(sum.ln() + max - score);
        grads.extend(x.iter().enumerate().map(|(i, v)| {
            let hit = if i == class as usize { 1.0 - smoothing } else { 0.0 };
            g * ((v - max).exp() / sum - hit - smoothing / axis as f64)
        }));
    }
    (losses, grads)
}

fn shapes<T: Sample>() {
    let long = [(1, 40_000), (1, 128_257), (3, 65_536)];
    for (rows, axis) in rows_and_axes(usize::MAX).chain(long).filter(|(_, axis)| *axis > 0) {
        let (x, g) = (values::<T>(rows * axis, 12.0), values::<T>(rows, 2.0));
        let classes: Vec<i32> = (0..rows).map(|row| (row * 7919 % (axis + 2)) as i32).collect();
        for (smoothing, ignored) in [(0.0, None), (0.1, None), (0.0, Some(0)), (0.3, Some(1))] {
            let targets = Targets { classes: &classes, smoothing, ignored };
            let (loss, grad) = reference(&x, &g, targets, axis);
            let got = run(&x, &g, targets, axis);
            let epsilon = f64::from(T::EPSILON);
            // The bounds cover f32 errors in differences of up to 24, and one rounding.
            assert_close(&got.0, &loss, epsilon / 2.0 + 4e-6, 2e-5, "loss");
            assert_close(&got.1, &grad, epsilon / 2.0 + 8e-6, 1e-6, "gradient");
        }
    }
}

each_type!(shapes);

#[test]
fn targets_beyond_the_classes_are_nan() {
    let x = values::<f32>(4 * 40, 3.0);
    let classes = [-1, 40, i32::MIN, i32::MAX];
    let targets = Targets { classes: &classes, smoothing: 0.0, ignored: None };
    let (loss, grad) = run(&x, &[1.0; 4], targets, 40);
    assert!(loss.iter().chain(&grad).all(|v| v.is_nan()));
    let targets = Targets { ignored: Some(-1), ..targets };
    let (loss, grad) = run(&x, &[1.0; 4], targets, 40);
    assert_eq!((loss[0], &grad[..40]), (0.0, &[0.0; 40][..]));
    assert!(loss[1..].iter().chain(&grad[40..]).all(|v| v.is_nan()));
}
