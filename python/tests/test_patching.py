"""Tests what `patch` puts in the place of MLX's functions, and that `unpatch` restores the originals."""

import sys

import mlx.core as mx
import mlx.nn as nn
import pytest

import mlx_primitives
from conftest import DEVICE, counts
from mlx_primitives.patching import _hook, _patch

TYPES = [mx.float32, mx.float16, mx.bfloat16]
OWNERS = (mx, mx.fast, nn, nn.losses, nn.Linear, nn.Embedding, nn.QuantizedLinear, nn.QuantizedEmbedding, nn.SiLU)


def quantized(layer):
    return layer.to_quantized(64, 4)


mx.random.seed(0)
linear, biased, embedding = nn.Linear(128, 96, bias=False), nn.Linear(128, 96), nn.Embedding(96, 128)
x = mx.random.normal((2, 5, 128))
heads = mx.random.normal((1, 4, 6, 64))
CALLS = {
    "rms_norm": lambda x: nn.RMSNorm(128)(x),
    "layer_norm": lambda x: nn.LayerNorm(128)(x),
    "rope": lambda x: nn.RoPE(64)(heads.astype(x.dtype), offset=3),
    "scaled_dot_product_attention": lambda x: mx.fast.scaled_dot_product_attention(
        heads.astype(x.dtype), heads.astype(x.dtype), heads.astype(x.dtype), scale=0.1, mask="causal"
    ),
    "quantized_matmul": lambda x: mx.quantized_matmul(x, *mx.quantize(linear.weight), group_size=64, bits=4),
    "QuantizedLinear.__call__": quantized(biased),
    "QuantizedEmbedding.__call__": lambda x: quantized(embedding)(mx.array([[3, 95], [0, 7]])).astype(x.dtype),
    "QuantizedEmbedding.as_linear": lambda x: quantized(embedding).as_linear(x),
    "Linear.__call__": lambda x: biased(x) + linear(x),
    "Embedding.as_linear": lambda x: embedding.as_linear(x),
    "silu": lambda x: nn.silu(x),
    "gelu": lambda x: nn.gelu(x),
    "gelu_approx": lambda x: nn.GELU("tanh")(x),
    "SiLU.__call__": nn.SiLU(),
    "cross_entropy": lambda x: nn.losses.cross_entropy(x, mx.zeros((2, 5), mx.int32), reduction="mean"),
}
PASSED_ON = {
    "rms_norm": lambda: mx.fast.rms_norm(mx.ones((2, 8), mx.int32), None, 1e-5),
    "quantized_matmul": lambda: mx.quantized_matmul(x[0], *mx.quantize(mx.ones((128, 64))), transpose=False),
    "cross_entropy": lambda: nn.losses.cross_entropy(x, nn.softmax(x)),
    "silu": lambda: nn.silu(mx.ones((3,), mx.complex64)),
}


def near(got, want, dtype):
    assert got.shape == want.shape and got.dtype == want.dtype
    step = {mx.float32: 1e-5, mx.float16: 4e-3, mx.bfloat16: 4e-2}[dtype]
    assert mx.abs(got - want).max().item() <= step * max(1.0, mx.abs(want).max().item())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", CALLS)
def test_results_are_those_of_mlx(name, dtype):
    want = CALLS[name](x.astype(dtype))
    with mlx_primitives.patched():
        got = CALLS[name](x.astype(dtype))
        assert counts(name)[0] >= 1 and counts(name)[1] == 0
    near(got, want, dtype)


def test_a_mixture_of_experts_is_that_of_mlx(models):
    layers = models("switch_layers")
    for bits, bias, shape in [(None, True, (2, 9)), (4, False, (1, 1)), (4, False, (2, 9)), (8, True, (1, 7))]:
        layer = layers.SwitchGLU(128, 64, 8, bias=bias)
        if bits:
            nn.quantize(layer, 64, bits)
        rows = mx.random.normal((*shape, 128))
        chosen = mx.argsort(mx.random.uniform(shape=(*shape, 8)), -1)[..., :3]

        def run(rows):
            both = rows[..., None, None, :]
            up = layer.up_proj(both, chosen)
            return [layer(rows, chosen), up, layer.up_proj(up.sum(-1, keepdims=True) + both, chosen)]

        want, slope = run(rows), mx.grad(lambda rows: run(rows)[0].sum())(rows)
        with mlx_primitives.patched():
            got, ours = run(rows), mx.grad(lambda rows: run(rows)[0].sum())(rows)
            assert counts("SwitchGLU.__call__") == (2, 0)
        for a, b in zip([*got, ours], [*want, slope]):
            near(a, b, mx.float32)


def test_indices_and_rows_of_experts_broadcast(models):
    layer = models("switch_layers").SwitchLinear(128, 64, 5, bias=False)
    groups = mx.random.normal((2, 3, 5, 1, 128))
    want = layer(groups, mx.arange(5)[None])
    with mlx_primitives.patched():
        near(layer(groups, mx.arange(5)[None]), want, mx.float32)
        assert counts("SwitchLinear.__call__") == (1, 0)


def test_experts_whose_weights_change_are_new(models):
    layer = models("switch_layers").SwitchLinear(128, 64, 4, bias=False)
    both, chosen = x[:1, :1, None], mx.array([[[2]]])
    with mlx_primitives.patched():
        layer(both, chosen)
        layer.weight[2] = mx.zeros((64, 128))
        assert not layer(both, chosen).any()
        layer.weight = mx.ones((4, 64, 128))
        assert mx.allclose(layer(both, chosen), mx.broadcast_to(both.sum(-1, keepdims=True), (1, 1, 1, 1, 64)))


def test_experts_that_are_not_known_go_to_mlx(models, compiling):
    layer = models("switch_layers").SwitchGLU(128, 64, 4)
    chosen = mx.array([[[2, 1]] * 5] * 2)
    want = layer(x, chosen)
    with mlx_primitives.patched():
        near(mx.compile(layer)(x, chosen), want, mx.float32)
        assert counts("SwitchGLU.__call__") == (0, 1)


def test_attention_over_packed_keys_is_that_of_mlx(models):
    base, cache = models("base"), models("cache").QuantizedKVCache(group_size=32, bits=8)
    k, v = cache.update_and_fetch(heads[:, :2], heads[:, 2:])
    for mask in (None, "causal", mx.tri(6, 6).astype(mx.bool_)):
        with mx.stream(mx.cpu):  # MLX for CUDA has no kernel for these products in float32
            want = base.scaled_dot_product_attention(heads + 0, k, v, cache, 0.1, mask)
            mx.eval(want)
        with mlx_primitives.patched():
            near(base.scaled_dot_product_attention(heads, k, v, cache, 0.1, mask), want, mx.float32)
            assert counts("quantized_scaled_dot_product_attention") == (1, 0)


def test_low_rank_layers_and_their_gradients_are_those_of_mlx(models):
    layer = models("lora", "tuner").LoRALinear.from_base(quantized(biased), dropout=0.0)
    layer.lora_b = mx.random.normal(layer.lora_b.shape) * 0.1
    layer.linear.freeze()
    step = nn.value_and_grad(layer, lambda layer: layer(x).square().mean())
    want, slope = step(layer)
    with mlx_primitives.patched():
        got, ours = step(layer)
        assert counts("LoRALinear.__call__") == (1, 0)
    near(got, want, mx.float32)
    for name in ("lora_a", "lora_b"):
        near(ours[name], slope[name], mx.float32)


def test_on_an_nvidia_gpu_products_of_few_rows_are_replaced(nvidia):
    nvidia(True)
    layer, before = quantized(linear), mx.fast.rms_norm
    want = layer(x)
    with mlx_primitives.patched():
        names = {it.name.split(".")[-1] for it in mlx_primitives.report()}
        assert names >= {"eval", "async_eval", "quantized_matmul"} and mx.fast.rms_norm is before
        assert mx.array_equal(layer(x), want) and counts("QuantizedLinear.__call__") == (0, 1)
        near(layer(x[:, :4]), want[:, :4], mx.float32)
        assert counts("QuantizedLinear.__call__") == (1, 1)
    assert not _hook.on_nvidia() or DEVICE == "gpu"


@pytest.mark.parametrize("name", PASSED_ON)
def test_what_is_not_served_goes_to_mlx(name):
    def outcome():
        try:
            return PASSED_ON[name]().tolist()
        except (TypeError, ValueError) as error:
            return str(error)

    want = outcome()
    with mlx_primitives.patched():
        assert outcome() == want
        assert counts(name) == (0, 1)


def test_gradients_are_those_of_mlx():
    layer = nn.Sequential(nn.RMSNorm(128), biased, nn.SiLU())

    def loss(layer):
        return nn.losses.cross_entropy(layer(x), mx.zeros((2, 5), mx.int32)).mean()

    want = nn.value_and_grad(layer, loss)(layer)
    with mlx_primitives.patched():
        got = nn.value_and_grad(layer, loss)(layer)
    near(got[0], want[0], mx.float32)
    near(got[1]["layers"][1]["weight"], want[1]["layers"][1]["weight"], mx.float32)


def test_originals_come_back():
    before = [dict(vars(owner)) for owner in OWNERS]
    mlx_primitives.patch()
    mlx_primitives.patch()
    assert mlx_primitives.is_patched() and vars(mx.fast)["rms_norm"] is not before[1]["rms_norm"]
    mlx_primitives.unpatch()
    mlx_primitives.unpatch()
    assert not mlx_primitives.is_patched()
    assert [dict(vars(owner)) for owner in OWNERS] == before


def test_patched_keeps_an_outer_patch():
    mlx_primitives.patch()
    with mlx_primitives.patched():
        pass
    assert mlx_primitives.is_patched()
    mlx_primitives.unpatch()
    with pytest.raises(KeyError), mlx_primitives.patched():
        raise KeyError
    assert not mlx_primitives.is_patched()


def test_names_imported_by_value_are_exchanged(tmp_path, monkeypatch):
    program = "from mlx.nn import silu\nfrom mlx.core.fast import rms_norm\n"
    (tmp_path / "imports_by_value.py").write_text(program.replace("from mlx.core.fast", "import mlx.core as mx #"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "imports_by_value", raising=False)
    original = nn.silu
    mlx_primitives.patch()
    import imports_by_value

    assert imports_by_value.silu is nn.silu is not original
    mlx_primitives.unpatch()
    assert imports_by_value.silu is nn.silu is original
    with mlx_primitives.patched():
        assert imports_by_value.silu is nn.silu is not original


@pytest.mark.parametrize("nvidia", [False, True])
def test_modules_imported_later_are_patched(tmp_path, python, nvidia):
    models = tmp_path / "mlx_lm" / "models"
    models.mkdir(parents=True)
    (models / "__init__.py").touch()
    (models.parent / "__init__.py").touch()
    (models / "activations.py").write_text("def swiglu(gate, x):\n    return x\n")
    code, out, error = python(
        "import sys; sys.path.insert(0, %r)\n" % str(tmp_path)
        + "import mlx_primitives as p\n"
        "p.patching._patch.on_nvidia = lambda: %r\np.patch()\n" % nvidia
        + "names = [it.name for it in p.report()]\n"
        "from mlx_lm.models.activations import swiglu\n"
        "y = swiglu(mx.array(0.0), mx.array(3.0)).item()\n"
        "print(y, [(it.name, it.served) for it in p.report() if it.name not in names])\n"
        "p.unpatch()\nprint(swiglu(mx.array(0.0), mx.array(3.0)).item())\n"
        "p.patch(); p.unpatch()\n"
    )
    assert code == 0, error
    ours = "0.0 [('mlx_lm.models.activations.swiglu', 1)]"
    assert out.splitlines() == ["3.0 []" if nvidia else ours, "3.0"]


def test_reasons_are_counted_and_bounded():
    hook = _patch.Hook("name", lambda: 1)
    for number in range(40):
        assert hook.pass_on(ValueError("reason %d" % number)) == 1
    assert len(hook.reasons) == 17 and hook.passed_on == 40
    with pytest.raises(RuntimeError, match="fork"):
        hook.pass_on(RuntimeError("after a fork"))


def test_a_report_prints_a_line_for_each_function_and_reason():
    with mlx_primitives.patched():
        nn.silu(x)
        PASSED_ON["cross_entropy"]()
        text = str(mlx_primitives.report())
    assert "mlx.nn.silu" in text and "1 MLX's: targets that are not indices of classes" in text


def test_a_report_of_a_model_names_what_its_modules_run_on():
    model = nn.Sequential(nn.RMSNorm(128), quantized(biased), nn.Dropout(0.5), nn.Linear(96, 8))
    with mlx_primitives.patched():
        rows = {name.rsplit(".", 1)[-1]: (count, found) for name, count, found in mlx_primitives.report(model)}
        text = str(mlx_primitives.report(model))
    assert rows["RMSNorm"] == (1, ("mlx.core.fast.rms_norm",))
    assert rows["QuantizedLinear"] == (1, ("mlx.nn.QuantizedLinear.__call__",))
    assert rows["Dropout"] == (1, ()) and "MLX's: its call names no function that is replaced" in text
