"""Writes a checkpoint of zeros, with the sizes in a folder's config.json. The file is sparse, so it takes no
space on disk."""

import json, sys
folder = sys.argv[1]
shape = json.load(open(f"{folder}/config.json"))
hidden, inner, vocabulary = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
queries, keys = (shape["head_dim"] * shape[f"num_{of}_heads"] for of in ("attention", "key_value"))
layer = {"self_attn.q_proj": [queries, hidden], "self_attn.k_proj": [keys, hidden],
         "self_attn.v_proj": [keys, hidden], "self_attn.o_proj": [hidden, queries],
         "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden], "mlp.down_proj": [hidden, inner],
         "input_layernorm": [1, hidden], "post_attention_layernorm": [1, hidden]}
tensors = {"model.embed_tokens": [vocabulary, hidden], "lm_head": [vocabulary, hidden], "model.norm": [1, hidden]}
for number in range(shape["num_hidden_layers"]):
    tensors |= {f"model.layers.{number}.{name}": of for name, of in layer.items()}
header, end = {}, 0
for name, (rows, columns) in tensors.items():
    start, end = end, end + 2 * rows * columns
    of = [columns] if "norm" in name else [rows, columns]
    header[f"{name}.weight"] = {"dtype": "BF16", "shape": of, "data_offsets": [start, end]}
header = json.dumps(header).encode()
with open(f"{folder}/model.safetensors", "wb") as file:
    file.write(len(header).to_bytes(8, "little") + header)
    file.truncate(8 + len(header) + end)
