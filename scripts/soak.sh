#!/usr/bin/env bash
# Runs the tests again and again, on an idle machine, under load, pinned to one core, and with 1, 2 and 8
# test threads, and counts the failures of each test. One green run says little about threaded code.
#
#   scripts/soak.sh 30                  the tests without the simulator's long runs, 30 times
#   scripts/soak.sh 30 --all            all tests
#   scripts/soak.sh 200 endings::       the tests whose names contain a word
#
# Exits with 1 if a test failed or a test program took longer than SOAK_LIMIT seconds. The default
# is 1800.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds=${1:-}
case $rounds in
  '' | *[!0-9]*)
    echo "usage: scripts/soak.sh ROUNDS [--all] [TEST...]" >&2
    exit 2
    ;;
esac
shift
arguments=(--skip simulated::)
if [ "${1:-}" = --all ]; then
  arguments=()
  shift
fi
arguments+=("$@")
limit=${SOAK_LIMIT:-1800}
logs=target/soak
mkdir -p "$logs"
rm -f "$logs"/*.log

echo "soak: building the tests" >&2
programs=$(cargo test --test core --test llama --test ranks --test cli --no-run --message-format=json |
  python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["kind"] == ["test"]:
        print(message["executable"])')
[ -n "$programs" ] || { echo "soak: cargo built no tests" >&2 && exit 1; }

load=()
stop_load() {
  [ ${#load[@]} -eq 0 ] || kill "${load[@]}" 2>/dev/null || true
  wait 2>/dev/null || true
  load=()
}
trap stop_load EXIT

failed=0
pin=()
command -v taskset >/dev/null && pin=(taskset -c 0)
for round in $(seq "$rounds"); do
  threads=$((round % 3 == 0 ? 8 : round % 3)) # 1, 2, 8, 1, ...
  case $((round / 3 % 3)) in
    0) place=idle && prefix=() ;;
    1) place=loaded && prefix=() ;;
    2) place=pinned && prefix=("${pin[@]}") ;;
  esac
  if [ $place = loaded ]; then
    for _ in 1 2 3 4; do
      (while :; do :; done) &
      load+=($!)
    done
  fi
  log=$logs/$round.log
  status=0
  start=$SECONDS
  for program in $programs; do
    MLX_PRIMITIVES_TEST_PATIENCE=${MLX_PRIMITIVES_TEST_PATIENCE:-4} timeout -s KILL "$limit" \
      "${prefix[@]}" "$program" --test-threads "$threads" "${arguments[@]}" >>"$log" 2>&1 || status=$?
  done
  [ $place != loaded ] || stop_load
  result=passed
  [ $status = 0 ] || { result="failed with status $status" && failed=$((failed + 1)); }
  seed=$(sed -n 's/.*the order of seed \([0-9]*\);.*/\1/p' "$log" | head -n 1)
  echo "soak: $round of $rounds, $place, $threads threads, seed $seed: $result in $((SECONDS - start)) s" >&2
done

echo "$((rounds - failed)) of $rounds runs passed"
if [ $failed -gt 0 ]; then
  echo "times test"
  grep -hoE '^test .* \.\.\. FAILED' "$logs"/*.log | sed 's/^test //; s/ *\.\.\. FAILED.*//' |
    sort | uniq -c | sort -rn
  echo "The output of each run is in $logs."
  exit 1
fi
