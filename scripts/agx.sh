#!/usr/bin/env bash
# Measures the kernels of metal/ as machine code for Apple's G13 (M1): registers, threads, spills,
# cycles. Compares them with MLX's kernels as Apple's front end compiles them.
# docs/metal-without-a-mac.md explains how.
#
#   scripts/agx.sh --table [WORD...]   prints the table, or the cases and kernels with a word in their name
#   scripts/agx.sh --check [--all]     fails if a kernel is worse than in tests/agx/table.json
#   scripts/agx.sh --update            writes tests/agx/table.json and docs/metal-table.md
#   scripts/agx.sh --file SOURCE [FOLDER | -DMACRO...]
#                                      prints costs of a user's kernels as JSON (metal-check --cost)
#
# If the tools are not available, --check says so and succeeds, unless --all is given.
set -euo pipefail
if [ "$(uname -s)-$(uname -m)" != Linux-x86_64 ]; then
  echo "agx: error: the table is made on Linux on x86-64; docs/metal-table.md is the committed one" >&2
  exit 1
fi
# shellcheck source=tests/cross_link/tools.sh
source "$(dirname "${BASH_SOURCE[0]}")/../tests/cross_link/tools.sh"
# shellcheck source=tests/agx/tools.sh
source "$root/tests/agx/tools.sh"
say() { printf '%s\n' "$me: $*" >&2; } # only the table goes to stdout

mode=${1:-} lenient=no
case "$*" in
  --table | "--table "* | --update | "--check --all") ;;
  --check) lenient=yes ;;
  "--file "*) ;;
  *) die "the options are --table [WORD...], --check [--all], --update and --file SOURCE" ;;
esac
[ "$mode" != --check ] || set -- --check

bring_agxstat
bring_clang
if [ "$mode" = --table ] || [ "$mode" = --update ]; then
  mlx_version=$(tr -d '[:space:]' <"$root/cmake/mlx_version.txt")
  wheel=$cross/mlx-$mlx_version-macos14.0
  bring_python "$wheel" --only-binary=:all: --platform macosx_14_0_arm64 "mlx-metal==$mlx_version"
  export AGX_METALLIB=$wheel/mlx/lib/mlx.metallib
fi
say "building the rewriter of crates/metal-sim"
(cd "$root" && CARGO_TARGET_DIR=$cross/target logged agx-cargo \
  cargo build --quiet --locked -p metal-sim --features gpu --bin metal-sim-gpu \
  --config profile.dev.package.metal-sim.opt-level=0) ||
  die "crates/metal-sim does not build: .mlx/cross/logs/agx-cargo.log"
say "compiling kernels"
export AGX_REWRITER=$cross/target/debug/metal-sim-gpu AGX_STAT=$agxstat AGX_CLANG=$clang_root AGX_CACHE=$cross/agx-cache
export PYTHONDONTWRITEBYTECODE=1
if [ "$mode" = --file ]; then
  shift
  exec python3 "$root/tests/agx/cost.py" "$@"
fi
cd "$root"
[ "$mode" != --check ] || python3 -m unittest discover --quiet --start-directory tests/agx
exec python3 tests/agx/table.py "$@"
