//! Tests `vmap` of every op.

use mlx_primitives::device::Device;
use mlx_primitives::transforms::{grad, vmap};
use mlx_primitives::{Array, Result, graph, stack};
use mlx_primitives_check::Backend;

use super::loss;
use crate::support::compare::{assert_close, numbers, ulp};
use crate::support::input::{FLOATS, LAYOUTS};
use crate::support::{Checked, each_device, refs};
use crate::table::ops::OPS;

/// Under `vmap`, an op is still a single node of this crate, which computes all entries of the
/// batch.
#[test]
fn mapped_ops_keep_their_kernel() -> Checked {
    each_device(|_| {
        for (op, dtype) in OPS.iter().flat_map(|op| FLOATS.map(|dtype| (op, dtype))) {
            let inputs = op.inputs(3, 1)?;
            let inputs: Vec<Array> =
                inputs.iter().map(|x| x.astype(dtype)).collect::<Result<_>>()?;
            let ours = |y: &[Array]| -> Result<Vec<String>> {
                let nodes = graph::nodes(y)?.into_iter().filter(|node| node.ours);
                Ok(nodes.map(|node| node.name).collect())
            };
            let nodes = ours(&(op.run)(&inputs)?)?;
            let batch = inputs[0].broadcast_to([&[2], inputs[0].shape()].concat())?;
            let all: Vec<&Array> = [&batch].into_iter().chain(&inputs[1..]).collect();
            let mut axes = vec![None; inputs.len()];
            axes[0] = Some(0);
            let y = vmap(|p| (op.run)(&p), &all, &axes, 0)?;
            assert!(!nodes.is_empty(), "{}", op.name);
            assert_eq!(ours(&y)?, nodes, "{} of {dtype}", op.name);
        }
        Ok(())
    })
}

/// Maps over two axes: as one merged axis at any position, and as one `vmap` inside another. Also
/// computes derivatives through `vmap`.
#[test]
fn maps_within_maps() -> Checked {
    for op in OPS {
        let run = op.run;
        let parts: Vec<Vec<Array>> =
            (0..6).map(|i| op.inputs(3, 100 + i)).collect::<Result<_>>()?;
        // The first input is mapped over its axes 0 and 1. All entries share the other inputs.
        let firsts: Vec<&Array> = parts.iter().map(|part| &part[0]).collect();
        let shape = [&[2, 3], parts[0][0].shape()].concat();
        let batch = stack(&firsts, 0)?.reshape(&shape)?;
        let others = &parts[0][1..];
        let of = |x: &Array| {
            let mut outputs = run(&[std::slice::from_ref(x), others].concat())?;
            outputs.truncate(1);
            Ok(outputs)
        };
        let each: Vec<Array> =
            firsts.iter().map(|x| Ok(of(x)?.swap_remove(0))).collect::<Result<_>>()?;
        let each = stack(&refs(&each), 0)?;
        let want = each.reshape([&[2, 3], &each.shape()[1..]].concat())?;
        let inner = |p: &[Array]| vmap(|q| of(&q[0]), &refs(p), [Some(0)], [0]);
        let nested = vmap(|p| inner(&p), &[&batch], [Some(0)], [0])?;
        assert_close(&numbers(&nested[0])?, &numbers(&want)?, 2e-5, op.name);
        let inner = |p: &[Array]| vmap(|q| of(&q[0]), &refs(p), [Some(0)], [-1]);
        let moved = vmap(|p| inner(&p), &[&batch], [Some(1)], [0])?.swap_remove(0);
        assert_eq!(moved.dim(-1)?, 2, "{}", op.name);
        let last = moved.ndim() as i32 - 1;
        let back = moved.transpose([last].into_iter().chain(0..last).collect::<Vec<_>>())?;
        assert_eq!(back.shape(), want.shape(), "{}", op.name);
        assert_close(&numbers(&back)?, &numbers(&want)?, 2e-5, op.name);
        // The gradient of the mapped function equals the gradients of the single entries.
        let mapped = |p: &[Array]| {
            let y = vmap(|q| of(&q[0]), &refs(p), [Some(0)], 0)?;
            y[0].square()?.sum(..)
        };
        let one = stack(&firsts[..2], 0)?;
        let through = grad(|p| mapped(&p), &[&one])?.swap_remove(0);
        let plain = |p: &[Array]| of(&p[0])?[0].square()?.sum(..);
        for i in 0..2 {
            let want = grad(|p| plain(&p), &[firsts[i as usize]])?.swap_remove(0);
            let got = through.slice_axis(0, i..i + 1)?.squeeze([0])?;
            assert_close(&numbers(&got)?, &numbers(&want)?, 2e-5, op.name);
        }
    }
    Ok(())
}

#[test]
fn maps_over_an_axis_of_one_or_none() -> Checked {
    for op in OPS {
        let inputs = op.inputs(3, 110)?;
        let plain = (op.run)(&inputs)?;
        let mut axes = vec![None; inputs.len()];
        axes[0] = Some(0);
        for count in [1, 0] {
            let mut all = inputs.clone();
            all[0] = inputs[0].broadcast_to([&[count], inputs[0].shape()].concat())?;
            let y = vmap(|p| (op.run)(&p), &refs(&all), &axes, 0)?.swap_remove(0);
            assert_eq!(y.shape(), [&[count], plain[0].shape()].concat(), "{}", op.name);
            assert_eq!(numbers(&y)?.len(), count as usize * plain[0].size(), "{}", op.name);
        }
    }
    Ok(())
}

/// Each entry of the batch gets its gradient. Sums over rows do not include the mapped axis.
#[test]
fn mapped_gradients() -> Checked {
    each_device(|device| {
        for op in OPS {
            let gradients = |p: &[Array]| grad(|p| loss(op.run)(&p), &refs(p));
            let (a, b) = (op.inputs(3, 40)?, op.inputs(3, 50)?);
            // Map all inputs, and then only the first one.
            for mapped in [a.len(), 1] {
                let both: Vec<Array> = (0..a.len())
                    .map(|i| if i < mapped { stack(&[&a[i], &b[i]], 0) } else { Ok(a[i].clone()) })
                    .collect::<Result<_>>()?;
                let axes: Vec<Option<i32>> =
                    (0..a.len()).map(|i| (i < mapped).then_some(0)).collect();
                let got = vmap(|p| gradients(&p), &refs(&both), &axes, 0)?;
                let second = [&b[..mapped], &a[mapped..]].concat();
                // On an NVIDIA GPU, MLX's product of a batch differed from the product of an entry
                // by 2e-4.
                let products = op.name.contains("linear") && Backend::Gpu.is_cuda();
                let tolerance = if products && device == Device::Gpu { 1e-3 } else { 2e-5 };
                let want = gradients(&a)?.into_iter().zip(gradients(&second)?);
                for (got, (first, second)) in got.iter().zip(want) {
                    let want = stack(&[&first, &second], 0)?;
                    assert_eq!(got.shape(), want.shape(), "{}", op.name);
                    assert_close(&numbers(got)?, &numbers(&want)?, tolerance, op.name);
                }
            }
        }
        Ok(())
    })
}

/// All inputs are mapped, and they are views of every layout.
#[test]
fn maps_over_views() -> Checked {
    for (op, dtype) in OPS.iter().flat_map(|op| FLOATS.map(|dtype| (op, dtype))) {
        for layout in LAYOUTS {
            let views = op.inputs(3, 0)?.into_iter().zip(120..);
            let views: Vec<Array> = views
                .map(|(x, seed)| layout.make(&[&[2], x.shape()].concat(), dtype, seed))
                .collect::<Result<_>>()?;
            let mapped = vmap(|p| (op.run)(&p), &refs(&views), vec![Some(0); views.len()], 0)?;
            for i in 0..2 {
                let entry = views.iter().map(|x| x.slice_axis(0, i..i + 1)?.squeeze([0]));
                let want = (op.run)(&entry.collect::<Result<Vec<_>>>()?)?;
                for (got, want) in mapped.iter().zip(&want) {
                    let got = got.slice_axis(0, i..i + 1)?.squeeze([0])?;
                    assert_eq!((got.shape(), got.dtype()), (want.shape(), want.dtype()));
                    let tolerance = 1e-6 + 2.0 * ulp(1.0, dtype);
                    let what = format!("{} {dtype} {layout:?}", op.name);
                    assert_close(&numbers(&got)?, &numbers(want)?, tolerance, &what);
                }
            }
        }
    }
    Ok(())
}
