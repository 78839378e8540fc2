#!/usr/bin/env bash
# Installs MLX, CMake and Ninja in .mlx/ if the build needs them and this machine lacks them. On
# macOS, it also compiles metal/*.metal into mlx_primitives.metallib. A second run keeps all
# installed files.
#
#   scripts/build_metal.sh [--cuda] [--simulator]
#
# --cuda also installs MLX for NVIDIA GPUs, NVRTC and CUDA's headers, for the feature `cuda`.
# --simulator also finds or installs a clang on Linux, for the tests that simulate Metal. These
# tests run the script with --simulator themselves.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
tools=$root/.mlx
site=$tools/python
pinned=$(tr -d '[:space:]' <"$root/cmake/mlx_version.txt")
oldest=$(tr -d '[:space:]' <"$root/cmake/mlx_oldest.txt")
line=${pinned%.*}
system=$(uname -s)

say() { printf '%s\n' "build_metal: $*" >&2; }
die() {
  say "error: $*"
  exit 1
}

with_cuda= with_simulator=
for argument in "$@"; do
  case $argument in
    --cuda) with_cuda=yes ;;
    --simulator) with_simulator=yes ;;
    *) die "unknown argument $argument; usage: scripts/build_metal.sh [--cuda] [--simulator]" ;;
  esac
done
[ -z "$with_cuda" ] || [ "$system" = Linux ] || die "--cuda is for Linux: MLX has no CUDA on $system"

# at_least WANTED FOUND: succeeds if version FOUND is WANTED or later, by the first two numbers.
at_least() {
  local wanted_major wanted_minor major minor
  IFS=. read -r wanted_major wanted_minor _ <<<"$1"
  IFS=. read -r major minor _ <<<"$2"
  [ "${major:-0}" -gt "$wanted_major" ] || { [ "${major:-0}" -eq "$wanted_major" ] && [ "${minor:-0}" -ge "$wanted_minor" ]; }
}

# Checks for the tools that only the user can install, before the first download.
rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
rust_cure="install it by https://rustup.rs"
command -v cargo >/dev/null || die "cargo is not on PATH, and Rust $rust or later is needed; $rust_cure"
found=$(rustc --version 2>/dev/null | sed -n -E 's/^rustc ([0-9.]+).*/\1/p') || found=
[ -n "$found" ] || die "rustc does not start; install Rust $rust or later by https://rustup.rs"
at_least "$rust" "$found" || die "Rust $found is too old, and $rust or later is needed; $rust_cure"
if [ "$system" = Darwin ]; then
  [ "$(sysctl -n hw.optional.arm64 2>/dev/null)" = 1 ] ||
    die "this Mac has an Intel processor, and MLX is for Apple silicon; use a Mac with an M1 or later"
  [ "$(sysctl -n sysctl.proc_translated 2>/dev/null)" != 1 ] ||
    die "this shell is for Intel, and MLX is for Apple silicon; open a terminal that does not use Rosetta"
  [[ "$(rustc -vV)" != *"host: x86_64-apple-darwin"* ]] ||
    die "this Rust is for Intel, and MLX is for Apple silicon; install Rust for aarch64-apple-darwin by https://rustup.rs"
fi

compiler_cure="Debian, Ubuntu: apt-get install g++; macOS: xcode-select --install"
cxx=${CXX:-c++}
command -v "${cxx%% *}" >/dev/null || die "no C++ compiler was found as ${cxx%% *}; install one ($compiler_cure), or name one in CXX"
# shellcheck disable=SC2086 # CXX may hold options
$cxx -std=c++20 -fsyntax-only -x c++ - >/dev/null 2>&1 <<'PROGRAM' ||
#include <concepts>
#if defined(__clang__) ? __clang_major__ < 15 : __GNUC__ < 11
#error too old
#endif
PROGRAM
  die "$cxx does not compile C++20 as g++ 11 and clang 15 do; install a later one ($compiler_cure), or name one in CXX"

writable() {
  mkdir -p "$tools" 2>/dev/null && [ -w "$tools" ] ||
    die "$tools cannot be written, and $1 is needed there; use a copy of the folder that you can write"
}

# install PACKAGE...: unpacks wheels into .mlx/python, separate from the user's packages.
install() {
  install_into "$site" "$@"
}
install_into() {
  local folder=$1 failure status=0
  shift
  writable "$1"
  command -v python3 >/dev/null ||
    die "python3 is not on PATH, which fetches $1; install Python 3.8 or later (Debian, Ubuntu: apt-get install python3)"
  say "installing $* into ${folder#"$root/"}"
  failure=$(python3 "$root/scripts/wheels.py" install "$folder" "$@" 2>&1) || status=$?
  [ "$status" != 3 ] || die "$failure; use such a system, or build MLX yourself and name its folder in MLX_DIR"
  [ "$status" = 0 ] || die "$failure"
}

# version_at PREFIX: prints the version in an MLX prefix's headers, or nothing.
version_at() {
  local header=$1/include/mlx/version.h
  [ -f "$header" ] || return 0
  sed -n -E 's/^#define MLX_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+).*/\2/p' "$header" | paste -sd. -
}

# supported VERSION: succeeds if the crate supports that version of MLX.
supported() {
  [ "${1%.*}" = "$line" ] && [ "${1##*.}" -ge "${oldest##*.}" ]
}

# Finds MLX in MLX_DIR, from an earlier run, or from Homebrew; otherwise installs the wheel.
mlx=
for prefix in "${MLX_DIR:-}" "$site/mlx" /opt/homebrew/opt/mlx /usr/local/opt/mlx; do
  [ -n "$prefix" ] || continue
  found=$(version_at "$prefix")
  if [ -n "$found" ] && supported "$found"; then
    mlx=$prefix
    break
  elif [ "$prefix" = "${MLX_DIR:-}" ]; then
    [ -n "$found" ] || die "MLX_DIR=$prefix holds no include/mlx/version.h; point it at an MLX install prefix or unset it"
    die "MLX_DIR=$prefix holds MLX $found, and MLX $line.z from $oldest on is needed; point it elsewhere or unset it"
  elif [ -n "$found" ]; then
    say "passing over MLX $found in $prefix: MLX $line.z from $oldest on is needed"
  fi
done
if [ -z "$mlx" ]; then
  case $system in
    Darwin) install "mlx-metal==$pinned" ;;
    Linux) install "mlx-cpu==$pinned" ;;
    *) die "no MLX wheel exists for $system; macOS on Apple silicon and Linux are supported" ;;
  esac
  mlx=$site/mlx
  [ -n "$(version_at "$mlx")" ] || die "the MLX wheel has no headers under $mlx; remove .mlx and run this again"
fi
version=$(version_at "$mlx")
say "MLX $version in $mlx"

# An installed command still needs MLX's libraries after the user removes the clone. The script
# therefore also keeps them in the user's data folder, where build.rs makes the command search. They
# are hard links if that folder is on the same disk.
data=${XDG_DATA_HOME:-${HOME:+$HOME/.local/share}}
kept=$data/mlx-primitives/mlx-$version
if [ "$mlx" = "$site/mlx" ] && [ -n "$data" ] && [ ! -d "$kept" ]; then
  rm -rf "$kept.part" 2>/dev/null || true
  if mkdir -p "$kept.part" 2>/dev/null; then
    (cd "$site" && for file in mlx/lib/* mlx_*.libs/*; do
      [ -f "$file" ] || continue
      mkdir -p "$kept.part/$(dirname "$file")" || exit 1
      ln "$file" "$kept.part/$file" 2>/dev/null || cp "$file" "$kept.part/$file" || exit 1
    done) && mv "$kept.part" "$kept" || die "$kept.part cannot be written; make room on its disk"
    say "MLX's libraries stay in $kept, for an installed command"
  else
    say "$data cannot be written: an installed command will need $site/mlx"
  fi
fi

# Installs MLX for NVIDIA GPUs, without the libraries that only a machine with such a GPU needs.
if [ -n "$with_cuda" ]; then
  cuda=$tools/cuda
  if [ "$(version_at "$cuda/mlx")" != "$pinned" ] || [ ! -e "$cuda/nvidia/cu13/lib/libnvrtc.so.13" ] ||
    [ ! -e "$cuda/nvidia/cu13/include/crt/host_defines.h" ]; then
    install_into "$cuda" "mlx-cuda-13==$pinned" "nvidia-cuda-nvrtc==13.0.*" \
      "nvidia-cuda-runtime==13.0.*" "nvidia-cuda-crt==13.0.*"
  fi
  say "MLX $(version_at "$cuda/mlx") for CUDA in $cuda/mlx"
fi

# Installs CMake unless 3.25 or later is found, and Ninja if there is neither make nor Ninja.
cmake_is_new_enough() {
  command -v cmake >/dev/null && at_least 3.25 "$(cmake --version 2>/dev/null | sed -n '1s/[^0-9]*//p')"
}
if ! cmake_is_new_enough && [ ! -x "$site/cmake/data/bin/cmake" ]; then
  install "cmake==3.31.6"
fi
if ! command -v make >/dev/null && ! command -v ninja >/dev/null && [ ! -x "$site/bin/ninja" ]; then
  install "ninja==1.11.1.4"
fi

# Compiles the kernels. The library also embeds their source, so a Mac without Xcode works too.
if [ "$system" = Darwin ]; then
  cmake=${CMAKE:-$site/cmake/data/bin/cmake}
  [ -x "$cmake" ] || cmake=$(command -v cmake)
  mkdir -p "$tools"
  "$cmake" -DMETAL_DIR="$root/metal" -DOUTPUT="$tools/mlx_primitives.metallib" \
    -P "$root/cmake/compile_metal.cmake" || die "the kernels were not compiled"
else
  say "$system has no Metal: the kernels of crates/kernels are used here"
fi

# Finds the simulator's compiler: clang 17 or later, or the clang inside zig.
if [ -n "$with_simulator" ] && [ "$system" = Linux ]; then
  compiler=${METAL_SIM_CLANG:-}
  for name in clang++-22 clang++-21 clang++-20 clang++-19 clang++-18 clang++-17 clang++; do
    [ -z "$compiler" ] || break
    if at_least 17 "$("$name" -dumpversion 2>/dev/null)"; then compiler=$(command -v "$name"); fi
  done
  [ -n "$compiler" ] || compiler=$(command -v zig || command -v python-zig || true)
  if [ -z "$compiler" ]; then
    [ -x "$site/ziglang/zig" ] || install "ziglang==$(tr -d '[:space:]' <"$root/cmake/zig_version.txt")"
    compiler=$site/ziglang/zig
  fi
  say "the simulator's compiler is $compiler"
fi
say "ready: cargo build${with_cuda:+ --features cuda}"
