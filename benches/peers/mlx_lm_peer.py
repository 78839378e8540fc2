"""Times mlx-lm's Llama with random packed weights on MLX's CPU backend.

    mlx_lm_peer.py CONFIG BITS GROUP PROMPT GENERATION REPETITIONS

Decoding continues after the prompt. Prints one JSON object to stdout.
"""

import json
import sys
import time

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.llama import Model, ModelArgs


def random_like(array):
    """Returns random 32-bit words for packed weights, and small random numbers for other arrays."""
    if array.dtype == mx.uint32:
        return mx.random.randint(0, 2**31 - 1, array.shape, mx.int32).view(mx.uint32)
    return (0.01 * mx.random.normal(array.shape)).astype(mx.bfloat16)


def main():
    config, *numbers = sys.argv[1:]
    bits, group, prompt, generation, repetitions = map(int, numbers)
    mx.set_default_device(mx.cpu)
    model = Model(ModelArgs.from_dict(json.load(open(config))))
    nn.quantize(model, group_size=group, bits=bits)
    # MLX never computes the original float weights that `quantize` packed, because nothing uses
    # their values.
    model.update(tree_map(random_like, model.parameters()))
    mx.eval(model.parameters())

    tokens = [(i * 7919) % model.args.vocab_size for i in range(prompt)]
    prompts, generations = [], []
    for _ in range(repetitions):
        cache = make_prompt_cache(model)
        start = time.perf_counter()
        following = mx.argmax(model(mx.array([tokens]), cache=cache)[:, -1], axis=-1)
        mx.eval(following)
        prompts.append(prompt / (time.perf_counter() - start))
        start = time.perf_counter()
        for _ in range(generation):
            following = mx.argmax(model(following[None], cache=cache)[:, -1], axis=-1)
            mx.eval(following)
        if generation:
            generations.append(generation / (time.perf_counter() - start))
    print(json.dumps({"prompt_tps": prompts, "generation_tps": generations}))


main()
