#!/usr/bin/env bash
# Runs most tests under AddressSanitizer: the library, the kernels, the bridge and cpp/. MLX's library
# is not instrumented, but its allocations are checked like all others.
#
#   scripts/sanitize_suite.sh [FILTER...]      without FILTER, skips only the tests listed below
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case $(uname -sm) in
  "Linux x86_64") ;;
  *) echo "sanitize_suite: not run: this needs Linux on x86-64" >&2 && exit 0 ;;
esac

# Skips tests that measure memory, run builds or run in child processes. `cargo test` covers them.
filter=("$@")
[ ${#filter[@]} -gt 0 ] || for module in build:: simulated:: memory:: levels:: tidy:: checkpoints::corrupt:: \
  endings::short_threads file_faults::memory; do
  filter+=(--skip "$module")
done

# Stable compilers have sanitizers too, but enable them only with RUSTC_BOOTSTRAP. The C++ compiler
# instruments cpp/. The Rust and the C++ code use the sanitizer's run-time library that Rust links.
export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" CARGO_TARGET_DIR=target/asan CARGO_INCREMENTAL=0
export CXXFLAGS="-fsanitize=address -fno-omit-frame-pointer ${CXXFLAGS:-}"
# MLX keeps its scheduler and streams until the process ends. That is not a leak in our code.
# Variables stay on the stack, because transforms of deep graphs measure the stack's size.
export ASAN_OPTIONS="detect_leaks=0:detect_stack_use_after_return=0"
suite() {
  local tests=(--test core --test llama --test ranks --test cli)
  cargo test --target x86_64-unknown-linux-gnu "${tests[@]}" -- "$@"
}
suite --list >/dev/null

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if suite --ignored --exact memory::planted_overflow >"$log" 2>&1 ||
  ! grep -q "AddressSanitizer: heap-buffer-overflow" "$log"; then
  cat "$log"
  echo "sanitize_suite: the planted overflow was not found" >&2
  exit 1
fi

# Instrumented code is several times slower, so the tests' time limits are multiplied by 10.
MLX_PRIMITIVES_TEST_PATIENCE=10 suite "${filter[@]}"
echo "sanitize: most tests without a fault"
