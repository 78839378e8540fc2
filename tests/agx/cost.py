"""Prints the costs of the kernels of a Metal source as one line of JSON.

The command `scripts/agx.sh --file` runs this program.
"""

import json
import sys
import tempfile
from pathlib import Path

from table import Tools, kernel_entry


def costs(tools, source, options):
    """Returns for each kernel's name the entry that `table.json` would have."""
    head, entries = tools.rewrite(source, options)
    text = head + "\n".join(entries.values()) + "\n"
    return {row["kernel"]: kernel_entry(row) for row in tools.statistics("file", text, [], tools.from_source)}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="agx-") as folder:
        print(json.dumps(costs(Tools(folder), Path(sys.argv[1]), sys.argv[2:])))
