import mlx.core as mx
import pytest

import metal_check
from metal_check import KernelFault, NotChecked, watch

LARGEST = """
    threadgroup float shared[2];
    uint row = threadgroup_position_in_grid.y;
    float most = simd_max(float(x[row * N + thread_index_in_threadgroup]));
    if (thread_index_in_simdgroup == 0) shared[simdgroup_index_in_threadgroup] = most;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    most = max(shared[0], shared[1]);
    BARRIER
    if (thread_index_in_threadgroup == 0) shared[0] = bias;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[row * N + thread_index_in_threadgroup] = T(most + shared[0]);
"""


def largest(barrier="threadgroup_barrier(mem_flags::mem_threadgroup);"):
    """Fills each row with its largest element plus 0.5. `barrier` replaces a barrier of the kernel.
    Returns the result and the expected result."""
    made = mx.fast.metal_kernel(
        name="largest",
        input_names=["x", "bias"],
        output_names=["y"],
        source=LARGEST.replace("BARRIER", barrier),
    )
    x = mx.random.normal((3, 64)).astype(mx.float16)
    results = made(
        inputs=[x, 0.5],
        template=[("T", mx.float16), ("N", 64)],
        grid=(64, 3, 1),
        threadgroup=(64, 1, 1),
        output_shapes=[x.shape],
        output_dtypes=[mx.float16],
    )
    want = (x.max(-1, keepdims=True).astype(mx.float32) + 0.5).astype(mx.float16)
    return results[0], mx.broadcast_to(want, x.shape)


def elementwise(source, x, dtype=None, shape=None, **options):
    launch = {name: options.pop(name) for name in ("template", "init_value", "verbose") if name in options}
    made = mx.fast.metal_kernel(name="each", input_names=["x"], output_names=["y"], source=source, **options)
    size = {"grid": (x.size, 1, 1), "threadgroup": (256, 1, 1)}
    shape = x.shape if shape is None else shape
    return made(inputs=[x], output_shapes=[shape], output_dtypes=[dtype or x.dtype], **size, **launch)[0]


def test_a_race_is_an_error_with_its_lines():
    original = mx.fast.metal_kernel
    with watch() as watched:
        got, want = largest()
        assert mx.array_equal(got, want)
        with pytest.raises(KernelFault, match="(?s)largest.*DataRace: .*'shared'") as raised:
            largest("")
    assert "shared[0] = bias;" in str(raised.value)
    assert {fault["kind"] for fault in raised.value.report["faults"]} == {"DataRace"}
    assert watched.launches == {"largest": 2} and watched.faults == [raised.value]
    assert mx.fast.metal_kernel is original


def test_faults_of_a_whole_program_are_collected():
    with watch("forward", stop=False) as watched:
        for offset in (1, 0, 2):
            elementwise(f"uint i = thread_position_in_grid.x; y[i] = x[i + {offset}];", mx.ones((16,)))
    assert watched.launches == {"each": 3} and len(watched.faults) == 2


def test_notes_are_shown_once(capsys):
    with watch("forward") as watched:
        for size in (8, 16):
            assert elementwise("y[0] = 5;", mx.ones((size,)), shape=(1,)).item() == 5
    assert len(watched.notes) == 1 and not watched.faults
    printed = capsys.readouterr()
    assert "note: " in printed.err and "DataRace: " in printed.err and printed.err.strip() == watched.notes[0]
    assert printed.out == ""


def test_outputs_are_filled_and_atomic():
    source = """
        uint i = thread_position_in_grid.x;
        auto at = elem_to_loc(i, x_shape, x_strides, x_ndim);
        if (x[at] > 0) atomic_fetch_add_explicit(&y[0], 1, memory_order_relaxed);
    """
    x = mx.random.normal((5, 8)).T
    with watch("shuffled"):
        y = elementwise(source, x, mx.int32, (2,), ensure_row_contiguous=False, atomic_outputs=True, init_value=4)
    assert y.tolist() == [4 + (x > 0).sum().item(), 4]


@pytest.mark.parametrize(
    "view, contiguous",
    [("transposed", True), *((view, False) for view in ("plain", "transposed", "every second", "broadcast", "reversed"))],
)
def test_inputs_of_any_strides(view, contiguous):
    x = mx.arange(24, dtype=mx.float32).reshape(4, 6)
    views = {"transposed": x.T, "every second": x[:, ::2], "reversed": x[::-1], "broadcast": mx.broadcast_to(x[:1], (3, 6))}
    x = views.get(view, x)
    # For a uint index, elem_to_loc computes unsigned offsets. A negative stride would then lead out
    # of the buffer, so the kernel passes a long.
    source = "uint i = thread_position_in_grid.x; y[i] = x[elem_to_loc(long(i), x_shape, x_strides, x_ndim)];"
    # The elements of a reversed array lie before the address that the kernel gets. The additional
    # statement checks that the stride is negative.
    if view == "reversed":
        source += "if (x_strides[0] > 0) y[i] = 0;"
    with watch("forward"):
        assert mx.array_equal(elementwise(source, x, ensure_row_contiguous=contiguous), x)


@pytest.mark.parametrize("dtype", [mx.bool_, mx.int8, mx.uint16, mx.int64, mx.float16, mx.bfloat16, mx.float32, mx.complex64])
def test_every_type_arrives(dtype):
    x = (mx.arange(-3, 9) * 0.5).astype(dtype)
    with watch("forward"):
        y = elementwise("uint i = thread_position_in_grid.x; y[i] = static_cast<T>(x[i]);", x, template=[("T", dtype)])
    assert y.dtype == dtype and mx.array_equal(y, x)


def test_small_inputs_and_numbers():
    made = "uint i = thread_position_in_grid.x; y[i] = x[i % 3] * (FLAG ? N : 1);"
    with watch("reversed"):
        y = elementwise(made, mx.array([1.0, 2.0, 3.0]), template=[("N", -2), ("FLAG", True)])
        assert y.tolist() == [-2.0, -4.0, -6.0]
        assert elementwise("y[0] = x + 1;", mx.array(2.5)).item() == 3.5


def test_faults_of_bounds_and_of_the_source():
    with watch() as watched:
        with pytest.raises(KernelFault, match="OutOfBounds"):
            elementwise("uint i = thread_position_in_grid.x; y[i] = x[i + 1];", mx.ones((16,)))
        with pytest.raises(NotChecked, match="does not compile"):
            elementwise("y[0] = nothing;", mx.ones((16,)))
        with pytest.raises(ValueError, match="Unknown compile option `speed`"):
            elementwise("", mx.ones((16,)), compile_options={"speed": 9})
        with pytest.raises(ValueError, match="Expected `inputs` to have size 1 but got size 0"):
            mx.fast.metal_kernel(name="k", input_names=["x"], output_names=["y"], source="")(
                inputs=[], output_shapes=[(1,)], output_dtypes=[mx.float32], grid=(1, 1, 1), threadgroup=(1, 1, 1)
            )
    assert [type(fault) for fault in watched.faults] == [KernelFault, NotChecked]


def test_kernels_of_compiled_functions_and_of_derivatives():
    @mx.compile
    def doubled(x):
        return elementwise("uint i = thread_position_in_grid.x; y[i] = 2 * x[i];", x) + 1

    square = mx.custom_function(lambda x: elementwise("uint i = thread_position_in_grid.x; y[i] = x[i] * x[i];", x))
    square.vjp(lambda x, cotangent, _: 2 * x * cotangent)
    with watch("forward"):
        assert doubled(mx.ones((4,))).tolist() == [3.0] * 4
        gradient = mx.grad(lambda x: square(x).sum())(mx.array([1.0, 3.0]))
        assert gradient.tolist() == [2.0, 6.0]
        with pytest.raises(ValueError, match="a kernel has no derivative"):
            mx.grad(lambda x: elementwise("y[thread_position_in_grid.x] = 1;", x).sum())(mx.ones((3,)))


def test_programs_are_told_of_a_gpu():
    before = mx.metal.is_available(), mx.default_device()
    with watch(gpu=True):
        assert mx.metal.is_available() and mx.is_available(mx.gpu) and mx.default_device() == mx.gpu
        mx.set_default_device(mx.default_device())
        assert (mx.ones((2,)) + 1).tolist() == [2.0, 2.0]
    assert (mx.metal.is_available(), mx.default_device()) == before
    with pytest.raises(ValueError, match="expected all, forward"):
        with watch("backward"):
            pass


def test_mlx_is_not_needed_for_the_command():
    assert metal_check.program().endswith("metal-check")
