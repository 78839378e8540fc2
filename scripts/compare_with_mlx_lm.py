"""Compares this crate's command with mlx-lm on a checkpoint: the files that both programs write, and
the results of both programs on these files.

pip install "mlx[cpu]" mlx-lm
cargo build --release && python scripts/compare_with_mlx_lm.py [--model DIR] [--text FILE]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm import load
from mlx_lm.convert import convert
from mlx_lm.fuse import main as fuse_main

ROOT = Path(__file__).parent.parent
STORY = "Once upon a time, there was a little girl named Lily. One day, she went to the park. " * 4
FORMATS = [
    ("affine", 4, 64),
    ("affine", 4, 32),
    ("affine", 8, 64),
    ("affine", 2, 128),
    ("affine", 3, 32),
    ("affine", 6, 64),
    ("mxfp4", 4, 32),
]


def ours(binary, *arguments):
    result = subprocess.run([binary, *map(str, arguments)], stdout=subprocess.PIPE, check=True)
    return json.loads(result.stdout)


def tensors(directory):
    found = {}
    for file in sorted(directory.glob("model*.safetensors")):
        found.update(mx.load(str(file)))
    return found


def differing(left, right):
    """Returns the names of tensors whose bits differ."""
    left, right = tensors(left), tensors(right)
    bits = lambda array: np.array(array.view(mx.uint8))
    same = lambda a, b: a.shape == b.shape and a.dtype == b.dtype and np.array_equal(bits(a), bits(b))
    names = left.keys() | right.keys()
    return [n for n in names if n not in left or n not in right or not same(left[n], right[n])]


def score(model, tokens):
    tokens = mx.array(tokens)[None]
    logits = model(tokens[:, :-1]).astype(mx.float32)
    losses = nn.losses.cross_entropy(logits, tokens[:, 1:], reduction="none")
    return np.array(losses, dtype=np.float64).mean()


def greedy(model, tokens, count):
    """Returns the greedy tokens, and for each token the difference between the two largest logits."""
    from mlx_lm.models.cache import make_prompt_cache

    cache, found, margins = make_prompt_cache(model), [], []
    step = mx.array(tokens)[None]
    for _ in range(count):
        logits = np.array(model(step, cache=cache)[0, -1].astype(mx.float32))
        first, second = np.argsort(logits)[-2:][::-1]
        found.append(int(first))
        margins.append(float(logits[first] - logits[second]))
        step = mx.array([[found[-1]]])
    return found, margins


def compare(binary, directory, text_file, adapters=None):
    """Compares perplexities and, without adapters, greedy tokens. Tokens may differ where mlx-lm's logits are close."""
    adapter = ["--adapter-path", adapters] if adapters else []
    model, tokenizer = load(str(directory), adapter_path=adapters and str(adapters))
    text = Path(text_file).read_text()
    theirs = score(model, tokenizer.encode(text))
    mine = ours(binary, "perplexity", "--model", directory, "--file", text_file, "--json", *adapter)
    off = abs(np.exp(mine["mean_nll"] - theirs) - 1)
    line = f"perplexity {mine['perplexity']:.5f} and {np.exp(theirs):.5f} ({off:.2e} apart)"
    ok = off < 0.01
    if not adapters:
        prompt = "Once upon a time"
        expected, margins = greedy(model, tokenizer.encode(prompt), 40)
        arguments = ["generate", prompt, "--model", directory, "-m", 40, "--json"]
        found = ours(binary, *arguments)["token_ids"]
        common = next((i for i, (a, b) in enumerate(zip(found, expected)) if a != b), len(found))
        close = margins[common] if common < len(expected) else None
        line += f", {common} of {len(found)} greedy tokens the same"
        if common < len(found):
            line += f" (there mlx-lm's margin is {close:.3f})"
            ok = ok and close < 0.5
    print("  " + line)
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "crates/llama/assets/demo")
    parser.add_argument("--adapter-path", type=Path, default=ROOT / "tests/fixtures/adapters")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--binary", default=ROOT / "target/release/mlx-primitives")
    arguments = parser.parse_args()
    ok = True
    with tempfile.TemporaryDirectory() as directory:
        directory = Path(directory)
        text = arguments.text or directory / "text.txt"
        if not arguments.text:
            text.write_text(STORY)
        for mode, bits, group in FORMATS:
            name = f"{mode}-{bits}-{group}"
            mine, theirs = directory / f"ours-{name}", directory / f"theirs-{name}"
            flags = ["--mode", mode, "--bits", bits, "--group-size", group, "--json"]
            ours(arguments.binary, "quantize", "--model", arguments.model, "--output", mine, *flags)
            convert(str(arguments.model), str(theirs), quantize=True, q_bits=bits,
                    q_group_size=group, q_mode=mode)
            found = differing(mine, theirs)
            print(f"{name}: {len(tensors(mine))} tensors, {len(found)} differ {found[:3]}")
            ok = not found and compare(arguments.binary, mine, text) and ok
        packed = directory / "ours-affine-4-32"
        for base in [arguments.model, packed]:
            print(f"adapters beside and fused into {base.name}")
            ok = compare(arguments.binary, base, text, arguments.adapter_path) and ok
            mine, theirs = directory / f"fused-{base.name}", directory / f"mlx-{base.name}"
            ours(arguments.binary, "fuse", "--model", base, "--adapter-path",
                 arguments.adapter_path, "--save-path", mine, "--json")
            sys.argv = ["fuse", "--model", str(base), "--adapter-path",
                        str(arguments.adapter_path), "--save-path", str(theirs)]
            fuse_main()
            found = differing(mine, theirs)
            print(f"  {len(found)} tensors of the fused differ {found[:3]}")
            ok = not found and compare(arguments.binary, mine, text) and ok
    print("the same" if ok else "NOT the same")
    sys.exit(not ok)


if __name__ == "__main__":
    main()
