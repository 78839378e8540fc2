"""The blocks of a Llama, whose few tokens are one call each."""

import copy

import mlx.core as mx
import mlx.nn as nn
import pytest
from conftest import counts

import mlx_primitives
from mlx_primitives.patching import _blocks

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
    """A model, its cache and what it answered."""

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

    def outcome(self):
        keys = [cache.keys[:, :, : cache.offset] for cache in self.cache]
        values = [cache.values[:, :, : cache.offset] for cache in self.cache]
        return [*self.answers, *keys, *values]


def same(got, want):
    return len(got) == len(want) and all(mx.array_equal(a, b) for a, b in zip(got, want))


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
        assert same(outcome(8), want)
        assert counts(BLOCK) == (2 * 4, 0)


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
