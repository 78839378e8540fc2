import mlx.core as mx
import pytest

from mlx_primitives import _conformance, conformance, kernel, simulate
from mlx_primitives._simulate import can_simulate

needs_simulator = pytest.mark.skipif(not can_simulate(), reason="the simulator is for Linux")
has_gpu = not _conformance.gpu_kernels.startswith("none") and mx.is_available(mx.gpu)


@pytest.fixture(autouse=True)
def simulated(request, monkeypatch):
    """Makes `conformance` use the simulator, as on a machine without a GPU, except in the test that needs a GPU."""
    if request.node.originalname != "test_a_primitive_conforms_on_a_gpu":
        monkeypatch.setattr(_conformance, "gpu_kernels", "none")


def softplus(body="y[i] = log(1.0f + exp(float(x[i])));", **options):
    return kernel(
        "softplus",
        inputs=["x"],
        outputs=["y"],
        metal="uint i = thread_position_in_grid.x;\n" + body,
        cpu=lambda x: mx.log(1 + mx.exp(x.astype(mx.float32))).astype(x.dtype),
        grid=lambda x: (x.size, 1, 1),
        **options,
    )


def scaled_rows(**options):
    """A primitive with two outputs. Its inputs are rows with any strides, a weight and a scalar."""
    return kernel(
        "scaled_rows",
        inputs=["x", "w", "s"],
        outputs=["y", "n"],
        template=lambda x, w, s: {"T": x.dtype, "N": x.shape[-1], "LONG": x.shape[0] > 4},
        header="inline float twice(float x) { return 2.0f * x; }",
        metal="""
            uint2 at = thread_position_in_grid.xy;
            const device T* row = x + at.y * x_strides[0];
            y[at.y * N + at.x] = T(twice(row[at.x * x_strides[1]] * w[at.x * w_strides[0]] * s));
            if (at.x == 0) {
              n[at.y] = LONG ? x_shape[1] + x_ndim : 0;
            }
        """,
        cpu=lambda x, w, s: (
            2 * (x * w * s),
            mx.full((x.shape[0],), x.shape[1] + x.ndim if x.shape[0] > 4 else 0, mx.int32),
        ),
        grid=lambda x, w, s: (x.shape[1], x.shape[0], 1),
        threadgroup=(8, 4, 1),
        ensure_row_contiguous=False,
        **options,
    )


@needs_simulator
@pytest.mark.parametrize("shape", [(1,), (33, 7), (2, 3, 5)])
def test_a_primitive_conforms(shape):
    report = conformance(softplus(), mx.random.normal(shape))
    assert report.passed and len(report.rows) >= 8, report
    assert "gradient in x" in str(report)


@pytest.mark.skipif(not has_gpu, reason="there is no GPU")
def test_a_primitive_conforms_on_a_gpu():
    inputs = (mx.random.normal((5, 7)), mx.random.normal((7,)), mx.array(3.0))
    for report in (conformance(softplus(), inputs[0]), conformance(scaled_rows(), *inputs)):
        assert report.passed and "values, on the GPU" in str(report)


@needs_simulator
def test_strides_templates_and_two_results():
    x, w, s = mx.random.normal((5, 7)), mx.random.normal((7,)), mx.array(3.0)
    report = conformance(scaled_rows(), x, w, s)
    assert "x reversed in memory" in str(report) and "not run" not in str(report)
    halves = [a.astype(mx.float16) for a in (x, w, s)]
    y, n = simulate(lambda: scaled_rows()(*halves), "shuffled")
    assert y.dtype == mx.float16 and n.tolist() == [9] * 5


@needs_simulator
@pytest.mark.parametrize(
    ("body", "check", "words"),
    [
        ("y[i] = x[i];", "values, forward", "an error of"),
        ("y[i] = log(1.0f + exp(x[i + 1]));", "values, forward", "OutOfBounds"),
        ("if (i > 0) y[i] = log(1.0f + exp(x[i]));", "values, forward", "never written"),
        ("y[i / 2] = log(1.0f + exp(x[i]));", "values, forward", "Race"),
        ("y[i] = isfinite(x[i]) ? log(1.0f + exp(x[i])) : 0.0f;", "NaN", "NaN"),
        ("y[i] = unknown;", "values, forward", "undeclared"),
    ],
)
def test_faults_are_found(body, check, words):
    with pytest.raises(AssertionError) as raised:
        conformance(softplus(body), mx.random.normal((33,)))
    failed = [line for line in str(raised.value).splitlines() if "FAILED" in line]
    assert any(line.startswith(check) for line in failed), raised.value
    assert words in str(raised.value)


@needs_simulator
def test_strides_that_a_kernel_ignores_are_found():
    x = mx.random.normal((6, 6))
    assert conformance(softplus(), x).passed
    with pytest.raises(AssertionError, match="x transposed in memory +FAILED"):
        conformance(softplus(ensure_row_contiguous=False), x)


@needs_simulator
def test_a_wrong_vjp_is_found():
    wrong = lambda primals, cotangents, outputs: cotangents * 0.5
    with pytest.raises(AssertionError, match="gradient in x +FAILED"):
        conformance(softplus(vjp=wrong), mx.random.normal((9,)))


def test_on_a_cpu_it_is_the_reference():
    x = mx.random.normal((4, 5))
    assert mx.array_equal(softplus()(x), softplus().cpu(x))
    half = softplus(vjp=lambda primals, cotangents, outputs: cotangents * 0.5)
    assert mx.grad(lambda x: half(x).sum())(x).tolist() == [[0.5] * 5] * 4
    assert mx.allclose(mx.grad(lambda x: softplus()(x).sum())(x), mx.sigmoid(x))


@needs_simulator
def test_transforms():
    op, x = softplus(), mx.random.normal((3, 4))
    near = lambda a, b: mx.allclose(a, b, 1e-5, 1e-6).item()
    assert near(simulate(lambda: mx.vmap(op, in_axes=1)(x)), op.cpu(x).T)
    assert near(simulate(lambda: mx.jvp(op, [x], [mx.ones(x.shape)])[1][0]), mx.sigmoid(x))
    hessian = simulate(lambda: mx.grad(lambda x: mx.grad(lambda x: op(x).sum())(x).sum())(x))
    assert near(hessian, mx.sigmoid(x) * (1 - mx.sigmoid(x)))


def test_refusals():
    op = softplus()
    with pytest.raises(ValueError, match="expected x, got 2 arrays"):
        op(mx.ones(3), mx.ones(3))
    with pytest.raises(TypeError, match="expected x to be an mx.array, got float"):
        op(1.0)
    with pytest.raises(ValueError, match="letters and digits"):
        kernel("a b", inputs=["x"], outputs=["y"], metal="", cpu=abs, grid=(1, 1, 1))
    with pytest.raises(ValueError, match="different names"):
        kernel("a", inputs=["x"], outputs=["x"], metal="", cpu=abs, grid=(1, 1, 1))
    with pytest.raises(ValueError, match="forward or reversed or shuffled"):
        simulate(lambda: None, "backward")


@needs_simulator
def test_refusals_of_launches():
    x = mx.ones((3,))
    for options, words in [
        ({"threadgroup": (0, 1, 1)}, "three positive numbers for the threadgroup"),
        ({"template": {"T": "float"}}, "a dtype, an int or a bool for T"),
    ]:
        with pytest.raises((TypeError, ValueError), match=words):
            simulate(lambda: softplus(**options)(x))
    with pytest.raises(ZeroDivisionError):  # an error of the caller passes through
        simulate(lambda: 1 // 0)
