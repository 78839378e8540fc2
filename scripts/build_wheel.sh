#!/usr/bin/env bash
# Builds the Python package as dist/mlx_primitives-*.whl, with a library for each version of MLX.
#
#   scripts/build_wheel.sh [--dev] [--cuda] [VERSION...]
#
# --dev builds with Cargo's profile `dev`. The library is then larger and slower.
# --cuda adds support for NVIDIA GPUs to the libraries for MLX 0.32.4 and later. Such a library
# works with MLX for CUDA 13 and with MLX for CPUs. Earlier versions of MLX for CUDA do not export
# the functions that it calls.
# Without a VERSION, the script builds for every supported MLX on the package index. Each build uses
# the headers and the library of that MLX's wheel, which the script installs in .mlx/.
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
cuda=
while [ "$#" != 0 ]; do
  case $1 in
    --dev)
      profile=debug
      build=(--workspace --lib) # cargo chooses the features of dependencies as for the tests
      ;;
    --cuda)
      [ "$(uname -s)" = Linux ] || die "--cuda is for Linux: MLX has no CUDA on $(uname -s)"
      cuda=--cuda
      ;;
    *) break ;;
  esac
  shift
done

if [ "$#" = 0 ]; then
  list=$(python3 scripts/wheels.py versions "$wheel" "${newest%.*}.")
  for version in $list; do
    if [ "${version##*.}" -ge "${oldest##*.}" ] && [ "${version##*.}" -le "${newest##*.}" ]; then
      set -- "$@" "$version"
    fi
  done
fi
[ "$#" != 0 ] || die "the index has no $wheel from $oldest to $newest"

scripts/build_metal.sh $cuda
with_cuda=()
rm -f "$package"/libmlx_primitives_*
for version in "$@"; do
  environment=() features=() own=.mlx/python versions=.mlx/versions from=$wheel
  if [ -n "$cuda" ] && [ "${version##*.}" -ge 4 ]; then
    own=.mlx/cuda versions=.mlx/versions-cuda from=mlx-cuda-13
    features=(--features mlx-primitives-python/cuda)
    with_cuda+=("$version")
  fi
  if [ -n "${MLX_DIR:-}" ] || ! grep -qs "^Version: $version\$" "$own"/mlx_*.dist-info/METADATA; then
    prefix=$root/$versions/$version/mlx
    [ -f "$prefix/include/mlx/version.h" ] || python3 scripts/wheels.py install "$versions/$version" "$from==$version"
    environment=(MLX_DIR="$prefix" CUDA_HOME="$root/.mlx/cuda/nvidia/cu13")
  fi
  env ${environment[@]+"${environment[@]}"} cargo build "${build[@]}" ${features[@]+"${features[@]}"}
  library=$package/libmlx_primitives_${version//./_}.$suffix
  cp "$target/$profile/$built" "$library"
  "${strip[@]}" "$library"
  say "$library: $(wc -c <"$library" | tr -d ' ') bytes"
done
if [ -f .mlx/mlx_primitives.metallib ]; then cp .mlx/mlx_primitives.metallib "$package/"; fi

rm -rf dist
name=$(PYTHONDONTWRITEBYTECODE=1 MLX_PRIMITIVES_CUDA="${with_cuda[*]-}" python3 python/pack.py dist)
say "dist/$name: $(wc -c <"dist/$name" | tr -d ' ') bytes"
