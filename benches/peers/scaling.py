"""Tables and SVG curves of the speed by the number of threads, for each machine.

A "scaling" is the list of one machine's results, one for each number of threads."""

import math

from chart import page, text
from report import against, number, own, times

PANEL_WIDTH, PANEL_HEIGHT, LEFT, TOP, GAP = 330, 180, 60, 92, 70
LINES = """
  .ours-line { fill: none; stroke: #1a6fc4; stroke-width: 2; }
  .peer-line { fill: none; stroke: #9aa5b1; stroke-width: 2; }
  .grid { stroke: #9aa5b1; stroke-opacity: 0.3; }
  @media (prefers-color-scheme: dark) {
    .ours-line { stroke: #58a6ff; } .peer-line { stroke: #6e7681; }
  }
"""
DASHES = ["", "6 3", "2 3", "9 3 2 3", "1 5"]


def key(scaling):
    """Returns the properties that identify a machine."""
    machine = scaling[0]["machine"]
    return machine["cpu"], machine["cores"]


def kept(scalings, new):
    """Returns the scalings, newest first. The new scaling replaces an earlier one of the same
    machine."""
    return [new] + [scaling for scaling in scalings if key(scaling) != key(new)]


def title(scaling):
    machine = scaling[0]["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores, {scaling[0]['date']}"


def lines_with(scaling, test):
    """Returns the contestants that ran the test with at least one number of threads, in the table's
    order."""
    found = {}
    for results in scaling:
        for line in results["contestants"]:
            if test in line["tests"]:
                found.setdefault(line["key"], line)
    return list(found.values())


def figures(results, line, test):
    """Returns a contestant's figures for a test in `results`, or None."""
    same = [other for other in results["contestants"] if other["key"] == line["key"]]
    return same[0]["tests"].get(test) if same else None


def cell(results, line, test):
    measured = figures(results, line, test)
    if not measured:
        return "–"
    words = number(measured["median"])
    here = next(other for other in results["contestants"] if other["key"] == line["key"])
    ahead = against(results, here, test)
    return words if ahead is None else f"{words} ({times(ahead)})"


def table(scaling):
    """Returns a table with a row per contestant and test, and a column per number of threads."""
    counts = [str(results["threads"]) for results in scaling]
    head = ["test", "", "weights", *counts]
    rows = [head, ["---"] * 3 + ["---:"] * len(counts)]
    for test in scaling[0]["tests"]:
        for line in lines_with(scaling, test["key"]):
            name = f"**{line['who']}**" if own(line) else line["who"]
            cells = [cell(results, line, test["key"]) for results in scaling]
            rows.append([test["title"], name, line["weights"], *cells])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows) + "\n"


def about(scaling):
    rounds = scaling[0]["rounds"]
    return (
        f"Tokens per second by the number of threads, medians of {rounds} interleaved "
        f"round{'s' if rounds > 1 else ''}, on {title(scaling)}. In parentheses, ours ÷ theirs "
        "(or ours ÷ the named rival's, for a second line of ours).\n"
    )


def place(scaling, threads, value, most, left, top):
    """Returns the point for a value. The x axis is logarithmic in the number of threads."""
    counts = [results["threads"] for results in scaling]
    span = math.log(counts[-1] / counts[0]) or 1.0
    x = left + PANEL_WIDTH * math.log(threads / counts[0]) / span
    return x, top + PANEL_HEIGHT * (1 - value / most)


def curve(scaling, line, test, most, left, top, dash):
    kind = "ours" if own(line) else "peer"
    points = []
    for results in scaling:
        measured = figures(results, line, test)
        if measured:
            points.append(place(scaling, results["threads"], measured["median"], most, left, top))
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    style = f' stroke-dasharray="{dash}"' if dash else ""
    parts = [f'<path class="{kind}-line" d="M{path}"{style}/>']
    parts += [f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points]
    return parts


def panel(scaling, test, left, top):
    """Returns the curves of one test with a legend below them, and the y coordinate of the lower
    end."""
    lines = lines_with(scaling, test["key"])
    medians = [
        measured["median"]
        for results in scaling
        for line in lines
        if (measured := figures(results, line, test["key"]))
    ]
    if not medians:
        return [], top
    most = max(medians)
    name = f"{test['title'][0].upper()}{test['title'][1:]}, tokens per second"
    parts = [text(left, top - 16, name)]
    for fraction in (0, 0.5, 1):
        y = top + PANEL_HEIGHT * (1 - fraction)
        parts.append(f'<path class="grid" d="M{left} {y:.1f}h{PANEL_WIDTH}"/>')
        parts.append(text(left - 8, y, number(most * fraction) if fraction else "0", "faint", "end"))
    for results in scaling:
        x, _ = place(scaling, results["threads"], 0, most, left, top)
        parts.append(text(x, top + PANEL_HEIGHT + 14, str(results["threads"]), "faint", "middle"))
    y = top + PANEL_HEIGHT + 36
    drawn = {True: 0, False: 0}
    for line in lines:
        dash = DASHES[drawn[own(line)] % len(DASHES)]
        drawn[own(line)] += 1
        parts += curve(scaling, line, test["key"], most, left, top, dash)
        kind = "ours" if own(line) else "peer"
        style = f' stroke-dasharray="{dash}"' if dash else ""
        parts.append(f'<path class="{kind}-line" d="M{left} {y}h26"{style}/>')
        parts.append(text(left + 34, y, f"{line['who']}, {line['weights']}"))
        y += 18
    return parts, y


def svg(scalings):
    """Returns the curves of all machines, with two tests side by side."""
    parts, y = [], 56
    for scaling in scalings:
        parts.append(text(16, y, f"{title(scaling)}; by the number of threads", "faint"))
        tests = scaling[0]["tests"]
        for first in range(0, len(tests), 2):
            ends = []
            for column, test in enumerate(tests[first : first + 2]):
                left = LEFT + column * (PANEL_WIDTH + GAP)
                drawn, end = panel(scaling, test, left, y + TOP - 50)
                parts += drawn
                ends.append(end)
            y = max(ends) + 10
        y += 24
    return page("One Llama on 1 to many threads, beside other programs", y, parts, LINES)
