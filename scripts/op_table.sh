#!/usr/bin/env bash
# Measures every op and writes README's table of them, and assets/ops.svg, anew: device bytes from the
# simulator, latencies from `mlx-primitives ops`. Leave the machine alone meanwhile.
#
#   scripts/op_table.sh [--quick]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

traffic=$(mktemp)
trap 'rm -f "$traffic" "$traffic.md"' EXIT
echo "op_table: counting bytes in the simulator" >&2
MLX_PRIMITIVES_TRAFFIC=$traffic MLX_PRIMITIVES_SIMULATE_METAL=forward \
  cargo test --quiet --test suite -- --ignored ::moves_ >&2
echo "op_table: measuring latencies" >&2
cargo run --quiet --release -- ops "$@" --plot assets/ops.svg --table "$traffic" >"$traffic.md"
python3 - "$traffic.md" <<'PYTHON'
import pathlib, re, sys

table = pathlib.Path(sys.argv[1]).read_text()
readme = pathlib.Path("README.md")
text, count = re.subn(
    r"(<!-- made by scripts/op_table.sh -->\n).*?(<!-- end -->)",
    lambda match: match[1] + table + match[2],
    readme.read_text(),
    flags=re.S,
)
assert count == 1, "README.md has lost the markers of its table"
readme.write_text(text)
PYTHON
