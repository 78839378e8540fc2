#!/usr/bin/env bash
# Runs the suite's core under AddressSanitizer: the library, the kernels, the bridge and cpp/. MLX's own
# library is not instrumented, but its allocations are watched like all others.
#
#   scripts/sanitize_suite.sh [FILTER...]      by default all tests but those listed below
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case $(uname -sm) in
  "Linux x86_64") ;;
  *) echo "sanitize_suite: not run: this needs Linux on x86-64" >&2 && exit 0 ;;
esac

# What measures memory or builds, and what runs in child processes that `cargo test` covers, is left out.
filter=("$@")
[ ${#filter[@]} -gt 0 ] || for module in build:: simulated:: memory:: levels:: tidy:: checkpoints::corrupt:: \
  endings::short_threads file_faults::memory; do
  filter+=(--skip "$module")
done

# Stable compilers have sanitizers too, but only let themselves be asked in this way. The C++ half is
# instrumented by its own compiler, for the same interface, and linked with Rust's run time.
export RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address" CARGO_TARGET_DIR=target/asan CARGO_INCREMENTAL=0
export CXXFLAGS="-fsanitize=address -fno-omit-frame-pointer ${CXXFLAGS:-}"
# MLX keeps its scheduler and streams until the process ends, which is no leak of ours.
export ASAN_OPTIONS="detect_leaks=0"
suite() {
  cargo test --target x86_64-unknown-linux-gnu --test suite -- "$@"
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

# Instrumented code takes several times as long.
MLX_PRIMITIVES_TEST_PATIENCE=10 suite "${filter[@]}"
echo "sanitize: the suite's core without a fault"
