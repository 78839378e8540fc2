#!/usr/bin/env bash
# Checks that older and newer compilers accept every source of cpp/. It checks syntax and types, and
# does not link or run code.
#
#   scripts/compilers.sh [COMPILER...]
#
# Without names, it checks all known compilers on the PATH, and fails if there are none. clang 15 is
# the oldest clang that Xcode has for macOS 14, and gcc 11 is the gcc of Ubuntu 22.04. A clang uses
# libc++, as on a Mac, if its headers are installed (Debian:
# apt-get install clang-15 libc++-15-dev). MLX_DIR selects an MLX other than the installation in
# .mlx. The script uses the bridge that the last build generated.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD

say() { printf '%s\n' "compilers: $*"; }
die() {
  say "error: $*" >&2
  exit 1
}

mlx=${MLX_DIR:-$root/.mlx/python/mlx}
[ -f "$mlx/include/mlx/version.h" ] || die "$mlx holds no MLX: run scripts/build_metal.sh, or set MLX_DIR"
# Only builds with the feature `simulate-metal` generate this file. The tests' replacement for MLX's
# Metal device needs it.
bridge=$(ls -td "${CARGO_TARGET_DIR:-target}"/*/build/mlx-primitives-*/out/cxxbridge/sources/mlx-primitives/src/simulate.rs.cc \
  2>/dev/null | head -n 1)
bridge=${bridge%/sources/*}
[ -n "$bridge" ] || die "no build has generated the bridge: run cargo check --workspace --all-targets"

compilers=("$@")
if [ ${#compilers[@]} = 0 ]; then
  for name in clang++-{15..22} g++-{11..16}; do
    if command -v "$name" >/dev/null; then compilers+=("$name"); fi
  done
  [ ${#compilers[@]} -gt 0 ] || die "no clang++-N or g++-N is on the PATH: apt-get install clang-15"
fi

# Leaves out the sources for CUDA, which need CUDA's headers and are for Linux only.
sources=()
for source in cpp/{bridge,ops,runtime}/*.cpp tests/metal_device/*.cpp \
  "$bridge"/sources/mlx-primitives/src/{,*/}*.rs.cc; do
  case $source in
    cpp/runtime/cuda_*) ;;
    *) sources+=("$source") ;;
  esac
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
printf '#include <sstream>\n#include <mlx/mlx.h>\n#include <mlx/primitives.h>\n' >"$folder/first.h"

# check COMPILER: compiles MLX's headers once, then the sources in parallel on all processors.
check() {
  local compiler=$1 start=$SECONDS flags use
  flags=(-std=c++20 -Wall -Wextra -Werror -I cpp -I "$bridge/include" -I tests/metal_device/include -isystem "$mlx/include")
  if "$compiler" --version | grep -q clang; then
    if echo '#include <sstream>' | "$compiler" -stdlib=libc++ -x c++ -std=c++20 -fsyntax-only - 2>/dev/null; then
      flags+=(-stdlib=libc++)
    fi
    use=(-include-pch "$folder/first.pch")
    "$compiler" "${flags[@]}" -x c++-header "$folder/first.h" -o "$folder/first.pch"
  else
    # GCC 12 gives these warnings inside std::string and std::optional (GCC bugs 105651, 105562).
    flags+=(-Wno-restrict -Wno-array-bounds -Wno-stringop-overflow -Wno-maybe-uninitialized)
    use=(-include "$folder/first.h")
    "$compiler" "${flags[@]}" -x c++-header "$folder/first.h" -o "$folder/first.h.gch"
  fi
  printf '%s\0' "${sources[@]}" |
    xargs -0 -n 1 -P "$(getconf _NPROCESSORS_ONLN)" "$compiler" "${flags[@]}" "${use[@]}" -fsyntax-only ||
    die "$compiler refuses cpp/"
  rm -f "$folder"/first.h.gch "$folder/first.pch"
  say "$compiler ($("$compiler" -dumpfullversion -dumpversion)): ${#sources[@]} sources in $((SECONDS - start)) s"
}

for compiler in "${compilers[@]}"; do check "$compiler"; done
