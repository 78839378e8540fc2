"""Builds every contestant in `target/peers/`, unless it is already built."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

LLAMA_CPP_PYTHON = "0.3.36"
MLX = "0.32.4"
MLX_LM = "0.32.2"
CMAKE = "3.31.6"
NINJA = "1.11.1.4"


class Unavailable(Exception):
    """The reason why a contestant cannot run, and how to fix it."""


def say(text):
    print(f"peers: {text}", file=sys.stderr, flush=True)


class Workshop:
    """The folder of all builds, with a log for each step."""

    def __init__(self, folder, jobs):
        self.folder = Path(folder).resolve()
        self.jobs = jobs
        self.folder.mkdir(parents=True, exist_ok=True)

    def step(self, name, command, fix, **options):
        """Runs a command and logs its output; shows the end of the log if the command fails."""
        log = self.folder / f"{name}.log"
        options.setdefault("cwd", self.folder)
        say(f"{name}: {' '.join(str(part) for part in command[:6])} … (log: {log})")
        try:
            with open(log, "ab") as out:
                subprocess.run(
                    [str(part) for part in command],
                    check=True,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    **options,
                )
        except FileNotFoundError as error:
            raise Unavailable(f"{error.filename} was not found; {fix}") from error
        except subprocess.CalledProcessError as error:
            for line in log.read_text(errors="replace").splitlines()[-8:]:
                print(f"    {line}", file=sys.stderr)
            raise Unavailable(f"the step {name} failed, see {log}; {fix}") from error

    def python(self):
        """Returns the Python of a virtual environment for packages from PyPI."""
        python = self.folder / "venv/bin/python"
        if not (self.folder / "venv/bin/pip").exists():
            self.step(
                "venv",
                [sys.executable, "-m", "venv", "--clear", self.folder / "venv"],
                "install Python's venv (Debian, Ubuntu: apt-get install python3-venv)",
            )
        return python

    def pip_install(self, *packages):
        python = self.python()
        wanted = [re.sub(r"\[.*\]", "", package) for package in packages]
        installed = subprocess.run(
            [python, "-m", "pip", "freeze", "--disable-pip-version-check"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split()
        if set(wanted) - set(installed):
            quiet = ["--quiet", "--disable-pip-version-check"]
            self.step(
                "pip",
                [python, "-m", "pip", "install", *quiet, *packages],
                "check the network",
            )
        return python

    def cmake(self):
        """Returns CMake and the flags that choose its generator. Installs both from PyPI if the
        machine lacks them."""
        cmake, generator = shutil.which("cmake"), []
        if not cmake or version(cmake) < (3, 18):
            self.pip_install(f"cmake=={CMAKE}")
            cmake = self.folder / "venv/bin/cmake"
        if not shutil.which("make"):
            self.pip_install(f"ninja=={NINJA}")
            generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={self.folder}/venv/bin/ninja"]
        return cmake, generator


def version(program):
    text = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def ours(shop, given=None):
    if given:
        binary = Path(given).resolve()
        if not os.access(binary, os.X_OK):
            raise Unavailable(f"{given} is no program; give --ours the mlx-primitives to measure")
        return binary
    shop.step(
        "ours",
        ["cargo", "build", "--release", "--bin", "mlx-primitives"],
        "run scripts/build_metal.sh first",
        cwd=ROOT,
    )
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target"))
    return ROOT / target / "release/mlx-primitives"


def llama_cpp(shop):
    """Builds llama-bench from the llama.cpp in llama-cpp-python's source package."""
    name = f"llama_cpp_python-{LLAMA_CPP_PYTHON}"
    source = shop.folder / name / "vendor/llama.cpp"
    if not (source / "CMakeLists.txt").exists():
        archive = shop.folder / f"{name}.tar.gz"
        if not archive.exists():
            package = ["llama-cpp-python==" + LLAMA_CPP_PYTHON]
            flags = ["--no-deps", "--no-binary", "llama-cpp-python", "--dest", shop.folder]
            shop.step(
                "llama.cpp-download",
                [shop.python(), "-m", "pip", "download", *flags, *package],
                "check the network",
            )
        with tarfile.open(archive) as packed:
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            packed.extractall(shop.folder, **safe)
    return llama_bench(shop, "llama.cpp", source)


def ik_llama_cpp(shop, source):
    """Builds llama-bench from the user's copy of ik_llama.cpp, which no package registry has."""
    if not source:
        raise Unavailable("no registry has it; clone it and give the folder: --ik-llama DIR")
    source = Path(source).resolve()
    if not (source / "CMakeLists.txt").exists():
        raise Unavailable(f"{source} holds no CMakeLists.txt; give --ik-llama a source folder")
    # Kernels for caches of types other than f16 would take most of the compile time.
    return llama_bench(shop, "ik_llama.cpp", source, "-DGGML_IQK_FA_ALL_QUANTS=OFF")


def llama_bench(shop, name, source, *flags):
    build = shop.folder / f"{name}-build-{zlib.crc32(str(source).encode()):08x}"
    binary = build / "bin/llama-bench"
    if binary.exists():
        return binary
    cmake, generator = shop.cmake()
    on = ["GGML_NATIVE", "LLAMA_BUILD_COMMON", "LLAMA_BUILD_TOOLS", "LLAMA_BUILD_EXAMPLES"]
    off = ["BUILD_SHARED_LIBS", "GGML_METAL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_SERVER"]
    off += ["LLAMA_BUILD_APP", "LLAMA_CURL", "LLAMA_OPENSSL", "GGML_CCACHE"]
    settings = [f"-D{flag}=ON" for flag in on] + [f"-D{flag}=OFF" for flag in off]
    shop.step(
        f"{name}-configure",
        [cmake, *generator, "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release"]
        + settings
        + list(flags),
        "install a C++ compiler (Debian, Ubuntu: apt-get install g++)",
    )
    shop.step(
        f"{name}-build",
        [cmake, "--build", build, "--target", "llama-bench", "--parallel", shop.jobs],
        f"remove {build} and run this again",
    )
    return binary


def candle(shop):
    target = shop.folder / "candle"
    flags = f"{os.environ.get('RUSTFLAGS', '')} -C target-cpu=native".strip()
    shop.step(
        "candle-build",
        ["cargo", "build", "--release", "--locked", "--target-dir", target],
        "install Rust, and check the network",
        cwd=HERE / "candle",
        env={**os.environ, "RUSTFLAGS": flags},
    )
    return target / "release/candle-peer"


def mlx_lm(shop):
    extra = "" if sys.platform == "darwin" else "[cpu]"
    return shop.pip_install(f"mlx{extra}=={MLX}", f"mlx-lm=={MLX_LM}")


def read_bandwidth(shop):
    """Builds the program that measures how fast memory can be read."""
    binary, source = shop.folder / "read_bandwidth", HERE / "read_bandwidth.c"
    if not binary.exists() or binary.stat().st_mtime < source.stat().st_mtime:
        compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
        flags = ["-O3", "-march=native", "-pthread", "-Wall", "-Wextra"]
        shop.step(
            "read_bandwidth",
            [compiler, *flags, source, "-o", binary],
            "install a C compiler (Debian, Ubuntu: apt-get install gcc)",
        )
    return binary
