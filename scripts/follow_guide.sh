#!/usr/bin/env bash
# Follows docs/write-your-own-primitive.md: runs its commands and writes its files, in their order.
#
#   scripts/follow_guide.sh [FOLDER]
#
# FOLDER contains a clone of this repository called mlx-primitives; the guide's crate is created there.
# Without FOLDER, the crate is created in a new folder, refers to this clone, and reuses the builds of
# examples/own_primitive.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
clone=../mlx-primitives
if [ $# = 0 ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  ln -s "$root" "$folder/mlx-primitives"
  clone=$root
  export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/examples/own_primitive/target}
else
  folder=$(cd "$1" && pwd)
  [ -d "$folder/mlx-primitives" ] || { echo "$folder holds no clone called mlx-primitives" && exit 1; }
fi
steps=$folder/steps.sh

# In the guide, a file is a fenced block after a comment with its name, and commands are `sh`
# blocks.
python3 - "$root/docs/write-your-own-primitive.md" "$clone" >"$steps" <<'EXTRACT'
import pathlib, re, sys

guide, clone = pathlib.Path(sys.argv[1]).read_text(), sys.argv[2]
block = re.compile(r"(?:<!-- file: (\S+) -->\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
files = commands = 0
print("set -euxo pipefail")
for name, language, text in block.findall(guide):
    if name:
        text = text.replace("../mlx-primitives", clone) if name == "Cargo.toml" else text
        print(f"cat >{name} <<'END_OF_FILE'\n{text}END_OF_FILE")
        files += 1
    elif language == "sh":
        print(text, end="")
        commands += text.count("\n")
assert (files, commands) == (7, 6), (files, commands)
EXTRACT

cd "$folder"
bash "$steps" | tee "$folder/steps.log"
printed=$(sed -n 's/^prints `\(array.*\)`\.$/\1/p' "$root/docs/write-your-own-primitive.md")
[ -n "$printed" ] && grep -qF "$printed" "$folder/steps.log"
grep -qE "simulated metal|gpu" "$folder/steps.log"
echo "follow_guide: every step ran"
