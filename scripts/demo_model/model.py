"""The Llama forward pass in JAX, on parameters with their Hugging Face names."""

import jax
import jax.numpy as jnp
import numpy as np

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_traditional": False,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "torch_dtype": "float32",
}


def init(seed, c=CONFIG):
    rng = np.random.default_rng(seed)
    hidden, inner = c["hidden_size"], c["intermediate_size"]
    q_size = c["num_attention_heads"] * c["head_dim"]
    kv_size = c["num_key_value_heads"] * c["head_dim"]

    def normal(rows, columns, std):
        return rng.normal(0.0, std, (rows, columns)).astype(np.float32)

    params = {"model.embed_tokens.weight": normal(c["vocab_size"], hidden, 0.02)}
    # The two projections of each layer that write to the residual stream start with smaller
    # weights.
    residual = (2 * c["num_hidden_layers"]) ** -0.5
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        params[layer + "input_layernorm.weight"] = np.ones(hidden, np.float32)
        params[layer + "self_attn.q_proj.weight"] = normal(q_size, hidden, hidden**-0.5)
        params[layer + "self_attn.k_proj.weight"] = normal(kv_size, hidden, hidden**-0.5)
        params[layer + "self_attn.v_proj.weight"] = normal(kv_size, hidden, hidden**-0.5)
        params[layer + "self_attn.o_proj.weight"] = normal(hidden, q_size, residual * q_size**-0.5)
        params[layer + "post_attention_layernorm.weight"] = np.ones(hidden, np.float32)
        params[layer + "mlp.gate_proj.weight"] = normal(inner, hidden, hidden**-0.5)
        params[layer + "mlp.up_proj.weight"] = normal(inner, hidden, hidden**-0.5)
        params[layer + "mlp.down_proj.weight"] = normal(hidden, inner, residual * inner**-0.5)
    params["model.norm.weight"] = np.ones(hidden, np.float32)
    return {name: jnp.asarray(value) for name, value in params.items()}


def rms_norm(x, weight, eps):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rope(x, theta):
    """Rotates pairs: element i of a head's first and of its second half. x is [batch, time, head, dim]."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] * theta ** (-np.arange(half) / half)
    cos = jnp.asarray(np.cos(angles), x.dtype)[:, None, :]
    sin = jnp.asarray(np.sin(angles), x.dtype)[:, None, :]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def attention(p, layer, x, c):
    batch, time, _ = x.shape
    kv_heads, dim = c["num_key_value_heads"], c["head_dim"]
    group = c["num_attention_heads"] // kv_heads

    def heads(name):
        y = x @ p[layer + f"self_attn.{name}.weight"].T
        return y.reshape(batch, time, -1, dim)

    # Query head h reads key/value head h // group.
    q = rope(heads("q_proj"), c["rope_theta"]).reshape(batch, time, kv_heads, group, dim)
    k = rope(heads("k_proj"), c["rope_theta"])
    scores = jnp.einsum("btkgd,bskd->bkgts", q, k) * dim**-0.5
    scores = jnp.where(np.tri(time, dtype=bool), scores, -1e30)
    mixed = jnp.einsum("bkgts,bskd->btkgd", jax.nn.softmax(scores), heads("v_proj"))
    return mixed.reshape(batch, time, -1) @ p[layer + "self_attn.o_proj.weight"].T


def forward(p, tokens, c=CONFIG):
    """Returns logits for every position of `tokens` [batch, time]."""
    eps = c["rms_norm_eps"]
    x = p["model.embed_tokens.weight"][tokens]
    for i in range(c["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        x = x + attention(p, layer, rms_norm(x, p[layer + "input_layernorm.weight"], eps), c)
        y = rms_norm(x, p[layer + "post_attention_layernorm.weight"], eps)
        gate = jax.nn.silu(y @ p[layer + "mlp.gate_proj.weight"].T)
        x = x + (gate * (y @ p[layer + "mlp.up_proj.weight"].T)) @ p[layer + "mlp.down_proj.weight"].T
    return rms_norm(x, p["model.norm.weight"], eps) @ p["model.embed_tokens.weight"].T
