# Functions that install tools into .mlx/cross. scripts/agx.sh sources this file after
# tests/cross_link/tools.sh.
# shellcheck shell=bash

mesa_version=$(tr -d '[:space:]' <"$root/cmake/mesa_version.txt")
clang_version=$(tr -d '[:space:]' <"$root/cmake/clang_version.txt")
clang_root=$cross/clang-$clang_version
mesa=$cross/mesa-$mesa_version
agxstat=$cross/agxstat-$mesa_version-$(cat "$root"/tests/agx/*.[ch] "$root"/tests/agx/*.patch | sha256sum | cut -c 1-12)
meson=$cross/meson-1.12.1

# `missing WHY` prints why no table can be made, and ends the script.
missing() {
  say "not run: what the kernels cost: $*"
  [ "$lenient" = yes ] && exit 0
  exit 1
}

# apt-get reads Debian's lists of packages from a separate folder, not the lists of this machine.
debian=(-q -o "Dir::Etc::sourcelist=$cross/apt/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::status=/dev/null
  -o "Dir::State::lists=$cross/apt/lists" -o "Dir::Cache=$cross/apt/cache" -o APT::Architecture=amd64 -o APT::Sandbox::User=root)
read_lists() {
  local key=/usr/share/keyrings/debian-archive-keyring.gpg
  [ ! -f "$cross/apt/read" ] || return 0
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
    missing "clang $clang_version and Mesa's source come from Debian's archive, and there is no apt-get; use Debian or Ubuntu"
  [ -f "$key" ] || missing "$key is missing; apt-get install debian-archive-keyring"
  say "reading Debian's lists of packages"
  rm -rf "$cross/apt" && mkdir -p "$cross/apt/lists/partial" "$cross/apt/cache/archives/partial"
  cat >"$cross/apt/sources.list" <<SOURCES
deb [signed-by=$key] http://deb.debian.org/debian-security bookworm-security main
deb-src [signed-by=$key] http://deb.debian.org/debian trixie main
SOURCES
  logged agx-lists apt-get "${debian[@]}" update ||
    missing "apt-get could not read Debian's lists; check the network"
  touch "$cross/apt/read"
}

# Downloads clang, opt, llc and llvm-dis and unpacks them, without installing them on the system.
# The version is fixed, because another version of LLVM may change the counts.
bring_clang() {
  [ ! -d "$clang_root" ] || return 0
  local major=${clang_version%%.*} package part=$clang_root.part version
  read_lists
  say "bringing clang $clang_version"
  version=$(apt-cache "${debian[@]}" policy "clang-$major" | sed -n "s/^ *Candidate: \(.*[^0-9]$clang_version-.*\)/\1/p")
  if [ -z "$version" ]; then
    rm -rf "$cross/apt"
    missing "Debian no longer has clang $clang_version; set a later version in cmake/clang_version.txt, then scripts/agx.sh --update"
  fi
  rm -rf "$part" && mkdir -p "$part"
  (cd "$part" && logged agx-clang apt-get "${debian[@]}" download {clang-,libclang-cpp,libllvm,llvm-}"$major=$version") ||
    {
      rm -rf "$cross/apt" # it may be of yesterday
      missing "apt-get could not download clang $version; check the network"
    }
  for package in "$part"/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$part" --wildcards --exclude='*/share/*' \
      '*/lib*.so*' "*/llvm-$major/bin/clang" "*/llvm-$major/bin/opt" "*/llvm-$major/bin/llc" "*/llvm-$major/bin/llvm-dis" \
      2>/dev/null || true # no package has all of these
    rm "$package"
  done
  LD_LIBRARY_PATH=$part/usr/lib/x86_64-linux-gnu "$part/usr/lib/llvm-$major/bin/clang" --version >/dev/null 2>"$logs/agx-clang.log" ||
    missing "Debian's clang $version does not start on this system: $(tail -n 1 "$logs/agx-clang.log")"
  mv "$part" "$clang_root"
}

# Builds Mesa's intermediate representation NIR and the translator from SPIR-V to NIR, without LLVM
# and without drivers.
bring_mesa() {
  [ ! -f "$mesa/built" ] || return 0
  local part=$cross/apt/mesa version name excluded=()
  read_lists
  say "bringing Mesa $mesa_version"
  version=$(apt-cache "${debian[@]}" showsrc mesa | sed -n "s/^Version: \($mesa_version-.*\)/\1/p" | tail -n 1)
  if [ -z "$version" ]; then
    rm -rf "$cross/apt"
    missing "Debian no longer has the source of Mesa $mesa_version; set a later version in cmake/mesa_version.txt, then scripts/agx.sh --update"
  fi
  rm -rf "$mesa" "$part" && mkdir -p "$mesa/source" "$part"
  (cd "$part" && logged agx-mesa apt-get "${debian[@]}" --download-only --tar-only source "mesa=$version") ||
    {
      rm -rf "$cross/apt"
      missing "apt-get could not download Mesa's source; check the network"
    }
  for name in amd broadcom egl etnaviv freedreno gallium glx imagination intel microsoft nouveau panfrost; do
    excluded+=(--exclude="mesa-*/src/$name")
  done
  tar xf "$part"/mesa_*.orig.tar.* -C "$mesa/source" --strip-components=1 "${excluded[@]}" --exclude='mesa-*/docs'
  mkdir -p "$mesa"/source/src/{amd/common/nir,gallium/{include,auxiliary,frontends,drivers/llvmpipe}}
  rm -rf "$part"
  bring_python "$meson" mako==1.3.10 markupsafe==3.0.2 pyyaml==6.0.2 packaging==25.0 ninja==1.13.0 meson==1.12.1
  say "building Mesa's shader compiler (about 2 minutes on 2 cores)"
  logged agx-meson env "${with_meson[@]}" python3 -m mesonbuild.mesonmain setup "$mesa/build" "$mesa/source" \
    --buildtype=release -Doptimization=1 -Db_ndebug=true -Dtools=nir -Dgallium-drivers= -Dvulkan-drivers= -Dplatforms= \
    -Dopengl=false -D{glx,egl,shader-cache,shared-glapi,xmlconfig,expat,gbm,gles1,gles2,llvm,zstd,valgrind,libunwind,lmsensors,android-libbacktrace}=disabled ||
    missing "Mesa $mesa_version does not configure: .mlx/cross/logs/agx-meson.log; it needs g++, pkg-config and zlib1g-dev"
  logged agx-ninja env "${with_meson[@]}" ninja -C "$mesa/build" "${mesa_libraries[@]}" ||
    die "Mesa $mesa_version does not build: .mlx/cross/logs/agx-ninja.log"
  touch "$mesa/built"
}
with_meson=("PYTHONPATH=$meson" "PATH=$meson/bin:$PATH" "PYTHONDONTWRITEBYTECODE=1")
mesa_libraries=(src/compiler/spirv/libvtn.a src/compiler/nir/libnir.a src/compiler/libcompiler.a
  src/util/libmesa_util.a src/util/blake3/libblake3.a src/c11/impl/libmesa_util_c11.a)

# Builds agxstat from Mesa's compiler for Apple GPUs, without textures, and from the C files in
# tests/agx.
bring_agxstat() {
  local agx=$mesa/source/src/asahi/compiler here=$root/tests/agx objects=$agxstat.part file flags jobs=()
  [ ! -x "$agxstat" ] || return 0
  for file in cc c++ patch; do
    command -v "$file" >/dev/null || missing "$file is missing; install it (Debian, Ubuntu: apt-get install g++ patch zlib1g-dev)"
  done
  bring_mesa
  say "building agxstat"
  rm -rf "$objects" && mkdir -p "$objects/generated"
  for file in agx_opcodes.h agx_opcodes.c agx_builder.h; do
    env "${with_meson[@]}" python3 "$agx/$file.py" >"$objects/generated/$file"
  done
  env "${with_meson[@]}" python3 "$agx/agx_nir_algebraic.py" -p "$mesa/source/src/compiler/nir" >"$objects/generated/agx_nir_algebraic.c"
  patch --quiet --output "$objects/generated/agx_performance.c" "$agx/agx_performance.c" "$here/agx_performance.patch" ||
    die "tests/agx/agx_performance.patch does not fit Mesa $mesa_version"
  # Take the compiler flags that meson chose for a file of Mesa.
  flags=$(env "${with_meson[@]}" ninja -C "$mesa/build" -t commands src/compiler/spirv/libvtn.a | grep 'vtn_cfg\.c$' |
    sed -e 's/^[^ ]* //' -e 's/ -MD .*//' -e 's/ -Wall / /')
  flags+=" -w -I'$mesa/source/src/asahi' -I'$agx' -I'$objects/generated' -I'$here'"
  for file in "$agx"/*.c "$objects"/generated/*.c "$here"/*.c; do
    case $file in "$agx/agx_nir_lower_texture.c" | "$agx/agx_performance.c") continue ;; esac
    while [ "$(jobs -r | wc -l)" -ge "$(nproc)" ]; do wait -n || die "agxstat does not build: .mlx/cross/logs/agxstat.log"; done
    (cd "$mesa/build" && eval "cc $flags -c '$file' -o '$objects/$(basename "$file" .c).o'") &
  done >"$logs/agxstat.log" 2>&1
  wait
  (cd "$mesa/build" && c++ -o "$objects/agxstat" "$objects"/*.o -Wl,--gc-sections -Wl,--start-group "${mesa_libraries[@]}" \
    -Wl,--end-group -lm -lz -pthread) >>"$logs/agxstat.log" 2>&1 || {
    tail -n 20 "$logs/agxstat.log" >&2
    die "agxstat does not build: .mlx/cross/logs/agxstat.log"
  }
  mv "$objects/agxstat" "$agxstat" && rm -rf "$objects"
}
