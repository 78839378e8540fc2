"""Kernels to G13 machine code, and what that costs: by clang, LLVM's SPIR-V back end and agxstat."""

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import air
import bfloat

# Private arrays stay in registers only where all loops over them are unrolled, and that takes
# everything inlined. Apple's back end does it to AIR, in which little is inlined or unrolled.
# Loops of an unknown number of turns are left alone, so that a turn of them is one of the source.
THRESHOLDS = ["-inline-threshold=100000", "-unroll-threshold=10000", "-unroll-max-upperbound=0"]
# Address spaces can be inferred once all is inlined; what an access of no space costs is no measure.
PASSES = "globalopt,default<O2>,function(infer-address-spaces),default<O2>"


class Tools:
    """What scripts/agx.sh brought, a folder for what is made, and one for what is kept."""

    def __init__(self, folder):
        self.folder = Path(folder)
        root = Path(os.environ["AGX_CLANG"])
        self.bin = next(root.glob("usr/lib/llvm-*/bin"))
        self.environment = dict(os.environ, LD_LIBRARY_PATH=f"{root}/usr/lib/x86_64-linux-gnu")
        self.agxstat = os.environ["AGX_STAT"]
        self.rewriter = os.environ["AGX_REWRITER"]
        self.metallib = None
        self.cache = Path(os.environ["AGX_CACHE"])
        self.cache.mkdir(parents=True, exist_ok=True)
        # The files that results depend on besides the kernels.
        files = [Path(__file__), Path(bfloat.__file__), Path(self.agxstat)]
        parts = [root.name.encode(), *(path.read_bytes() for path in files)]
        self.identity = hashlib.sha256(b"\0".join(parts)).hexdigest()

    def run(self, *command):
        command = [str(part) for part in command]
        done = subprocess.run(command, env=self.environment, capture_output=True)
        if done.returncode:
            said = done.stderr.decode(errors="replace")[-2000:]
            raise SystemExit(f"{Path(command[0]).name} failed on {command[-1]}:\n{said}")
        return done.stdout

    def rewrite(self, source, options=()):
        """A Metal source as C++: what all kernels share, and an entry point for each by its name."""
        text = self.run(self.rewriter, self.bin / "clang", self.folder / "sim", source, source.parent, *options)
        # Without the lines that say which file comes from where, one text is one result.
        text = re.sub(r"(?m)^# \d+ .*\n", "", text.decode())
        head, pragma, entries = text.partition("#pragma clang force_cuda_host_device end\n")
        found = {re.search(r"void (\w+)__c[0-9a-f]+\(", line)[1]: line for line in entries.splitlines()}
        return head + pragma, found

    def kernel_air(self, kernel, constants):
        """A kernel of MLX's."""
        self.metallib = self.metallib or air.Metallib(os.environ["AGX_METALLIB"])
        path = self.folder / f"{kernel}.air"
        path.write_bytes(self.metallib.bitcode(kernel))
        return air.Module(self.run(self.bin / "llvm-dis", path, "-o", "-").decode(), kernel, constants)

    def from_source(self, name, text):
        """Rewritten source to SPIR-V."""
        source, bitcode = self.folder / f"{name}.cpp", self.folder / f"{name}.bc"
        source.write_text(text)
        self.run(
            *[self.bin / "clang", "-cc1", "-triple", "spirv64-unknown-unknown", "-fcuda-is-device"],
            *["-x", "cuda", "-std=c++17", "-O2", "-nostdsysteminc", "-w", "-ffp-contract=fast"],
            *["-ffloat16-excess-precision=none", "-disable-llvm-passes", "-emit-llvm-bc"],
            *[source, "-o", bitcode],
        )
        return self.from_ir(name, bitcode)

    def from_air(self, name, text):
        source = self.folder / f"{name}.air.ll"
        source.write_text(text)
        return self.from_ir(name, source)

    def from_ir(self, name, source):
        text, module = self.folder / f"{name}.ll", self.folder / f"{name}.spv"
        self.run(self.bin / "opt", *THRESHOLDS, f"-passes={PASSES}", "-S", source, "-o", text)
        before = text.read_text()
        # globalopt leaves an empty list of constructors for MLX's function constants, and gives
        # threadgroup memory an initial value; the back end and Mesa accept neither.
        after = re.sub(r"@llvm\.global_ctors = appending global \[0 x .*", "", before)
        after = re.sub(r"(?m)^(@.* addrspace\(3\) global .*) zeroinitializer", r"\1 undef", after)
        text.write_text(bfloat.without_bfloat(after))
        if "bfloat" in before:
            self.run(self.bin / "opt", *THRESHOLDS, "-passes=default<O2>", "-S", text, "-o", text)
        target = ["-mtriple=spirv64-unknown-unknown", "-O2", "-filetype=obj"]
        self.run(self.bin / "llc", *target, text, "-o", module)
        return module

    def statistics(self, name, text, known, build):
        """A row for each kernel of what `build` makes of a text, and one for each of its sets of
        known words: a list of (name, kernel, argument, offset, word). Kept for the next time."""
        words = "".join(" ".join(map(str, word)) + "\n" for word in known)
        key = hashlib.sha256("\0".join([self.identity, text, words]).encode()).hexdigest()
        kept = self.cache / f"{key}.json"
        if not kept.exists():
            path, draft = self.folder / f"{name}.known", self.folder / f"{name}.json"
            path.write_text(words)
            draft.write_bytes(self.run(self.agxstat, build(name, text), path))
            shutil.move(draft, kept)
        return [json.loads(line) for line in kept.read_text().splitlines()]
