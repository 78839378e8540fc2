"""Trains the demo model on generated stories and writes it to a directory in the mlx-lm layout."""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from safetensors.numpy import save_file

import model
import text
import tokenizer as bpe

SEED = 7
WINDOW = 256
HELD_OUT = 500


class Windows:
    """Stories joined by the end-of-text token, cut into training windows."""

    def __init__(self, documents, eos):
        self.stream = np.concatenate([np.array(d + [eos], np.int32) for d in documents])
        starts = np.cumsum([0] + [len(d) + 1 for d in documents])[:-1]
        self.last = len(self.stream) - WINDOW - 1
        self.starts = starts[starts <= self.last]

    def sample(self, rng, batch):
        # Half of the windows begin at the start of a story, because a prompt begins at position 0
        # without a bos token. The others begin anywhere, so that other prompts work too.
        at = rng.integers(0, self.last + 1, batch)
        half = batch // 2
        at[:half] = rng.choice(self.starts, half)
        return self.cut(at)

    def cut(self, at):
        return np.stack([self.stream[i : i + WINDOW + 1] for i in at])

    def consecutive(self, batch):
        """Yields batches of consecutive windows, from the first token on. Drops an incomplete last batch."""
        at = np.arange(0, self.last + 1, WINDOW)
        for i in range(0, len(at) - batch + 1, batch):
            yield self.cut(at[i : i + batch])


def loss_fn(params, tokens):
    logits = model.forward(params, tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def decayed(params):
    """Selects the matrices for weight decay, but not the norms' gains."""
    return {name: value.ndim > 1 for name, value in params.items()}


def train(windows, held_out, steps, batch, peak):
    params = model.init(SEED)
    schedule = optax.warmup_cosine_decay_schedule(0.0, peak, min(100, steps // 10), steps, peak * 0.02)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(schedule, b1=0.9, b2=0.95, weight_decay=0.1, mask=decayed),
    )
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, tokens):
        loss, gradients = jax.value_and_grad(loss_fn)(params, tokens)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    evaluate = jax.jit(loss_fn)
    rng = np.random.default_rng(SEED)
    begin = time.time()
    for i in range(1, steps + 1):
        params, state, loss = step(params, state, jnp.asarray(windows.sample(rng, batch)))
        if i % 50 == 0 or i == steps:
            loss = float(loss)
            seconds = time.time() - begin
            print(f"step {i}/{steps} loss {loss:.4f} {i * batch * WINDOW / seconds:.0f} tokens/s", flush=True)
        if i % 500 == 0 or i == steps:
            losses = [float(evaluate(params, jnp.asarray(b))) for b in held_out.consecutive(batch)]
            held = float(np.mean(losses))
            print(f"held-out loss {held:.4f} perplexity {np.exp(held):.3f} "
                  f"after {time.time() - begin:.0f} s", flush=True)
    return params


def save(params, tokenizer, directory):
    directory.mkdir(parents=True, exist_ok=True)
    weights = {name: np.ascontiguousarray(value, np.float32) for name, value in params.items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    # save_file makes the file readable for its owner only.
    (directory / "model.safetensors").chmod(0o644)
    (directory / "config.json").write_text(json.dumps(model.CONFIG, indent=2) + "\n")
    generation = {"bos_token_id": model.CONFIG["bos_token_id"], "eos_token_id": model.CONFIG["eos_token_id"]}
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    bpe.save(tokenizer, directory, model.CONFIG["max_position_embeddings"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stories", type=int, default=60000)
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--peak", type=float, default=3e-3)
    args = parser.parse_args()

    texts = text.stories(args.stories + HELD_OUT, SEED)
    tokenizer = bpe.train(texts[HELD_OUT:], model.CONFIG["vocab_size"])
    assert tokenizer.token_to_id(bpe.EOS) == model.CONFIG["eos_token_id"]
    assert tokenizer.get_vocab_size() == model.CONFIG["vocab_size"]
    documents = [e.ids for e in tokenizer.encode_batch(texts)]
    lengths = [len(d) for d in documents]
    size = sum(len(t.encode()) for t in texts)
    print(f"{len(texts)} stories, {size / 1e6:.1f} MB, {sum(lengths) / 1e6:.2f} M tokens, "
          f"{np.mean(lengths):.0f} tokens a story (most {max(lengths)})", flush=True)
    windows = Windows(documents[HELD_OUT:], model.CONFIG["eos_token_id"])
    held_out = Windows(documents[:HELD_OUT], model.CONFIG["eos_token_id"])
    params = train(windows, held_out, args.steps, args.batch, args.peak)
    print(f"{sum(v.size for v in params.values())} parameters")
    save(params, tokenizer, args.out)


if __name__ == "__main__":
    main()
