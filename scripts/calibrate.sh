#!/usr/bin/env bash
# Compares the simulator of crates/metal-sim with Apple's compiler: MLX's macOS wheels contain every
# MLX kernel as Apple compiled it. The script compares argument tables, results and memory traffic.
# It also counts bytes, barriers and SIMD operations of the crate's kernels beside those of MLX's
# kernels.
#
#   scripts/calibrate.sh [--table] [--all]
#
# --table prints the side-by-side counts, as Markdown. --all fails if any part could not be run.
# METAL_SIM_MLX, a checkout of MLX near the wheel's version, adds the kernels whose source is not in the
# wheel.
set -euo pipefail
# shellcheck source=tests/cross_link/tools.sh
source "$(dirname "${BASH_SOURCE[0]}")/../tests/cross_link/tools.sh"

table=no all=no
for option in "$@"; do
  case $option in
    --table) table=yes ;;
    --all) all=yes ;;
    *) die "unknown option $option; there are --table and --all" ;;
  esac
done

mlx_version=$(tr -d '[:space:]' <"$root/cmake/mlx_version.txt")
releases=(14.0 26.0)
for release in "${releases[@]}"; do
  bring_python "$cross/mlx-$mlx_version-macos$release" --only-binary=:all: \
    --platform "macosx_${release/./_}_arm64" "mlx-metal==$mlx_version"
done
if [ -z "${METAL_SIM_CLANG:-}" ]; then
  bring_zig
  export METAL_SIM_CLANG=$cross/zig-$zig_version ZIG_GLOBAL_CACHE_DIR=$cross/zig-cache
fi
ignored=() not_run=()
if [ -z "${METAL_SIM_MLX:-}" ]; then
  not_run+=("source against AIR of rms_norm, layer_norm and rope (their source is not in the wheel; METAL_SIM_MLX names no checkout)")
elif [ ! -f "$METAL_SIM_MLX/mlx/backend/metal/kernels/rms_norm.metal" ]; then
  die "METAL_SIM_MLX=$METAL_SIM_MLX is no checkout of MLX"
else
  METAL_SIM_MLX=$(cd "$METAL_SIM_MLX" && pwd)
  export METAL_SIM_MLX
  ignored=(--include-ignored)
fi

cd "$root"
calibrate() {
  local wheel=$cross/mlx-$mlx_version-macos$1/mlx output=$logs/calibration-$1.txt
  METAL_SIM_METALLIB=$wheel/lib/mlx.metallib METAL_SIM_MLX_HEADERS=$wheel/include \
    cargo test --quiet -p metal-sim --features calibration --test calibration -- \
    --show-output "${ignored[@]}" >"$output" 2>"$logs/calibration-$1.log" && return
  grep -v '^table: ' "$output" | tail -n 60 >&2
  tail -n 20 "$logs/calibration-$1.log" >&2
  die "the simulator and Apple's compilation for macOS $1 disagree, or the tests were not built"
}
# total RELEASE KIND: prints the sum of all counts of one kind in the tests' output.
total() {
  awk -v kind="$2" '$1 == "count:" && $2 == kind { n += $3 } END { print n + 0 }' \
    "$logs/calibration-$1.txt"
}
for release in "${releases[@]}"; do
  say "MLX $mlx_version for macOS $release"
  calibrate "$release"
  sed -n 's/^result: //p' "$logs/calibration-$release.txt" | sort | while read -r line; do say "$line"; done
  [ "$(total "$release" tables)" -ge 16 ] && [ "$(total "$release" kernels)" -ge 10 ] &&
    [ "$(total "$release" dispatches)" -gt 0 ] && [ "$(total "$release" counts)" -gt 0 ] ||
    die "not every test ran: .mlx/cross/logs/calibration-$release.txt"
done
release=${releases[0]}
[ "$table" = no ] || sed -n 's/^table: \{0,1\}//p' "$logs/calibration-$release.txt"

missing=nothing
[ ${#not_run[@]} = 0 ] || missing=$(printf '%s; ' "${not_run[@]}") missing=${missing%; }
tables=$(total "$release" tables)
printf '%s: %s\n' calibration "in each of ${#releases[@]} wheels $tables of $tables argument tables, \
$(total "$release" kernels) kernels bit-equal to their source, \
$(total "$release" dispatches) dispatches of ours bit-equal to Apple's, \
$(total "$release" counts) counted side by side; not run: $missing"
[ "$all" = no ] || [ ${#not_run[@]} = 0 ] || die "--all was asked for and not all was run"
