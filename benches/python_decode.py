"""Times mlx-lm's generator on a Llama 8B shape with random 4-bit weights, without and with `patch()`, in turns.

    python benches/python_decode.py [--prompt 512] [--tokens 100] [--rounds 3] [--layers 32] [--check] [--host]

It runs on MLX's default device. `--check` first compares the logits without and with `patch()`. `--host`
waits for each token, and prints the time for building its graph, for `async_eval`, and for waiting.
"""

import argparse
import statistics
import time

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.llama import Model, ModelArgs

import mlx_primitives

SHAPE = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}


def random_like(array):
    """Returns random 32-bit words for packed weights, and small random numbers for other arrays."""
    if array.dtype == mx.uint32:
        return mx.random.randint(-(2**31), 2**31 - 1, array.shape, mx.int32).view(mx.uint32)
    return (0.01 * mx.random.normal(array.shape)).astype(mx.bfloat16)


def centered(model):
    """Makes the mean of every group of packed weights about 0, and the weights of norms 1."""
    for _, module in model.named_modules():
        if "scales" in module:
            module.scales = mx.full(module.scales.shape, 0.003, mx.bfloat16)
            module.biases = mx.full(module.scales.shape, -7.5 * 0.003, mx.bfloat16)
        elif type(module) is nn.RMSNorm:
            module.weight = mx.ones_like(module.weight)


def generated(model, prompt, tokens):
    """Returns the tokens per second of the prompt and of decoding, and the last token."""
    start = time.perf_counter()
    steps = generate_step(prompt, model, max_tokens=tokens + 1)
    next(steps)
    first = time.perf_counter()
    for token, _ in steps:
        pass
    return len(prompt) / (first - start), tokens / (time.perf_counter() - first), token


def shares(model):
    """Returns the milliseconds per token for building the graph, for `async_eval`, and for
    waiting."""
    cache = make_prompt_cache(model)
    mx.eval(model(mx.array([[1, 2, 3]]), cache=cache))
    times = []
    for token in range(24):
        clocks = [time.perf_counter()]
        y = mx.argmax(model(mx.array([[token]]), cache=cache)[:, -1], axis=-1)
        clocks.append(time.perf_counter())
        mx.async_eval(y)
        clocks.append(time.perf_counter())
        y.item()
        clocks.append(time.perf_counter())
        times.append([1e3 * (end - start) for start, end in zip(clocks, clocks[1:])])
    return tuple(map(statistics.median, zip(*times)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=SHAPE["num_hidden_layers"])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--host", action="store_true")
    args = parser.parse_args()
    mx.random.seed(0)
    model = Model(ModelArgs.from_dict({**SHAPE, "num_hidden_layers": args.layers}))
    nn.quantize(model, group_size=64, bits=4)
    # MLX never computes the original float weights that `quantize` packed, because nothing uses
    # their values.
    model.update(tree_map(random_like, model.parameters()))
    centered(model)
    mx.eval(model.parameters())
    prompt = mx.array([(i * 7919) % SHAPE["vocab_size"] for i in range(args.prompt)])
    kinds = {"mlx-lm": mlx_primitives.unpatch, "patched": mlx_primitives.patch}
    if args.check:
        logits = []
        for begin in kinds.values():
            begin()
            cache = make_prompt_cache(model)
            model(prompt[None, :16], cache=cache)
            logits.append(model(prompt[None, 16:17], cache=cache)[0, -1].astype(mx.float32))
            mx.eval(logits[-1])
        difference = mx.abs(logits[1] - logits[0]).max().item()
        print("logits: largest %.3f, difference %.3f" % (mx.abs(logits[0]).max().item(), difference))
    if args.host:
        for name, begin in kinds.items():
            begin()
            print("%-8s builds a token in %.2f ms, hands it over in %.2f, waits for %.2f" % (name, *shares(model)))
    speeds = {name: [] for name in kinds}
    for turn in range(args.rounds + 1):
        for name, begin in kinds.items():
            begin()
            *speed, token = generated(model, prompt, args.tokens)
            if turn > 0:  # the first turn compiles kernels
                speeds[name].append(speed)
                print("%-8s prompt %8.1f, decoding %6.1f tokens a second" % (name, *speed), flush=True)
    print(mlx_primitives.report())
    for at, what in enumerate(("prompt", "decoding")):
        stock, ours = (statistics.median(run[at] for run in speeds[name]) for name in kinds)
        print("%s: %.1f, patched %.1f tokens a second: %.2f times as fast" % (what, stock, ours, ours / stock))


main()
