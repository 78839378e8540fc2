#!/usr/bin/env python3
"""Predicts the time of one decoded token with 4-bit weights on Apple GPUs, for this project and for mlx-lm.
Nothing here ran on a Mac.

    scripts/token_model.py             prints the tables
    scripts/token_model.py --update    writes them into docs/metal-without-a-mac.md

The prediction counts the bytes of the weights; the dispatches of a layer (`mlx-primitives info --graph`), and
how many of them wait for an earlier dispatch; the threadgroups and threads of the launches; and the cycles of
the machine code (tests/agx/table.json), with the norm and the copy of x to threadgroup memory ("staging").
The constants in capitals are assumptions. They were not fitted to the result.
"""

import json
import sys
from dataclasses import dataclass
from math import ceil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "metal-without-a-mac.md"
BEGIN, END = "<!-- token:begin, made by scripts/token_model.py -->\n", "<!-- token:end -->\n"

# Our kernels and MLX's are assumed to read weights at this fraction of the memory's bandwidth.
STREAMED = 0.85
# Pairs: the number of waits in a layer of mlx-lm, and the microseconds of a wait. A wait is the
# time from the end of a dispatch to the start of the dispatch that needs its result. It includes
# the drain of the first dispatch and the first memory access of the second. Earlier estimates used
# 1.25. The larger value follows from an M3 Ultra, where fusing three dispatches in each of 36
# layers saved time (8.57 to 8.32 ms a token: ml-explore/mlx, pull request 4295). Dispatches that
# wait for the same result run in parallel and cost one wait. Of MLX's 17 dispatches in a layer, at
# least 12 wait: norm, q k v, rotation, append, attention, output, sum, norm, gate and up,
# activation, down, sum. The order in which MLX encodes them may add waits, up to 17.
CASES = ((12, 1.25), (17, 1.25), (12, 2.4), (17, 2.4))
# Microseconds of an access to the L2 cache, of an access to memory, and of a threadgroup barrier.
CACHE, MEMORY, BARRIER = 0.25, 0.5, 0.05
PIPES = 4  # SIMD pipelines of a core, each for 32 threads
KEYS = (128, 512)  # positions in the key/value cache
ROW_BYTES = 16 * 4.5 / 8  # bytes of a row of weights that a lane reads in a step
STEP_ROWS = 4  # rows of weights that a SIMD group reads in a step


@dataclass
class Chip:
    name: str
    cores: int
    gigahertz: float  # of the GPU, as measured by others; Apple publishes none
    rate: float  # gigabytes a second, by Apple's specification

    def stream(self, size):
        """Returns the microseconds of reading this many bytes."""
        return size / (self.rate * STREAMED * 1e3)

    def cycles(self, count):
        return count / (self.gigahertz * 1e3)


CHIPS = (
    Chip("M1", 8, 1.278, 68.25),
    Chip("M1 Max", 32, 1.296, 409.6),
    Chip("M4", 10, 1.47, 120.0),
    Chip("M4 Max", 40, 1.58, 546.0),
)


@dataclass
class Model:
    name: str
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    dim: int
    vocabulary: int

    def products(self):
        """Returns a tuple for each of our products: columns of x, whether a norm precedes it, rows of weights.

        One of our products may fuse several of MLX's products. The last item of the tuple therefore has the
        rows of each of MLX's products.
        """
        kv = self.kv_heads * self.dim
        q = self.heads * self.dim
        layer = [
            (self.hidden, True, (q, kv, kv)),
            (q, False, (self.hidden,)),
            (self.hidden, True, (self.inner, self.inner)),
            (self.inner, False, (self.hidden,)),
        ]
        return layer * self.layers + [(self.hidden, True, (self.vocabulary,))]


MODELS = (
    Model("8B", 32, 4096, 14336, 32, 8, 128, 128256),
    Model("1B", 16, 2048, 8192, 32, 8, 64, 128256),
)

# Cycles of a thread before its first multiplication, with and without a norm, from the machine code
# for bfloat16.
STAGING = {True: 424, False: 87}


def product(chip, axis, rows, threads, of_group, resident, cycles, prologue):
    """Returns three durations, in microseconds, of a product with one row of x.

    They are the time to read the weights, the extra time of the arithmetic and of the last threadgroups,
    and the part of the prologue that the reading does not hide.
    """
    size = rows * axis * 4.5 / 8
    stream = chip.stream(size)
    work = chip.cycles(rows * axis / 32 * cycles / PIPES / chip.cores)
    # Each thread requests its first weights immediately, so reading them hides a part of the
    # prologue.
    group = threads // 32 * 32 * STEP_ROWS * ROW_BYTES
    slots = chip.cores * (resident // threads)
    groups = ceil(rows / of_group)
    first = chip.stream(min(groups, slots) * group)
    exposed = max(0.0, prologue - first)
    # The last threadgroups may be too few to keep the memory busy.
    last = groups % slots
    enough = chip.rate * STREAMED * 1e3 * MEMORY / group
    tail = chip.stream(last * of_group * axis * 4.5 / 8) * max(0.0, enough / last - 1) if last else 0.0
    return stream, max(0.0, work - stream) + tail, exposed


def attention(chip, model, keys, groups, chunk, cycles, rows):
    """Returns the microseconds of the arithmetic, or of reading keys and values if that takes longer."""
    of_core = ceil(groups / chip.cores) * chunk * rows * cycles * model.dim / 128 / PIPES
    return max(chip.cycles(of_core), chip.stream(keys * 4 * model.kv_heads * model.dim))


def ours(chip, model, keys, _, wait, cases):
    weights, scores = cases
    parts = dict.fromkeys(("memory", "waits", "attention", "prologue", "rest"), 0.0)
    for axis, normed, together in model.products():
        rows = sum(together)
        threads = 128 if rows < 8192 and axis <= (2048 if normed else 4096) else 256
        # The prologue consists of cache accesses, a barrier after the staging, another barrier if
        # there is a norm, and the cycles of the staging.
        staged = ceil(axis / 16 / threads)
        work = chip.cycles(STAGING[normed] * staged * 512 / 32 / PIPES)
        prologue = CACHE * (1 + (staged - 1)) + BARRIER * (2 if normed else 1) + work
        stream, rest, exposed = product(
            chip, axis, rows, threads, threads // 32 * 4, 512, weights["alu"], prologue
        )
        parts["memory"] += stream
        parts["rest"] += rest
        parts["prologue"] += exposed
    splits = 1 if keys < 256 else max(8, keys // 256)
    group = model.heads // model.kv_heads
    layer = attention(chip, model, keys, model.kv_heads * splits, keys / splits, scores["alu"], group)
    parts["attention"] = model.layers * layer
    parts["waits"] = wait * (model.layers * (6 if splits == 1 else 7) + 2)
    return parts


def theirs(chip, model, keys, waiting, wait, cases):
    weights, scores = (case["mlx"] for case in cases)
    parts = dict.fromkeys(("memory", "waits", "attention", "prologue", "rest"), 0.0)
    for axis, _, together in model.products():
        # Products of the same x run in parallel, so they count as one product.
        stream, rest, _ = product(chip, axis, sum(together), 64, 8, 832, weights["alu"], 0.0)
        parts["memory"] += stream
        parts["rest"] += rest
    layer = attention(chip, model, keys, model.heads, keys, scores["alu"], 1)
    parts["attention"] = model.layers * layer
    parts["waits"] = wait * (model.layers * waiting + 3)
    return parts


def grid(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def tables():
    table = json.loads((ROOT / "tests" / "agx" / "table.json").read_text())["cases"]
    cases = [table[f"{name}, bfloat16"] for name in ("quantized 4 bits, 1 row", "attention, 4 heads a key head")]
    shares, parts = [], []
    for model in MODELS:
        for waiting, wait in CASES:
            for keys in KEYS:
                of = [
                    [sum(side(chip, model, keys, waiting, wait, cases).values()) for side in (ours, theirs)]
                    for chip in CHIPS
                ]
                shares.append(
                    [model.name, str(waiting), str(wait), str(keys)] + [f"{mine / other:.3f}" for mine, other in of]
                )
        for chip in CHIPS:
            mine, other = (side(chip, model, KEYS[-1], *CASES[0], cases) for side in (ours, theirs))
            of = [f"{mine[part]:,.0f} / {other[part]:,.0f}" for part in mine]
            all_of = f"{sum(mine.values()):,.0f} / {sum(other.values()):,.0f}"
            parts.append([f"{model.name}, {chip.name}", *of, all_of])
    head = ["model", "waits of a layer of mlx-lm's", "µs of a wait", "keys", *(chip.name for chip in CHIPS)]
    text = "Time of a token as a share of mlx-lm's:\n\n" + grid(head, shares)
    waiting, wait = CASES[0]
    text += f"\nMicroseconds of a token, ours / mlx-lm's, with {KEYS[-1]} keys, {waiting} waits and {wait} µs:\n\n"
    head = ["model, chip", "weights", "waits", "attention", "prologue", "arithmetic, ends of dispatches", "all"]
    return text + grid(head, parts)


def with_tables(page):
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + tables() + END + rest.partition(END)[2]


def main():
    if sys.argv[1:] == ["--update"]:
        PAGE.write_text(with_tables(PAGE.read_text()))
    elif sys.argv[1:]:
        sys.exit("usage: scripts/token_model.py [--update]")
    else:
        print(tables(), end="")


if __name__ == "__main__":
    main()
