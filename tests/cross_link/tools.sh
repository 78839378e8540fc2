# scripts/cross_link.sh, scripts/arm_linux.sh and others source this file. It installs their tools
# in .mlx/cross.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cross=$root/.mlx/cross
me=$(basename "$0" .sh)
logs=$cross/logs
zig_version=$(tr -d '[:space:]' <"$root/cmake/zig_version.txt")

say() { printf '%s\n' "$me: $*"; }
die() {
  printf '%s\n' "$me: error: $*" >&2
  exit 1
}

# logged NAME COMMAND...: runs a command and hides its output. If the command fails, shows the end
# of the output.
logged() {
  local log=$logs/$1.log
  shift
  "$@" >"$log" 2>&1 && return
  tail -n 40 "$log" >&2
  return 1
}

[ "$(uname -s)" = Linux ] || die "this stands in for a Mac on Linux; on a Mac run cargo test"
command -v python3 >/dev/null || die "python3 is not on PATH; install Python 3.10 or later"
mkdir -p "$logs" "$cross/bin"
export PIP_ROOT_USER_ACTION=ignore
pip=(python3 -m pip)
[ ! -x "$root/.mlx/venv/bin/pip" ] || pip=("$root/.mlx/venv/bin/python" -m pip)

# bring_python DIRECTORY PIP_ARGUMENT...: installs a PyPI package into DIRECTORY. It installs into a
# temporary directory first and renames that, so an interrupted run leaves no incomplete directory.
bring_python() {
  local directory=$1
  shift
  [ ! -d "$directory" ] || return 0
  say "bringing ${!#}"
  rm -rf "$directory.part"
  "${pip[@]}" install --quiet --disable-pip-version-check --no-deps --target "$directory.part" "$@" ||
    die "pip could not install ${!#}; check the network, and run scripts/build_metal.sh if pip is missing"
  mv "$directory.part" "$directory"
}

bring_zig() { bring_python "$cross/zig-$zig_version" "ziglang==$zig_version"; }

# zig_wrapper NAME COMMAND...: writes .mlx/cross/bin/NAME, a script that runs zig. Cargo, CMake and
# rustc pass target options for Apple or LLVM. The script removes them, because zig accepts only
# -target.
zig_wrapper() {
  local wrapper=$cross/bin/$1
  shift
  cat >"$wrapper.part" <<WRAPPER
#!/usr/bin/env bash
arguments=()
while [ \$# -gt 0 ]; do
  case \$1 in
    -arch | -isysroot) shift ;;
    --target=* | -mmacosx-version-min=* | -nodefaultlibs | -lgcc_eh | -lgcc_s) ;;
    *) arguments+=("\$1") ;;
  esac
  shift
done
unset SDKROOT
export ZIG_GLOBAL_CACHE_DIR='$cross/zig-cache' ZIG_LOCAL_CACHE_DIR='$cross/zig-cache'
exec '$cross/zig-$zig_version/ziglang/zig' $* "\${arguments[@]}"
WRAPPER
  chmod +x "$wrapper.part"
  # An unchanged wrapper keeps its time stamp, so nothing is built again because of it.
  if cmp -s "$wrapper.part" "$wrapper"; then rm "$wrapper.part"; else mv "$wrapper.part" "$wrapper"; fi
}

# bring_rust TARGET [STD_CRATES]: finds or installs Rust for TARGET. Sets `rust_cargo` to the cargo
# command, `rust_std` to its options for building std (none if std is installed), and `rust_said` to
# a description. If that fails, sets `rust_missing` to the reason.
bring_rust() {
  local target=$1 libdir suffix version needed directory package packages
  rust_cargo=(cargo) rust_std=()
  libdir=$(rustc --print target-libdir --target "$target" 2>/dev/null || true)
  if compgen -G "$libdir/libstd-*.rlib" >/dev/null; then
    rust_said="$(rustc --version | cut -d' ' -f1,2), installed target"
    return 0
  fi
  directory=$cross/rust
  if [ ! -x "$directory/rustc" ]; then
    # Unpack Debian's packages of the compiler and the source of std, without installing them. Both
    # must have the same version.
    needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
    for suffix in -web ""; do
      version=$(apt-cache policy "rustc$suffix" 2>/dev/null | sed -n 's/^ *Candidate: //p')
      if [ -n "$version" ] && dpkg --compare-versions "$version" ge "$needed"; then break; fi
      version=
    done
    rust_missing="no std for $target; 'rustup target add $target', or on Debian 'apt-get update', brings it"
    [ -n "$version" ] || return 1
    packages=("rustc$suffix" "rust$suffix-src" "libstd-rust$suffix-dev")
    for package in "libstd-rust$suffix-dev" "libstd-rust$suffix-$(cut -d. -f1,2 <<<"$version")"; do
      mapfile -t -O ${#packages[@]} packages < <(apt-cache depends "$package" |
        sed -n -E 's/^ +Depends: (libstd-rust.*|libllvm.*)/\1/p')
    done
    say "bringing Debian's rustc $version"
    rm -rf "$directory.part"
    mkdir -p "$directory.part/deb"
    (cd "$directory.part/deb" && logged rust-download apt-get -o APT::Sandbox::User=root download "${packages[@]}") ||
      { rust_missing="apt-get could not download ${packages[*]}" && return 1; }
    for package in "$directory.part"/deb/*.deb; do
      case $package in
        # Of the source package, unpack only the standard library.
        */rust*-src_*) dpkg --fsys-tarfile "$package" |
          tar -x -C "$directory.part" --wildcards './usr/lib/rustlib/*' './usr/src/*/library/*' ;;
        *) dpkg -x "$package" "$directory.part" ;;
      esac
    done
    rm -rf "$directory.part/deb"
    cat >"$directory.part/rustc" <<'WRAPPER'
#!/usr/bin/env bash
here=$(dirname "$(readlink -f "$0")")
libraries=("$here"/usr/lib/*-linux-gnu)
LD_LIBRARY_PATH=${libraries[0]} exec "$here/usr/bin/rustc" "$@"
WRAPPER
    chmod +x "$directory.part/rustc"
    "$directory.part/rustc" --version >/dev/null 2>&1 ||
      { rust_missing="Debian's rustc $version does not start on this system" && return 1; }
    mv "$directory.part" "$directory"
  fi
  rust_cargo=(env RUSTC="$directory/rustc" RUSTC_BOOTSTRAP=1 cargo)
  rust_std=(-Zbuild-std="${2:-std,panic_abort}")
  rust_said="$("$directory/rustc" --version | cut -d' ' -f1,2) of Debian, std built from source"
}
