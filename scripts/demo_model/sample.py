"""Prints texts that mlx-lm generates with the demo model, for a person to read."""

import argparse
from pathlib import Path

import mlx.core as mx
from mlx_lm import generate, load
from mlx_lm.sample_utils import make_sampler

PROMPTS = ["Once upon a time", "One day, a little cat", "In a small village", "Zoë", "The old dragon",
           "Lily and Tom went", "Every morning, the bear"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("prompts", nargs="*", default=PROMPTS)
    args = parser.parse_args()
    model, tokenizer = load(str(args.model))
    mx.random.seed(0)
    for prompt in args.prompts:
        for temp in (0.0, 0.8):
            text = generate(model, tokenizer, prompt, max_tokens=256, sampler=make_sampler(temp))
            print(f"[{temp}] {prompt}|{text}\n")


if __name__ == "__main__":
    main()
