#!/usr/bin/env bash
# Runs the checks that take too long for `cargo test`: the tests in the Metal simulator with other
# orders of threads, every planted fault in the kernels and in cpp/, the kernels with overflow
# checks and debug assertions, other versions of MLX, sanitizers, the build for macOS, the
# comparison of the Metal simulator with Apple's compiler, the simulator's rules applied to MLX's
# kernels, the kernels' costs on an M1, ARM Linux, every kernel compiled for four generations of
# NVIDIA GPUs, and the Python wheel for NVIDIA GPUs.
#
#   scripts/verify.sh              all steps except `suite_sanitizer`
#   scripts/verify.sh STEP...      these steps: simulator mutants planted_faults checks versions sanitizers macos
#                                  calibration mlx agx arm cuda suite_sanitizer
#
# `suite_sanitizer` builds everything again with AddressSanitizer, which takes much longer than the other
# steps. Run it before a release, and after a change to memory ownership.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

logs=target/verify
mkdir -p "$logs"
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(simulator mutants planted_faults checks versions sanitizers macos calibration mlx agx arm cuda)

# Updates apt's lists. Debian's packages provide the libraries for other processors if rustup does
# not.
read_lists() {
  if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then apt-get update -qq; fi
}

for name in "${steps[@]}"; do
  start=$SECONDS
  echo "verify: $name" >&2
  case $name in
    simulator)
      cargo test --test core --test llama --test cli -- --ignored --exact \
        simulated::in_other_orders_of_threads simulated::pipelines_of_fewer_threads
      ;;
    mutants) METAL_SIM_EVERY_MUTANT=1 cargo test -p mlx-primitives --test mutants ;;
    planted_faults) scripts/planted_faults.py ;;
    checks)
      # Builds in a separate folder, because the other builds disable these checks.
      kernels=profile.dev.package.mlx-primitives-kernels
      CARGO_TARGET_DIR=target/checks cargo test -p mlx-primitives-kernels --test kernels \
        --config "$kernels.debug-assertions=true" --config "$kernels.overflow-checks=true"
      ;;
    sanitizers) scripts/sanitize.sh ;;
    suite_sanitizer) scripts/sanitize_suite.sh ;;
    versions) cargo check && scripts/mlx_versions.sh headers ;;
    macos)
      read_lists && scripts/cross_link.sh &&
        scripts/cross_link.sh --no-rust --mlx="$(tr -d '[:space:]' <cmake/mlx_oldest.txt)"
      ;;
    calibration) scripts/calibrate.sh --table ;;
    mlx) cargo test -p metal-sim --test mlx -- --include-ignored ;;
    agx) scripts/agx.sh --check ;;
    arm) read_lists && scripts/arm_linux.sh ;;
    cuda)
      # Compiled kernels are kept in target/tmp.
      scripts/build_metal.sh --cuda
      MLX_PRIMITIVES_NEED_NVRTC=1 MLX_PRIMITIVES_CUDA_ARCHITECTURES="75 80 90 120" \
        cargo test -p mlx-primitives-cuda --test kernels -- --nocapture
      # Checks that a command and a library with support for CUDA also work with MLX for CPUs.
      cargo run --release --features cuda -- generate "Once upon a time" -m 5
      scripts/build_wheel.sh --dev --cuda "$(tr -d '[:space:]' <cmake/mlx_version.txt)" && scripts/test_wheel.sh
      ;;
    *)
      echo "verify: there is no step '$name'" >&2
      exit 2
      ;;
  esac 2>&1 | tee "$logs/$name.log"
  echo "verify: $name passed in $((SECONDS - start)) s" >&2
done

echo "verify: results"
grep -hE "^((metal-sim|simulated eval_gpu|sanitize|planted_faults): |agx: [0-9])" "$logs"/*.log || true
echo "verify: checks that were not run"
grep -h "not run:" "$logs"/*.log || echo "nothing"
