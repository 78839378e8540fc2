"""Formats the results of a run as a Markdown table."""

import re

# The report mentions other programs if they keep more than this many cores busy.
BUSY = 0.2


def median(values):
    return quantile(values, 0.5)


def quartiles(values):
    return quantile(values, 0.25), quantile(values, 0.75)


def quantile(values, fraction):
    """Returns a quantile, interpolated linearly between the two nearest values."""
    ordered = sorted(values)
    place = fraction * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def ratio(upper, lower):
    """Returns the median of upper ÷ lower over the rounds that measured both, or None without such rounds.
    A change of the machine's speed between rounds cancels in this ratio."""
    if not upper or not lower:
        return None
    below = {sample["round"]: sample["tokens_per_second"] for sample in lower["samples"]}
    pairs = [
        sample["tokens_per_second"] / below[sample["round"]]
        for sample in upper["samples"]
        if below.get(sample["round"])
    ]
    return median(pairs) if pairs else None


def number(value):
    """Formats a value with at least three digits, without an exponent."""
    for limit, digits in [(1, 3), (10, 2), (100, 1)]:
        if value < limit:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"


def speed(test):
    """Formats the median, ± half the interquartile range if there are several samples."""
    if not test:
        return "–"
    if len(test["samples"]) < 2:
        return number(test["median"])
    low, high = test["quartiles"]
    return f"{number(test['median'])} ± {number((high - low) / 2)}"


def times(value):
    return "–" if value is None else f"{number(value)}×"


def limit(results, line):
    """Returns the tokens per second of a decoder that reads the weights at the highest measured
    bandwidth."""
    best = results["bandwidth"]["best_gb_s"]
    return best and best * 1e9 / line["bytes_a_token"]


def own(line):
    """Returns whether a line of the table measures our code."""
    return line.get("own", line["rival"] is None)


def rival(results, line):
    """Returns the line with which `line` is compared, or None. A peer's line is compared with one of
    our lines, and some of our lines with a peer's line."""
    for other in results["contestants"]:
        if other["key"] == line["rival"]:
            return other
    return None


def against(results, line, key):
    """Returns our speed divided by the peer's speed in one test."""
    other = rival(results, line)
    if other and own(line):
        line, other = other, line
    return other and ratio(other["tests"].get(key), line["tests"].get(key))


def row(results, line):
    cells = [f"**{line['who']}**" if own(line) else line["who"], line["weights"]]
    for test in results["tests"]:
        figures = line["tests"].get(test["key"])
        cells.append("not run" if not figures and line["not_run"] else speed(figures))
        ahead = times(against(results, line, test["key"])) if line["rival"] else ""
        if own(line) and ahead not in ("", "–"):
            ahead += f" {rival(results, line)['who']}"
        cells.append(ahead)
    return cells


def headings(results):
    return ["", "weights"] + [cell for test in results["tests"] for cell in (test["title"], "ours ÷ theirs")]


def table(results):
    head = headings(results)
    rows = [head, ["---"] * 2 + ["---:"] * (len(head) - 2)]
    rows += [row(results, line) for line in results["contestants"]]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows) + "\n"


def about(results):
    """Describes the measurement, the machine, the date, and the exceptions that apply to single
    lines."""
    machine = results["machine"]
    simd = f" ({', '.join(machine['simd'])})" if machine["simd"] else ""
    parameters = results["shape"]["parameters"]
    size = f"{parameters / 1e9:.2f} B" if parameters >= 1e8 else f"{parameters / 1e6:.2f} M"
    config = results["shape"]["config"]
    versions = "; ".join(
        what if what.startswith(who) else f"{who} {what}"
        for who, what in results["versions"].items()
        if what
    )
    text = (
        f"Tokens per second, medians ± half the interquartile range of {results['rounds']} interleaved "
        f"round{'s' if results['rounds'] > 1 else ''}, {results['threads']} threads, {machine['cpu']}{simd}, "
        f"{machine['cores']} cores, {machine['system']}, {results['date']}. A Llama of "
        f"{size} random weights: {config['num_hidden_layers']} layers, hidden size "
        f"{config['hidden_size']}, feed-forward {config['intermediate_size']}, "
        f"{config['num_attention_heads']} heads, vocabulary {config['vocab_size']}. "
    )
    if results["quick"]:
        text += "A quick run: few tokens and rounds. "
    if results["load_before"] > BUSY:
        text += f"Others kept {results['load_before']} cores busy: not to be relied on. "
    best = results["bandwidth"]["best_gb_s"]
    if best:
        text += (
            f"Memory was read at {best:.1f} GB/s at best ({results['bandwidth']['best_form']}), "
            "which decoding cannot exceed: a line of the chart. "
        )
    text += "Ratios are medians over the rounds.\n"
    notes = [f"- Versions: {versions}."]
    for line in results["contestants"]:
        name = f"{line['who']}, {line['weights']}"
        if line["not_run"]:
            notes.append(f"- {name}: not run: {line['not_run']}")
        notes += [f"- {name}: {note}." for note in shortened(results, line)]
    return text + "\n" + "\n".join(notes) + "\n"


def shortened(results, line):
    """Lists how the tests of a slow contestant are shorter than the tests of its rival."""
    other = rival(results, line)
    for test in results["tests"]:
        figures = line["tests"].get(test["key"])
        full = other and other["tests"].get(test["key"])
        if not figures or not full:
            continue
        less = []
        if figures["tokens"] != full["tokens"]:
            less.append(f"{figures['tokens']} tokens instead of {full['tokens']}")
        if figures["context"] != full["context"]:
            less.append(f"after {figures['context']} instead of {full['context']}")
        if len(figures["samples"]) < len(full["samples"]):
            count = len(figures["samples"])
            less.append(f"{count} round{'s' if count > 1 else ''}")
        if less:
            yield f"{test['title']}: {', '.join(less)}"


BEGIN, END = "<!-- peers:begin -->", "<!-- peers:end -->"


def fill(page, section):
    """Returns a page's text with a new section between its markers."""
    pattern = re.compile(f"{BEGIN}.*?{END}", re.S)
    text, count = pattern.subn(lambda _: f"{BEGIN}\n{section}{END}", page)
    if count != 1:
        raise ValueError(f"the page must have {BEGIN} and {END} once")
    return text
