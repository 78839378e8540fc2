"""Trains with `mlx-primitives lora` and with mlx_lm.lora, and compares their losses. Both start from
the same adapters and use the same data. The cases cover float and quantized base models, LoRA, DoRA
and full fine-tuning, the formats of the data, optimizers and learning-rate schedules. At the end,
each program evaluates the adapters that the other program wrote.

pip install "mlx[cpu]" mlx-lm
cargo build --release && python scripts/compare_training.py [--model DIR] [--binary FILE]
"""

import argparse
import contextlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import mlx.core as mx
from mlx_lm import load, lora
from mlx_lm.tuner.callbacks import TrainingCallback
from mlx_lm.tuner.datasets import CacheDataset, load_dataset
from mlx_lm.tuner.trainer import evaluate

ROOT = Path(__file__).parent.parent
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
SEAS = ["calm", "rough", "heavy"]
# The largest accepted relative difference between the losses of the two programs. In bfloat16, the
# losses of mlx-lm differ by 2.3 % from its losses in float32.
BOUNDS = {"float32": 0.01, "packed": 0.01, "bfloat16": 0.03}
# At this learning rate, mlx-lm's losses do not depend on how sums are rounded.
COMMON = {
    "train": True, "iters": 20, "num_layers": 4, "learning_rate": 1e-4, "steps_per_report": 1,
    "steps_per_eval": 5, "batch_size": 4, "val_batches": -1,
}
SGD = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}
COSINE = {"name": "cosine_decay", "warmup": 3, "warmup_init": 1e-5, "arguments": [3e-4, 12, 1e-5]}
KEYS = {"rank": 4, "scale": 10.0, "dropout": 0.0, "keys": ["self_attn.q_proj", "mlp.down_proj"]}
CASES = [
    ("float32", "text", {}),
    ("packed", "text", {}),
    ("bfloat16", "text", {}),
    ("float32", "completion", {"mask_prompt": True}),
    ("float32", "messages", {"mask_prompt": True}),
    ("float32", "messages", {}),
    ("float32", "text", {"optimizer": "adamw", "num_layers": 2}),
    ("float32", "text", {"optimizer": "sgd", "optimizer_config": {"sgd": SGD}, "learning_rate": 1e-3}),
    ("float32", "text", {"optimizer": "adafactor"}),
    ("float32", "text", {"optimizer_config": {"adam": {"bias_correction": True}},
                         "grad_accumulation_steps": 2, "grad_checkpoint": True}),
    ("float32", "text", {"lr_schedule": COSINE}),
    ("float32", "text", {"max_seq_length": 40}),
    ("float32", "text", {"fine_tune_type": "full", "num_layers": 2}),
    ("float32", "text", {"lora_parameters": KEYS}),
    ("float32", "text", {"fine_tune_type": "dora"}),
    ("packed", "text", {"fine_tune_type": "dora"}),
    ("bfloat16", "text", {"fine_tune_type": "dora"}),
    ("float32", "text", {"fine_tune_type": "dora", "lora_parameters": KEYS, "grad_checkpoint": True}),
]


def text(n):
    return {"text": f"Log of the ship {n}. The wind is north and the sea {SEAS[n % 3]}" + " and cold" * 3 * n}


def completion(n):
    return {"prompt": f"How is the sea on day {n}?", "completion": f"It is {SEAS[n % 3]}."}


def messages(n):
    said = [f"Day {n}?", f"{SEAS[n % 3]} sea.", "And the wind?", "North." * (1 + n % 2)]
    roles = ["user", "assistant"] * 2
    return {"messages": [{"role": role, "content": it} for role, it in zip(roles, said)]}


class Losses(TrainingCallback):
    def __init__(self):
        self.found = []

    def on_train_loss_report(self, train_info):
        self.found.append(train_info["train_loss"])

    def on_val_loss_report(self, val_info):
        self.found.append(val_info["val_loss"])


def prepare(binary, model, folder):
    """Writes the base models and the data. The data is one batch, since each program orders batches differently."""
    shutil.copytree(model, folder / "float32")
    config = folder / "float32" / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": TEMPLATE}))
    subprocess.run([binary, "quantize", "--model", folder / "float32", "--output", folder / "packed",
                    "--group-size", "32", "--json"], check=True, stdout=subprocess.DEVNULL)
    shutil.copytree(folder / "float32", folder / "bfloat16")
    file = str(folder / "bfloat16" / "model.safetensors")
    halves = {name: array.astype(mx.bfloat16) for name, array in mx.load(file).items()}
    mx.eval(halves)
    mx.save_safetensors(file, halves, {"format": "pt"})
    for make in [text, completion, messages]:
        (folder / make.__name__).mkdir()
        lines = "".join(json.dumps(make(n)) + "\n" for n in range(COMMON["batch_size"]))
        for name in ["train", "valid", "test"]:
            (folder / make.__name__ / f"{name}.jsonl").write_text(lines)


def ours(binary, base, data, config, adapters, *flags):
    """Runs `mlx-primitives lora` and returns its reports. Writes the options to a file beside the adapters."""
    path = Path(f"{adapters}.json")
    path.write_text(json.dumps(config))
    command = [binary, "lora", "-q", "--json", "-c", path, "--model", base, "--data", data]
    command += ["--adapter-path", adapters, *flags]
    result = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in result.stdout.splitlines()]


def compare(binary, folder, number, base, layout, options):
    base, data = folder / base, folder / layout
    config, first, mine = {**COMMON, **options}, folder / f"first{number}", folder / f"ours{number}"
    still = {name: config[name] for name in config if not name.startswith(("lr_", "optimizer"))}
    ours(binary, base, data, {**still, "iters": 1, "learning_rate": 0.0}, first)
    adapters = first / "adapters.safetensors"
    *reports, tested = ours(binary, base, data, config, mine, "--test", "--resume-adapter-file", adapters)
    found = [report.get("train_loss", report.get("val_loss")) for report in reports]

    args = {**lora.CONFIG_DEFAULTS, **config, "resume_adapter_file": str(adapters), "data": str(data)}
    args["adapter_path"], losses = str(folder / f"theirs{number}"), Losses()
    args = types.SimpleNamespace(**args)
    model, tokenizer = load(str(base))
    train, valid, test = load_dataset(args, tokenizer)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        lora.train_model(args, model, train, valid, losses)
        judge, _ = load(str(base), adapter_path=str(mine))
        judged = evaluate(judge, CacheDataset(test), args.batch_size, -1, args.max_seq_length)
        theirs = evaluate(model, CacheDataset(test), args.batch_size, -1, args.max_seq_length)
    pairs = [*zip(found, losses.found), (tested["test_loss"], judged)]
    (tested,) = ours(binary, base, data, {**config, "train": False}, args.adapter_path, "--test")
    pairs.append((tested["test_loss"], theirs))
    worst = max(abs(a - b) / abs(b) for a, b in pairs)
    ok = worst < BOUNDS[base.name] and len(found) == len(losses.found) and found[-1] < found[0]
    print(f"{base.name}, {layout}, {options}: {found[0]:.4f} to {found[-1]:.4f}, {worst:.1e} apart")
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / "crates/llama/assets/demo")
    parser.add_argument("--binary", default=ROOT / "target/release/mlx-primitives")
    arguments = parser.parse_args()
    mx.set_default_device(mx.cpu)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        prepare(arguments.binary, arguments.model, folder)
        results = [compare(arguments.binary, folder, *case) for case in zip(range(99), *zip(*CASES))]
    print("the same" if all(results) else "NOT the same")
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
