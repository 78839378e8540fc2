#!/usr/bin/env python3
"""Plants faults in cpp/ and in the CPU kernels, one at a time, and expects the tests to detect each of them.

  scripts/planted_faults.py                    build the tests with all faults, then run all of them
  scripts/planted_faults.py TEXT...            only faults whose name or file contains one of the texts
  scripts/planted_faults.py --tree DIR         only write the faults into a copy of the sources in DIR
  scripts/planted_faults.py --tests PROGRAM... run tests that were built from such sources

tests/mutants/cpp.toml and tests/mutants/rust.toml list the faults. One build contains all of them. The environment
variable MLX_PRIMITIVES_TEST_FAULT selects the fault that takes effect. PLANTED_FAULTS_JOBS sets how many faults are
tested at a time. The default is half the number of cores.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
LISTS = {"cpp.toml": "cpp", "rust.toml": "crates/kernels/src"}  # each with the folder of its files
KERNELS = "mlx-primitives-kernels"
VARIABLE = "MLX_PRIMITIVES_TEST_FAULT"
SIMULATOR = "MLX_PRIMITIVES_SIMULATE_METAL"
PATIENCE = 600  # seconds; if the tests take longer, one of them hangs, so the fault counts as detected

HEADER = f"""#pragma once

#include <cstdlib>

inline bool planted_fault(int number) {{
  static const char* text = std::getenv("{VARIABLE}");
  static const int planted = text ? std::atoi(text) : 0;
  return planted == number;
}}
"""

# `weave` appends this module to the lib.rs of the kernels' crate.
MODULE = f"""
mod planted_fault {{
    pub fn planted_fault(number: u32) -> bool {{
        static PLANTED: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {{
            std::env::var("{VARIABLE}").ok().and_then(|text| text.parse().ok()).unwrap_or(0)
        }});
        *PLANTED == number
    }}
}}
"""


def read_list():
    faults = []
    for list_of, folder in LISTS.items():
        of_list = tomllib.loads((ROOT / "tests/mutants" / list_of).read_text())
        faults += [{"name": name, **fault, "file": f"{folder}/{fault['file']}"} for name, fault in of_list.items()]
    for number, fault in enumerate(faults, 1):
        unknown = set(fault) - {"name", "file", "from", "to", "tests", "simulated", "survives"}
        if unknown or not fault["tests"]:
            sys.exit(f"planted_faults: {fault['name']}: unknown keys {unknown}, or no tests")
        fault["number"] = number
    return faults


def locate(fault, text):
    """Returns the start and the end of the code that a fault replaces: all of `from`, or its part in [[ ]]."""
    context = re.fullmatch(r"(.*)\[\[(.*)\]\](.*)", fault["from"], re.DOTALL)
    parts = context.groups() if context else ("", fault["from"], "")
    patterns = [r"\s+".join(re.escape(word) for word in part.split()) for part in parts]
    found = list(re.finditer(r"{}\s*({})\s*{}".format(*patterns), text))
    if len(found) != 1:
        sys.exit(f"planted_faults: {fault['name']}: its code is in {fault['file']} {len(found)} times, not once")
    return found[0].span(1)


def weave(tree, faults):
    """Writes all faults into the sources of `tree`, a copy of the repository."""
    by_file = {"crates/kernels/src/lib.rs": []}
    for fault in faults:
        by_file.setdefault(fault["file"], []).append(fault)
    for file, its_faults in by_file.items():
        text = (ROOT / file).read_text()
        rust = file.endswith(".rs")
        spans = sorted(((locate(fault, text), fault) for fault in its_faults), key=lambda at: at[0])
        woven, end = "" if rust else '#include "planted_fault.h"\n', 0
        for (start, stop), fault in spans:
            if start < end:
                sys.exit(f"planted_faults: {fault['name']}: its code is part of another fault's")
            woven += text[end:start] + either(fault, text[start:stop], rust)
            end = stop
        module = MODULE if file.endswith("src/lib.rs") else ""
        write(tree / file, (woven + text[end:] + module).encode())
    write(tree / "cpp/planted_fault.h", HEADER.encode())


def either(fault, old, rust):
    """Returns a statement or an expression that runs the fault's code if that fault is selected, else the old code."""
    new, condition = fault["to"], f"planted_fault({fault['number']})"
    if rust:
        choice = f"if crate::planted_fault::{condition} {{ {new} }} else {{ {old} }}"
        return choice if old.endswith((";", "}")) else f"({choice})"
    if old.endswith((";", "}")):
        return f"if ({condition}) {{ {new} }} else {{ {old} }}"
    return f"({condition} ? ({new}) : ({old}))"


def write(path, content):
    """Writes a file, unless it already has this content, so that Cargo does not compile it again."""
    if not (path.is_file() and path.read_bytes() == content):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def build(faults, chosen):
    """Copies the repository, writes all faults into the copy, and builds the tests that detect the chosen ones."""
    home = ROOT / "target/planted_faults"
    tree = home / "tree"
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    names = {name for name in names if name and (ROOT / name).is_file()}
    changed = {fault["file"] for fault in faults} | {"crates/kernels/src/lib.rs"}
    for name in names - changed:
        write(tree / name, (ROOT / name).read_bytes())
        shutil.copymode(ROOT / name, tree / name)
    for path in [path for path in tree.rglob("*") if path.is_file()]:
        name = str(path.relative_to(tree))
        if name not in names and name != "cpp/planted_fault.h" and not name.startswith(".mlx"):
            path.unlink()
    if (ROOT / ".mlx").is_dir() and not (tree / ".mlx").exists():
        (tree / ".mlx").symlink_to(ROOT / ".mlx")
    weave(tree, faults)
    command = ["cargo", "test", "--no-run", "--message-format=json"]
    if any(fault["file"].endswith(".rs") for fault in chosen):
        command += ["-p", KERNELS, "--test", "kernels"]
    if any(fault["file"].startswith("cpp/") for fault in chosen):
        packages = ["mlx-primitives", *(f"mlx-primitives-{name}" for name in ["llama", "ranks", "cli"])]
        command += [word for package in packages for word in ["-p", package]]
        command += [word for test in ["core", "llama", "ranks", "cli"] for word in ["--test", test]]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(home / "target")}
    environment.pop("MLX_PRIMITIVES_WERROR", None)
    built = subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True)
    messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    programs = [m["executable"] for m in messages if m.get("executable") and m["target"]["kind"] == ["test"]]
    if built.returncode or not programs:
        sys.exit("planted_faults: the tests with the faults do not build")
    return programs


def run(programs, number, tests, simulated):
    """Runs each test in the program that contains it, until one fails. Returns the failure, or None."""
    by_program = {program: [test for test in tests if test in listed] for program, listed in programs.items()}
    results = (run_in(program, number, own, simulated) for program, own in by_program.items() if own)
    return next((failed for failed in results if failed), None)


def run_in(program, number, tests, simulated):
    """Runs tests of one program with fault `number`, or without a fault if it is 0, on the CPU or in the Metal
    simulator.

    Returns the failures in words, or None if all tests pass.
    """
    command = [program, *tests, "--test-threads", "2"]
    environment = {**os.environ, VARIABLE: str(number)}
    environment.update({SIMULATOR: "forward"} if simulated else {})
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        output = process.communicate(timeout=PATIENCE)[0].decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"no end within {PATIENCE} s"
    if process.returncode == 0:
        return None
    failed = re.findall(r"^test (\S+) +\.\.\. FAILED$", output, re.MULTILINE)
    return ", ".join(failed) or f"the tests ended with {process.returncode}: {output.strip()[-200:]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tree", type=pathlib.Path)
    parser.add_argument("--tests", nargs="+")
    arguments = parser.parse_args()
    faults = read_list()
    if arguments.tree:
        return weave(arguments.tree, faults)
    chosen = [
        f for f in faults if not arguments.names or any(text in f["name"] + " " + f["file"] for text in arguments.names)
    ]
    programs = {
        program: subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout
        for program in arguments.tests or build(faults, chosen)
    }
    tests = sorted({test for fault in chosen for test in fault["tests"].split()})
    missing = [test for test in tests if not any(test in listed for listed in programs.values())]
    if missing or not chosen:
        sys.exit(f"planted_faults: no such faults, or no program has the tests {missing}")
    start = time.monotonic()
    for simulated in (False, True):
        tests = {test for f in chosen if f.get("simulated", False) == simulated for test in f["tests"].split()}
        if tests and (failed := run(programs, 0, sorted(tests), simulated)):
            sys.exit(f"planted_faults: without a fault, too, these tests fail: {failed}")
    print(f"planted_faults: without a fault all tests pass, in {time.monotonic() - start:.0f} s", flush=True)

    wrong = []

    def one(fault):
        began = time.monotonic()
        noticed = run(programs, fault["number"], fault["tests"].split(), fault.get("simulated", False))
        if bool(noticed) == ("survives" in fault):
            wrong.append(fault["name"])
        took = time.monotonic() - began
        print(f"planted_faults: {fault['name']}: {noticed or 'SURVIVED'} ({took:.0f} s)", flush=True)

    jobs = int(os.environ.get("PLANTED_FAULTS_JOBS") or max(1, (os.cpu_count() or 2) // 2))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, chosen))
    survivors = sum("survives" in fault for fault in chosen)
    print(
        f"planted_faults: {len(chosen)} faults in {len({f['file'] for f in chosen})} files, {survivors} of them change "
        f"nothing that a test could notice; {len(wrong)} not as listed, in {time.monotonic() - start:.0f} s"
    )
    if wrong:
        sys.exit(f"planted_faults: survived, or were noticed against expectation: {', '.join(sorted(wrong))}")


if __name__ == "__main__":
    main()
