#!/usr/bin/env bash
# Follows README in minimal systems of Debian and Ubuntu. The install script and the first command
# must work with the packages that README names and no others. If a program is missing or too old,
# one sentence must say so.
#
#   scripts/bare_roots.sh [--no-build] [--target FOLDER] [SYSTEM...]
#
# SYSTEM is bookworm or trixie (Debian 12, 13), jammy or noble (Ubuntu 22.04, 24.04), or bullseye
# (Debian 11, whose g++ and glibc are too old). By default it tests all of them. It needs root and
# debootstrap, and for Ubuntu the file with Ubuntu's keys, which UBUNTU_KEYRING names. Minimal
# systems are kept in .mlx/roots, and the changes of each case are discarded. The systems use the
# Rust of this machine in place of rustup's.
#
# --no-build skips the cases that compile the crate. --target keeps compiled dependencies in a
# folder, so that the next system compiles only the crate again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
say() { printf '%s\n' "bare_roots: $*"; }
die() {
  printf '%s\n' "bare_roots: error: $*" >&2
  exit 1
}
[ "$(id -u)" = 0 ] || die "this mounts minimal systems; run it as root"
command -v debootstrap >/dev/null || die "debootstrap is not on PATH; on Debian, apt-get install debootstrap"
# Runs in a separate mount namespace, so that the mounts disappear when the script ends.
[ -n "${BARE_ROOTS_INSIDE:-}" ] || exec env BARE_ROOTS_INSIDE=yes unshare --mount "$root/scripts/bare_roots.sh" "$@"

build=yes target='' systems=()
while [ $# -gt 0 ]; do
  case $1 in
    --no-build) build='' ;;
    --target)
      mkdir -p "$2"
      target=$(cd "$2" && pwd)
      shift
      ;;
    bullseye | bookworm | trixie | jammy | noble) systems+=("$1") ;;
    *) die "unknown argument $1" ;;
  esac
  shift
done
[ ${#systems[@]} -gt 0 ] || systems=(bookworm trixie jammy noble bullseye)

roots=${BARE_ROOTS:-$root/.mlx/roots}
mkdir -p "$roots"
work=$(mktemp -d "$roots/work.XXXXXX")
leave() {
  umount --recursive "$work/copy" 2>/dev/null || true
  rm -rf "$work"
}
trap leave EXIT
rust=$(rustc --print sysroot)
passed=0

# bring SYSTEM: installs a minimal system from its distribution's mirror, unless it exists.
bring() {
  [ ! -d "$roots/$1" ] || return 0
  say "bringing $1"
  case $1 in
    jammy | noble)
      debootstrap --variant=minbase --keyring="${UBUNTU_KEYRING:-/usr/share/keyrings/ubuntu-archive-keyring.gpg}" \
        "$1" "$roots/$1.part" http://archive.ubuntu.com/ubuntu /usr/share/debootstrap/scripts/gutsy
      ;;
    *) debootstrap --variant=minbase "$1" "$roots/$1.part" http://deb.debian.org/debian ;;
  esac >"$roots/$1.log" 2>&1 || die "debootstrap could not install $1: $(tail -n 1 "$roots/$1.log")"
  umount "$roots/$1.part/proc" 2>/dev/null || true
  # Ubuntu's clang is in the component universe, which Ubuntu's usual images enable.
  case $1 in jammy | noble) sed -i 's/ main$/ main universe/' "$roots/$1.part/etc/apt/sources.list" ;; esac
  mv "$roots/$1.part" "$roots/$1"
}

# fresh SYSTEM FOLDER: mounts an unchanged system, and copies the repository's files to a folder in
# it.
fresh() {
  umount --recursive "$work/copy" 2>/dev/null || true
  rm -rf "$work/changes" "$work/overlay"
  mkdir -p "$work/changes" "$work/overlay" "$work/copy"
  mount -t overlay overlay -o "lowerdir=$roots/$1,upperdir=$work/changes,workdir=$work/overlay" "$work/copy"
  mount -t proc proc "$work/copy/proc"
  mount --rbind /dev "$work/copy/dev"
  mkdir -p "$work/copy/opt/rust" "$work/copy/opt/target" "$work/copy/$2"
  mount --bind "$rust" "$work/copy/opt/rust"
  [ -z "$target" ] || mount --bind "$target" "$work/copy/opt/target"
  cp -L /etc/resolv.conf "$work/copy/etc/resolv.conf"
  # If SSL_CERT_FILE is set, downloads may go through a proxy that needs this certificate.
  [ -z "${SSL_CERT_FILE:-}" ] || cp -L "$SSL_CERT_FILE" "$work/copy/opt/certificates"
  git ls-files -z --cached --others --exclude-standard | tar -c --null --files-from=- --ignore-failed-read 2>/dev/null |
    tar -x -C "$work/copy/$2"
  system=$1 clone=$2 with_rust='' with_certificates=''
}

# inside COMMAND: runs the command in the mounted system, in the copy of the repository.
inside() {
  local path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin environment=(LANG=C.UTF-8 HOME=/root)
  [ -z "$with_rust" ] || path=/opt/rust/bin:$path
  [ -z "$with_certificates" ] || [ -z "${SSL_CERT_FILE:-}" ] || environment+=(SSL_CERT_FILE=/opt/certificates)
  [ -z "$target" ] || environment+=(CARGO_TARGET_DIR=/opt/target)
  chroot "$work/copy" env -i "PATH=$path" "${environment[@]}" bash -c "cd '$clone' && $1" </dev/null
}

packages() {
  inside "(apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends $*)" \
    >"$work/apt.log" 2>&1 || die "$system: apt-get could not install $*: $(tail -n 1 "$work/apt.log")"
}

# says WHAT COMMAND TEXT: checks that the command fails and that its last line contains the text.
says() {
  ! inside "$2" >"$work/log" 2>&1 || die "$system, $1: expected a failure"
  tail -n 1 "$work/log" | grep -qF -- "$3" || die "$system, $1: expected '$3', got: $(tail -n 3 "$work/log")"
  say "$system, $1: $(tail -n 1 "$work/log")"
  passed=$((passed + 1))
}

# works WHAT COMMAND TEXT: checks that the command succeeds and prints the text.
works() {
  inside "$2" >"$work/log" 2>&1 || die "$system, $1: $(tail -n 10 "$work/log")"
  grep -qF -- "$3" "$work/log" || die "$system, $1: expected '$3', got: $(tail -n 10 "$work/log")"
  say "$system, $1: works"
  passed=$((passed + 1))
}

# read_only yes|no: makes the copy of the repository read-only for all users, or writable again.
read_only() {
  if [ "$1" = no ]; then
    umount "$work/copy$clone"
  else
    mount --bind "$work/copy$clone" "$work/copy$clone"
    mount -o remount,bind,ro "$work/copy$clone"
  fi
}

install=scripts/build_metal.sh
first='scripts/build_metal.sh && cargo run --release -- generate "Once upon a time"'
grep -qxF "$first" README.md || die "README has another first command"
named=$(sed -n 's/^.*`apt-get install \([^`]*\)`.*$/\1/p' README.md | head -n 1)
[ -n "$named" ] || die "README names no packages"

# scripts/build_metal.sh must name missing tools one by one, in the order in which it checks them.
from_nothing() {
  fresh "$1" /home/me/mlx-primitives
  says "nothing is installed" $install "cargo is not on PATH, and Rust 1.89 or later is needed; install it by https://rustup.rs"
  with_rust=yes
  says "no compiler" $install "no C++ compiler was found as c++; install one (Debian, Ubuntu: apt-get install g++"
  packages g++
  if [ "$1" = bullseye ]; then
    says "g++ 10" $install "c++ does not compile C++20 as g++ 11 and clang 15 do; install a later one"
    packages python3
    with_certificates=yes
    says "glibc 2.31" "CXX=true $install" "which has glibc 2.31 on x86_64: there are only those for glibc 2.35 or later on x86_64; use such a system"
    return
  fi
  says "no Python" $install "install Python 3.8 or later (Debian, Ubuntu: apt-get install python3)"
  packages python3
  says "no certificates" $install "apt-get install ca-certificates"
  packages "$named"
  with_certificates=yes
  works "README's packages" $install "ready: cargo build"
  works "a second run" "$install 2>&1 | { ! grep installing; } && echo kept" kept
  works "nothing for tests" 'ls .mlx/python && test ! -e .mlx/python/ziglang' mlx
  read_only yes
  works "a read-only folder with .mlx" $install "ready: cargo build"
  read_only no
}

others() {
  fresh "$1" "/home/me/my clone"
  packages "$named"
  with_rust=yes with_certificates=yes
  works "spaces in the path" $install "ready: cargo build"
  rm -r "$work/copy$clone/.mlx"
  read_only yes
  says "a read-only folder" $install ".mlx cannot be written, and mlx-cpu"
  read_only no
  says "another user's folder" "setpriv --reuid=65534 --regid=65534 --clear-groups env -u HOME $install" \
    ".mlx cannot be written"
  inside "chown -R 65534:65534 ." # its own folder
  works "a user without HOME" "setpriv --reuid=65534 --regid=65534 --clear-groups env -u HOME $install" "ready: cargo build"

  fresh "$1" /home/me/mlx-primitives
  packages cargo
  says "the distribution's cargo" $install "is too old, and 1.89 or later is needed; install it by https://rustup.rs"

  fresh "$1" /home/me/mlx-primitives
  packages clang python3 ca-certificates
  with_rust=yes with_certificates=yes
  case $1 in
    bookworm | jammy) says "clang alone" $install "c++ does not compile C++20 as g++ 11 and clang 15 do" ;;
    *) works "clang alone" $install "ready: cargo build" ;;
  esac
}

# Runs README's first command.
builds() {
  fresh "$1" /home/me/mlx-primitives
  packages "$named"
  with_rust=yes with_certificates=yes
  if [ -n "$target" ]; then inside "cargo clean --release -p mlx-primitives -p mlx-primitives-cli" >/dev/null 2>&1 || true; fi
  works "README's first command" "$first" "Once upon a time"
  say "$1: $(inside 'c++ --version | head -n 1'), the story: $(grep -m 1 'Once upon a time' "$work/log" | cut -c 1-60)..."
}

for system in "${systems[@]}"; do
  bring "$system"
  from_nothing "$system"
  [ "$system" != bullseye ] || continue
  others "$system"
  [ -z "$build" ] || builds "$system"
done
say "$passed cases in ${systems[*]} are as expected${build:+, the build among them}"
