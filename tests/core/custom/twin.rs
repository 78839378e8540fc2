//! A second `rms_norm` that implements the trait `CustomPrimitive` and uses the same kernels as the
//! crate's op. The bits must be equal.

use half::{bf16, f16};
use mlx_primitives::custom::{
    Call, CustomPrimitive, Launch, MetalLibrary, Spec, View, ViewMut, apply_one,
};
use mlx_primitives::transforms::{grad, vmap};
use mlx_primitives::{Array, Dtype, Error, Result, graph, ops};
use mlx_primitives_kernels as kernels;

use crate::support::compare::assert_same_order;
use crate::support::input::{FLOATS, LAYOUTS, random};
use crate::support::{Checked, EPS, each_device};

#[derive(Clone)]
struct RmsNorm {
    eps: f32,
    in_place: bool,
    library: MetalLibrary,
}

#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Params {
    rows: u32,
    axis: u32,
    eps: f32,
}

fn rms_norm(x: &Array, weight: &Array) -> Result<Array> {
    custom(x, weight, false)
}

fn custom(x: &Array, weight: &Array, in_place: bool) -> Result<Array> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/metal/rms_norm.metal");
    let source =
        mlx_primitives_build::flatten(path, &[]).map_err(|error| Error::from(error.to_string()))?;
    apply_one(
        RmsNorm { eps: EPS, in_place, library: MetalLibrary::from_source(source)? },
        &[x, weight],
    )
}

fn rows(x: &[i32]) -> (i32, i32) {
    let axis = x.last().copied().unwrap_or(1);
    (x[..x.len() - 1].iter().product(), axis)
}

impl CustomPrimitive for RmsNorm {
    fn name(&self) -> &str {
        "custom_rms_norm"
    }

    fn outputs(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn eval_cpu(&self, inputs: &[View<'_>], outputs: &mut [ViewMut<'_>]) -> Result<()> {
        fn run<T: mlx_primitives::Element>(
            element: kernels::Element,
            inputs: &[View<'_>],
            outputs: &mut [ViewMut<'_>],
            eps: f32,
            in_place: bool,
        ) -> Result<()> {
            let (rows, axis) = rows(inputs[0].shape());
            let (rows, axis) = (rows as usize, axis as usize);
            let weight = inputs[1].as_slice::<T>()?;
            let out = outputs[0].as_mut_slice::<T>()?;
            assert_eq!((weight.len(), out.len()), (axis, rows * axis));
            let out = out.as_mut_ptr().cast();
            let x =
                if in_place { out } else { inputs[0].as_slice::<T>()?.as_ptr().cast_mut().cast() };
            // SAFETY: the lengths were checked, x has as many elements as its shape says, and all
            // arrays have the type `element`.
            unsafe { kernels::rms_norm(element, x, weight.as_ptr().cast(), out, rows, axis, eps) };
            Ok(())
        }
        let RmsNorm { eps, in_place, .. } = *self;
        match inputs[0].dtype() {
            Dtype::Float16 => run::<f16>(kernels::Element::F16, inputs, outputs, eps, in_place),
            Dtype::Bfloat16 => run::<bf16>(kernels::Element::BF16, inputs, outputs, eps, in_place),
            _ => run::<f32>(kernels::Element::F32, inputs, outputs, eps, in_place),
        }
    }

    fn in_place(&self) -> Option<usize> {
        self.in_place.then_some(0)
    }

    fn launch(&self, call: &Call) -> Result<Vec<Launch>> {
        let x = &call.inputs[0];
        let (rows, axis) = rows(&x.shape);
        let (rows, axis) = (rows as u32, axis as u32);
        // Plan the crate's op for the same shape, and copy the launch from its plan.
        let of = |shape: &[i32]| Array::scalar(0.0f32)?.astype(x.dtype)?.broadcast_to(shape);
        let ours = ops::rms_norm(&of(&x.shape)?, Some(&of(&call.inputs[1].shape)?), self.eps)?;
        let plan = graph::dispatches(&ours, call.max_threads)?.remove(0);
        let mut launch = Launch::new(&self.library, plan.kernel)
            .input(0, 0)
            .input(1, 1)
            .output(2, 0)
            .parameters(3, &Params { rows, axis, eps: self.eps })
            .groups(plan.grid, plan.group);
        if plan.threadgroup_bytes > 0 {
            launch = launch.threadgroup_memory(0, plan.threadgroup_bytes);
        }
        Ok(vec![launch])
    }

    fn vjp(
        &self,
        primals: &[Array],
        cotangents: &[Array],
        argnums: &[usize],
        _: &[Array],
    ) -> Result<Vec<Array>> {
        let ours = |p: &[Array]| Ok(vec![ops::rms_norm(&p[0], Some(&p[1]), self.eps)?]);
        let gradients = mlx_primitives::transforms::vjp(
            |p| ours(&p),
            &[&primals[0], &primals[1]],
            &[&cotangents[0]],
        )?
        .1;
        Ok(argnums.iter().map(|&argnum| gradients[argnum].clone()).collect())
    }

    fn vmap(&self, p: &[Array], axes: &[Option<usize>]) -> Result<(Vec<Array>, Vec<usize>)> {
        let (Some(axis), None) = (axes[0], axes[1]) else {
            return Err(Error::from("x alone is mapped"));
        };
        let mut order: Vec<i32> = (0..p[0].ndim() as i32).filter(|&a| a != axis as i32).collect();
        order.insert(0, axis as i32);
        let y = apply_one(self.clone(), &[&p[0].transpose(&order)?, &p[1]])?;
        Ok((vec![y], vec![0]))
    }
}

#[test]
fn gives_the_same_bits() -> Checked {
    each_device(|device| {
        let same =
            |got: &Array, want: &Array, what: &str| assert_same_order(device, got, want, what);
        for dtype in FLOATS {
            for axis in [1, 7, 128, 129, 1000, 4100] {
                let (x, weight) = (random(&[3, axis], dtype, 1)?, random(&[axis], dtype, 2)?);
                let what = format!("{dtype} of {axis}");
                let want = ops::rms_norm(&x, Some(&weight), EPS)?;
                same(&rms_norm(&x, &weight)?, &want, &what)?;
                // The first call must copy x, because the test still holds it. In the second call,
                // nothing else holds the sum, so the op may overwrite it.
                same(&custom(&x, &weight, true)?, &want, &format!("{what}, in place"))?;
                let sum = ops::rms_norm(&x.add(&x)?, Some(&weight), EPS)?;
                let donated = custom(&x.add(&x)?, &weight, true)?;
                same(&donated, &sum, &format!("{what}, donated"))?;
            }
            for layout in LAYOUTS {
                let (x, weight) = (layout.make(&[2, 6, 10], dtype, 3)?, random(&[10], dtype, 4)?);
                let want = ops::rms_norm(&x, Some(&weight), EPS)?;
                same(&rms_norm(&x, &weight)?, &want, &format!("{dtype} {layout:?}"))?;
                for axis in [0, 1] {
                    let mapped = vmap(
                        |p| Ok(vec![rms_norm(&p[0], &p[1])?]),
                        &[&x, &weight],
                        [Some(axis), None],
                        [axis],
                    )?;
                    same(&mapped[0], &want, &format!("{dtype} {layout:?}, mapped {axis}"))?;
                }
            }
        }
        let (x, weight) = (random(&[3, 16], Dtype::Float32, 5)?, random(&[16], Dtype::Float32, 6)?);
        let custom = grad(|p| rms_norm(&p[0], &p[1])?.square()?.sum(..), &[&x, &weight])?;
        let ours =
            grad(|p| ops::rms_norm(&p[0], Some(&p[1]), EPS)?.square()?.sum(..), &[&x, &weight])?;
        for (custom, ours) in custom.iter().zip(&ours) {
            same(custom, ours, "gradient")?;
        }
        Ok(())
    })
}

/// A chain of these ops reuses the buffer of its first array and allocates no other.
#[test]
fn works_in_place() -> Checked {
    let (x, weight) =
        (random(&[64, 1024], Dtype::Float32, 7)?, random(&[1024], Dtype::Float32, 8)?);
    let start = x.add(0.0)?;
    let address = start.address()?;
    let mut y = start;
    for _ in 0..5 {
        y = custom(&y, &weight, true)?;
    }
    assert_eq!(y.address()?, address);
    Ok(())
}
