"""Packs the package and its libraries as a wheel. pyproject.toml names this file as the build backend.

`scripts/build_wheel.sh` builds the libraries into `mlx_primitives/`, and calls `python3 pack.py FOLDER`.
"""

import base64
import hashlib
import os
import pathlib
import platform
import re
import subprocess
import sys
import zipfile

try:
    import tomllib
except ImportError:
    sys.exit("pack.py: Python 3.11 or later is needed to pack the wheel")

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
PACKAGE = "mlx_primitives"
LIBRARY = re.compile(r"libmlx_primitives_(\d+_\d+_\d+)\.(so|dylib)")
# For each version of libstdc++, the minor version of the oldest glibc 2 of a Linux distribution
# with this libstdc++. The table follows the policies of manylinux.
LIBSTDCXX = [((3, 4, 24), 28), ((3, 4, 28), 31), ((3, 4, 29), 34), ((3, 4, 30), 35), ((3, 4, 33), 39)]


def number(text):
    return tuple(map(int, text.split(".")))


def needed(library):
    """The minor version of the oldest glibc 2 that the library runs with, according to the symbols that it needs."""
    said = subprocess.run(["readelf", "--version-info", library], check=True, capture_output=True, text=True).stdout
    glibc = max(number(version)[1] for version in re.findall(r"GLIBC_(2\.\d+)", said))
    libstdcxx = max(number(version) for version in re.findall(r"GLIBCXX_(\d+\.\d+\.\d+)", said))
    for most, distribution in LIBSTDCXX:
        if libstdcxx <= most:
            return max(glibc, distribution)
    raise SystemExit("pack.py: %s needs libstdc++ %s, newer than that of any manylinux" % (library, libstdcxx))


def tag(libraries):
    machine = platform.machine()
    if sys.platform == "darwin":
        return "macosx_14_0_" + machine
    return "manylinux_2_%d_%s" % (max(map(needed, libraries)), machine)


def extras(versions):
    """Returns the metadata of the extras, such as `mlx-primitives[cpu]`. Each extra installs the extra of MLX that has
    the same name.

    MLX_PRIMITIVES_CUDA lists the versions of MLX whose libraries have CUDA.
    """
    if sys.platform == "darwin":
        return []
    with_cuda = sorted(os.environ.get("MLX_PRIMITIVES_CUDA", "").split(), key=number)
    lines = []
    for name, of in (("cpu", versions), ("cuda13", with_cuda)):
        if of:
            mlx = "mlx[%s]>=%s,<=%s" % (name, of[0], of[-1])
            lines += ["Provides-Extra: " + name, 'Requires-Dist: %s; extra == "%s"' % (mlx, name)]
    return lines


def metadata(project, versions):
    lines = [
        "Metadata-Version: 2.4",
        "Name: " + project["name"],
        "Version: " + project["version"],
        "Summary: " + project["description"],
        "License-Expression: " + project["license"],
        "License-File: LICENSE-MIT",
        "License-File: LICENSE-APACHE",
        "Keywords: " + ",".join(project["keywords"]),
        "Requires-Python: " + project["requires-python"],
        "Requires-Dist: mlx>=%s,<=%s" % (versions[0], versions[-1]),
        *extras(versions),
        *("Classifier: " + it for it in project["classifiers"]),
        *("Project-URL: %s, %s" % it for it in project["urls"].items()),
        "Description-Content-Type: text/markdown",
        "",
        (HERE / project["readme"]).read_text(),
    ]
    return "\n".join(lines)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Writes the wheel and returns its name, as PEP 517 requires."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    libraries = sorted(path for path in (HERE / PACKAGE).iterdir() if LIBRARY.fullmatch(path.name))
    if not libraries:
        raise SystemExit("pack.py: there is no library in python/mlx_primitives; run scripts/build_wheel.sh")
    versions = sorted((LIBRARY.fullmatch(path.name)[1].replace("_", ".") for path in libraries), key=number)
    info = "%s-%s.dist-info" % (PACKAGE, project["version"])
    tags = "py3-none-" + tag(libraries)
    files = {
        str(path.relative_to(HERE)): path.read_bytes()
        for path in sorted((HERE / PACKAGE).rglob("*"))
        if path.suffix in (".py", ".typed", ".metallib") or path in libraries
    }
    files[info + "/METADATA"] = metadata(project, versions).encode()
    files[info + "/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: mlx-primitives\nRoot-Is-Purelib: false\nTag: %s\n" % tags
    ).encode()
    for name in ("LICENSE-MIT", "LICENSE-APACHE"):
        files["%s/licenses/%s" % (info, name)] = (ROOT / name).read_bytes()
    record = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append("%s,sha256=%s,%d" % (name, digest, len(content)))
    record.append("%s/RECORD,," % info)
    files[info + "/RECORD"] = ("\n".join(record) + "\n").encode()
    wheel = "%s-%s-%s.whl" % (PACKAGE, project["version"], tags)
    os.makedirs(wheel_directory, exist_ok=True)
    with zipfile.ZipFile(os.path.join(wheel_directory, wheel), "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)  # of 1980, so that the same files make the same wheel
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return wheel


if __name__ == "__main__":
    print(build_wheel(*sys.argv[1:]))
