#!/usr/bin/env bash
# Builds the kernels' tests and the command for ARM Linux, and runs them on emulated processors. It
# checks results, not speed. The kernels' tests and `generate` run on processors of several
# generations, and `verify` runs on one.
#
#   scripts/arm_linux.sh [PART...]   parts: kernels verify generate, by default all
#
# Needs Debian or Ubuntu on x86-64. On ARM, `cargo test` covers all of this.
set -euo pipefail
# shellcheck source=tests/cross_link/tools.sh
source "$(dirname "${BASH_SOURCE[0]}")/../tests/cross_link/tools.sh"

if [ "$(uname -m)" = aarch64 ]; then
  say "this machine is aarch64: cargo test covers it" && exit 0
fi
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(kernels verify generate)
for part in "${parts[@]}"; do
  case $part in kernels | verify | generate) ;; *) die "unknown part $part; there are kernels, verify and generate" ;; esac
done
target=aarch64-unknown-linux-gnu
triple=aarch64-linux-gnu
mlx_version=$(tr -d '[:space:]' <"$root/cmake/mlx_version.txt")

# unpack FOLDER PACKAGE...: downloads Debian packages and unpacks them without installation.
unpack() {
  local folder=$1 package
  shift
  rm -rf "$folder.part" && mkdir -p "$folder.part/deb"
  (cd "$folder.part/deb" && logged "download-$(basename "$folder")" apt-get -o APT::Sandbox::User=root download "$@") ||
    die "not run: apt-get could not download $1; run apt-get update, or install it"
  for package in "$folder.part"/deb/*.deb; do
    case $package in
      # The package has forty emulators. Only the one for ARM is needed.
      */qemu-user*) dpkg --fsys-tarfile "$package" | tar -x -C "$folder.part" --wildcards './usr/bin/qemu-aarch64*' ;;
      *) dpkg -x "$package" "$folder.part" ;;
    esac
  done
  rm -r "$folder.part/deb" && rm -rf "$folder" && mv "$folder.part" "$folder"
}

# Finds the emulator, or downloads it.
emulator=
for name in qemu-aarch64-static qemu-aarch64 "$cross/qemu/usr/bin/qemu-aarch64-static"; do
  emulator=$(command -v "$name") && break
done
if [ -z "$emulator" ]; then
  say "bringing Debian's qemu-user-static"
  unpack "$cross/qemu" qemu-user-static
  emulator=$cross/qemu/usr/bin/qemu-aarch64-static
fi

# Finds GCC for the target with its libraries, or downloads them.
if compiler=$(command -v $triple-g++); then
  sysroot=/usr/$triple
  tools=$(dirname "$compiler")
else
  sysroot=$cross/gcc/usr/$triple
  tools=$cross/bin
  if [ ! -d "$cross/gcc" ]; then
    say "bringing Debian's g++-$triple"
    mapfile -t packages < <(apt-get install --simulate --no-install-recommends g++-$triple 2>/dev/null |
      sed -n 's/^Inst \([^ ]*\) .*/\1/p')
    [ ${#packages[@]} -gt 0 ] || die "apt-get knows no g++-$triple; run apt-get update, or install it"
    unpack "$cross/gcc" "${packages[@]}"
    # The linker scripts name libraries by their installed paths, which do not exist here.
    grep -lE '^(GROUP|INPUT)' "$sysroot"/lib/*.so 2>/dev/null | xargs -r sed -i "s,/usr/$triple/lib/,,g"
  fi
  for name in gcc g++ ar ranlib objdump; do
    cat >"$tools/$triple-$name" <<WRAPPER
#!/usr/bin/env bash
LD_LIBRARY_PATH=\$(echo '$cross/gcc/usr/lib/'*-linux-gnu | tr ' ' :) exec '$cross/gcc/usr/bin/$triple-$name' "\$@"
WRAPPER
    chmod +x "$tools/$triple-$name"
  done
fi

mlx=$cross/mlx-$mlx_version-aarch64
[ -d "$mlx/mlx" ] || {
  say "bringing mlx-cpu $mlx_version"
  MLX_WHEELS_PLATFORM=manylinux_2_35_aarch64 python3 "$root/scripts/wheels.py" install "$mlx" "mlx-cpu==$mlx_version"
}
bring_rust "$target" std,panic_abort,test || die "not run: $rust_missing"

export CARGO_TARGET_DIR=$cross/target MLX_DIR=$mlx/mlx QEMU_LD_PREFIX=$sysroot
# Each build runs once, so it needs no incremental data and no debug information.
export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0
# The emulator lets CMake run an ARM program that asks libmlx for its version.
export CMAKE_CROSSCOMPILING_EMULATOR=$emulator
export CC_aarch64_unknown_linux_gnu=$tools/$triple-gcc CXX_aarch64_unknown_linux_gnu=$tools/$triple-g++
export AR_aarch64_unknown_linux_gnu=$tools/$triple-ar
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$tools/$triple-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER=$emulator
cargo_for_arm() {
  local command=$1
  shift
  # Optimize the kernels: the compiler takes less time for it than the emulator would lose on
  # unoptimized kernels.
  (cd "$root" && env -u RUSTFLAGS "${rust_cargo[@]}" "$command" "${rust_std[@]}" --target "$target" \
    --config 'profile.dev.package.mlx-primitives-kernels.opt-level=3' "$@")
}

# binary ARGUMENT...: builds tests for ARM, and prints the path of the program.
binary() {
  cargo_for_arm test --no-run --message-format json "$@" 2>"$logs/arm-build.log" |
    python3 -c 'import json, sys
for line in sys.stdin:
    message = json.loads(line) if line.startswith("{") else {}
    if message.get("profile", {}).get("test") and message.get("executable"):
        print(message["executable"])' || { tail -n 40 "$logs/arm-build.log" >&2 && die "cargo test --no-run $* failed"; }
}

# passed LOG: prints how many tests passed in a run, and fails if no test passed.
passed() {
  sed -n -E 's/^test result: ok\. ([1-9][0-9]*) passed.*/\1/p' "$1" | grep . || die "no test passed: $1"
}

# The emulated processors, each with the instruction set that the kernels choose on it: a Raspberry
# Pi 4; Graviton2, whose instructions the Raspberry Pi 5 also has; and a processor with the
# instructions of Graviton3 and DGX Spark.
processors=(cortex-a72:neon neoverse-n1:dotprod max:i8mm)

kernels() {
  local program processor filter log count
  program=$(binary -p mlx-primitives-kernels --test kernels)
  # Check that `on_i8mm` contains the instruction usdot. Compiled for another instruction set, the
  # function would give right results, but would be slow.
  "$tools/$triple-objdump" --disassemble --demangle --no-show-raw-insn "$program" |
    awk '/>:$/ { at = /::on_i8mm>/ } at && /\tusdot\t/ { count++ } END { exit count == 0 }' ||
    die "the products of digits for i8mm have no usdot"
  for processor in "${processors[@]}"; do
    # The kernels for dotprod and i8mm differ from neon only in the products of bytes. The tests of
    # all products would take most of an hour on an emulated processor. `verify` runs products on
    # max.
    case $processor in
      *:neon) filter=(--skip quantized_matmul::) ;;
      *) filter=(level:: bytes:: quantized_matmul::extremes::bytes quantized_matmul::extremes::digits) ;;
    esac
    log=$logs/arm-kernels-${processor%:*}.log
    QEMU_CPU=${processor%:*} "$emulator" "$program" --quiet "${filter[@]}" >"$log" 2>&1 ||
      { tail -n 40 "$log" >&2 && die "the kernels' tests fail on ${processor%:*}"; }
    count=$(passed "$log")
    say "${processor%:*}: $count tests of the kernels pass"
  done
}

# Builds the command without downloads of models: the crates for downloads take long to build. `run`
# runs the command.
command_built=
build_command() {
  [ -z "$command_built" ] || return 0
  logged arm-command cargo_for_arm build -p mlx-primitives-cli --no-default-features ||
    die "the command does not build"
  command_built=yes
}
run() { "$emulator" "$CARGO_TARGET_DIR/$target/debug/mlx-primitives" "$@"; }

# Runs the tests that the command contains. For every op, they check a part of its rows of the
# conformance table against references in double precision and against MLX's ops. They also check
# the tokens of the demo model.
verify() {
  build_command
  QEMU_CPU=max run verify --quiet --quick --device cpu --share 1/16 --only self-test decode \
    --output "$logs/arm-verify.md" || { cat "$logs/arm-verify.md" >&2; die "verify fails"; }
  say "verify: $(sed -n 3p "$logs/arm-verify.md")"
}

# Checks that the generated text begins with the text that mlx-lm generates on x86-64. The tests on
# x86-64 compare the same model with mlx-lm.
generate() {
  local processor level text want packed=$cross/demo-4bit
  build_command
  want=$(python3 -c 'import json, sys
found = [one for one in json.load(open(sys.argv[1]))["prompts"] if one["prompt"] == "Once upon a time"]
print(found[0]["float32"]["text"])' "$root/crates/cli/assets/greedy.json")
  for processor in "${processors[@]}"; do
    level=${processor#*:}
    export QEMU_CPU=${processor%:*}
    run info | grep -qE "^CPU kernels +$level," || die "$QEMU_CPU does not run the kernels for $level"
    text=$(run generate --quiet "Once upon a time")
    [[ "$text" == "$want"* ]] || die "$QEMU_CPU writes: $text"
    # Quantize the weights on the emulated processor, and run the model with them. The kernels for
    # quantized weights use products of bytes.
    rm -rf "$packed"
    run quantize --quiet --model "$root/crates/llama/assets/demo" --dtype bfloat16 --bits 4 --output "$packed"
    text=$(run generate --quiet --model "$packed" "Once upon a time")
    [[ "$text" == "$want"* ]] || die "$QEMU_CPU writes at 4 bits: $text"
    say "$QEMU_CPU ($level): the texts of the demo model are right"
  done
  unset QEMU_CPU
}

for part in "${parts[@]}"; do
  start=$SECONDS
  $part
  say "$part passed in $((SECONDS - start)) s"
done
