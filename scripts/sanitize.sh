#!/usr/bin/env bash
# Runs the threaded code under sanitizers: cpp/runtime/ (evaluation, failures, streams, the end of the
# process) with ThreadSanitizer and with AddressSanitizer and UndefinedBehaviorSanitizer, and the
# kernels' thread pool with ThreadSanitizer.
#
#   scripts/sanitize.sh [ROUNDS]     runs each scenario of tests/sanitize/runtime.cpp ROUNDS times,
#                                    by default 3 times
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

rounds=${1:-3}
mlx=${MLX_DIR:-.mlx/python/mlx}
[ -f "$mlx/include/mlx/version.h" ] || { echo "sanitize: run scripts/build_metal.sh first" >&2 && exit 1; }
mlx=$(cd "$mlx" && pwd)
out=target/sanitize
mkdir -p "$out"
cxx=${CXX:-c++}

build() {
  local name=$1
  shift
  echo "sanitize: building $name" >&2
  "$cxx" -std=c++20 -g -O1 -fno-omit-frame-pointer "$@" -DMLX_PRIMITIVES_HAS_ON_EXIT \
    -Itests/sanitize/include -Icpp -isystem "$mlx/include" \
    tests/sanitize/runtime.cpp cpp/runtime/{batch,contiguous,dispatch,encode,evaluate,failure,no_cuda,no_metal,no_simulator,node,one_stream,primitive,process}.cpp \
    -L"$mlx/lib" -lmlx -Wl,-rpath,"$mlx/lib" -o "$out/$name"
}
build tsan -fsanitize=thread
build asan -fsanitize=address,undefined -fno-sanitize-recover=undefined

# Disables address randomization, which may place mappings where ThreadSanitizer needs its shadow
# memory.
run() {
  if command -v setarch >/dev/null; then
    timeout -s KILL 300 setarch -R "$@"
  else
    timeout -s KILL 300 "$@"
  fi
}
# MLX's library is not built with ThreadSanitizer. ThreadSanitizer therefore cannot see MLX's
# reference counts, and would report races on the data that they protect. This option ignores
# accesses outside our code. ThreadSanitizer sees the locks of our code and of MLX.
export TSAN_OPTIONS="ignore_noninstrumented_modules=1 exitcode=66"
# MLX keeps its scheduler and streams until the process ends. That is not a leak in our code.
export ASAN_OPTIONS="detect_leaks=0 exitcode=66" UBSAN_OPTIONS="print_stacktrace=1"

# expect_fault TOOL SCENARIO: checks that the tool finds the fault that the scenario contains.
expect_fault() {
  local status=0
  run "$out/$1" "$2" >"$out/log" 2>&1 || status=$?
  [ $status = 66 ] || { echo "sanitize: $1 did not find the $2 (status $status)" >&2 && exit 1; }
}
expect_fault tsan "planted race"
expect_fault asan "planted overflow"

played=0
for tool in tsan asan; do
  for role in failures threads diamonds return exit busy; do
    for round in $(seq "$rounds"); do
      if ! run "$out/$tool" "$role" >"$out/log" 2>&1; then
        cat "$out/log"
        echo "sanitize: $tool found a fault in the role '$role', round $round" >&2
        exit 1
      fi
      played=$((played + 1))
    done
  done
done

# Stable compilers have the sanitizers too, but enable them only with RUSTC_BOOTSTRAP.
echo "sanitize: the thread pool" >&2
RUSTC_BOOTSTRAP=1 rustc --edition 2024 --test -O -Zsanitizer=thread \
  -Cunsafe-allow-abi-mismatch=sanitizer tests/sanitize/pool.rs -o "$out/pool"
run "$out/pool" --test-threads 1
echo "sanitize: $played runs without a fault"
