#!/usr/bin/env python3
"""Compares a LoRA step with those of mlx-lm and PyTorch on the CPU, on the same random weights.

    benches/peers/train.py   # f32 and 4 bits, small
    benches/peers/train.py --config benches/peers/llama-1b.json --columns 512 # 4 bits, 1.1 B

A round runs each program once, in a separate process: first a step that does not count, and then
--steps others. PyTorch has no packed weights, so it always trains with float weights. The table has
the medians of the rounds. Needs mlx-lm and numpy in the Python that runs this, and torch for the
row of PyTorch.
"""

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
DEMO = ROOT / "crates/llama/assets/demo"
SMALL = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "intermediate_size": 1408,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "vocab_size": 4096, "tie_word_embeddings": False,
}
RANK, SCALE, RATE = 8, 20.0, 1e-4


def write_models(config, dtype, bits, folder):
    """Writes a model with random weights and the demo's tokenizer. If `bits` is not 0, also writes
    the model with packed weights."""
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten, tree_map
    from mlx_lm.models.llama import Model, ModelArgs

    mx.set_default_device(mx.cpu)
    model = Model(ModelArgs.from_dict(config))
    of = getattr(mx, dtype)
    model.update(tree_map(lambda a: (0.02 * mx.random.normal(a.shape)).astype(of), model.parameters()))
    for name, quantization in [("plain", None), ("packed", {"group_size": 64, "bits": bits})]:
        if quantization and not bits:
            continue
        if quantization:
            nn.quantize(model, **quantization)
        to = folder / name
        to.mkdir()
        mx.save_safetensors(str(to / "model.safetensors"), dict(tree_flatten(model.parameters())))
        described = {**config, **({"quantization": quantization} if quantization else {})}
        (to / "config.json").write_text(json.dumps(described))
        for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]:
            shutil.copy(DEMO / file, to)


def ours(options, model, folder):
    """Returns our seconds for each training step, and for each forward pass that computes the
    losses."""
    text = "Log of the ship: wind from the north. " * options.columns
    (folder / "texts").mkdir(exist_ok=True)
    for name in ["train", "valid"]:
        lines = (json.dumps({"text": text}) + "\n") * options.rows
        (folder / "texts" / f"{name}.jsonl").write_text(lines)
    parameters = {"rank": RANK, "scale": SCALE, "dropout": 0.0}
    settings = {
        "train": True, "iters": 1 + options.steps, "steps_per_report": 1, "steps_per_eval": 1,
        "val_batches": 1, "save_every": 10**6, "learning_rate": RATE, "num_layers": -1,
        "batch_size": options.rows, "max_seq_length": options.columns + 1,
        "lora_parameters": parameters,
    }
    (folder / "lora.json").write_text(json.dumps(settings))
    command = [options.ours, "lora", "-q", "--json", "-c", folder / "lora.json", "--model", model]
    command += ["--data", folder / "texts", "--adapter-path", folder / "adapters"]
    lines = run([str(word) for word in command], options).splitlines()
    reports = [json.loads(line) for line in lines]
    steps = [1 / it["iterations_per_second"] for it in reports if "train_loss" in it]
    return steps[1:], [it["val_time"] for it in reports if "val_loss" in it][1:]


def mlx_lm(options, model):
    """Trains with mlx-lm's model, loss and layers, and prints the seconds of each step."""
    import mlx.core as mx
    import mlx.nn as nn
    import mlx.optimizers as optim
    import numpy as np
    from mlx_lm import load
    from mlx_lm.tuner.trainer import default_loss
    from mlx_lm.tuner.utils import linear_to_lora_layers

    mx.set_default_device(mx.cpu)
    model, _ = load(model)
    model.freeze()
    parameters = {"rank": RANK, "scale": SCALE, "dropout": 0.0}
    linear_to_lora_layers(model, len(model.layers), parameters)
    model.train()
    optimizer = optim.Adam(learning_rate=RATE)
    slopes = nn.value_and_grad(model, default_loss)
    tokens = mx.array(np.arange(options.rows * (options.columns + 1)).reshape(options.rows, -1) % 500)
    lengths = mx.array([[0, options.columns]] * options.rows)

    def step():
        (loss, _), gradients = slopes(model, tokens, lengths)
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state, loss)

    print(json.dumps(timed(step, options.steps)))


def pytorch(options, model):
    """Trains a PyTorch version of the model, and prints the seconds of each step."""
    import torch
    import torch.nn.functional as F
    from safetensors.torch import load_file

    torch.set_num_threads(options.threads)
    config = json.loads((Path(model) / "config.json").read_text())
    weights = load_file(Path(model) / "model.safetensors")
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    size, hidden, eps = config["head_dim"], config["hidden_size"], config["rms_norm_eps"]
    dtype = weights["model.norm.weight"].dtype
    angles = torch.arange(0, size, 2) / size
    angles = torch.arange(options.columns)[:, None] / config["rope_theta"] ** angles
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    updates = {}
    for name, w in weights.items():
        if "_proj" in name:
            a = torch.empty(RANK, w.shape[1], dtype=dtype).uniform_(-1, 1) / w.shape[1] ** 0.5
            updates[name] = (a.requires_grad_(), torch.zeros(w.shape[0], RANK, dtype=dtype, requires_grad=True))
    optimizer = torch.optim.Adam([half for pair in updates.values() for half in pair], lr=RATE)

    def project(x, name):
        a, b = updates[name]
        return F.linear(x, weights[name]) + SCALE * F.linear(F.linear(x, a), b)

    def turned(x):
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def layer(h, path):
        def heads_of(name, count):
            x = project(x_normed, f"{path}.self_attn.{name}_proj.weight")
            return x.unflatten(-1, (count, size)).transpose(1, 2)

        x_normed = F.rms_norm(h, (hidden,), weights[f"{path}.input_layernorm.weight"], eps)
        q, k, v = turned(heads_of("q", heads)), turned(heads_of("k", kv)), heads_of("v", kv)
        k, v = (it.repeat_interleave(heads // kv, 1) for it in (k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        h = h + project(attended, f"{path}.self_attn.o_proj.weight")
        x = F.rms_norm(h, (hidden,), weights[f"{path}.post_attention_layernorm.weight"], eps)
        inner = F.silu(project(x, f"{path}.mlp.gate_proj.weight")) * project(x, f"{path}.mlp.up_proj.weight")
        return h + project(inner, f"{path}.mlp.down_proj.weight")

    tokens = torch.arange(options.rows * (options.columns + 1)).reshape(options.rows, -1) % 500

    def step():
        optimizer.zero_grad()
        h = F.embedding(tokens[:, :-1], weights["model.embed_tokens.weight"])
        for at in range(config["num_hidden_layers"]):
            h = layer(h, f"model.layers.{at}")
        h = F.rms_norm(h, (hidden,), weights["model.norm.weight"], eps)
        logits = F.linear(h, weights.get("lm_head.weight", weights["model.embed_tokens.weight"]))
        F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    print(json.dumps(timed(step, options.steps)))


def timed(step, count):
    seconds = []
    for _ in range(1 + count):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


def run(command, options):
    environment = {**os.environ, "MLX_PRIMITIVES_THREADS": str(options.threads)}
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout


def compare(config, dtype, bits, options):
    columns = options.columns
    print(f"\n{config['hidden_size']} x {config['num_hidden_layers']}, {bits or dtype} "
          f"{'bits, bfloat16' if bits else ''}, {options.rows} x {columns} tokens, {options.threads} threads")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        write_models(config, dtype, bits, folder)
        model = folder / ("packed" if bits else "plain")
        peers = {"mlx-lm": ("mlx_lm", model), "PyTorch": ("pytorch", folder / "plain")}
        if importlib.util.find_spec("torch") is None:
            del peers["PyTorch"]
            print("PyTorch: not run, there is no torch in this Python")
        steps, passes = {"ours": [], **{name: [] for name in peers}}, []
        for _ in range(options.rounds):
            own, forward = ours(options, model, folder)
            steps["ours"].append(median(own))
            passes.append(median(forward))
            for name, (function, of) in peers.items():
                command = [sys.executable, __file__, "--peer", function, "--model", str(of)]
                for option in ["rows", "columns", "steps", "threads"]:
                    command += [f"--{option}", str(getattr(options, option))]
                steps[name].append(median(json.loads(run(command, options))))
    own = median(steps["ours"])
    for name, seconds in steps.items():
        taken = median(seconds)
        speed = options.rows * columns / taken
        print(f"{name:8} {1000 * taken:10.1f} ms {speed:9.0f} tokens/s {taken / own:7.2f} times ours")
    print(f"our forward pass {1000 * median(passes):.1f} ms, a step {own / median(passes):.2f} of it")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="a config.json; the small model without")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"])
    parser.add_argument("--bits", type=int, choices=[0, 4, 8])
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--columns", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--ours", default=ROOT / "target/release/mlx-primitives")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer:
        return {"mlx_lm": mlx_lm, "pytorch": pytorch}[options.peer](options, options.model)
    config = json.loads(options.config.read_text()) if options.config else SMALL
    cases = [("float32", 0), ("bfloat16", 4)]
    if options.config or options.bits is not None or options.dtype:
        bits = options.bits if options.bits is not None else 0 if options.dtype else 4
        cases = [(options.dtype or "bfloat16", bits)]
    for dtype, bits in cases:
        compare(config, dtype, bits, options)


if __name__ == "__main__":
    main()
