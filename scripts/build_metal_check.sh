#!/usr/bin/env bash
# Builds the Python package of metal-check as dist/metal_check-*.whl.
#
#   scripts/build_metal_check.sh [--dev] [TARGET...]
#
# A TARGET is x86_64-unknown-linux-gnu or aarch64-unknown-linux-gnu. The default is this machine's.
# --dev builds with Cargo's profile `dev`. The command is then larger and slower, and needs a glibc
# as new as this machine's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
maturin=$PWD/.mlx/maturin
version=1.16.0
if ! [ -d "$maturin/maturin-$version.dist-info" ]; then
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --upgrade --target "$maturin" \
    "maturin==$version"
fi
build=(env PYTHONPATH="$maturin" "$maturin/bin/maturin" build --locked --manifest-path crates/metal-check/Cargo.toml --out dist)
rm -f dist/metal_check-*.whl
if [ "${1:-}" = --dev ]; then
  exec "${build[@]}" --profile dev
fi
# With zig, the command needs only glibc 2.28, which distributions from 2018 on have. glibc has
# memfd_create, which the command calls, from 2.27 on.
scripts/build_metal.sh --simulator
build+=(--release --zig --compatibility manylinux_2_28)
[ "$#" != 0 ] || set -- "$(uname -m)-unknown-linux-gnu"
for target in "$@"; do
  rustup target add "$target" >/dev/null 2>&1 || true # of a Rust without rustup it is there, or cargo says so
  PATH=$PWD/.mlx/python/ziglang:$PATH "${build[@]}" --target "$target"
done
