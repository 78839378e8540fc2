#!/usr/bin/env bash
# Checks the crate against every MLX that it supports, not only the one that scripts/build_metal.sh installs.
#
#   scripts/mlx_versions.sh headers         checks the types of cpp/ with the headers of every other
#                                           supported version on the package index, and the
#                                           calls of cpp/runtime/mlx_patches.h with the forms
#                                           that later versions may have
#   scripts/mlx_versions.sh core [VERSION]  builds the crate with that MLX, by default the oldest,
#                                           and runs the test modules that `core` lists below
#
# For `headers`, run cargo check first, which generates the code of the bridge. CXX names the
# compiler.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
say() { printf '%s\n' "mlx_versions: $*"; }
die() {
  printf '%s\n' "mlx_versions: error: $*" >&2
  exit 1
}
newest=$(tr -d '[:space:]' <cmake/mlx_version.txt)
oldest=$(tr -d '[:space:]' <cmake/mlx_oldest.txt)
case $(uname -s) in Darwin) package=mlx-metal ;; *) package=mlx-cpu ;; esac
versions=.mlx/versions
mkdir -p "$versions"

# bring VERSION: installs the wheel of that MLX, and sets `prefix`.
bring() {
  prefix=$root/$versions/$1/mlx
  [ -f "$prefix/include/mlx/version.h" ] || python3 scripts/wheels.py install "$versions/$1" "$package==$1"
}

# compile INCLUDE ARGUMENT...: runs the compiler with MLX's headers. The tests' headers in
# tests/metal_device/include replace the headers of MLX's Metal device.
compile() {
  local include=$1
  shift
  "${compiler[@]}" -Itests/metal_device/include -isystem "$include" "$@"
}

headers() {
  local bridge version prefix list
  bridge=$(ls -td target/debug/build/mlx-primitives-*/out/cxxbridge/include 2>/dev/null | head -n 1)
  [ -n "$bridge" ] || die "there is no code of the bridge; run cargo check first"
  compiler=(${CXX:-c++} -std=c++20 -Wall -Wextra -Werror -Icpp "-I$bridge")
  case $("${compiler[@]}" -dM -E -x c++ /dev/null) in
    *__clang__*) ;;
    # As in cpp/CMakeLists.txt.
    *) compiler+=(-Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-maybe-uninitialized) ;;
  esac
  list=$(python3 scripts/wheels.py versions "$package" "${newest%.*}.")
  [ -n "$list" ] || die "the index has no $package ${newest%.*}"
  for version in $list; do
    if [ "${version##*.}" -ge "${oldest##*.}" ] && [ "$version" != "$newest" ]; then
      bring "$version"
      against "$version" "$prefix/include"
    fi
  done
  bring "$newest"
  foreseen "$prefix/include"
}

# against VERSION INCLUDE: compiles cpp/, except the sources for CUDA, with the headers of that
# MLX. The CUDA sources need the headers of MLX's CUDA wheel.
against() {
  local common=$versions/common.h file sources=()
  printf '#include <%s>\n' sstream mlx/mlx.h mlx/primitives.h >"$common"
  compile "$2" -x c++-header "$common" -o "$common.gch"
  for file in cpp/bridge/*.cpp cpp/ops/*.cpp cpp/runtime/*.cpp tests/metal_device/*.cpp; do
    case $file in */cuda_*) ;; *) sources+=("$file") ;; esac
  done
  printf '%s\n' "${sources[@]}" |
    xargs -n 6 -P "$(getconf _NPROCESSORS_ONLN)" "${compiler[@]}" -Itests/metal_device/include -isystem "$2" \
      -DMLX_PRIMITIVES_BUILT_METALLIB='""' -DMLX_PRIMITIVES_SCRIPT_METALLIB='""' \
      -fsyntax-only -include "$common" || die "cpp/ does not compile against MLX $1"
  say "${#sources[@]} sources compile against MLX $1"
}

# foreseen INCLUDE: a later MLX may add a parameter for a sliding window to
# scaled_dot_product_attention. Checks that our call compiles with each expected position and type
# of that parameter, and does not compile with an unknown parameter.
foreseen() {
  local made=$versions/foreseen form count=0
  mkdir -p "$made/mlx"
  cat >"$made/call.cpp" <<'SOURCE'
#include "runtime/mlx_patches.h"
mlx::core::array attend(const mlx::core::array& x, mlx::core::Stream s) {
  return mlx_primitives::built_in_attention(x, x, x, 1.0f, "causal", std::nullopt, std::nullopt, s);
}
SOURCE
  form() {
    sed "s/^    bool force_fused = false,\$/$1/" "$2/mlx/fast.h" >"$made/mlx/fast.h"
    ! cmp -s "$2/mlx/fast.h" "$made/mlx/fast.h" || die "MLX $newest declares its attention otherwise"
    compile "$2" "-I$made" -fsyntax-only "$made/call.cpp" >"$made/log" 2>&1
  }
  for window in 'int window_size = -1' 'std::optional<int> window = std::nullopt'; do
    for form in "bool force_fused = false, $window," "$window, bool force_fused = false,"; do
      form "$form" "$1" || die "attention with ($form s) does not compile: $(grep -m 1 error "$made/log")"
      count=$((count + 1))
    done
  done
  ! form "const array\& unknown, bool force_fused = false," "$1" || die "an attention of any form compiles"
  say "$count forms of a later version's attention compile"
}

# The test modules that fail first if a version of MLX is not as expected: arrays, every op of the
# conformance table with its derivatives, failures, streams and threads, files, and models.
core=(array:: table:: failures:: threads:: io:: one_stream:: random:: checkpoints:: generation::)

# refuses FOLDER COMMAND...: checks that the command fails with the versions in its error, and that
# it calls no function that the library in FOLDER lacks.
refuses() {
  local folder=$1 said
  shift
  said=$(LD_LIBRARY_PATH=$folder "$@" 2>&1) && die "$*: another MLX than the program's is not refused"
  [[ "$said" == *"built with the headers of MLX $version but loaded libmlx $newest"* ]] ||
    die "$*: the refusal of another MLX does not name the versions: $said"
  [[ "$said" != *"symbol lookup error"* ]] || die "$*: a function is called that MLX $newest lacks: $said"
}

core() {
  local version=${1:-$oldest} prefix module command words
  bring "$newest"
  local of_newest=$prefix
  bring "$version"
  export MLX_DIR=$prefix CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target/mlx-$version}
  cargo test --test core --test llama --no-run && cargo build
  command=$CARGO_TARGET_DIR/debug/mlx-primitives
  "$command" info | grep -E "MLX +$version\$" || die "the command was not built with MLX $version"
  if [ "$version" != "$newest" ] && [ "$(uname -s)" = Linux ]; then
    for words in info 'generate x' bench 'ops --quick' verify tune; do
      # shellcheck disable=SC2086 # several words
      refuses "$of_newest/lib" "$command" $words
    done
    # Runs a program whose first array is random, and a program whose first array is not.
    for module in random::moments_of_each_distribution array::; do
      refuses "$of_newest/lib" cargo test --quiet --test core -- --test-threads 1 "$module"
    done
  fi
  for module in "${core[@]}"; do
    MLX_PRIMITIVES_TEST_SAMPLE=20 cargo test --quiet --test core --test llama -- "$module"
  done
  say "the core of the tests passes on MLX $version"
}

case ${1:-} in
  headers) headers ;;
  core) core "${2:-}" ;;
  *)
    echo "usage: scripts/mlx_versions.sh headers | core [VERSION]" >&2
    exit 2
    ;;
esac
