#!/usr/bin/env bash
# Builds the Python package as dist/mlx_primitives-*.whl, with a library for each version of MLX.
#
#   scripts/build_wheel.sh [--dev] [VERSION...]
#
# --dev takes the build of the tests, whose library is larger and slower.
# Without a VERSION it builds for every supported MLX on the package index. Each build is against the headers and the
# library of the wheel of that MLX, which the script brings into .mlx/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
target=${CARGO_TARGET_DIR:-$root/target}
package=python/mlx_primitives
newest=$(tr -d '[:space:]' <cmake/mlx_version.txt)
oldest=$(tr -d '[:space:]' <cmake/mlx_oldest.txt)
say() { printf '%s\n' "build_wheel: $*"; }
die() {
  say "error: $*" >&2
  exit 1
}
case $(uname -s) in
  Darwin) wheel=mlx-metal built=libmlx_primitives_python.dylib suffix=dylib strip=(strip -x) ;;
  Linux) wheel=mlx-cpu built=libmlx_primitives_python.so suffix=so strip=(strip --strip-unneeded) ;;
  *) die "macOS and Linux are supported" ;;
esac

profile=release
build=(--release -p mlx-primitives-python)
if [ "${1:-}" = --dev ]; then
  shift
  profile=debug
  build=(--workspace --lib) # cargo chooses the features of dependencies as for the tests
fi

if [ "$#" = 0 ]; then
  list=$(python3 scripts/wheels.py versions "$wheel" "${newest%.*}.")
  for version in $list; do
    if [ "${version##*.}" -ge "${oldest##*.}" ] && [ "${version##*.}" -le "${newest##*.}" ]; then
      set -- "$@" "$version"
    fi
  done
fi
[ "$#" != 0 ] || die "the index has no $wheel from $oldest to $newest"

scripts/build_metal.sh
rm -f "$package"/libmlx_primitives_*
for version in "$@"; do
  environment=()
  if [ -n "${MLX_DIR:-}" ] || ! grep -qs "^Version: $version\$" .mlx/python/mlx_*.dist-info/METADATA; then
    prefix=$root/.mlx/versions/$version/mlx
    [ -f "$prefix/include/mlx/version.h" ] || python3 scripts/wheels.py install ".mlx/versions/$version" "$wheel==$version"
    environment=(MLX_DIR="$prefix")
  fi
  env ${environment[@]+"${environment[@]}"} cargo build "${build[@]}"
  library=$package/libmlx_primitives_${version//./_}.$suffix
  cp "$target/$profile/$built" "$library"
  "${strip[@]}" "$library"
  say "$library: $(wc -c <"$library" | tr -d ' ') bytes"
done
if [ -f .mlx/mlx_primitives.metallib ]; then cp .mlx/mlx_primitives.metallib "$package/"; fi

rm -rf dist
name=$(PYTHONDONTWRITEBYTECODE=1 python3 python/pack.py dist)
say "dist/$name: $(wc -c <"dist/$name" | tr -d ' ') bytes"
