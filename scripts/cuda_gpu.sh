#!/usr/bin/env bash
# Checks and times the primitives on this machine's NVIDIA GPU within a time limit. It writes a
# dated result file, even if a step is cut off. Run nothing else on the GPU meanwhile.
#
#   scripts/cuda_gpu.sh [--quick] [--seconds N] [--part checks|times]
#
# checks   `info`, the conformance table and greedy tokens in parallel processes, the tests of
#          examples/own_primitive, memcheck and racecheck of each family of kernels
# times    single kernels; shapes that fill a GPU, compared with MLX's ops and with a copy; decoding
#          with the shapes of a Llama 8B
#
# By default it runs both parts with a limit of an hour, and builds the programs against MLX as
# docs/cuda.md says. Where programs cannot be built, these variables hold commands that were built
# elsewhere: MLX_PRIMITIVES_COMMAND, MLX_PRIMITIVES_NVIDIA_BENCH, MLX_PRIMITIVES_KERNELS_BENCH and
# MLX_PRIMITIVES_OWN_TESTS. MLX_PRIMITIVES_SUITE may hold a test program, such as `core`, which is
# then run too. MLX_PRIMITIVES_COMMIT names the commit of their source. The result file is
# MLX_PRIMITIVES_CUDA_RESULT, by default benches/results/DATE-GPU.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '%s\n' "cuda_gpu: $*" >&2; }
die() {
  say "error: $*"
  exit 1
}

quick='' parts="checks times" seconds=3600
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) quick=--quick ;;
    --seconds) seconds=${2:?} && shift ;;
    --part) parts=${2:?} && shift ;;
    *) die "usage: scripts/cuda_gpu.sh [--quick] [--seconds N] [--part checks|times]" ;;
  esac
  shift
done
command -v nvidia-smi >/dev/null || die "there is no nvidia-smi, so no NVIDIA GPU"
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)

program=${MLX_PRIMITIVES_COMMAND:-} nvidia=${MLX_PRIMITIVES_NVIDIA_BENCH:-}
kernels=${MLX_PRIMITIVES_KERNELS_BENCH:-} own=${MLX_PRIMITIVES_OWN_TESTS:-} suite=${MLX_PRIMITIVES_SUITE:-}
if [ -z "$program" ]; then
  own_manifest=examples/own_primitive/Cargo.toml
  cargo build --quiet --release --features cuda
  cargo bench --quiet --no-run --features cuda --bench nvidia
  cargo bench --quiet --no-run -p mlx-primitives-cuda --bench kernels
  cargo test --quiet --no-run --features cuda --manifest-path $own_manifest --test conformance
  program=target/release/mlx-primitives
  nvidia="cargo bench --quiet --features cuda --bench nvidia --"
  kernels="cargo bench --quiet -p mlx-primitives-cuda --bench kernels --"
  own="cargo test --quiet --features cuda --manifest-path $own_manifest --test conformance"
fi
# Uses our kernels even if `mlx-primitives tune` chose MLX's on this machine. MLX computes float32
# products without TF32, because the checks compare our results with them.
export MLX_PRIMITIVES_TUNE=off MLX_ENABLE_TF32=0

work=$(mktemp -d)
# MLX writes the kernels that it compiles to this folder, so that all processes can load them.
export MLX_PTX_CACHE_DIR=${MLX_PTX_CACHE_DIR:-$work/ptx}
mkdir -p "$MLX_PTX_CACHE_DIR"
deadline=$((SECONDS + seconds))
cores=$(nproc)

# job NAME LIMIT COMMAND: runs a shell command for at most LIMIT seconds, but not beyond the
# deadline. Keeps its output and its result.
job() {
  local name=$1 limit=$2 start=$SECONDS status=0
  ((limit <= deadline - SECONDS)) || limit=$((deadline - SECONDS))
  if ((limit < 3)); then
    echo "not run: no time was left" >"$work/$name.result"
    return
  fi
  echo "cut off" >"$work/$name.result"
  timeout -k 5 "$limit" bash -c "$3" >"$work/$name.log" 2>&1 || status=$?
  local took="$((SECONDS - start)) s"
  case $status in
    0) echo "passed, $took" ;;
    124 | 137) echo "cut off after $took" ;;
    *) echo "**failed** with status $status, $took" ;;
  esac >"$work/$name.result"
  say "$name: $(cat "$work/$name.result")"
}

# pool WORKERS: reads one job from each line of the input, and runs at most WORKERS jobs at a time.
pool() {
  local name limit command running=0
  while IFS='|' read -r name limit command; do
    if ((running >= $1)); then
      wait -n || true
      running=$((running - 1))
    fi
    job "$name" "$limit" "$command" </dev/null &
    running=$((running + 1))
  done
  wait
}

# shares NAME COUNT ROWS [ARGUMENTS]: prints jobs that check rows of the conformance table in COUNT
# processes.
shares() {
  local share
  for share in $(seq "$2"); do
    local name=conformance-$1-$share
    echo "$name|1800|$program verify $quick --device gpu --only '$3' --share $share/$2 ${4:-} --output $work/$name.md"
  done
}

# For these rows, MLX compiles more kernels at their first use, each for up to half a minute.
slow_conformance_jobs() {
  shares quantized 3 quantized::quantized_linear
  shares quantized-all 2 quantized::quantized_linear_with_everything
  shares lora 16 quantized::lora_linear
}

conformance_jobs() {
  local rows
  shares attention 4 "self-test attention"
  shares lora-sizes 3 quantized::lora_linear_of_every_base_rank_and_size
  shares quantized-sizes 3 quantized::quantized_linear_of_every_format_and_size --without-peers
  for rows in elements norms products rotations softmaxes; do shares $rows 3 "self-test $rows"; done
  for rows in appending reductions sums; do shares $rows 2 "self-test $rows"; done
  shares dequantize 1 quantized::dequantize
}

# A model of 1.10 billion weights.
config=$work/config.json
cat >"$config" <<'JSON'
{
  "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 22, "intermediate_size": 5632,
  "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000, "rms_norm_eps": 1e-5,
  "rope_theta": 10000.0, "max_position_embeddings": 2048, "tie_word_embeddings": false
}
JSON

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1 || true)
# Each line is the job of one process: a family of kernels, and the share of its cases to run.
families=(
  "norms::rms_norm 1/6" "norms::layer_norm 1/6" "norms::residual_norm 1/6" "sums::softmax 1/4"
  "sums::logsumexp 1/4" "softmaxes::masked_softmax_of_every_size 1/8" "softmaxes::cross_entropy 1/8"
  "elements::activations 1/16" "elements::affine 1/4" "rotations::rope 1/8"
  "appending::rope_append_of_all_parameters 1/8" "reductions::reductions 1/12" "products::linear 1/12"
  "quantized::quantized_linear_of_every_format_and_size 1/27" "attention::attention_of_every_size 1/20"
  "attention::attention_of_other_values 1/40")

other_jobs() {
  local of tool family name
  echo "info|60|$program info"
  echo "decode|200|$program verify $quick --device gpu --only 'decode demo' --output $work/decode.md"
  echo "decode-1B|200|$program verify $quick --device gpu --only 'decode random' --config $config --bits 4" \
    "--output $work/decode-1B.md"
  [ -z "$own" ] || echo "own|120|$own"
  [ -z "$suite" ] || echo "suite|240|$suite ${MLX_PRIMITIVES_SUITE_TESTS:-}"
  [ -n "$sanitizer" ] || return 0
  for tool in racecheck memcheck; do
    for of in "${families[@]}"; do
      read -r family of <<<"$of"
      name=$tool-${family#*::}
      # MLX's kernels run too. If one of them has a fault, the report shows its name.
      echo "$name|90|$sanitizer --tool $tool --error-exitcode 9 $program verify --quick --device gpu" \
        "--without-peers --only $family --share $of --output $work/$name.md"
    done
  done
}

times_jobs() {
  [ -z "$kernels" ] || echo "kernels|120|$kernels"
  if [ -n "$nvidia" ]; then
    echo "decode-8B|120|$nvidia decode"
    echo "products|90|$nvidia products"
    echo "rows|120|$nvidia rows"
  fi
}

folder=benches/results
day=$(date -u +%Y-%m-%d)
result=${MLX_PRIMITIVES_CUDA_RESULT:-$folder/$day-$(tr -cs '[:alnum:]\n' - <<<"$gpu" | tr '[:upper:]' '[:lower:]').md}
mkdir -p "$(dirname "$result")"
commit=${MLX_PRIMITIVES_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}

# Prints a table with the number of comparisons of each row, summed over all processes.
conformance() {
  echo "| row | passed | of | MLX differs |"
  echo "|---|---:|---:|---:|"
  cat "$work"/conformance-*.md 2>/dev/null | awk -F'|' '
    $4 ~ / of [0-9]+ comparisons/ {
      row = $2; gsub(/ /, "", row)
      split($4, words, " ")
      passed[row] += words[1]; all[row] += words[3]
      differs = $4; if (sub(/.*; in /, "", differs)) { split(differs, some, " "); mlx[row] += some[1] }
    }
    END {
      for (row in all) {
        printf "| %s | %d | %d | %d |\n", row, passed[row], all[row], mlx[row] | "sort"
        total += all[row]; good += passed[row]; other += mlx[row]
      }
      close("sort")
      printf "| all | %d | %d | %d |\n", good, total, other
    }'
}

# Writes the result file from the results so far.
report() {
  local log name
  {
    echo "# $gpu, $day"
    echo
    echo "Made by \`scripts/cuda_gpu.sh${quick:+ $quick}\`, parts $parts. Driver $driver, source $commit, $cores cores."
    echo
    echo "| step | result |"
    echo "|---|---|"
    for log in "$work"/*.result; do
      name=$(basename "$log" .result)
      echo "| $name | $(cat "$log") |"
    done
    if ls "$work"/conformance-*.md >/dev/null 2>&1; then
      printf '\n## Conformance\n\n'
      conformance
      printf '\n'
      grep -h -A 30 '^## Failures' "$work"/conformance-*.md | grep '^ *- ' || true
    fi
    for name in info decode decode-1B own suite kernels rows products decode-8B; do
      [ -e "$work/$name.log" ] || continue
      printf '\n## %s\n\n' "$name"
      [ ! -e "$work/$name.md" ] || grep -h '^| .* passed\|^| .*failed\|^ *- ' "$work/$name.md" || true
      tail -n 120 "$work/$name.log"
    done
    for log in "$work"/racecheck-*.log "$work"/memcheck-*.log; do
      [ -e "$log" ] || continue
      printf '\n## %s\n\n```\n' "$(basename "$log" .log)"
      grep -E '^=========' "$log" | grep -vE '^=========( +(Host Frame|in |Saved host).*|)$' | tail -n 16 || true
      grep -h ' of [0-9]* comparisons' "${log%.log}.md" 2>/dev/null || true
      printf '```\n'
    done
  } >"$result.partial"
  mv "$result.partial" "$result"
}

# Updates the result file regularly, so that it is useful even if this script is killed.
while sleep 10; do report; done &
reporter=$!
cleanup() {
  kill "$reporter" 2>/dev/null || true
  wait "$reporter" 2>/dev/null || true
  report
  [ -z "${MLX_PRIMITIVES_CUDA_LOGS:-}" ] || tar -C "$work" --exclude ptx -cJf "$MLX_PRIMITIVES_CUDA_LOGS" . || true
  rm -rf "$work"
  say "wrote $result"
}
trap cleanup EXIT
trap 'exit 143' TERM INT

if [[ $parts = *checks* ]]; then
  # Three pools of processes run side by side, so that no group of jobs waits for another group.
  few=$((cores > 7 ? cores / 4 : 1))
  half=$((cores > 3 ? cores / 2 : 1))
  other_jobs >"$work/other.jobs"
  slow_conformance_jobs >"$work/slow.jobs"
  conformance_jobs >"$work/conformance.jobs"
  pools=()
  pool "$few" <"$work/other.jobs" &
  pools+=($!)
  pool "$half" <"$work/slow.jobs" &
  pools+=($!)
  pool "$half" <"$work/conformance.jobs" &
  pools+=($!)
  wait "${pools[@]}" || true
fi
if [[ $parts = *times* ]]; then
  times_jobs >"$work/times.jobs"
  pool 1 <"$work/times.jobs" &
  wait $! || true
fi
! grep -lq 'failed\|cut off\|not run' "$work"/*.result
