"""Prints, writes or checks the table of kernel costs. scripts/agx.sh runs this program."""

import json
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kernels
from compare import worse
from compile import Tools
from layout import Layouts
from render import markdown, with_summary

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("table.json")
PRINTED = ROOT / "docs" / "metal-table.md"
# The page that contains the summary of the table.
SUMMARIZED = ROOT / "docs" / "ops.md"


def around(loops, index):
    """Yields the loops that contain a loop."""
    while (index := loops[index]["parent"]) >= 0:
        yield index


def parts_of(side, row, case):
    """Returns pairs: the counts of a part of the code, and how often a thread runs this part."""
    loops = row["loops"]
    key = lambda i: (loops[i]["hot"]["floats"], loops[i]["hot"]["fscib"])
    if not loops and (side.count == "loop" or side.trips):
        raise SystemExit(f"{case}: {side.kernel} has no loop: see tests/agx/kernels.py")
    if side.count == "whole":
        parents = {loop["parent"] for loop in loops}
        main = max((i for i in range(len(loops)) if i not in parents), key=key)
        outer = set(around(loops, main))
        often = lambda i: side.trips if i == main else side.rounds if i in outer else side.staging
        return [(row["hot"], 1), *((loop["hot"], often(i)) for i, loop in enumerate(loops))]
    main = max(range(len(loops)), key=key) if loops else None
    if side.count == "loop":
        inside = [loop["hot"] for loop in loops if loop["parent"] == main]
        return [(loops[main]["hot"], 1), *((hot, side.trips) for hot in inside)]
    outside = row["hot" if side.count == "once" else "total"]
    return [(outside, 1)] + ([(loops[main]["hot"], side.trips)] if loops else [])


def cost(side, row, case, least=0):
    """Returns the cycles of the busiest pipe and of the integer pipe for a unit of work. A unit of
    work has at least `least` floating-point instructions."""
    counted = parts_of(side, row, case)
    fscib, ic, floats = (
        sum(counts[key] * often for counts, often in counted) / side.per for key in ("fscib", "ic", "floats")
    )
    # If the count is far from `least`, the value of `per` is wrong for this kernel.
    if least and not least <= floats <= 6 * least:
        said = f"{floats:.2f} instructions of floats for each unit, and {least} is the least"
        raise SystemExit(f"{case}: {side.kernel} has {said}: see `per` in tests/agx/kernels.py")
    return max(fscib, ic), ic


class Measured:
    """The measured rows. A key has the name of a kernel, and the name of a case whose parameter words
    were known to the compiler. The second name is "" if no parameter words were known."""

    def __init__(self, results):
        self.rows = {(row["kernel"], row["known"]): row for rows in results for row in rows}

    def kernel(self, name):
        return self.rows[name, ""]

    def case(self, side, known, case, least):
        row = self.rows.get((side.kernel, known)) or self.rows.get((side.kernel, ""))
        if row is None:
            raise SystemExit(f"{case}: there is no kernel {side.kernel}: see tests/agx/kernels.py")
        if row["generic"]:
            raise SystemExit(f"{side.kernel} has {row['generic']} accesses of no address space")
        return cost(side, row, case, least)


def word(name):
    """Returns a case's name without spaces, for the file with the parameter words of each case."""
    return name.replace(" ", "_")


def measure_ours(tools, pool, cases, wanted):
    layouts = Layouts(ROOT / "metal")
    used = {case.ours.kernel for case in cases.values()}
    jobs = []
    for head, entries in pool.map(tools.rewrite, sorted((ROOT / "metal").glob("*.metal"))):
        for t in kernels.NAMED:
            chosen = {
                name: entry
                for name, entry in entries.items()
                if name.endswith(f"_{t}") and (not wanted or name in used or any(w in name for w in wanted))
            }
            known = []
            for name, case in cases.items():
                if case.ours.kernel in chosen and case.ours.values:
                    # The parameter struct is the last argument in constant memory.
                    mask = int(chosen[case.ours.kernel].split("__c")[1].split("(")[0], 16)
                    for offset, value in layouts.words(case.ours.struct, case.ours.values):
                        known.append((word(name), case.ours.kernel, mask.bit_length() - 1, offset, value))
            if chosen:
                text = head + "\n".join(chosen.values()) + "\n"
                jobs.append((min(chosen), text, known, tools.from_source))
    # Start the largest jobs first. A large job that starts last would keep other processors
    # waiting.
    jobs.sort(key=lambda job: -len(job[1]))
    return Measured(pool.map(lambda job: tools.statistics(*job), jobs))


def measure_theirs(tools, pool, cases):
    sides = {side.kernel: side for case in cases.values() for side in case.theirs}

    def rows(side):
        if side.source:
            head, entries = tools.rewrite(Path(__file__).with_name(side.source))
            return tools.statistics(side.kernel, f"{head}\n{entries[side.kernel]}\n", [], tools.from_source)
        text = tools.kernel_air(side.kernel, side.constants).ir()
        return tools.statistics(side.kernel, text, [], tools.from_air)

    return Measured(pool.map(rows, sides.values()))


def launched(side, row):
    """Returns the number of threads that a core runs at once, rounded down to full threadgroups."""
    threads, group = row["threads"], side.group
    return threads // group * group if 0 < group <= threads else threads


def case_entry(name, case, ours, theirs):
    alu, ic = ours.case(case.ours, word(name), name, case.least)
    threads = launched(case.ours, ours.kernel(case.ours.kernel))
    entry = {"kernel": case.ours.kernel, "unit": case.unit, "threads": threads}
    entry |= {"alu": round(alu, 3), "ic": round(ic, 3)}
    if theirs and case.theirs:
        costs = [theirs.case(side, "", name, case.least) for side in case.theirs]
        rows = [theirs.kernel(side.kernel) for side in case.theirs]
        entry["mlx"] = {
            "kernel": " + ".join(dict.fromkeys(side.kernel for side in case.theirs)),
            "registers": max(row["registers"] for row in rows),
            "threads": min(map(launched, case.theirs, rows)),
            "spilled": sum(row["spilled"] for row in rows),
            "alu": round(sum(alu for alu, _ in costs), 3),
            "ic": round(sum(ic for _, ic in costs), 3),
        }
    return entry


def kernel_entry(row):
    entry = {key: row[key] for key in ("registers", "threads", "spilled", "arrays")}
    total = row["total"]
    return {**entry, "alu": max(total["fscib"], total["ic"]), "ic": total["ic"]}


def measure(wanted, with_mlx):
    """Measures the table. If there are strings in `wanted`, measures only cases and kernels whose
    names contain one of the strings, and the kernels of these cases."""
    cases = {f"{case.name}, {t}": case for t in kernels.DTYPES for case in kernels.cases(t)}
    if wanted:
        meant = lambda name, case: any(w in name or w in case.ours.kernel for w in wanted)
        cases = {name: case for name, case in cases.items() if meant(name, case)}
    with tempfile.TemporaryDirectory(prefix="agx-") as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        tools = Tools(folder)
        ours = measure_ours(tools, pool, cases, wanted)
        theirs = measure_theirs(tools, pool, cases) if with_mlx else None
    versions = ("mesa", "clang", "mlx")
    return {
        "versions": {v: (ROOT / "cmake" / f"{v}_version.txt").read_text().strip() for v in versions},
        "cases": {name: case_entry(name, case, ours, theirs) for name, case in cases.items()},
        "kernels": {name: kernel_entry(row) for (name, known), row in sorted(ours.rows.items()) if not known},
    }


def dumped(found):
    """Returns JSON with one line for each case and kernel, so that diffs are readable."""
    parts = ['{\n"versions": ' + json.dumps(found["versions"])]
    for key in ("cases", "kernels"):
        lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in found[key].items()]
        parts.append(f'"{key}": {{\n' + ",\n".join(lines) + "\n}")
    return ",\n".join(parts) + "\n}\n"


def check(found):
    faults, better = worse(json.loads(TABLE.read_text()), found)
    for line in better:
        print(f"agx: better: {line}")
    for line in faults:
        print(f"agx: error: {line}")
    if faults:
        sys.exit("agx: error: if that is meant, scripts/agx.sh --update writes the table anew")
    cases, count = len(found["cases"]), len(found["kernels"])
    print(f"agx: {count} kernels, {cases} cases: none is worse than in tests/agx/table.json")


def main():
    mode, *wanted = sys.argv[1:]
    found = measure(wanted, mode != "--check")
    if mode == "--check":
        check(found)
    elif mode == "--update":
        TABLE.write_text(dumped(found))
        PRINTED.write_text(markdown(found))
        SUMMARIZED.write_text(with_summary(SUMMARIZED.read_text(), found))
        print("agx: wrote", *(path.relative_to(ROOT) for path in (TABLE, PRINTED, SUMMARIZED)))
    else:
        print(markdown(found), end="")


if __name__ == "__main__":
    main()
