"""Draws the comparison as a bar chart in SVG, for light and dark pages."""

from html import escape

from report import against, limit, number, own, rival, times

WIDTH, LEFT, RIGHT = 860, 260, 150
BAR, GAP, GROUP = 16, 6, 10

STYLE = """
  .page { fill: #ffffff; } .text { fill: #1f2328; } .faint { fill: #59636e; }
  .ours { fill: #1a6fc4; } .peer { fill: #9aa5b1; } .whisker { stroke: #1f2328; }
  .limit { fill: none; stroke: #9aa5b1; stroke-dasharray: 3 3; }
  text {
    font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
    font-size: 12px;
    dominant-baseline: central;
  }
  .title { font-size: 14px; font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; } .text { fill: #e6edf3; } .faint { fill: #9198a1; }
    .ours { fill: #58a6ff; } .peer { fill: #6e7681; } .whisker { stroke: #e6edf3; }
    .limit { stroke: #6e7681; }
  }
"""


def text(x, y, words, kind="text", anchor="start"):
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def box(kind, x, y, width, height, more=""):
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" '
        f'height="{height:.1f}"{more}/>'
    )


def panel(results, test, top):
    """Returns the bars of one test and the y coordinate of their lower end."""
    key = test["key"]
    lines = [line for line in results["contestants"] if key in line["tests"]]
    if not lines:
        return [], top
    allowed = {line["key"]: limit(results, line) for line in lines if key == "decode"}
    most = max(line["tests"][key]["quartiles"][1] for line in lines)
    most = max([most, *(value for value in allowed.values() if value)])
    scale = (WIDTH - LEFT - RIGHT) / most
    title = f"{test['title'][0].upper()}{test['title'][1:]}, tokens per second"
    parts = [text(16, top + 10, title, "text title")]
    if any(allowed.values()):
        parts.append(box("limit", LEFT, top + 4, 18, 11))
        words = "as fast as memory can be read"
        parts.append(text(LEFT + 26, top + 10, words, "faint"))
    y = top + 28
    for index, line in enumerate(lines):
        if index and own(line) and line["rival"] is None:
            y += GROUP
        parts += bar(results, line, key, y, scale, allowed.get(line["key"]))
        y += BAR + GAP
    return parts, y + 14


def bar(results, line, key, y, scale, allowed):
    figures, middle = line["tests"][key], y + BAR / 2
    low, high = figures["quartiles"]
    parts = [text(LEFT - 10, middle, f"{line['who']}, {line['weights']}", anchor="end")]
    end = max(figures["median"], high) * scale
    if allowed:
        parts.append(box("limit", LEFT, y, allowed * scale, BAR))
        end = max(end, allowed * scale)
    kind = "ours" if own(line) else "peer"
    parts.append(box(kind, LEFT, y, figures["median"] * scale, BAR, ' rx="2"'))
    if high > low:
        parts.append(
            f'<path class="whisker" d="M{LEFT + low * scale:.1f} {middle:.1f}H{LEFT + high * scale:.1f}"/>'
        )
    words = number(figures["median"])
    ahead = against(results, line, key)
    if ahead is not None:
        of = f"{times(ahead)} {rival(results, line)['who']}" if own(line) else f"ours {times(ahead)}"
        words += f"  ({of})"
    parts.append(text(LEFT + end + 8, middle, words))
    return parts


def svg(results):
    machine = results["machine"]
    parts, y = [], 56
    for test in results["tests"]:
        drawn, y = panel(results, test, y)
        parts += drawn
    words = f"{machine['cpu']}, {results['threads']} threads, {results['date']}"
    parts.insert(0, text(16, 38, f"{words}; medians, a line from quartile to quartile", "faint"))
    return page("One Llama on a CPU, beside other programs", y, parts)


def page(title, height, parts, style=""):
    """Returns an SVG file with a title and the given parts below it."""
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">',
        f"<style>{STYLE}{style}</style>",
        box("page", 0, 0, WIDTH, height),
        text(16, 20, title, "text title"),
    ]
    return "\n".join([*head, *parts, "</svg>\n"])
