#!/bin/sh
# Rebuilds crates/llama/assets/demo and crates/cli/assets/greedy.json from this directory alone.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
venv=${DEMO_VENV:-$root/target/demo_model/venv}

export PYTHONDONTWRITEBYTECODE=1
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --requirement "$here/requirements.txt"
"$venv/bin/python" "$here/train.py" --out "$root/crates/llama/assets/demo"
"$venv/bin/python" "$here/reference.py" --model "$root/crates/llama/assets/demo" --out "$root/crates/cli/assets/greedy.json"
"$venv/bin/python" "$here/sample.py" --model "$root/crates/llama/assets/demo"
