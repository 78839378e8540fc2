"""The contestants: how to install each, run it, and read its output."""

import json
from dataclasses import dataclass

import build
import gguf


@dataclass(frozen=True)
class Test:
    """One measurement: a prompt of `prompt` tokens, or `generation` tokens decoded after `context`
    other tokens."""

    key: str
    title: str
    prompt: int = 0
    generation: int = 0
    context: int = 0
    repetitions: int = 1

    @property
    def tokens(self):
        return self.prompt or self.generation


def tests(quick, curves=False):
    """Returns the tests to run. There are fewer if `quick` is set, or `curves`, which means several
    numbers of threads. The result of a process is the median of its repetitions."""
    if curves and not quick:
        return [
            Test("decode", "decode", generation=32, context=128, repetitions=3),
            Test("prompt-128", "prompt of 128", prompt=128, repetitions=3),
        ]
    if quick:
        return [
            Test("decode", "decode", generation=16, context=128),
            Test("prompt-128", "prompt of 128", prompt=128),
        ]
    return [
        Test("decode", "decode", generation=64, context=128, repetitions=3),
        Test("prompt-128", "prompt of 128", prompt=128, repetitions=3),
        Test("prompt-512", "prompt of 512", prompt=512),
        Test("decode-4096", "decode at 4096", generation=64, context=4096),
    ]


@dataclass(frozen=True)
class Turn:
    """One process that measures one test."""

    command: list
    tokens: int
    context: int = 0
    most_rounds: int = 10**9


class Contestant:
    """One line of the table. `rival` is the key of the line that this line is compared with."""

    def __init__(self, key, who, weights, bits, rival=None, long_context=False):
        self.key, self.who, self.weights = key, who, weights
        self.bits, self.rival, self.long_context = bits, rival, long_context

    def prepare(self, shop, options, shape):
        """Builds the contestant; raises `build.Unavailable` if that fails."""
        raise NotImplementedError

    def turn(self, test, threads):
        """Returns the process that runs the test on `threads` threads, or None if this contestant
        skips it."""
        raise NotImplementedError

    def read(self, output):
        """Returns the tokens per second of each repetition, read from the output of the process."""
        measured = json.loads(output)
        return measured["prompt_tps"] or measured["generation_tps"]


class Ours(Contestant):
    def __init__(self, key, weights, bits, flags, decodes=True, **more):
        super().__init__(key, "mlx-primitives", weights, bits, **more)
        self.flags, self.decodes = flags, decodes

    def prepare(self, shop, options, shape):
        self.config = shape.path
        self.binary = build.ours(shop, options.ours)

    def turn(self, test, threads):
        if test.context > 1000 and not self.long_context or test.generation and not self.decodes:
            return None
        command = [self.binary, "bench", "--config", self.config, *self.flags, "--json"]
        command += ["-p", test.prompt, "-g", test.generation, "--context", test.context]
        return Turn(command + ["-n", test.repetitions], test.tokens, test.context)

    def read(self, output):
        measured = json.loads(output)
        return [measured["prompt_tps"] or measured["generation_tps"]]


class GgufContestant(Contestant):
    def __init__(self, key, who, format, rival, **more):
        _, _, block, size = gguf.FORMATS[format]
        super().__init__(key, who, format, 8 * size / block, rival, **more)
        self.format = format

    def prepare(self, shop, options, shape):
        self.options = options
        self.binary = self.build(shop)
        self.model = shop.folder / f"{shape.path.stem}-{shape.parameters()}-{self.format}.gguf"
        if not self.model.exists():
            build.say(f"writing {self.model}")
            gguf.write(self.model, shape, self.format)


class LlamaCpp(GgufContestant):
    def build(self, shop):
        return build.llama_cpp(shop)

    def sizes(self, test):
        if test.prompt:
            return ["-p", test.prompt, "-n", 0]
        return ["-p", 0, "-n", test.generation, "-d", test.context]

    def turn(self, test, threads):
        if test.context > 1000 and not self.long_context:
            return None
        command = [self.binary, "-m", self.model, "-t", threads, "-ngl", 0, "-o", "json"]
        command += ["-r", test.repetitions, *self.sizes(test)]
        return Turn(command, test.tokens, test.context)

    def read(self, output):
        (measured,) = json.loads(output)
        return measured["samples_ts"]


class IkLlamaCpp(LlamaCpp):
    def build(self, shop):
        return build.ik_llama_cpp(shop, self.options.ik_llama)

    def sizes(self, test):
        # `-rtr` repacks the weights when they are loaded, which gives the highest speed.
        if test.prompt:
            return ["-rtr", 1, "-p", test.prompt, "-n", 0]
        return ["-rtr", 1, "-p", 0, "-n", 0, "-gp", f"{test.context},{test.generation}"]


class Candle(GgufContestant):
    """Candle is so slow that a few tokens and rounds suffice."""

    def build(self, shop):
        return build.candle(shop)

    def turn(self, test, threads):
        if test.context > 1000:
            return None
        if test.prompt:
            sizes = [test.prompt, 0]
            return Turn([self.binary, self.model, *sizes, 1], test.prompt, most_rounds=3)
        sizes = [test.context, 8]
        return Turn([self.binary, self.model, *sizes, 1], 8, test.context, most_rounds=3)

    def read(self, output):
        measured = json.loads(output)
        return measured["generation_tps"] or measured["prompt_tps"]


class MlxLm(Contestant):
    """mlx-lm takes seconds per token on a CPU, so it runs for one round of a few tokens."""

    FEW = 4

    def prepare(self, shop, options, shape):
        self.config = shape.path
        self.python = build.mlx_lm(shop)

    def turn(self, test, threads):
        if test.context > 1000 or test.prompt > 128:
            return None
        command = [self.python, build.HERE / "mlx_lm_peer.py", self.config, self.bits_stored, 64]
        if test.prompt:
            return Turn([*command, self.FEW, 0, 1], self.FEW, most_rounds=1)
        return Turn([*command, 1, self.FEW, 1], self.FEW, context=1, most_rounds=1)

    bits_stored = 4

    def read(self, output):
        measured = json.loads(output)
        return measured["generation_tps"] or measured["prompt_tps"]


def packed(bits):
    return ["--bits", bits, "--group-size", 64]


def everyone():
    """Returns the contestants in the order of the table's lines."""
    four, eight, half = "ours-4bit", "ours-8bit", "ours-bf16"
    return [
        # Each group of 64 weights has a bf16 scale and bias: half a bit per weight.
        Ours(four, "4-bit, groups of 64", 4.5, packed(4), long_context=True),
        # This line rounds activations to eight bits, as the peers do. Only its prompts are measured,
        # since exact activations decode one sequence as fast.
        Ours(
            "ours-int8",
            "4-bit, prompt in 8 bits",
            4.5,
            [*packed(4), "--activations", "int8"],
            decodes=False,
            rival="llama.cpp-q4_0",
        ),
        IkLlamaCpp("ik-q4_0", "ik_llama.cpp, repacked", "Q4_0", four, long_context=True),
        LlamaCpp("llama.cpp-q4_0", "llama.cpp", "Q4_0", four, long_context=True),
        LlamaCpp("llama.cpp-q4_1", "llama.cpp", "Q4_1", four),
        Candle("candle-q4_0", "candle", "Q4_0", four),
        MlxLm("mlx-lm-4bit", "mlx-lm", "4-bit, groups of 64", 4.5, four),
        Ours(eight, "8-bit, groups of 64", 8.5, packed(8)),
        LlamaCpp("llama.cpp-q8_0", "llama.cpp", "Q8_0", eight),
        Ours(half, "bf16", 16.0, []),
        LlamaCpp("llama.cpp-f16", "llama.cpp", "F16", half),
    ]
