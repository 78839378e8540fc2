#!/usr/bin/env python3
"""Checks the licenses and sources of all dependencies against deny.toml.

Reads the output of `cargo metadata --format-version 1` from stdin. `cargo deny check` checks this
and more, such as security advisories, but takes minutes to build. The workflow on GitHub runs it.
"""

import json
import re
import sys
import tomllib

REGISTRY = "registry+https://github.com/rust-lang/crates.io-index"


def accepted(expression, allowed):
    """Returns whether the licenses in `allowed` satisfy an SPDX expression. Older crates write / for
    OR."""
    tokens = re.findall(r"[()/]|[^\s()/]+", expression)
    tokens = ["OR" if token == "/" else token for token in tokens]
    at = 0

    def peek():
        return tokens[at] if at < len(tokens) else None

    def take():
        nonlocal at
        at += 1
        return tokens[at - 1]

    def either():
        met = both()
        while peek() == "OR":
            take()
            other = both()
            met = met or other
        return met

    def both():
        met = one()
        while peek() == "AND":
            take()
            other = one()
            met = met and other
        return met

    def one():
        if peek() == "(":
            take()
            met = either()
            if peek() != ")":
                raise ValueError(expression)
            take()
            return met
        name = peek()
        if name is None or name in (")", "AND", "OR", "WITH"):
            raise ValueError(expression)
        take()
        if peek() == "WITH":
            take()
            name += f" WITH {take()}"
        return name in allowed

    met = either()
    if at != len(tokens):
        raise ValueError(expression)
    return met


def complaints(packages, allowed):
    """Returns a sorted list with a sentence for each package that must not be used."""
    found = []
    for package in packages:
        name = f"{package['name']} {package['version']}"
        if package["source"] not in (None, REGISTRY):
            found.append(f"{name} comes from {package['source']}, not from crates.io")
        license = package["license"]
        try:
            if license is None:
                found.append(f"{name} names no license")
            elif not accepted(license, allowed):
                found.append(f"{name} has the license {license}, which deny.toml does not allow")
        except ValueError:
            found.append(f"{name} has a license that cannot be read: {license}")
    return sorted(found)


def main():
    with open("deny.toml", "rb") as file:
        allowed = set(tomllib.load(file)["licenses"]["allow"])
    packages = json.load(sys.stdin)["packages"]
    found = complaints(packages, allowed)
    for complaint in found:
        print(f"licenses: {complaint}", file=sys.stderr)
    print(f"licenses: {len(packages)} packages, {len(found)} refused")
    sys.exit(1 if found or not packages else 0)


if __name__ == "__main__":
    main()
