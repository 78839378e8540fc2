#!/usr/bin/env bash
# Follows docs/write-your-own-primitive.md: writes the files that it shows and runs its tests.
#
#   scripts/follow_guide.sh [FOLDER]
#
# The crate goes to FOLDER, or to a new one; what examples/own_primitive has built is used again.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:-$(mktemp -d)}
package=$folder/square-plus
mkdir -p "$package"

# A file is a fenced block after a comment with its name.
python3 - "$root/docs/write-your-own-primitive.md" "$package" <<'EXTRACT'
import pathlib, re, sys

guide, package = (pathlib.Path(argument) for argument in sys.argv[1:])
files = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", guide.read_text(), re.DOTALL)
assert len(files) == 6, [name for name, _ in files]
for name, text in files:
    path = package / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
EXTRACT
grep -q "cargo test -- --nocapture" "$root/docs/write-your-own-primitive.md"
sed -i.shown "s#\"\.\./mlx-primitives#\"$root#" "$package/Cargo.toml"

cd "$package"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/examples/own_primitive/target}
cargo test -- --nocapture
