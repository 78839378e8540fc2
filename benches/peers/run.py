#!/usr/bin/env python3
"""Compares the CPU speed of our Llama with llama.cpp, ik_llama.cpp, candle and mlx-lm.

Builds or installs all of them in target/peers/, runs the same shape with random weights on the same
number of threads, interleaved, and prints a table. Needs Python 3.9, cargo and a C++ compiler.
See README.md in this folder.
"""

import argparse
import fnmatch
import json
import os
import sys
from pathlib import Path

import build
import chart
import contestants
import gguf
import measure
import report
import scaling
from build import say


def available_cores():
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_counts(text):
    counts = sorted({int(count) for count in text.split(",")})
    if counts[0] < 1:
        raise argparse.ArgumentTypeError("threads must be 1 or more")
    return counts


def arguments():
    keys = ", ".join(one.key for one in contestants.everyone())
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"Contestants: {keys}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("--quick", action="store_true", help="few tokens and two rounds, to check that everything works")
    option("--only", metavar="KEYS", help="contestants, separated by commas; * and ? are wildcards")
    option("--tests", metavar="KEYS", help="tests, by comma: decode, prompt-128; and with one number of threads prompt-512, decode-4096")
    option("--rounds", type=int, help="rounds [default: 5, or 2 with --quick]")
    option(
        "--threads",
        type=thread_counts,
        default=[available_cores()],
        help="threads of each contestant; several numbers, as in 1,2,4,8, draw curves [default: all cores]",
    )
    option("--config", default=build.HERE / "llama-1b.json", help="the model's shape")
    option("--ours", metavar="FILE", help="the mlx-primitives to measure, instead of building it")
    option("--ik-llama", metavar="DIR", help="source of ik_llama.cpp; without it, it is not run")
    option("--ik-llama-version", metavar="TEXT", help="the version of that source, if git does not know it")
    option("--build-only", action="store_true", help="build everyone and write their models")
    option("--folder", default=build.ROOT / "target/peers", help="the folder of all builds")
    option("--results", metavar="FILE", help="the file for the results [default: results.json in the folder]")
    option("--report", metavar="FILE", help="report the results of an earlier run; measure nothing")
    option(
        "--page",
        action="store_true",
        help="write the table into docs/beside-others.md, the chart to docs/images and the results beside this file",
    )
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 5)
    if options.rounds < 1:
        parser.error("--rounds must be 1 or more")
    return options


def chosen(items, patterns):
    if not patterns:
        return items
    wanted = patterns.split(",")
    for pattern in wanted:
        if not any(fnmatch.fnmatchcase(item.key, pattern) for item in items):
            known = ", ".join(item.key for item in items)
            sys.exit(f"error: {pattern} is none of {known}")
    return [item for item in items if any(fnmatch.fnmatchcase(item.key, one) for one in wanted)]


def measured(options):
    """Runs all contestants. Returns the results for each number of threads, or None after only
    building."""
    shape = gguf.Shape(options.config)
    everyone = chosen(contestants.everyone(), options.only)
    tests = chosen(contestants.tests(options.quick, len(options.threads) > 1), options.tests)
    shop = build.Workshop(options.folder, jobs=available_cores())
    ready, missing = measure.prepare(everyone, shop, options, shape)
    try:
        bandwidth = build.read_bandwidth(shop)
    except build.Unavailable as error:
        say(f"read bandwidth will not be measured: {error}")
        bandwidth = None
    if options.build_only:
        return None
    if not ready:
        sys.exit("error: no contestant can run")
    load = measure.load_before()
    figures = measure.rounds(options, tests, ready, bandwidth)
    return [
        measure.results(options, threads, tests, shape, everyone, missing, load, measured)
        for threads, measured in figures.items()
    ]


def written(path, text):
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    say(f"wrote {path}")


def main():
    options = arguments()
    if options.report:
        runs = json.loads(Path(options.report).read_text())
        runs = runs if isinstance(runs, list) else [runs]
    else:
        runs = measured(options)
        if runs is None:
            return
        file = options.results or Path(options.folder) / "results.json"
        written(file, json.dumps(runs, indent=1) + "\n")
    if len(runs) > 1:
        report_scaling(options, runs)
    else:
        report_one(options, *runs)


def report_one(options, results):
    table, about, drawing = report.table(results), report.about(results), chart.svg(results)
    print(f"{table}\n{about}")
    if not options.page:
        written(Path(options.folder) / "peers.svg", drawing)
        return
    page = build.ROOT / "docs/beside-others.md"
    section = f"{table}\n![The same as bars](images/peers.svg)\n\n{about}"
    written(page, report.fill(page.read_text(), section))
    written(build.ROOT / "docs/images/peers.svg", drawing)
    written(build.HERE / "results.json", json.dumps([results], indent=1) + "\n")


def report_scaling(options, runs):
    """Reports the results for several numbers of threads. With --page, adds them to a page with the
    results of other machines."""
    print(f"{scaling.table(runs)}\n{scaling.about(runs)}")
    if not options.page:
        written(Path(options.folder) / "scaling.svg", scaling.svg([runs]))
        return
    file = build.HERE / "scaling.json"
    earlier = json.loads(file.read_text()) if file.exists() else []
    everyone = scaling.kept(earlier, runs)
    written(file, json.dumps(everyone, indent=1) + "\n")
    written(build.ROOT / "docs/images/scaling.svg", scaling.svg(everyone))


if __name__ == "__main__":
    main()
