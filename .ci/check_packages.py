#!/usr/bin/env python3
"""Checks that packages have everything that crates.io and its readers need.

    check_packages.py CRATES FOLDER

CRATES contains the .crate files, and FOLDER the unpacked packages. Each package must contain both
licenses, a README without dead links, and a manifest with the fields that crates.io shows. A
package must also be small.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib

MOST_BYTES = {"mlx-primitives-llama": 4_000_000}  # with the demo model
MOST_BYTES_OF_OTHERS = 1_000_000
FIELDS = ["description", "license", "repository", "readme", "rust-version", "keywords", "categories"]


def links(text):
    """Returns the targets of links and images in Markdown, outside of code."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "", text)
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)


def dead(text, folder, tracked):
    """Returns the relative links of a README in `folder` that lead to no tracked file or folder.

    crates.io resolves a relative link from the README's folder in the repository that the manifest
    names.
    """
    found = []
    for link in links(text):
        path = link.split("#")[0]
        if not path or re.match(r"[a-z]+:", path):
            continue
        path = os.path.normpath(os.path.join(folder, path))
        if not any(file == path or file.startswith(path + "/") for file in tracked):
            found.append(link)
    return found


def versionless(manifest):
    """Returns the dependencies that a registry cannot resolve."""
    tables = [manifest, *manifest.get("target", {}).values()]
    kinds = ("dependencies", "build-dependencies", "dev-dependencies")
    return [
        name
        for table in tables
        for kind in kinds
        for name, said in table.get(kind, {}).items()
        if isinstance(said, dict) and ("version" not in said or "path" in said)
    ]


def complaints(package, crate, unpacked, root, tracked):
    name = package["name"]
    if not crate.is_file():
        return [f"{name}: {crate.name} was not packed"]
    found = []
    most = MOST_BYTES.get(name, MOST_BYTES_OF_OTHERS)
    if (size := crate.stat().st_size) > most:
        found.append(f"{name}: {size} bytes, and at most {most} are allowed")
    for license in ("LICENSE-MIT", "LICENSE-APACHE"):
        file = unpacked / license
        if not file.is_file() or file.read_bytes() != (root / license).read_bytes():
            found.append(f"{name}: {license} is not in the package")
    manifest = tomllib.loads((unpacked / "Cargo.toml").read_text())
    found += [f"{name}: no {field}" for field in FIELDS if not manifest["package"].get(field)]
    found += [f"{name}: {other} has no version" for other in versionless(manifest)]
    readme = (unpacked / "README.md").read_text()
    folder = pathlib.Path(package["manifest_path"]).parent.relative_to(root)
    found += [f"{name}: README links to {link}" for link in dead(readme, folder, tracked)]
    library = unpacked / "src/lib.rs"  # a package with only a command has no library
    if library.is_file() and "include_str!(\"../README.md\")" in library.read_text():
        # docs.rs shows this README, but cannot follow links into the repository.
        relative = [link for link in links(readme) if not re.match(r"[a-z]+:|#", link)]
        found += [f"{name}: docs.rs cannot follow {link}" for link in relative]
    return found


def main():
    crates, folder = map(pathlib.Path, sys.argv[1:])
    root = pathlib.Path.cwd()
    asked = ["cargo", "metadata", "--no-deps", "--format-version", "1"]
    members = json.loads(subprocess.check_output(asked))["packages"]
    published = [package for package in members if package["publish"] is None]
    tracked = subprocess.check_output(["git", "ls-files"], text=True).splitlines()
    found = []
    for package in published:
        stem = f"{package['name']}-{package['version']}"
        crate = crates / f"{stem}.crate"
        found += complaints(package, crate, folder / stem, root, tracked)
        if crate.is_file():
            print(f"packages: {stem}, {crate.stat().st_size / 1e6:.2f} MB")
    for complaint in found:
        print(f"packages: {complaint}", file=sys.stderr)
    sys.exit(1 if found or not published else 0)


if __name__ == "__main__":
    main()
