#!/usr/bin/env bash
# Measures every op and rewrites the tables of README and docs/ops.md, and assets/ops.svg: device bytes from the
# simulator, latencies from `mlx-primitives ops`. Run nothing else on the machine meanwhile.
#
#   scripts/op_table.sh [--quick]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

traffic=$(mktemp)
trap 'rm -f "$traffic" "$traffic.md"' EXIT
echo "op_table: counting bytes in the simulator" >&2
MLX_PRIMITIVES_TRAFFIC=$traffic MLX_PRIMITIVES_SIMULATE_METAL=forward \
  cargo test --quiet --test core -- --ignored ::moves_ >&2
echo "op_table: measuring latencies" >&2
cargo run --quiet --release -- ops "$@" --plot assets/ops.svg --table "$traffic" >"$traffic.md"
python3 - "$traffic.md" <<'PYTHON'
import pathlib, re, sys

# The README shows these ops, docs/ops.md all.
SHOWN = ["rms_norm", "softmax", "rope", "attention", "quantized_linear"]

table = pathlib.Path(sys.argv[1]).read_text()
head, rows = table.splitlines(True)[:2], table.splitlines(True)[2:]
shown = [row for op in SHOWN for row in rows if row.startswith(f"| `{op}` |")]
assert len(shown) == len(SHOWN), "an op that the README shows is not in the table"
for name, text in [("README.md", "".join(head + shown)), ("docs/ops.md", table)]:
    page = pathlib.Path(name)
    written, count = re.subn(
        r"(<!-- made by scripts/op_table.sh -->\n).*?(<!-- end -->)",
        lambda match: match[1] + text + match[2],
        page.read_text(),
        flags=re.S,
    )
    assert count == 1, f"{name} has lost the markers of its table"
    page.write_text(written)
PYTHON
