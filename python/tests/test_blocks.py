"""Tests the blocks of a Llama, which compute few tokens in one call each."""

import copy
import threading

import mlx.core as mx
import mlx.nn as nn
import pytest
from conftest import DEVICE, counts

import mlx_primitives
from mlx_primitives.patching import _blocks, _states

BLOCK = "TransformerBlock.__call__"
SHAPE = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 64,
    "tie_word_embeddings": False,
}
LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}


class Run:
    """A model, its cache and its outputs."""

    def __init__(self, module, seed=0, dtype=mx.bfloat16, **options):
        mx.random.seed(seed)
        self.module = module
        self.model = module.Model(module.ModelArgs.from_dict({**SHAPE, **options}))
        nn.quantize(self.model, 64, 4)
        self.model.set_dtype(dtype)
        self.cache = [module.KVCache() for _ in self.model.layers]
        self.answers = []

    def step(self, *tokens):
        self.answers.append(self.model(mx.array([tokens]), cache=self.cache))
        return self

    def copy(self):
        other = copy.copy(self)
        other.model, other.cache, other.answers = copy.deepcopy((self.model, self.cache, self.answers))
        return other

    def outcome(self):
        keys = [cache.keys[:, :, : cache.offset] for cache in self.cache]
        values = [cache.values[:, :, : cache.offset] for cache in self.cache]
        return [*self.answers, *keys, *values]


def same(got, want):
    return len(got) == len(want) and all(mx.array_equal(a, b) for a, b in zip(got, want))


def near(got, want):
    """Whether results differ by at most twenty roundings.

    A path through two blocks has about twenty roundings, and each may round to the other side. In float32, each sum of
    up to 192 terms, added in another order, counts as fourteen roundings, the square root of the number of terms.
    """
    bound = {mx.float32: 20 * 14 * 2.0**-24, mx.bfloat16: 20 * 2.0**-9}
    differences = [mx.abs(a - b).max().item() / max(1.0, mx.abs(b).max().item()) for a, b in zip(got, want)]
    return len(got) == len(want) and max(differences) <= bound[got[0].dtype], differences


@pytest.mark.parametrize("options", [{}, {"rope_scaling": LLAMA_3}, {"rope_traditional": True}], ids=str)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_a_block_has_the_bits_of_its_ops(models, monkeypatch, options, dtype):
    def outcome(few):
        monkeypatch.setattr(_blocks, "FEW_ROWS", few)
        run = Run(models("llama"), dtype=dtype, **options)
        run.step(*range(9)).step(5).step(7).step(1, 2, 3).step(4)
        return run.outcome()

    with mlx_primitives.patched():
        want = outcome(0)
        assert counts(BLOCK) == (0, 0)
        got = outcome(8)
        assert counts(BLOCK) == (2 * 4, 0)
    if DEVICE == "gpu":  # its kernels for products with a norm, and for attention over a state, add in other orders
        assert near(got, want)[0], near(got, want)[1]
    else:
        assert same(got, want)


def test_a_state_grows_and_is_taken_back(models):
    with mlx_primitives.patched():
        whole = Run(models("llama")).step(*(i % 64 for i in range(254)))
        for token in range(4):  # beyond 256 positions
            whole.step(token)
        grown = vars(whole.cache[0])["_mlx_primitives_state"].layout
        assert grown.capacity == 512 and whole.cache[0].offset == 258
        for cache in whole.cache:
            cache.trim(2)
        again = whole.step(2).step(3).answers
        assert same(again[-2:], again[-4:-2])


def test_a_cache_that_holds_a_state_is_one_of_mlx_lm(models):
    run = Run(models("llama"))
    with mlx_primitives.patched():
        run.step(1, 2, 3).step(4)
        other = Run(models("llama"))
        other.cache = copy.deepcopy(run.cache)
        want, got = run.step(5).step(6), other.step(5).step(6)
        assert same(want.answers[2:], got.answers)
        state = run.cache[0].state
        assert state[0].shape == state[1].shape == (1, 2, 256, 32) and state[2] == 6
        assert run.cache[0].nbytes == 2 * state[0].nbytes and not run.cache[0].empty()
        run.cache[0].state = state
        got = run.step(7).answers[-1]
    assert not mlx_primitives.is_patched()
    for cache in other.cache:  # and goes on without the patch
        assert cache.keys.shape == (1, 2, 256, 32)
    theirs = other.step(7).answers[-1]
    assert mx.abs(got - theirs).max().item() <= 0.05 * mx.abs(theirs).max().item()


def test_other_blocks_are_those_of_mlx_lm(models):
    module = models("llama")
    rotating = models("cache").RotatingKVCache
    cases = [
        (Run(module, attention_bias=True), "without a bias"),
        (Run(module, rope_scaling={"rope_type": "linear", "factor": 2.0}), None),
        (Run(module, rope_scaling={"rope_type": "yarn", "factor": 2.0}), "another rotation"),
        (Run(module), "a cache of another class"),
        (Run(module), "several formats"),
    ]
    cases[3][0].cache = [rotating(16), rotating(16)]
    for layer in cases[4][0].model.layers:
        layer.mlp.up_proj = nn.Linear(128, 192, bias=False).to_quantized(64, 8)
    with mlx_primitives.patched():
        for run, why in cases:
            mlx_primitives.unpatch()
            mlx_primitives.patch()
            mx.eval(run.step(1, 2).step(3).answers)
            (found,) = [it for it in mlx_primitives.report() if it.name.endswith(BLOCK)]
            assert (found.served == 4) == (why is None)
            assert why is None or any(why in reason for reason in found.reasons)


def test_blocks_inside_transforms(models):
    run = Run(models("llama"), dtype=mx.float32)

    def answer(x):
        return run.model(mx.array([[1, 2, 3]]), cache=[run.module.KVCache() for _ in run.cache], input_embeddings=x)

    def loss(x):
        run.cache = [run.module.KVCache() for _ in run.cache]
        both = [run.model(mx.array([[1, 2]]), cache=run.cache, input_embeddings=part) for part in (x, x[:, :1])]
        return sum(part.square().sum() for part in both)

    x = mx.random.normal((1, 3, 128))
    want = [mx.grad(loss)(x), mx.jvp(answer, [x], [mx.sin(x)])[1][0], answer(x), answer(x * 2)]
    with mlx_primitives.patched():
        got = [mx.grad(loss)(x), mx.jvp(answer, [x], [mx.sin(x)])[1][0], *mx.vmap(answer)(mx.stack([x, x * 2]))]
        assert counts(BLOCK) == (2 * 4, 0)
    assert near(got, want)[0], near(got, want)[1]


def test_layers_of_others_are_called(models):
    module, lora = models("llama"), models("lora", "tuner").LoRALinear
    called = []

    def changed(kind):
        def __call__(self, *args, **kwargs):
            called.append(kind)
            return super(new, self).__call__(*args, **kwargs)

        new = type("Other" + kind.__name__, (kind,), {"__call__": __call__})
        return new

    def low_rank(block):
        block.mlp.up_proj = lora.from_base(block.mlp.up_proj)
        block.mlp.up_proj.lora_b = mx.ones_like(block.mlp.up_proj.lora_b)

    def other(path):
        def change(block):
            *outer, name = path.split(".")
            for part in outer:
                block = block[part]
            block[name].__class__ = changed(type(block[name]))

        return change

    parts = ("self_attn", "mlp", "self_attn.q_proj", "mlp.down_proj", "input_layernorm", "self_attn.rope")
    for change in (low_rank, *map(other, parts)):
        run = Run(module, dtype=mx.float32)
        change(run.model.layers[0])
        want = run.copy().step(1, 2).step(3).answers
        called.clear()
        with mlx_primitives.patched():
            got = run.step(1, 2).step(3).answers
            assert counts(BLOCK) == (2, 2) and (change is low_rank or len(called) in (2, 4))
        assert near(got, want)[0], near(got, want)[1]
    run = Run(module)
    run.model.layers[0].__class__ = changed(module.TransformerBlock)
    called.clear()
    with mlx_primitives.patched():
        mx.eval(run.step(1, 2).answers)
        assert len(called) == 1 and counts(BLOCK) == (2, 0)  # it calls the function that is replaced


def test_functions_that_others_replaced_are_called(models, monkeypatch):
    module, called = models("llama"), []
    owners = [(nn.QuantizedLinear, "__call__"), (module.Attention, "__call__"), (module, "swiglu")]
    for owner, name in [*owners, (module.KVCache, "update_and_fetch")]:
        with mlx_primitives.patched(), monkeypatch.context() as undo:
            run = Run(module)
            mx.eval(run.step(1, 2).answers)
            original = getattr(owner, name)
            undo.setattr(owner, name, lambda *args, f=original, **kwargs: called.append(f) or f(*args, **kwargs))
            called.clear()
            mx.eval(run.step(3).answers)
            assert counts(BLOCK) == (2, 2) and called


def test_a_cache_changes_between_steps(models):
    """After each change, steps give the results of mlx-lm, if all steps are patched or only every other one."""
    module = models("llama")

    def quantized(run):
        run.cache = [cache.to_quantized(32, 8) for cache in run.cache]

    def merged(run):
        run.cache = [type(cache).merge([cache, copy.deepcopy(cache)]) for cache in run.cache]

    def trimmed(run):
        for cache in run.cache:
            cache.trim(2)

    def written(run):
        for cache in run.cache:
            cache.keys[..., 1, :] = 0
            cache.values = cache.values * 2

    def restored(run):
        run.cache = [type(cache).from_state(cache.state) for cache in run.cache]

    def answers(change, turn):
        run = Run(module, dtype=mx.float32).step(1, 2, 3).step(4)
        change(run)
        for token in range(3):
            turn(token)
            tokens = mx.array([[token]] * (2 if change is merged else 1))
            run.answers.append(run.model(tokens, cache=run.cache))
        return run.answers

    def by_turns(token):
        (mlx_primitives.patch, mlx_primitives.unpatch)[token % 2]()

    # MLX for CUDA has no kernel for attention over a quantized cache in float32.
    for change in (merged, trimmed, written, restored, *[quantized] * (DEVICE == "cpu")):
        want = answers(change, lambda token: None)
        with mlx_primitives.patched():
            got = answers(change, lambda token: None)
        mixed = answers(change, by_turns)
        mlx_primitives.unpatch()
        bound = 30 if change is quantized else 1  # keys that fall on another step of 8 bits
        for found in (got, mixed):
            assert near([a / bound for a in found], [a / bound for a in want])[0], (change, near(found, want)[1])


def test_a_failure_leaves_the_cache_as_it_was(models, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    with mlx_primitives.patched():
        run = Run(models("llama")).step(1, 2, 3)
        want = run.copy().step(4).step(5).outcome()
        for owner, name in ((_blocks.f, "llama_block"), (_states, "keep"), (_states, "Held")):
            with monkeypatch.context() as undo, pytest.raises(KeyboardInterrupt):
                undo.setattr(owner, name, fail)
                run.step(4)
            assert [cache.offset for cache in run.cache] == [3, 3]
        assert same(run.step(4).step(5).outcome(), want)
        empty = Run(models("llama"))
        for name in ("keys", "values"):
            del vars(empty.cache[0])[name]
        with pytest.raises(AttributeError):
            empty.step(1)


def test_threads_have_their_caches_and_hand_them_over(models):
    def in_threads(*works):
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def decode(run, first):
        for token in range(12):
            run.step((token * 7 + first) % 64)
            mx.eval(run.answers[-1], [cache.offset for cache in run.cache])

    def long_step(run):
        mx.eval(run.step(*range(9)).answers[-1])

    with mlx_primitives.patched():
        first = Run(models("llama"))
        mx.eval(first.model.parameters())
        want, got = [[first.copy(), first.copy()] for _ in range(2)]
        for at, run in enumerate(want):
            decode(run, at)
            decode(run, 3)
            long_step(run)
        in_threads(*(lambda at=at, run=run: decode(run, at) for at, run in enumerate(got)))
        in_threads(*(lambda run=run: decode(run, 3) for run in got))
        in_threads(*(lambda run=run: long_step(run) for run in got))
        for run, theirs in zip(got, want):
            assert same(run.outcome(), theirs.outcome())


def test_a_copy_of_a_model_and_an_mlx_lm_that_is_written_in_another_way(models, monkeypatch):
    module = models("llama")
    run = Run(module).step(1, 2, 3)
    with mlx_primitives.patched():
        other = run.copy()
        assert same(other.step(4).outcome(), run.step(4).outcome()) and counts(BLOCK) == (4, 0)
    for owner, name in ((module, "swiglu"), (module, "KVCache")):
        with monkeypatch.context() as undo:
            undo.delattr(owner, name)
            with mlx_primitives.patched():
                assert counts(BLOCK) == (0, 0)
    with monkeypatch.context() as undo:
        undo.setattr(module.KVCache, "keys", property(lambda cache: vars(cache).get("its_keys")))
        with mlx_primitives.patched():
            assert not _states.install(module.KVCache)


def test_blocks_of_several_rows_and_masks(models):
    def visible(time, end):
        return mx.arange(end - time, end)[:, None] >= mx.arange(end)

    masks = [None, "causal", visible, lambda *shape: mx.where(visible(*shape), 0.0, -1e9)]

    def answers(mask, batch, time, **options):
        run = Run(models("llama"), dtype=mx.float32, **options)
        block, cache = run.model.layers[0], run.cache[0]
        for step in range(3):
            x = mx.sin(mx.arange(batch * time * 128) * (step + 1.0)).reshape(batch, time, 128)
            run.answers.append(block(x, mask(time, cache.offset + time) if callable(mask) else mask, cache))
        return run.answers

    for options in ({}, {"num_key_value_heads": 4}, {"head_dim": 64, "num_key_value_heads": 1}):
        for batch, time in ((2, 3), (4, 2), (1, 8)):
            for mask in masks:
                want = answers(mask, batch, time, **options)
                with mlx_primitives.patched():
                    got = answers(mask, batch, time, **options)
                    assert counts(BLOCK) == (3, 0)
                assert near(got, want)[0], near(got, want)[1]
