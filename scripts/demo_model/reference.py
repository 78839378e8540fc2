"""Writes the texts that mlx-lm generates greedily with the demo model. The tests compare with them."""

import argparse
import hashlib
import json
import re
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache

MAX_TOKENS = 96
DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
ONE_TOKEN = "One"
PROMPTS = [
    "Once upon a time",
    ONE_TOKEN,
    "Zoë and René saw a tiny dragon 🐉 near the café (日本). One day, Zoë",
    'Once upon a time, a kind rabbit named Coco lived in the forest. She loved to sing every day. '
    'One sunny morning, Coco met Hugo near the lake. "Will you play with me?" asked Coco. But Hugo was '
    'too shy to answer. Coco had an idea. She gave her yellow kite to Hugo. "This is my kite. You can '
    'hold it too," she said. Hugo',
    "In a small village, there lived a",
    "One day, a little dog named Pip",
    "Tom could not find his red ball.",
    '"Why are you sad?" asked',
]


def greedy(model, ids, eos):
    """Feeds the whole prompt in one call, then one token at a time through the KV cache."""
    cache = make_prompt_cache(model)
    fed, out, margins, first = ids, [], [], None
    while len(out) < MAX_TOKENS:
        logits = model(mx.array([fed]), cache=cache)[0, -1].astype(mx.float32)
        row = np.array(logits)
        first = row if first is None else first
        top = np.sort(row)[-2:]
        out.append(int(row.argmax()))
        margins.append(float(f"{top[1] - top[0]:.4g}"))
        if out[-1] == eos:
            break
        fed = out[-1:]
    return out, margins, first


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def on_one_line(text):
    """Puts each list of numbers on one line."""
    return re.sub(r"\[[\s\d.,e+-]*\]", lambda m: re.sub(r"\s+", "", m.group()), text)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)

    model, tokenizer = load(str(args.model))
    eos = tokenizer.eos_token_id
    prompts = [{"prompt": p, "prompt_ids": tokenizer.encode(p)} for p in PROMPTS]
    assert all(tokenizer.decode(p["prompt_ids"]) == p["prompt"] for p in prompts)
    assert all(len(p["prompt_ids"]) == 1 for p in prompts if p["prompt"] == ONE_TOKEN)
    logits = None
    for name, dtype in DTYPES.items():
        # Loads the float32 weights again for each type. A conversion from one 16-bit type to the
        # other would round the weights twice.
        model, _ = load(str(args.model))
        model.set_dtype(dtype)
        for p in prompts:
            ids, margins, first = greedy(model, p["prompt_ids"], eos)
            text = tokenizer.decode(ids[:-1] if ids[-1] == eos else ids)
            p[name] = {"ids": ids, "margins": margins, "text": text}
            logits = first if logits is None else logits
    result = {
        "versions": {"mlx": version("mlx"), "mlx_lm": version("mlx-lm")},
        "sha256": {f: sha256(args.model / f) for f in ["model.safetensors", "tokenizer.json"]},
        "notes": [
            "prompt_ids are exactly the tokens fed: the tokenizer adds no bos.",
            "ids end with eos_token_id when it came within max_tokens; text leaves it out.",
            "margins: top-1 minus top-2 logit for every id of ids, the eos included.",
            "The prompt is fed in one call, then one token at a time, on the CPU.",
            "first_logits: the float32 row after the first prompt.",
        ],
        "max_tokens": MAX_TOKENS,
        "eos_token_id": eos,
        "eos_included": True,
        "prompts": prompts,
        "first_logits": [float(f"{x:.6g}") for x in logits],
    }
    text = json.dumps(result, indent=1, ensure_ascii=False)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(on_one_line(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
