use crate::testing::*;
use mlx_primitives_kernels as kernels;
use mlx_primitives_kernels::output::*;
use mlx_primitives_kernels::simd::{Kernel, Level};
use mlx_primitives_kernels::{
    Activation, AffineShape, Combination, Frequencies, ResidualNorm, RopeShape,
};

/// Allocates `count` elements that begin one block after the start of a page. With `beside`, they
/// begin one element later and are not aligned.
fn place<T: Sample>(memory: &mut Vec<T>, count: usize, beside: bool) -> &mut [T] {
    const PAGE: usize = 4096;
    go_past_the_caches();
    *memory = vec![T::default(); count + 2 * PAGE];
    let start = memory.as_ptr().align_offset(PAGE) + LANES + usize::from(beside);
    &mut memory[start..start + count]
}

struct Copy<'a, T> {
    from: &'a [T],
    to: Output<T>,
}

impl<T: Float> Kernel for Copy<'_, T> {
    const BF16: bool = T::IS_BF16;

    #[inline(always)]
    unsafe fn run<V: F32x16>(self) {
        for (i, block) in self.from.chunks(LANES).enumerate() {
            // SAFETY: both buffers have the same number of elements.
            unsafe {
                if block.len() == LANES {
                    self.to.put::<V>(T::load(block.as_ptr()), i * LANES);
                } else {
                    let lanes: V = T::load_first(block.as_ptr(), block.len());
                    self.to.put_first(lanes, i * LANES, block.len());
                }
            }
        }
    }
}

fn stores_the_same<T: Sample>() {
    for level in Level::available() {
        for count in [1, 16, 100, 5000] {
            for beside in [false, true] {
                let from = values::<T>(count, 3.0);
                let mut memory = Vec::new();
                let to = place(&mut memory, count, beside);
                let output = Output::new(to.as_mut_ptr(), &[from.as_ptr()], count, LANES);
                assert_eq!(output.is_past_caches(), count == 5000 && !beside);
                // SAFETY: both buffers have the same number of elements, and this machine supports
                // `level`.
                unsafe { level.run(Copy { from: &from, to: output }) };
                kernels::simd::fence();
                assert_same(to, &from, "copied");
            }
        }
    }
}

each_type!(stores_the_same);

#[test]
fn what_cannot_go_past_the_caches_does_not() {
    let mut memory = Vec::new();
    let count = FEW_BYTES;
    let to = place::<f32>(&mut memory, count, false).as_mut_ptr();
    assert!(Output::new(to, &[], count, LANES).is_past_caches());
    assert!(!Output::new(to, &[to.cast_const()], count, LANES).is_past_caches());
    assert!(!Output::new(to, &[], count, LANES + 1).is_past_caches());
    assert!(!Output::new(to, &[], 16, LANES).is_past_caches());
    assert!(!Output::near(to).is_past_caches());
    // SAFETY: the offsets are within the buffer.
    let (whole, part) = unsafe {
        let all = Output::new(to, &[], count, LANES);
        (all.from(2 * LANES), all.from(3))
    };
    assert!(whole.is_past_caches() && !part.is_past_caches());
}

const ROWS: usize = 67;

/// A function that calls a kernel with an output address.
type Run<'a> = &'a dyn Fn(*mut u8);

/// Checks that every kernel that can bypass the caches has the same results with and without
/// streaming stores.
fn every_kernel<T: Sample>(element: Element, axis: usize) {
    let count = ROWS * axis;
    let (a, b) = (values::<T>(count, 3.0), values::<T>(count + 1, 2.0).split_off(1));
    let (weight, bias) = (values::<T>(axis, 2.0), values::<T>(axis + 1, 1.0));
    let [x, y, w, c] = [&a, &b, &weight, &bias].map(|v: &Vec<T>| v.as_ptr().cast::<u8>());
    let same = |what: &str, run: Run| {
        let (mut near, mut past) = (Vec::new(), Vec::new());
        let near = place::<T>(&mut near, count, true);
        let past = place::<T>(&mut past, count, false);
        run(near.as_mut_ptr().cast());
        run(past.as_mut_ptr().cast());
        assert_same(past, near, what);
        assert!(near.iter().any(|v| v.to_f32() != 0.0), "{what}");
    };
    // SAFETY: every buffer has the number of elements that the kernel's contract requires.
    unsafe {
        same("rms_norm", &|to| kernels::rms_norm(element, x, w, to, ROWS, axis, 1e-5));
        same("layer_norm", &|to| kernels::layer_norm(element, x, w, c, to, ROWS, axis, 1e-5));
        for (sums, centered) in [(false, false), (true, false), (false, true), (true, true)] {
            same("residual_norm", &|to| {
                let mut memory = Vec::new();
                let other = place::<T>(&mut memory, count, false).as_mut_ptr().cast();
                let (sum, norm) = if sums { (to, other) } else { (other, to) };
                let call = ResidualNorm {
                    x,
                    residual: y,
                    weight: w,
                    bias: if centered { c } else { std::ptr::null() },
                    sum,
                    norm,
                    rows: ROWS,
                    axis,
                    eps: 1e-5,
                    centered,
                };
                kernels::residual_norm(element, call);
            });
        }
        same("softmax", &|to| kernels::softmax(element, x, to, ROWS, axis));
        same("log_softmax", &|to| kernels::log_softmax(element, x, to, ROWS, axis));
        for kind in [Activation::Relu, Activation::Silu] {
            same("activation", &|to| kernels::activation(element, kind, x, to, count));
        }
        for kind in [Combination::Swiglu, Combination::AddRelu] {
            same("combination", &|to| kernels::combination(element, kind, x, y, to, count));
        }
        for columns in [1, axis] {
            let (rows, scale_columns, shift_columns) = (ROWS, columns, columns);
            let shape = AffineShape { rows, columns: axis, scale_columns, shift_columns };
            same("affine", &|to| kernels::affine(element, x, w, c, to, &shape));
        }
        for (dims, traditional) in [(axis, false), (axis, true), (axis / 2, false), (6, true)] {
            let shape = RopeShape {
                batch: 1,
                heads: 1,
                seq: ROWS,
                head_dim: axis,
                dims,
                traditional,
                forward: true,
                scale: 1.0,
            };
            let base = Frequencies::Base(10000.0);
            same("rope", &|to| kernels::rope(element, x, to, &shape, base, &[3]));
        }
    }
    masked::<T>(element, axis, [x, y], &same);
}

/// Checks masked kernels as [`every_kernel`] does, with masks that begin and end within blocks.
/// Also checks gradients and `dequantize`.
fn masked<T: Sample>(
    element: Element,
    axis: usize,
    [x, y]: [*const u8; 2],
    same: &dyn Fn(&str, Run),
) {
    use mlx_primitives_kernels::{MaskedSoftmaxShape, QuantizeShape, Targets};
    for (causal, window) in [(false, 0), (true, 0), (true, 21)] {
        let (rows, queries, keys) = (ROWS, ROWS, axis);
        let shape = MaskedSoftmaxShape { rows, queries, keys, causal, window };
        // SAFETY: the buffers hold rows of `axis` elements.
        unsafe {
            same("masked_softmax", &|to| {
                kernels::masked_softmax(element, x, None, to, &shape, 0.7);
            });
            same("masked_softmax_grad", &|to| {
                kernels::masked_softmax_grad(element, [x, y], None, to, &shape, 0.7);
            });
        }
    }
    let classes: Vec<i32> = (0..ROWS as i32).map(|row| row % 5).collect();
    let targets = Targets { classes: &classes, smoothing: 0.1, ignored: Some(3) };
    let mut stats = vec![0.0f32; 2 * ROWS];
    let mut losses = vec![T::default(); ROWS];
    // SAFETY: the buffers hold rows of `axis` elements, and one or two elements for each row.
    unsafe {
        let out = losses.as_mut_ptr().cast();
        kernels::cross_entropy(element, x, targets, out, stats.as_mut_ptr(), axis);
        same("cross_entropy_grad", &|to| {
            kernels::cross_entropy_grad(element, [x, y], targets, stats.as_ptr(), to, axis);
        });
    }
    if axis.is_multiple_of(32) {
        let shape = QuantizeShape { groups: ROWS * axis / 32, group_size: 32, bits: 4 };
        // SAFETY: any word is valid as 4-bit codes; x and y have one element for each group.
        unsafe {
            same("dequantize", &|to| kernels::dequantize(element, x.cast(), x, y, to, &shape));
        }
    }
}

#[test]
fn results_are_the_same_past_the_caches() {
    for axis in [96, 256, 1000, 1024] {
        every_kernel::<f32>(Element::F32, axis);
        every_kernel::<F16>(Element::F16, axis);
        every_kernel::<Bf16>(Element::BF16, axis);
    }
}
