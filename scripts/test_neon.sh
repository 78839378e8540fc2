#!/usr/bin/env bash
# Runs the tests of crates/kernels on an emulated aarch64 processor, to check the results of NEON, not its
# speed.
#
#   scripts/test_neon.sh [TEST_FILTER...]
set -euo pipefail
# shellcheck source=tests/cross_link/tools.sh
source "$(dirname "${BASH_SOURCE[0]}")/../tests/cross_link/tools.sh"

target=aarch64-unknown-linux-musl
runner=
if [ "$(uname -m)" = aarch64 ]; then
  say "this machine is aarch64: cargo test covers it" && exit 0
fi
for name in qemu-aarch64-static qemu-aarch64 "$cross/qemu/usr/bin/qemu-aarch64-static"; do
  runner=$(command -v "$name") && break
done
if [ -z "$runner" ]; then
  say "bringing Debian's qemu-user-static"
  rm -rf "$cross/qemu.part" && mkdir -p "$cross/qemu.part"
  (cd "$cross/qemu.part" && logged qemu apt-get -o APT::Sandbox::User=root download qemu-user-static) ||
    die "no qemu-aarch64 here and apt-get could not download qemu-user-static; install it, or run apt-get update"
  # The package has forty emulators; unpack only one.
  dpkg --fsys-tarfile "$cross"/qemu.part/*.deb | tar -x -C "$cross/qemu.part" ./usr/bin/qemu-aarch64-static
  rm "$cross"/qemu.part/*.deb && rm -rf "$cross/qemu" && mv "$cross/qemu.part" "$cross/qemu"
  runner=$cross/qemu/usr/bin/qemu-aarch64-static
fi
bring_zig
zig_wrapper musl-clang cc -target aarch64-linux-musl -lunwind
bring_rust "$target" std,panic_abort,test || die "not run: $rust_missing"

# Outside of the workspace, whose other crates need more tools than the kernels do.
crate=$cross/neon
mkdir -p "$crate"
cp "$root/Cargo.lock" "$crate/"
cp "$root/crates/kernels/Cargo.toml" "$crate/"
ln -sfn "$root/crates/kernels/src" "$crate/src"
ln -sfn "$root/crates/kernels/tests" "$crate/tests"
ln -sfn "$root/crates/kernels/README.md" "$crate/README.md"
cat >>"$crate/Cargo.toml" <<CRATE

[profile.dev]
opt-level = 1
debug = 0
strip = "none"
debug-assertions = false
overflow-checks = false

[workspace]

CRATE
sed -n '/^\[workspace\.package\]/,/^$/p' "$root/Cargo.toml" >>"$crate/Cargo.toml"

# zig includes musl and the unwinder, so nothing needs to be installed for the target.
cd "$crate"
say "testing crates/kernels for $target ($rust_said) under $(basename "$runner")"
CARGO_TARGET_DIR=$cross/target \
  RUSTFLAGS="-Clink-self-contained=no -Ctarget-feature=+crt-static" \
  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=$cross/bin/musl-clang \
  CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=$runner \
  "${rust_cargo[@]}" test --quiet "${rust_std[@]}" --target "$target" --test kernels -- "$@" 2>&1 |
  tee "$logs/neon.log"
grep -qE '^test result: ok\. [1-9][0-9]* passed' "$logs/neon.log" || die "no test passed"
