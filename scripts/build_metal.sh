#!/usr/bin/env bash
# Installs what the build needs and this machine lacks (MLX, CMake, Ninja; on Linux a clang for the
# tests that simulate Metal) in .mlx/, and on macOS compiles metal/*.metal into
# mlx_primitives.metallib. A second run keeps everything that is installed.
#
#   scripts/build_metal.sh [--cuda]
#
# --cuda also installs MLX for NVIDIA GPUs, NVRTC and CUDA's headers, for the feature `cuda`.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools=$root/.mlx
site=$tools/python
pinned=$(tr -d '[:space:]' <"$root/cmake/mlx_version.txt")
line=${pinned%.*}
system=$(uname -s)

say() { printf '%s\n' "build_metal: $*" >&2; }
die() {
  say "error: $*"
  exit 1
}

with_cuda=
for argument in "$@"; do
  [ "$argument" = --cuda ] || die "unknown argument $argument; usage: scripts/build_metal.sh [--cuda]"
  with_cuda=yes
done
[ -z "$with_cuda" ] || [ "$system" = Linux ] || die "--cuda is for Linux: MLX has no CUDA on $system"

# pip_install PACKAGE...: installs into .mlx/python, separate from the user's packages.
pip_install() {
  pip_install_into "$site" "$@"
}
pip_install_into() {
  local folder=$1
  shift
  say "installing $* into ${folder#"$root/"}"
  "${pip[@]}" install --quiet --disable-pip-version-check --no-warn-script-location \
    --no-deps --upgrade --target "$folder" "$@" ||
    die "pip could not install $*; check the network, or set MLX_DIR to an installed MLX $line and put cmake on PATH"
}

# find_pip: sets the array `pip` to a working pip, from a private venv if python3 has none.
find_pip() {
  [ ${#pip[@]} -gt 0 ] && return
  command -v python3 >/dev/null || die "python3 is not on PATH; install Python 3.9 or later"
  if python3 -m pip --version >/dev/null 2>&1; then
    pip=(python3 -m pip)
    return
  fi
  [ -x "$tools/venv/bin/pip" ] || python3 -m venv "$tools/venv" >/dev/null 2>&1 ||
    die "python3 has neither pip nor venv; install them (Debian, Ubuntu: apt-get install python3-pip)"
  pip=("$tools/venv/bin/python" -m pip)
}
pip=()

# version_at PREFIX: prints the version in an MLX prefix's headers, or nothing.
version_at() {
  local header=$1/include/mlx/version.h
  [ -f "$header" ] || return 0
  sed -n -E 's/^#define MLX_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+).*/\2/p' "$header" | paste -sd. -
}

mkdir -p "$tools"
export PIP_ROOT_USER_ACTION=ignore

# MLX: MLX_DIR, an earlier run's, Homebrew's, or else the wheel.
mlx=
for prefix in "${MLX_DIR:-}" "$site/mlx" /opt/homebrew/opt/mlx /usr/local/opt/mlx; do
  [ -n "$prefix" ] || continue
  found=$(version_at "$prefix")
  case $found in
    "$line".*) mlx=$prefix && break ;;
    "") [ "$prefix" != "${MLX_DIR:-}" ] || die "MLX_DIR=$prefix holds no include/mlx/version.h; point it at an MLX install prefix or unset it" ;;
    *) [ "$prefix" != "${MLX_DIR:-}" ] || die "MLX_DIR=$prefix holds MLX $found, and $line.x is needed; point it elsewhere or unset it" ;;
  esac
done
if [ -z "$mlx" ]; then
  find_pip
  case $system in
    Darwin) pip_install "mlx-metal==$pinned" ;;
    Linux) pip_install "mlx-cpu==$pinned" ;;
    *) die "no MLX wheel exists for $system; macOS on Apple silicon and Linux are supported" ;;
  esac
  mlx=$site/mlx
  [ -n "$(version_at "$mlx")" ] || die "the MLX wheel has no headers under $mlx; remove .mlx and run this again"
fi
say "MLX $(version_at "$mlx") in $mlx"

# MLX for NVIDIA GPUs, without the libraries that only a machine with such a GPU needs.
if [ -n "$with_cuda" ]; then
  cuda=$tools/cuda
  if [ "$(version_at "$cuda/mlx")" != "$pinned" ] || [ ! -e "$cuda/nvidia/cu13/lib/libnvrtc.so.13" ] ||
    [ ! -e "$cuda/nvidia/cu13/include/crt/host_defines.h" ]; then
    find_pip
    pip_install_into "$cuda" "mlx-cuda-13==$pinned" "nvidia-cuda-nvrtc==13.0.*" \
      "nvidia-cuda-runtime==13.0.*" "nvidia-cuda-crt==13.0.*"
  fi
  say "MLX $(version_at "$cuda/mlx") for CUDA in $cuda/mlx"
fi

# CMake 3.25 or later, and Ninja if there is no make.
cmake_is_new_enough() {
  command -v cmake >/dev/null || return 1
  local v major minor
  v=$(cmake --version 2>/dev/null | sed -n '1s/[^0-9]*//p')
  IFS=. read -r major minor _ <<<"$v"
  [ "${major:-0}" -gt 3 ] || { [ "${major:-0}" -eq 3 ] && [ "${minor:-0}" -ge 25 ]; }
}
if ! cmake_is_new_enough && [ ! -x "$site/cmake/data/bin/cmake" ]; then
  find_pip
  pip_install "cmake==3.31.6"
fi
if ! command -v make >/dev/null && ! command -v ninja >/dev/null && [ ! -x "$site/ninja/data/bin/ninja" ]; then
  find_pip
  pip_install "ninja==1.11.1.4"
fi
command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null ||
  die "no C++ compiler found; install one (Debian, Ubuntu: apt-get install g++; macOS: xcode-select --install)"

# The kernels. The library embeds their source too, so a Mac without Xcode still works.
if [ "$system" = Darwin ]; then
  cmake=${CMAKE:-$site/cmake/data/bin/cmake}
  [ -x "$cmake" ] || cmake=$(command -v cmake)
  "$cmake" -DMETAL_DIR="$root/metal" -DOUTPUT="$tools/mlx_primitives.metallib" \
    -P "$root/cmake/compile_metal.cmake" || die "the kernels were not compiled"
else
  say "$system has no Metal: the kernels of crates/kernels are used here, and tests simulate Metal"
  # The simulator's compiler: clang 17 or later, or the one inside zig.
  compiler=
  for name in clang++-22 clang++-21 clang++-20 clang++-19 clang++-18 clang++-17 clang++; do
    major=$("$name" -dumpversion 2>/dev/null | cut -d. -f1) || major=
    if [ "${major:-0}" -ge 17 ]; then compiler=$(command -v "$name") && break; fi
  done
  [ -n "$compiler" ] || compiler=$(command -v zig || command -v python-zig || true)
  if [ -z "$compiler" ] && [ -z "${METAL_SIM_CLANG:-}" ]; then
    if [ ! -x "$site/ziglang/zig" ]; then
      find_pip
      pip_install "ziglang==$(tr -d '[:space:]' <"$root/cmake/zig_version.txt")"
    fi
    compiler=$site/ziglang/zig
  fi
  say "the simulator's compiler is ${METAL_SIM_CLANG:-$compiler}"
fi
say "ready: cargo build${with_cuda:+ --features cuda}"
