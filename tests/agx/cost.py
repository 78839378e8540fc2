"""The costs of a Metal source's kernels as a line of JSON, for `scripts/agx.sh --file`."""

import json
import sys
import tempfile
from pathlib import Path

from table import Tools, kernel_entry


def costs(tools, source, options):
    """By the names of kernels what `table.json` has of each."""
    head, entries = tools.rewrite(source, options)
    text = head + "\n".join(entries.values()) + "\n"
    return {row["kernel"]: kernel_entry(row) for row in tools.statistics("file", text, [], tools.from_source)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="agx-") as folder:
        print(json.dumps(costs(Tools(folder), Path(sys.argv[1]), sys.argv[2:])))
