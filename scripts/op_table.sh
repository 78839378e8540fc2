#!/usr/bin/env bash
# Measures every op and rewrites the table of docs/ops.md: device bytes from the simulator,
# latencies from `mlx-primitives ops`. Run nothing else on the machine meanwhile. It takes about a quarter of an hour;
# with --quick, two minutes, but the table lacks the ops for which the time is too short.
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
cargo run --quiet --release -- ops "$@" --table "$traffic" >"$traffic.md"
python3 - "$traffic.md" <<'PYTHON'
import pathlib, re, sys

table, page = pathlib.Path(sys.argv[1]).read_text(), pathlib.Path("docs/ops.md")
written, count = re.subn(
    r"(<!-- made by scripts/op_table.sh -->\n).*?(<!-- end -->)",
    lambda match: match[1] + table + match[2],
    page.read_text(),
    flags=re.S,
)
assert count == 1, f"{page} has lost the markers of its table"
page.write_text(written)
PYTHON
