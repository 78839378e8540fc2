"""Writes the GGUF file of a Llama with random weights, for the peers that read one."""

import json
import os
import random
import struct
from pathlib import Path

ALIGNMENT = 32
# For each format: ggml's type number, llama.cpp's file type, and the number of weights and bytes in
# a block.
FORMATS = {
    "F32": (0, 0, 1, 4),
    "F16": (1, 1, 1, 2),
    "Q4_0": (2, 2, 32, 18),
    "Q4_1": (3, 3, 32, 20),
    "Q8_0": (8, 7, 32, 34),
}
# The number of blocks in the random tile. A matrix repeats the tile, and its rows differ because
# this number is prime.
TILE_BLOCKS = 65537


class Shape:
    """The shape of a model, from mlx-lm's config.json."""

    def __init__(self, path):
        config = json.loads(Path(path).read_text())
        self.path = Path(path).resolve()
        self.hidden = config["hidden_size"]
        self.layers = config["num_hidden_layers"]
        self.feed_forward = config["intermediate_size"]
        self.heads = config["num_attention_heads"]
        self.kv_heads = config.get("num_key_value_heads", self.heads)
        self.head = config.get("head_dim", self.hidden // self.heads)
        self.vocabulary = config["vocab_size"]
        self.positions = config.get("max_position_embeddings", 8192)
        self.epsilon = config["rms_norm_eps"]
        self.rope_base = config.get("rope_theta", 10000.0)
        if config["model_type"] != "llama" or config.get("tie_word_embeddings", True):
            raise ValueError(f"{path}: expected a llama with tie_word_embeddings false")

    def matrices(self):
        """Yields the name, rows and columns of every matrix except the embedding."""
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        for layer in range(self.layers):
            block = f"blk.{layer}"
            yield f"{block}.attn_q.weight", queries, self.hidden
            yield f"{block}.attn_k.weight", keys, self.hidden
            yield f"{block}.attn_v.weight", keys, self.hidden
            yield f"{block}.attn_output.weight", self.hidden, queries
            yield f"{block}.ffn_gate.weight", self.feed_forward, self.hidden
            yield f"{block}.ffn_up.weight", self.feed_forward, self.hidden
            yield f"{block}.ffn_down.weight", self.hidden, self.feed_forward
        yield "output.weight", self.vocabulary, self.hidden

    def norms(self):
        for layer in range(self.layers):
            yield f"blk.{layer}.attn_norm.weight"
            yield f"blk.{layer}.ffn_norm.weight"
        yield "output_norm.weight"

    def read_a_token(self):
        """Returns the number of weights that decoding a token reads: all matrices except the
        embedding."""
        return sum(rows * columns for _, rows, columns in self.matrices())

    def parameters(self):
        norms = self.hidden * sum(1 for _ in self.norms())
        return self.read_a_token() + self.vocabulary * self.hidden + norms


def tile(format, columns):
    """Returns random blocks whose weights have a standard deviation near 1/sqrt(columns)."""
    draw = random.Random(0)
    spread = columns**-0.5
    if format == "F16":
        return struct.pack(f"<{TILE_BLOCKS}e", *(draw.gauss(0, spread) for _ in range(TILE_BLOCKS)))
    # A uniform draw from 16 or 256 integers has a standard deviation of 4.6 or 74.
    scale = struct.pack("<e", spread / (74 if format == "Q8_0" else 4.6))
    if format == "Q4_1":
        scale += struct.pack("<e", -7.5 * spread / 4.6)
    numbers = FORMATS[format][3] - len(scale)
    return b"".join(scale + draw.randbytes(numbers) for _ in range(TILE_BLOCKS))


def matrix(format, rows, columns, tiles):
    """The bytes of a matrix."""
    _, _, block, size = FORMATS[format]
    if columns % block:
        raise ValueError(f"{format} needs rows of a multiple of {block} weights, not {columns}")
    if (format, columns) not in tiles:
        tiles[format, columns] = tile(format, columns)
    bytes_ = rows * columns // block * size
    repeated = tiles[format, columns]
    return (repeated * (bytes_ // len(repeated) + 1))[:bytes_]


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def metadata(shape, format):
    integer = lambda value: struct.pack("<II", 4, value)
    real = lambda value: struct.pack("<If", 6, value)
    word = lambda value: struct.pack("<I", 8) + string(value)
    return {
        "general.architecture": word("llama"),
        "general.name": word("random"),
        "general.file_type": integer(FORMATS[format][1]),
        "llama.vocab_size": integer(shape.vocabulary),
        "llama.context_length": integer(shape.positions),
        "llama.embedding_length": integer(shape.hidden),
        "llama.block_count": integer(shape.layers),
        "llama.feed_forward_length": integer(shape.feed_forward),
        "llama.attention.head_count": integer(shape.heads),
        "llama.attention.head_count_kv": integer(shape.kv_heads),
        "llama.attention.key_length": integer(shape.head),
        "llama.attention.value_length": integer(shape.head),
        "llama.attention.layer_norm_rms_epsilon": real(shape.epsilon),
        "llama.rope.dimension_count": integer(shape.head),
        "llama.rope.freq_base": real(shape.rope_base),
        "tokenizer.ggml.model": word("no_vocab"),
    }


def write(path, shape, format):
    """Writes the model in one format; norms are float32, as llama.cpp keeps them."""
    tensors = [("token_embd.weight", format, shape.vocabulary, shape.hidden)]
    tensors += [(name, format, rows, columns) for name, rows, columns in shape.matrices()]
    tensors += [(name, "F32", 1, shape.hidden) for name in shape.norms()]
    fields = metadata(shape, format)

    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
    header += b"".join(string(key) + value for key, value in fields.items())
    offset = 0
    for name, kind, rows, columns in tensors:
        number, _, block, size = FORMATS[kind]
        sides = [columns] if kind == "F32" else [columns, rows]
        header += string(name) + struct.pack("<I", len(sides))
        header += struct.pack(f"<{len(sides)}Q", *sides) + struct.pack("<IQ", number, offset)
        offset += padded(rows * columns // block * size)

    tiles = {}
    unfinished = Path(f"{path}.part")
    with open(unfinished, "wb") as out:
        out.write(header + bytes(padded(len(header)) - len(header)))
        for _, kind, rows, columns in tensors:
            if kind == "F32":
                data = struct.pack("<f", 1.0) * columns
            else:
                data = matrix(kind, rows, columns, tiles)
            out.write(data + bytes(padded(len(data)) - len(data)))
    os.replace(unfinished, path)


def padded(length):
    return -(-length // ALIGNMENT) * ALIGNMENT
