#!/usr/bin/env bash
# Checks and times the primitives on this machine's NVIDIA GPU and writes a dated result file. Run nothing else on
# the GPU meanwhile.
#
#   scripts/cuda_gpu.sh [--quick]
#
# By default it builds the command and the bench `nvidia` in release mode against MLX as docs/cuda.md says. Where programs
# cannot be built, MLX_PRIMITIVES_COMMAND and MLX_PRIMITIVES_NVIDIA_BENCH name those that were built elsewhere. The
# result is MLX_PRIMITIVES_CUDA_RESULT, or benches/cuda/DATE-GPU.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '%s\n' "cuda_gpu: $*" >&2; }
die() {
  say "error: $*"
  exit 1
}

quick=()
[ $# -eq 0 ] || { [ "$1" = --quick ] && quick=(--quick); } || die "usage: scripts/cuda_gpu.sh [--quick]"
command -v nvidia-smi >/dev/null || die "there is no nvidia-smi, so no NVIDIA GPU"
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
day=$(date -u +%Y-%m-%d)

program=${MLX_PRIMITIVES_COMMAND:-} bench=${MLX_PRIMITIVES_NVIDIA_BENCH:-}
if [ -z "$program" ]; then
  cargo build --quiet --release --features cuda
  program=target/release/mlx-primitives
  bench="cargo bench --quiet --features cuda --bench nvidia"
fi
# Our kernels, whatever was tuned on this machine, and MLX's float32 products without TF32, which the checks compare
# with.
export MLX_PRIMITIVES_TUNE=off MLX_ENABLE_TF32=0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
# step NAME COMMAND...: runs a command into $work/NAME.log and remembers whether it failed.
step() {
  local name=$1
  shift
  say "$name"
  if "$@" >"$work/$name.log" 2>&1; then
    echo passed >"$work/$name.result"
  else
    failed=1
    echo "failed with status $?" >"$work/$name.result"
    tail -n 5 "$work/$name.log" >&2
  fi
}

step info "$program" info
# Groups of rows compile their kernels at the same time; then everything is in the cache.
for part in appending attention elements norms products quantized reductions rotations softmaxes sums; do
  "$program" verify --quick --device gpu --only "self-test $part" --output "$work/warm-$part.md" \
    >"$work/warm-$part.log" 2>&1 &
done
wait
step conformance "$program" verify "${quick[@]}" --device gpu --only self-test --output "$work/conformance.md"
step decode "$program" verify "${quick[@]}" --device gpu --only decode --output "$work/decode.md"
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1 || true)
if [ -n "$sanitizer" ]; then
  for tool in memcheck racecheck; do
    # MLX's own kernels run too; a fault of theirs shows their names.
    step "$tool" "$sanitizer" --tool "$tool" --error-exitcode 9 \
      "$program" verify --quick --device gpu --only self-test --output "$work/$tool.md"
  done
else
  for tool in memcheck racecheck; do echo "not run: there is no compute-sanitizer" >"$work/$tool.result"; done
fi
step ops "$program" ops "${quick[@]}" --device gpu
if [ -n "$bench" ]; then
  # shellcheck disable=SC2086 # a command with arguments
  step shapes $bench
else
  echo "not run: MLX_PRIMITIVES_NVIDIA_BENCH names no program" | tee "$work/shapes.result" >"$work/shapes.log"
fi

folder=benches/cuda
result=${MLX_PRIMITIVES_CUDA_RESULT:-$folder/$day-$(tr -cs '[:alnum:]\n' - <<<"$gpu" | tr '[:upper:]' '[:lower:]').md}
mkdir -p "$(dirname "$result")"
{
  echo "# $gpu, $day"
  echo
  echo "Made by \`scripts/cuda_gpu.sh ${quick[*]}\`. Driver $driver, source $(git rev-parse --short HEAD 2>/dev/null || echo unknown)."
  echo
  echo "| step | result |"
  echo "|---|---|"
  for name in info conformance decode memcheck racecheck ops shapes; do
    echo "| $name | $(cat "$work/$name.result") |"
  done
  for name in info conformance decode ops shapes; do
    echo
    echo "## $name"
    echo
    echo '```'
    cat "$work/$name.log"
    echo '```'
  done
  for tool in memcheck racecheck; do
    [ -e "$work/$tool.log" ] || continue
    echo
    echo "## $tool"
    echo
    echo '```'
    grep -E '^=========' "$work/$tool.log" | tail -n 40 || true
    echo '```'
  done
} >"$result"
say "wrote $result"
exit "$failed"
