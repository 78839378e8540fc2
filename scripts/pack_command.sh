#!/usr/bin/env bash
# Packs the command with the libraries of MLX that it needs, for machines without Rust, Python or
# MLX: bin/mlx-primitives, lib/ and the licenses. The command runs wherever the archive is unpacked.
#
#   scripts/pack_command.sh FILE.tar.gz
set -euo pipefail
file=$(realpath -m "${1:?usage: scripts/pack_command.sh FILE.tar.gz}" 2>/dev/null || echo "$PWD/$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
site=.mlx/python
[ -d "$site/mlx/lib" ] || { echo "pack_command: error: run scripts/build_metal.sh without MLX_DIR first" >&2 && exit 1; }

case $(uname -s) in
  Darwin) own=@executable_path ;;
  *) own='$ORIGIN' ;;
esac
cargo rustc --release --locked -p mlx-primitives-cli --bin mlx-primitives -- -C "link-arg=-Wl,-rpath,$own/../lib/mlx/lib" \
  -C strip=symbols
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
name=$(basename "$file" .tar.gz)
mkdir -p "$folder/$name"/{bin,lib/mlx} "$(dirname "$file")"
cp target/release/mlx-primitives "$folder/$name/bin/"
cp -R "$site/mlx/lib" "$folder/$name/lib/mlx/lib"
for libraries in "$site"/mlx_*.libs; do [ ! -d "$libraries" ] || cp -R "$libraries" "$folder/$name/lib/"; done
[ ! -f .mlx/mlx_primitives.metallib ] || cp .mlx/mlx_primitives.metallib "$folder/$name/bin/"
cp LICENSE-MIT LICENSE-APACHE "$folder/$name/"
"$folder/$name/bin/mlx-primitives" generate "Once upon a time" --max-tokens 8 >&2
tar -czf "$file" -C "$folder" "$name"
echo "pack_command: $(du -h "$file" | cut -f1) in $file" >&2
