#!/usr/bin/env bash
# Builds and links the code for a Mac on Linux: cpp/ with its CMakeLists.txt against MLX's macOS
# wheels, then the crate and its command for aarch64-apple-darwin. It does not run the results.
#
#   scripts/cross_link.sh [--no-rust] [--all] [--mlx=VERSION]
#
# --no-rust skips the Rust half. --all fails if any part could not be run. --mlx selects the wheels
# of another version of MLX. The default is the version that scripts/build_metal.sh installs.
set -euo pipefail
# shellcheck source=tests/cross_link/tools.sh
source "$(dirname "${BASH_SOURCE[0]}")/../tests/cross_link/tools.sh"

rust=yes all=no
mlx_version=$(tr -d '[:space:]' <"$root/cmake/mlx_version.txt")
for option in "$@"; do
  case $option in
    --no-rust) rust=no ;;
    --all) all=yes ;;
    --mlx=?*) mlx_version=${option#--mlx=} ;;
    *) die "unknown option $option; there are --no-rust, --all and --mlx=VERSION" ;;
  esac
done

here=$root/tests/cross_link
sdk=$here/sdk
cxx_version=$(sed -n '/^name = "cxx"$/{n;s/version = "\(.*\)"/\1/p}' "$root/Cargo.lock")
releases=(14.0 26.0)
not_run=()

symbols() { python3 "$here/symbols.py" "$@"; }
wheel() { printf '%s' "$cross/mlx-$mlx_version-macos$1/mlx"; }
compiler() { printf '%s' "$cross/bin/macos${1%.0}-clang++"; }

# Installs the tools and the wheels.
bring_zig
zig_wrapper ar ar
zig_wrapper ranlib ranlib
zig_wrapper macos14-clang cc -target aarch64-macos.14.0 "-isystem '$sdk/include'"
for release in "${releases[@]}"; do
  zig_wrapper "macos${release%.0}-clang++" c++ -target "aarch64-macos.$release" "-isystem '$sdk/include'"
  bring_python "$cross/mlx-$mlx_version-macos$release" --only-binary=:all: \
    --platform "macosx_${release/./_}_arm64" "mlx-metal==$mlx_version"
done
cxxbridge=$cross/cxxbridge-$cxx_version/bin/cxxbridge
if [ ! -x "$cxxbridge" ]; then
  say "bringing cxxbridge-cmd $cxx_version"
  logged cxxbridge cargo install --debug --locked --root "${cxxbridge%/bin/*}" "cxxbridge-cmd@$cxx_version" ||
    die "cargo could not install cxxbridge-cmd $cxx_version; check the network"
fi
cmake=${CMAKE:-$root/.mlx/python/cmake/data/bin/cmake}
[ -x "$cmake" ] || cmake=$(command -v cmake) || die "CMake was not found; run scripts/build_metal.sh"
ninja=$root/.mlx/python/bin/ninja
generator=()
[ ! -x "$ninja" ] || generator=(-G Ninja -DCMAKE_MAKE_PROGRAM="$ninja")

# Generates the bridge in the layout of cxx-build, because target/ may be absent or old.
bridge=$cross/bridge
generate() {
  local output=$bridge/$1
  shift
  mkdir -p "$(dirname "$output")"
  "$cxxbridge" "$@" >"$output.part" || die "cxxbridge refuses $*"
  if cmp -s "$output.part" "$output"; then rm "$output.part"; else mv "$output.part" "$output"; fi
}
rm -rf "$bridge/sources" # which may have one of a file that is gone
sed -n '/^const BRIDGES/,/^];/s/.*"\(src[^"]*\)".*/\1/p' "$root/cmake/bridge.rs" >"$bridge/files.txt"
while read -r file; do
  generate "sources/mlx-primitives/$file.cc" "$root/$file"
  generate "include/mlx-primitives/$file.h" "$root/$file" --header
done <"$bridge/files.txt"
generate include/rust/cxx.h --header
cxx=$(cd "$root" && cargo metadata --quiet --locked --format-version 1 --filter-platform aarch64-apple-darwin |
  python3 -c 'import json, sys
print(*(p["manifest_path"] for p in json.load(sys.stdin)["packages"] if p["name"] == "cxx"))') ||
  die "cargo metadata failed; check the network, and Cargo.lock"
cxx=$(dirname "$cxx")

# compile RELEASE: compiles cpp/ as on a Mac. check_mlx.cmake would run a program for macOS, so this
# function passes the program's result to CMake (probe_ran).
compile() {
  local release=$1 build=$cross/build-$mlx_version-$1
  logged "configure-$release" "$cmake" -S "$root/cpp" -B "$build" "${generator[@]}" \
    -DCMAKE_SYSTEM_NAME=Darwin -DCMAKE_SYSTEM_PROCESSOR=arm64 -DCMAKE_OSX_SYSROOT= \
    -DCMAKE_CXX_COMPILER="$(compiler "$release")" \
    -DCMAKE_AR="$cross/bin/ar" -DCMAKE_RANLIB="$cross/bin/ranlib" \
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
    -DMLX_DIR="$(wheel "$release")/share/cmake/MLX" -DMLX_HEADER_VERSION="$mlx_version" \
    -DCXXBRIDGE_DIR="$bridge" -DBUILT_METALLIB="$root/.mlx/mlx_primitives.metallib" \
    -Dprobe_ran=0 -Dprobe_ran__TRYRUN_OUTPUT="$mlx_version" ||
    die "cpp/CMakeLists.txt does not configure for macOS $release"
  logged "build-$release" env MLX_PRIMITIVES_WERROR=1 "$cmake" --build "$build" --parallel "$(nproc)" ||
    die "cpp/ does not compile for macOS $release"
  "$(compiler "$release")" -std=c++20 -I "$cxx/include" -c "$cxx/src/cxx.cc" -o "$build/cxx.o" \
    2>"$logs/cxx-$release.log" || die "cxx's own runtime does not compile for macOS $release"
}

# objects RELEASE: prints the objects that the build lists. The folder may also have the object of a
# removed source.
objects() {
  python3 -c 'import json, sys
for entry in json.load(open(sys.argv[1] + "/compile_commands.json")):
    print(sys.argv[1] + "/" + entry["output"])' "$cross/build-$mlx_version-$1"
}

# link RELEASE OUTPUT OBJECT...: links with the libraries that cpp/ needs from the system and MLX.
link() {
  local release=$1 output=$2
  shift 2
  "$(compiler "$release")" -shared "$@" -L "$(wheel "$release")/lib" -lmlx -L "$sdk/lib" -lobjc \
    -o "$output" >"$output.log" 2>&1
}

# The C++ objects use symbols with these names, which Rust defines. The link below gets a dummy
# label for each of them, so that it fails only if other symbols are undefined.
rust_symbols='^_((mlx_primitives\$bridge\$)?cxxbridge1\$|mlxp_cpu_)'

count=0
declare -A taken
for release in "${releases[@]}"; do
  say "compiling and linking for macOS $release"
  compile "$release"
  build=$cross/build-$mlx_version-$release
  mapfile -t files < <(objects "$release")
  count=$((count + ${#files[@]}))
  symbols undefined "${files[@]}" "$build/cxx.o" | { grep -E "$rust_symbols" || true; } >"$build/rust_symbols.txt"
  sed 's/.*/.globl "&"\n"&": ret/' "$build/rust_symbols.txt" >"$build/rust_symbols.s"
  "$(compiler "$release")" -c "$build/rust_symbols.s" -o "$build/rust_symbols.o"
  files+=("$build/cxx.o" "$build/rust_symbols.o")
  if ! link "$release" "$build/cross.dylib" "${files[@]}"; then
    grep -A 1 'error:' "$build/cross.dylib.log" | head -n 40 >&2 || true
    die "cpp/ does not link against MLX $mlx_version for macOS $release"
  fi
  taken[$release]=$(symbols from libmlx.dylib "$build/cross.dylib")
done

# The wheel for each release of macOS must export every symbol that any of the builds uses, because
# a binary that was built for one release also runs on the others.
all_taken=$(printf '%s\n' "${taken[@]}" | sort -u)
for release in "${releases[@]}"; do
  absent=$(LC_ALL=C comm -23 <(LC_ALL=C sort <<<"$all_taken") <(symbols exported "$(wheel "$release")/lib/libmlx.dylib" | LC_ALL=C sort))
  [ -z "$absent" ] || die "MLX $mlx_version for macOS $release does not export: $absent"
done
mlx_symbols=$(wc -l <<<"$all_taken")
say "$mlx_symbols MLX symbols used; the macOS ${releases[*]} wheels export each of them"

# Checks that a faulty link fails: the linker must report each planted mistake, and nothing else.
release=${releases[0]} build=$cross/build-$mlx_version-${releases[0]}
mapfile -t files < <(objects "$release")
files+=("$build/cxx.o" "$build/rust_symbols.o")
for plant in unexported:contiguous_copy_gpu wrong_signature:softmax; do
  object=$build/${plant%%:*}.o log=$build/plant.dylib.log
  "$(compiler "$release")" -std=c++20 -I "$(wheel "$release")/include" \
    -c "$here/plants/${plant%%:*}.cpp" -o "$object" 2>"$logs/plant.log" ||
    die "tests/cross_link/plants/${plant%%:*}.cpp does not compile"
  ! link "$release" "$build/plant.dylib" "${files[@]}" "$object" ||
    die "a planted mistake links: ${plant%%:*}"
  [ "$(grep -c 'undefined symbol' "$log")" = 1 ] && grep -q "undefined symbol: .*${plant#*:}" "$log" ||
    die "a planted mistake is not named by the linker: ${plant%%:*}"
  say "planted ${plant%%:*}: refused, $(grep -o 'undefined symbol: [^ ]*' "$log")"
done

# Builds Rust's std, the dependencies, the library and the command, and links them with the same C++
# objects, without the dummy labels. Then checks the types of all code that `cargo test` compiles on
# a Mac.
rust_for_apple() {
  local target=aarch64-apple-darwin log=$logs/rust.log build=$cross/build-$mlx_version-14.0 arguments file binary cargo
  arguments=(-Clinker="$(compiler 14.0)")
  while read -r file; do arguments+=("-Clink-arg=$file"); done < <(objects 14.0)
  for file in "-L$(wheel 14.0)/lib" -lmlx "-L$sdk/lib" -lobjc "-F$sdk/frameworks"; do
    arguments+=("-Clink-arg=$file")
  done
  # With DOCS_RS, build.rs does not look for MLX. The objects above replace the output of build.rs.
  cargo=(env -u RUSTFLAGS -C "$root" DOCS_RS=1 SDKROOT="$sdk" MACOSX_DEPLOYMENT_TARGET=14.0
    CARGO_TARGET_DIR="$cross/target" CARGO_TERM_COLOR=never
    CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_STRIP=none
    CC_aarch64_apple_darwin="$cross/bin/macos14-clang" CXX_aarch64_apple_darwin="$(compiler 14.0)" AR_aarch64_apple_darwin="$cross/bin/ar"
    "${rust_cargo[@]}")
  logged rust "${cargo[@]}" rustc --locked -p mlx-primitives-cli "${rust_std[@]}" --target "$target" --bin mlx-primitives \
    -- "${arguments[@]}" || die "the crate does not build for $target"
  logged rust-tests "${cargo[@]}" check --locked "${rust_std[@]}" --target "$target" --all-targets ||
    die "what cargo test compiles has errors for $target"
  ! grep -E 'mlx-primitives.* generated [0-9]+ warning' "$log" >&2 ||
    die "the crate has warnings for $target: .mlx/cross/logs/rust.log"
  binary=$cross/target/$target/debug/mlx-primitives
  say "mlx-primitives for $target: linked, $(symbols from libmlx.dylib "$binary" | wc -l) MLX symbols bound ($rust_said)"
}
if [ "$rust" = no ]; then
  not_run+=("the Rust half for aarch64-apple-darwin (--no-rust)")
elif bring_rust aarch64-apple-darwin; then
  say "building the crate for aarch64-apple-darwin"
  rust_for_apple
else
  not_run+=("the Rust half for aarch64-apple-darwin: $rust_missing")
fi

for part in "${not_run[@]}"; do say "not run: $part"; done
say "$count objects, ${#releases[@]} wheels, $mlx_symbols MLX symbols, 0 undefined"
[ "$all" = no ] || [ ${#not_run[@]} = 0 ] || die "--all was asked for and not all was run"
